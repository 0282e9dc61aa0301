//! Makes the workload's environment: the caller's variables except reserved and dangerous ones, and
//! then those that the sandbox sets.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use openshell_policy::secret::Secret;
use openshell_policy::variable;

use crate::files::landlock::Request;
use crate::identity::run_as::{ProcessIdentity, User};

/// A set of environment variables in no particular order. Each name is there once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// Builds an environment. If a name has several values, the last one counts.
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut environment = Self::default();
        for (name, value) in variables {
            environment.set(name, value);
        }
        environment
    }

    /// Returns the value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_os_str())
    }

    /// Removes `name` and returns its value.
    pub fn take(&mut self, name: &str) -> Option<OsString> {
        let index = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(index).1)
    }

    /// Removes `name` and wipes its value, because that may be a secret.
    pub fn discard(&mut self, name: &OsStr) {
        if let Some(index) = self.0.iter().position(|(known, _)| known == name) {
            drop(Secret::new(self.0.swap_remove(index).1.into_vec()));
        }
    }

    /// Returns only the variables that `--clear-env` keeps: language, terminal, time zone.
    #[must_use]
    pub fn cleared(self) -> Self {
        let is_kept = |name: &OsStr| {
            let known = ["LANG", "TERM", "TZ"].iter().any(|known| name == *known);
            known || name.as_bytes().starts_with(b"LC_")
        };
        Self(
            self.0
                .into_iter()
                .filter(|(name, _)| is_kept(name))
                .collect(),
        )
    }

    /// Iterates over all variables.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        let name = name.into();
        self.0.retain(|(known, _)| *known != name);
        self.0.push((name, value.into()));
    }
}

/// The inputs of the workload's environment.
pub struct Inputs<'i> {
    /// The supervisor's own variables, already reduced under `--clear-env`.
    pub caller: &'i Environment,
    /// The names of credentials with their placeholders.
    pub placeholders: &'i [(String, String)],
    /// The workload's user.
    pub user: &'i User,
    /// The user's home directory in the sandbox, as returned by [`home`].
    pub home: &'i Path,
    /// A function that returns true if the policy and Unix permissions allow temporary files in a
    /// folder.
    pub is_scratch: &'i dyn Fn(&Path) -> bool,
    /// The host name of the machine.
    pub host_name: &'i str,
    /// The address of the proxy, if there is one.
    pub proxy: Option<SocketAddr>,
    /// The folder of the trust files that hold the sandbox's certificate authority, if there is
    /// one.
    pub trust: Option<&'i Path>,
    /// True if the trust files include a Java trust store.
    pub has_java: bool,
}

/// The trust file with only the certificate of the sandbox's authority (PEM).
pub const AUTHORITY_FILE: &str = "openshell-ca.pem";
/// The trust file with all trusted certificates (PEM).
pub const BUNDLE_FILE: &str = "ca-bundle.pem";
/// The trust store with all trusted certificates for Java (JKS).
pub const JAVA_STORE_FILE: &str = "truststore.jks";

/// Computes the environment of every command in the sandbox.
#[must_use]
pub fn workload(inputs: &Inputs<'_>) -> Environment {
    let kept = inputs.caller.iter().filter(|(name, _)| !is_removed(name));
    let mut environment =
        Environment::new(kept.map(|(name, value)| (name.to_owned(), value.to_owned())));
    for (name, placeholder) in inputs.placeholders {
        environment.set(name, placeholder);
    }
    environment.set("HOME", inputs.home);
    environment.set("USER", &inputs.user.name);
    environment.set("LOGNAME", &inputs.user.name);
    environment.set("SHELL", shell(inputs.user));
    if environment.get("PATH").is_none() {
        environment.set("PATH", DEFAULT_PATH);
    }
    environment.set("OPENSHELL_SANDBOX", "1");
    set_scratch(&mut environment, inputs);
    // Programs connect to their own host by name, and its servers are inside. Text that is not a
    // host name is left out, because it could add further entries.
    let is_name = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
    };
    let host_name = Some(inputs.host_name).filter(|name| !name.is_empty() && is_name(name));
    if let Some(proxy) = inputs.proxy {
        let url = format!("http://{proxy}");
        for name in PROXY_VARIABLES {
            environment.set(name, &url);
        }
        let own = host_name.map(|name| format!(",{name}")).unwrap_or_default();
        for name in ["NO_PROXY", "no_proxy"] {
            environment.set(name, format!("{OWN_HOSTS}{own}"));
        }
        // Without this variable, fetch in Node.js connects directly, which is refused.
        environment.set("NODE_USE_ENV_PROXY", "1");
    }
    if let Some(folder) = inputs.trust {
        set_trust(&mut environment, inputs, folder, host_name);
    }
    environment
}

