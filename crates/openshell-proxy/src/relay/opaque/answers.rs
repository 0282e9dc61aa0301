//! The search of what an upstream answers on a connection whose requests are not inspected.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::credentials::redact::Scrubber;
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::ground::quota::QuotaGuard;
use crate::reach::authorize::connection::Connection;
use crate::relay::opaque::look::{Look, Searched, StreamEnd};
use crate::relay::opaque::messages::Messages;
use crate::relay::services::Services;
use crate::report::finding::LeakFinding;
use crate::report::record::Record;
use crate::wire::io::pace::Pace;

/// A search of answers for HTTP and TLS, and for secrets.
#[derive(Debug, Default)]
pub struct AnswerSearch {
    begin: Option<Begin>,
    mask: Option<Mask>,
}

impl AnswerSearch {
    /// Refuses answers in HTTP or TLS with `refusal`.
    #[must_use]
    pub fn without_http(self, refusal: Refusal) -> Self {
        Self {
            begin: Some(Begin {
                refusal,
                seen: Vec::new(),
            }),
            ..self
        }
    }

    /// Also masks secrets, by `mask`.
    #[must_use]
    pub fn masking(self, mask: Option<Mask>) -> Self {
        Self { mask, ..self }
    }

    /// Returns true if secrets are masked, so that the bytes must pass through [`Answers`].
    pub(super) fn masks(&self) -> bool {
        self.mask.is_some()
    }
}

impl Look for AnswerSearch {
    fn is_active(&self) -> bool {
        self.begin.is_some()
    }

    fn scan(&mut self, part: &[u8]) -> Result<(), Refusal> {
        let Some(begin) = &mut self.begin else {
            return Ok(());
        };
        begin
            .seen
            .extend_from_slice(part.get(..Begin::BYTES).unwrap_or(part));
        if is_http_or_tls(&begin.seen) {
            return Err(begin.refusal.clone());
        }
        if begin.seen.len() >= Begin::BYTES {
            self.begin = None;
        }
        Ok(())
    }
}

/// The first bytes of an upstream. If they are HTTP or TLS, so were the client's, whatever they
/// looked like.
#[derive(Debug)]
struct Begin {
    refusal: Refusal,
    seen: Vec<u8>,
}

impl Begin {
    /// The number of bytes that settle it.
    const BYTES: usize = 7;
}

/// Returns true for a status line (RFC 9112 §4), and for the record of a ServerHello or of an alert
/// (RFC 8446 §5.1, §6).
fn is_http_or_tls(begin: &[u8]) -> bool {
    matches!(
        begin,
        [b'H', b'T', b'T', b'P', b'/', ..]
            | [0x16, 3, 0..=4, _, _, 2, ..]
            | [0x15, 3, 0..=4, 0, 2, 1 | 2, _, ..]
    )
}

/// A mask for the secrets in an answer.
#[derive(Debug)]
pub struct Mask {
    scrubber: Scrubber,
    /// The messages of a WebSocket; `None` if the bytes are not a WebSocket's.
    messages: Option<Messages>,
    /// The report of the first secret that is found.
    finding: Option<LeakFinding>,
    /// The guard of the memory for bytes that are held back.
    _room: Option<QuotaGuard>,
}

impl Mask {
    /// Creates the mask for the credentials that may go to the host of `connection`, except short
    /// ones; `None` if there are none.
    ///
    /// # Errors
    /// Fails if there is no memory for what is held back.
    pub fn of(services: &Services, connection: &Connection) -> Result<Option<Self>, Refusal> {
        let watched = services
            .vault
            .watched(&connection.target().host)
            .without_short();
        if watched.is_empty() {
            return Ok(None);
        }
        let record = Record::of(
            &services.audit,
            connection.caller(),
            connection.target().clone(),
        );
        let finding = record.echo(watched.iter().map(|credential| credential.name()));
        record.left_to_requests();
        let room = services
            .memory
            .searching(&connection.caller().program.executable, watched.longest())?;
        Ok(Some(Self {
            scrubber: Scrubber::new(watched),
            messages: None,
            finding: Some(finding),
            _room: room,
        }))
    }

