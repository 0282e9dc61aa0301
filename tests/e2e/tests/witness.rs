//! The caller is the process that made the connection, whatever it does before, meanwhile and
//! afterwards.

use lab::Lab;
use lab::sandbox::Finished;

use super::{policy, python};

/// `web`: bash alone may reach web.test:8080.
fn bash_only() -> String {
    policy(
        "{web: {endpoints: [{host: web.test, port: 8080, allowed_ips: [10.99.0.1]}], binaries: \
         [{path: /usr/bin/bash}]}}",
    )
}

/// Runs a Python program under [`bash_only`], with an upstream; Python is not listed. `$DOOR` is
/// the proxy as `/dev/tcp` takes it.
fn attempt(program: &str) -> Finished {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    lab.sandbox(&bash_only())
        .python(&format!("{PRELUDE}{program}"), &[])
}

const PRELUDE: &str = r#"
import array, ctypes, os, select, socket, subprocess, sys, threading, time
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
door = (host, int(port))
CONNECT = b'CONNECT web.test:8080 HTTP/1.1\r\n\r\n'
def answer(s):
    s.settimeout(20)
    try: return s.recv(4096).split(b'\r\n')[0].decode()[9:]
    except OSError as error: return type(error).__name__
def connected():
    return socket.create_connection(door, 20)
# Bash, which writes the request to the descriptor that it was started with and prints the answer.
def ask_by_bash(s):
    s.setblocking(True)
    script = "printf 'CONNECT web.test:8080 HTTP/1.1\r\n\r\n' >&%d; IFS= read -r -u %d line; echo \"${line:9}\"" % ((s.fileno(),) * 2)
    return ['/usr/bin/bash', '-c', script]
"#;

#[test]
fn a_connection_that_a_program_hands_on_stays_its_own() {
    let finished = attempt(
        "
s = connected()
print(subprocess.run(ask_by_bash(s), pass_fds=[s.fileno()], capture_output=True, text=True).stdout.strip(), flush=True)
# In flight in a message, and received by another program.
a, b = socket.socketpair()
s = connected()
socket.send_fds(a, [b'x'], [s.fileno()])
s.close()
s = socket.socket(fileno=socket.recv_fds(b, 1, 1)[1][0])
print(subprocess.run(ask_by_bash(s), pass_fds=[s.fileno()], capture_output=True, text=True).stdout.strip(), flush=True)
# Fork, then exec in the child; and exec at last.
s = connected()
s.set_inheritable(True)
words = ask_by_bash(s)
if os.fork() == 0: os.execv(words[0], words)
os.wait()
s = connected()
s.set_inheritable(True)
words = ask_by_bash(s)
os.execv(words[0], words)
",
    );
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        ["403 binary_not_in_policy"; 4],
        "{finished:?}"
    );
    assert_eq!(
        finished.logged("NET:OPEN [INFO] ALLOWED").len(),
        0,
        "{}",
        finished.log
    );
}

#[test]
fn what_a_permitted_program_hands_on_is_its_act() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let script = "exec 3<>/dev/tcp/10.200.0.1/3128; exec python3 -c \"import os; os.write(3, \
                  b'CONNECT web.test:8080 HTTP/1.1\\r\\n\\r\\n'); print(os.read(3, \
                  99).split(b'\\r')[0])\"";
    let finished = lab
        .sandbox(&bash_only())
        .run(&["/usr/bin/bash", "-c", script]);
    assert_eq!(finished.ok(), "b'HTTP/1.1 200 Connection Established'");
    let [line] = finished.logged("NET:OPEN [INFO] ALLOWED")[..] else {
        panic!("{}", finished.log)
    };
    assert!(line.contains("/usr/bin/bash("), "{line}");
}

