//! A log file a day, shared with other sandboxes: appended to, whole lines at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use time::{Date, OffsetDateTime};

use super::queue::{Line, Output};

/// Days of files that are kept.
const KEPT: usize = 3;

/// Bytes a day, of all sandboxes that share the file; behind them one line a second.
const BYTES: u64 = 100 * 1024 * 1024;

/// Bytes of lines that are written at once, and so what the file may have too many.
const AT_ONCE: usize = 64 * 1024;

/// The file of the day.
pub(super) struct DatedFile {
    folder: PathBuf,
    day: Date,
    file: File,
    is_full: bool,
    /// Lines that are not written yet.
    pending: String,
    /// Lines left out since the last one that was written.
    left_out: u64,
    written: Instant,
}

impl DatedFile {
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let day = OffsetDateTime::now_utc().date();
        let file = open(folder, day)?;
        remove_old(folder);
        let (folder, written, pending) = (folder.to_owned(), Instant::now(), String::new());
        Ok(Self { is_full: is_full(&file), folder, day, file, pending, left_out: 0, written })
    }
}

impl Output for DatedFile {
    /// Appends `line`; where that fails, there is no better place to say so than the other output, which has it too.
    fn write(&mut self, line: Line, left_out: u64) {
        let day = line.made.date();
        if self.day != day
            && let Ok(file) = open(&self.folder, day)
        {
            self.flush();
            (self.is_full, self.day, self.file) = (is_full(&file), day, file);
            remove_old(&self.folder);
        }
        self.left_out += left_out;
        if self.is_full && self.written.elapsed() < Duration::from_secs(1) {
            self.left_out += 1;
            return;
        }
        self.pending.push_str(&line.text);
        if self.left_out > 0 {
            self.pending.push_str(&format!(" [{} lines left out before]", self.left_out));
        }
        self.pending.push('\n');
        (self.left_out, self.written) = (0, Instant::now());
        if self.pending.len() >= AT_ONCE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.pending.is_empty() {
            let _ = self.file.write_all(self.pending.as_bytes());
            self.pending.clear();
            self.is_full = is_full(&self.file);
        }
    }
}

/// Whether the sandboxes have had their share of today's.
fn is_full(file: &File) -> bool {
    file.metadata().is_ok_and(|data| data.len() >= BYTES)
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

#[cfg(test)]
mod tests {
    use super::{BYTES, DatedFile};
    use crate::logging::queue::{Line, Output};

    #[test]
    fn a_file_that_is_full_takes_a_line_a_second_and_says_how_many_it_did_not() {
        let folder = std::env::temp_dir().join(format!("openshell-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut file = DatedFile::open(&folder).unwrap();
        let path = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        let write = |file: &mut DatedFile, text: &str| {
            file.write(Line { made: time::OffsetDateTime::now_utc(), text: text.to_owned() }, 0);
            file.flush();
            std::fs::metadata(&path).unwrap().len()
        };
        assert_eq!(write(&mut file, "one"), 4);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(BYTES - 1).unwrap();
        let full = write(&mut file, "full");
        assert_eq!(full, BYTES - 1 + 5);
        assert_eq!(write(&mut file, "left out"), full);
        file.written -= std::time::Duration::from_secs(2);
        let said = " [1 lines left out before]";
        assert_eq!(write(&mut file, "two"), full + 4 + said.len() as u64);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
