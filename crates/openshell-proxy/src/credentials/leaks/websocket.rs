//! Searches the messages that a client sends over a WebSocket for secrets (RFC 6455 §5).

use crate::credentials::leaks::detector::LeakWatch;
use crate::credentials::leaks::scan::Scan;
use crate::denial::refusal::Refusal;
use crate::wire::http::websocket::{Frames, Piece};

/// A search through the frames of one client, which are masked (RFC 6455 §5.3).
#[derive(Debug)]
pub struct MessageScan {
    watch: LeakWatch,
    frames: Frames,
    /// The search through the current message.
    message: Scan,
    /// The search through the current control frame, which may stand between the frames of a
    /// message (RFC 6455 §5.4).
    control: Scan,
    /// True once something other than frames has come; from then on everything is searched as a
    /// text.
    is_text: bool,
}

impl MessageScan {
    /// Begins the search after the response that switched protocols.
    #[must_use]
    pub fn new(watch: LeakWatch) -> Self {
        let message = watch.scan();
        let control = watch.scan();
        Self {
            watch,
            frames: Frames::default(),
            message,
            control,
            is_text: false,
        }
    }

    /// Searches `part`, the next part.
    ///
    /// # Errors
    /// Fails if secrets are refused, and a message holds one or the bytes are not a sequence of
    /// frames that a client may send without an extension.
    pub fn push(&mut self, part: &[u8]) -> Result<(), Refusal> {
        let mut rest = part;
        let mut found = Vec::new();
        while !self.is_text
            && let Some(piece) = self.frames.next(&mut rest)
        {
            let frame = self.frames.frame();
            let scan = if frame.is_control() {
                &mut self.control
            } else {
                &mut self.message
            };
            match piece {
                Piece::Begin if frame.mask.is_some() && frame.is_plain() => {}
                Piece::Begin if self.watch.blocks() => return Err(Refusal::bad_request(NO_FRAMES)),
                Piece::Begin => {
                    self.is_text = true;
                    continue;
                }
                Piece::Payload(bytes) => scan.push(&bytes, |secret| found.push(secret)),
            }
            if self.frames.is_at_end() && frame.is_last {
                scan.finish(|secret| found.push(secret));
            }
        }
        if self.is_text {
            self.message.push(part, |secret| found.push(secret));
        }
        self.watch.found(&found)
    }
}

/// The description of bytes that no server accepts.
const NO_FRAMES: &str =
    "the bytes after the switch to WebSocket are not masked frames without extensions";