#[test]
fn a_socket_that_is_swapped_during_the_call_gains_nothing() {
    // Python, an orphan, has sockets whose connections bash made and the proxy has ended, and puts
    // them in the place of the one that is being connected.
    let program = format!(
        "{PRELUDE}{}",
        r#"
stale = [int(fd) for fd in sys.argv[1:]]
for fd in stale: os.read(fd, 4096), os.read(fd, 4096)
outcomes = {}
spot = os.dup(stale[0])
def swap():
    while not done:
        for fd in stale: os.dup2(fd, spot)
done = []
thread = threading.Thread(target=swap, daemon=True)
thread.start()
for n in range(3000):
    s = socket.socket()
    os.dup2(s.fileno(), spot)
    try: socket.socket(fileno=os.dup(spot)).connect(door)
    except OSError as error: pass
    for fd in [s.fileno(), spot]:
        held = socket.socket(fileno=os.dup(fd))
        try: held.sendall(CONNECT)
        except OSError as error: outcome = 'not connected'
        else: outcome = answer(held)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
done.append(1)
thread.join()
print(outcomes)
open(os.environ['DONE'], 'w').close()
"#
    );
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let folder = lab.folder("orphan");
    let file = lab.file("orphan.py", program);
    let done = folder.join("done").display().to_string();
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{}], read_write: [{}]}}\n",
        bash_only(),
        file.display(),
        folder.display()
    );
    let stale = "for n in 1 2 3; do exec {s}<>/dev/tcp/10.200.0.1/3128; printf 'bad\\r\\n\\r\\n' \
                 >&$s; all=\"$all $s\"; done; python3 $0 $all & exit";
    let script = format!(
        "bash -c '{}' {}; until [ -e {done} ]; do sleep 0.05; done",
        stale,
        file.display()
    );
    let finished = lab.sandbox(&policy).env("DONE", &done).sh(&script);
    assert!(
        finished.ok().contains("403 binary_not_in_policy"),
        "{finished:?}"
    );
    assert!(!finished.stdout.contains("'200"), "{finished:?}");
    assert_eq!(
        finished.logged("NET:OPEN [INFO] ALLOWED").len(),
        0,
        "{}",
        finished.log
    );
}

#[test]
fn an_address_that_is_rewritten_during_the_call_leads_to_no_door() {
    let program = r#"
libc = ctypes.CDLL(None, use_errno=True)
def pack(address): return socket.AF_INET.to_bytes(2, 'little') + address[1].to_bytes(2, 'big') + socket.inet_aton(address[0]) + bytes(8)
to_door, elsewhere = pack(door), pack(('198.51.100.7', 9))
memory = ctypes.create_string_buffer(to_door, 16)
done = []
def rewrite():
    while not done:
        memory.raw = elsewhere
        memory.raw = to_door
thread = threading.Thread(target=rewrite)
thread.start()
outcomes = {}
for n in range(600):
    s = socket.socket()
    failed = libc.connect(s.fileno(), memory, 16)
    if failed: outcome = os.strerror(ctypes.get_errno())
    else:
        try: s.sendall(CONNECT); outcome = answer(s)
        except OSError as error: outcome = type(error).__name__
    outcomes[outcome] = outcomes.get(outcome, 0) + 1
done.append(1)
thread.join()
print(sorted(outcomes))
"#;
    let finished = attempt(program);
    // Witnessed, or refused by the fence: there is nothing in between.
    assert_eq!(
        finished.ok(),
        "['403 binary_not_in_policy', 'Connection refused']"
    );
}

#[test]
fn a_connection_is_made_again_under_the_same_port_as_its_own() {
    let finished = attempt(
        "
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('', 40404))
libc = ctypes.CDLL(None)
for n in range(3):
    s.connect(door)
    s.sendall(CONNECT)
    print(answer(s), s.getsockname()[1], flush=True)
    # AF_UNSPEC ends the connection; the socket keeps its port.
    assert libc.connect(s.fileno(), bytes(16), 16) == 0
",
    );
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        ["403 binary_not_in_policy 40404"; 3],
        "{finished:?}"
    );
}

#[test]
fn each_thread_of_a_process_connects_as_that_process_also_without_its_first() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let program = format!(
        "{PRELUDE}{}",
        "
def ask():
    while 'Z' not in open('/proc/self/stat').read().rsplit(')', 1)[1][:3]: time.sleep(0.01)
    s = connected()
    s.sendall(CONNECT)
    os.write(1, answer(s).encode())
    os._exit(0)
threading.Thread(target=ask).start()
libc = ctypes.CDLL(None)
libc.syscall(60, 0)
"
    );
    let finished = lab.sandbox(&super::web()).python(&program, &[]);
    assert_eq!(finished.ok(), "200 Connection Established");
    let [line] = finished.logged("NET:OPEN [INFO] ALLOWED")[..] else {
        panic!("{}", finished.log)
    };
    assert!(
        line.contains(&format!("{}(2)", python())),
        "its process, not its thread: {line}"
    );
}