/// Has programs trust the sandbox's certificates, which are in `folder`.
fn set_trust(
    environment: &mut Environment,
    inputs: &Inputs<'_>,
    folder: &Path,
    host_name: Option<&str>,
) {
    for name in variable::BUNDLE {
        environment.set(name, folder.join(BUNDLE_FILE));
    }
    for name in variable::AUTHORITY {
        environment.set(name, folder.join(AUTHORITY_FILE));
    }
    // Java prints a line about this variable. Whoever does not want that can set the variable
    // to an empty value.
    let is_left_out = environment
        .get("JAVA_TOOL_OPTIONS")
        .is_some_and(OsStr::is_empty);
    if is_left_out {
        drop(environment.take("JAVA_TOOL_OPTIONS"));
    } else if let Some(proxy) = inputs.proxy
        && inputs.has_java
    {
        let options = java_options(
            environment.get("JAVA_TOOL_OPTIONS"),
            folder,
            proxy,
            host_name,
        );
        environment.set("JAVA_TOOL_OPTIONS", options);
    }
}

/// Sets `TMPDIR`. It keeps the caller's value if that folder is usable inside. If it is not, the
/// variable is unset if /tmp is usable, and is the home directory if not.
fn set_scratch(environment: &mut Environment, inputs: &Inputs<'_>) {
    let is_scratch = inputs.is_scratch;
    if environment
        .get("TMPDIR")
        .is_some_and(|folder| is_scratch(Path::new(folder)))
    {
        return;
    }
    drop(environment.take("TMPDIR"));
    if !is_scratch(Path::new("/tmp")) {
        environment.set("TMPDIR", inputs.home);
    }
}

/// Returns the options for a Java virtual machine, which reads no other variable for them: the
/// proxy and the trust store, appended to the caller's own options (JVM Tool Interface,
/// `JAVA_TOOL_OPTIONS`).
fn java_options(
    before: Option<&OsStr>,
    folder: &Path,
    proxy: SocketAddr,
    host_name: Option<&str>,
) -> OsString {
    let mut options = before.map(OsStr::to_owned).unwrap_or_default();
    let host = proxy.ip();
    let port = proxy.port();
    let own = host_name.map(|name| format!("|{name}")).unwrap_or_default();
    let ours = [
        format!(
            "-Djavax.net.ssl.trustStore={}",
            folder.join(JAVA_STORE_FILE).display()
        ),
        "-Djavax.net.ssl.trustStoreType=JKS".to_owned(),
        "-Djavax.net.ssl.trustStorePassword=changeit".to_owned(),
        format!("-Dhttp.proxyHost={host}"),
        format!("-Dhttp.proxyPort={port}"),
        format!("-Dhttps.proxyHost={host}"),
        format!("-Dhttps.proxyPort={port}"),
        format!("-Dhttp.nonProxyHosts=localhost|*.localhost|127.*|0.0.0.0|[::1]|[::]{own}"),
    ];
    for option in ours {
        if !options.is_empty() {
            options.push(" ");
        }
        options.push(option);
    }
    options
}

