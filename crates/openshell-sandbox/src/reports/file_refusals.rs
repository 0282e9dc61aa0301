//! Refused accesses to files: each kind is logged once, counted, and summed up at the end of a run.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openshell_events::event::{Audit, Event, FileRefused};
use openshell_events::words::{FileAccess, Severity};
use openshell_policy::policy::PolicyForm;
use openshell_supervisor::calls::file_calls::{Accessed, RefusedBy};
use openshell_supervisor::files::carve_outs::Restriction;
use openshell_supervisor::identity::run_as::{ProcessIdentity, User};
use parking_lot::Mutex;

use openshell_events::text;

/// The most kinds of access that are kept apart. Further ones are counted together, and not logged.
const KINDS: usize = 1024;

/// The most lines of a summary; the log has the rest.
const LINES: usize = 10;

/// Refused accesses so far.
#[derive(Debug)]
pub(crate) struct FileRefusals {
    audit: Arc<dyn Audit>,
    user: User,
    form: PolicyForm,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    kinds: HashMap<Kind, Refused>,
    others: u64,
}

/// An access of a program to a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kind {
    program: String,
    access: FileAccess,
    path: PathBuf,
}

#[derive(Debug)]
struct Refused {
    /// Position in the order in which the kinds came.
    number: usize,
    count: u64,
    by: RefusedBy,
    remedy: Option<Remedy>,
}

#[derive(Debug)]
struct Remedy {
    text: String,
    /// The path that it grants.
    grants: Option<PathBuf>,
}

impl FileRefusals {
    /// Returns an empty count. Events go to `audit`, and remedies are written for `user` and for a
    /// policy of this `form`.
    pub(crate) fn new(audit: Arc<dyn Audit>, user: User, form: PolicyForm) -> Self {
        Self {
            audit,
            user,
            form,
            counted: Mutex::default(),
        }
    }

    /// Returns the user and groups of the workload.
    pub(crate) fn identity(&self) -> &ProcessIdentity {
        &self.user.identity
    }

    /// Counts an access if it is refused, and logs the first of its kind.
    pub(crate) fn add(&self, accessed: &Accessed) {
        let Some(by) = accessed.refused_by else {
            return;
        };
        let program = std::fs::read_link(format!("/proc/{}/exe", accessed.thread));
        let program = program.map(|program| program.to_string_lossy().into_owned());
        let kind = Kind {
            program: program.as_deref().unwrap_or("-").to_owned(),
            access: accessed.access,
            path: accessed.path.clone(),
        };
        {
            // A panic elsewhere cannot leave the value half changed.
            let mut counted = self.counted.lock();
            let number = counted.kinds.len();
            match counted.kinds.get_mut(&kind) {
                Some(known) => return known.count += 1,
                None if number >= KINDS => return counted.others += 1,
                None => {
                    let remedy = remedy(accessed, by, &self.user, self.form);
                    drop(counted.kinds.insert(
                        kind,
                        Refused {
                            number,
                            count: 1,
                            by,
                            remedy,
                        },
                    ));
                }
            }
        }
        self.audit.event(&Event::File(FileRefused {
            severity: if by == RefusedBy::NoGrant {
                Severity::Low
            } else {
                Severity::Medium
            },
            binary: program.as_deref().ok(),
            pid: inner_pid(accessed.thread),
            access: accessed.access,
            path: &accessed.path.to_string_lossy(),
            reason: reason(by),
        }));
    }

