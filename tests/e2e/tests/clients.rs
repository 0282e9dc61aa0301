//! Real clients, configured by their environment alone, against an origin inside TLS whose requests
//! are judged: permitted requests work as without a proxy, others are refused by a readable 403.

use lab::{Finished, Lab};

use super::origin::{Origin, policy};

/// Rules that permit reads and uploads only.
const RULES: &str = "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: \
                     \"**\"}}, {allow: {method: POST, path: /upload}}, {allow: {method: PUT, path: \
                     /upload}}]";

/// Runs `script` under a policy that permits `binaries` the origin.
fn run(lab: &Lab, origin: &Origin, binaries: &[&str], script: &str) -> Finished {
    let real: Vec<_> = binaries
        .iter()
        .map(|path| std::fs::canonicalize(path).unwrap().display().to_string())
        .collect();
    let real: Vec<_> = real.iter().map(String::as_str).collect();
    lab.sandbox(&policy(&real, RULES))
        .args(&["--upstream-ca-file", &origin.authority()])
        .sh(script)
}

#[track_caller]
fn check(binaries: &[&str], script: &str, expected: &[&str]) {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let finished = run(&lab, &origin, binaries, script);
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        expected,
        "{finished:?}"
    );
    assert!(
        !finished.log.contains("client_tls_failed"),
        "{}",
        finished.log
    );
}

#[test]
fn curl_and_wget_read_upload_and_are_refused() {
    let script = "
        curl -sS https://web.test/hello https://web.test/trailers; echo
        head -c 3000000 /dev/zero | curl -sS -T - https://web.test/upload -H 'Expect: 100-continue'; echo
        curl -sS -X DELETE https://web.test/x -w '%{http_code}' -o /dev/null; echo
        wget -qO- https://web.test/hello; echo
        wget -qO- https://web.test/hello --method=DELETE || echo wget $?";
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let finished = run(&lab, &origin, &["/usr/bin/curl", "/usr/bin/wget"], script);
    let lines: Vec<_> = finished.ok().lines().collect();
    assert_eq!(
        [lines[0], lines[2], lines[3], lines[4]],
        ["hellohello", "403", "hello", "wget 8"],
        "{finished:?}"
    );
    assert_eq!(
        origin.seen().iter().find(|seen| seen[0] == "PUT").unwrap()[3],
        3_000_000
    );
}

#[test]
fn python_clients_read_upload_and_are_refused() {
    let script = r#"d=$(mktemp -d); cat > $d/clients.py <<'END'
import asyncio, requests, httpx, aiohttp, urllib.request
url = 'https://web.test'
with requests.Session() as s:
    print('requests', s.get(url + '/hello').text, s.post(url + '/upload', data=b'x' * 100000).status_code, s.delete(url).status_code)
    print(s.delete(url).json()['reason_code'])
with httpx.Client() as c:
    print('httpx', c.get(url + '/trailers').text, c.post(url + '/upload', content=(b'x' * 1000 for _ in range(9))).status_code, c.delete(url).status_code)
async def main():
    async with aiohttp.ClientSession(trust_env=True) as s:
        async with s.get(url + '/hello') as r: text = await r.text()
        async with s.delete(url) as r: print('aiohttp', text, r.status)
asyncio.run(main())
print('urllib', urllib.request.urlopen(url + '/close').read())
END
/usr/bin/python3 $d/clients.py; rm -r $d"#;
    let expected = [
        "requests hello 200 403",
        "request_not_in_rules",
        "httpx hello 200 403",
        "aiohttp hello 403",
        "urllib b'until the end'",
    ];
    check(&["/usr/bin/python3"], script, &expected);
}