/// Chooses the home directory of `user` under the rights of `landlock`. This is the user's own if
/// it is granted or the policy lists a path beneath it, or else `/sandbox` if it is granted for
/// writing. Returns `None` if neither is private to the user, and the sandbox then gets a home of
/// its own: in a shared one, other users' files would decide how programs behave that read settings
/// there.
#[must_use]
pub fn home(user: &User, landlock: &Request) -> Option<PathBuf> {
    let is_own = |path: &&Path| is_private_to(path, &user.identity);
    let is_granted = |path: &&Path| {
        landlock.grants_reading(path) && landlock.shows(path) || landlock.lists_beneath(path)
    };
    let is_writable = |path: &&Path| landlock.grants_writing(path);
    let own = user.home.as_deref().filter(is_granted).filter(is_own);
    own.or_else(|| {
        Some(Path::new("/sandbox"))
            .filter(is_writable)
            .filter(is_own)
    })
    .map(Path::to_owned)
}

/// Returns true if `path` is a directory that belongs to the user, that only this user can write
/// to, and that is reached without a symlink. The target of a symlink could change, while the file
/// rules hold for the path as written.
fn is_private_to(path: &Path, identity: &ProcessIdentity) -> bool {
    let is_direct = std::fs::canonicalize(path).is_ok_and(|real| real == path);
    let is_private = |data: Metadata| data.uid() == identity.uid && data.mode() & 0o022 == 0;
    is_direct && std::fs::symlink_metadata(path).is_ok_and(is_private) && identity.may_write(path)
}

/// The value of `PATH` if the caller sets none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const PROXY_VARIABLES: &[&str] = &[
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "grpc_proxy",
];

/// The names and addresses of the sandbox itself, for which no program should ask the proxy. Each
/// is listed because some clients do not understand ranges (Python's urllib, Node) or names below a
/// name (Node). IPv6 addresses in brackets, which urllib needs, are left out because they make
/// Python's httpx fail.
const OWN_HOSTS: &str =
    "127.0.0.1,localhost,::1,.localhost,127.0.0.0/8,127.0.0.2,127.0.1.1,0.0.0.0,::";

/// Variables that lead to services of the caller's session, or describe the state of its shell.
const SESSION_VARIABLES: &[&str] = &[
    "XDG_RUNTIME_DIR",
    "SSH_AUTH_SOCK",
    "PWD",
    "OLDPWD",
    "_",
    "SSL_CERT_DIR",
];

/// The prefixes of variables that are removed: those of the supervisor, the dynamic loader, sudo
/// and the message bus.
const PREFIXES: &[&str] = &["OPENSHELL_", "LD_", "SUDO_", "DBUS_"];

/// Returns the certificate files that `caller` names to its programs, each with its variable. The
/// third value is true if the certificates are trusted in addition to a program's own, and false if
/// they replace them.
pub fn named_certificates(
    caller: &Environment,
) -> impl Iterator<Item = (&'static str, &Path, bool)> {
    let variables = variable::BUNDLE.iter().map(|name| (*name, false));
    let variables = variables.chain(variable::AUTHORITY.iter().map(|name| (*name, true)));
    variables.filter_map(|(name, is_besides)| {
        let value = caller.get(name).filter(|value| !value.is_empty())?;
        Some((name, Path::new(value), is_besides))
    })
}

/// Returns true if the sandbox itself sets or removes the workload's variable `name`.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    const SET: &[&str] = &[
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PATH",
        "NODE_USE_ENV_PROXY",
        "JAVA_TOOL_OPTIONS",
    ];
    SET.contains(&name) || is_removed(OsStr::new(name))
}

fn is_removed(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    bytes.to_ascii_lowercase().ends_with(b"_proxy")
        || PREFIXES
            .iter()
            .any(|prefix| bytes.starts_with(prefix.as_bytes()))
        || [variable::BUNDLE, variable::AUTHORITY, SESSION_VARIABLES]
            .concat()
            .iter()
            .any(|listed| bytes == listed.as_bytes())
}