    /// Returns the refused accesses with their counts and remedies, for people; `None` if there
    /// were none.
    pub(crate) fn summary(&self) -> Option<String> {
        let counted = self.counted.lock();
        let mut all: Vec<_> = counted.kinds.iter().collect();
        // Listed last: most programs look at files of the kernel, and do without them if refused.
        let is_kernels = |path: &Path| path.starts_with("/sys") || path.starts_with("/proc");
        let granted = |(kind, refused): &(&Kind, &Refused)| {
            let remedy = refused.remedy.as_ref();
            let grants = remedy.and_then(|remedy| remedy.grants.clone());
            grants.filter(|_| kind.access == FileAccess::Write)
        };
        let writable: Vec<PathBuf> = all.iter().filter_map(granted).collect();
        all.sort_by_key(|(kind, refused)| (is_kernels(&kind.path), refused.number));
        let mut text = "openshell-sandbox: files refused:".to_owned();
        for (
            Kind {
                program,
                access,
                path,
            },
            refused,
        ) in all.iter().take(LINES)
        {
            let line = format!(
                "{} x {program}: {} {}",
                refused.count,
                access.as_str(),
                path.display()
            );
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "\n  {}: {}",
                text::printable(&line),
                reason(refused.by)
            );
            if let Some(remedy) = &refused.remedy
                && !(*access != FileAccess::Write && remedy.is_below(&writable))
            {
                let _ = write!(text, "\n      {}", text::printable(&remedy.text));
            }
        }
        let rest = all
            .iter()
            .skip(LINES)
            .map(|(_, refused)| refused.count)
            .sum::<u64>()
            + counted.others;
        if rest > 0 {
            let _ = write!(text, "\n  {rest} more; see the log");
        }
        Some(text).filter(|_| !all.is_empty())
    }
}

impl Remedy {
    /// Returns true if the path that it grants lies in one of `folders`. There a line for reading
    /// would take writing away.
    fn is_below(&self, folders: &[PathBuf]) -> bool {
        let path = self.grants.as_ref();
        path.is_some_and(|path| folders.iter().any(|folder| path.starts_with(folder)))
    }
}

/// Returns the PID, in the sandbox's PID namespace, of a thread's process (proc_pid_status(5)).
fn inner_pid(thread: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("NStgid:"))?
        .split_whitespace()
        .next_back()?
        .parse()
        .ok()
}

fn reason(by: RefusedBy) -> &'static str {
    match by {
        RefusedBy::NoGrant => "no rule grants it",
        RefusedBy::CarveOut(Restriction::Hidden) => "it is hidden",
        RefusedBy::CarveOut(Restriction::ReadOnly) => "it is read-only below a writable folder",
        RefusedBy::CarveOut(Restriction::NoExec) => "nothing may be executed there",
        RefusedBy::Protection => "it is a file of the run, or on a read-only file system",
    }
}

/// Folders of a home in which each program has its own folder (XDG Base Directory Specification).
const SHARED: &[&str] = &["", ".cache", ".local/share", ".local/state"];

fn is_shared(folder: &Path, home: Option<&Path>) -> bool {
    let inside = home.and_then(|home| folder.strip_prefix(home).ok());
    inside.is_some_and(|inside| SHARED.iter().any(|shared| Path::new(shared) == inside))
}