#[test]
fn node_clients_read_upload_and_are_refused() {
    let script = r#"cd /tmp && NODE_PATH=/usr/share/nodejs node -e "
const https = require('https'), axios = require('axios'), { HttpsProxyAgent } = require('https-proxy-agent');
(async () => {
  const agent = new (HttpsProxyAgent || require('https-proxy-agent'))(process.env.HTTPS_PROXY);
  const got = (path, method) => new Promise((done, failed) => https.request('https://web.test' + path, { agent, method: method || 'GET' }, r => {
    let text = ''; r.on('data', d => text += d); r.on('end', () => done(r.statusCode + ' ' + text.slice(0, 5))); }).on('error', failed).end());
  console.log('https', await got('/hello'), (await got('/x', 'DELETE')).slice(0, 3));
  const a = await axios.get('https://web.test/hello'); console.log('axios', a.status, a.data);
  const d = await axios.delete('https://web.test/x', { validateStatus: null }); console.log('axios', d.status, d.data.reason_code);
})().catch(e => console.log(String(e), e.cause));""#;
    check(
        &["/usr/bin/node"],
        script,
        &[
            "https 200 hello 403",
            "axios 200 hello",
            "axios 403 request_not_in_rules",
        ],
    );
}

#[test]
fn java_finds_its_store_and_its_proxy() {
    let script = r#"d=$(mktemp -d); cd $d && cat > Client.java <<'END'
import java.net.URI;
import java.net.http.*;
public class Client {
    public static void main(String[] words) throws Exception {
        var client = HttpClient.newHttpClient();
        for (var method : new String[] {"GET", "DELETE"}) {
            var request = HttpRequest.newBuilder(URI.create("https://web.test/hello")).method(method, HttpRequest.BodyPublishers.noBody()).build();
            var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.body().length());
        }
        var plain = new java.net.URL("https://web.test/hello").openConnection();
        System.out.println(new String(plain.getInputStream().readAllBytes()));
    }
}
END
java Client.java 2>/dev/null | sed 's/^403 .*/403/'; cd /; rm -r $d"#;
    check(&["/usr/bin/java"], script, &["200 5", "403", "hello"]);
}

#[test]
fn clients_that_prefer_http2_speak_it() {
    let script = r#"d=$(mktemp -d); cd $d; cat > client.py <<'END'
import httpx
with httpx.Client(http2=True) as c:
    got = c.get('https://web.test/trailers')
    print('httpx', got.http_version, got.text, c.put('https://web.test/upload', content=(b'x' * 1000 for _ in range(99))).status_code, c.delete('https://web.test').status_code)
END
cat > Client.java <<'END'
import java.net.URI;
import java.net.http.*;
public class Client {
    public static void main(String[] words) throws Exception {
        var client = HttpClient.newHttpClient();
        for (var method : new String[] {"GET", "DELETE"}) {
            var request = HttpRequest.newBuilder(URI.create("https://web.test/hello")).method(method, HttpRequest.BodyPublishers.noBody()).build();
            var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println("java " + answer.version() + " " + answer.statusCode());
        }
    }
}
END
# These two do not support proxies: a listener inside the sandbox forwards to it.
cat > door.py <<'END'
import os, socket, sys, threading
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
def copy(one, other):
    try:
        while data := one.recv(65536): other.sendall(data)
    except OSError: pass
    for end in (one, other):
        try: end.shutdown(socket.SHUT_RDWR)
        except OSError: pass
door = socket.create_server(('127.0.0.1', 0))
open('port', 'w').write(str(door.getsockname()[1]))
os.rename('port', 'ready')
while True:
    client, _ = door.accept()
    proxy = socket.create_connection((host, int(port)))
    proxy.sendall(b'CONNECT web.test:443 HTTP/1.1\r\nHost: web.test:443\r\n\r\n')
    head = b''
    while b'\r\n\r\n' not in head: head += proxy.recv(1)
    for pair in ((client, proxy), (proxy, client)): threading.Thread(target=copy, args=pair, daemon=True).start()
END
/usr/bin/python3 client.py; java Client.java 2>/dev/null
/usr/bin/python3 door.py & door=$!
while [ ! -e ready ]; do sleep 0.05; done
nghttp -nv -H ':authority: web.test' https://127.0.0.1:$(cat ready)/hello | grep -c ':status: 200'
nghttp -nv -H ':authority: web.test' -H ':method: DELETE' https://127.0.0.1:$(cat ready)/hello | grep -c ':status: 403'
h2load -n 2000 -c 1 -m 100 --connect-to=127.0.0.1:$(cat ready) https://web.test/hello | grep -E '^(status codes|Application protocol)'
kill $door; cd /; rm -r $d"#;
    let lab = Lab::with_web();
    let origin = Origin::http2(&lab);
    let finished = run(
        &lab,
        &origin,
        &["/usr/bin/python3", "/usr/bin/java"],
        script,
    );
    let expected = [
        "httpx HTTP/2 hello 200 403",
        "java HTTP_2 200",
        "java HTTP_2 403",
        "1",
        "1",
        "Application protocol: h2",
        "status codes: 2000 2xx, 0 3xx, 0 4xx, 0 5xx",
    ];
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        expected,
        "{finished:?}"
    );
    let uploaded = origin
        .seen()
        .into_iter()
        .find(|seen| seen[0] == "PUT")
        .unwrap();
    assert_eq!(uploaded[3], 99_000);
}

