//! Standard streams: the kinds that reach the command, which include no socket of the host.

use lab::Lab;

/// Runs the command in `argv[2:]` with a TCP connection as the standard streams whose numbers are
/// in `argv[1]`, and talks to it as `argv[1]` requires. Prints the bytes that the peer, another
/// server and the supervisor's outputs received.
const CALLER: &str = r#"
import json, socket, subprocess, sys
how, command = json.loads(sys.argv[1]), sys.argv[2:]
server, other = [socket.create_server(('10.99.0.1', port)) for port in (7001, 7002)]
given = socket.create_connection(('10.99.0.1', 7001))
peer, _ = server.accept()
streams = [given if number in how['streams'] else subprocess.PIPE for number in range(3)]
run = subprocess.Popen(command, stdin=streams[0], stdout=streams[1], stderr=streams[2])
given.close()
peer.sendall(how.get('send', '').encode())
if how.get('half_close', True): peer.shutdown(socket.SHUT_WR)
peer.settimeout(60)
got = b''
try:
    while how.get('receive', True) and (some := peer.recv(65536)): got += some
except ConnectionError as error: got += type(error).__name__.encode()
output, errors = run.communicate(timeout=60)
other.settimeout(0)
try: print('other server:', other.accept()[0].recv(100))
except BlockingIOError: pass
if len(got) > 1000: got = b'%d bytes of %s' % (len(got), bytes(sorted(set(got))))
print('peer:', got.decode(), 'code:', run.returncode, 'output:', (output or b'').decode(), 'errors:', (errors or b'').decode())
"#;

/// Returns the output of [`CALLER`] for a sandbox that runs `words`.
fn called(lab: &Lab, how: &str, words: &[&str]) -> String {
    let caller = lab.file("caller.py", CALLER);
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let words: Vec<_> = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
        .collect();
    let sandbox = format!("{} --policy-data {}", lab.binary(), policy.display());
    lab.shell(&format!(
        "/usr/bin/python3 {} '{how}' {sandbox} -- {}",
        caller.display(),
        words.join(" ")
    ))
}

/// Disconnects the socket at descriptor 0, connects it to another server and writes; prints the
/// results.
const RECONNECT: &str = "
import ctypes, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
unspecified = struct.pack('=H14x', 0)
address = struct.pack('=H', 2) + struct.pack('>H', 7002) + socket.inet_aton('10.99.0.1') + bytes(8)
for to in (unspecified, address):
    print('connected' if libc.connect(0, to, 16) == 0 else os.strerror(ctypes.get_errno()))
try: os.write(0, b'secret')
except OSError as error: print(error.strerror)
";

#[test]
fn a_socket_as_standard_input_leads_nowhere_else() {
    let lab = Lab::with_web();
    let shown = called(
        &lab,
        r#"{"streams": [0]}"#,
        &["/usr/bin/python3", "-c", RECONNECT],
    );
    assert!(!shown.contains("other server"), "{shown}");
    assert!(!shown.contains("connected"), "{shown}");
    assert!(
        shown.contains("peer: secret code: 0"),
        "what is written there reaches the peer that it has: {shown}"
    );
}

#[test]
fn one_socket_on_all_streams_serves_as_it_does_without_a_sandbox() {
    let lab = Lab::with_web();
    let all = r#"{"streams": [0, 1, 2], "send": "one two"}"#;
    // Input, its end by the peer's half-close, output and errors in order.
    let script = "cat; echo error >&2; echo after; exit 3";
    assert_eq!(
        called(&lab, all, &["sh", "-c", script]),
        "peer: one twoerror\nafter\n code: 3 output:  errors: \n"
    );
    // The command's half-close reaches the peer, and the peer's later bytes reach the command.
    let half = "
import socket
s = socket.socket(fileno=0)
s.sendall(b'asked')
s.shutdown(socket.SHUT_WR)
print('never')
";
    let shown = called(
        &lab,
        r#"{"streams": [0]}"#,
        &["/usr/bin/python3", "-c", half],
    );
    assert_eq!(shown, "peer: asked code: 0 output: never\n errors: \n");
    // The same descriptor is the same socket, as programs may compare them.
    let compare =
        "import os; print(*('same' if os.path.sameopenfile(0, n) else 'another' for n in (1, 2)))";
    let same = called(&lab, all, &["/usr/bin/python3", "-c", compare]);
    assert!(same.contains("same same"), "{same}");
}

