//! The policy that was loaded last, as text.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use parking_lot::Mutex;

/// The text of a policy, and the file that it came from.
#[derive(Clone, Debug, Default)]
pub struct LoadedText {
    /// The text, with what the command line adds.
    pub text: String,
    /// The file that the text is exactly; `None` if the command line adds to it, or if there is none.
    pub(super) file: Option<FileState>,
}

/// What tells a file from another one, and from itself before it was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileState {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    pub(super) fn of(data: &Metadata) -> Self {
        Self {
            device: data.dev(),
            inode: data.ino(),
            bytes: data.size(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        }
    }
}

/// The policy that was loaded last; nothing at a gateway.
#[derive(Clone, Debug, Default)]
pub struct Loaded(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    text: LoadedText,
    /// How often this process has written the file.
    writes: u64,
}

impl Loaded {
    /// Returns the text and its file.
    #[must_use]
    pub fn get(&self) -> LoadedText {
        self.0.lock().text.clone()
    }

    /// Returns how often this process has written the file.
    pub(super) fn writes(&self) -> u64 {
        self.0.lock().writes
    }

    /// Notes what was loaded, which was read after as many `writes`. Of what was written meanwhile it
    /// knows nothing.
    pub(super) fn set(&self, text: LoadedText, writes: u64) {
        let mut state = self.0.lock();
        if state.writes == writes {
            state.text = text;
        }
    }

    /// Notes what this process has written.
    pub(super) fn replace(&self, text: LoadedText) {
        let mut state = self.0.lock();
        state.writes += 1;
        state.text = text;
    }
}
