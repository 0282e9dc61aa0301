//! Log lines that are sent to a receiver outside of this host.

/// A line, and the facts of its event.
#[derive(Clone, Copy, Debug)]
pub struct Line<'l> {
    /// Milliseconds since 1970.
    pub time_ms: i64,
    /// The level's name, such as `INFO`.
    pub level: &'l str,
    /// The part of the sandbox that logs it, such as `audit`.
    pub target: &'l str,
    /// The text.
    pub message: &'l str,
    /// Pairs of name and value, sorted by name.
    pub fields: &'l [(&'l str, &'l str)],
}

/// A queue of lines. While it is full, further lines are dropped.
pub trait LineQueue: Send + Sync {
    /// Returns true if there is room for a line; otherwise counts one line as dropped.
    fn has_room(&self) -> bool;

    /// Takes a line and returns true, or counts it as dropped and returns false.
    fn push(&self, line: Line<'_>) -> bool;
}
