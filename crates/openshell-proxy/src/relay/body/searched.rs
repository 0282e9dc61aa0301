//! Searches request bodies while they are sent. Placeholders in a body are never replaced, so none
//! may leave.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

use crate::credentials::leaks::detector::LeakWatch;
use crate::credentials::leaks::scan::Scan;
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::ground::shares::Share;
use crate::relay::body::ahead::{AheadBody, MALFORMED};
use crate::secrets::placeholder::{self, is_in_header};
use crate::wire::http::head;
use crate::wire::io::complete_body::IncompleteBody;
use crate::wire::io::pace::{Paced, longer};

/// A search for placeholders in a text that arrives in parts.
#[derive(Debug, Default)]
pub struct Scanner {
    /// The end of the parts before.
    tail: Vec<u8>,
}

impl Scanner {
    /// Returns true if a placeholder ends in `part`, which is the next one.
    pub fn finds_end_in(&mut self, part: &[u8]) -> bool {
        if !self.tail.is_empty() {
            self.tail
                .extend_from_slice(part.get(..placeholder::SPAN).unwrap_or(part));
            if placeholder::is_in(&self.tail) {
                return true;
            }
        }
        let kept = if part.len() >= placeholder::SPAN {
            self.tail.clear();
            part
        } else if self.tail.is_empty() {
            part
        } else {
            &[]
        };
        self.tail.extend_from_slice(
            kept.get(kept.len().saturating_sub(placeholder::SPAN)..)
                .unwrap_or_default(),
        );
        self.tail
            .drain(..self.tail.len().saturating_sub(placeholder::SPAN));
        placeholder::is_in(part)
    }
}

/// The error of a placeholder in a place where none is replaced.
#[derive(Debug, thiserror::Error)]
#[error("the proxy does not replace the credential placeholder in this place")]
pub struct FoundPlaceholder;

/// The body of a request on its way to the upstream.
pub type RequestBody = UnsyncBoxBody<Bytes, Unsendable>;

/// Creates a body that the proxy holds as a whole, and that is not searched.
#[must_use]
pub fn whole(body: Bytes) -> RequestBody {
    Full::new(body)
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// The searches of a request's body.
#[derive(Debug)]
pub struct Searches {
    /// True if placeholders are searched for, because there are credentials.
    pub placeholders: bool,
    /// The search for secrets, if there is one.
    pub leaks: Option<LeakWatch>,
    /// The report of what is found in a body that was sent in part.
    pub report: FoundReport,
}

/// The body of a client's request. It fails at the end of a placeholder, or in a secret that is
/// refused. An encoded body is not searched.
#[derive(Debug)]
struct Scanned {
    /// The data that was prefetched.
    first: Bytes,
    /// The guard of its memory.
    room: Option<Share>,
    trailers: Option<HeaderMap>,
    rest: Paced<AheadBody>,
    placeholders: Option<Scanner>,
    leaks: Option<LeakScan>,
    report: FoundReport,
    /// Guards something until the body is sent.
    _held: Option<Kept>,
}

/// The search of a body for secrets.
#[derive(Debug)]
struct LeakScan {
    watch: LeakWatch,
    scan: Scan,
    /// Bytes that may be the beginning of a secret, if secrets are refused.
    waiting: BytesMut,
    /// The time at which they are sent in any case.
    deadline: Option<Pin<Box<Sleep>>>,
    is_over: bool,
}

impl LeakScan {
    fn new(watch: LeakWatch) -> Self {
        Self {
            scan: watch.scan(),
            watch,
            waiting: BytesMut::new(),
            deadline: None,
            is_over: false,
        }
    }

    /// Searches `data`, the next part.
    fn search(&mut self, data: &[u8]) -> Result<(), Unsendable> {
        let mut found = Vec::new();
        self.scan.push(data, |secret| found.push(secret));
        self.watch.found(&found).map_err(Unsendable::secret)
    }

    /// Searches the end of the body.
    fn finish(&mut self) -> Result<(), Unsendable> {
        let mut found = Vec::new();
        self.is_over = true;
        self.scan.finish(|secret| found.push(secret));
        self.watch.found(&found).map_err(Unsendable::secret)
    }

    /// Returns the bytes that waited, and `data`, which was searched. An end that may be the
    /// beginning of a secret that is refused is kept back.
    fn released(&mut self, data: Bytes) -> Bytes {
        let undecided = if self.watch.blocks() && !self.is_over {
            self.scan.undecided()
        } else {
            0
        };
        if undecided == 0 && self.waiting.is_empty() {
            return data;
        }
        self.waiting.extend_from_slice(&data);
        let sent = self.waiting.len().saturating_sub(undecided);
        // Bytes that wait already do not wait longer because others arrive.
        if sent > 0 || self.deadline.is_none() {
            self.deadline = (sent < self.waiting.len()).then(|| Box::pin(sleep(Limits::LEAK_HOLD)));
        }
        self.waiting.split_to(sent).freeze()
    }

    /// Returns the bytes that have waited long enough.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        match &mut self.deadline {
            Some(deadline) => ready!(deadline.as_mut().poll(cx)),
            None => return Poll::Pending,
        }
        self.deadline = None;
        Poll::Ready(self.waiting.split().freeze())
    }
}

