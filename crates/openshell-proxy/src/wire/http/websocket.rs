//! Frames of a WebSocket (RFC 6455 §5.2).

/// A frame, as its header describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The kind of the frame: a continuation (0), text (1), bytes (2), or control (8, 9, 10).
    pub opcode: u8,
    /// True for the last frame of a message.
    pub is_last: bool,
    /// True if an extension uses the frame, for example for compression.
    pub has_extension: bool,
    /// The key with which the payload is masked.
    pub mask: Option<[u8; 4]>,
    /// The length of the payload in bytes.
    pub length: u64,
}

/// The length in bytes of the longest payload of a control frame (RFC 6455 §5.5).
const CONTROL_BYTES: u64 = 125;

impl Frame {
    /// Returns true if the frame stands by itself, between those of a message.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.opcode & 0x8 != 0
    }

    /// Returns true if the frame is of a kind that exists without an extension.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let is_known = matches!(self.opcode, 0..=2 | 8..=10);
        let is_short = !self.is_control() || (self.is_last && self.length <= CONTROL_BYTES);
        is_known && is_short && !self.has_extension
    }

    /// Parses a header; returns `None` if it is incomplete.
    fn parse(header: &[u8]) -> Option<Self> {
        let [first, second, rest @ ..] = header else {
            return None;
        };
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let length = match rest.get(..extended)? {
            [] => u64::from(second & 0x7f),
            bytes => bytes
                .iter()
                .fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        let mask = match second & 0x80 {
            0 => None,
            _ => Some(rest.get(extended..extended + 4)?.try_into().ok()?),
        };
        let is_last = first & 0x80 != 0;
        let has_extension = first & 0x70 != 0;
        Some(Self {
            opcode: first & 0x0f,
            is_last,
            has_extension,
            mask,
            length,
        })
    }

    /// Writes a frame without a mask and without an extension.
    pub fn write(written: &mut Vec<u8>, opcode: u8, is_last: bool, payload: &[u8]) {
        written.push(opcode | if is_last { 0x80 } else { 0 });
        match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
            (Ok(length @ ..=125), _) => written.push(length),
            (_, Ok(length)) => {
                written.push(126);
                written.extend_from_slice(&length.to_be_bytes());
            }
            _ => {
                written.push(127);
                written.extend_from_slice(&(payload.len() as u64).to_be_bytes());
            }
        }
        written.extend_from_slice(payload);
    }
}

/// A part of a stream of frames.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// A frame begins.
    Begin,
    /// A part of its payload, unmasked.
    Payload(Vec<u8>),
}

/// A reader of a stream of frames that arrives in parts.
#[derive(Debug, Default)]
pub struct Frames {
    /// The bytes of the next frame's header so far.
    header: Vec<u8>,
    frame: Frame,
    /// The number of payload bytes that are still to come.
    left: u64,
    /// The number of payload bytes so far, modulo 4, by which the mask is shifted.
    turned: usize,
}

impl Frames {
    /// Takes the next piece from the beginning of `rest`; returns `None` if there is no complete
    /// one.
    pub fn next(&mut self, rest: &mut &[u8]) -> Option<Piece> {
        if self.left == 0 {
            return self.begin(rest).then_some(Piece::Begin);
        }
        let length = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(rest.len());
        let (payload, after) = rest.split_at(length);
        *rest = after;
        let mask = self.frame.mask.unwrap_or_default();
        let mask = mask.iter().cycle().skip(self.turned);
        let payload: Vec<u8> = payload
            .iter()
            .zip(mask)
            .map(|(byte, mask)| byte ^ mask)
            .collect();
        self.left -= length as u64;
        self.turned = (self.turned + length) % 4;
        (!payload.is_empty()).then_some(Piece::Payload(payload))
    }

    /// Reads a header; returns false if it is incomplete.
    fn begin(&mut self, rest: &mut &[u8]) -> bool {
        while let Some((byte, after)) = rest.split_first() {
            *rest = after;
            self.header.push(*byte);
            if let Some(frame) = Frame::parse(&self.header) {
                self.header.clear();
                (self.frame, self.left, self.turned) = (frame, frame.length, 0);
                return true;
            }
        }
        false
    }

    /// Returns the frame to which the last piece belongs.
    #[must_use]
    pub fn frame(&self) -> Frame {
        self.frame
    }

    /// Returns true if the last piece was the end of its frame.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::{Frame, Frames, Piece};

    #[test]
    fn frames_are_read_wherever_they_are_cut() {
        let mut stream = Vec::new();
        let payloads = [
            vec![],
            vec![1; 125],
            vec![2; 126],
            vec![3; 65_535],
            vec![4; 65_536],
        ];
        for payload in &payloads {
            Frame::write(&mut stream, 2, true, payload);
        }
        stream.extend_from_slice(&[0x81, 0x83, 1, 2, 3, 4, b'a' ^ 1, b'b' ^ 2, b'c' ^ 3]);
        for size in [1, 2, 3, 7, 1000, stream.len()] {
            let mut frames = Frames::default();
            let mut found = Vec::new();
            for mut rest in stream.chunks(size) {
                while let Some(piece) = frames.next(&mut rest) {
                    match piece {
                        Piece::Begin => found.push(Vec::new()),
                        Piece::Payload(bytes) => found.last_mut().unwrap().extend(bytes),
                    }
                }
            }
            assert!(frames.is_at_end());
            assert_eq!(frames.frame().mask, Some([1, 2, 3, 4]));
            let expected: Vec<_> = payloads.iter().cloned().chain([b"abc".to_vec()]).collect();
            assert_eq!(found, expected, "{size}");
        }
    }

    #[test]
    fn what_no_server_without_extensions_takes_is_not_plain() {
        let of = |header: &[u8]| Frame::parse(header).unwrap().is_plain();
        for header in [
            [0x81, 5],
            [0x01, 5],
            [0x00, 5],
            [0x82, 5],
            [0x88, 0],
            [0x89, 125],
            [0x8a, 0],
        ] {
            assert!(of(&header), "{header:x?}");
        }
        for header in [
            [0xc1, 5],
            [0xa1, 5],
            [0x91, 5],
            [0x83, 5],
            [0x8b, 5],
            [0x09, 5],
        ] {
            assert!(!of(&header), "{header:x?}");
        }
        assert!(!of(&[0x89, 126, 0, 126]));
    }
}
