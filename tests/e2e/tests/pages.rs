//! The sessions in the pages, run as a reader runs them: by root, in an empty folder.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use lab::{Lab, only_as_root};

/// The names that pages use, all at one address, which is not an internal one.
const HOSTS: [&str; 3] = ["example.com", "api.example.com", "git.example.com"];
pub(crate) const ADDRESS: &str = "11.7.7.7";

/// Makes an authority that the host trusts, and a certificate for the names `$2`, as OpenSSL writes
/// them.
const CERTIFICATES: &str = "
cd \"$1\"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout authority.key -subj /CN=lab -days 2 -out authority.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key -subj /CN=example.com -out request
echo subjectAltName=$2 > names
openssl x509 -req -in request -CA authority.pem -CAkey authority.key -days 2 -extfile names -out server.pem
cat /etc/ssl/certs/ca-certificates.crt authority.pem > bundle.pem
mount --bind bundle.pem /etc/ssl/certs/ca-certificates.crt
";

/// Answers `hello` to each request, plain and in TLS.
pub(crate) const SERVER: &str = r"
import http.server, ssl, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self):
        self.rfile.read(int(self.headers.get('Content-Length', 0)))
        self.send_response(200); self.send_header('Content-Length', '6'); self.end_headers()
        if self.command != 'HEAD': self.wfile.write(b'hello\n')
    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer
    def log_message(self, *words): pass
plain, tls = (http.server.ThreadingHTTPServer((sys.argv[1], port), Handler) for port in (80, 443))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2] + '/server.pem', sys.argv[2] + '/server.key')
tls.socket = context.wrap_socket(tls.socket, server_side=True)
threading.Thread(target=plain.serve_forever, daemon=True).start()
print('ready', flush=True)
tls.serve_forever()
";

/// Returns a folder with `server.pem` and `server.key`, a certificate for `names` that the host
/// trusts.
pub(crate) fn trusted(lab: &Lab, names: &[&str]) -> PathBuf {
    let certificates = lab.folder("certificates");
    let script = lab.file("certificates.sh", CERTIFICATES);
    let names: Vec<_> = names.iter().map(|name| format!("DNS:{name}")).collect();
    let made = lab.shell(&format!(
        "sh -e {} {} {}",
        script.display(),
        certificates.display(),
        names.join(",")
    ));
    assert!(certificates.join("bundle.pem").exists(), "{made}");
    certificates
}

/// A command of a session, with what the page says that it prints.
struct Command {
    line: usize,
    command: String,
    printed: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the README and the pages below `docs`.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Returns the commands of a page, in their order.
fn commands(page: &str) -> Vec<Command> {
    let mut commands = Vec::<Command>::new();
    let mut above = "";
    let mut is_session = false;
    let mut is_code = false;
    for (line, text) in (1..).zip(page.lines()) {
        if let Some(language) = text.trim().strip_prefix("```") {
            is_session = !is_code && language == "console" && !above.starts_with("<!-- not run: ");
            is_code = !is_code;
        } else if is_session {
            match (text.strip_prefix("$ "), text.strip_prefix("> ")) {
                (Some(command), _) => commands.push(Command {
                    line,
                    command: command.to_owned(),
                    printed: Vec::new(),
                }),
                (None, more) => {
                    // A session begins with a command.
                    let last = commands.last_mut().unwrap();
                    match more {
                        Some(more) if last.printed.is_empty() => {
                            last.command.push('\n');
                            last.command.push_str(more);
                        }
                        _ => last.printed.push(text.to_owned()),
                    }
                }
            }
        }
        above = text.trim();
    }
    commands
}

/// Returns true if `line` is `expected`, in which `…` stands for any text.
fn is_line(expected: &str, line: &str) -> bool {
    let mut parts = expected.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Returns true if `lines` are `expected`, in which a line `…` stands for any lines.
fn are_lines(expected: &[String], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((any, more)) if any == "…" => {
            (0..=lines.len()).any(|skipped| are_lines(more, &lines[skipped..]))
        }
        Some((first, more)) => lines
            .split_first()
            .is_some_and(|(line, rest)| is_line(first, line) && are_lines(more, rest)),
    }
}

#[test]
fn each_session_of_a_page_prints_what_the_page_shows() {
    only_as_root!("the pages show what root sees; users see the same but for names of users");
    let hosts: Vec<_> = HOSTS.iter().map(|name| (ADDRESS, *name)).collect();
    let mut wrong = String::new();
    let mut count = 0;
    for page in pages() {
        let commands = commands(&std::fs::read_to_string(&page).unwrap());
        if commands.is_empty() {
            continue;
        }
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        let lab = Lab::new(&hosts);
        let certificates = trusted(&lab, &HOSTS);
        let folder = certificates.to_str().unwrap();
        let _server = lab.program(&["/usr/bin/python3", "-c", SERVER, ADDRESS, folder]);
        for (
            Command {
                line,
                command,
                printed,
            },
            output,
        ) in commands.iter().zip(outputs(&lab, &commands))
        {
            count += 1;
            let lines: Vec<_> = output.lines().map(str::trim_end).collect();
            if !are_lines(printed, &lines) {
                let printed = printed.join("\n");
                write!(
                    wrong,
                    "{name}:{line}: {command}\n--- the page\n{printed}\n--- it printed\n{output}\n"
                )
                .unwrap();
            }
        }
    }
    assert!(count > 20, "{count}");
    assert!(wrong.is_empty(), "{wrong}");
}

/// Runs the commands, one after the other, in namespaces of their own, with which all that they
/// started ends. Returns what each printed.
fn outputs(lab: &Lab, commands: &[Command]) -> Vec<String> {
    let work = lab.folder("work");
    let [bin, home, session] = ["bin", "home", "session"].map(|name| lab.folder(name));
    for folder in [&work, &home] {
        std::os::unix::fs::chown(folder, Some(0), Some(0)).unwrap();
    }
    std::os::unix::fs::symlink(lab.program_path(), bin.join("openshell-sandbox")).unwrap();
    for (number, command) in commands.iter().enumerate() {
        std::fs::write(session.join(format!("{number}.sh")), &command.command).unwrap();
    }
    let driver = lab.file(
        "driver.sh",
        format!(
            "cd {}\nexport HOME={} PATH={}:$PATH\nfor n in $(seq 0 {}); do\n  timeout 60 bash \
             {1}/../session/$n.sh > {1}/../session/$n.out 2>&1 < /dev/null\ndone\n",
            work.display(),
            home.display(),
            bin.display(),
            commands.len() - 1
        ),
    );
    let printed = lab.shell(&format!(
        "unshare --pid --fork --kill-child --mount-proc bash {}",
        driver.display()
    ));
    assert_eq!(printed, "");
    (0..commands.len())
        .map(|number| std::fs::read_to_string(session.join(format!("{number}.out"))).unwrap())
        .collect()
}