/// A guard that lives as long as a part of a message.
pub type Kept = Arc<dyn std::fmt::Debug + Send + Sync>;

/// The report of a placeholder or secret in a body that was sent in part. It is made once: by the
/// exchange or, if that has ended, when the body is dropped.
#[derive(Clone)]
pub struct FoundReport(Arc<Found>);

struct Found {
    refusal: Mutex<Option<Refusal>>,
    report: Box<dyn Fn(&Refusal) + Send + Sync>,
}

impl FoundReport {
    /// Creates a report that calls `report` for what is found and not [taken](Self::take).
    #[must_use]
    pub fn new(report: impl Fn(&Refusal) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Found {
            refusal: Mutex::default(),
            report: Box::new(report),
        }))
    }

    /// Returns the refusal for what was found, once. The caller then has to report it.
    #[must_use]
    pub fn take(&self) -> Option<Refusal> {
        self.0.refusal.lock().take()
    }

    fn found(&self, refusal: Refusal) {
        *self.0.refusal.lock() = Some(refusal);
    }
}

impl std::fmt::Debug for FoundReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FoundReport").finish_non_exhaustive()
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        if let Some(refusal) = self.refusal.get_mut().take() {
            (self.report)(&refusal);
        }
    }
}

/// The error of a body that cannot be sent to its end.
#[derive(Debug, thiserror::Error)]
pub enum Unsendable {
    /// It holds a placeholder.
    #[error(transparent)]
    Placeholder(FoundPlaceholder),
    /// It holds a secret that is refused.
    #[error("the request holds a secret")]
    Secret(Box<Refusal>),
    /// It did not arrive completely.
    #[error(transparent)]
    Broken(IncompleteBody),
}

impl Unsendable {
    fn secret(refusal: Refusal) -> Self {
        Self::Secret(Box::new(refusal))
    }

    /// Returns the refusal for what was found; `None` if the body is broken.
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Placeholder(_) => Some(Refusal::placeholder_misplaced("the body")),
            Self::Secret(refusal) => Some((**refusal).clone()),
            Self::Broken(_) => None,
        }
    }
}

impl From<Unsendable> for Refusal {
    fn from(error: Unsendable) -> Self {
        error
            .refusal()
            .unwrap_or_else(|| Self::bad_request(MALFORMED))
    }
}