fn shell(user: &User) -> &Path {
    let usable = |shell: &&Path| !shell.ends_with("nologin") && !shell.ends_with("false");
    user.shell
        .as_deref()
        .filter(usable)
        .unwrap_or(Path::new("/bin/sh"))
}

#[cfg(test)]
mod tests {
    use super::{Environment, Inputs, OWN_HOSTS, home as home_of, workload};
    use crate::files::landlock::Request;
    use crate::identity::run_as::{ProcessIdentity, User};
    use openshell_policy::filesystem::{Filesystem, GrantedPath};
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    fn user() -> User {
        let identity = ProcessIdentity {
            uid: 900,
            gid: 900,
            groups: vec![900],
            is_callers: false,
        };
        let shell = Some(PathBuf::from("/usr/sbin/nologin"));
        User {
            identity,
            name: "sandbox".to_owned(),
            home: Some(PathBuf::from("/")),
            shell,
        }
    }

    fn computed(caller: &[(&str, &str)]) -> Environment {
        let caller = Environment::new(
            caller
                .iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        let proxy = Some(([10, 200, 0, 1], 3128).into());
        let home = Path::new("/sandbox");
        let trust = Some(Path::new("/etc/openshell-tls"));
        workload(&Inputs {
            caller: &caller,
            placeholders: &[("KEY".to_owned(), "for it".to_owned())],
            user: &user(),
            home,
            is_scratch: &|folder| folder != Path::new("/elsewhere"),
            host_name: "box-1",
            proxy,
            trust,
            has_java: true,
        })
    }

    // Conformance: TLS-01.
    #[test]
    fn every_programs_variable_names_what_it_should_trust() {
        let environment = computed(&[
            ("JAVA_TOOL_OPTIONS", "-Xmx1g"),
            ("SSL_CERT_FILE", "/elsewhere"),
            ("DENO_CERT", "/x"),
        ]);
        let value = |name| {
            environment
                .get(name)
                .and_then(|value| value.to_str())
                .unwrap()
        };
        for name in [
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "GIT_SSL_CAINFO",
            "PIP_CERT",
        ] {
            assert_eq!(value(name), "/etc/openshell-tls/ca-bundle.pem", "{name}");
        }
        for name in ["NODE_EXTRA_CA_CERTS", "DENO_CERT"] {
            assert_eq!(value(name), "/etc/openshell-tls/openshell-ca.pem", "{name}");
        }
        let java = value("JAVA_TOOL_OPTIONS");
        assert!(
            java.starts_with(
                "-Xmx1g -Djavax.net.ssl.trustStore=/etc/openshell-tls/truststore.jks "
            ),
            "{java}"
        );
        assert!(
            java.contains(" -Dhttps.proxyHost=10.200.0.1 -Dhttps.proxyPort=3128"),
            "{java}"
        );
        assert_eq!(
            computed(&[("JAVA_TOOL_OPTIONS", "")]).get("JAVA_TOOL_OPTIONS"),
            None
        );
    }

    #[test]
    fn nothing_of_the_supervisor_or_its_session_is_left() {
        let removed = [
            "OPENSHELL_SSH_HANDSHAKE_SECRET",
            "OPENSHELL_ENDPOINT",
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "SUDO_USER",
            "SSH_AUTH_SOCK",
            "XDG_RUNTIME_DIR",
            "DBUS_SESSION_BUS_ADDRESS",
            "SSL_CERT_DIR",
            "FTP_PROXY",
            "Ws_Proxy",
        ];
        let caller: Vec<_> = removed.iter().map(|name| (*name, "x")).collect();
        let environment = computed(&caller);
        for name in removed {
            assert_eq!(environment.get(name), None, "{name}");
        }
    }

    // Conformance: PRV-06, NET-04, NET-09.
    #[test]
    fn the_sandbox_and_its_proxy_are_named() {
        let environment = computed(&[
            ("NO_PROXY", "*"),
            ("HTTPS_PROXY", "http://elsewhere:1"),
            ("LANG", "C"),
        ]);
        for name in [
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "http_proxy",
            "https_proxy",
            "grpc_proxy",
        ] {
            assert_eq!(
                environment.get(name).and_then(|value| value.to_str()),
                Some("http://10.200.0.1:3128"),
                "{name}"
            );
        }
        let value = |name| environment.get(name).and_then(|value| value.to_str());
        assert_eq!(value("NODE_USE_ENV_PROXY"), Some("1"));
        assert_eq!(value("NO_PROXY"), Some(&*format!("{OWN_HOSTS},box-1")));
        assert_eq!(value("OPENSHELL_SANDBOX"), Some("1"));
        assert_eq!(value("LANG"), Some("C"));
        assert_eq!(value("KEY"), Some("for it"));
        assert_eq!(value("USER"), Some("sandbox"));
        assert_eq!(value("SHELL"), Some("/bin/sh"), "nologin is no shell");
    }

    #[test]
    fn a_cleared_environment_keeps_language_terminal_and_time_zone() {
        let names = [
            "LANG", "LC_ALL", "LC_TIME", "TERM", "TZ", "EDITOR", "LCX", "TERMCAP",
        ];
        let cleared = Environment::new(names.map(|name| (name.into(), "x".into()))).cleared();
        let kept: Vec<_> = cleared.iter().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(kept, ["LANG", "LC_ALL", "LC_TIME", "TERM", "TZ"]);
    }

    #[test]
    fn temporary_files_have_a_place_that_can_be_written() {
        let scratch = |caller: &[(&str, &str)], usable: &'static str| {
            let caller = Environment::new(
                caller
                    .iter()
                    .map(|(name, value)| (name.into(), value.into())),
            );
            let environment = workload(&Inputs {
                caller: &caller,
                placeholders: &[],
                user: &user(),
                home: Path::new("/home/x"),
                is_scratch: &|folder| folder == Path::new(usable),
                host_name: "a,b",
                proxy: Some(([10, 200, 0, 1], 3128).into()),
                trust: None,
                has_java: false,
            });
            assert_eq!(
                environment.get("NO_PROXY").unwrap(),
                OWN_HOSTS,
                "what is no host name is left out"
            );
            environment
                .get("TMPDIR")
                .map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(scratch(&[], "/tmp"), None);
        assert_eq!(
            scratch(&[("TMPDIR", "/granted")], "/granted").as_deref(),
            Some("/granted")
        );
        assert_eq!(
            scratch(&[("TMPDIR", "/elsewhere")], "/tmp"),
            None,
            "the caller's is out of sight"
        );
        assert_eq!(
            scratch(&[], "").as_deref(),
            Some("/home/x"),
            "there is no /tmp"
        );
    }

    #[test]
    fn the_home_that_sandboxes_would_share_is_granted_where_it_is_listed_alone() {
        let listing = |path: &str| {
            let read_write = vec![GrantedPath::parse(path).unwrap()];
            Request::new(
                &Filesystem {
                    read_write,
                    ..Filesystem::default()
                },
                None,
            )
            .without_shared_home()
        };
        for (listed, is_granted) in [("/opt", false), ("/sandbox", true), ("/", true)] {
            assert_eq!(
                listing(listed).grants_writing(Path::new("/sandbox")),
                is_granted,
                "{listed}"
            );
        }
    }

    #[test]
    fn home_is_the_users_where_it_can_be_used_and_never_a_folder_of_everybodys() {
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir_in("/var")
            .unwrap();
        let path = folder.path().to_owned();
        let request = |read_write: &[&Path]| {
            let listed = |path: &&Path| GrantedPath::parse(path.to_str().unwrap()).unwrap();
            let filesystem = Filesystem {
                read_write: read_write.iter().map(listed).collect(),
                ..Filesystem::default()
            };
            Request::new(&filesystem, None).without("/sandbox")
        };
        let chosen = |home: &Path, read_write: &[&Path]| {
            home_of(
                &User {
                    home: Some(home.to_owned()),
                    ..user()
                },
                &request(read_write),
            )
        };
        let own = path.join("own");
        std::fs::create_dir_all(own.join("part")).unwrap();
        assert_eq!(chosen(&own, &[]), None, "it is not granted");
        assert_eq!(
            chosen(&own, &[&path]),
            None,
            "it is granted with others, and the user cannot write to it"
        );
        assert_eq!(
            chosen(&own, &[&own.join("part")]),
            None,
            "a part of it is granted, and the user cannot write to it"
        );
        std::os::unix::fs::chown(&own, Some(900), None).unwrap();
        assert_eq!(chosen(&own, &[&path]), Some(own.clone()));
        assert_eq!(chosen(&own, &[&own]), Some(own.clone()));
        assert_eq!(
            chosen(&own, &[&own.join("part")]),
            Some(own.clone()),
            "a part of it is granted"
        );
        std::fs::set_permissions(&own, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(chosen(&own, &[&own]), None, "its user may not enter it");
        assert_eq!(
            chosen(Path::new("/"), &[&own]),
            None,
            "everything lies beneath the root"
        );
        assert_eq!(
            chosen(Path::new("/usr/sbin"), &[]),
            None,
            "a daemon's is a folder of programs"
        );
        assert_eq!(chosen(Path::new("/nonexistent"), &[]), None);
        assert_eq!(
            chosen(Path::new("/tmp"), &[Path::new("/tmp")]),
            None,
            "everybody's"
        );
        assert_eq!(chosen(Path::new("/dev/shm"), &[]), None, "everybody's");
    }

    #[test]
    fn a_home_that_others_may_write_to_or_that_a_symlink_leads_to_is_not_used() {
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir_in("/var")
            .unwrap();
        let folder = folder.path();
        let listed = GrantedPath::parse(folder.to_str().unwrap()).unwrap();
        let request = Request::new(
            &Filesystem {
                read_write: vec![listed],
                ..Filesystem::default()
            },
            None,
        );
        let request = request.without("/sandbox");
        let chosen = |home: &Path| {
            home_of(
                &User {
                    home: Some(home.to_owned()),
                    ..user()
                },
                &request,
            )
            .is_some()
        };
        let owned = |name: &str, owner: u32, mode: u32| {
            let path = folder.join(name);
            std::fs::create_dir(&path).unwrap();
            std::os::unix::fs::chown(&path, Some(owner), Some(900)).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path
        };
        let own = owned("own", 900, 0o755);
        assert!(chosen(&own) && chosen(&owned("private", 900, 0o700)));
        assert!(
            !chosen(&owned("group", 900, 0o770)),
            "its group may write to it"
        );
        assert!(
            !chosen(&owned("others", 900, 0o707)),
            "all others may write to it"
        );
        assert!(!chosen(&owned("sticky", 900, 0o1777)));
        assert!(
            !chosen(&owned("another", 901, 0o777)),
            "it is another user's"
        );
        assert!(
            !chosen(&owned("root", 0, 0o775)),
            "the user may write to it as one of its group"
        );
        assert!(
            !chosen(&owned("closed", 900, 0o555)),
            "the user may not write to it"
        );
        let link = folder.join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        std::fs::create_dir(own.join("inner")).unwrap();
        std::os::unix::fs::chown(own.join("inner"), Some(900), None).unwrap();
        assert!(
            chosen(&own.join("inner")) && !chosen(&link) && !chosen(&link.join("inner")),
            "a symlink on the way"
        );
    }
}
