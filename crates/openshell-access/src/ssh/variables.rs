//! Environment variables that clients may set.

use std::ffi::OsString;

use openshell_policy::variable;

use crate::ssh::limits::Limits;

/// Variable with which a client asks for only the output of the main process, if its value is 1.
const READ_ONLY: &str = "OPENSHELL_MAIN_READ_ONLY";

/// Whole names.
const NAMES: &[&str] = &["LANG", "COLORTERM", "NO_COLOR", "TZ"];

/// Prefixes of names.
const PREFIXES: &[&str] = &["LC_", "GIT_AUTHOR_", "GIT_COMMITTER_"];

/// The variables of one session.
#[derive(Debug, Default)]
pub(crate) struct Variables {
    set: Vec<(OsString, OsString)>,
    bytes: usize,
    is_read_only: bool,
}

impl Variables {
    /// Sets a variable; returns false if clients may not set it, or if there are too many.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> bool {
        // This one is for the server, and is not passed to the command.
        if name == READ_ONLY {
            self.is_read_only = value == "1";
            return true;
        }
        let (most, most_bytes) = Limits::VARIABLES;
        let bytes = self.bytes + name.len() + value.len();
        let is_accepted =
            NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let is_accepted = is_accepted && !variable::is_refused(name) && !value.contains('\0');
        if !is_accepted || self.set.len() >= most || bytes > most_bytes {
            return false;
        }
        self.bytes = bytes;
        self.set.push((name.into(), value.into()));
        true
    }

    /// Returns true if the client wants only the output of the main process.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the variables in the order in which they were set.
    pub(crate) fn into_inner(self) -> Vec<(OsString, OsString)> {
        self.set
    }
}

#[cfg(test)]
mod tests {
    use super::Variables;

    #[test]
    fn clients_set_language_colour_zone_and_authors_alone() {
        let mut variables = Variables::default();
        for name in [
            "LANG",
            "LC_ALL",
            "COLORTERM",
            "NO_COLOR",
            "TZ",
            "GIT_AUTHOR_NAME",
            "GIT_COMMITTER_EMAIL",
        ] {
            assert!(variables.set(name, "x"), "{name}");
        }
        for name in [
            "PATH",
            "LD_PRELOAD",
            "BASH_ENV",
            "HTTPS_PROXY",
            "SSL_CERT_FILE",
            "OPENSHELL_X",
            "TERM",
            "",
            "LC_A=B",
        ] {
            assert!(!variables.set(name, "x"), "{name}");
        }
        assert!(!variables.set("LC_ALL", &"x".repeat(64 * 1024)), "too long");
        assert!(
            (0..100)
                .map(|_| variables.set("TZ", "x"))
                .any(|is_set| !is_set),
            "too many"
        );
    }
}