/// Runs the command in `argv[2:]` with a TCP connection that its peer has reset as the standard
/// stream `argv[1]`, as inetd does if a client leaves at once. Prints the exit code and the bytes
/// that the others received.
const RESET: &str = r#"
import select, socket, struct, subprocess, sys
server = socket.create_server(('10.99.0.1', 7001))
peer = socket.create_connection(('10.99.0.1', 7001))
given, _ = server.accept()
peer.sendall(b'last words')
peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
peer.close()
hung_up = select.poll()
hung_up.register(given, 0)
hung_up.poll()
streams = [given if number == int(sys.argv[1]) else subprocess.PIPE for number in range(3)]
run = subprocess.Popen(sys.argv[2:], stdin=streams[0], stdout=streams[1], stderr=streams[2])
output, errors = run.communicate(timeout=60)
print('code:', run.returncode, 'output:', (output or b'').decode(), 'errors:', (errors or b'').decode())
"#;

#[test]
fn a_peer_that_is_gone_before_the_start_keeps_no_command_from_running() {
    let lab = Lab::with_web();
    let caller = lab.file("reset.py", RESET);
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let called = |stream: &str, script: &str| {
        let sandbox = format!("{} --policy-data {}", lab.binary(), policy.display());
        lab.shell(&format!(
            "/usr/bin/python3 {} {stream} {sandbox} -- sh -c '{script}'",
            caller.display()
        ))
    };
    assert_eq!(
        called("0", "cat; exit 3"),
        "code: 3 output: last words errors: \n"
    );
    let written = called("1", "yes 2>/dev/null; echo ended >&2");
    assert_eq!(
        written, "code: 0 output:  errors: ended\n\n",
        "by SIGPIPE or an error, as on the connection itself"
    );
}

#[test]
fn everything_that_a_command_wrote_last_is_sent() {
    let lab = Lab::with_web();
    let shown = called(
        &lab,
        r#"{"streams": [1]}"#,
        &["head", "-c", "3000000", "/dev/zero"],
    );
    assert_eq!(
        shown,
        "peer: 3000000 bytes of \0 code: 0 output:  errors: \n"
    );
}

#[test]
fn a_peer_that_reads_nothing_stops_the_writer_and_delays_no_end_for_ever() {
    let lab = Lab::with_web();
    let unread = r#"{"streams": [1], "receive": false}"#;
    let shown = called(
        &lab,
        unread,
        &["timeout", "1", "sh", "-c", "yes; echo never >&2"],
    );
    let expected = "peer:  code: 124 output:  errors: openshell-sandbox: an output accepted no \
                    more data; the last bytes that the command wrote to it are lost\n\n";
    assert_eq!(shown, expected);
}

/// Starts the command in `argv[1:]` once for each kind of standard input that it names, and prints
/// the kind, the exit code, the output and the errors of each run.
const KINDS: &str = r#"
import os, pty, socket, subprocess, sys
def memory():
    fd = os.memfd_create('input')
    os.write(fd, b'text')
    os.lseek(fd, 0, 0)
    return fd
def bound(s, address):
    s.bind(address)
    return s
def listening(s):
    s.listen()
    return s
def unix(kind):
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    ours.close()
    return theirs
kinds = {
    'null': lambda: os.open('/dev/null', os.O_RDONLY),
    'file': lambda: os.open('/etc/hostname', os.O_RDONLY),
    'pipe': lambda: os.pipe()[0],
    'slave': lambda: pty.openpty()[1],
    'stream': lambda: unix(socket.SOCK_STREAM),
    'seqpacket': lambda: unix(socket.SOCK_SEQPACKET),
    'memfd': memory,
    'status': lambda: os.open('/proc/self/status', os.O_RDONLY),
    'memory of the caller': lambda: os.open('/proc/self/mem', os.O_RDWR),
    'clear_refs': lambda: os.open('/proc/self/clear_refs', os.O_WRONLY),
    'pair of datagrams': lambda: unix(socket.SOCK_DGRAM),
    'unix': lambda: socket.socket(socket.AF_UNIX),
    'tcp': lambda: socket.socket(),
    'listener': lambda: listening(socket.socket()),
    'udp': lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    'packet': lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    'netlink': lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    'vsock': lambda: socket.socket(socket.AF_VSOCK),
    'directory': lambda: os.open('/', os.O_RDONLY),
    'path': lambda: os.open('/etc/hostname', os.O_PATH),
    'pidfd': lambda: os.pidfd_open(os.getppid()),
    'eventfd': lambda: os.eventfd(0),
    'namespace': lambda: os.open('/proc/self/ns/net', os.O_RDONLY),
    'master': lambda: pty.openpty()[0],
    'device': lambda: os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK),
}
for name, make in kinds.items():
    try: stream = make()
    except OSError as error:
        print(name, 'lacking', error)
        continue
    run = subprocess.run(sys.argv[1:], stdin=stream, capture_output=True, timeout=60)
    print(name, run.returncode, run.stdout.decode().strip(), run.stderr.decode().strip())
