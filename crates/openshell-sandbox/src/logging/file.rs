//! A log file a day, shared with other sandboxes: appended to, one write a line.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;
use time::{Date, OffsetDateTime};

/// Days of files that are kept.
const KEPT: usize = 3;

/// The file of the day.
pub(super) struct DatedFile {
    folder: PathBuf,
    current: Mutex<(Date, File)>,
}

impl DatedFile {
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let today = OffsetDateTime::now_utc().date();
        let file = open(folder, today)?;
        remove_old(folder);
        Ok(Self { folder: folder.to_owned(), current: Mutex::new((today, file)) })
    }

    /// Appends `line`; where that fails, there is no better place to say so than the other output, which has it too.
    pub(super) fn write(&self, now: OffsetDateTime, line: &str) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != now.date()
            && let Ok(file) = open(&self.folder, now.date())
        {
            *current = (now.date(), file);
            remove_old(&self.folder);
        }
        let _ = current.1.write_all(format!("{line}\n").as_bytes());
    }
}

fn open(folder: &Path, day: Date) -> io::Result<File> {
    let path = folder.join(format!("openshell.{day}.log"));
    // A pipe in its place would let the start wait for a reader.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().append(true).create(true).mode(0o640).custom_flags(flags).open(&path)?;
    let data = file.metadata()?;
    if !data.is_file() || data.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("{} is not a file of the supervisor's own", path.display())));
    }
    Ok(file)
}

/// Removes all but the newest files. Names sort by date.
fn remove_old(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_ours = |name: &String| {
        let day = name.strip_prefix("openshell.").and_then(|rest| rest.strip_suffix(".log"));
        day.is_some_and(|day| day.len() == 10 && day.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
    };
    let mut ours: Vec<_> = names.filter(is_ours).collect();
    ours.sort_unstable();
    ours.iter().rev().skip(KEPT).for_each(|name| {
        let _ = std::fs::remove_file(folder.join(name));
    });
}
