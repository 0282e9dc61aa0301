//! The memory that all connections share: HTTP/2 flow-control windows, heads of unanswered
//! requests, the parts of requests that are read ahead, and what searches of responses hold back
//! and decode.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::ground::quota::{Quota, QuotaGuard};
use crate::ground::shares::{Share, Shares};

/// The memory budgets of all connections.
#[derive(Debug)]
pub struct Memory {
    windows: Arc<Semaphore>,
    heads: Arc<Quota>,
    searched: Arc<Quota>,
    decoded: Arc<Quota>,
    ahead: Shares,
    answers: Shares,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            windows: Arc::new(Semaphore::new(Limits::WINDOWS_KIB)),
            heads: Arc::new(Quota::new(
                Limits::STREAM_HEADS_KIB / 2,
                Limits::STREAM_HEADS_KIB,
            )),
            searched: Arc::new(Quota::new(Limits::SEARCHED_KIB / 2, Limits::SEARCHED_KIB)),
            decoded: Arc::new(Quota::new(
                Limits::DECODED_ANSWERS / 2,
                Limits::DECODED_ANSWERS,
            )),
            ahead: Shares::new(Limits::AHEAD_KIB),
            answers: Shares::new(Limits::AHEAD_KIB),
        }
    }
}

impl Memory {
    /// Allocates the windows of one more connection. They have the sizes of [`Limits`] if these fit
    /// into half of the free budget, otherwise the largest power-of-two fraction that does. The
    /// smallest, 1/32, takes nothing from the budget.
    #[must_use]
    pub fn windows(&self) -> Windows {
        let mut divisor = 1;
        while divisor < Windows::SMALLEST {
            let kib = Windows {
                divisor,
                _lease: None,
            }
            .kib();
            if 2 * kib as usize <= self.windows.available_permits()
                && let Ok(lease) = Arc::clone(&self.windows).try_acquire_many_owned(kib)
            {
                return Windows {
                    divisor,
                    _lease: Some(lease),
                };
            }
            divisor *= 2;
        }
        Windows {
            divisor,
            _lease: None,
        }
    }

    /// Reserves memory for a request head of `program` until the guard is dropped; `None` if the
    /// program's part, or all of the memory, is in use.
    #[must_use]
    pub fn head(&self, program: &str, bytes: usize) -> Option<QuotaGuard> {
        self.heads.take_many(program, bytes.div_ceil(1024))
    }

    /// Reserves memory for what is held back of a response to `program`, while it is searched for
    /// secrets of up to `longest` bytes. Dropping the guard frees it. There is none if `longest` is
    /// `None`.
    ///
    /// # Errors
    /// Fails if the program's part, or all of the memory for such responses, is in use.
    pub fn searching(
        &self,
        program: &str,
        longest: Option<usize>,
    ) -> Result<Option<QuotaGuard>, Refusal> {
        let Some(longest) = longest else {
            return Ok(None);
        };
        // Each byte has a mark beside it, which takes another byte.
        let room = self
            .searched
            .take_many(program, (2 * longest).div_ceil(1024));
        room.map(Some).ok_or(Refusal::limit_reached(
            "too many answers are being searched for secrets",
        ))
    }

    /// Reserves memory for `bytes` of a request of `program` that are read before it is sent, until
    /// the share is dropped.
    ///
    /// # Errors
    /// Fails if the program's part, or all of the memory, is still in use after
    /// [`Limits::AHEAD_WAIT`], or if the part is smaller than `bytes`.
    pub async fn ahead(&self, program: &str, bytes: usize) -> Result<Share, Refusal> {
        if kib(bytes) as usize > Limits::AHEAD_KIB_PER_PROGRAM {
            return Err(Refusal::body_too_large(
                Limits::AHEAD_KIB_PER_PROGRAM * 1024,
            ));
        }
        let taken = self
            .ahead
            .take(program, kib(bytes), Limits::AHEAD_KIB_PER_PROGRAM);
        let taken = timeout(Limits::AHEAD_WAIT, taken).await;
        taken
            .ok()
            .and_then(Result::ok)
            .ok_or(Refusal::limit_reached(
                "too many bytes of requests are being read ahead",
            ))
    }

    /// Reserves memory as [`Self::ahead`] does, but without waiting, for bytes that may also be
    /// sent as they arrive; `None` if the program's part, or all of the memory, is in use.
    #[must_use]
    pub fn ahead_now(&self, program: &str, bytes: usize) -> Option<Share> {
        self.ahead
            .take_now(program, kib(bytes), Limits::AHEAD_KIB_PER_PROGRAM)
    }

    /// Reserves memory for `bytes` of an answer to `program` that are read before they are passed on,
    /// without waiting; `None` if the program's part, or all of the memory, is in use.
    #[must_use]
    pub fn answer(&self, program: &str, bytes: usize) -> Option<Share> {
        self.answers
            .take_now(program, kib(bytes), Limits::AHEAD_KIB_PER_PROGRAM)
    }