"#;

/// Starts the command in `argv[1:]` with its own memory as standard input, at the address of a
/// text; prints the text after it.
const MEMORY: &str = r#"
import ctypes, os, subprocess, sys
text = ctypes.create_string_buffer(b'as it was')
memory = os.open('/proc/self/mem', os.O_RDWR)
os.lseek(memory, ctypes.addressof(text), 0)
subprocess.run(sys.argv[1:], stdin=memory)
print(text.value.decode())
"#;

#[test]
fn the_memory_of_the_caller_cannot_be_written_through_a_standard_stream() {
    let lab = Lab::with_web();
    let caller = lab.file("memory.py", MEMORY);
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let by = |sandbox: &str| {
        lab.shell(&format!(
            "/usr/bin/python3 {} {sandbox} sh -c 'printf changed >&0'",
            caller.display()
        ))
    };
    assert!(by("").contains("changed"), "the twin without a sandbox");
    let shown = by(&format!(
        "{} --policy-data {} --",
        lab.binary(),
        policy.display()
    ));
    assert!(shown.ends_with("as it was\n"), "{shown}");
    assert!(
        shown.contains("could control a process or the kernel through it"),
        "{shown}"
    );
}

#[test]
fn every_kind_of_standard_input_is_passed_relayed_or_refused_in_a_line() {
    let lab = Lab::with_web();
    let caller = lab.file("kinds.py", KINDS);
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let shown = lab.shell(&format!(
        "/usr/bin/python3 {} {} --no-interactive --policy-data {} -- sh -c '[ -t 0 ] && echo \
         terminal; echo ran'",
        caller.display(),
        lab.binary(),
        policy.display()
    ));
    let passed = [
        "null",
        "file",
        "pipe",
        "slave",
        "stream",
        "seqpacket",
        "memfd",
        "status",
    ];
    let refused = [
        (
            "memory of the caller",
            "a kernel file (in /proc or /sys), opened for writing",
        ),
        (
            "clear_refs",
            "a kernel file (in /proc or /sys), opened for writing",
        ),
        (
            "pair of datagrams",
            "a Unix socket that can still be connected",
        ),
        ("unix", "a Unix socket that can still be connected"),
        ("tcp", "a stream socket that is not connected"),
        ("listener", "a listening socket"),
        ("udp", "a datagram socket"),
        ("packet", "a packet socket"),
        ("netlink", "a netlink socket"),
        ("directory", "a directory"),
        ("path", "a descriptor opened with O_PATH"),
        ("pidfd", "a pidfd"),
        ("eventfd", "an anonymous kernel descriptor"),
        ("namespace", "a descriptor of a kernel object"),
        ("master", "the master side of a pseudo-terminal"),
        ("device", "a character device"),
    ];
    let line = |name: &str| {
        let found = shown
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        found.unwrap_or_else(|| panic!("no {name} in {shown}"))
    };
    for name in passed {
        assert!(
            line(name).starts_with(&format!("{name} 0 ")) || name == "slave",
            "{shown}"
        );
    }
    for (name, kind) in refused {
        let expected =
            format!("{name} 1  openshell-sandbox: standard input is {kind}, and the command c");
        let expected = expected.trim_end_matches('c');
        assert!(line(name).starts_with(expected), "{name}: {shown}");
    }
    assert!(shown.contains("vsock "), "{shown}");
}

#[test]
fn a_file_as_an_output_can_be_opened_again_and_no_other_file_beside_it() {
    let lab = Lab::with_web();
    let folder = lab.folder("outputs").display().to_string();
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let sandbox = |script: &str| {
        format!(
            "{} --policy-data {} -- sh -c '{script}' {folder}",
            lab.binary(),
            policy.display()
        )
    };
    let opened = sandbox("echo a > /dev/stdout; echo b >> /dev/stdout");
    let others = sandbox("cat /proc/self/fd/1 || echo unread; echo x > $0/beside || echo closed");
    let shown = lab.shell(&format!(
        "cd {folder}; touch out err log beside; chmod 666 *; {opened} > out 2> err; cat out; \
         {others} > log 2> err; grep -xE 'unread|closed' log; cat beside"
    ));
    assert_eq!(shown, "a\nb\nunread\nclosed\n");
}
