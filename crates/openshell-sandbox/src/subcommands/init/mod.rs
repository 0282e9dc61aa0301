//! `init`: writes a policy with comments, from flags or from answers.

mod agents;
mod commented;
mod questions;

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use openshell_events::text;
use openshell_sources::input::Phase;
use openshell_sources::policy::composed::{Additions, Allowed, Flags};
use openshell_sources::policy::policy_file::PolicyFiles;
use openshell_sources::policy::presets;
use openshell_supervisor::paths::trusted_symlinks::place_to_make;
use openshell_telemetry::logging::print_line;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid};

use self::agents::{AGENTS, NO_AGENT};
use crate::activation::Policy;
use crate::cli::allowed;
use crate::config::origin;
use crate::subcommands::check;

/// Writes a policy for an agent, or for any command, that works in this folder. The policy has a
/// comment for each part, and `check` passes it.
///
/// Without an option it asks, if it has a terminal.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0; 1 if no policy was written.

Examples:
  openshell-sandbox init
  openshell-sandbox init --agent claude-code --preset git-read --hide '**/.env'
  openshell-sandbox init --agent none --allow api.example.com=read-only build.yaml")]
pub(crate) struct InitArgs {
    /// The file to write
    #[arg(value_name = "FILE", default_value = "policy.yaml")]
    file: PathBuf,

    /// The agent that works here, or `none` for another command
    #[arg(long, value_name = "NAME", value_parser = agents::names())]
    agent: Option<String>,

    /// Let every program connect to HOST, by default at port 443; may be repeated
    #[arg(long, value_name = "HOST[:PORT][@CIDR][=ACCESS]", value_parser = allowed)]
    allow: Vec<Allowed>,

    /// Add what a preset grants, such as git-read; may be repeated
    #[arg(long, value_name = "NAME", num_args = 1, value_delimiter = ',')]
    preset: Vec<String>,

    /// Let the command read and write a folder besides this one; may be repeated
    #[arg(long, value_name = "PATH")]
    write: Vec<PathBuf>,

    /// Let the command read a file or folder; may be repeated
    #[arg(long, value_name = "PATH")]
    read: Vec<PathBuf>,

    /// Hide a file or folder, or what matches a pattern such as `**/.env`; may be repeated
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,

    /// Replace the file if it exists
    #[arg(long)]
    replace: bool,
}

/// The folder in which a run begins, as a policy names it.
const PROJECT: &str = "$WORKDIR";

/// Writes the policy, prints what `check` says of it, and how to use it.
///
/// # Errors
/// Fails if the file exists or cannot be written; if the current directory is not a project; if an
/// option is invalid; or if there is neither an option nor a terminal.
pub(crate) fn init(mut args: InitArgs) -> anyhow::Result<ExitCode> {
    if !args.replace && args.file.symlink_metadata().is_ok() {
        bail!(
            "init: {} already exists; --replace writes it again, or name another file",
            args.file.display()
        );
    }
    let folders = origin::of_project().context("init")?;
    if args.has_no_option() {
        args.ask()?;
    }
    let current = folders.current.clone().unwrap_or_default();
    for paths in [&mut args.write, &mut args.read, &mut args.hide] {
        for path in paths {
            *path = portable(path, &current)?;
        }
    }
    let agent = args.agent.as_deref().and_then(agents::find);
    let mut chosen = agent.map_or(Vec::new(), |agent| agent.presets());
    chosen.append(&mut args.preset);
    let flags = Flags {
        allow: &args.allow,
        write: &args.write,
        read: &args.read,
        hide: &args.hide,
        preset: &chosen,
    };
    let additions = Additions::of(flags, Some(Path::new(PROJECT)), &folders.presets)?;
    let known = presets::all(&folders.presets);
    let Policy { files, version } = Policy::load(PolicyFiles {
        additions,
        folders,
        ..PolicyFiles::default()
    });
    version?;
    let (_, policy) = files.text(Phase::Start)?;
    let command = agent.map_or("COMMAND", |agent| agent.command);
    let run = format!(
        "openshell-sandbox --policy-data {} -- {command}",
        text::shell_word(&args.file.to_string_lossy())
    );
    let text = commented::commented(&policy, &run, &known);
    let written = PolicyFiles::to_look_at(args.file.clone(), None, origin::caller_of_sudo());
    let name = args.file.display().to_string();
    let version = written
        .document(name, text.clone(), None)
        .compile(1)
        .context("init: nothing was written")?;
    write(&args.file, &text, args.replace)?;
    check::report(&written, &version, None);
    print_line("Run it in this folder:");
    print_line(&format!("  {run}"));
    Ok(ExitCode::SUCCESS)
}

