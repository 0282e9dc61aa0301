//! Encoding of log lines. Each line is encoded when it is written, which costs only a few
//! allocations. A batch is kept by reference until it has arrived.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use openshell_events::lines::Line;
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

/// A log line as the message `SandboxLogLine`, already encoded except for the sandbox's id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogLine {
    timestamp_ms: i64,
    /// The sandbox's id, which is added when the line is sent.
    id: Option<Arc<str>>,
    /// All fields behind the id, encoded.
    rest: Bytes,
}

/// Field numbers of the message.
mod tag {
    pub(super) const ID: u32 = 1;
    pub(super) const TIMESTAMP: u32 = 2;
    pub(super) const LEVEL: u32 = 3;
    pub(super) const TARGET: u32 = 4;
    pub(super) const MESSAGE: u32 = 5;
    pub(super) const SOURCE: u32 = 6;
    pub(super) const FIELDS: u32 = 7;
    /// Key and value are the fields of a map's entry.
    pub(super) const KEY: u32 = 1;
    pub(super) const VALUE: u32 = 2;
}

/// Capacity in bytes that is enough for most lines.
const USUAL_BYTES: usize = 768;

impl LogLine {
    /// Encodes a line.
    pub(crate) fn new(line: Line<'_>) -> Self {
        let mut rest = Vec::with_capacity(USUAL_BYTES);
        encoding::int64::encode(tag::TIMESTAMP, &line.time_ms, &mut rest);
        let texts = [
            (tag::LEVEL, line.level),
            (tag::TARGET, line.target),
            (tag::MESSAGE, line.message),
            (tag::SOURCE, "sandbox"),
        ];
        for (tag, text) in texts {
            put(tag, text, &mut rest);
        }
        for (name, value) in line.fields {
            encoding::encode_key(tag::FIELDS, WireType::LengthDelimited, &mut rest);
            let length = length(tag::KEY, name) + length(tag::VALUE, value);
            encoding::encode_varint(length as u64, &mut rest);
            put(tag::KEY, name, &mut rest);
            put(tag::VALUE, value, &mut rest);
        }
        Self {
            timestamp_ms: line.time_ms,
            id: None,
            rest: rest.into(),
        }
    }

    /// Returns a line about the sending of lines, with the time of this line.
    pub(crate) fn note(&self, message: &str) -> Self {
        Self::new(Line {
            time_ms: self.timestamp_ms,
            level: "WARN",
            target: "logs",
            message,
            fields: &[],
        })
    }

    /// Returns the line with the sandbox's `id`.
    pub(crate) fn of(self, id: &Arc<str>) -> Self {
        Self {
            id: Some(Arc::clone(id)),
            ..self
        }
    }
}

/// Encodes a string; leaves out an empty one, which is the default of proto3.
fn put(tag: u32, text: &str, buffer: &mut impl BufMut) {
    if !text.is_empty() {
        encoding::encode_key(tag, WireType::LengthDelimited, buffer);
        encoding::encode_varint(text.len() as u64, buffer);
        buffer.put_slice(text.as_bytes());
    }
}

/// Returns the encoded length of a string in bytes.
fn length(tag: u32, text: &str) -> usize {
    match text.len() {
        0 => 0,
        length => encoding::key_len(tag) + encoding::encoded_len_varint(length as u64) + length,
    }
}

impl Message for LogLine {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        put(tag::ID, self.id.as_deref().unwrap_or_default(), buffer);
        buffer.put_slice(&self.rest);
    }

    fn encoded_len(&self) -> usize {
        length(tag::ID, self.id.as_deref().unwrap_or_default()) + self.rest.len()
    }

    /// Skips the field, because gateways do not send lines.
    fn merge_field(
        &mut self,
        tag: u32,
        kind: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        encoding::skip_field(kind, tag, buffer, context)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use openshell_events::lines::Line;
    use prost::Message;

    use super::LogLine;

    /// The message as `proto/` describes it.
    #[derive(Clone, PartialEq, Message)]
    struct Described {
        #[prost(string, tag = "1")]
        sandbox_id: String,
        #[prost(int64, tag = "2")]
        timestamp_ms: i64,
        #[prost(string, tag = "3")]
        level: String,
        #[prost(string, tag = "4")]
        target: String,
        #[prost(string, tag = "5")]
        message: String,
        #[prost(string, tag = "6")]
        source: String,
        #[prost(btree_map = "string, string", tag = "7")]
        fields: BTreeMap<String, String>,
    }

    #[test]
    fn a_line_is_encoded_as_its_message_is() {
        let long = "x".repeat(300);
        let fields = [
            ("action", "deny"),
            ("dst_host", "a.test"),
            ("l7_target", long.as_str()),
        ];
        for (message, fields) in [("text", &fields[..]), ("", &[])] {
            let line = Line {
                time_ms: 1_700_000_000_000,
                level: "INFO",
                target: "audit",
                message,
                fields,
            };
            let line = LogLine::new(line).of(&"box".into());
            let described = Described {
                sandbox_id: "box".to_owned(),
                timestamp_ms: 1_700_000_000_000,
                level: "INFO".to_owned(),
                target: "audit".to_owned(),
                message: message.to_owned(),
                source: "sandbox".to_owned(),
                fields: fields
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect(),
            };
            assert_eq!(line.encode_to_vec(), described.encode_to_vec());
            assert_eq!(line.encoded_len(), described.encoded_len());
        }
    }
}
