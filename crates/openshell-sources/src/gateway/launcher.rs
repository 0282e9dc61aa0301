//! The settings that the launcher of a gateway's sandbox puts in the supervisor's environment.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use openshell_gateway::channel::{Address, CertificateSource, Certificates};
use openshell_gateway::client::Names;
use openshell_gateway::token::TokenSource;
use openshell_policy::process::{Identity, RunAs};
use openshell_policy::secret::Secret;
use openshell_policy::variable;
use openshell_supervisor::command::environment::Environment;
use serde::Deserialize;
use tracing::Level;

use crate::gateway::start::Options;

/// The settings of a launcher.
#[derive(Debug)]
pub struct Launched {
    /// How to reach the gateway.
    pub options: Options,
    /// User and group if the policy names none.
    pub run_as: RunAs,
    /// Variables that the user asked for.
    pub variables: Vec<(String, String)>,
    /// The command if no words are given.
    pub main_process: Option<MainProcess>,
    /// The most verbose level of the log lines that the gateway gets.
    pub push_level: Level,
    /// Warnings about variables that were not taken as they are.
    pub warnings: Vec<String>,
}

/// A sandbox of a gateway, and the gateway's address.
#[derive(Clone, Debug)]
pub struct Place {
    /// The gateway's URL.
    pub endpoint: String,
    /// The sandbox's id at the gateway.
    pub id: String,
    /// The sandbox's name, if it has one.
    pub name: Option<String>,
}

impl Launched {
    /// Takes the launcher's variables out of `environment`.
    ///
    /// # Errors
    /// Fails if a variable is invalid, or names a file that cannot be read.
    pub fn read(place: Place, environment: &mut Environment) -> anyhow::Result<Self> {
        let mut variables = Variables {
            environment,
            warnings: Vec::new(),
        };
        check_process_limit(&mut variables)?;
        let certificates = certificates(&mut variables)?;
        let token = token(&mut variables)?;
        let address = Address {
            endpoint: place.endpoint,
            server_name: variables.text("OPENSHELL_GATEWAY_TLS_SERVER_NAME")?,
            certificates,
        };
        let names = Names {
            name: place.name.unwrap_or_else(|| place.id.clone()),
            id: place.id,
        };
        let options = Options {
            address,
            names,
            token,
            poll: variables.interval("OPENSHELL_POLICY_POLL_INTERVAL_SECS", 10),
            route_refresh: variables.interval("OPENSHELL_ROUTE_REFRESH_INTERVAL_SECS", 5),
            denials_every: variables.interval("OPENSHELL_DENIAL_FLUSH_INTERVAL_SECS", 10),
            activity_every: variables.interval("OPENSHELL_ACTIVITY_FLUSH_INTERVAL_SECS", 10),
        };
        let push_level = variables.value("OPENSHELL_LOG_PUSH_LEVEL").map(|level| {
            level
                .to_str()
                .and_then(|level| level.parse().ok())
                .unwrap_or_else(|| {
                    variables.warnings.push(
                        "OPENSHELL_LOG_PUSH_LEVEL is not a log level; info is used".to_owned(),
                    );
                    Level::INFO
                })
        });
        Ok(Self {
            options,
            run_as: run_as(&mut variables)?,
            main_process: main_process(&mut variables)?,
            variables: user_environment(&mut variables)?,
            push_level: push_level.unwrap_or(Level::INFO),
            warnings: variables.warnings,
        })
    }
}

/// Returns the files with secrets that a launcher has named, whether or not they are used.
pub fn secret_files(environment: &Environment) -> Vec<(&'static str, PathBuf)> {
    let named = [
        (
            "key for the gateway (OPENSHELL_TLS_KEY)",
            "OPENSHELL_TLS_KEY",
        ),
        ("token for the gateway", "OPENSHELL_SANDBOX_TOKEN_FILE"),
        ("token for the gateway", "OPENSHELL_K8S_SA_TOKEN_FILE"),
    ];
    let path = |name| {
        environment
            .get(name)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    };
    named
        .into_iter()
        .filter_map(|(what, name)| Some((what, of_volume(path(name)?))))
        .collect()
}