/// A library that prints whether it is loaded, in `folder`.
fn library(lab: &Lab, folder: &std::path::Path) -> String {
    let source = folder.join("hook.c");
    let library = folder.join("hook.so");
    std::fs::write(
        &source,
        "#include <unistd.h>\n__attribute__((constructor)) static void run(void) { write(2, \
         \"loaded\\n\", 7); }\n",
    )
    .unwrap();
    assert_eq!(
        lab.shell(&format!(
            "cc -shared -fPIC -o {} {}",
            library.display(),
            source.display()
        )),
        ""
    );
    library.display().to_string()
}

#[test]
fn an_exact_program_is_refused_with_code_that_the_workload_can_write_and_with_ancestors_alone() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let folder = lab.folder("writable");
    let library = library(&lab, &folder);
    let files = format!(
        "filesystem_policy: {{read_write: [{}]}}\n",
        folder.display()
    );
    let of = |binaries: &str| {
        let endpoints = "[{host: web.test, port: 8080, allowed_ips: [10.99.0.1]}]";
        format!(
            "{}{files}",
            policy(&format!(
                "{{web: {{endpoints: {endpoints}, binaries: [{binaries}]}}}}"
            ))
        )
    };
    let exact = of("{path: /usr/bin/curl, exact: true}, {path: /usr/bin/bash, exact: true}");
    let (ask, ask_hooked) = (
        "curl -sS -p http://web.test:8080/",
        format!("LD_PRELOAD={library} curl -sS -p http://web.test:8080/"),
    );
    assert!(lab.sandbox(&exact).sh(ask).ok().ends_with("hello"));
    let hooked = lab.sandbox(&exact).sh(&ask_hooked);
    assert!(hooked.stderr.contains("loaded"), "{hooked:?}");
    let [line] = hooked.logged("[code:caller_modified]")[..] else {
        panic!("{}", hooked.log)
    };
    assert!(line.contains(&format!("it runs {library}")), "{line}");
    // Another entry may permit it all the same.
    let both = of("{path: /usr/bin/curl, exact: true}, {path: /usr/bin/curl}");
    assert!(lab.sandbox(&both).sh(&ask_hooked).ok().ends_with("hello"));
    // Bash is an ancestor, and does not count.
    let child = lab.sandbox(&exact).run(&[
        "/usr/bin/bash",
        "-c",
        "python3 -c 'import os, socket; s = socket.create_connection((\"10.200.0.1\", 3128)); \
         s.sendall(b\"CONNECT web.test:8080 HTTP/1.1\\r\\n\\r\\n\"); \
         print(s.recv(99).split(b\"\\r\")[0])'; true",
    ]);
    assert_eq!(child.ok(), "b'HTTP/1.1 403 binary_not_in_policy'");
}

#[test]
fn a_program_that_need_not_be_pinned_may_change_and_the_log_says_so() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let folder = lab.folder("tools");
    let tool = folder.join("tool").display().to_string();
    let policy = |flags: &str| {
        let web = super::web().replace(
            &format!("{{path: {}}}", python()),
            &format!("{{path: {tool}{flags}}}"),
        );
        format!(
            "{web}filesystem_policy: {{read_write: [{}]}}\n",
            folder.display()
        )
    };
    let ask = "$TOOL -c \"$RAW\" 'CONNECT web.test:8080 HTTP/1.1\\r\\n\\r\\n' 'GET / \
               HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n'";
    let script = format!(
        "cp {0} $TOOL; {ask}; echo; cp {0} $TOOL.new; echo >> $TOOL.new; mv $TOOL.new $TOOL; \
         {ask}; echo; {ask}",
        python()
    );
    let run = |flags: &str| {
        lab.sandbox(&policy(flags))
            .env("RAW", super::RAW)
            .env("PYTHONHOME", "/usr")
            .env("TOOL", &tool)
            .sh(&script)
    };
    let finished = run(", pinned: false");
    assert_eq!(finished.ok().matches("hello").count(), 3, "{finished:?}");
    let [line] = finished.logged("a program has changed, which `pinned: false` permits")[..] else {
        panic!("{}", finished.log)
    };
    assert!(
        line.contains(&tool) && line.contains("before: ") && line.contains("now: "),
        "{line}"
    );
    let pinned = run("");
    assert_eq!(pinned.stdout.matches("hello").count(), 1, "{pinned:?}");
    assert!(
        pinned
            .stdout
            .contains(&format!("{{path: {tool}, pinned: false}}")),
        "its fix: {pinned:?}"
    );
}