/// Prepares the `body` of a request with these `headers` for sending, and searches its beginning.
/// `held` is kept until the body is sent. `room` reserves memory for a number of bytes until they
/// are sent.
///
/// # Errors
/// Fails if the beginning holds a placeholder or a secret that is refused, or if the body is
/// malformed.
pub async fn prefetch(
    body: AheadBody,
    headers: &HeaderMap,
    searches: Searches,
    held: Option<Kept>,
    room: impl FnOnce(usize) -> Option<Share>,
) -> Result<RequestBody, Refusal> {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    let is_encoded =
        encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    let Searches {
        placeholders,
        leaks,
        report,
    } = searches;
    let has_body = !body.is_end_stream();
    let ahead = body.ahead();
    // All that was read ahead is searched first, however much it is.
    let most = Limits::PREFETCH_BYTES.max(ahead.bytes.len());
    let mut scanned = Scanned {
        first: Bytes::new(),
        room: None,
        trailers: None,
        rest: Paced::new(body),
        placeholders: (!is_encoded && placeholders).then(Scanner::default),
        leaks: leaks.filter(|_| has_body && !is_encoded).map(LeakScan::new),
        report,
        _held: held,
    };
    // Secrets that are only reported need not be known before the request is sent.
    let is_refused = scanned.placeholders.is_some()
        || scanned
            .leaks
            .as_ref()
            .is_some_and(|leaks| leaks.watch.blocks());
    if is_refused && has_body {
        let length = scanned.rest.size_hint().upper().unwrap_or(u64::MAX);
        let wanted = usize::try_from(length).map_or(most, |length| length.min(most));
        scanned.room = room(wanted - ahead.bytes.len().min(wanted));
    }
    // If there is no room for a body, it is sent on as it arrives.
    if scanned.room.is_some() {
        let length = scanned.rest.size_hint().exact();
        let patience = match length {
            _ if ahead.is_whole => Limits::AHEAD_DEADLINE,
            Some(length) if length <= most as u64 => Limits::PREFETCH_DEADLINE,
            _ => Limits::PREFETCH_DEADLINE_UNSIZED,
        };
        let mut first = BytesMut::new();
        // A body that takes longer is sent on as it arrives, too.
        let prefetched = tokio::time::timeout(patience, scanned.prefetch(&mut first, most)).await;
        prefetched.unwrap_or(Ok(()))?;
        scanned.first = match &mut scanned.leaks {
            Some(leaks) => leaks.released(first.freeze()),
            None => first.freeze(),
        };
        scanned.room.take_if(|_| scanned.first.is_empty());
    }
    Ok(scanned.boxed_unsync())
}

impl Scanned {
    /// Searches the body and appends it to `first`, until that holds `most` bytes.
    async fn prefetch(&mut self, first: &mut BytesMut, most: usize) -> Result<(), Unsendable> {
        while first.len() < most {
            let Some(frame) = self.rest.frame().await else {
                return self.finish();
            };
            match self.scan_frame(frame)?.into_data() {
                Ok(data) => first.extend_from_slice(&data),
                Err(other) => self.trailers = other.into_trailers().ok(),
            }
        }
        Ok(())
    }

    fn scan_frame(
        &mut self,
        frame: Result<Frame<Bytes>, IncompleteBody>,
    ) -> Result<Frame<Bytes>, Unsendable> {
        let mut frame = frame.map_err(Unsendable::Broken)?;
        let scanner = &mut self.placeholders;
        let in_data = |data: &Bytes| {
            scanner
                .as_mut()
                .is_some_and(|scanner| scanner.finds_end_in(data))
        };
        let in_trailers = |trailers: &HeaderMap| {
            trailers
                .iter()
                .any(|(name, value)| is_in_header(name, value))
        };
        if frame.data_ref().is_some_and(in_data) || frame.trailers_ref().is_some_and(in_trailers) {
            return Err(Unsendable::Placeholder(FoundPlaceholder));
        }
        if let Some(leaks) = &mut self.leaks {
            let pace = &mut self.rest.pace;
            frame.data_ref().map_or(Ok(()), |data| {
                pace.measure(data.len(), || leaks.search(data))
            })?;
            let trailers = frame.trailers_ref();
            trailers
                .map_or(Ok(()), |trailers| leaks.watch.fields(trailers))
                .map_err(Unsendable::secret)?;
        }
        if let Some(trailers) = frame.trailers_mut() {
            head::remove_forbidden_trailers(trailers);
        }
        Ok(frame)
    }

    /// Searches the end of the body.
    fn finish(&mut self) -> Result<(), Unsendable> {
        self.leaks
            .as_mut()
            .filter(|leaks| !leaks.is_over)
            .map_or(Ok(()), LeakScan::finish)
    }