impl InitArgs {
    fn has_no_option(&self) -> bool {
        let granted = [&self.write, &self.read, &self.hide];
        self.agent.is_none()
            && self.allow.is_empty()
            && self.preset.is_empty()
            && granted.iter().all(|paths| paths.is_empty())
    }

    /// Takes the options from answers.
    ///
    /// # Errors
    /// Fails if there is no terminal, or the answers end early.
    fn ask(&mut self) -> anyhow::Result<()> {
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            let agents: Vec<_> = AGENTS.iter().map(|agent| agent.name).collect();
            bail!(
                "init asks questions, but this is not a terminal; give --agent NAME ({}, {NO_AGENT}) \
                 or another option",
                agents.join(", ")
            );
        }
        let answers = questions::ask(&mut io::stdin().lock())?;
        self.agent = Some(answers.agent);
        self.allow = answers.allow;
        self.write = answers.write;
        self.read = answers.read;
        self.hide = answers.hide;
        Ok(())
    }
}

/// Returns `path` such that it stays right if the project is moved: in the form `$WORKDIR/…` if it
/// is below the current directory.
///
/// # Errors
/// Fails if the path begins with what only a shell expands.
fn portable(path: &Path, current: &Path) -> anyhow::Result<PathBuf> {
    let has_own_form = ["~", "**", PROJECT]
        .iter()
        .any(|start| path.starts_with(start));
    let start = path.as_os_str().as_encoded_bytes().first();
    if !has_own_form && matches!(start, Some(b'$' | b'~')) {
        bail!(
            "init: {}: only a shell expands this; write the path, or ~/… for the home of the \
             command's user",
            path.display()
        );
    }
    let has_parent = path.components().any(|part| part == Component::ParentDir);
    if has_own_form || has_parent {
        return Ok(path.to_owned());
    }
    let absolute = current.join(path);
    Ok(match absolute.strip_prefix(current) {
        Ok(below) => Path::new(PROJECT).join(below),
        Err(_) => path.to_owned(),
    })
}

/// Writes a file that does not exist, or replaces one as a whole. Root follows no symlink of others
/// on the way, and gives the file to the caller of sudo.
///
/// # Errors
/// Fails if the file exists and is not to be replaced, or cannot be written. It is then unchanged.
fn write(path: &Path, text: &str, replace: bool) -> anyhow::Result<()> {
    let failed = || format!("init: cannot write {}", path.display());
    let path = std::path::absolute(path)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        bail!(failed());
    };
    let folder = place_to_make(folder).with_context(failed)?;
    // Whatever takes its place later, the file comes into this folder.
    let folder = rustix::fs::openat2(
        CWD,
        folder,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    )
    .with_context(failed)?;
    let mut new = name.to_owned();
    if replace {
        new.push(format!(".{}", std::process::id()));
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let file = rustix::fs::openat(&folder, &new, flags, mode).with_context(failed)?;
    let written = fill(File::from(file), text).and_then(|()| {
        if replace {
            rustix::fs::renameat(&folder, &new, &folder, name)?;
        }
        Ok(())
    });
    if written.is_err() {
        let _ = rustix::fs::unlinkat(&folder, &new, AtFlags::empty());
    }
    written.with_context(failed)
}

fn fill(mut file: File, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    if let Some((uid, gid)) = origin::caller_of_sudo() {
        rustix::fs::fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::portable;

    #[test]
    fn paths_of_the_project_move_with_it_and_others_stay() {
        for (given, written) in [
            ("docs", "$WORKDIR/docs"),
            ("./docs", "$WORKDIR/docs"),
            ("/home/me/project/docs", "$WORKDIR/docs"),
            ("/home/me/other", "/home/me/other"),
            ("../other", "../other"),
            ("/home/me/project/../other", "/home/me/project/../other"),
            ("~/notes", "~/notes"),
            ("**/.env", "**/.env"),
            ("$WORKDIR/docs", "$WORKDIR/docs"),
        ] {
            let made = portable(Path::new(given), Path::new("/home/me/project"));
            assert_eq!(made.unwrap(), Path::new(written), "{given}");
        }
        for given in ["$HOME/a", "${HOME}/a", "~kim/a"] {
            let made = portable(Path::new(given), Path::new("/home/me/project"));
            assert!(made.is_err(), "{given}");
        }
    }
}
