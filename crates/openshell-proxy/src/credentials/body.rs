//! Scanning of request bodies while they are sent: placeholders in a body are never replaced, so none may leave.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_ENCODING, HeaderMap};

use crate::credentials::vault::Vault;
use crate::denial::refusal::Refusal;
use crate::http::head;
use crate::io::complete_body::{CompleteBody, IncompleteBody};
use crate::limits::Limits;
use crate::placeholder::{self, is_in_header};

/// Searches for placeholders in a text that arrives in parts.
#[derive(Debug, Default)]
pub struct Scanner {
    /// The end of the previous part.
    tail: Vec<u8>,
}

impl Scanner {
    /// Returns true if a placeholder ends in `part`, the next one.
    pub fn finds_end_in(&mut self, part: &[u8]) -> bool {
        if !self.tail.is_empty() {
            self.tail.extend_from_slice(part.get(..placeholder::SPAN).unwrap_or(part));
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
        self.tail.extend_from_slice(kept.get(kept.len().saturating_sub(placeholder::SPAN)..).unwrap_or_default());
        self.tail.drain(..self.tail.len().saturating_sub(placeholder::SPAN));
        placeholder::is_in(part)
    }
}

/// Searches for placeholders in the first [`Limits::FIRST_BYTES`] of an uninspected connection.
#[derive(Debug)]
pub struct FirstBytes {
    scanner: Scanner,
    left: usize,
}

impl FirstBytes {
    /// Searches if there are credentials.
    #[must_use]
    pub fn new(vault: &Vault) -> Self {
        Self { scanner: Scanner::default(), left: if vault.is_empty() { 0 } else { Limits::FIRST_BYTES } }
    }

    /// Returns true until the first bytes have passed.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.left > 0
    }

    /// Searches `part`, the next one.
    ///
    /// # Errors
    /// A placeholder ends in it; [`placeholder_refusal`] recognizes the error.
    pub fn scan(&mut self, part: &[u8]) -> std::io::Result<()> {
        let seen = part.get(..self.left).unwrap_or(part);
        self.left -= seen.len();
        if self.scanner.finds_end_in(seen) { Err(std::io::Error::other(FoundPlaceholder)) } else { Ok(()) }
    }
}

/// The refusal for first bytes with a placeholder, if `error` stands for one.
#[must_use]
pub fn placeholder_refusal(error: &std::io::Error) -> Option<Refusal> {
    let is_placeholder = error.get_ref().is_some_and(|inner| inner.is::<FoundPlaceholder>());
    is_placeholder.then_some(Refusal::placeholder_misplaced("the first bytes of the connection"))
}

/// Error of a placeholder where none is replaced.
#[derive(Debug, thiserror::Error)]
#[error("a credential placeholder stands where none is replaced")]
pub struct FoundPlaceholder;

/// Body of a request on its way to the upstream.
pub type RequestBody = UnsyncBoxBody<Bytes, Unsendable>;

/// A body that the proxy holds whole, and that is not searched.
#[must_use]
pub fn whole(body: Bytes) -> RequestBody {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

/// Body of a client's request. It fails at the end of a placeholder, unless it is encoded, or there are no credentials.
#[derive(Debug)]
struct Scanned {
    /// Data that was prefetched.
    first: Bytes,
    trailers: Option<HeaderMap>,
    rest: CompleteBody,
    scanner: Option<Scanner>,
    leak: LeakReport,
    /// Kept until the body is sent.
    _held: Option<Held>,
}

/// A guard with the lifetime of a part of a message.
pub type Held = Arc<dyn std::fmt::Debug + Send + Sync>;

/// Report of a placeholder in a body that is partly sent: made once, by the exchange or, after its end, when the body
/// is dropped.
#[derive(Clone)]
pub struct LeakReport(Arc<Leak>);

struct Leak {
    is_found: AtomicBool,
    report: Box<dyn Fn() + Send + Sync>,
}

impl LeakReport {
    /// Calls `report` for a placeholder that is found and not [taken](Self::take).
    #[must_use]
    pub fn new(report: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(Leak { is_found: AtomicBool::new(false), report: Box::new(report) }))
    }

    /// Returns true once if a placeholder was found; the report is then the caller's.
    #[must_use]
    pub fn take(&self) -> bool {
        self.0.is_found.swap(false, Ordering::Relaxed)
    }
}

impl std::fmt::Debug for LeakReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LeakReport").field(&self.0.is_found).finish()
    }
}

impl Drop for Leak {
    fn drop(&mut self) {
        if *self.is_found.get_mut() {
            (self.report)();
        }
    }
}

