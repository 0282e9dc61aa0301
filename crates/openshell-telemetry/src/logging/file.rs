//! The log file of a day. Several sandboxes share it, and append whole lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use time::{Date, OffsetDateTime};
use tracing::Level;

use super::folder::Folder;
use super::form::Form;
use super::queue::{Line, Output, Priority, Queue};
use super::sink::{LogEvent, Sink};

/// Number of days whose files are kept.
const KEPT: usize = 3;

/// Maximum bytes of one sandbox per day; beyond that it writes one line a second.
const BYTES: u64 = 100 * 1024 * 1024;

/// The part of [`BYTES`] that is reserved for denials and findings, so that a flood of permitted
/// requests does not crowd them out.
const RESERVED: u64 = 10 * 1024 * 1024;

/// Maximum bytes of a file. Beyond that, each sandbox writes one ordinary line a second. It still
/// writes its denials, findings and state, within its own [`BYTES`], because another sandbox may
/// have filled the file.
const FILE_BYTES: u64 = 1024 * 1024 * 1024;

/// Bytes of pending lines that are written at once; the file may exceed its bound by as much.
const AT_ONCE: usize = 64 * 1024;

/// The log file of the day.
pub(super) struct LogFile {
    form: Form,
    folder: Folder,
    day: Date,
    file: File,
    /// True if all sandboxes together have written [`FILE_BYTES`] to the file.
    is_full: bool,
    /// Bytes that this sandbox has written to the file.
    written: u64,
    /// Lines that are not written yet.
    pending: String,
    /// The end of each of those lines in [`Self::pending`], and the number of missing lines that
    /// the line mentions.
    ends: Vec<(usize, u64)>,
    /// Lines left out since the last one that was written.
    left_out: u64,
    /// True once a write has failed; only the first failure is reported.
    has_failed: bool,
    /// Reports a failed write.
    report: fn(&str),
    /// When the last ordinary line was written, and when the last other line was.
    last: [Instant; 2],
}

impl LogFile {
    /// Opens today's file in `folder`, and removes old ones. The first failed write is reported to
    /// `report`.
    ///
    /// # Errors
    /// The file cannot be opened, or does not belong to the supervisor.
    pub(super) fn open(folder: Folder, form: Form, report: fn(&str)) -> io::Result<Self> {
        let day = OffsetDateTime::now_utc().date();
        let file = open(&folder, form, day)?;
        remove_old(&folder.reached(), form, day);
        let is_full = is_full(&file);
        let last = [Instant::now(); 2];
        let pending = String::new();
        let ends = Vec::new();
        Ok(Self {
            form,
            is_full,
            folder,
            day,
            file,
            written: 0,
            pending,
            ends,
            left_out: 0,
            has_failed: false,
            report,
            last,
        })
    }

    /// Starts the thread that writes.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(self) -> io::Result<FileSink> {
        let form = self.form;
        let queue = Queue::new("log-file", self);
        if !queue.start() {
            return Err(io::Error::other(
                "cannot start the thread that writes the log; raise the limit of processes \
                 (pids.max, ulimit -u)",
            ));
        }
        Ok(FileSink { form, queue })
    }

    /// Returns true if a line of `priority` exceeds the bounds.
    fn is_too_much(&self, priority: Priority) -> bool {
        let is_spent = match priority {
            Priority::Ordinary => self.is_full || self.written >= BYTES - RESERVED,
            Priority::Security => self.written >= BYTES,
            Priority::State => false,
        };
        is_spent && self.last[lane(priority)].elapsed() < Duration::from_secs(1)
    }

    /// Counts the pending lines of which not all bytes are among the `done` ones that were written,
    /// and reports that lines are missing.
    fn not_written(&mut self, done: usize, error: &io::Error) {
        // A line that lacks only its line feed becomes whole when that is written.
        let missing = self.ends.iter().filter(|(end, _)| *end > done + 1);
        self.left_out += missing.map(|(_, carried)| 1 + carried).sum::<u64>();
        self.written = self
            .written
            .saturating_sub((self.pending.len() - done) as u64);
        if !std::mem::replace(&mut self.has_failed, true) {
            let folder = self.folder.path().display();
            (self.report)(&format!(
                "openshell-sandbox: cannot write the log in {folder}: {error}; lines are left out \
                 until it can be written, and the next line counts them; make room there, or name \
                 another folder with --log-dir"
            ));
        }
    }
}

/// The log file as a sink, which takes everything from `info` up.
pub(super) struct FileSink {
    form: Form,
    queue: Queue,
}

impl Sink for FileSink {
    fn max_level(&self) -> Level {
        Level::INFO
    }

    fn take(&self, event: &LogEvent<'_>) {
        if event.level() <= Level::INFO {
            self.queue.push(event.line(self.form));
        }
    }