/// Returns the folder of `file` if that is in a volume that Kubernetes writes, otherwise `file`.
/// Kubernetes replaces all files of a volume at once through a symlink (`..data`), so a cover over
/// one file would be lost.
fn of_volume(file: PathBuf) -> PathBuf {
    match file.parent() {
        Some(folder) if folder.join("..data").is_symlink() => folder.to_owned(),
        _ => file,
    }
}

/// The variables of a launcher. An empty variable counts as unset.
struct Variables<'e> {
    environment: &'e mut Environment,
    warnings: Vec<String>,
}

impl Variables<'_> {
    fn value(&mut self, name: &str) -> Option<OsString> {
        self.environment
            .take(name)
            .filter(|value| !value.is_empty())
    }

    fn text(&mut self, name: &str) -> anyhow::Result<Option<String>> {
        self.value(name)
            .map(|value| {
                value
                    .into_string()
                    .map_err(|_| anyhow!("{name} is not UTF-8"))
            })
            .transpose()
    }

    /// Returns the seconds in a variable, if they are from 1 to 86400; otherwise `default`.
    fn interval(&mut self, name: &str, default: u64) -> Duration {
        let Some(value) = self.value(name) else {
            return Duration::from_secs(default);
        };
        let seconds = value
            .to_str()
            .and_then(|text| text.trim().parse().ok())
            .filter(|seconds| (1..=86_400).contains(seconds));
        if seconds.is_none() {
            self.warnings.push(format!(
                "{name} is not a number of seconds from 1 to 86400; {default} is used"
            ));
        }
        Duration::from_secs(seconds.unwrap_or(default))
    }
}

/// Checks that processes are limited, if the launcher requires that.
fn check_process_limit(variables: &mut Variables<'_>) -> anyhow::Result<()> {
    const NAME: &str = "OPENSHELL_REQUIRE_RUNTIME_PID_LIMIT";
    let wanted = variables.text(NAME)?.unwrap_or_default();
    if !matches!(wanted.as_str(), "1" | "true" | "TRUE" | "True") || has_process_limit() {
        return Ok(());
    }
    bail!(
        "{NAME} is set, but no cgroup of this process limits processes (pids.max); start the \
         container with a limit"
    )
}

/// Returns true if the cgroup of this process, or a visible one above it, limits processes
/// (cgroups(7)).
fn has_process_limit() -> bool {
    let Ok(groups) = std::fs::read_to_string("/proc/self/cgroup") else {
        return false;
    };
    let own = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap_or("/");
    let root = Path::new("/sys/fs/cgroup");
    let is_limited = |group: &Path| {
        std::fs::read_to_string(group.join("pids.max"))
            .is_ok_and(|limit| limit.trim().parse::<u64>().is_ok())
    };
    root.join(own.trim_start_matches('/'))
        .ancestors()
        .take_while(|group| group.starts_with(root))
        .any(is_limited)
}

/// The files of mutual TLS, which are read for each connection.
#[derive(Debug)]
struct CertificateFiles {
    authority: PathBuf,
    chain: PathBuf,
    key: PathBuf,
}

impl CertificateSource for CertificateFiles {
    fn read(&self) -> io::Result<Certificates> {
        Ok(Certificates {
            authority: read(&self.authority)?,
            chain: read(&self.chain)?,
            key: Secret::new(read(&self.key)?),
        })
    }
}

/// The size in bytes of the largest certificate, key or token file.
const FILE_BYTES: u64 = 1024 * 1024;

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let data = std::fs::metadata(path).map_err(named)?;
    if !data.is_file() || data.len() > FILE_BYTES {
        return Err(io::Error::other(format!(
            "{} is not a regular file of at most 1 MiB",
            path.display()
        )));
    }
    std::fs::read(path).map_err(named)
}