/// Error of a body that cannot be sent to its end.
#[derive(Debug, thiserror::Error)]
pub enum Unsendable {
    /// It holds a placeholder.
    #[error(transparent)]
    Placeholder(FoundPlaceholder),
    /// It did not arrive complete.
    #[error(transparent)]
    Broken(IncompleteBody),
}

impl From<Unsendable> for Refusal {
    fn from(error: Unsendable) -> Self {
        match error {
            Unsendable::Placeholder(_) => body_refusal(),
            Unsendable::Broken(_) => Self::bad_request("the body of the request is malformed, or ended before its end"),
        }
    }
}

/// Prepares the `body` of a request with these `headers` for sending, and searches its beginning. `leak` reports a
/// placeholder further on; `held` is kept until the body is sent.
///
/// # Errors
/// The beginning holds a placeholder, or the body is malformed.
pub async fn prefetch(
    body: CompleteBody,
    headers: &HeaderMap,
    vault: &Vault,
    leak: LeakReport,
    held: Option<Held>,
) -> Result<RequestBody, Refusal> {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    let is_encoded = encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    let scanner = (!is_encoded && !vault.is_empty()).then(Scanner::default);
    let mut scanned = Scanned { first: Bytes::new(), trailers: None, rest: body, scanner, leak, _held: held };
    if scanned.scanner.is_some() && !scanned.rest.is_end_stream() {
        let is_short = scanned.rest.size_hint().exact().is_some_and(|length| length <= Limits::PREFETCH_BYTES);
        let patience = if is_short { Limits::PREFETCH_DEADLINE } else { Limits::PREFETCH_DEADLINE_UNSIZED };
        let mut first = BytesMut::new();
        // A body that takes longer is sent on as it arrives.
        let prefetched = tokio::time::timeout(patience, scanned.prefetch(&mut first)).await;
        scanned.first = first.freeze();
        prefetched.unwrap_or(Ok(()))?;
    }
    Ok(scanned.boxed_unsync())
}

impl Scanned {
    async fn prefetch(&mut self, first: &mut BytesMut) -> Result<(), Unsendable> {
        while (first.len() as u64) < Limits::PREFETCH_BYTES
            && let Some(frame) = self.rest.frame().await
        {
            match self.scan_frame(frame)?.into_data() {
                Ok(data) => first.extend_from_slice(&data),
                Err(other) => self.trailers = other.into_trailers().ok(),
            }
        }
        Ok(())
    }

    fn scan_frame(&mut self, frame: Result<Frame<Bytes>, IncompleteBody>) -> Result<Frame<Bytes>, Unsendable> {
        let mut frame = frame.map_err(Unsendable::Broken)?;
        let scanner = &mut self.scanner;
        let in_data = |data: &Bytes| scanner.as_mut().is_some_and(|scanner| scanner.finds_end_in(data));
        let in_trailers = |trailers: &HeaderMap| trailers.iter().any(|(name, value)| is_in_header(name, value));
        if frame.data_ref().is_some_and(in_data) || frame.trailers_ref().is_some_and(in_trailers) {
            return Err(Unsendable::Placeholder(FoundPlaceholder));
        }
        frame.trailers_mut().into_iter().for_each(head::remove_forbidden_trailers);
        Ok(frame)
    }
}

/// The refusal for a placeholder in a body.
#[must_use]
pub fn body_refusal() -> Refusal {
    Refusal::placeholder_misplaced("the body")
}

impl Body for Scanned {
    type Data = Bytes;
    type Error = Unsendable;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Unsendable>>> {
        let this = self.get_mut();
        if !this.first.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.first)))));
        }
        if let Some(trailers) = this.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let Some(frame) = ready!(Pin::new(&mut this.rest).poll_frame(cx)) else { return Poll::Ready(None) };
        let frame = this.scan_frame(frame);
        if matches!(frame, Err(Unsendable::Placeholder(_))) {
            this.leak.0.is_found.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Some(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.trailers.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.rest.size_hint();
        let read = self.first.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + read);
        }
        hint.set_lower(hint.lower() + read);
        hint
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
                    assert!(parts.iter().any(|part| scanner.finds_end_in(part)), "{text} cut at {first} and {second}");
                }
            }
            let mut scanner = Scanner::default();
            assert!(bytes.iter().any(|byte| scanner.finds_end_in(&[*byte])), "{text} byte by byte");
        }
    }

    #[test]
    fn what_only_speaks_of_placeholders_holds_none() {
        let mut scanner = Scanner::default();
        for part in ["openshell:resolve:env:", "*", " openshell", " resolve:env:A ", &"openshell".repeat(1000)] {
            assert!(!scanner.finds_end_in(part.as_bytes()), "{part}");
        }
    }
}