    fn flush(&self, patience: Duration) {
        self.queue.flush(patience);
    }
}

/// Appends `bytes`. An error contains the number of bytes that were written.
fn append(mut file: &File, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(0) => return Err((done, io::ErrorKind::WriteZero.into())),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}

/// Returns the index into [`LogFile::last`] for lines of `priority`.
fn lane(priority: Priority) -> usize {
    usize::from(priority != Priority::Ordinary)
}

impl Output for LogFile {
    /// Takes `line`, which the next flush writes.
    fn write(&mut self, line: Line, left_out: u64) {
        let day = line.made.date();
        if self.day != day
            && let Ok(file) = open(&self.folder, self.form, day)
        {
            self.flush();
            // The end of a torn line belongs in the file that has its beginning.
            self.pending.clear();
            (self.is_full, self.day, self.file, self.written) = (is_full(&file), day, file, 0);
            remove_old(&self.folder.reached(), self.form, day);
        }
        self.left_out += left_out;
        if self.is_too_much(line.priority) {
            self.left_out += 1;
            return;
        }
        let before = self.pending.len();
        let carried = self.left_out;
        match Some(self.left_out)
            .filter(|left_out| *left_out > 0)
            .and_then(|count| self.form.after(&line.text, count))
        {
            Some(text) => {
                self.pending.push_str(&text);
                self.left_out = 0;
            }
            None => self.pending.push_str(&line.text),
        }
        self.pending.push('\n');
        self.ends
            .push((self.pending.len(), carried - self.left_out));
        self.written += (self.pending.len() - before) as u64;
        self.last[lane(line.priority)] = Instant::now();
        if self.pending.len() >= AT_ONCE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut is_torn = false;
        if let Err((done, error)) = append(&self.file, self.pending.as_bytes()) {
            is_torn = match done.checked_sub(1) {
                Some(last) => self.pending.as_bytes().get(last) != Some(&b'\n'),
                // The pending text begins with the end of a line that an earlier write tore.
                None => self.pending.starts_with('\n'),
            };
            self.not_written(done, &error);
        }
        self.pending.clear();
        self.ends.clear();
        if is_torn {
            self.pending.push('\n');
        }
        self.is_full = is_full(&self.file);
    }
}

/// Returns true if all sandboxes together have filled the file.
fn is_full(file: &File) -> bool {
    file.metadata().is_ok_and(|data| data.len() >= FILE_BYTES)
}

fn file_name(form: Form, day: Date) -> String {
    format!("{}{day}.log", form.prefix())
}

fn open(folder: &Folder, form: Form, day: Date) -> io::Result<File> {
    let name = file_name(form, day);
    // Without NONBLOCK, a pipe in place of the file would make the start wait for a reader.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(flags)
        .open(folder.reached().join(&name))?;
    let data = file.metadata()?;
    if !data.is_file() || data.uid() != rustix::process::geteuid().as_raw() {
        let path = folder.path().join(name);
        return Err(io::Error::other(format!(
            "{} is not a regular file that the supervisor's user owns",
            path.display()
        )));
    }
    lead_to(&name, form, &folder.reached());
    Ok(file)
}

/// Makes the symlink without a day lead to today's file `name`, for those who follow the log. A
/// file in its place stays.
fn lead_to(name: &str, form: Form, folder: &Path) {
    let link = folder.join(format!("{}log", form.prefix()));
    match std::fs::read_link(&link) {
        Ok(target) if target == Path::new(name) => return,
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) => return,
    }
    // A failure does no harm, because the log itself is written under its own name.
    let new = folder.join(format!(".{}log.{}", form.prefix(), std::process::id()));
    if std::os::unix::fs::symlink(name, &new).is_ok() && std::fs::rename(&new, &link).is_err() {
        let _ = std::fs::remove_file(&new);
    }
}

