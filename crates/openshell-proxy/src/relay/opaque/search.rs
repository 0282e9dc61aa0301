//! The search of what a client sends on a connection whose requests are not inspected.

use crate::credentials::leaks::websocket::MessageScan;
use crate::credentials::vault::Vault;
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::relay::body::searched::Scanner;
use crate::relay::opaque::hello::HelloSearch;
use crate::relay::opaque::look::Look;
use crate::wire::detect::is_blank;

/// A search for placeholders in the first [`Limits::FIRST_BYTES`], for a request that does not
/// begin like one, and for secrets in the messages of a WebSocket.
#[derive(Debug, Default)]
pub struct ClientSearch {
    scanner: Scanner,
    left: usize,
    hidden: Option<Hidden>,
    messages: Option<Box<MessageScan>>,
}

impl ClientSearch {
    /// Creates a search for placeholders, if there are credentials.
    #[must_use]
    pub fn new(vault: &Vault) -> Self {
        let left = if vault.is_empty() {
            0
        } else {
            Limits::FIRST_BYTES
        };
        Self {
            left,
            ..Self::default()
        }
    }

    /// Also refuses a request or a ClientHello, with `refusal`.
    #[must_use]
    pub fn without_requests(self, refusal: Refusal) -> Self {
        let request = RequestSearch {
            left: Limits::DETECTED_BYTES,
            tail: Vec::new(),
        };
        Self {
            hidden: Some(Hidden {
                refusal,
                request,
                hello: HelloSearch::default(),
            }),
            ..self
        }
    }

    /// Also searches `messages`.
    #[must_use]
    pub fn with_messages(self, messages: Option<MessageScan>) -> Self {
        let messages = messages.map(Box::new);
        Self { messages, ..self }
    }
}

impl Look for ClientSearch {
    fn is_active(&self) -> bool {
        self.left > 0 || self.hidden.is_some() || self.messages.is_some()
    }

    fn scan(&mut self, part: &[u8]) -> Result<(), Refusal> {
        let seen = part.get(..self.left).unwrap_or(part);
        self.left -= seen.len();
        if self.scanner.finds_end_in(seen) {
            return Err(Refusal::placeholder_misplaced(
                "the first bytes of the connection",
            ));
        }
        if let Some(Hidden {
            refusal,
            request,
            hello,
        }) = &mut self.hidden
            && (request.finds_in(part) || hello.finds_in(part))
        {
            return Err(refusal.clone());
        }
        match &mut self.messages {
            Some(messages) => messages.push(part),
            None => Ok(()),
        }
    }
}

/// The searches for what a relay of bytes would carry unseen.
#[derive(Debug)]
struct Hidden {
    refusal: Refusal,
    request: RequestSearch,
    hello: HelloSearch,
}

/// A search for the version that ends a request line, whatever comes before: some servers take any
/// bytes there for a method and a target.
#[derive(Debug)]
struct RequestSearch {
    /// The number of bytes that are still to be searched: no server reads a longer line.
    left: usize,
    /// The end of the parts before.
    tail: Vec<u8>,
}

impl RequestSearch {
    fn finds_in(&mut self, part: &[u8]) -> bool {
        const NAME: &[u8] = b"HTTP/";
        if self.left == 0 {
            return false;
        }
        let part = part.get(..self.left).unwrap_or(part);
        self.left -= part.len();
        let text = [&self.tail, part].concat();
        let is_version = |at: usize| {
            let before = text.get(..at).and_then(<[u8]>::last);
            before.is_some_and(|byte| is_blank(*byte))
                && text.get(at + NAME.len()).is_some_and(u8::is_ascii_digit)
        };
        let is_found = memchr::memmem::find_iter(&text, NAME).any(is_version);
        // The tail also has room for a blank before the name.
        self.tail = text
            .get(text.len().saturating_sub(NAME.len() + 1)..)
            .unwrap_or_default()
            .to_vec();
        is_found
    }
}

#[cfg(test)]
mod tests {
    use super::{ClientSearch, Look as _, Refusal};

    fn is_refused(parts: &[&[u8]]) -> bool {
        let mut search =
            ClientSearch::default().without_requests(Refusal::unsupported_protocol("test", None));
        parts.iter().any(|part| search.scan(part).is_err())
    }

    #[test]
    fn a_request_whose_first_word_is_no_method_is_found_wherever_it_is_cut() {
        for text in [
            b"@GET /kv HTTP/1.1\r\nHost: b.test\r\n\r\n".as_slice(),
            b"\0\xff\nGET\t/kv\tHTTP/1.0\r\n",
            b"\xef\xbb\xbfGET /kv HTTP/2.0\r\n",
        ] {
            for cut in 0..text.len() {
                let (first, rest) = text.split_at(cut);
                assert!(is_refused(&[first, rest]), "{} {cut}", text.escape_ascii());
            }
            assert!(is_refused(&text.chunks(1).collect::<Vec<_>>()));
        }
    }

    #[test]
    fn what_names_http_and_is_no_request_passes() {
        for text in [
            b"\0\0HTTP/1.1".as_slice(),
            b"see HTTP/x",
            b"\0 HTTP",
            b"/HTTP/1",
        ] {
            assert!(!is_refused(&[text]), "{}", text.escape_ascii());
        }
        let far = [vec![b'x'; 16 * 1024], b" HTTP/1.1".to_vec()].concat();
        assert!(!is_refused(&[&far]));
    }
}
