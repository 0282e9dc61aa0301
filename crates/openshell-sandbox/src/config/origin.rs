//! Where a policy comes from: files and flags, or a gateway.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use openshell_sources::gateway::launcher::Place;
use openshell_sources::policy::composed::{self, Additions};
use openshell_sources::policy::policy_file::{PolicyFiles, RunFolders};
use openshell_supervisor::identity::run_as;
use openshell_telemetry::logging;

use super::presets::preset_folders;
use crate::activation::{Origin, Policy};
use crate::cli::{self, Args};

const NO_POLICY: &str = "a sandbox policy is required; give one with\n  --allow HOST, --write \
                         PATH, --read PATH, --hide PATH or --preset NAME: the command may then \
                         also write to the current directory\n  --observe FILE: the same, to find \
                         out what the command needs\n  --policy-data FILE (or \
                         OPENSHELL_POLICY_DATA): what the command may do, under the built-in \
                         rules\n  --policy-rules FILE (or OPENSHELL_POLICY_RULES) in addition: \
                         rules of your own\n  --sandbox-id ID and --openshell-endpoint URL (or \
                         OPENSHELL_SANDBOX_ID, OPENSHELL_ENDPOINT): the policy of a \
                         gateway\n`openshell-sandbox init` writes a policy; `openshell-sandbox --help` \
                         lists all subcommands";

/// Returns true if variables name a policy or a gateway, so that no flag has to.
pub(crate) fn is_in_environment() -> bool {
    let names = [
        "OPENSHELL_POLICY_DATA",
        "OPENSHELL_POLICY_RULES",
        "OPENSHELL_SANDBOX_ID",
        "OPENSHELL_ENDPOINT",
    ];
    #[expect(
        clippy::disallowed_methods,
        reason = "the rest is read once init is up"
    )]
    names
        .into_iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Returns the policy, loaded from the files that `args` or the environment name, or the gateway
/// that they name. A flag wins over its variable, and files win over a gateway. Apart from these
/// variables it reads only those that name folders.
///
/// # Errors
/// Fails if nothing is named, or only half of what names a gateway.
pub(crate) fn named(args: &Args) -> anyhow::Result<Origin> {
    let path = |flag: &Option<PathBuf>, name| flag.clone().or_else(|| path_in(name));
    let rules = path(&args.policy_rules, "OPENSHELL_POLICY_RULES");
    let data = path(&args.policy_data, "OPENSHELL_POLICY_DATA");
    let home = path_in("HOME").filter(|home| home.is_absolute());
    let files = PolicyFiles {
        folders: folders(args.workdir.as_deref(), home.as_deref())?,
        ..PolicyFiles::default()
    };
    // A run with `--observe` finds out what to grant, so it needs no policy.
    let flags = args.policy.flags();
    let is_alone = data.is_none() && (!flags.is_empty() || args.observe.is_some());
    if is_alone {
        let project = project(&files.folders, home)?;
        let additions = Additions::of(flags, Some(&project), &files.folders.presets)?;
        return Ok(Origin::Files(Box::new(Policy::load(PolicyFiles {
            additions,
            rules,
            ..files
        }))));
    }
    let additions = Additions::of(flags, None, &files.folders.presets)?;
    let files = PolicyFiles { additions, ..files };
    if let Some(data) = data {
        return Ok(Origin::Files(Box::new(Policy::load(PolicyFiles {
            data,
            rules,
            ..files
        }))));
    }
    if rules.is_some() {
        bail!("--policy-rules needs --policy-data too: the rules decide over its data");
    }
    Ok(Origin::Gateway {
        place: place(args)?,
        files: Box::new(files),
    })
}

/// Returns the folders of a run without flags in a project: the current directory.
///
/// # Errors
/// Fails if there is no current directory, or it holds too much to be a project.
pub(crate) fn of_project() -> anyhow::Result<RunFolders> {
    let home = path_in("HOME").filter(|home| home.is_absolute());
    let folders = folders(None, home.as_deref())?;
    project(&folders, home)?;
    Ok(folders)
}

/// Returns the user who started this process, directly or by `sudo`.
pub(crate) fn uid_of_caller(sudo: Option<(u32, u32)>) -> u32 {
    sudo.map_or_else(|| rustix::process::getuid().as_raw(), |(uid, _)| uid)
}

/// Returns the path in the variable `name`, if it is set and not empty.
fn path_in(name: &str) -> Option<PathBuf> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the rest is read once init is up"
    )]
    let value = std::env::var_os(name);
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the folders of a run; `home` is the user's.
///
/// # Errors
/// Fails if `--workdir` is relative and there is no current directory.
fn folders(workdir: Option<&Path>, home: Option<&Path>) -> anyhow::Result<RunFolders> {
    let workdir = workdir.map(std::path::absolute);
    Ok(RunFolders {
        workdir: workdir.transpose().context("--workdir")?,
        current: std::env::current_dir().ok(),
        sudo: caller_of_sudo(),
        presets: preset_folders(path_in("XDG_CONFIG_HOME"), home),
    })
}

/// Returns user and group of the caller of `sudo`, if it started this process.
pub(crate) fn caller_of_sudo() -> Option<(u32, u32)> {
    let number = |name: &str| path_in(name)?.to_str()?.parse().ok();
    number("SUDO_UID").zip(number("SUDO_GID"))
}

/// Returns the folder that the command may write to if only the command line says what is granted.
/// Warns if that folder is probably a mistake.
///
/// # Errors
/// Fails if the folder holds too much to be meant.
fn project(folders: &RunFolders, home: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let callers = folders.sudo.iter().map(|(uid, _)| *uid);
    let callers: Vec<_> = callers
        .chain([rustix::process::getuid().as_raw()])
        .collect();
    let homes: Vec<_> = run_as::homes(&callers)?.into_iter().chain(home).collect();
    let workdir = folders.workdir.as_deref();
    let (project, warning) = composed::project(workdir, folders.current.as_deref(), &homes)?;
    if let Some(warning) = warning {
        logging::print_stderr(&format!("openshell-sandbox: {warning}"));
    }
    Ok(project)
}

/// Returns the place of the gateway that `args` or the environment names.
///
/// # Errors
/// Fails if no gateway is named, or only half of what names one.
fn place(args: &Args) -> anyhow::Result<Place> {
    let text = |flag: &Option<String>, name: &str| {
        let value = path_in(name).map(|value| value.into_os_string().into_string());
        let value = value
            .transpose()
            .map_err(|_| anyhow!("{name} is not UTF-8"))?;
        anyhow::Ok(flag.clone().or(value))
    };
    let id = text(&args.sandbox_id, "OPENSHELL_SANDBOX_ID")?;
    let endpoint = text(&args.openshell_endpoint, "OPENSHELL_ENDPOINT")?;
    let name = text(&args.sandbox, "OPENSHELL_SANDBOX")?;
    match (id, endpoint) {
        (Some(id), Some(endpoint)) => Ok(Place {
            endpoint,
            id: cli::name(&id).map_err(|error| anyhow!("--sandbox-id: {error}"))?,
            name,
        }),
        (None, None) => bail!(NO_POLICY),
        (Some(_), None) => {
            bail!("--sandbox-id needs --openshell-endpoint (or OPENSHELL_ENDPOINT) too")
        }
        (None, Some(_)) => {
            bail!("--openshell-endpoint needs --sandbox-id (or OPENSHELL_SANDBOX_ID) too")
        }
    }
}
