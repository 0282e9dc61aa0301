//! Search through the messages that a client sends over a WebSocket (RFC 6455 §5).

use crate::denial::refusal::Refusal;
use crate::leaks::detector::LeakWatch;
use crate::leaks::scan::Scan;

/// Bytes of the longest frame header: two, eight of length, four of mask.
const HEADER: usize = 14;

/// The frames of one client, which are masked (RFC 6455 §5.3). A text that is none is not searched.
#[derive(Debug)]
pub struct MessageScan {
    watch: LeakWatch,
    scan: Scan,
    /// Header of the current frame so far.
    header: Vec<u8>,
    /// Payload of the current frame that is still to come.
    left: u64,
    mask: [u8; 4],
    /// Bytes of the payload so far, by which the mask turns.
    turned: usize,
    /// True if the current message is not compressed. Control frames stand between those of a message (RFC 6455 §5.4).
    is_plain: bool,
    /// True if the payload is part of that message.
    is_searched: bool,
    is_last: bool,
    /// True once the text is no sequence of frames.
    is_lost: bool,
}

impl MessageScan {
    /// Begins the search after the response that switched protocols.
    #[must_use]
    pub fn new(watch: LeakWatch) -> Self {
        let scan = watch.scan();
        Self {
            watch,
            scan,
            header: Vec::new(),
            left: 0,
            mask: [0; 4],
            turned: 0,
            is_plain: false,
            is_searched: false,
            is_last: false,
            is_lost: false,
        }
    }

    /// Searches `part`, the next one.
    ///
    /// # Errors
    /// A message holds a secret, and secrets are refused.
    pub fn push(&mut self, part: &[u8]) -> Result<(), Refusal> {
        let (mut rest, mut found) = (part, Vec::new());
        while !rest.is_empty() && !self.is_lost {
            if self.left == 0 {
                let Some((byte, after)) = rest.split_first() else { break };
                self.header.push(*byte);
                rest = after;
                self.begin();
                if self.header.is_empty() && self.left == 0 {
                    self.end(&mut found);
                }
                continue;
            }
            let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(rest.len());
            let (payload, after) = rest.split_at(length);
            if self.is_searched {
                let turned = self.mask.iter().cycle().skip(self.turned);
                let plain: Vec<u8> = payload.iter().zip(turned).map(|(byte, mask)| byte ^ mask).collect();
                self.scan.push(&plain, |secret| found.push(secret));
            }
            self.turned = (self.turned + length) % 4;
            self.left -= length as u64;
            rest = after;
            if self.left == 0 {
                self.end(&mut found);
            }
        }
        self.watch.found(&found)
    }

    /// Ends a frame, and the message with its last.
    fn end(&mut self, found: &mut Vec<usize>) {
        if self.is_last && self.is_searched {
            self.scan.finish(|secret| found.push(secret));
        }
    }

    /// Begins the payload of a frame once its header is complete.
    fn begin(&mut self) {
        let [first, second, rest @ ..] = self.header.as_slice() else { return };
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if rest.len() < extended + 4 && second & 0x80 != 0 {
            return;
        }
        let (opcode, is_compressed) = (first & 0x0f, first & 0x40 != 0);
        let length = rest.get(..extended).unwrap_or_default();
        self.left = match extended {
            0 => u64::from(second & 0x7f),
            _ => length.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        let mask = rest.get(extended..extended + 4).and_then(|mask| <[u8; 4]>::try_from(mask).ok());
        self.is_lost = mask.is_none() || self.header.len() > HEADER;
        self.mask = mask.unwrap_or_default();
        self.turned = 0;
        self.is_last = first & 0x80 != 0;
        // A continuation is what its message began as.
        if matches!(opcode, 1 | 2) {
            self.is_plain = !is_compressed;
        }
        self.is_searched = opcode <= 2 && self.is_plain;
        self.header.clear();
    }
}
