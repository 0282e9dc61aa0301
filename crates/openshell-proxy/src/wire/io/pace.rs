//! The pace of searches on the threads of connections: a search that takes long leaves time for
//! other connections.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

/// The number of bytes that are searched at once, of ordinary text and of text that takes long.
const PART: usize = 64 * 1024;
const SLOW_PART: usize = 16 * 1024;

/// The speed in bytes per millisecond below which a search is slow. Ordinary text is searched
/// several times as fast.
const SLOW: usize = 32 * 1024;

/// The number of tasks that wait for their turn.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// The pace of one task. After a slow search it pauses for as long as the search took, times the
/// number of tasks that pause: together, slow tasks take the time of one thread.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    is_slow: bool,
    /// The time that slow searches took, for which there was no pause yet.
    owed: Duration,
    pause: Option<Pause>,
}

#[derive(Debug)]
struct Pause(Pin<Box<Sleep>>);

impl Pause {
    fn of(owed: Duration) -> Self {
        let waiting = WAITING.fetch_add(1, Ordering::Relaxed) + 1;
        Self(Box::pin(sleep(owed * waiting)))
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pace {
    /// Runs `search` over this number of `bytes`, and notes whether it was slow.
    pub(crate) fn measure<T>(&mut self, bytes: usize, search: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let found = search();
        let took = began.elapsed();
        self.is_slow = took.as_millis() > 0 && bytes as u128 / took.as_millis() < SLOW as u128;
        if self.is_slow {
            self.owed += took;
        }
        found
    }

    /// Returns pending until the next search may begin.
    pub(crate) fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.owed.is_zero() {
            self.pause = Some(Pause::of(std::mem::take(&mut self.owed)));
        }
        if let Some(Pause(pause)) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }
}

/// A body in parts that are searched at their pace.
#[derive(Debug)]
pub(crate) struct Paced<B> {
    body: B,
    /// The bytes that were read from the body but not taken yet.
    rest: Bytes,
    pub(crate) pace: Pace,
}

impl<B> Paced<B> {
    pub(crate) fn new(body: B) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            pace: Pace::default(),
        }
    }

    fn next_part(&mut self) -> Bytes {
        let most = if self.pace.is_slow { SLOW_PART } else { PART };
        self.rest.split_to(self.rest.len().min(most))
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Paced<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        ready!(this.pace.poll_turn(cx));
        if this.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            this.rest = match frame.into_data() {
                Ok(data) => data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
        }
        Poll::Ready(Some(Ok(Frame::data(this.next_part()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        longer(self.body.size_hint(), self.rest.len())
    }
}

/// Returns the size of a body, of which this number of `bytes` was read before.
pub(crate) fn longer(mut hint: SizeHint, bytes: usize) -> SizeHint {
    let bytes = bytes as u64;
    if let Some(upper) = hint.upper() {
        hint.set_upper(upper + bytes);
    }
    hint.set_lower(hint.lower() + bytes);
    hint
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Full};

    use super::{PART, Pace, Paced, SLOW_PART};

    #[tokio::test(start_paused = true)]
    async fn a_search_that_takes_long_is_followed_by_a_pause_and_another_by_none() {
        let slow = || std::thread::sleep(Duration::from_millis(3));
        let mut pace = Pace::default();
        let began = tokio::time::Instant::now();
        pace.measure(1024, || ());
        poll_fn(|cx| pace.poll_turn(cx)).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        pace.measure(1024, slow);
        poll_fn(|cx| pace.poll_turn(cx)).await;
        assert!(
            began.elapsed() >= Duration::from_millis(3),
            "{:?}",
            began.elapsed()
        );
    }

    #[tokio::test]
    async fn a_body_comes_in_smaller_parts_once_it_takes_long() {
        let bytes = Bytes::from(
            (0..200_000_u32)
                .flat_map(u32::to_le_bytes)
                .collect::<Vec<_>>(),
        );
        let mut body = Paced::new(Full::new(bytes.clone()));
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            bytes[..PART]
        );
        body.pace.is_slow = true;
        let next = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(next, bytes[PART..PART + SLOW_PART]);
        assert_eq!(
            body.collect().await.unwrap().to_bytes(),
            bytes[PART + SLOW_PART..]
        );
    }
}
