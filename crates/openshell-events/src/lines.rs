//! Lines of the log on their way to a receiver outside of this host.

/// A line, and the facts of its event.
#[derive(Clone, Copy, Debug)]
pub struct Line<'l> {
    /// Milliseconds since 1970.
    pub time_ms: i64,
    /// The level's name, such as `INFO`.
    pub level: &'l str,
    /// The part that says it, such as `audit`.
    pub target: &'l str,
    /// The text.
    pub message: &'l str,
    /// Names and values, in the order of the names.
    pub fields: &'l [(&'l str, &'l str)],
}

/// A queue of lines, which are left out while it is full.
pub trait LineQueue: Send + Sync {
    /// Returns true if it has room for a line; otherwise one is counted as dropped.
    fn has_room(&self) -> bool;

    /// Takes a line, and returns true, or counts it as dropped.
    fn push(&self, line: Line<'_>) -> bool;
}