/// Returns the line of policy, or the flag, that would permit the access, or the reason why none
/// would.
fn remedy(accessed: &Accessed, by: RefusedBy, user: &User, form: PolicyForm) -> Option<Remedy> {
    let Accessed {
        path,
        access,
        is_entry,
        ..
    } = accessed;
    // For a directory entry, the folder is to be granted. If that is the home or a folder that all
    // programs share, the path itself is: a start makes it if it is missing.
    let folder = path
        .parent()
        .filter(|folder| *is_entry && !is_shared(folder, user.home.as_deref()));
    let path: &Path = folder.unwrap_or(path);
    let words = |text: String| Some(Remedy { text, grants: None });
    let shown = path.display().to_string();
    if accessed.is_refused_by_mode {
        return words(format!(
            "the mode of {shown} refuses it to the user {} in any case",
            user.name
        ));
    }
    let is_wide = path.parent().is_none_or(|above| above == Path::new("/"))
        || Some(path) == user.home.as_deref();
    let (key, flag) = match access {
        FileAccess::Write => ("read_write", "--write"),
        FileAccess::Read | FileAccess::List | FileAccess::Execute => ("read_only", "--read"),
    };
    // A start makes what is missing as a folder, and the command may want a file.
    let is_made = *is_entry && path == accessed.path;
    match by {
        RefusedBy::NoGrant if is_wide => words(format!(
            "{shown} holds more than a command should have; list what it needs in it"
        )),
        RefusedBy::NoGrant if shown.contains('*') => words(
            "no line names it alone, because `*` in a path is a pattern; list its folder"
                .to_owned(),
        ),
        // What is printed would name another file.
        RefusedBy::NoGrant
            if path
                .to_str()
                .is_none_or(|path| text::printable(path) != path) =>
        {
            None
        }
        RefusedBy::NoGrant => Some(Remedy {
            text: match form {
                PolicyForm::Flags => flag_for(flag, &shown, is_made),
                PolicyForm::Document => {
                    format!("add `- {shown}` to filesystem_policy.{key} ({flag})")
                }
            },
            grants: Some(path.to_owned()),
        }),
        RefusedBy::CarveOut(Restriction::ReadOnly) => words(format!(
            "list {shown} in filesystem_policy.read_write, and no folder above it in read_only"
        )),
        RefusedBy::CarveOut(Restriction::Hidden) => words(format!(
            "list {shown} in filesystem_policy.{key}, and neither it nor a folder above it in hidden"
        )),
        RefusedBy::CarveOut(Restriction::NoExec) => {
            words("take it out of filesystem_policy.noexec".to_owned())
        }
        RefusedBy::Protection => None,
    }
}

