//! Reads the token usage from a response while it passes.

use memchr::memmem;
use openshell_events::event::TokenUsage;

/// Bytes of a response that are kept to find its usage; longer than any usage object.
const TAIL_BYTES: usize = 4 * 1024;

/// A meter that reads the `usage` objects of a response, plain or in events. The last one counts.
#[derive(Debug, Default)]
pub struct Meter {
    tail: Vec<u8>,
    usage: TokenUsage,
    bytes: u64,
    events: u64,
}

/// The key of a usage object. Quotes inside strings are escaped, so only the structure of a
/// response can hold it; that includes arguments of tools.
const KEY: &[u8] = b"\"usage\"";

impl Meter {
    /// Reads `part`, the next part of the response.
    pub fn read(&mut self, part: &[u8]) {
        self.bytes += part.len() as u64;
        self.events += memmem::find_iter(part, b"data:").count() as u64;
        // A usage object may have begun in the previous part.
        let text = if self.tail.is_empty() {
            part
        } else {
            self.tail
                .extend_from_slice(part.get(..TAIL_BYTES).unwrap_or(part));
            let joined = std::mem::take(&mut self.tail);
            self.read_usage(&joined);
            if part.len() < TAIL_BYTES {
                self.keep_tail(&joined);
                return;
            }
            part
        };
        self.read_usage(text);
        self.keep_tail(text);
    }

    /// Returns the usage read so far.
    #[must_use]
    pub fn usage(&self) -> TokenUsage {
        self.usage
    }

    /// Estimates the tokens of a response without usage: one for each event, or one for every four
    /// bytes if there are no events.
    #[must_use]
    pub fn estimate(&self) -> u64 {
        if self.events > 0 {
            self.events
        } else {
            self.bytes / 4
        }
    }

    fn read_usage(&mut self, text: &[u8]) {
        for at in memmem::find_iter(text, KEY) {
            let after = text
                .get(at + KEY.len()..)
                .unwrap_or_default()
                .trim_ascii_start();
            let Some(object) = after.strip_prefix(b":") else {
                continue;
            };
            let mut values =
                serde_json::Deserializer::from_slice(object).into_iter::<serde_json::Value>();
            let Some(Ok(usage)) = values.next() else {
                continue;
            };
            let count = |names: [&str; 2]| names.iter().find_map(|name| usage.get(name)?.as_u64());
            // Cached tokens are listed separately, and are billed as well.
            let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"];
            let cached: u64 = cached
                .iter()
                .filter_map(|name| usage.get(name)?.as_u64())
                .fold(0, u64::saturating_add);
            let input =
                count(["prompt_tokens", "input_tokens"]).map(|input| input.saturating_add(cached));
            self.usage.input = input.or(self.usage.input);
            self.usage.output = count(["completion_tokens", "output_tokens"]).or(self.usage.output);
        }
    }

    fn keep_tail(&mut self, text: &[u8]) {
        self.tail = text
            .get(text.len().saturating_sub(TAIL_BYTES)..)
            .unwrap_or_default()
            .to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::Meter;
    use openshell_events::event::TokenUsage;

    #[test]
    fn tokens_are_counted_wherever_an_answer_is_cut() {
        let openai = r#"{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":9}"}}],"usage":{"prompt_tokens":11,"completion_tokens":22,"total_tokens":33}}"#;
        let anthropic = "event: message_start\ndata: \
                         {\"message\":{\"usage\":{\"input_tokens\":11,\"output_tokens\":1}}}\n\nevent: \
                         message_delta\ndata: {\"usage\": {\"output_tokens\": 22}}\n\n";
        let chunks = "data: {\"usage\":null}\n\ndata: \
                      {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":22}}\n\ndata: \
                      [DONE]\n\n";
        for text in [openai, anthropic, chunks] {
            for first in 0..text.len() {
                let mut meter = Meter::default();
                let (one, other) = text.as_bytes().split_at(first);
                for part in [one, other] {
                    meter.read(part);
                }
                assert_eq!(
                    meter.usage(),
                    TokenUsage {
                        input: Some(11),
                        output: Some(22)
                    },
                    "{text} cut at {first}"
                );
            }
            let mut meter = Meter::default();
            for byte in text.bytes() {
                meter.read(&[byte]);
            }
            assert_eq!(
                meter.usage(),
                TokenUsage {
                    input: Some(11),
                    output: Some(22)
                },
                "{text}"
            );
            let mut meter = Meter::default();
            for part in [
                vec![b'x'; 10_000].as_slice(),
                text.as_bytes(),
                &vec![b'x'; 10_000],
            ]
            .iter()
            {
                meter.read(part);
            }
            assert_eq!(meter.usage().total(), 33, "{text}");
        }
    }
}
