//! Bodies of requests. Before anything is sent, as much of them is read as rules need.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_ENCODING, TRAILER};
use tokio::time::timeout;

use crate::decide::message::{Ahead, Need};
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::wire::http::head;
use crate::wire::io::complete_body::{CompleteBody, IncompleteBody};
use crate::wire::io::decoded::{ContentCoding, DecodeError};
use crate::wire::io::pace::longer;
use crate::wire::memory::{Memory, kib};

/// The reason for refusing a body that does not match its head.
pub const MALFORMED: &str = "the body of the request is malformed, or ended before its end";

/// The body of a client's request, of which a beginning may be read ahead. It is still sent from
/// its beginning.
#[derive(Debug)]
pub struct AheadBody<B = CompleteBody> {
    /// The beginning that was read ahead.
    ahead: Ahead,
    /// The part of it that was not sent yet.
    unsent: Bytes,
    /// What was read of a longer beginning that is not complete.
    begun: BytesMut,
    /// The bytes that arrived together with the end of that beginning.
    surplus: Bytes,
    trailers: Option<Box<HeaderMap>>,
    rest: B,
    /// True if `rest` has ended.
    is_over: bool,
}

impl<B: Body<Data = Bytes, Error = IncompleteBody> + Unpin> AheadBody<B> {
    /// Creates a body of which nothing was read.
    #[must_use]
    pub fn new(body: B) -> Self {
        let is_over = body.is_end_stream();
        let ahead = Ahead {
            is_whole: is_over,
            ..Ahead::default()
        };
        Self {
            ahead,
            unsent: Bytes::new(),
            begun: BytesMut::new(),
            surplus: Bytes::new(),
            trailers: None,
            is_over,
            rest: body,
        }
    }

    /// Returns the number of bytes that were read and not sent yet.
    fn held(&self) -> usize {
        self.unsent.len() + self.begun.len() + self.surplus.len()
    }

    /// Returns what was read ahead.
    #[must_use]
    pub fn ahead(&self) -> Ahead {
        self.ahead.clone()
    }

    /// Reads as much as rules `need`, into memory that is counted for `program`.
    ///
    /// # Errors
    /// Fails if the body is larger than what rules read, if it is malformed, if it does not arrive
    /// within [`Limits::AHEAD_DEADLINE`] or pauses for [`Limits::AHEAD_PAUSE`], or if there is no
    /// memory within [`Limits::AHEAD_WAIT`].
    pub async fn read(
        &mut self,
        need: Need,
        memory: &Memory,
        program: &str,
    ) -> Result<Ahead, Refusal> {
        if self.ahead.meets(need) {
            return Ok(self.ahead());
        }
        let most = match need {
            Need::Head => 0,
            Need::Prefix(most) | Need::Body(most) => most,
        };
        let is_whole = matches!(need, Need::Body(_));
        if is_whole && self.size_hint().lower() > most as u64 {
            return Err(Refusal::body_too_large(most));
        }
        let length = self.size_hint().upper().unwrap_or(u64::MAX);
        let room = usize::try_from(length).map_or(most, |length| length.min(most));
        // Released first: otherwise two bodies that are read further could wait for each other.
        self.ahead.room = None;
        let share = memory.ahead(program, room).await?;
        let read = timeout(Limits::AHEAD_DEADLINE, self.fill(most, is_whole, room)).await;
        read.unwrap_or_else(|_| Err(Refusal::late()))?;
        self.ahead.room = Some(Arc::new(share.of(kib(self.ahead.bytes.len()))));
        Ok(self.ahead())
    }

    /// Replaces a body that was read as a whole by what it stands for without its content coding, at
    /// most `most` bytes, and removes from `headers` what is no longer true.
    ///
    /// # Errors
    /// Fails if the body has several codings or an unknown one, if it cannot be decoded to its last
    /// byte, if it stands for more, or if there is no memory within [`Limits::AHEAD_WAIT`].
    pub async fn decode(
        &mut self,
        headers: &mut HeaderMap,
        most: usize,
        memory: &Memory,
        program: &str,
    ) -> Result<Ahead, Refusal> {
        self.trailers = None;
        headers.remove(TRAILER);
        if !self.ahead.is_whole || self.ahead.bytes.is_empty() {
            return Ok(self.ahead());
        }
        let coding = coding(headers)?;
        headers.remove(CONTENT_ENCODING);
        let Some(coding) = coding else {
            return Ok(self.ahead());
        };
        self.ahead.room = None;
        let share = memory.ahead(program, most).await?;
        let coded = self.ahead.bytes.clone();
        let decoded = tokio::task::spawn_blocking(move || coding.decode(&coded, most)).await;
        let decoded = decoded.map_err(|error| Refusal::engine(error.to_string()))?;
        let bytes = decoded.map_err(|error| match error {
            DecodeError::TooLong => Refusal::body_too_large(most),
            DecodeError::Malformed => {
                let name = coding.as_str();
                Refusal::message_invalid(format!("the body is not one whole {name} stream"))
            }
        })?;
        self.ahead.room = Some(Arc::new(share.of(kib(bytes.len()))));
        self.unsent = bytes.clone();
        self.ahead.bytes = bytes;
        head::remove_digests(headers);
        Ok(self.ahead())
    }