    /// Masks in the messages of a WebSocket.
    #[must_use]
    pub fn of_messages(self) -> Self {
        Self {
            messages: Some(Messages::default()),
            ..self
        }
    }

    fn push(&mut self, part: &[u8]) -> Result<Bytes, Refusal> {
        let (clean, is_found) = match &mut self.messages {
            Some(messages) => messages.push(part, &mut self.scrubber)?,
            None => self.scrubber.push(Bytes::copy_from_slice(part)),
        };
        if is_found && let Some(finding) = self.finding.take() {
            finding.report();
        }
        Ok(clean)
    }

    /// Returns true if bytes are held back that are sent on after a time.
    fn holds_back(&self) -> bool {
        self.messages.is_none() && self.scrubber.holds_back()
    }

    /// Returns what was held back, at the end of a text. What is left of an unfinished message is
    /// of no use, and is dropped.
    fn finish(&mut self) -> Bytes {
        if self.messages.is_none() {
            self.scrubber.finish()
        } else {
            Bytes::new()
        }
    }
}

/// The bytes of an upstream after their search. Bytes that may begin a secret wait for more, for at
/// most [`Limits::MASK_HOLD`].
pub(super) struct Answers<S> {
    stream: S,
    search: AnswerSearch,
    /// The bytes that were searched but not read yet.
    ready: Bytes,
    hold: Option<Pin<Box<Sleep>>>,
    pace: Pace,
    is_over: bool,
}

impl<S> Answers<S> {
    pub(super) fn new(stream: S, search: AnswerSearch) -> Self {
        Self {
            stream,
            search,
            ready: Bytes::new(),
            hold: None,
            pace: Pace::default(),
            is_over: false,
        }
    }
}

impl<S: AsyncRead + Unpin> Searched for Answers<S> {
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), StreamEnd>> {
        while self.ready.is_empty() && !self.is_over {
            ready!(self.pace.poll_turn(cx));
            let read = Pin::new(&mut self.stream).poll_read(cx, buf)?;
            let part = buf.filled();
            self.search.scan(part)?;
            let Some(mask) = &mut self.search.mask else {
                return read.map(Ok);
            };
            if read.is_ready() {
                self.is_over = part.is_empty();
                self.ready = if self.is_over {
                    mask.finish()
                } else {
                    self.pace.measure(part.len(), || mask.push(part))?
                };
                buf.clear();
                self.hold = mask
                    .holds_back()
                    .then(|| Box::pin(sleep(Limits::MASK_HOLD)));
            } else {
                match &mut self.hold {
                    Some(hold) => ready!(hold.as_mut().poll(cx)),
                    None => return Poll::Pending,
                }
                self.hold = None;
                self.ready = mask.finish();
            }
        }
        let part = self.ready.split_to(self.ready.len().min(buf.remaining()));
        buf.put_slice(&part);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::{AnswerSearch, Look as _, Refusal};

    fn is_refused(parts: &[&[u8]]) -> bool {
        let mut search =
            AnswerSearch::default().without_http(Refusal::unsupported_protocol("test", None));
        parts.iter().any(|part| search.scan(part).is_err())
    }

    #[test]
    fn answers_in_http_or_tls_are_known_wherever_they_are_cut() {
        for (answer, expected) in [
            (b"HTTP/1.0 200 OK\r\n".as_slice(), true),
            (b"\x16\x03\x03\0\x7a\x02\0\0\x76", true),
            (b"\x15\x03\x03\0\x02\x02\x28", true),
            (b"220 mail.test\r\n", false),
            // Lengths of MongoDB, with the lower byte first.
            (b"\x16\x03\0\0\x01\0\0\0", false),
            (b"\x15\x03\0\0\x02\0\0\0", false),
            (b"+PONG\r\n HTTP/1.1", false),
        ] {
            for cut in 0..answer.len() {
                let (first, rest) = answer.split_at(cut);
                assert_eq!(
                    is_refused(&[first, rest]),
                    expected,
                    "{} {cut}",
                    answer.escape_ascii()
                );
            }
        }
    }
}
