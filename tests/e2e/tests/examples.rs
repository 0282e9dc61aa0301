//! The policies of data/examples, each with the programs that it is for, and the flags and command
//! of its comment.

use std::path::{Path, PathBuf};

use lab::container::{Container, DEFAULT, DOCUMENTED};
use lab::host::{Program, Tier, UID};
use lab::{Finished, Lab, Sandbox};
use rustix::process::Signal;

use super::inference::Backend;

/// An address that is not an internal one, of all hosts but the next two.
const PUBLIC: &str = "11.7.7.7";
/// The same, of the server of git.
const GIT: &str = "11.7.7.8";
const HOSTS: [&str; 9] = [
    "example.com",
    "www.example.com",
    "news.example.com",
    "registry.example.com",
    "api.example.com",
    "git.example.com",
    "api.anthropic.com",
    "api.openai.com",
    "chatgpt.com",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/examples")
}

/// Returns the names of the files.
pub(crate) fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    names.sort();
    assert!(names.len() >= 13, "{names:?}");
    names
}

/// An example, after it has passed `check`.
pub(crate) struct Example {
    pub(crate) text: String,
}

impl Example {
    /// Reads an example, and checks that `check` warns of nothing but paths that this machine
    /// lacks.
    pub(crate) fn read(lab: &Lab, name: &str) -> Self {
        let text = std::fs::read_to_string(folder().join(name)).unwrap();
        let file = lab.file(name, &text);
        let printed = lab.shell(&format!(
            "{} check {}; echo $?",
            lab.binary(),
            file.display()
        ));
        let warnings: Vec<_> = printed
            .lines()
            .filter(|line| line.contains("policy warning: "))
            .filter(|line| {
                !line.ends_with(" does not exist; a start creates it")
                    && !line.ends_with(" does not exist; nothing is granted there until it does")
            })
            .collect();
        assert!(
            printed.ends_with("\n0\n") && warnings.is_empty(),
            "{name}: {printed}"
        );
        Self { text }
    }

    /// Replaces what a reader of the example replaces too.
    fn replace(self, from: &str, to: &str) -> Self {
        assert!(self.text.contains(from), "{from}: {}", self.text);
        Self {
            text: self.text.replace(from, to),
        }
    }

    /// Returns the flags and the command of the comment.
    fn words(&self) -> (Vec<String>, String) {
        let lines: Vec<_> = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("#   "))
            .map(str::trim)
            .collect();
        let line = lines.join(" ").replace("\\ ", "");
        let (flags, command) = line.split_once(" -- ").unwrap();
        let flags: Vec<_> = flags.split(' ').map(str::to_owned).collect();
        assert_eq!(flags[..2], ["openshell-sandbox", "--policy-data"], "{line}");
        assert!(flags[2].starts_with("~/"), "{line}");
        (flags[3..].to_vec(), command.to_owned())
    }

    fn command(&self) -> String {
        self.words().1
    }

    /// Returns a run in the folder of the project, with the flags of the comment.
    fn sandbox<'l>(&self, lab: &'l Lab) -> Sandbox<'l> {
        let file = lab.file("example.yaml", &self.text).display().to_string();
        let flags = self.words().0;
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        super::one_line::in_project(lab, &[&["--policy-data", &file], &flags[..]].concat())
    }

    /// Runs the command of the comment, then `script`, in one sandbox.
    fn run(&self, lab: &Lab, script: &str) -> Finished {
        self.sandbox(lab)
            .sh(&format!("{}\n{script}", self.command()))
    }
}

/// Returns a host with the names of the examples, whose workload's user has a home.
fn lab() -> Lab {
    let names = HOSTS.map(|name| if name == "git.example.com" { "" } else { name });
    let lab = Lab::new(&[
        (PUBLIC, &names.join(" ")),
        (GIT, "git.example.com"),
        ("10.99.0.1", "db.test other.test intra.example.com"),
    ]);
    let users = std::fs::read_to_string("/etc/passwd").unwrap()
        + &format!(
            "agent:x:{UID}:{UID}::{}:/bin/sh\n",
            lab.folder("home").display()
        );
    let users = lab.file("passwd", users);
    let mounted = lab.shell(&format!("mount --bind {} /etc/passwd", users.display()));
    assert_eq!(mounted, "");
    lab
}