    /// Reads until there are `most` bytes, or the body has ended, which it must if it `is_whole`. What
    /// was read when it fails is still sent, if anything is.
    async fn fill(&mut self, most: usize, is_whole: bool, room: usize) -> Result<(), Refusal> {
        self.begun = BytesMut::with_capacity(room);
        self.begun.extend_from_slice(&self.ahead.bytes);
        self.unsent = Bytes::new();
        let mut next = std::mem::take(&mut self.surplus);
        loop {
            let room = most - self.begun.len().min(most);
            let taken = next.split_to(next.len().min(room));
            self.begun.extend_from_slice(&taken);
            if !next.is_empty() && is_whole {
                self.surplus = next;
                return Err(Refusal::body_too_large(most));
            }
            self.is_over = self.is_over || self.rest.is_end_stream();
            if self.is_over || (!is_whole && self.begun.len() >= most) {
                break;
            }
            let frame = timeout(Limits::AHEAD_PAUSE, self.rest.frame()).await;
            let Some(frame) = frame.map_err(|_| Refusal::late())? else {
                self.is_over = true;
                break;
            };
            let frame = frame.map_err(|_| Refusal::bad_request(MALFORMED))?;
            match frame.into_data() {
                Ok(data) => next = data,
                Err(other) => self.trailers = other.into_trailers().ok().map(Box::new),
            }
        }
        self.surplus = next;
        let read = std::mem::take(&mut self.begun);
        self.ahead.is_whole = self.is_over && self.surplus.is_empty();
        self.ahead.bytes = if read.len() < room / 2 {
            Bytes::copy_from_slice(&read)
        } else {
            read.freeze()
        };
        self.unsent = self.ahead.bytes.clone();
        Ok(())
    }
}

impl<B: Body<Data = Bytes, Error = IncompleteBody> + Unpin> Body for AheadBody<B> {
    type Data = Bytes;
    type Error = IncompleteBody;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        let this = self.get_mut();
        if !this.begun.is_empty() {
            this.unsent = this.begun.split().freeze();
        }
        for part in [&mut this.unsent, &mut this.surplus] {
            if !part.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(part)))));
            }
        }
        if !this.is_over {
            return Poll::Ready(ready!(Pin::new(&mut this.rest).poll_frame(cx)));
        }
        let trailers = this.trailers.take();
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(*trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let is_over = self.is_over || self.rest.is_end_stream();
        self.held() == 0 && self.trailers.is_none() && is_over
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_over {
            return SizeHint::with_exact(self.held() as u64);
        }
        longer(self.rest.size_hint(), self.held())
    }
}

