//! Tests of the binary from its command line: one file a subject, each test on a private host.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a failed step is a failed test"
)]

mod a2a;
mod agents_propose;
mod approvals;
mod ask_command;
mod caller;
mod carve_outs;
mod clients;
mod completions;
mod containers;
mod credentials;
mod databases;
mod examples;
mod exec;
mod explain;
mod file_access;
mod files;
mod forward;
mod gateway;
mod gateway_answers;
mod grpc;
mod held_clients;
mod help;
mod homes;
mod http2;
mod identity;
mod inference;
mod init;
mod lacking;
mod leaks;
mod leftovers;
mod logs;
mod mcp;
mod messages;
mod monitoring;
mod names;
mod network;
mod newcomers;
mod one_line;
mod origin;
mod pages;
mod policy;
mod policy_local;
mod process;
mod programs;
mod project_settings;
mod protected;
mod publish;
mod relay;
mod reload;
mod requests;
mod saving;
mod schemas;
mod sdks;
mod sites;
mod ssh;
mod streams;
mod terminal;
mod tiers;
mod tls;
mod tools;
mod witness;

/// Returns a policy for the tests' user with the given `network_policies`.
fn policy(network: &str) -> String {
    format!(
        "process: {{run_as_user: \"{}\"}}\nnetwork_policies: {network}\n",
        lab::host::UID
    )
}

/// `web`: Python may reach web.test:8080 at its private address.
fn web() -> String {
    policy(&format!(
        "{{web: {{endpoints: [{{host: web.test, port: 8080, allowed_ips: [10.99.0.1]}}], binaries: \
         [{{path: {}}}]}}}}",
        python()
    ))
}

/// Returns the executable behind /usr/bin/python3.
fn python() -> String {
    std::fs::canonicalize("/usr/bin/python3")
        .unwrap()
        .display()
        .to_string()
}

/// A Python program: sends its first argument, with escapes such as `\r\n` decoded, to the proxy,
/// then the second one if the answer is a 200, and prints the whole response.
const RAW: &str = r#"
import os, socket, sys
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
s = socket.create_connection((host, int(port)))
s.settimeout(20)
out = b''
def read():
    data = s.recv(65536)
    globals()['out'] += data
    return data
unescape = lambda text: text.encode('latin-1').decode('unicode_escape').encode('latin-1')
s.sendall(unescape(sys.argv[1]))
try:
    while b'\r\n\r\n' not in out and read(): pass
    if len(sys.argv) > 2 and b' 200 ' in out.split(b'\r\n')[0]:
        s.sendall(unescape(sys.argv[2]))
        s.shutdown(socket.SHUT_WR)
    while read(): pass
except (ConnectionError, TimeoutError) as error:
    out += b'[' + type(error).__name__.encode() + b']'
sys.stdout.buffer.write(out)
"#;

/// A CONNECT request for [`RAW`].
fn connect(target: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n")
}