#[test]
fn processes_trace_each_other_where_the_policy_says_so_and_nowhere_else() {
    let lab = Lab::with_web();
    let program = "
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
child = os.fork()
if child == 0: signal.pause()
def tried(result): return 'ok' if result >= 0 else os.strerror(ctypes.get_errno())
print(tried(libc.ptrace(16, child, None, None)))
print(tried(libc.ptrace(16, 1, None, None)))
try: print('opened', open('/proc/%d/mem' % child, 'r+b').fileno() > 0)
except OSError as error: print(error.strerror)
os.kill(child, 9)
";
    let permitted = lab
        .sandbox(&policy("{}").replace("run_as_user", "debug: true, run_as_user"))
        .python(program, &[]);
    assert_eq!(
        permitted.ok(),
        "ok\nOperation not permitted\nPermission denied",
        "init is out of reach"
    );
    assert_eq!(
        permitted.logged("process.debug: each process").len(),
        1,
        "{}",
        permitted.log
    );
    let refused = lab.sandbox(&policy("{}")).python(program, &[]);
    assert_eq!(
        refused.ok(),
        "Operation not permitted\nOperation not permitted\nPermission denied"
    );
}

/// What programs do with connect(2), against a listener at `argv[1]:argv[2]`, and how the kernel
/// answers.
const HABITS: &str = r#"
import ctypes, errno, os, select, signal, socket, sys, threading, time
to = (sys.argv[1], int(sys.argv[2]))
mapped = ('::ffff:' + to[0], to[1])
closed = (to[0], 1)
libc = ctypes.CDLL(None, use_errno=True)
said = lambda code: errno.errorcode.get(code, str(code))
def tried(act):
    try: return act() or 'ok'
    except OSError as error: return said(error.errno) if error.errno else type(error).__name__
error = lambda s: said(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
def new(family=socket.AF_INET, blocking=True):
    s = socket.socket(family)
    s.setblocking(blocking)
    return s
# curl, Go, Java, Node, nginx: non-blocking, then poll, SO_ERROR and perhaps a second connect.
for family, address in ((socket.AF_INET, to), (socket.AF_INET6, mapped)):
    s = new(family, False)
    print('non-blocking', said(s.connect_ex(address)), select.select([], [s], [], 10)[1] == [s], error(s))
    print('again', said(s.connect_ex(address)), said(s.connect_ex(address)), s.getpeername()[1] == to[1])
    epoll = select.epoll()
    s = new(family, False)
    epoll.register(s, select.EPOLLOUT | select.EPOLLET)
    s.connect_ex(address)
    while not any(event & select.EPOLLOUT and not event & select.EPOLLHUP for _, event in epoll.poll(10)): pass
    print('epoll', error(s))
    # glibc's programs: blocking.
    s = new(family)
    print('blocking', said(s.connect_ex(address)), said(s.connect_ex(address)), error(s))
s = new(); s.settimeout(5)
print('with a time-out', tried(lambda: s.connect(to)))
s = new(); s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, (5).to_bytes(8, 'little') + bytes(8))
print('SO_SNDTIMEO', said(s.connect_ex(to)), int.from_bytes(s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)[:8], 'little'))
# Nobody listens.
s = new(); print('closed', said(s.connect_ex(closed)), error(s), said(s.connect_ex(closed)))
s = new(blocking=False)
print('closed, non-blocking', said(s.connect_ex(closed)), bool(select.select([], [s], [], 10)[1]), error(s))
print('after a failure', said(s.connect_ex(to)), bool(select.select([], [s], [], 10)[1]), error(s))
# Disconnected and connected again; a datagram socket too, as resolvers do to sort addresses.
s = new(); s.connect(to)
print('AF_UNSPEC', libc.connect(s.fileno(), bytes(16), 16), said(s.connect_ex(to)))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print('datagrams', said(s.connect_ex(to)), libc.connect(s.fileno(), bytes(16), 16), said(s.connect_ex(to)), s.getpeername()[1] == to[1])
# Bound first, by one and by two.
s = new(); s.bind(('', 0)); own = s.getsockname()[1]
print('bound', said(s.connect_ex(to)), s.getsockname()[1] == own)
other = new()
print('bound twice', tried(lambda: other.bind(('', own))))
pair = [new(), new()]
for s in pair: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
pair[0].bind(('', 0)); pair[1].bind(pair[0].getsockname())
print('SO_REUSEADDR', said(pair[0].connect_ex(to)), said(pair[1].connect_ex(to)))
# What is no connect.
print('no socket', libc.connect(0, bytes(16), 16), said(ctypes.get_errno()), libc.connect(99, bytes(16), 16), said(ctypes.get_errno()))
s = new()
print('no address', libc.connect(s.fileno(), None, 16), said(ctypes.get_errno()), libc.connect(s.fileno(), bytes(16), 1), said(ctypes.get_errno()))
listening = new(); listening.listen(1)
print('listening', said(listening.connect_ex(to)))
s = new(socket.AF_INET6); print('other family', libc.connect(s.fileno(), b'\2\0' + to[1].to_bytes(2, 'big') + socket.inet_aton(to[0]) + bytes(8), 16), said(ctypes.get_errno()))
s = new(socket.AF_INET6); s.setsockopt(41, 26, 1); print('IPv6 alone', said(s.connect_ex(mapped)))
# Signals that a handler takes during many calls.
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
def many():
    for n in range(300):
        s = new()
        code = libc.connect(s.fileno(), b'\2\0' + to[1].to_bytes(2, 'big') + socket.inet_aton(to[0]) + bytes(8), 16)
        if code and ctypes.get_errno() != errno.EINTR: return said(ctypes.get_errno())
