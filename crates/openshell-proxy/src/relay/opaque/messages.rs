//! The masking of secrets in the messages that a server sends over a WebSocket (RFC 6455 §5).

use bytes::Bytes;

use crate::credentials::redact::Scrubber;
use crate::denial::refusal::Refusal;
use crate::wire::http::websocket::{Frame, Frames, Piece};

/// The messages of one server. Bytes that may begin a secret wait for the rest of their message,
/// however long that takes. So the frames of a message are written anew; control frames between
/// them are sent on at once.
#[derive(Debug, Default)]
pub(super) struct Messages {
    frames: Frames,
    /// The payload of the current control frame.
    control: Vec<u8>,
    /// The opcode of the next frame of the message.
    opcode: u8,
}

impl Messages {
    /// Masks what `scrubber` finds in `part`, which is the next one. Returns the frames to send on,
    /// and true if a secret ended in the part.
    ///
    /// # Errors
    /// Fails if the bytes are not a sequence of frames without extensions.
    pub(super) fn push(
        &mut self,
        part: &[u8],
        scrubber: &mut Scrubber,
    ) -> Result<(Bytes, bool), Refusal> {
        let mut rest = part;
        let mut written = Vec::with_capacity(part.len());
        let mut is_found = false;
        while let Some(piece) = self.frames.next(&mut rest) {
            let frame = self.frames.frame();
            let mut clean = Bytes::new();
            match piece {
                Piece::Begin if !frame.is_plain() => {
                    let why =
                        "the answer has a WebSocket frame of an extension or of an unknown kind";
                    return Err(Refusal::upstream_unreachable(why.to_owned()));
                }
                Piece::Begin if matches!(frame.opcode, 1 | 2) => self.opcode = frame.opcode,
                Piece::Begin => {}
                Piece::Payload(bytes) if frame.is_control() => self.control.extend(bytes),
                Piece::Payload(bytes) => {
                    let found;
                    (clean, found) = scrubber.push(bytes.into());
                    is_found |= found;
                }
            }
            let is_at_end = self.frames.is_at_end();
            if frame.is_control() {
                if is_at_end {
                    let payload = std::mem::take(&mut self.control);
                    let masked = scrubber.whole(&payload);
                    is_found |= masked.is_some();
                    Frame::write(&mut written, frame.opcode, true, &masked.unwrap_or(payload));
                }
                continue;
            }
            let is_last = is_at_end && frame.is_last;
            if is_last {
                clean = [clean, scrubber.finish()].concat().into();
            }
            if is_last || !clean.is_empty() {
                Frame::write(&mut written, self.opcode, is_last, &clean);
                self.opcode = 0;
            }
        }
        Ok((written.into(), is_found))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use openshell_policy::credential::{Binding, CredentialName};
    use openshell_policy::secret::Secret;

    use super::{Frame, Frames, Messages, Piece, Scrubber};
    use crate::credentials::vault::Vault;

    const SECRET: &str = "tkn-9f8a7d6c5b4a-QZXW-31415926";

    fn scrubber() -> Scrubber {
        let name = CredentialName::parse("A").unwrap();
        let vault = Vault::new([(name, Secret::new(SECRET.into()), Binding::default())]);
        Scrubber::new([Arc::clone(vault.get("A").unwrap())].into_iter().collect())
    }

    /// Returns the control frames and the messages in what is sent on for `parts`.
    fn sent(parts: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<String>) {
        let mut messages = Messages::default();
        let mut scrubber = scrubber();
        let mut frames = Frames::default();
        let mut controls = Vec::new();
        let mut texts = Vec::new();
        let mut text = Vec::new();
        for part in parts {
            let (written, _) = messages.push(part, &mut scrubber).unwrap();
            let mut rest = written.as_ref();
            while let Some(piece) = frames.next(&mut rest) {
                let frame = frames.frame();
                assert!(frame.is_plain() && frame.mask.is_none());
                match piece {
                    Piece::Begin if frame.is_control() => controls.push(Vec::new()),
                    Piece::Begin => assert_eq!(
                        frame.opcode == 0,
                        !text.is_empty(),
                        "a continuation, or none"
                    ),
                    Piece::Payload(bytes) if frame.is_control() => {
                        controls.last_mut().unwrap().extend(bytes)
                    }
                    Piece::Payload(bytes) => text.extend(bytes),
                }
                if frames.is_at_end() && frame.is_last && !frame.is_control() {
                    texts.push(String::from_utf8(std::mem::take(&mut text)).unwrap());
                }
            }
        }
        (controls, texts)
    }

    fn frame(opcode: u8, is_last: bool, payload: &str) -> Vec<u8> {
        let mut written = Vec::new();
        Frame::write(&mut written, opcode, is_last, payload.as_bytes());
        written
    }

    #[test]
    fn a_secret_is_masked_however_its_message_is_framed_and_cut() {
        let text = format!("tok={SECRET} end");
        let masked = format!("tok={} end", "*".repeat(SECRET.len()));
        let (first, rest) = text.split_at(15);
        let bytes: Vec<_> = text
            .char_indices()
            .map(|(at, char)| frame(u8::from(at == 0), false, &char.to_string()))
            .collect();
        let masked_frame = [
            &[0x81, 0x80 | u8::try_from(text.len()).unwrap(), 1, 2, 3, 4],
            text.as_bytes(),
        ]
        .concat();
        let unmasked = masked_frame.iter().enumerate().map(|(at, byte)| {
            if at < 6 {
                *byte
            } else {
                byte ^ [1, 2, 3, 4][(at - 6) % 4]
            }
        });
        for stream in [
            frame(1, true, &text),
            [frame(1, false, first), frame(0, true, rest)].concat(),
            [
                frame(1, false, first),
                frame(9, true, "ping"),
                frame(0, false, ""),
                frame(0, true, rest),
            ]
            .concat(),
            [bytes.concat(), frame(0, true, "")].concat(),
            unmasked.collect(),
        ] {
            let stream = [stream, frame(2, true, "next")].concat();
            for size in [1, 2, 5, 16, stream.len()] {
                let parts: Vec<_> = stream.chunks(size).collect();
                assert_eq!(
                    sent(&parts).1,
                    [masked.as_str(), "next"],
                    "{} {size}",
                    stream.escape_ascii()
                );
            }
        }
        let (controls, texts) = sent(&[&frame(1, false, first), &frame(9, true, SECRET)]);
        assert_eq!(
            controls,
            ["*".repeat(SECRET.len()).into_bytes()],
            "at once, amid a message"
        );
        assert!(texts.is_empty());
    }

    #[test]
    fn what_cannot_be_searched_is_refused() {
        for stream in [&[0xc1, 5], &[0x83, 5], &[0x09, 5], &[0x89, 126, 0, 126][..]] {
            assert!(
                Messages::default().push(stream, &mut scrubber()).is_err(),
                "{stream:x?}"
            );
        }
    }
}
