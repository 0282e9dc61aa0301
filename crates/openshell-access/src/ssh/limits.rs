//! Bounds for everything that clients can make grow.

use std::time::Duration;

/// Bounds of the server.
pub(crate) struct Limits;

impl Limits {
    /// Most connections at once.
    pub(crate) const CONNECTIONS: usize = 1024;
    /// Most channels of one connection at once.
    pub(crate) const CHANNELS_PER_CONNECTION: usize = 64;
    /// Most channels of all connections at once.
    pub(crate) const CHANNELS: usize = 4096;
    /// Most listeners in the sandbox for one connection.
    pub(crate) const LISTENERS: usize = 32;
    /// Time to authenticate, from the end of the preface.
    pub(crate) const AUTHENTICATION: Duration = Duration::from_secs(20);
    /// Interval of keep-alive requests, and how many may stay unanswered.
    pub(crate) const KEEP_ALIVE: (Duration, usize) = (Duration::from_secs(15), 3);
    /// Bytes that a client may send ahead on a channel.
    pub(crate) const WINDOW: u32 = 2 * 1024 * 1024;
    /// Bytes of data in a packet, as many as clients use.
    pub(crate) const PACKET: u32 = 32 * 1024;
    /// Replaces `WINDOW` while a channel of the connection has long input.
    pub(crate) const SMALL_WINDOW: u32 = 4 * 1024;
    /// Bytes of waiting input from which it counts as long and slows down its connection.
    pub(crate) const INPUT: usize = 16 * 1024 * 1024;
    /// Bytes of waiting input above which a channel is closed.
    pub(crate) const MOST_INPUT: usize = 64 * 1024 * 1024;
    /// How long a terminal must be silent after the end of its command, if other processes still
    /// hold it.
    pub(crate) const SILENCE: Duration = Duration::from_millis(100);
    /// Most variables of a session, and most bytes of all of them.
    pub(crate) const VARIABLES: (usize, usize) = (64, 64 * 1024);
    /// Most bytes of a preface, and the time for it to arrive.
    pub(crate) const PREFACE: (usize, Duration) = (1024, Duration::from_secs(10));
    /// Most bytes that are read behind a refused preface, and the time for that, so that the client
    /// sees the answer.
    pub(crate) const PREFACE_REST: u64 = 64 * 1024;
    pub(crate) const LINGER: Duration = Duration::from_secs(1);
    /// Most nonces of prefaces that are remembered.
    pub(crate) const NONCES: usize = 10_000;
}
