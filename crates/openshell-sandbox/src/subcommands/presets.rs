//! `presets`: lists presets, and makes presets of package registries.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail};
use openshell_events::text::printable;
use openshell_policy::yaml;
use openshell_sources::policy::presets::{PresetEntry, PresetSource, all};
use openshell_sources::policy::registries::{self, RECIPES, Recipe};
use openshell_sources::policy::schema::with_schema;
use openshell_telemetry::logging::progress::Progress;
use openshell_telemetry::logging::{print_failure, print_line, print_stderr};

use crate::config::{SYSTEM_PRESETS, own_presets, own_settings};

/// Lists presets, or makes those of package registries. To make one, it runs the client in a
/// sandbox for a small download, and adds the hosts that the client asks.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(override_usage = "openshell-sandbox presets [make [OPTIONS] NAME...]")]
#[command(after_help = "Exit codes: 0; 1 if a preset was not made.

Examples:
  openshell-sandbox presets
  openshell-sandbox presets make python node")]
pub(crate) struct PresetsArgs {
    /// `make`; without it, all presets are listed
    #[arg(value_name = "ACTION", value_parser = ["make"], requires = "names")]
    pub(crate) action: Option<String>,

    /// Presets to make: apt, go, java, node, python, rust
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// Write to /etc/openshell/presets, for all users, instead of ~/.config/openshell/presets
    #[arg(long, requires = "names")]
    pub(crate) system: bool,

    /// Let the client read this path too; may be repeated
    ///
    /// It can read its settings and programs where they usually are.
    #[arg(long, value_name = "PATH", requires = "names")]
    pub(crate) read: Vec<PathBuf>,

    /// Replace presets that exist
    #[arg(long, requires = "names")]
    pub(crate) replace: bool,
}

/// The most bytes of a client's output that are shown.
const SHOWN: u64 = 2048;

/// The longest time that a client may take.
const TIMEOUT: &str = "300s";