/// Writes files into a folder of the lab, all of which then belongs to the workload's user.
fn write(lab: &Lab, name: &str, files: &[(&str, &str)]) -> String {
    let folder = lab.folder(name);
    for (path, text) in files {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let folder = folder.display().to_string();
    let given = lab.shell(&format!(
        "chown -R {UID}:{UID} {folder}; chmod -R a+rX {folder}"
    ));
    assert_eq!(given, "");
    folder
}

/// The servers of the public hosts.
struct Hosts {
    served: PathBuf,
    _program: Program,
}

impl Hosts {
    /// Serves `files`, whose paths begin with a host.
    fn start(lab: &Lab, files: &[(&str, &str)]) -> Self {
        let served = PathBuf::from(write(lab, "served", files));
        let words = Self::words(lab);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        Self {
            _program: lab.program(&words),
            served,
        }
    }

    /// Returns the words that start the servers.
    fn words(lab: &Lab) -> [String; 5] {
        let certificate = super::pages::trusted(lab, &HOSTS).join("server");
        let program = lab.file("hosts.py", include_str!("data/hosts.py"));
        [
            "/usr/bin/python3".to_owned(),
            program.display().to_string(),
            lab.folder("served").display().to_string(),
            certificate.display().to_string(),
            PUBLIC.to_owned(),
        ]
    }

    /// Returns method, host and path of each request.
    fn seen(&self) -> String {
        std::fs::read_to_string(self.served.join("seen")).unwrap_or_default()
    }
}

/// Starts git.example.com with the repository `app.git`, which has one commit more than the work
/// tree that the project becomes. [`Hosts`] are there already.
fn start_git(lab: &Lab) -> Program {
    let repositories = lab.folder("repositories").display().to_string();
    let program = lab.file("git.py", include_str!("data/git.py"));
    let certificate = lab.folder("certificates").join("server");
    let server = lab.program(&[
        "/usr/bin/python3",
        program.to_str().unwrap(),
        &repositories,
        certificate.to_str().unwrap(),
        GIT,
        "443",
    ]);
    write(
        lab,
        "home",
        &[(".gitconfig", "[user]\nname = a\nemail = a@lab.test\n")],
    );
    let script = format!(
        "set -e; cd {}; git init -q --bare {repositories}/app.git; git -C {repositories}/app.git \
         config http.receivepack true; chown -R {UID}:{UID} {repositories}; run() {{ setpriv \
         --reuid {UID} --regid {UID} --clear-groups env -i PATH=$PATH HOME={} git \"$@\"; }}; run \
         -c init.defaultBranch=main init -q; run add .; run commit -q --allow-empty -m one; run \
         remote add origin https://git.example.com/app.git; run commit -q --allow-empty -m two; \
         run push -q origin main; run reset -q --hard HEAD^",
        lab.folder("project").display(),
        lab.folder("home").display()
    );
    assert_eq!(lab.shell(&script), "");
    server
}

/// What a push prints.
const PUSH_REFUSED: &str = "The requested URL returned error: 403";

/// Prints the status of a CONNECT to a host.
fn connects(host: &str) -> String {
    format!("curl -s -o /dev/null -w '%{{http_connect}}\\n' https://{host}\n")
}

/// Returns true if the program at `binary` may send a request under `example`.
fn is_permitted(lab: &Lab, example: &Example, binary: &str, request: [&str; 3]) -> bool {
    let file = lab.file("example.yaml", &example.text);
    let [method, host, path] = request;
    let printed = lab.shell(&format!(
        "{} explain {} --binary {binary} --host {host} --port 443 --method {method} --path \
         {path}; echo $?",
        lab.binary(),
        file.display()
    ));
    println!("{printed}");
    printed.ends_with("\n0\n")
}

/// Lets an agent complete a turn at its API, in which its model tells it to run a command that
/// writes a file and asks for the API too. Then runs `script` in the same sandbox.
fn run_agent(
    lab: &Lab,
    example: Example,
    package: &str,
    [key, command]: [&str; 2],
    script: &str,
) -> Finished {
    let name = format!("example-{}", package.rsplit('/').next().unwrap());
    let install = format!("cd \"$FOLDER\" && npm install --silent --no-audit --no-fund {package}");
    let packages = super::sdks::installed(&name, &install);
    let place = packages.0.display().to_string();
    let example = example.replace("/opt/agents/", &format!("{place}/"));
    let (host, permitted) = match package {
        "@openai/codex" => ("api.openai.com", "/v1/responses"),
        _ => ("api.anthropic.com", "/v1/messages"),
    };
    let by_model = format!(
        "printf 'by a model\\n' > written; ({}) >> written",
        connects(host).trim_end()
    );
    write(lab, "backend", &[("command", &by_model)]);
    let _backend = Backend::start(lab);
    write(
        lab,
        "project",
        &[(".env", "s3cret"), ("keys/a.pem", "s3cret")],
    );
    let hosts = Hosts::start(lab, &[]);
    let _git = start_git(lab);
    let finished = example.sandbox(lab).args(&["--env", key]).sh(&format!(
        "export PATH={place}/node_modules/.bin:$PATH
         {command} </dev/null && cat written
         cat .env keys/a.pem && echo read secrets
         git ls-remote -q origin | cut -f 2
         git push origin HEAD:refs/heads/other
         {script}"
    ));
    assert!(
        finished.stdout.contains("Hello there.") && finished.stdout.contains("by a model\n403\n"),
        "{finished:?}"
    );
    assert!(
        !finished.stdout.contains("s3cret") && !finished.stdout.contains("read secrets"),
        "{finished:?}"
    );
    assert!(hosts.seen().contains("POST api."), "{}", hosts.seen());
    let binary = lab
        .shell(&format!(
            "find {place} -type f -perm -u+x -size +20M -name 'c*' ! -name '*host'"
        ))
        .lines()
        .next()
        .unwrap()
        .to_owned();
    assert!(is_permitted(
        lab,
        &example,
        &binary,
        ["POST", host, permitted]
    ));
    assert!(!is_permitted(
        lab,
        &example,
        &binary,
        ["POST", host, "/v1/files"]
    ));
    finished
}

#[test]
fn claude_code_works_on_a_repository_and_reads_no_secret_pushes_nothing_and_shares_its_api_with_no_program()
 {
    let lab = lab();
    let example = Example::read(&lab, "claude-code.yaml");
    let command = format!(
        "{} -p \"write into $PWD a file\" --dangerously-skip-permissions",
        example.command()
    );
    let finished = run_agent(
        &lab,
        example,
        "@anthropic-ai/claude-code",
        ["ANTHROPIC_API_KEY=sk-lab", &command],
        &format!(
            "for file in ~/.claude/settings.json .claude/settings.json .mcp.json; do (echo x > \
             $file) || echo kept; done\n{}",
            connects("api.anthropic.com")
        ),
    );
    assert!(
        finished
            .stdout
            .ends_with("\nrefs/heads/main\nkept\nkept\nkept\n403\n"),
        "{finished:?}"
    );
    assert!(finished.stderr.contains(PUSH_REFUSED), "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("/curl -> api.anthropic.com:443: binary_not_in_policy"),
        "{finished:?}"
    );
}

#[test]
fn codex_works_on_a_repository_and_reads_no_secret_and_its_programs_reach_no_host() {
    let lab = lab();
    let example = Example::read(&lab, "codex.yaml");
    let command = example.command();
    // In a terminal it is `codex`.
    assert_eq!(
        command,
        "codex --no-daemon --dangerously-bypass-approvals-and-sandbox"
    );
    let command = command.replace("codex --no-daemon", "codex exec --skip-git-repo-check")
        + " -c model=gpt-x \"write into $PWD a file\"";
    let finished = run_agent(
        &lab,
        example,
        "@openai/codex",
        ["CODEX_API_KEY=sk-lab", &command],
        &format!(
            "for file in ~/.codex/config.toml ~/.codex/hooks.json .codex/config.toml; do (echo x > \
             $file) || echo kept; done\n{}{}",
            connects("api.openai.com"),
            connects("www.example.com")
        ),
    );
    assert!(
        finished.stdout.ends_with("kept\nkept\nkept\n403\n403\n"),
        "{finished:?}"
    );
    assert!(
        finished
            .stderr
            .contains("/curl -> api.openai.com:443: binary_not_in_policy"),
        "{finished:?}"
    );
}

/// Writes a wheel and the index of its project to `argv[1]`.
const WHEEL: &str = "
import sys, zipfile
folder, name = sys.argv[1], 'tiny-1.0-py3-none-any.whl'
files = {
    'tiny.py': 'def mean(values): return sum(values) / len(values)\\n',
    'tiny-1.0.dist-info/METADATA': 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n',
    'tiny-1.0.dist-info/WHEEL': 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n',
    'tiny-1.0.dist-info/RECORD': '',
}
with zipfile.ZipFile(f'{folder}/{name}', 'w') as wheel:
    for path, text in files.items(): wheel.writestr(path, text)
open(folder + '/index.html', 'w').write(f'<a href=\"{name}\">{name}</a>')
";

#[test]
fn an_analysis_installs_its_packages_reads_its_data_and_writes_its_results_and_nothing_else() {
    let lab = lab();
    let hosts = Hosts::start(&lab, &[("registry.example.com/simple/tiny/index.html", "")]);
    let script = lab.file("wheel.py", WHEEL);
    let made = lab.shell(&format!(
        "/usr/bin/python3 {} {}/registry.example.com/simple/tiny",
        script.display(),
        hosts.served.display()
    ));
    assert_eq!(made, "");
    let settings = "[global]\nindex-url = https://registry.example.com/simple\n";
    write(&lab, "home", &[(".config/pip/pip.conf", settings)]);
    let analysis = "import csv, tiny
rows = csv.DictReader(open('data/numbers.csv'))
open('results/mean', 'w').write(str(tiny.mean([int(row['n']) for row in rows])))
";
    let files = [
        ("requirements.txt", "tiny\n"),
        ("data/numbers.csv", "n\n1\n3\n"),
        ("analyse.py", analysis),
        (".env", "s3cret"),
    ];
    let project = write(&lab, "project", &files);
    let example = Example::read(&lab, "python-data.yaml");
    let script = "for url in https://registry.example.com/new https://www.example.com/; do \
                  .venv/bin/python -c \"import urllib.request as r; r.urlopen('$url', b'x')\" 2>&1 \
                  | tail -1; done
        touch data/new analyse.py new; cat .env && echo read a secret
        ls results data";
    let finished = example.run(&lab, script);
    let lines: Vec<_> = finished.stdout.lines().rev().take(7).collect();
    assert_eq!(
        lines[..5],
        ["mean", "results:", "", "numbers.csv", "data:"],
        "{finished:?}"
    );
    assert!(
        lines[5].contains("403 endpoint_not_in_policy")
            && lines[6].contains("403: request_not_in_rules"),
        "{finished:?}"
    );
    let kept = finished.stderr.matches("Read-only file system").count();
    assert!(
        kept == 3 && finished.stderr.contains(".env: Permission denied"),
        "{finished:?}"
    );
    let mean = std::fs::read_to_string(Path::new(&project).join("results/mean")).unwrap();
    assert_eq!(mean, "2.0");
    assert!(!hosts.seen().contains("POST"), "{}", hosts.seen());
}

#[test]
fn a_web_project_installs_packages_and_shows_its_server_to_this_host_and_publishes_no_package() {
    let lab = lab();
    let tiny = r#"{"name": "@lab/tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "@lab/tiny", "version": "1.0.0", "dist": {"tarball": "https://registry.example.com/tiny.tgz"}}}}"#;
    let hosts = Hosts::start(&lab, &[("registry.example.com/@lab/tiny", tiny)]);
    let package = write(
        &lab,
        "packed/package",
        &[
            (
                "package.json",
                r#"{"name": "@lab/tiny", "version": "1.0.0"}"#,
            ),
            ("index.js", "module.exports = 'from a package';\n"),
        ],
    );
    let packed = lab.shell(&format!(
        "tar -C {package}/.. -czf {}/registry.example.com/tiny.tgz package",
        hosts.served.display()
    ));
    assert_eq!(packed, "");
    let settings =
        "registry=https://registry.example.com/\n//registry.example.com/:_authToken=abc\n";
    write(&lab, "home", &[(".npmrc", settings)]);
    let server = "require('http').createServer((_, answer) => \
                  answer.end(require('@lab/tiny'))).listen(3000, '127.0.0.1');\n";
    let files = [
        (
            "package.json",
            r#"{"name": "web", "version": "1.0.0", "dependencies": {"@lab/tiny": "*"}, "scripts": {"dev": "node server.js"}}"#,
        ),
        ("server.js", server),
        (".env.production", "s3cret"),
        ("certificates/web.key", "s3cret"),
    ];
    write(&lab, "project", &files);
    let example = Example::read(&lab, "node-web.yaml");
    let started = example
        .sandbox(&lab)
        .start(&["sh", "-c", &example.command()]);
    let mut answer = String::new();
    lab::wait_until(
        || {
            answer = lab.shell("curl -s -m 5 http://127.0.0.1:3000");
            !answer.is_empty()
        },
        || "the server does not start".to_owned(),
    );
    assert_eq!(answer, "from a package");
    started.signal(Signal::TERM);
    let ended = started.wait();
    assert!(ended.stdout.contains("added 1 package"), "{ended:?}");
    let finished = example.sandbox(&lab).sh(
        "npm publish; cat .env.production certificates/web.key && echo read secrets
         node -e \"fetch('https://www.example.com').then(() => console.log('reached'), () => \
         console.log('refused'))\"",
    );
    assert_eq!(finished.stdout, "refused\n", "{finished:?}");
    assert!(
        finished.stderr.contains("403 request_not_in_rules")
            || finished.stderr.contains("403 Forbidden"),
        "{finished:?}"
    );
    assert!(
        finished
            .stderr
            .contains("-> registry.example.com:443: request_not_in_rules"),
        "{finished:?}"
    );
    assert!(!hosts.seen().contains("PUT"), "{}", hosts.seen());
}

#[test]
fn a_ci_job_fetches_builds_and_tests_and_neither_pushes_nor_changes_caches_and_hooks() {
    let lab = lab();
    let hosts = Hosts::start(&lab, &[]);
    let cached = lab.shell(&format!(
        "mount -t tmpfs -o mode=755 lab /srv && mkdir /srv/cache && echo '#define ANSWER 42' > \
         /srv/cache/answer.h && chown -R {UID} /srv/cache"
    ));
    assert_eq!(cached, "");
    let source = "#include <stdio.h>\n#include \"answer.h\"\nint main(void) { printf(\"%d\\n\", ANSWER); }\n";
    let rules = "test: app\n\t./app | grep -x 42\napp: app.c\n\tcc -I/srv/cache -o app app.c\n.PHONY: test\n";
    write(&lab, "project", &[("app.c", source), ("Makefile", rules)]);
    let _git = start_git(&lab);
    let example = Example::read(&lab, "ci-job.yaml");
    let script = format!(
        "git log --format=%s; echo CI=$CI; env | grep RUNNER
         git push origin HEAD:refs/heads/other
         (echo x > /srv/cache/answer.h) || (echo x > .git/hooks/pre-push) || echo kept
         {}",
        connects("www.example.com")
    );
    let finished = example
        .sandbox(&lab)
        .env("RUNNER_TOKEN", "s3cret")
        .sh(&format!("{} || exit\n{script}", example.command()));
    let expected = "\n42\ntwo\none\nCI=true\nkept\n403\n";
    assert!(finished.stdout.ends_with(expected), "{finished:?}");
    assert!(finished.stderr.contains(PUSH_REFUSED), "{finished:?}");
    assert_eq!(hosts.seen(), "");
}

#[test]
fn psql_and_redis_cli_reach_their_ports_of_one_host_and_nothing_else_does() {
    let lab = lab();
    let _postgresql = super::databases::start_postgresql(&lab);
    let _redis = super::databases::start_redis(&lab);
    let example = Example::read(&lab, "database.yaml")
        .replace("db.example.com", "db.test")
        .replace("10.1.0.0/16", "10.99.0.1")
        .replace("-U report -d shop", "-U agent -d postgres");
    let psql = format!("{} -XAt -c", example.command());
    let finished = example.sandbox(&lab).sh(&format!(
        "{psql} 'select 6 * 7'; redis-cli -h db.test incr a
         {} 'select 1' 2>/dev/null || echo no other host
         {} 'select 1' 2>/dev/null || echo no other port
         redis-cli -h db.test -p 5432 ping 2>&1
         echo PING | nc -w 5 db.test 6379; true",
        psql.replace("db.test", "other.test"),
        psql.replace("db.test", "db.test -p 6379"),
    ));
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(
        lines[..4],
        ["42", "1", "no other host", "no other port"],
        "{finished:?}"
    );
    assert!(!finished.stdout.contains("PONG"), "{finished:?}");
    for line in [
        "/psql -> db.test:6379: binary_not_in_policy",
        "/redis-cli -> db.test:5432: binary_not_in_policy",
        "/psql -> other.test: endpoint_not_in_policy",
        "/nc.openbsd -> db.test:6379: binary_not_in_policy",
    ] {
        assert!(finished.stderr.contains(line), "{line}: {finished:?}");
    }
}

#[test]
fn a_crawler_reads_public_hosts_of_a_domain_and_sends_nothing_and_runs_nothing_that_it_saved() {
    let lab = lab();
    let page = "<a href='https://news.example.com/today.html'>today</a> <a \
                href='https://intra.example.com/'>inside</a>";
    let hosts = Hosts::start(
        &lab,
        &[
            ("www.example.com/index.html", page),
            ("news.example.com/today.html", "today"),
        ],
    );
    let example = Example::read(&lab, "crawler.yaml");
    let script = "find . -type f | sort
        curl -s -o /dev/null -w '%{http_code}\\n' -d a=b https://www.example.com/
        for url in https://intra.example.com https://chatgpt.com; do curl -s -o /dev/null -w \
                  '%{http_connect}\\n' $url; done
        for url in http://10.99.0.1 http://169.254.169.254; do curl -s -o /dev/null -w \
                  '%{http_code}\\n' $url; done
        for folder in . /tmp; do cp /bin/true $folder/saved; $folder/saved || echo not run; done";
    let finished = example.run(&lab, script);
    let expected = "./news.example.com/today.html\n./www.example.com/index.\
                    html\n403\n403\n403\n403\n403\nnot run\nnot run";
    assert_eq!(finished.ok(), expected, "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("/wget -> intra.example.com:443: internal_address"),
        "{finished:?}"
    );
    assert!(
        hosts.seen().contains("GET news.example.com/today.html\n")
            && !hosts.seen().contains("POST"),
        "{}",
        hosts.seen()
    );
}

#[test]
fn a_build_of_untrusted_code_fills_its_folder_and_has_no_network_no_secrets_and_no_sources_to_change()
 {
    let lab = lab();
    let hosts = Hosts::start(&lab, &[]);
    let rules = "build/app: src/app.c\n\tcc -o build/app src/app.c\n\tbuild/app\n";
    let files = [
        ("Makefile", rules),
        (
            "src/app.c",
            "#include <stdio.h>\nint main(void) { puts(\"built\"); }\n",
        ),
        (".env", "s3cret"),
        ("deep/down/a.key", "s3cret"),
        (".git/config", "s3cret"),
    ];
    let project = write(&lab, "project", &files);
    write(&lab, "home", &[(".netrc", "s3cret")]);
    let example = Example::read(&lab, "untrusted-build.yaml");
    let script = "for secret in .env deep/down/a.key .git/config ~/.netrc; do cat $secret || echo \
                  hidden; done
        (echo x > src/app.c) || (echo x > new) || echo kept
        for folder in /tmp /dev/shm; do cp build/app $folder; $folder/app || echo not run; done
        env | grep SECRET
        curl -s https://www.example.com || echo no network";
    let finished = example
        .sandbox(&lab)
        .env("SECRET", "s3cret")
        .sh(&format!("{}\n{script}", example.command()));
    let expected = "build/app\nbuilt\nhidden\nhidden\nhidden\nhidden\nkept\nnot run\nnot run\nno \
                    network\n";
    assert!(finished.stdout.ends_with(expected), "{finished:?}");
    assert!(Path::new(&project).join("build/app").exists());
    // The file promises the same without the flag.
    let without = Example {
        text: example.text.replace(" --network block", ""),
    };
    let refused = without.sandbox(&lab).sh(&connects("www.example.com"));
    assert_eq!(refused.stdout, "403\n", "{refused:?}");
    assert_eq!(hosts.seen(), "");
}

/// Has a kernel of the server at port 8888 run each piece of code behind `argv[1]`, the token.
const NOTEBOOK: &str = "
import asyncio, json, sys, urllib.request, uuid
from tornado.websocket import websocket_connect
at, token = '127.0.0.1:8888/api/kernels', sys.argv[1]
request = urllib.request.Request(f'http://{at}', b'{}', {'Authorization': f'token {token}'})
kernel = json.load(urllib.request.urlopen(request))['id']
async def main():
    channels = await websocket_connect(f'ws://{at}/{kernel}/channels?token={token}')
    for code in sys.argv[2:]:
        header = {'msg_id': uuid.uuid4().hex, 'msg_type': 'execute_request', 'username': '', 'session': 'lab', 'version': '5.3'}
        await channels.write_message(json.dumps({'header': header, 'parent_header': {}, 'metadata': {}, 'content': {'code': code}, 'channel': 'shell'}))
        while True:
            message = json.loads(await channels.read_message())
            kind, content = message['msg_type'], message['content']
            if message['parent_header'].get('msg_id') != header['msg_id']: continue
            if kind == 'stream': print(content['text'], end='')
            if kind == 'error': print(content['ename'], content['evalue'])
            if kind == 'status' and content['execution_state'] == 'idle': break
asyncio.run(main())
";

#[test]
fn notebooks_run_behind_a_published_port_and_change_neither_jupyter_nor_other_hosts() {
    let lab = lab();
    let hosts = Hosts::start(&lab, &[("api.example.com/fact", "fact")]);
    let project = write(&lab, "project", &[(".env", "s3cret")]);
    write(&lab, "home", &[(".netrc", "s3cret")]);
    super::sdks::install(
        Path::new(&project),
        "cd \"$FOLDER\" && /usr/bin/python3 -m venv .venv && .venv/bin/pip install --quiet \
         jupyterlab",
    );
    // By Unix permissions the notebooks could change it.
    write(&lab, "project", &[]);
    let example = Example::read(&lab, "jupyter.yaml");
    let started = example
        .sandbox(&lab)
        .args(&["--env", "JUPYTER_TOKEN=lab"])
        .start(&["sh", "-c", &example.command()]);
    lab::wait_until(
        || {
            lab.shell("curl -s -m 5 http://127.0.0.1:8888/api")
                .contains("version")
        },
        || "Jupyter does not start".to_owned(),
    );
    let client = lab.file("notebook.py", NOTEBOOK).display().to_string();
    let code = [
        "import urllib.request as r; print(6 * 7, r.urlopen('https://api.example.com/fact').read())",
        "r.urlopen('https://api.example.com/fact', b'x')",
        "r.urlopen('https://www.example.com/')",
        "open('.venv/bin/jupyter', 'a')",
        "open('.env')",
        "print(open('made', 'w').write('x'))",
        "import os; print(os.listdir(os.path.expanduser('~agent')))",
    ];
    let printed = lab.shell(&format!(
        "{project}/.venv/bin/python {client} lab {}",
        code.map(|code| format!("\"{code}\"")).join(" ")
    ));
    let expected = [
        "42 b'fact'",
        "HTTPError HTTP Error 403: request_not_in_rules",
        "URLError <urlopen error Tunnel connection failed: 403 endpoint_not_in_policy>",
        "OSError [Errno 30] Read-only file system: '.venv/bin/jupyter'",
        "PermissionError [Errno 13] Permission denied: '.env'",
        "1",
        "[]",
    ];
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    started.signal(Signal::TERM);
    let finished = started.wait();
    assert_eq!(hosts.seen(), "GET api.example.com/fact\n", "{finished:?}");
}

#[test]
fn a_service_in_an_image_serves_its_port_writes_its_volume_and_reads_one_api() {
    let lab = lab();
    write(&lab, "served", &[("api.example.com/fact", "fact\n")]);
    let server = Hosts::words(&lab).join(" ");
    let example = Example::read(&lab, "image.yaml");
    let entrypoint = example
        .text
        .lines()
        .find_map(|line| line.strip_prefix("#   ENTRYPOINT "))
        .unwrap();
    // The lab's container has no image of its own.
    let place = "--policy-data=/etc/openshell/policy.yaml";
    assert!(entrypoint.contains(place), "{entrypoint}");
    let entrypoint = entrypoint.replace(place, "--policy-data=/box/policy.yaml");
    let mut words: Vec<String> = serde_json::from_str(&entrypoint).unwrap();
    assert_eq!(words[0], "openshell-sandbox");
    words[0] = "/box/openshell-sandbox".to_owned();
    let service = "
        cd /var/lib/service; echo started
        until [ -e go ]; do sleep 0.05; done
        touch /etc/x || echo kept; cp /bin/true .; ./true || echo not run
        curl -sS https://api.example.com/fact
        curl -s -o /dev/null -w '%{http_code}\\n' -d a=b https://api.example.com/fact
        curl -s -o /dev/null -w '%{http_connect}\\n' https://www.example.com
        echo served > page; exec python3 -m http.server --bind 127.0.0.1 8000 2>/dev/null";
    words.extend(["sh", "-c", service].map(str::to_owned));
    let (mut container, user) = match lab::host::tier() {
        Tier::Root => (Container::new(0, &[DEFAULT, DOCUMENTED]), 65534),
        Tier::Rootless => (Container::new(UID, &[]), UID),
    };
    let volume = lab.folder("service");
    std::os::unix::fs::chown(&volume, Some(user), Some(user)).unwrap();
    container.binds = vec![
        (lab.program_path(), "/box/openshell-sandbox".into()),
        (
            lab.file("policy.yaml", &example.text),
            "/box/policy.yaml".into(),
        ),
    ];
    container.volumes = vec![(volume.clone(), "/var/lib/service".into())];
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let script = container.script(&lab, &words);
    let out = lab.folder("out").join("out").display().to_string();
    let ready = lab.folder("out").join("ready").display().to_string();
    let printed = lab.shell(&format!(
        "{script} > {out} 2>&1 &
         until grep -qs started {out}; do sleep 0.05; done
         one=$(pgrep -P $!)
         nsenter -t $one -n ip addr add {PUBLIC}/32 dev lo
         nsenter -t $one -n {server} > {ready} 2>&1 & server=$!
         until grep -qs ready {ready}; do sleep 0.05; done
         touch {}/go
         until nsenter -t $one -n curl -sf -m 5 http://127.0.0.1:8080/page; do sleep 0.05; done
         kill -TERM $one; kill $server; wait; cat {out}",
        volume.display()
    ));
    assert!(printed.starts_with("served\n"), "{printed}");
    assert!(
        printed.contains("kept\n") && printed.contains("not run\nfact\n403\n403\n"),
        "{printed}"
    );
}
