//! Real clients: git against a server of the lab, and package managers with their registries in the
//! machine's network. The registries' host names come from the clients' settings at run time.

#![expect(
    clippy::disallowed_methods,
    reason = "clients are asked for their registries outside the sandbox"
)]

use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs the binary in the machine's namespaces.
fn sandbox(policy: &str, words: &[&str]) -> Output {
    let folder = std::env::temp_dir().join(format!(
        "e2e-{}-{}",
        std::process::id(),
        words[0].replace('/', "-")
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("policy.yaml");
    std::fs::write(&file, policy).unwrap();
    let mut command = Command::new(lab::sandbox::binary());
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .current_dir("/tmp");
    command.env(
        "npm_config_cache",
        format!("/tmp/e2e-npm-{}", std::process::id()),
    );
    // Ordinary downloads hold nothing that looks like a secret.
    command
        .arg("--policy-data")
        .arg(&file)
        .arg("--log-dir")
        .arg(&folder)
        .args(["--leaks", "block", "--"])
        .args(words);
    let output = command.output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn asked(command: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", command])
        .env("PATH", "/usr/bin:/bin")
        .output()
        .unwrap();
    text(&output.stdout).trim().to_owned()
}

/// Returns an endpoint for `host` with its addresses on this machine.
fn endpoint(host: &str) -> String {
    let addresses: Vec<IpAddr> = (host, 443)
        .to_socket_addrs()
        .unwrap()
        .map(|address| address.ip())
        .collect();
    let listed: Vec<_> = addresses
        .iter()
        .map(|address| format!("\"{address}\""))
        .collect();
    format!(
        "{{host: {host}, port: 443, allowed_ips: [{}]}}",
        listed.join(", ")
    )
}

fn policy(hosts: &[&str], binary: &str) -> String {
    let endpoints: Vec<_> = hosts.iter().map(|host| endpoint(host)).collect();
    let network = format!(
        "{{registry: {{endpoints: [{}], binaries: [{{path: {binary}}}]}}}}",
        endpoints.join(", ")
    );
    format!(
        "{}filesystem_policy: {{read_write: [/tmp]}}\n",
        super::policy(&network)
    )
}

#[test]
fn pip_downloads_what_its_policy_gives_and_is_told_why_not() {
    let hosts = asked(
        "/usr/bin/python3 -c 'import pip._internal.models.index as i; print(i.PyPI.netloc, \
         i.PyPI.file_storage_domain)'",
    );
    let hosts: Vec<_> = hosts.split_whitespace().collect();
    assert_eq!(hosts.len(), 2, "pip, of Debian's python3-pip");
    let words = [
        "/usr/bin/python3",
        "-m",
        "pip",
        "download",
        "--no-cache-dir",
        "--no-deps",
        "--retries",
        "1",
        "-d",
        "/tmp/e2e-pip",
        "six",
    ];
    let permitted = sandbox(&policy(&hosts, &super::python()), &words);
    assert!(permitted.status.success(), "{permitted:?}");
    let removed = std::fs::remove_dir_all("/tmp/e2e-pip");
    assert!(removed.is_ok(), "it downloaded nothing: {permitted:?}");
    let refused = sandbox(&policy(&hosts, "/usr/bin/other"), &words);
    assert!(!refused.status.success());
    assert!(
        text(&refused.stderr).contains("403 binary_not_in_policy"),
        "{refused:?}"
    );
    // pip creates the folder before its first request.
    let _ = std::fs::remove_dir("/tmp/e2e-pip");
}

#[test]
fn npm_and_curl_reach_what_their_policies_give_and_are_told_why_not() {
    let registry = asked("npm config get registry 2>/dev/null");
    let host = registry
        .trim_start_matches("https://")
        .trim_end_matches('/');
    let node = std::fs::canonicalize("/usr/bin/node")
        .unwrap()
        .display()
        .to_string();
    let words = ["npm", "view", "is-number", "version"];
    let permitted = sandbox(&policy(&[host], &node), &words);
    assert!(
        permitted.status.success() && text(&permitted.stdout).starts_with(char::is_numeric),
        "{permitted:?}"
    );
    let refused = sandbox(&policy(&[host], "/usr/bin/other"), &words);
    assert!(
        text(&refused.stderr).contains("403 binary_not_in_policy"),
        "{refused:?}"
    );
    std::fs::remove_dir_all(format!("/tmp/e2e-npm-{}", std::process::id())).unwrap();
    let curl = ["curl", "-sSI", &registry];
    let permitted = sandbox(&policy(&[host], "/usr/bin/curl"), &curl);
    assert!(
        text(&permitted.stdout).contains("200 Connection Established"),
        "{permitted:?}"
    );
    let refused = sandbox(&policy(&[host], &node), &curl);
    assert!(
        text(&refused.stdout).contains("403 binary_not_in_policy"),
        "{refused:?}"
    );
}

#[test]
fn npm_installs_under_the_policy_that_it_was_observed_to_need() {
    let folder = std::env::temp_dir().join(format!("e2e-observed-{}", std::process::id()));
    let project = folder.join("project");
    std::fs::create_dir_all(&project).unwrap();
    std::fs::write(
        project.join("package.json"),
        r#"{"dependencies": {"is-number": "*", "@types/ms": "*"}}"#,
    )
    .unwrap();
    for path in [&project, &project.join("package.json")] {
        std::os::unix::fs::chown(path, Some(lab::host::UID), Some(lab::host::UID)).unwrap();
    }
    let npm = |policy: &str, flags: &[&str]| {
        let file = folder.join("policy.yaml");
        std::fs::write(&file, policy).unwrap();
        let mut command = Command::new(lab::sandbox::binary());
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("npm_config_cache", project.join("cache"));
        command
            .arg("--policy-data")
            .arg(file)
            .arg("--log-dir")
            .arg(&folder)
            .args(flags)
            .arg("--workdir")
            .arg(&project);
        command.args(["--leaks", "block"]);
        command
            .args([
                "--",
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--fetch-retries",
                "0",
            ])
            .output()
            .unwrap()
    };
    let refused = npm(&super::policy("{}"), &[]);
    assert!(
        text(&refused.stderr).contains("403 no_network_policies"),
        "{refused:?}"
    );
    let observed = folder.join("observed.yaml");
    let passed = npm(
        &super::policy("{}"),
        &["--observe", observed.to_str().unwrap()],
    );
    assert!(passed.status.success(), "{passed:?}");
    for made in ["node_modules", "cache"] {
        std::fs::remove_dir_all(project.join(made)).unwrap();
    }
    // With the lock file npm would not request the packages by name.
    std::fs::remove_file(project.join("package-lock.json")).unwrap();
    let enforced = npm(&std::fs::read_to_string(observed).unwrap(), &[]);
    // The path of a scoped package contains an escaped slash.
    let made =
        ["is-number", "@types/ms"].map(|name| project.join("node_modules").join(name).exists());
    assert!(
        enforced.status.success() && made == [true, true],
        "{enforced:?}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_preset_of_ones_own_is_what_one_observed_run_has_shown_and_stays_out_of_reach() {
    let folder = PathBuf::from(format!("/var/tmp/e2e-preset-{}", std::process::id()));
    let project = folder.join("project");
    let presets = folder.join("config/openshell/presets");
    std::fs::create_dir_all(&project).unwrap();
    std::fs::create_dir_all(&presets).unwrap();
    std::os::unix::fs::chown(&project, Some(lab::host::UID), Some(lab::host::UID)).unwrap();
    let user = lab::host::UID.to_string();
    let run = |flags: &[&str], words: &[&str]| {
        let mut command = Command::new(lab::sandbox::binary());
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("XDG_CONFIG_HOME", folder.join("config"));
        command
            .env("SUDO_UID", &user)
            .env("SUDO_GID", &user)
            .current_dir(&project);
        command
            .arg("--log-dir")
            .arg(&folder)
            .args(flags)
            .arg("--")
            .args(words)
            .output()
            .unwrap()
    };
    let pip = [
        "/usr/bin/python3",
        "-m",
        "pip",
        "download",
        "--no-cache-dir",
        "--no-deps",
        "--retries",
        "0",
        "six",
    ];
    let unknown = run(&["--preset", "packages"], &pip);
    assert!(
        text(&unknown.stderr)
            .split_once("; to add it, write a policy to ")
            .is_some_and(|(_, path)| path.contains("config/openshell/presets/packages.yaml")),
        "{unknown:?}"
    );
    let observed = folder.join("observed.yaml");
    let learnt = run(
        &["--write", ".", "--observe", observed.to_str().unwrap()],
        &pip,
    );
    assert!(learnt.status.success(), "{learnt:?}");
    let observed = std::fs::read_to_string(observed).unwrap();
    let network = &observed[observed.find("network_policies:").unwrap()..];
    std::fs::write(presets.join("packages.yaml"), network).unwrap();
    let removed = std::fs::read_dir(&project)
        .unwrap()
        .map(|file| std::fs::remove_file(file.unwrap().path()).unwrap());
    assert_eq!(removed.count(), 1);
    let enforced = run(&["--preset", "packages"], &pip);
    assert!(enforced.status.success(), "{enforced:?}");
    // Where the command may write, it may not write to the preset.
    let config = folder.join("config").display().to_string();
    let script = format!(
        "echo x > {0}/packages.yaml; mv {0} {0}.old; rm {0}/packages.yaml",
        presets.display()
    );
    let tried = run(
        &["--preset", "packages", "--write", &config],
        &["sh", "-c", &script],
    );
    assert!(!tried.status.success(), "{tried:?}");
    assert_eq!(
        std::fs::read_to_string(presets.join("packages.yaml")).unwrap(),
        network,
        "{tried:?}"
    );
    std::fs::write(presets.join("packages.yaml"), "network_policy: {}\n").unwrap();
    let invalid = run(&["--preset", "packages"], &pip);
    assert!(
        text(&invalid.stderr)
            .contains("presets/packages.yaml: policy validation failed:\n  line 1"),
        "{invalid:?}"
    );
    for name in ["../python", "/etc/passwd"] {
        let refused = run(&["--preset", name], &pip);
        assert!(
            text(&refused.stderr).contains("a name has only letters, digits"),
            "{refused:?}"
        );
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Presets of one test, and its folder.
struct Presets {
    folder: PathBuf,
}

impl Presets {
    fn new(name: &str) -> Self {
        let folder = PathBuf::from(format!("/var/tmp/e2e-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("project")).unwrap();
        let user = Some(lab::host::UID);
        std::os::unix::fs::chown(folder.join("project"), user, user).unwrap();
        Self { folder }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(lab::sandbox::binary());
        let user = lab::host::UID.to_string();
        command
            .env_clear()
            .env("XDG_CONFIG_HOME", self.folder.join("config"))
            .env("SUDO_UID", &user)
            .env("SUDO_GID", &user);
        let path = format!(
            "{}/toolchain/bin:/usr/local/bin:/usr/bin:/bin",
            self.folder.display()
        );
        command
            .env("PATH", path)
            .current_dir(self.folder.join("project"))
            .args(words);
        command
    }

    fn make(&self, words: &[&str]) -> Output {
        self.command(&["presets", "make"])
            .args(words)
            .output()
            .unwrap()
    }

    /// Runs `script` under the preset `name`, and empties its folder.
    fn run(&self, name: &str, script: &str) -> Output {
        let mut command = self.command(&["--preset", name, "--leaks", "block", "--log-dir"]);
        let toolchain = self.folder.join("toolchain").display().to_string();
        let output = command
            .arg(&self.folder)
            .args(["--read", &toolchain, "--", "sh", "-c", script])
            .output()
            .unwrap();
        let project = self.folder.join("project");
        for made in std::fs::read_dir(&project)
            .unwrap()
            .map(|made| made.unwrap().path())
        {
            if made.is_dir() {
                std::fs::remove_dir_all(made).unwrap()
            } else {
                std::fs::remove_file(made).unwrap()
            }
        }
        output
    }
}

impl Drop for Presets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn presets_of_registries_are_made_by_asking_each_client_and_permit_downloads_alone() {
    let presets = Presets::new("registries");
    // The toolchain may be in a folder of root's.
    let toolchain = PathBuf::from(env!("CARGO"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned();
    let copy = "cp -al \"$1\" \"$2\" 2>/dev/null || { rm -rf \"$2\"; cp -a \"$1\" \"$2\"; }";
    let copied = Command::new("sh")
        .args(["-c", copy, "sh"])
        .arg(&toolchain)
        .arg(presets.folder.join("toolchain"))
        .status();
    assert!(copied.unwrap().success());
    let missing = presets.run("rust", "true");
    let hint = "run `openshell-sandbox presets make rust`, which asks cargo for its registry";
    assert!(
        missing.status.code() == Some(1) && text(&missing.stderr).contains(hint),
        "{missing:?}"
    );
    let made = presets.make(&[
        "python",
        "node",
        "rust",
        "apt",
        "--read",
        presets.folder.join("toolchain").to_str().unwrap(),
    ]);
    assert!(made.status.success(), "{made:?}");
    for (name, download) in [
        (
            "python",
            "python3 -m pip download --no-cache-dir --no-deps --retries 0 -d . six",
        ),
        (
            "node",
            "npm pack --cache ./cache --fetch-retries 0 is-number",
        ),
        ("rust", include_str!("../../../data/registries/rust.sh")),
        ("apt", include_str!("../../../data/registries/apt.sh")),
    ] {
        let file = presets
            .folder
            .join(format!("config/openshell/presets/{name}.yaml"))
            .display()
            .to_string();
        let lines = text(&made.stdout);
        let registry = lines
            .lines()
            .skip_while(|line| *line != file)
            .nth(1)
            .unwrap()
            .trim_start();
        let (host, _) = registry.split_once(':').unwrap();
        let passed = presets.run(name, download);
        assert!(passed.status.success(), "{name}: {passed:?}");
        let scheme = if name == "apt" { "http" } else { "https" };
        let upload =
            format!("curl -sS -o /dev/null -w '%{{http_code}}' -X PUT -d a=b {scheme}://{host}/x");
        let refused = presets.run(name, &upload);
        assert!(
            text(&refused.stdout) == "403"
                && text(&refused.stderr).contains("request_not_in_rules"),
            "{name}: {refused:?}"
        );
        let elsewhere = presets.run(name, "curl -sS https://web.test/");
        assert!(
            text(&elsewhere.stderr).contains("endpoint_not_in_policy"),
            "{name}: {elsewhere:?}"
        );
    }
    let again = presets.make(&["python"]);
    assert!(
        !again.status.success()
            && text(&again.stderr).contains("already exists; --replace writes it again"),
        "{again:?}"
    );
    let listed = text(&presets.command(&["presets"]).output().unwrap().stdout);
    for line in [
        "git-read     built in ",
        "rust         /var/tmp/",
        "java         presets make java ",
    ] {
        assert!(
            listed.lines().any(|listed| listed.starts_with(line)),
            "{line}: {listed}"
        );
    }
}

#[test]
fn a_preset_is_made_whole_or_not_at_all() {
    let presets = Presets::new("unmade");
    // Neither a client nor a registry is there.
    let bin = presets.folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["sh", "mktemp"] {
        std::os::unix::fs::symlink(format!("/usr/bin/{name}"), bin.join(name)).unwrap();
    }
    let readable = bin.display().to_string();
    let mut command = presets.command(&["presets", "make", "node", "--read", &readable]);
    let no_client = command.env("PATH", &bin).output().unwrap();
    assert!(
        text(&no_client.stderr).contains("npm: not found"),
        "{no_client:?}"
    );
    let mut command = presets.command(&["presets", "make", "python"]);
    let no_registry = command
        .env("PIP_INDEX_URL", "http://127.0.0.1:1/")
        .env("PIP_RETRIES", "0")
        .output()
        .unwrap();
    assert!(
        text(&no_registry.stderr).contains("127.0.0.1"),
        "{no_registry:?}"
    );
    for (failed, client) in [(no_client, "npm"), (no_registry, "pip or uv")] {
        let expected = format!("{client} downloaded nothing (exit status: ");
        assert!(
            failed.status.code() == Some(1) && text(&failed.stderr).contains(&expected),
            "{failed:?}"
        );
    }
    // A client reads nothing but its settings.
    let secret = presets.folder.join("secret");
    std::fs::write(&secret, "s3cret").unwrap();
    let curious = format!("#!/bin/sh\ncat {}\nexit 1\n", secret.display());
    std::fs::write(bin.join("npm"), curious).unwrap();
    std::fs::set_permissions(
        bin.join("npm"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let path = format!("{readable}:/usr/bin");
    let mut command = presets.command(&["presets", "make", "node", "--read", &readable]);
    let curious = command.env("PATH", path).output().unwrap();
    let printed = text(&curious.stderr);
    assert!(
        printed.contains("secret: Permission denied") && !printed.contains("s3cret"),
        "{curious:?}"
    );
    std::fs::remove_file(bin.join("npm")).unwrap();
    // One that is interrupted leaves nothing after the next ones; its client may outlive it briefly.
    let folder = presets.folder.join("config/openshell/presets");
    let mut interrupted = presets
        .command(&["presets", "make", "python"])
        .spawn()
        .unwrap();
    let scratch = folder.join(".1");
    lab::wait_until(
        || scratch.join("output").exists(),
        || "it does not begin".to_owned(),
    );
    interrupted.kill().unwrap();
    interrupted.wait().unwrap();
    assert!(scratch.exists());
    lab::wait_until(
        || {
            let next = presets
                .command(&["presets", "make", "node"])
                .env("PATH", &bin)
                .output()
                .unwrap();
            assert!(!next.status.success(), "{next:?}");
            !scratch.exists()
        },
        || "its folder stays".to_owned(),
    );
    let homeless = presets
        .command(&["presets", "make", "node"])
        .env_remove("XDG_CONFIG_HOME")
        .output()
        .unwrap();
    assert!(
        text(&homeless.stderr).contains("HOME is not set; --system makes presets for all users"),
        "{homeless:?}"
    );
    let unknown = presets.make(&["perl"]);
    assert!(
        text(&unknown.stderr).contains("only apt, go, java, node, python, rust"),
        "{unknown:?}"
    );
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Serves the folder `argv[1]`.
const MIRROR: &str = "
import functools, http.server, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])
server = http.server.ThreadingHTTPServer(('10.99.0.1', 8080), handler)
print('ready', flush=True)
server.serve_forever()
";

#[test]
fn presets_of_go_and_java_follow_the_mirrors_that_their_clients_are_set_to() {
    let lab = lab::Lab::with_web();
    let served = lab.folder("served");
    let path = served.to_str().unwrap();
    let module = "import zipfile; z = zipfile.ZipFile('v1.5.2.zip', 'w'); \
                  [z.writestr('rsc.io/quote@v1.5.2/' + name, text) for name, text in [('go.mod', \
                  'module rsc.io/quote\\n'), ('quote.go', 'package quote\\n')]]";
    let settings = "<settings><mirrors><mirror><id>m</id><mirrorOf>*</mirrorOf><url>http://web.test:8080/</url></mirror></mirrors></settings>";
    let pom = "<project><modelVersion>4.0.0</modelVersion><groupId>org.apache</groupId><artifactId>apache</artifactId><version>31</version><packaging>pom</packaging></project>";
    let made = lab.shell(&format!(
        "cd {path} && mkdir -p rsc.io/quote/@v org/apache/apache/31 && cd rsc.io/quote/@v && echo \
         '{{\"Version\": \"v1.5.2\"}}' > v1.5.2.info && echo 'module rsc.io/quote' > v1.5.2.mod && \
         python3 -c \"{module}\" && cd {path}/org/apache/apache/31 && echo '{pom}' > apache-31.pom \
         && cd {path} && echo '{settings}' > settings.xml && chmod -R a+rX . && mount --bind \
         settings.xml /etc/maven/settings.xml"
    ));
    assert_eq!(made, "");
    let _mirror = lab.program(&["/usr/bin/python3", "-c", MIRROR, path]);
    let config = lab.folder("config");
    let run = |words: &[&str]| {
        let mut command = lab.command();
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("XDG_CONFIG_HOME", &config)
            .current_dir("/tmp");
        command
            .env("GOPROXY", "http://web.test:8080")
            .env("GONOSUMDB", "*")
            .args(words);
        lab.inside(move || command.output().unwrap())
    };
    let made = run(&["presets", "make", "go", "java"]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(
        text(&made.stdout)
            .matches(".yaml\n  web.test:8080 at the internal address 10.99.0.1\n")
            .count(),
        2,
        "{made:?}"
    );
    for (name, download) in [
        ("go", include_str!("../../../data/registries/go.sh")),
        ("java", include_str!("../../../data/registries/java.sh")),
    ] {
        let folder = lab.folder(name).display().to_string();
        assert_eq!(lab.shell(&format!("chmod 777 {folder}")), "");
        let passed = run(&[
            "--preset",
            name,
            "--workdir",
            &folder,
            "--",
            "sh",
            "-c",
            download,
        ]);
        assert!(passed.status.success(), "{name}: {passed:?}");
        let upload = "curl -sS -o /dev/null -w '%{http_code}' -X PUT -d a=b http://web.test:8080/x";
        let refused = run(&[
            "--preset",
            name,
            "--workdir",
            &folder,
            "--",
            "sh",
            "-c",
            upload,
        ]);
        assert_eq!(text(&refused.stdout), "403", "{name}: {refused:?}");
    }
}

/// Serves the folder `argv[1]` at web.test:443, and reports it.
const HTTPS: &str = "
import functools, http.server, ssl, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])
server = http.server.ThreadingHTTPServer(('10.99.0.1', 443), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1] + '/cert.pem', sys.argv[1] + '/key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
print('ready', flush=True)
server.serve_forever()
";

#[test]
fn git_clones_what_its_policy_gives_and_is_told_why_not() {
    let lab = lab::Lab::with_web();
    let folder = lab.folder("served");
    let path = folder.to_str().unwrap();
    let made = lab.shell(&format!(
        "cd {path} && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 \
         -subj /CN=web.test -addext subjectAltName=DNS:web.test -addext \
         basicConstraints=critical,CA:FALSE -keyout key.pem -out cert.pem 2>/dev/null && git init \
         -q work && cd work && git -c user.name=t -c user.email=t@lab.test commit -q --allow-empty \
         -m first && cd .. && git clone -q --bare work repo.git && git -C repo.git \
         update-server-info && chmod -R a+rX ."
    ));
    let made = made
        + &lab.shell(&format!(
            "mount -t tmpfs lab /etc/ssl && cp {path}/cert.pem /etc/ssl/lab.pem && chmod a+r \
             /etc/ssl/lab.pem"
        ));
    assert!(
        !made.contains("fatal") && !made.contains("cannot"),
        "{made}"
    );
    let _server = lab.program(&["/usr/bin/python3", "-c", HTTPS, path]);
    let git = "git clone -q https://web.test/repo.git /tmp/e2e-git-clone && \
               git -C /tmp/e2e-git-clone log --format=%s && rm -rf /tmp/e2e-git-clone";
    let remote = lab
        .shell("readlink -f $(git --exec-path)/git-remote-https")
        .trim()
        .to_owned();
    let policy = |binary: &str| {
        let endpoint = "{host: web.test, port: 443, allowed_ips: [10.99.0.1]}";
        super::policy(&format!(
            "{{web: {{endpoints: [{endpoint}], binaries: [{{path: {binary}}}]}}}}"
        ))
    };
    let distrusted = lab.sandbox(&policy(&remote)).sh(git);
    assert!(
        distrusted.stderr.contains("502") && distrusted.code() != 0,
        "{distrusted:?}"
    );
    let permitted = lab
        .sandbox(&policy(&remote))
        .args(&["--upstream-ca-file", "/etc/ssl/lab.pem"])
        .sh(git);
    assert_eq!(permitted.ok(), "first");
    let refused = lab.sandbox(&policy("/usr/bin/curl")).sh(git);
    assert!(
        refused.stderr.contains("response 403") && refused.code() != 0,
        "{refused:?}"
    );
    assert_eq!(
        refused.logged("[code:binary_not_in_policy]").len(),
        1,
        "{}",
        refused.log
    );
}