print('signals', many())
signal.setitimer(signal.ITIMER_REAL, 0)
# Threads that share descriptors, one of which closes those of the others.
def busy(n):
    for _ in range(50):
        s = new()
        threading.Thread(target=s.close).start()
        try: s.connect_ex(to)
        except OSError: pass
threads = [threading.Thread(target=busy, args=[n]) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
s = new(); print('afterwards', said(s.connect_ex(to)))
"#;

#[test]
fn programs_find_connect_as_it_is_without_a_witness() {
    let lab = Lab::with_web();
    // The same program against a listener beside it, outside of any sandbox.
    let outside = lab.file(
        "outside.py",
        format!(
            "import socket, sys, threading\nserver = socket.create_server(('127.0.0.1', 0), \
             backlog=1024)\nheld = []\nthreading.Thread(target=lambda: \
             [held.append(server.accept()) for _ in iter(int, 1)], \
             daemon=True).start()\nsys.argv[1:] = ['127.0.0.1', \
             str(server.getsockname()[1])]\n{HABITS}"
        ),
    );
    let expected = lab.shell(&format!(
        "exec /usr/bin/python3 {} < /dev/null",
        outside.display()
    ));
    let finished = lab
        .sandbox(&policy("{}"))
        .python(HABITS, &["10.200.0.1", "3128"]);
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        expected.trim_end().lines().collect::<Vec<_>>()
    );
    assert!(expected.contains("afterwards"), "{expected}");
    assert_eq!(expected.lines().count(), 25, "{expected}");
}

#[test]
fn protocols_beside_tcp_are_refused_so_that_programs_fall_back() {
    let lab = Lab::with_web();
    let program = "
import errno, socket
for protocol in (262, 132, 33, 136, 256):
    try: socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    except OSError as error: print(errno.errorcode[error.errno])
s = socket.socket()
try: s.sendto(b'x', 0x20000000, ('10.200.0.1', 3128))
except OSError as error: print(errno.errorcode[error.errno])
for option in (23, 30, 19):
    try: s.setsockopt(socket.SOL_TCP, option, 1)
    except OSError as error: print(errno.errorcode[error.errno])
";
    let finished = lab.sandbox(&policy("{}")).python(program, &[]);
    let expected = ["EPROTONOSUPPORT"; 5]
        .into_iter()
        .chain(["ENOTSUP"])
        .chain(["ENOPROTOOPT"; 3]);
    assert!(finished.ok().lines().eq(expected), "{finished:?}");
}

#[test]
fn refused_connections_past_the_proxy_name_their_program_with_its_ancestors() {
    let lab = Lab::with_web();
    let script = "for n in 1 2 3 4; do bash -c 'exec 3<>/dev/tcp/198.51.100.7/443' 2>/dev/null; \
                  done; python3 -c \"import socket; \
                  socket.socket(socket.AF_INET6).connect_ex(('2001:db8::7', 443))\"";
    let finished = lab.sandbox(&policy("{}")).sh(script);
    let bash = finished.logged("NET:REFUSE [MED] DENIED /usr/bin/bash(");
    assert_eq!(bash.len(), 4, "{}", finished.log);
    assert_eq!(
        finished
            .logged(&format!("NET:REFUSE [MED] DENIED {}(", python()))
            .len(),
        1,
        "{}",
        finished.log
    );
    assert_eq!(finished.logged("NET:REFUSE").len(), 5, "{}", finished.log);
}