fn flag_for(flag: &str, path: &str, is_made: bool) -> String {
    let word = text::shell_word(path);
    if is_made {
        format!("make {word} outside, and add {flag} {word}")
    } else {
        format!("add {flag} {word}")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use openshell_events::event::{Audit, Event};
    use openshell_events::words::FileAccess;
    use openshell_policy::policy::PolicyForm;
    use openshell_supervisor::calls::file_calls::{Accessed, RefusedBy};
    use openshell_supervisor::identity::run_as::{ProcessIdentity, User};
    use parking_lot::Mutex;

    use super::{FileRefusals, KINDS};

    /// A receiver that keeps the path of every event.
    #[derive(Debug, Default)]
    struct Paths(Mutex<Vec<String>>);

    impl Audit for Paths {
        fn event(&self, event: &Event<'_>) {
            if let Event::File(refused) = event {
                self.0.lock().push(refused.path.to_owned());
            }
        }
    }

    fn user() -> User {
        let identity = ProcessIdentity {
            uid: 61184,
            gid: 61185,
            groups: vec![61185],
            is_callers: false,
        };
        User {
            identity,
            name: "agent-x".to_owned(),
            home: Some("/home/agent-x".into()),
            shell: None,
        }
    }

    fn refused(path: &str, access: FileAccess, is_entry: bool) -> Accessed {
        let thread = rustix::process::getpid().as_raw_nonzero().get();
        let refused_by = Some(RefusedBy::NoGrant);
        let is_refused_by_mode = path == "/etc/shadow";
        Accessed {
            is_entry,
            refused_by,
            is_refused_by_mode,
            ..Accessed::new(thread, PathBuf::from(path), access)
        }
    }

    #[test]
    fn each_kind_is_logged_once_and_summed_up_with_the_line_that_would_permit_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        std::fs::write(&file, "").unwrap();
        let folder = folder.path().display();
        let file = file.display();
        let paths = Arc::new(Paths::default());
        let refusals = FileRefusals::new(Arc::clone(&paths) as _, user(), PolicyForm::Document);
        assert_eq!(refusals.summary(), None);
        for _ in 0..3 {
            refusals.add(&refused(&file.to_string(), FileAccess::Read, false));
        }
        refusals.add(&refused(&format!("{folder}/new"), FileAccess::Write, true));
        refusals.add(&refused("/etc/shadow", FileAccess::Read, false));
        let mut permitted = refused("/etc/passwd", FileAccess::Read, false);
        permitted.refused_by = None;
        refusals.add(&permitted);
        assert_eq!(
            *paths.0.lock(),
            [
                file.to_string(),
                format!("{folder}/new"),
                "/etc/shadow".to_owned()
            ]
        );
        let program = std::env::current_exe().unwrap().display().to_string();
        let expected = format!(
            "openshell-sandbox: files refused:\n  3 x {program}: read {file}: no rule grants it\n  1 x \
             {program}: write {folder}/new: no rule grants it\n      add \
             `- {folder}` to filesystem_policy.read_write (--write)\n  1 x {program}: read /etc/shadow: no rule grants \
             it\n      the mode of /etc/shadow refuses it to the user agent-x in any case"
        );
        assert_eq!(refusals.summary().unwrap(), expected);
    }

    #[test]
    fn folders_that_all_programs_share_are_not_proposed_and_files_of_the_kernel_come_last() {
        let refusals = FileRefusals::new(Arc::new(Paths::default()), user(), PolicyForm::Document);
        for path in [
            "/sys/fs/cgroup",
            "/home/agent-x/.cache/go-build",
            "/home/agent-x/.local/share/tool",
            "/srv/new",
        ] {
            refusals.add(&refused(path, FileAccess::Write, true));
        }
        let summary = refusals.summary().unwrap();
        let proposed = summary
            .lines()
            .filter_map(|line| line.split('`').nth(1))
            .collect::<Vec<_>>();
        assert_eq!(
            proposed[..2],
            [
                "- /home/agent-x/.cache/go-build",
                "- /home/agent-x/.local/share/tool"
            ],
            "{summary}"
        );
        assert!(
            summary
                .lines()
                .nth_back(1)
                .unwrap()
                .contains("/sys/fs/cgroup"),
            "{summary}"
        );
    }

    #[test]
    fn a_flag_names_exactly_the_file_and_nothing_that_is_to_be_made() {
        let remedies = |path: &str, is_entry: bool| {
            let refusals = FileRefusals::new(Arc::new(Paths::default()), user(), PolicyForm::Flags);
            let access = if is_entry {
                FileAccess::Write
            } else {
                FileAccess::Read
            };
            refusals.add(&refused(path, access, is_entry));
            let summary = refusals.summary().unwrap();
            summary.lines().nth(2).map(|line| line.trim().to_owned())
        };
        let flag = |flag: &str| Some(flag.to_owned());
        assert_eq!(remedies("/srv/a", false), flag("add --read /srv/a"));
        assert_eq!(remedies("/srv/a b", false), flag("add --read '/srv/a b'"));
        assert_eq!(remedies("/srv/b/new", true), flag("add --write /srv/b"));
        let made = remedies("/home/agent-x/new", true).unwrap();
        let words = "make /home/agent-x/new outside, and add --write /home/agent-x/new";
        assert_eq!(made, words);
        let pattern = remedies("/srv/**", false).unwrap();
        assert!(pattern.contains("is a pattern") && !pattern.contains("--read"));
        assert_eq!(remedies("/srv/a\n--write", false), None);
    }

    #[test]
    fn what_a_workload_can_add_is_bounded() {
        let paths = Arc::new(Paths::default());
        let refusals = FileRefusals::new(Arc::clone(&paths) as _, user(), PolicyForm::Document);
        for number in 0..KINDS + 5 {
            refusals.add(&refused(
                &format!("/nowhere/{number}"),
                FileAccess::Read,
                false,
            ));
        }
        assert_eq!(paths.0.lock().len(), KINDS);
        let summary = refusals.summary().unwrap();
        assert!(
            summary.ends_with(&format!("\n  {} more; see the log", KINDS + 5 - 10)),
            "{summary}"
        );
    }
}
