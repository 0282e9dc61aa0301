//! `copy-self`: puts this program where another container finds it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use openshell_telemetry::logging;

/// Copies this program to a place that containers share. Nobody sees a part of the copy.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0; 1 if the program cannot be copied.

Example:
  openshell-sandbox copy-self /shared/openshell-sandbox")]
pub(crate) struct CopySelfArgs {
    /// The new file, or a folder in which the program keeps its name
    #[arg(value_name = "DEST")]
    pub(crate) destination: PathBuf,
}

/// The running program, even after its file was replaced.
const SELF: &str = "/proc/self/exe";

/// Copies this program to the destination, or into it if that is a folder.
///
/// # Errors
/// Fails if the copy cannot be written; the destination is unchanged then.
pub(crate) fn copy_self(args: &CopySelfArgs) -> anyhow::Result<ExitCode> {
    let destination = if args.destination.is_dir() {
        args.destination.join("openshell-sandbox")
    } else {
        args.destination.clone()
    };
    copy(&destination).with_context(|| format!("{} cannot be written", destination.display()))?;
    logging::print_line(&destination.display().to_string());
    Ok(ExitCode::SUCCESS)
}

/// Writes the copy next to `destination` and then renames it, so that nobody sees a part of it.
fn copy(destination: &Path) -> io::Result<()> {
    let new = beside(destination);
    let written = write(&new).and_then(|()| std::fs::rename(&new, destination));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

fn write(new: &Path) -> io::Result<()> {
    let mut copy = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(new)?;
    io::copy(&mut File::open(SELF)?, &mut copy)?;
    // Whatever the umask is.
    rustix::fs::fchmod(&copy, rustix::fs::Mode::from_raw_mode(0o755))?;
    copy.sync_all()
}

fn beside(destination: &Path) -> PathBuf {
    let name = destination
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    destination.with_file_name(format!(".{name}.{}", std::process::id()))
}
