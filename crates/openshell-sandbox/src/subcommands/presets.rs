//! `presets`: lists presets, and makes those of package registries.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail};
use openshell_policy::yaml;

use crate::cli::subcommands::PresetsArgs;
use crate::config::{SYSTEM_PRESETS, own_preset_folders};
use crate::logging::{print_line, print_stderr};
use crate::sources::presets::{Listed, Place, all};
use crate::sources::registries::{self, RECIPES, Recipe};

/// The policy of the run in which a client is asked: it learns, and writes to the private /tmp alone.
const POLICY: &str = "filesystem_policy: {include_workdir: false}\n";

/// Bytes that are shown of what a client has printed.
const SHOWN: u64 = 2048;

/// Lists all presets, or makes those of `args`.
///
/// # Errors
/// A preset is not one that can be made, is there already, or its client has failed.
pub(crate) fn presets(args: &PresetsArgs) -> anyhow::Result<ExitCode> {
    let folders = own_preset_folders();
    if args.action.is_none() {
        list(&all(&folders));
        return Ok(ExitCode::SUCCESS);
    }
    let folder = match args.system {
        true => PathBuf::from(SYSTEM_PRESETS),
        false => folders.into_iter().next().unwrap_or_default(),
    };
    let wanted = args.names.iter().map(|name| wanted(name, &folder, args.replace));
    for recipe in wanted.collect::<anyhow::Result<Vec<_>>>()? {
        print_stderr(&format!("presets: asking {} for its registry, in a sandbox", recipe.client));
        let (file, hosts) = make(recipe, &folder).with_context(|| format!("presets make {}", recipe.name))?;
        print_line(&format!("{}: {}", file.display(), hosts.join(", ")));
    }
    Ok(ExitCode::SUCCESS)
}

fn list(presets: &[Listed]) {
    for Listed { name, place, purpose } in presets {
        let place = match place {
            Place::BuiltIn => "built in".to_owned(),
            Place::File(file) => file.display().to_string(),
            Place::Recipe => format!("presets make {name}"),
        };
        print_line(&format!("{name:<12} {place:<20} {purpose}"));
    }
}

/// Returns the recipe of a preset that is to be made in `folder`.
fn wanted(name: &str, folder: &Path, replace: bool) -> anyhow::Result<&'static Recipe> {
    let recipe = registries::recipe(name).with_context(|| {
        let known: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
        format!("presets make {name}: it is none that is made; there are {}", known.join(", "))
    })?;
    let file = file(folder, name);
    if !replace && file.symlink_metadata().is_ok() {
        bail!("presets make {name}: {} is there already; --replace makes it anew", file.display());
    }
    Ok(recipe)
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.yaml"))
}

/// Has the client download, and writes the preset. Returns its file and the hosts.
fn make(recipe: &Recipe, folder: &Path) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let scratch = Scratch::create(folder)?;
    let [policy, observed, output, new] =
        ["policy.yaml", "observed.yaml", "output", "new.yaml"].map(|name| scratch.0.join(name));
    std::fs::write(&policy, POLICY)?;
    let printed = File::create_new(&output)?;
    #[expect(clippy::disallowed_methods, reason = "it is this program, whose run confines the client")]
    let status = Command::new("/proc/self/exe")
        .env_remove("OPENSHELL_POLICY_RULES")
        .args(["--die-with-parent", "--log-level", "warn", "--leaks", "off", "--observe-files", "--log-dir"])
        .args([&scratch.0, Path::new("--policy-data"), &policy, Path::new("--observe"), &observed])
        .args(["--", "sh", "-c", &format!("cd \"$(mktemp -d)\" || exit\n{}", recipe.script)])
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(printed)
        .status()?;
    if !status.success() {
        print_end(&output)?;
        bail!("{} downloaded nothing ({status}); no preset was made", recipe.client);
    }
    let (observed, _) = yaml::policy(&std::fs::read_to_string(&observed)?).map_err(anyhow::Error::msg)?;
    let (preset, hosts) = recipe
        .preset(&observed)
        .with_context(|| format!("{} reached no registry; no preset was made", recipe.client))?;
    std::fs::write(&new, preset)?;
    // Whatever the umask.
    std::fs::set_permissions(&new, Permissions::from_mode(0o644))?;
    let file = file(folder, recipe.name);
    std::fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))?;
    Ok((file, hosts))
}

/// Prints the last lines of what a client has printed.
fn print_end(output: &Path) -> io::Result<()> {
    let (mut file, mut end) = (File::open(output)?, Vec::new());
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(SHOWN)))?;
    file.take(SHOWN).read_to_end(&mut end)?;
    let lines = end.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.for_each(|line| print_stderr(&format!("  {}", OsStr::from_bytes(line).display())));
    Ok(())
}

/// A folder beside the presets, which is removed when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn create(presets: &Path) -> anyhow::Result<Self> {
        let folder = presets.join(format!(".{}", std::process::id()));
        let context = || format!("cannot write to {}", presets.display());
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(presets).with_context(context)?;
        // An earlier process of this number may have been killed.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::DirBuilder::new().mode(0o700).create(&folder).with_context(context)?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
