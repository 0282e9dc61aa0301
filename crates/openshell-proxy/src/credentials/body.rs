//! Bodies of requests, looked at while they are sent: no placeholder in one is replaced, so none leaves.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_ENCODING, HeaderMap};

use crate::credentials::vault::Vault;
use crate::http::head;
use crate::io::complete_body::{CompleteBody, IncompleteBody};
use crate::limits::Limits;
use crate::placeholder::{self, is_in_header};
use crate::refusal::{CredentialFault, Refusal};

/// Looks for placeholders in what comes in parts.
#[derive(Debug, Default)]
pub struct Scanner {
    /// The end of what came before.
    tail: Vec<u8>,
}

impl Scanner {
    /// Whether a placeholder ends in `part`, which comes next.
    pub fn finds_in(&mut self, part: &[u8]) -> bool {
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

/// Looks for placeholders in the first bytes of what is otherwise not looked at.
#[derive(Debug)]
pub struct FirstBytes {
    scanner: Scanner,
    left: usize,
}

impl FirstBytes {
    /// Looks where there are credentials.
    #[must_use]
    pub fn new(vault: &Vault) -> Self {
        Self { scanner: Scanner::default(), left: if vault.is_empty() { 0 } else { Limits::SEEN_BYTES } }
    }

    /// Whether there is more to look at.
    #[must_use]
    pub fn are_awaited(&self) -> bool {
        self.left > 0
    }

    /// Looks at `part`, which comes next.
    ///
    /// # Errors
    /// A placeholder ends in it, as [`misplaced`] knows again.
    pub fn look_at(&mut self, part: &[u8]) -> std::io::Result<()> {
        let seen = part.get(..self.left).unwrap_or(part);
        self.left -= seen.len();
        if self.scanner.finds_in(seen) { Err(std::io::Error::other(Misplaced)) } else { Ok(()) }
    }
}

/// The refusal for first bytes that hold a placeholder, if that is what `error` is.
#[must_use]
pub fn misplaced(error: &std::io::Error) -> Option<Refusal> {
    let is_misplaced = error.get_ref().is_some_and(|inner| inner.is::<Misplaced>());
    is_misplaced
        .then_some(Refusal::Credential(CredentialFault::Misplaced { place: "the first bytes of the connection" }))
}

/// A placeholder stands where none is replaced.
#[derive(Debug, thiserror::Error)]
#[error("a credential placeholder stands where none is replaced")]
pub struct Misplaced;

/// The body of a request. It fails where a placeholder ends, unless it is encoded, or there are no credentials.
#[derive(Debug)]
pub struct Scanned {
    /// What was read already.
    first: Bytes,
    trailers: Option<HeaderMap>,
    rest: CompleteBody,
    scanner: Option<Scanner>,
    /// Set when a placeholder was found, and a part of the body is sent already.
    found: Arc<AtomicBool>,
    /// What is not over before it is sent.
    _held: Option<Held>,
}

/// What goes on for as long as anybody has a part of it.
pub type Held = Arc<dyn std::fmt::Debug + Send + Sync>;

/// Why a body ends before its end.
#[derive(Debug, thiserror::Error)]
pub enum Unsendable {
    /// It holds a placeholder.
    #[error(transparent)]
    Misplaced(Misplaced),
    /// It did not come.
    #[error(transparent)]
    Broken(IncompleteBody),
}

impl From<Unsendable> for Refusal {
    fn from(error: Unsendable) -> Self {
        match error {
            Unsendable::Misplaced(_) => in_body(),
            Unsendable::Broken(_) => Self::BadRequest("the body of the request is malformed, or ended before its end"),
        }
    }
}

impl Scanned {
    /// The body of a request with these `headers`, `found` to be set where a placeholder is met on the way. Its beginning is looked
    /// at before anything is sent.
    ///
    /// # Errors
    /// There is a placeholder in its beginning; or it is malformed.
    pub async fn begin(
        body: CompleteBody,
        headers: &HeaderMap,
        vault: &Vault,
        found: Arc<AtomicBool>,
    ) -> Result<Self, Refusal> {
        let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
        let is_encoded = encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
        let scanner = (!is_encoded && !vault.is_empty()).then(Scanner::default);
        let mut scanned = Self { first: Bytes::new(), trailers: None, rest: body, scanner, found, _held: None };
        if scanned.scanner.is_some() && !scanned.rest.is_end_stream() {
            let is_short = scanned.rest.size_hint().exact().is_some_and(|length| length <= Limits::GATHERED_BYTES);
            let patience = if is_short { Limits::GATHER_DEADLINE } else { Limits::GATHER_MOMENT };
            let mut first = BytesMut::new();
            // Who takes longer is sent on as it comes.
            let gathered = tokio::time::timeout(patience, scanned.gather(&mut first)).await;
            scanned.first = first.freeze();
            gathered.unwrap_or(Ok(()))?;
        }
        Ok(scanned)
    }

    /// The same, and `held` goes on until it is sent.
    #[must_use]
    pub fn holding(self, held: Option<Held>) -> Self {
        Self { _held: held, ..self }
    }

    async fn gather(&mut self, first: &mut BytesMut) -> Result<(), Unsendable> {
        while (first.len() as u64) < Limits::GATHERED_BYTES
            && let Some(frame) = self.rest.frame().await
        {
            match self.looked_at(frame)?.into_data() {
                Ok(data) => first.extend_from_slice(&data),
                Err(other) => self.trailers = other.into_trailers().ok(),
            }
        }
        Ok(())
    }

    fn looked_at(&mut self, frame: Result<Frame<Bytes>, IncompleteBody>) -> Result<Frame<Bytes>, Unsendable> {
        let mut frame = frame.map_err(Unsendable::Broken)?;
        let scanner = &mut self.scanner;
        let in_data = |data: &Bytes| scanner.as_mut().is_some_and(|scanner| scanner.finds_in(data));
        let in_trailers = |trailers: &HeaderMap| trailers.iter().any(|(name, value)| is_in_header(name, value));
        if frame.data_ref().is_some_and(in_data) || frame.trailers_ref().is_some_and(in_trailers) {
            return Err(Unsendable::Misplaced(Misplaced));
        }
        frame.trailers_mut().into_iter().for_each(head::remove_what_is_no_trailer);
        Ok(frame)
    }
}

/// The refusal for a placeholder in a body.
#[must_use]
pub fn in_body() -> Refusal {
    Refusal::Credential(CredentialFault::Misplaced { place: "the body" })
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
        let frame = this.looked_at(frame);
        if matches!(frame, Err(Unsendable::Misplaced(_))) {
            this.found.store(true, Ordering::Relaxed);
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
                    assert!(parts.iter().any(|part| scanner.finds_in(part)), "{text} cut at {first} and {second}");
                }
            }
            let mut scanner = Scanner::default();
            assert!(bytes.iter().any(|byte| scanner.finds_in(&[*byte])), "{text} byte by byte");
        }
    }

    #[test]
    fn what_only_speaks_of_placeholders_holds_none() {
        let mut scanner = Scanner::default();
        for part in ["openshell:resolve:env:", "*", " openshell", " resolve:env:A ", &"openshell".repeat(1000)] {
            assert!(!scanner.finds_in(part.as_bytes()), "{part}");
        }
    }
}
