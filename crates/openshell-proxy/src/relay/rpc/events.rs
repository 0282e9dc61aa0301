//! Event streams (HTML, "Server-sent events"), split into events.

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

/// The number of bytes of an event that is read. A longer one passes unread.
pub(super) const EVENT_BYTES: usize = 16 * 1024 * 1024;

/// Splits a stream into its events.
#[derive(Debug)]
pub(super) struct Splitter {
    /// The beginning of an event.
    begun: BytesMut,
    /// The number of bytes of `begun` that were searched for line ends.
    searched: usize,
    /// The place in `begun` where the current line begins; `None` if it began before.
    line: Option<usize>,
    /// True within an event that is too long to be read.
    is_long: bool,
}

impl Default for Splitter {
    fn default() -> Self {
        Self {
            begun: BytesMut::new(),
            searched: 0,
            line: Some(0),
            is_long: false,
        }
    }
}

/// A part of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A whole event, with the empty line at its end.
    Event(Bytes),
    /// Bytes that are not read.
    Unread(Bytes),
}

impl Splitter {
    /// Adds bytes that have arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.begun.extend_from_slice(bytes);
    }

    /// Returns the number of bytes that are held.
    pub(super) fn len(&self) -> usize {
        self.begun.len()
    }

    /// Lets the current event pass unread.
    pub(super) fn pass(&mut self) {
        self.is_long = true;
    }

    /// Returns the next part that has arrived.
    pub(super) fn next(&mut self) -> Option<Part> {
        if let Some(end) = self.end() {
            let event = self.begun.split_to(end).freeze();
            self.searched = 0;
            self.line = Some(0);
            return Some(if std::mem::take(&mut self.is_long) {
                Part::Unread(event)
            } else {
                Part::Event(event)
            });
        }
        self.is_long = self.is_long || self.begun.len() > EVENT_BYTES;
        if !self.is_long || self.searched == 0 {
            return None;
        }
        let passed = self.begun.split_to(self.searched).freeze();
        self.line = self.line.and_then(|line| line.checked_sub(self.searched));
        self.searched = 0;
        Some(Part::Unread(passed))
    }

    /// Returns what has arrived at the end of the stream.
    pub(super) fn rest(&mut self) -> Bytes {
        self.begun.split().freeze()
    }

    /// Returns the number of bytes of the event that has arrived as a whole.
    fn end(&mut self) -> Option<usize> {
        loop {
            let rest = self.begun.get(self.searched..).unwrap_or_default();
            let Some(found) = memchr2(b'\n', b'\r', rest) else {
                self.searched = self.begun.len();
                return None;
            };
            let at = self.searched + found;
            let is_last = at + 1 == self.begun.len() && self.begun.last() == Some(&b'\r');
            if self.line == Some(at) {
                return Some(after_line_end(&self.begun, at));
            }
            if is_last {
                // It may be the first half of a line end.
                self.searched = at;
                return None;
            }
            self.searched = after_line_end(&self.begun, at);
            self.line = Some(self.searched);
        }
    }
}

/// Returns the place behind the line end at `at`, which may have two bytes.
fn after_line_end(bytes: &[u8], at: usize) -> usize {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => at + 2,
        _ => at + 1,
    }
}

/// Returns the data of `event`.
pub(super) fn data(event: &[u8]) -> Vec<u8> {
    let mut data: Vec<u8> = Vec::new();
    let mut has_data = false;
    for line in lines(event) {
        if let Some(value) = data_of(line) {
            if has_data {
                data.push(b'\n');
            }
            has_data = true;
            data.extend_from_slice(value);
        }
    }
    data
}

/// Returns `event` with `text` as its data in place of its own.
pub(super) fn with_data(event: &[u8], text: &str) -> Bytes {
    let mut new = Vec::with_capacity(event.len());
    let mut is_written = false;
    for line in lines(event) {
        if data_of(line).is_none() {
            new.extend_from_slice(line);
            new.push(b'\n');
        } else if !is_written {
            is_written = true;
            // Line ends stand only between the values of a JSON text.
            for part in text.split(['\n', '\r']) {
                new.extend([b"data: ", part.as_bytes(), b"\n"].concat());
            }
        }
    }
    new.push(b'\n');
    new.into()
}

/// Returns the value of a line of data.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    let value = line.strip_prefix(b"data")?;
    match value.strip_prefix(b":") {
        Some(value) => Some(value.strip_prefix(b" ").unwrap_or(value)),
        None => value.is_empty().then_some(value),
    }
}