fn certificates(
    variables: &mut Variables<'_>,
) -> anyhow::Result<Option<Arc<dyn CertificateSource>>> {
    const NAMES: [&str; 3] = [
        "OPENSHELL_TLS_CA",
        "OPENSHELL_TLS_CERT",
        "OPENSHELL_TLS_KEY",
    ];
    let files = NAMES.map(|name| variables.value(name).map(PathBuf::from));
    let [authority, chain, key] = match files {
        [None, None, None] => return Ok(None),
        [Some(authority), Some(chain), Some(key)] => [authority, chain, key],
        _ => bail!(
            "{} must be set together; set all or none of them",
            NAMES.join(", ")
        ),
    };
    let files = CertificateFiles {
        authority,
        chain,
        key,
    };
    drop(
        files
            .read()
            .context("cannot read the files for mutual TLS with the gateway")?,
    );
    Ok(Some(Arc::new(files)))
}

/// A token in a variable.
#[derive(Debug)]
struct TokenValue(Secret);

impl TokenSource for TokenValue {
    fn read(&self) -> io::Result<Secret> {
        Ok(Secret::new(self.0.expose().to_vec()))
    }

    fn is_exchanged(&self) -> bool {
        false
    }
}

/// A token in a file, which may rotate.
#[derive(Debug)]
struct TokenFile {
    path: PathBuf,
    is_exchanged: bool,
}

impl TokenSource for TokenFile {
    fn read(&self) -> io::Result<Secret> {
        let token = zeroize::Zeroizing::new(read(&self.path)?);
        match token.trim_ascii() {
            [] => Err(io::Error::other(format!(
                "{} is empty",
                self.path.display()
            ))),
            token => Ok(Secret::new(token.to_vec())),
        }
    }

    fn is_exchanged(&self) -> bool {
        self.is_exchanged
    }
}

fn token(variables: &mut Variables<'_>) -> anyhow::Result<Option<Box<dyn TokenSource>>> {
    let value = variables.environment.take("OPENSHELL_SANDBOX_TOKEN");
    let files = [
        ("OPENSHELL_SANDBOX_TOKEN_FILE", false),
        ("OPENSHELL_K8S_SA_TOKEN_FILE", true),
    ]
    .map(|(name, is_exchanged)| variables.value(name).map(|path| (path, is_exchanged)));
    if let Some(value) = value {
        if value.is_empty() {
            bail!("OPENSHELL_SANDBOX_TOKEN is empty; set it to a token, or unset it");
        }
        return Ok(Some(Box::new(TokenValue(Secret::new(value.into_vec())))));
    }
    let Some((path, is_exchanged)) = files.into_iter().flatten().next() else {
        return Ok(None);
    };
    let file = TokenFile {
        path: path.into(),
        is_exchanged,
    };
    drop(file.read().context("cannot read the sandbox's token")?);
    Ok(Some(Box::new(file)))
}

/// Returns the user if the policy names none: by numbers, or the image's, or `sandbox`.
fn run_as(variables: &mut Variables<'_>) -> anyhow::Result<RunAs> {
    const NUMBERS: &str =
        "OPENSHELL_SANDBOX_UID and OPENSHELL_SANDBOX_GID must be set together; set both or neither";
    let image = variables.environment.take("OPENSHELL_OCI_IMAGE_USER");
    let uid = variables.text("OPENSHELL_SANDBOX_UID")?;
    let gid = variables.text("OPENSHELL_SANDBOX_GID")?;
    let number = |name: &str, text: String| match Identity::parse(&text) {
        Ok(identity @ Identity::Id(_)) => Ok(identity),
        _ => Err(anyhow!(
            "{name} is not the number of a user or group other than root: {text}"
        )),
    };
    let image = image.map(|image| {
        image
            .into_string()
            .map_err(|_| anyhow!("OPENSHELL_OCI_IMAGE_USER is not UTF-8"))
    });
    match (uid, gid, image.transpose()?) {
        (Some(_), _, Some(image)) | (_, Some(_), Some(image)) if !image.is_empty() => {
            bail!(
                "OPENSHELL_SANDBOX_UID and OPENSHELL_OCI_IMAGE_USER both name a user; set one of \
                 them"
            )
        }
        (Some(uid), Some(gid), _) => Ok(RunAs {
            user: Some(number("OPENSHELL_SANDBOX_UID", uid)?),
            group: Some(number("OPENSHELL_SANDBOX_GID", gid)?),
        }),
        (Some(_), None, _) | (None, Some(_), _) => bail!(NUMBERS),
        (None, None, Some(image)) if !image.is_empty() => of_image(&image),
        (None, None, _) => Ok(RunAs {
            user: Some(Identity::Name("sandbox".to_owned())),
            group: None,
        }),
    }
}