/// Lists all presets, or makes those of `args` and prints each with its registries. Returns a
/// failure if one was not made.
///
/// # Errors
/// Fails if a preset is not one that can be made, or exists already.
pub(crate) fn presets(args: &PresetsArgs) -> anyhow::Result<ExitCode> {
    let own = own_presets();
    let system = PathBuf::from(SYSTEM_PRESETS);
    if args.action.is_none() {
        list(&all(&own.into_iter().chain([system]).collect::<Vec<_>>()));
        return Ok(ExitCode::SUCCESS);
    }
    let folder = if args.system {
        system
    } else {
        own.context("presets make: HOME is not set; --system makes presets for all users")?
    };
    let wanted = args
        .names
        .iter()
        .map(|name| wanted(name, &folder, args.replace));
    let wanted = wanted.collect::<anyhow::Result<Vec<_>>>()?;
    let read = args
        .read
        .iter()
        .map(std::path::absolute)
        .collect::<io::Result<Vec<_>>>()
        .context("--read")?;
    // Others must be able to read what this process writes.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let mut code = ExitCode::SUCCESS;
    for recipe in wanted {
        print_stderr(&format!(
            "presets: asking {} for its registry, in a sandbox",
            recipe.client
        ));
        let progress = Progress::start(&format!("waiting for {}", recipe.client));
        let made = make(recipe, &folder, &read);
        drop(progress);
        match made {
            Ok((file, registries)) => {
                print_line(&file.display().to_string());
                for registry in registries.iter() {
                    print_line(&format!("  {registry}"));
                }
            }
            Err(error) => {
                print_failure(&format!(
                    "openshell-sandbox: presets make {}: {error:#}",
                    recipe.name
                ));
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn list(presets: &[PresetEntry]) {
    for PresetEntry {
        name,
        source,
        purpose,
    } in presets
    {
        let source = match source {
            PresetSource::BuiltIn => "built in".to_owned(),
            PresetSource::File(file) => file.display().to_string(),
            PresetSource::Recipe => format!("presets make {name}"),
        };
        print_line(&format!("{name:<12} {source:<20} {purpose}"));
    }
}

/// Returns the recipe of a preset that is to be made in `folder`.
fn wanted(name: &str, folder: &Path, replace: bool) -> anyhow::Result<&'static Recipe> {
    let recipe = registries::recipe(name).with_context(|| {
        let known: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
        format!(
            "presets make {name}: it cannot make this preset, only {}",
            known.join(", ")
        )
    })?;
    let file = file(folder, name);
    if !replace && file.symlink_metadata().is_ok() {
        bail!(
            "presets make {name}: {} already exists; --replace writes it again",
            file.display()
        );
    }
    Ok(recipe)
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.yaml"))
}

/// Lets the client download, and writes the preset. Returns the preset's file, and a line about
/// each registry.
fn make(
    recipe: &Recipe,
    folder: &Path,
    read: &[PathBuf],
) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let scratch = Scratch::create(folder)?;
    let [policy, observed, output, new] = ["policy.yaml", "observed.yaml", "output", "new.yaml"]
        .map(|name| scratch.folder.join(name));
    std::fs::write(&policy, recipe.policy_to_ask())?;
    let printed = File::create_new(&output)?;
    #[expect(
        clippy::disallowed_methods,
        reason = "it is this program, whose run confines the client"
    )]
    let mut run = Command::new("/proc/self/exe");
    for setting in own_settings() {
        run.env_remove(setting);
    }
    let status = run
        .args([
            "--die-with-parent",
            "--timeout",
            TIMEOUT,
            "--log-level",
            "warn",
            "--leaks",
            "off",
        ])
        .args([
            Path::new("--log-dir"),
            &scratch.folder,
            Path::new("--policy-data"),
            &policy,
            Path::new("--observe"),
            &observed,
        ])
        .args(read.iter().flat_map(|path| [Path::new("--read"), path]))
        .current_dir("/")
        .args([
            "--",
            "sh",
            "-c",
            &format!("cd \"$(mktemp -d)\" || exit\n{}", recipe.script),
        ])
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(printed)
        .status()?;
    if !status.success() {
        print_end(&output)?;
        bail!(
            "{} downloaded nothing ({status}); no preset was made",
            recipe.client
        );
    }
    let (observed, _) =
        yaml::policy(&std::fs::read_to_string(&observed)?).map_err(anyhow::Error::msg)?;
    let (preset, registries) = recipe
        .preset(&observed)
        .with_context(|| format!("{} reached no registry; no preset was made", recipe.client))?;
    std::fs::write(&new, with_schema(&preset))?;
    let file = file(folder, recipe.name);
    std::fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))?;
    Ok((file, registries))
}

/// Prints the last lines of a client's output.
fn print_end(output: &Path) -> io::Result<()> {
    let mut file = File::open(output)?;
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(
        file.metadata()?.len().saturating_sub(SHOWN),
    ))?;
    file.take(SHOWN).read_to_end(&mut end)?;
    let lines = end
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    for line in lines {
        print_stderr(&format!(
            "  {}",
            printable(&OsStr::from_bytes(line).to_string_lossy())
        ))
    }
    Ok(())
}

/// A folder next to the presets, which is removed when this value is dropped. It is locked until
/// then, so nobody takes it for a leftover.
struct Scratch {
    folder: PathBuf,
    _lock: File,
}

impl Scratch {
    fn create(presets: &Path) -> anyhow::Result<Self> {
        let context = || format!("cannot write to {}", presets.display());
        std::fs::create_dir_all(presets).with_context(context)?;
        remove_leftovers(presets);
        for number in 1_u32.. {
            let folder = presets.join(format!(".{number}"));
            match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created.with_context(context)?,
            }
            // Nobody else can open it, and so hold the lock.
            let lock = File::open(&folder).with_context(context)?;
            lock.lock().with_context(context)?;
            return Ok(Self {
                folder,
                _lock: lock,
            });
        }
        bail!(
            "{} has too many folders of earlier calls",
            presets.display()
        )
    }
}

/// Removes folders left by processes that were killed. One that their client still writes to may
/// stay, for the next call.
fn remove_leftovers(presets: &Path) {
    for entry in std::fs::read_dir(presets).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_scratch = name
            .to_str()
            .and_then(|name| name.strip_prefix('.'))
            .is_some_and(|number| number.parse::<u32>().is_ok());
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let is_left = || File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok());
        if is_scratch && is_folder && is_left() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