#[test]
fn websockets_are_opened_and_echoed() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let server = lab.file(
        "server.js",
        "const s = require('https').createServer({ cert: require('fs').readFileSync(process.argv[2] + '/good.pem'), key: require('fs').readFileSync(process.argv[2] + '/good.key') });
         const w = new (require('ws').WebSocketServer)({ server: s, handleProtocols: p => [...p][0] });
         w.on('connection', c => c.on('message', (m, binary) => c.send(m, { binary })));
         s.listen(8447, '10.99.0.1', () => console.log('ready'));",
    );
    let folder = std::path::Path::new(&origin.authority())
        .parent()
        .unwrap()
        .display()
        .to_string();
    let _server = lab.program(&[
        "/usr/bin/env",
        "NODE_PATH=/usr/share/nodejs",
        "/usr/bin/node",
        server.to_str().unwrap(),
        &folder,
    ]);
    let client = r#"cd /tmp && NODE_PATH=/usr/share/nodejs node -e "
const { HttpsProxyAgent } = require('https-proxy-agent');
const agent = new (HttpsProxyAgent || require('https-proxy-agent'))(process.env.HTTPS_PROXY);
const open = (path) => { const w = new (require('ws'))('wss://web.test:8447' + path, ['chat'], { agent, perMessageDeflate: true });
  w.on('open', () => w.send('x'.repeat(100000)));
  w.on('message', m => { console.log(w.protocol, m.length); w.close(); });
  w.on('unexpected-response', (q, r) => console.log(r.statusCode));
  w.on('error', e => console.log(e.message)); };
open(process.argv[1]);" "#;
    let node = std::fs::canonicalize("/usr/bin/node")
        .unwrap()
        .display()
        .to_string();
    let rules =
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /chat}}]";
    let policy = policy(&[&node], rules).replace("8446]", "8446, 8447]");
    let ask = |path: &str| {
        let sandbox = lab
            .sandbox(&policy)
            .args(&["--upstream-ca-file", &origin.authority()]);
        sandbox.sh(&format!("{client}{path}"))
    };
    let opened = ask("/chat");
    assert_eq!(opened.ok(), "chat 100000", "{opened:?}");
    assert_eq!(
        opened
            .logged(
                "HTTP:GET [INFO] OTHER GET https://web.test:8447/chat [policy:web engine:l7] \
                 [decision:allow_upgrade]"
            )
            .len(),
        1
    );
    let refused = ask("/other");
    assert!(refused.ok().starts_with("403"), "{refused:?}");
}