/// Reads the `USER` of an image: `name`, `uid`, `name:group` or `uid:gid`.
fn of_image(text: &str) -> anyhow::Result<RunAs> {
    let (user, group) = text
        .split_once(':')
        .map_or((text, None), |(user, group)| (user, Some(group)));
    let parse = |part: &str| {
        Identity::parse(part).map_err(|violation| {
            anyhow!(
                "the image's user (OPENSHELL_OCI_IMAGE_USER) is {text:?}: {violation}; give the \
                 image a USER of its own, or name a user in the policy's `process`"
            )
        })
    };
    Ok(RunAs {
        user: Some(parse(user)?),
        group: group.map(parse).transpose()?,
    })
}

/// The launcher's description of the main process.
#[derive(Debug, Deserialize)]
pub struct MainProcess {
    version: u32,
    command: Vec<String>,
    /// True if the main process gets its own terminal.
    #[serde(default)]
    pub tty: bool,
}

impl MainProcess {
    /// Returns the words of the command.
    pub fn words(&self) -> Vec<OsString> {
        self.command.iter().map(OsString::from).collect()
    }
}

/// Returns the command of OPENSHELL_MAIN_PROCESS_SPEC.
fn main_process(variables: &mut Variables<'_>) -> anyhow::Result<Option<MainProcess>> {
    const NAME: &str = "OPENSHELL_MAIN_PROCESS_SPEC";
    let Some(text) = variables.text(NAME)? else {
        return Ok(None);
    };
    let decoded = match text.strip_prefix("base64url:") {
        Some(coded) => BASE64_URL_SAFE_NO_PAD
            .decode(coded.trim_end_matches('='))
            .with_context(|| format!("{NAME} is not URL-safe Base64"))?,
        None => text.into_bytes(),
    };
    let spec: MainProcess =
        serde_json::from_slice(&decoded).with_context(|| format!("{NAME} is invalid"))?;
    if spec.version != 1 {
        bail!(
            "{NAME} has version {}, but this build knows only version 1",
            spec.version
        );
    }
    if spec.command.first().is_none_or(String::is_empty) {
        bail!("{NAME} names no command");
    }
    Ok(Some(spec))
}

/// Returns the variables of OPENSHELL_USER_ENVIRONMENT, except those that nobody outside may set.
fn user_environment(variables: &mut Variables<'_>) -> anyhow::Result<Vec<(String, String)>> {
    const NAME: &str = "OPENSHELL_USER_ENVIRONMENT";
    let Some(text) = variables.text(NAME)? else {
        return Ok(Vec::new());
    };
    let named: std::collections::BTreeMap<String, String> = serde_json::from_str(&text)
        .with_context(|| format!("{NAME} is not a JSON object with strings as values"))?;
    let (refused, kept): (Vec<_>, Vec<_>) = named
        .into_iter()
        .partition(|(name, value)| variable::is_refused(name) || value.contains('\0'));
    if !refused.is_empty() {
        let names: Vec<_> = refused
            .iter()
            .map(|(name, _)| name.escape_debug().to_string())
            .collect();
        variables.warnings.push(format!(
            "{NAME}: nobody outside may set {}",
            names.join(", ")
        ));
    }
    Ok(kept)
}