/// Removes all files except that of `day` and the newest others. Names sort by date; after a jump
/// of the clock, some may be dated in the future.
fn remove_old(folder: &Path, form: Form, day: Date) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_ours = |name: &String| {
        let day = name
            .strip_prefix(form.prefix())
            .and_then(|rest| rest.strip_suffix(".log"));
        day.is_some_and(|day| {
            day.len() == 10
                && day
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || byte == b'-')
        })
    };
    let mut ours: Vec<_> = names.filter(is_ours).collect();
    let current = file_name(form, day);
    ours.retain(|name| *name != current);
    ours.sort_unstable();
    for name in ours.iter().rev().skip(KEPT - 1) {
        let _ = std::fs::remove_file(folder.join(name));
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::{BYTES, FILE_BYTES, LogFile, RESERVED};
    use crate::logging::queue::{Line, Output, Priority};
    use crate::logging::{Folder, Form};

    /// A log file in its own folder.
    struct Log {
        folder: PathBuf,
        file: LogFile,
    }

    impl Log {
        fn new(test: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("openshell-log-{test}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let opened = Folder::new(folder.clone(), std::fs::File::open(&folder).unwrap().into());
            Self {
                file: LogFile::open(opened, Form::Text, |_| ()).unwrap(),
                folder,
            }
        }

        fn path(&self) -> PathBuf {
            std::fs::canonicalize(self.folder.join("openshell.log")).unwrap()
        }

        /// Returns the number of bytes that a line of `priority` adds.
        fn adds(&mut self, priority: Priority, text: &str) -> u64 {
            let size = || std::fs::metadata(self.path()).unwrap().len();
            let before = size();
            self.file.write(
                Line {
                    made: time::OffsetDateTime::now_utc(),
                    priority,
                    text: text.to_owned(),
                },
                0,
            );
            self.file.flush();
            std::fs::metadata(self.path()).unwrap().len() - before
        }

        fn a_second_passes(&mut self) {
            for last in &mut self.file.last {
                *last -= Duration::from_secs(2);
            }
        }
    }

    impl Drop for Log {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    #[test]
    fn a_sandbox_that_has_had_its_share_gets_a_line_a_second_and_a_count_of_those_left_out() {
        let mut log = Log::new("share");
        assert_eq!(log.adds(Priority::Ordinary, "one sandbox=a"), 14);
        log.file.written = BYTES - RESERVED - 1;
        assert_eq!(log.adds(Priority::Ordinary, "two sandbox=a"), 14);
        assert_eq!(log.adds(Priority::Ordinary, "left out sandbox=a"), 0);
        assert_eq!(
            log.adds(Priority::Security, "denied sandbox=a"),
            17 + " [1 line left out before]".len() as u64
        );
        log.file.written = BYTES;
        assert_eq!(log.adds(Priority::Security, "left out sandbox=a"), 0);
        assert_eq!(
            log.adds(Priority::State, "ended sandbox=a"),
            16 + " [1 line left out before]".len() as u64
        );
        assert_eq!(log.adds(Priority::Ordinary, "left out sandbox=a"), 0);
        log.a_second_passes();
        log.adds(Priority::Ordinary, "last sandbox=a");
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(
            text.ends_with("\nlast [1 line left out before] sandbox=a\n"),
            "{text}"
        );
    }

    #[test]
    fn a_clock_that_jumps_back_leaves_the_file_of_its_day() {
        let mut log = Log::new("clock");
        let today = time::OffsetDateTime::now_utc();
        for days in [1, 40, 3000, -1] {
            let made = today + time::Duration::days(days);
            log.file.write(
                Line {
                    made,
                    priority: Priority::State,
                    text: format!("{days}"),
                },
                0,
            );
        }
        log.file.flush();
        let name = super::file_name(Form::Text, (today - time::Duration::days(1)).date());
        assert_eq!(
            std::fs::read_to_string(log.folder.join(name)).unwrap(),
            "-1\n"
        );
        assert_eq!(
            std::fs::read_dir(&log.folder).unwrap().count(),
            super::KEPT + 1
        );
        assert!(log.path().ends_with(super::file_name(
            Form::Text,
            (today - time::Duration::days(1)).date()
        )));
    }

    #[test]
    fn lines_that_a_full_disk_does_not_take_are_counted_in_the_next_one() {
        let mut log = Log::new("disk");
        log.file.written = BYTES - RESERVED;
        assert_eq!(log.adds(Priority::Ordinary, "left out sandbox=a"), 0);
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let whole = std::mem::replace(&mut log.file.file, full);
        for priority in [Priority::Security, Priority::State, Priority::Security] {
            assert_eq!(log.adds(priority, "not written sandbox=a"), 0);
        }
        log.file.file = whole;
        assert_eq!(
            log.file.written,
            BYTES - RESERVED,
            "what is not written is not counted as written"
        );
        log.adds(Priority::Security, "denied sandbox=a");
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(text, "denied [4 lines left out before] sandbox=a\n");
    }

    #[test]
    fn a_file_that_others_have_filled_takes_denials_and_a_line_a_second_of_the_rest() {
        let mut log = Log::new("file");
        std::fs::OpenOptions::new()
            .write(true)
            .open(log.path())
            .unwrap()
            .set_len(FILE_BYTES - 1)
            .unwrap();
        assert_eq!(log.adds(Priority::Ordinary, "fills it sandbox=a"), 19);
        assert_eq!(log.adds(Priority::Ordinary, "left out sandbox=a"), 0);
        for _ in 0..20 {
            assert!(log.adds(Priority::Security, "denied sandbox=a") >= 17);
            assert!(log.adds(Priority::State, "config sandbox=a") >= 17);
        }
        log.a_second_passes();
        assert!(log.adds(Priority::Ordinary, "after a second sandbox=a") > 0);
    }
}