/// Returns the lines of `event` without their ends, and without the empty one.
fn lines(event: &[u8]) -> impl Iterator<Item = &[u8]> {
    let event = event.strip_prefix("\u{feff}".as_bytes()).unwrap_or(event);
    event
        .split(|byte| matches!(byte, b'\n' | b'\r'))
        .filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{EVENT_BYTES, Part, Splitter, data, with_data};

    /// Returns the parts of a stream that arrives in pieces of `size` bytes, and its rest.
    fn parts(stream: &[u8], size: usize) -> (Vec<Part>, Bytes) {
        let mut splitter = Splitter::default();
        let mut parts = Vec::new();
        for piece in stream.chunks(size) {
            splitter.push(piece);
            while let Some(part) = splitter.next() {
                parts.push(part);
            }
        }
        (parts, splitter.rest())
    }

    fn bytes(parts: &[Part]) -> Vec<u8> {
        let bytes = parts.iter().map(|part| match part {
            Part::Event(bytes) | Part::Unread(bytes) => bytes.to_vec(),
        });
        bytes.collect::<Vec<_>>().concat()
    }

    #[test]
    fn events_are_split_at_empty_lines_however_they_arrive() {
        let stream = b"event: a\ndata: 1\n\ndata: 2\r\n\r\n: note\r\rdata: 3\n\nrest";
        for size in 1..stream.len() {
            let (parts, rest) = parts(stream, size);
            assert_eq!([bytes(&parts), rest.to_vec()].concat(), stream, "{size}");
            let events = parts.iter().filter_map(|part| match part {
                Part::Event(event) => Some(data(event)),
                Part::Unread(_) => None,
            });
            let events: Vec<_> = events.filter(|data| !data.is_empty()).collect();
            assert_eq!(events, [b"1", b"2", b"3"], "{size}");
        }
    }

    #[test]
    fn an_event_that_is_too_long_passes_unread_and_the_next_one_is_read() {
        let mut stream = b"data: ".to_vec();
        stream.resize(EVENT_BYTES + 100_000, b'x');
        stream.extend(b"\n\ndata: 2\n\n");
        let (parts, rest) = parts(&stream, 65_536);
        assert_eq!([bytes(&parts), rest.to_vec()].concat(), stream);
        assert!(matches!(parts.first(), Some(Part::Unread(_))));
        assert_eq!(
            parts.last(),
            Some(&Part::Event(Bytes::from_static(b"data: 2\n\n")))
        );
        let endless = vec![b'x'; EVENT_BYTES + 10];
        let mut splitter = Splitter::default();
        splitter.push(&endless);
        assert!(
            matches!(splitter.next(), Some(Part::Unread(passed)) if passed.len() > EVENT_BYTES)
        );
    }

    #[test]
    fn data_is_replaced_and_everything_else_stays() {
        let event = b"id: 7\nevent: message\ndata: {\"a\":\ndata:1}\nretry: 9\n\n";
        assert_eq!(data(event), b"{\"a\":\n1}");
        let new = with_data(event, "{\"b\":\n2}");
        assert_eq!(
            new,
            "id: 7\nevent: message\ndata: {\"b\":\ndata: 2}\nretry: 9\n\n"
        );
        assert_eq!(data(&new), b"{\"b\":\n2}");
        assert_eq!(data(b"data\n\n"), b"");
        assert_eq!(data(b"database: 1\n\n"), b"");
    }

    /// Returns the data of the events of `stream` as the standard reads them: by whole lines.
    fn read_by_lines(stream: &[u8]) -> Vec<Vec<u8>> {
        let text = stream.to_vec();
        let mut lines = Vec::new();
        let mut line = Vec::new();
        let mut at = 0;
        while at < text.len() {
            match text[at] {
                b'\r' | b'\n' => {
                    at += usize::from(text[at..].starts_with(b"\r\n"));
                    lines.push(std::mem::take(&mut line));
                }
                byte => line.push(byte),
            }
            at += 1;
        }
        let mut events = Vec::new();
        let mut data: Vec<Vec<u8>> = Vec::new();
        for line in lines {
            if line.is_empty() {
                events.push(std::mem::take(&mut data).join(&b'\n'));
            } else if let Some(value) = line.strip_prefix(b"data:") {
                data.push(value.strip_prefix(b" ").unwrap_or(value).to_vec());
            } else if line == b"data" {
                data.push(Vec::new());
            }
        }
        events.retain(|data| !data.is_empty());
        events
    }

    #[test]
    fn fuzzed_events_are_those_of_the_standard_however_they_arrive_and_pass_whole() {
        let samples: [&[u8]; 4] = [
            b"event: message\nid: 7\ndata: {\"a\":1}\n\n",
            b"data: 1\r\ndata:2\r\n\r\n: note\r\rdata\rdata: \r\r",
            b"retry: 500\ndata: \n\ndata: x",
            b"\n\n\r\r\r\n\r\n",
        ];
        let words: [&[u8]; 8] = [
            b"\n", b"\r", b"\r\n", b"\n\n", b"data", b"data:", b": ", b"id",
        ];
        fuzz::fuzz("event streams", &samples, &words, |stream| {
            let size = stream.len() % 7 + 1;
            let (parts, rest) = parts(stream, size);
            assert_eq!([bytes(&parts), rest.to_vec()].concat(), stream);
            let events = parts.iter().map(|part| match part {
                Part::Event(event) | Part::Unread(event) => data(event),
            });
            let mut events: Vec<_> = events.filter(|data| !data.is_empty()).collect();
            if rest.ends_with(b"\n\r") || rest.ends_with(b"\r\r") || rest == b"\r".as_slice() {
                // The empty line may have a second half.
                events.extend(Some(data(&rest)).filter(|data| !data.is_empty()));
            }
            assert_eq!(events, read_by_lines(stream));
            for part in &parts {
                if let Part::Event(event) = part
                    && !data(event).is_empty()
                {
                    assert_eq!(data(&with_data(event, "[1,\n2]")), b"[1,\n2]");
                }
            }
        });
    }
}