#[test]
fn git_pushes_fifty_megabytes_and_clones_them() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let folder = lab.folder("repositories");
    let path = folder.display();
    let made = lab.shell(&format!(
        "git init -q --bare {path}/repo.git && git -C {path}/repo.git \
                                   config http.receivepack true && chmod -R a+rwX {path}"
    ));
    assert_eq!(made, "");
    let server = lab.file("git.py", include_str!("data/git.py"));
    let certificate = std::path::Path::new(&origin.authority())
        .with_file_name("good")
        .display()
        .to_string();
    let _server = lab.program(&[
        "/usr/bin/python3",
        server.to_str().unwrap(),
        &path.to_string(),
        &certificate,
        "10.99.0.1",
        "8447",
    ]);
    let remote = lab
        .shell("readlink -f $(git --exec-path)/git-remote-https")
        .trim()
        .to_owned();
    let script = "
        d=$(mktemp -d); trap \"rm -rf $d\" EXIT; set -e; cd $d; export HOME=$d
        git init -q one; cd one; git config user.name t; git config user.email t@lab.test
        head -c 50000000 /dev/urandom > large; git add large; git commit -qm large
        git push -q https://web.test:8447/repo.git HEAD:refs/heads/main; cd ..
        git clone -q -b main https://web.test:8447/repo.git two; cmp one/large two/large && echo same";
    let rules = |push: bool| {
        let read = "{allow: {method: GET, path: \"/repo.git/**\"}}, {allow: {method: POST, path: \
                    \"/repo.git/git-upload-pack\"}}";
        let write = if push {
            ", {allow: {method: POST, path: \"/repo.git/git-receive-pack\"}}"
        } else {
            ""
        };
        let rules = format!("protocol: rest, enforcement: enforce, rules: [{read}{write}]");
        policy(&[&remote], &rules).replace("8446]", "8446, 8447]")
    };
    let run = |policy: &str| {
        lab.sandbox(policy)
            .args(&["--upstream-ca-file", &origin.authority()])
            .sh(script)
    };
    let refused = run(&rules(false));
    assert!(
        refused.stderr.contains("403") && refused.code() != 0,
        "{refused:?}"
    );
    assert_eq!(
        refused.logged("[code:request_not_in_rules]").len(),
        1,
        "{}",
        refused.log
    );
    assert_eq!(run(&rules(true)).ok(), "same");
}

#[test]
fn a_gigabyte_goes_up_and_down_unchanged() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let size = 1_u64 << 30;
    let script = format!(
        "curl -sS https://web.test/big?{size} | sha256sum
         head -c {size} /dev/zero | curl -sS -T - https://web.test/upload; echo; head -c {size} /dev/zero | sha256sum"
    );
    let finished = run(&lab, &origin, &["/usr/bin/curl"], &script);
    let digests: Vec<_> = finished
        .ok()
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    let block: Vec<u8> = (0..=255).collect::<Vec<u8>>().repeat(256);
    assert_eq!(size % block.len() as u64, 0);
    let expected = lab.shell(&format!(
        "/usr/bin/python3 -c 'import hashlib; d = hashlib.sha256(); b = bytes(range(256)) * \
         4096\nfor _ in range({}): d.update(b)\nprint(d.hexdigest())'",
        size >> 20
    ));
    assert_eq!(digests[0], expected.trim(), "{finished:?}");
    assert_eq!(digests[1], digests[2]);
}

#[test]
fn own_servers_are_reached_by_every_name_of_the_loopback_interface() {
    let lab = Lab::with_web();
    let script = r#"
import http.server, socket, subprocess, threading, urllib.request
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.send_header('Content-Length', '2'); self.end_headers(); self.wfile.write(b'ok')
    def log_message(self, *words): pass
server = Server(('::', 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for host in ['127.0.0.1', '0.0.0.0', '127.0.0.2', '127.0.1.1', '[::1]', '[::]', 'localhost', 'app.localhost']:
    url = f'http://{host}:{server.server_port}/'
    curl = subprocess.run(['curl', '-s', url], capture_output=True, text=True).stdout
    node = subprocess.run(['node', '-e', f'fetch("{url}").then(answer => answer.text()).then(console.log)'], capture_output=True, text=True)
    # urllib wants brackets in the variable, with which other clients fail.
    python = 'ok' if host[0] == '[' else urllib.request.urlopen(url).read().decode()
    print(host, python, curl, node.stdout.strip())
print(subprocess.run(['curl', '-s', '--noproxy', '', 'http://0.0.0.0:1/'], capture_output=True, text=True).stdout)
"#;
    let finished = lab.sandbox(&super::policy("{}")).python(script, &[]);
    let lines: Vec<_> = finished.ok().lines().collect();
    let (refusal, reached) = lines.split_last().unwrap();
    assert!(
        reached.len() == 8 && reached.iter().all(|line| line.ends_with(" ok ok ok")),
        "{finished:?}"
    );
    assert!(
        refusal.contains("a server inside the sandbox needs neither a proxy nor a policy"),
        "{refusal}"
    );
}
