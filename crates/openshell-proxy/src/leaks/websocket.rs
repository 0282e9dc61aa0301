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
    /// True if the payload is part of a message, and not compressed.
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
            if self.left == 0 && self.is_last && self.is_searched {
                self.scan.finish(|secret| found.push(secret));
            }
        }
        self.watch.found(&found)
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
        self.is_searched = match opcode {
            // A continuation is what its message began as.
            0 => self.is_searched,
            1 | 2 => !is_compressed,
            _ => false,
        };
        self.header.clear();
    }
}