/// Threads of several programs that connect while others fork, execute, swap, close and pass
/// sockets. Each connection says its local port, which is of a range that its program alone binds,
/// and compares the program that the refusal names.
const CHAOS: &str = r#"
import array, json, os, random, socket, sys, threading, time
number, seconds, peers = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
door = (host, int(port))
end = time.monotonic() + seconds
range_of = lambda n: (12000 + 5000 * n, 17000 + 5000 * n)
program = lambda port: '%s/p%d' % (os.path.dirname(peers), (port - 12000) // 5000)
counts = {'right': 0, 'unknown': 0, 'none': 0, 'wrong': 0}
lock = threading.Lock()
mail = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
mail.bind(peers + str(number))
mail.settimeout(0.2)
shared = []
def check(s):
    # Whoever holds it now: who made it has its port.
    s = s.dup()
    s.settimeout(10)
    try:
        own = s.getsockname()[1]
        s.sendall(b'CONNECT p%d.test:1 HTTP/1.1\r\n\r\n' % own)
        told = b''
        while b'}' not in told:
            more = s.recv(4096)
            if not more: break
            told += more
        refusal = json.loads(told.split(b'\r\n\r\n', 1)[1])
    except (OSError, ValueError, IndexError): kind = 'none'
    else:
        named = refusal.get('binary')
        kind = 'unknown' if refusal['reason_code'] == 'caller_unknown' else 'right' if named == program(own) else 'wrong'
        if kind == 'wrong': print(own, refusal, file=sys.stderr)
    with lock: counts[kind] += 1
    s.close()
def new():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
    s.bind(('', random.randrange(*range_of(number))))
    return s
def connect():
    while time.monotonic() < end:
        try:
            s = new()
            if random.random() < 0.5: s.setblocking(False)
            shared.append(s)
            s.connect_ex(door)
            s.setblocking(True)
            kind = random.random()
            if kind < 0.6: check(s)
            elif kind < 0.8:
                # Another program asks, over the same connection.
                socket.send_fds(mail, [b'x'], [s.fileno()], 0, peers + str(random.randrange(8)))
            elif kind < 0.9:
                s.close()
            s.close()
        except OSError: pass
        while len(shared) > 200: shared.pop(0)
def swap():
    while time.monotonic() < end:
        try:
            one, other = random.choice(shared), random.choice(shared)
            # Under the number of another one, which may be in its connect.
            if one.fileno() > 2 and other.fileno() > 2: os.dup2(one.fileno(), other.fileno(), False)
        except (OSError, IndexError): pass
def receive():
    while time.monotonic() < end:
        try:
            for fd in socket.recv_fds(mail, 1, 4)[1]:
                s = socket.socket(fileno=fd)
                check(s)
                s.close()
        except OSError: pass
def fork():
    while time.monotonic() < end:
        child = os.fork()
        if child == 0:
            try:
                s = new()
                s.connect_ex(door)
                if random.random() < 0.5: os.execv('/bin/true', ['true'])
            finally: os._exit(0)
        os.waitpid(child, 0)
threads = [threading.Thread(target=act) for act in [connect] * 20 + [swap] * 2 + [receive] * 2 + [fork]]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(counts))
"#;

/// Seconds of chaos.
const SECONDS: u32 = 15;

#[test]
fn in_chaos_no_connection_is_taken_for_another_programs() {
    let lab = Lab::with_web();
    let folder = lab.folder("chaos");
    let script = lab.file("chaos.py", CHAOS);
    let peers = folder.join("mail").display().to_string();
    for number in 0..8 {
        let copy = folder.join(format!("p{number}"));
        std::fs::copy(python(), &copy).unwrap();
    }
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{}], read_write: [{}]}}\n",
        policy("{}"),
        script.display(),
        folder.display()
    );
    let run = format!(
        "for n in 0 1 2 3 4 5 6 7; do {}/p$n {} $n {SECONDS} {peers} & done; wait",
        folder.display(),
        script.display()
    );
    let finished = lab.sandbox(&policy).env("PYTHONHOME", "/usr").sh(&run);
    let counts: Vec<serde_json::Value> = finished
        .ok()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let sum = |name: &str| {
        counts
            .iter()
            .map(|count| count[name].as_u64().unwrap())
            .sum::<u64>()
    };
    println!(
        "right {}, unknown {}, no answer {}, wrong {}",
        sum("right"),
        sum("unknown"),
        sum("none"),
        sum("wrong")
    );
    assert_eq!((counts.len(), sum("wrong")), (8, 0), "{}", finished.stderr);
    assert!(
        counts.iter().all(|count| count["right"].as_u64() > Some(0)),
        "{counts:?}"
    );
}