    /// Reserves memory for the window of a decoder of an answer to `program`, until the guard is
    /// dropped.
    ///
    /// # Errors
    /// Fails if the program's part, or all of the memory, is in use.
    pub fn decoding(&self, program: &str) -> Result<QuotaGuard, Refusal> {
        let place = self.decoded.take(program);
        place.ok_or(Refusal::limit_reached(
            "too many compressed answers are being searched for secrets",
        ))
    }
}

/// Returns the size of `bytes` in KiB, rounded up.
pub(crate) fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

/// The HTTP/2 window sizes of one connection, with their lease of the shared budget, which ends
/// when this is dropped.
#[derive(Debug)]
pub struct Windows {
    divisor: u32,
    _lease: Option<OwnedSemaphorePermit>,
}

impl Windows {
    /// The divisor of the windows that every connection gets without a lease.
    const SMALLEST: u32 = 32;

    /// Returns the window of one client stream in bytes.
    #[must_use]
    pub fn client_stream(&self) -> u32 {
        Limits::STREAM_WINDOW / self.divisor
    }

    /// Returns the window of the client connection in bytes.
    #[must_use]
    pub fn client(&self) -> u32 {
        (Limits::CONNECTION_WINDOW / self.divisor).max(SPECIFIED)
    }

    /// Returns the window of one upstream stream in bytes.
    #[must_use]
    pub fn upstream_stream(&self) -> u32 {
        Limits::UPSTREAM_STREAM_WINDOW / self.divisor
    }

    /// Returns the window of the upstream connection in bytes.
    #[must_use]
    pub fn upstream(&self) -> u32 {
        (Limits::UPSTREAM_WINDOW / self.divisor).max(SPECIFIED)
    }

    /// Returns how many bytes of a stream may be queued for sending, per direction.
    #[must_use]
    pub fn send(&self) -> usize {
        (Limits::STREAM_SEND_BYTES / self.divisor as usize).max(SMALLEST_SEND)
    }

    /// Returns the size of all windows and send queues together, in KiB.
    fn kib(&self) -> u32 {
        let sends = 2 * Limits::STREAMS * u32::try_from(self.send()).unwrap_or(u32::MAX);
        (self.client() + self.upstream() + sends).div_ceil(1024)
    }
}

/// The connection window in bytes below which no setting can go (RFC 9113 §6.9.2).
const SPECIFIED: u32 = 65_535;

/// The size in bytes of the smallest frame that is worth sending.
const SMALLEST_SEND: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::{Limits, Memory, Windows};

    #[test]
    fn all_windows_together_have_a_bound_and_each_connection_some() {
        let memory = Memory::default();
        let first = memory.windows();
        assert_eq!(
            (first.upstream(), first.client_stream()),
            (Limits::UPSTREAM_WINDOW, Limits::STREAM_WINDOW)
        );
        let all: Vec<Windows> = (0..Limits::HTTP2_CONNECTIONS - 1)
            .map(|_| memory.windows())
            .collect();
        let kib: u32 = all.iter().chain([&first]).map(Windows::kib).sum();
        assert!(kib < 768 * 1024, "{kib} KiB");
        let last = all.last().unwrap();
        assert!(
            last.upstream_stream() >= 32 * 1024 && last.client_stream() >= 4 * 1024,
            "{last:?}"
        );
        // Unread data of fifteen streams blocks no other stream.
        assert!(last.upstream() >= 16 * last.upstream_stream());
        drop((all, first));
        assert_eq!(memory.windows().upstream(), Limits::UPSTREAM_WINDOW);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_read_ahead_has_a_bound_and_a_program_a_quarter_of_it() {
        const PART: usize = 64 * 1024;
        let memory = Memory::default();
        let held: Vec<_> = std::iter::from_fn(|| memory.ahead_now("/a", PART)).collect();
        assert_eq!(held.len() * PART, Limits::AHEAD_KIB * 1024 / 4);
        let refusal = memory.ahead("/a", 1).await.unwrap_err();
        assert_eq!(refusal.status(), 503);
        let quarter = Limits::AHEAD_KIB_PER_PROGRAM * 1024;
        let others = ["/b", "/c", "/d"].map(|program| memory.ahead_now(program, quarter).unwrap());
        assert!(memory.ahead_now("/e", 1).is_none());
        let (waited, ()) = tokio::join!(memory.ahead("/a", PART), async { drop(held) });
        assert!(waited.is_ok());
        drop(others);
    }

    #[test]
    fn heads_that_wait_have_a_bound() {
        let memory = Memory::default();
        let held: Vec<_> = std::iter::from_fn(|| memory.head("/a", 16 * 1024)).collect();
        assert_eq!(held.len(), Limits::STREAM_HEADS_KIB / 2 / 16);
        assert!(memory.head("/a", 1).is_none() && memory.head("/b", 1).is_some());
        drop(held);
        assert!(memory.head("/a", 16 * 1024).is_some());
    }
}
