//! Bounds of what clients can grow.

use std::time::Duration;

/// Bounds of the server.
pub(crate) struct Limits;

impl Limits {
    /// Connections at once.
    pub(crate) const CONNECTIONS: usize = 1024;
    /// Channels of a connection at once.
    pub(crate) const CHANNELS_PER_CONNECTION: usize = 64;
    /// Channels of all connections at once.
    pub(crate) const CHANNELS: usize = 4096;
    /// Listeners of a connection inside.
    pub(crate) const LISTENERS: usize = 32;
    /// Time to authenticate, from the end of the preface.
    pub(crate) const AUTHENTICATION: Duration = Duration::from_secs(20);
    /// Interval of keep-alive requests, and how many may stay unanswered.
    pub(crate) const KEEP_ALIVE: (Duration, usize) = (Duration::from_secs(15), 3);
    /// Bytes that a client may send ahead, per channel.
    pub(crate) const WINDOW: u32 = 2 * 1024 * 1024;
    /// Bytes of data in a packet: that of clients.
    pub(crate) const PACKET: u32 = 32 * 1024;
    /// The same where a channel has long input.
    pub(crate) const SMALL_WINDOW: u32 = 4 * 1024;
    /// Bytes of waiting input that are long, and slow down its connection.
    pub(crate) const INPUT: usize = 16 * 1024 * 1024;
    /// Bytes of waiting input at which a channel is closed.
    pub(crate) const MOST_INPUT: usize = 64 * 1024 * 1024;
    /// Silence of a terminal after the end of its command, while other processes hold it.
    pub(crate) const SILENCE: Duration = Duration::from_millis(100);
    /// Variables of a session, and their bytes.
    pub(crate) const VARIABLES: (usize, usize) = (64, 64 * 1024);
    /// Bytes of a preface, and time for it.
    pub(crate) const PREFACE: (usize, Duration) = (1024, Duration::from_secs(10));
    /// Bytes that are read behind a refused preface, and time for them, so that its client sees the
    /// answer.
    pub(crate) const PREFACE_REST: u64 = 64 * 1024;
    pub(crate) const LINGER: Duration = Duration::from_secs(1);
    /// Nonces of prefaces that are remembered.
    pub(crate) const NONCES: usize = 10_000;
}
