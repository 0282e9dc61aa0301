//! The sandbox's private folders for temporary files, which end with it. In the host's, programs of
//! other users and of earlier runs leave names and sockets, and services of the session listen.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;

use crate::files::private_run::replace_folder;

/// The folders that are replaced.
pub(crate) const FOLDERS: &[&str] = &["/tmp", "/dev/shm"];

/// The default limit of each folder, in bytes.
const MAX_BYTES: u64 = 1024 * 1024 * 1024;

/// Returns the number of bytes that each of the folders holds at most by default: 1 GiB, or half of
/// the memory that this process may use if that is less.
#[must_use]
pub fn default_size() -> u64 {
    let information = rustix::system::sysinfo();
    let installed = information
        .totalram
        .saturating_mul(information.mem_unit.into());
    let limit = memory_limits().into_iter().fold(installed, u64::min);
    MAX_BYTES.min(limit / 2)
}

/// Returns the memory limits of this process's control group and of those above it, as far as they
/// are visible (cgroups(7)).
fn memory_limits() -> Vec<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers
                .split(',')
                .any(|controller| controller == "memory") =>
            {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let path = Path::new(root).join(path.trim_start_matches('/'));
        files.extend(
            path.ancestors()
                .take_while(|folder| folder.starts_with(root))
                .map(|folder| folder.join(name)),
        );
    }
    files
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())
        .collect()
}

/// Replaces `folder`, one of [`FOLDERS`], by an empty folder that holds at most `bytes`. The
/// `visible` paths in it stay the host's.
///
/// # Errors
/// Fails if a mount fails, or if a visible path cannot be opened.
pub(crate) fn replace(folder: &Path, visible: &BTreeSet<PathBuf>, bytes: u64) -> io::Result<()> {
    // Empty files take no pages, but they do take memory.
    let inodes = bytes / 4096 + 1024;
    let options = CString::new(format!("mode=1777,size={bytes},nr_inodes={inodes}"))?;
    replace_folder(
        folder,
        visible,
        MountFlags::NOSUID | MountFlags::NODEV,
        &options,
    )
    .map(drop)
}