/// Returns the coding of the body of a request with these `headers`.
fn coding(headers: &HeaderMap) -> Result<Option<ContentCoding>, Refusal> {
    let mut values = headers.get_all(CONTENT_ENCODING).iter();
    let (first, second) = (values.next(), values.next());
    match first {
        None => Ok(None),
        Some(only) if second.is_none() && only.as_bytes().eq_ignore_ascii_case(b"identity") => {
            Ok(None)
        }
        Some(only) => {
            let coding = ContentCoding::parse(only.as_bytes()).filter(|_| second.is_none());
            let unknown = "the body has several content codings, or one that is not gzip, deflate, br \
                           or zstd";
            Ok(Some(coding.ok_or_else(|| {
                Refusal::message_invalid(unknown.to_owned())
            })?))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use futures_util::stream::{self, Stream, StreamExt as _};
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::HeaderMap;
    use hyper::body::{Body as _, Frame};

    use super::{AheadBody, IncompleteBody, Need};
    use crate::ground::limits::Limits;
    use crate::wire::memory::Memory;

    type Part = Result<Frame<Bytes>, IncompleteBody>;

    fn data(text: &'static str) -> Part {
        Ok(Frame::data(Bytes::from_static(text.as_bytes())))
    }

    /// Creates a body of unknown length, and a count of the `parts` of it that were read.
    fn body(
        parts: Vec<Part>,
    ) -> (
        AheadBody<StreamBody<impl Stream<Item = Part> + Unpin>>,
        Arc<AtomicUsize>,
    ) {
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let parts = stream::iter(parts).inspect(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        (AheadBody::new(StreamBody::new(parts)), read)
    }

    #[tokio::test]
    async fn as_much_is_read_as_rules_need_and_all_is_sent_from_its_beginning() {
        for (need, ahead, parts) in [
            (Need::Head, "", 0),
            (Need::Prefix(3), "abc", 2),
            (Need::Prefix(4), "abcd", 2),
            (Need::Prefix(100), "abcdef", 4),
            (Need::Body(100), "abcdef", 4),
        ] {
            let trailers = HeaderMap::from_iter([(hyper::header::TE, "x".parse().unwrap())]);
            let trailers = Ok(Frame::trailers(trailers));
            let (mut body, read) = body(vec![data("ab"), data("cd"), data("ef"), trailers]);
            let memory = Memory::default();
            let known = body.read(need, &memory, "/a").await.unwrap();
            assert_eq!(known.bytes, ahead, "{need:?}");
            assert!(known.meets(need), "{need:?}");
            assert_eq!(known.is_whole, ahead.len() == 6, "{need:?}");
            assert_eq!(read.load(Ordering::Relaxed), parts, "{need:?}");
            let sent = body.collect().await.unwrap();
            assert!(sent.trailers().is_some(), "{need:?}");
            assert_eq!(sent.to_bytes(), "abcdef", "{need:?}");
        }
    }

    #[tokio::test]
    async fn a_body_that_pauses_behind_what_is_needed_is_not_waited_for() {
        let parts = stream::iter([data("ab"), data("cd")]).chain(stream::pending());
        let mut body = AheadBody::new(StreamBody::new(parts.boxed()));
        let memory = Memory::default();
        let known = body.read(Need::Prefix(4), &memory, "/a").await.unwrap();
        assert_eq!(known.bytes, "abcd");
    }

    #[tokio::test]
    async fn what_was_read_is_read_on_when_more_is_needed() {
        let (mut body, _) = body(vec![data("ab"), data("cd"), data("ef")]);
        let memory = Memory::default();
        for (need, ahead) in [(Need::Prefix(1), "a"), (Need::Body(6), "abcdef")] {
            assert_eq!(body.read(need, &memory, "/a").await.unwrap().bytes, ahead);
        }
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abcdef");
    }

    #[tokio::test]
    async fn a_body_beyond_what_rules_read_is_refused_before_it_is_read_if_it_says_so() {
        let memory = Memory::default();
        let (mut endless, read) = body((0..100).map(|_| data("abcdefgh")).collect());
        let refusal = endless
            .read(Need::Body(20), &memory, "/a")
            .await
            .unwrap_err();
        assert_eq!(refusal.status(), 413);
        assert_eq!(read.load(Ordering::Relaxed), 3);
        let sized = http_body_util::Full::new(Bytes::from_static(b"abcdefgh"));
        let mut sized = AheadBody::new(sized.map_err(|never| match never {}));
        let refusal = sized.read(Need::Body(7), &memory, "/a").await.unwrap_err();
        assert_eq!(
            (refusal.status(), sized.size_hint().exact()),
            (413, Some(8))
        );
        assert_eq!(
            sized
                .read(Need::Body(8), &memory, "/a")
                .await
                .unwrap()
                .bytes,
            "abcdefgh"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_refused() {
        let memory = Memory::default();
        let silent = stream::iter([data("ab")]).chain(stream::pending());
        let slow = stream::unfold((), |()| async {
            tokio::time::sleep(Limits::AHEAD_PAUSE / 2).await;
            Some((data("a"), ()))
        });
        for (parts, after) in [
            (silent.boxed(), Limits::AHEAD_PAUSE),
            (slow.boxed(), Limits::AHEAD_DEADLINE),
        ] {
            let began = tokio::time::Instant::now();
            let mut body = AheadBody::new(StreamBody::new(parts));
            let refusal = body.read(Need::Body(100), &memory, "/a").await.unwrap_err();
            assert_eq!((refusal.status(), began.elapsed()), (408, after));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_of_a_body_that_pauses_is_sent_if_anything_is() {
        let memory = Memory::default();
        let pause = stream::once(async {
            tokio::time::sleep(Limits::AHEAD_PAUSE * 2).await;
            data("cd")
        });
        let parts = stream::iter([data("ab")]).chain(pause);
        let mut body = AheadBody::new(StreamBody::new(parts.boxed()));
        let refusal = body
            .read(Need::Prefix(100), &memory, "/a")
            .await
            .unwrap_err();
        assert_eq!((refusal.status(), body.size_hint().lower()), (408, 2));
        let sent = body.collect().await.unwrap().to_bytes();
        assert_eq!(sent, "abcd");
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_taken_until_what_was_read_is_gone() {
        let memory = Memory::default();
        let all = Limits::AHEAD_KIB_PER_PROGRAM * 1024;
        let _others = memory.ahead_now("/a", all - 2048).unwrap();
        let (mut first, _) = body(vec![data("ab")]);
        // Of the memory that it may need, it keeps only what it uses.
        let known = first.read(Need::Body(2048), &memory, "/a").await.unwrap();
        let beside = memory.ahead_now("/a", 1024);
        assert!(beside.is_some());
        let (mut second, _) = body(vec![data("cd")]);
        let refusal = second
            .read(Need::Body(1024), &memory, "/a")
            .await
            .unwrap_err();
        assert_eq!(refusal.status(), 503);
        drop(first);
        assert!(second.read(Need::Body(1024), &memory, "/a").await.is_err());
        drop(known);
        assert_eq!(
            second
                .read(Need::Body(1024), &memory, "/a")
                .await
                .unwrap()
                .bytes,
            "cd"
        );
    }
}