    /// Ends the body with `error`, and notes the refusal for what was found.
    fn failed(&self, error: Unsendable) -> Poll<Option<Result<Frame<Bytes>, Unsendable>>> {
        if let Some(refusal) = error.refusal() {
            self.report.found(refusal);
        }
        Poll::Ready(Some(Err(error)))
    }
}

impl Body for Scanned {
    type Data = Bytes;
    type Error = Unsendable;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unsendable>>> {
        let this = self.get_mut();
        loop {
            if !this.first.is_empty() {
                this.room = None;
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.first)))));
            }
            if let Some(trailers) = this.trailers.take() {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            let frame = match Pin::new(&mut this.rest).poll_frame(cx) {
                Poll::Ready(Some(frame)) => frame,
                Poll::Ready(None) => {
                    if let Err(error) = this.finish() {
                        return this.failed(error);
                    }
                    let Some(leaks) = this
                        .leaks
                        .as_mut()
                        .filter(|leaks| !leaks.waiting.is_empty())
                    else {
                        return Poll::Ready(None);
                    };
                    this.first = leaks.released(Bytes::new());
                    continue;
                }
                Poll::Pending => {
                    let Some(leaks) = &mut this.leaks else {
                        return Poll::Pending;
                    };
                    this.first = ready!(leaks.poll_late(cx));
                    continue;
                }
            };
            let frame = match this.scan_frame(frame) {
                Ok(frame) => frame,
                Err(error) => return this.failed(error),
            };
            let Some(leaks) = &mut this.leaks else {
                return Poll::Ready(Some(Ok(frame)));
            };
            match frame.into_data() {
                Ok(data) => {
                    let is_empty = data.is_empty();
                    // A body of known length is not polled again after its last frame.
                    if this.rest.is_end_stream()
                        && let Err(error) = leaks.finish()
                    {
                        return this.failed(error);
                    }
                    this.first = leaks.released(data);
                    if is_empty && this.first.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(Bytes::new()))));
                    }
                }
                Err(trailers) => {
                    if let Err(error) = leaks.finish() {
                        return this.failed(error);
                    }
                    this.first = leaks.released(Bytes::new());
                    this.trailers = trailers.into_trailers().ok();
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_waiting = self
            .leaks
            .as_ref()
            .is_some_and(|leaks| !leaks.waiting.is_empty() || !leaks.is_over);
        self.first.is_empty() && self.trailers.is_none() && self.rest.is_end_stream() && !is_waiting
    }

    fn size_hint(&self) -> SizeHint {
        let waiting = self.leaks.as_ref().map_or(0, |leaks| leaks.waiting.len());
        longer(self.rest.size_hint(), self.first.len() + waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::Scanner;

    #[test]
    fn a_placeholder_is_found_wherever_it_is_cut() {
        for text in [
            "{\"key\": \"openshell:resolve:env:API_KEY\"}",
            "k=openshell%3Aresolve%3Aenv%3AAPI_KEY&x=1",
            "{\"key\": \"openshell\\u003aresolve\\u003aenv\\u003aA\"}",
        ] {
            let bytes = text.as_bytes();
            for first in 0..=bytes.len() {
                for second in first..=bytes.len() {
                    let mut scanner = Scanner::default();
                    let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                    assert!(
                        parts.iter().any(|part| scanner.finds_end_in(part)),
                        "{text} cut at {first} and {second}"
                    );
                }
            }
            let mut scanner = Scanner::default();
            assert!(
                bytes.iter().any(|byte| scanner.finds_end_in(&[*byte])),
                "{text} byte by byte"
            );
        }
    }

    #[test]
    fn what_only_speaks_of_placeholders_holds_none() {
        let mut scanner = Scanner::default();
        for part in [
            "openshell:resolve:env:",
            "*",
            " openshell",
            " resolve:env:A ",
            &"openshell".repeat(1000),
        ] {
            assert!(!scanner.finds_end_in(part.as_bytes()), "{part}");
        }
    }
}
