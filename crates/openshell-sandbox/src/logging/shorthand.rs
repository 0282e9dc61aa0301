//! One event as one line.

use std::borrow::Cow;
use std::fmt::{self, Write};

use openshell_proxy::placeholder::REDACTED;
use openshell_proxy::record::AUDIT;
use time::OffsetDateTime;
use tracing::Level;

use super::fields::Fields;
use crate::text::printable;

/// Time and place of an event.
pub(super) struct Source<'e> {
    pub(super) made: OffsetDateTime,
    pub(super) level: Level,
    pub(super) target: &'e str,
    /// The spans around it, in front of its message.
    pub(super) spans: &'e str,
}

/// Returns the line of an event: `<time> OCSF <shorthand>` for an audit record, `<time> LEVEL target: message` otherwise; below
/// `info` with its spans in front of the message and its fields behind.
/// Text from the workload cannot end a line or colour it. The last word is `sandbox=<id>`, behind anything that others choose.
pub(super) fn line(source: &Source<'_>, fields: &Fields, sandbox: &str) -> String {
    let mut line = String::with_capacity(512);
    // Writing to a String cannot fail, and what else may is not worth a line.
    let _ = write_line(&mut line, source, fields);
    line.push_str(" sandbox=");
    line.push_str(sandbox);
    match printable(&line) {
        Cow::Borrowed(_) => line,
        Cow::Owned(printable) => printable,
    }
}

fn write_line(line: &mut String, source: &Source<'_>, fields: &Fields) -> fmt::Result {
    let Source { made: now, level, target, spans } = source;
    let (year, month, day) = now.to_calendar_date();
    let (hour, minute, second, millisecond) = now.to_hms_milli();
    let month = u8::from(month);
    write!(line, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z ")?;
    let get = |name| fields.get(name);
    if *target != AUDIT {
        write!(line, "{level} {target}: {spans}{}", get("message"))?;
        return if *level > Level::INFO { write_fields(line, fields) } else { Ok(()) };
    }
    line.push_str("OCSF ");
    match get("class") {
        "NET" => network(line, fields),
        "HTTP" => http(line, fields),
        "PROC" => process(line, fields),
        "FINDING" => write!(
            line,
            "FINDING:{} [{}] \"{}\" [confidence:{}] {}",
            get("activity"),
            get("severity"),
            get("title"),
            get("confidence"),
            get("message")
        ),
        class => write!(line, "{class}:{} [{}] {}", get("activity"), get("severity"), get("message")),
    }
}

/// Writes all fields but the message.
fn write_fields(line: &mut String, fields: &Fields) -> fmt::Result {
    fields
        .iter()
        .filter(|(name, _)| *name != "message")
        .try_for_each(|(name, value)| write!(line, " {name}={}", Value(value)))
}

fn http(line: &mut String, fields: &Fields) -> fmt::Result {
    let get = |name| fields.get(name);
    let activity = Word::of(get("activity"));
    // Inside a connection the caller stands behind, as the connection's own line began with it.
    let is_inside = get("number") != "0";
    let (binary, pid) = (Word::of(get("binary")), get("pid"));
    write!(line, "HTTP:{activity} [{}] {} ", get("severity"), get("action"))?;
    if !is_inside {
        write!(line, "{binary}({pid}) -> ")?;
    }
    write!(line, "{activity} {}://{}", get("scheme"), Word::of(get("host")))?;
    if !matches!((get("scheme"), get("port")), ("http", "80") | ("https", "443")) {
        write!(line, ":{}", get("port"))?;
    }
    write!(line, "{}", Word::redacted(get("path")))?;
    if !get("engine").is_empty() {
        write!(line, " [policy:{} engine:{}]", Word::of(get("policy")), get("engine"))?;
    }
    if matches!(get("decision"), "audit" | "allow_upgrade") {
        write!(line, " [decision:{}]", get("decision"))?;
    }
    if is_inside {
        write!(line, " [request:{}]", get("number"))?;
    }
    if !get("credentials").is_empty() {
        write!(line, " [credentials:{}]", Word::of(get("credentials")))?;
    }
    if !get("route").is_empty() {
        write!(line, " [route:{}", Word::of(get("route")))?;
        if !get("tokens").is_empty() {
            write!(line, " tokens:{}", get("tokens"))?;
        }
        line.push(']');
    }
    reason(line, fields)?;
    if is_inside {
        write!(line, " [by:{binary}({pid})]")?;
    }
    Ok(())
}

fn network(line: &mut String, fields: &Fields) -> fmt::Result {
    let get = |name| fields.get(name);
    write!(
        line,
        "NET:{} [{}] {} {}({}) -> {}:{} [policy:{} engine:{}]",
        get("activity"),
        get("severity"),
        get("action"),
        Word::of(get("binary")),
        get("pid"),
        Word::of(get("host")),
        get("port"),
        Word::of(get("policy")),
        get("engine"),
    )?;
    reason(line, fields)
}

fn reason(line: &mut String, fields: &Fields) -> fmt::Result {
    let get = |name| fields.get(name);
    if !get("reason").is_empty() {
        write!(line, " [reason:{}]", Cut(get("reason")))?;
    }
    if !get("code").is_empty() {
        write!(line, " [code:{}]", get("code"))?;
    }
    Ok(())
}

fn process(line: &mut String, fields: &Fields) -> fmt::Result {
    let get = |name| fields.get(name);
    let (binary, pid) = (Word::of(get("binary")), get("pid"));
    write!(line, "PROC:{} [{}] {binary}({pid})", get("activity"), get("severity"))?;
    for name in ["exit", "cmd", "reason"] {
        if !get(name).is_empty() {
            write!(line, " [{name}:{}]", Cut(get(name)))?;
        }
    }
    Ok(())
}

/// Bytes of a name in a line: longer than any host, and than any path that people use.
const WORD_BYTES: usize = 512;

/// A name that the workload may have chosen, as one word: characters that end a field or reorder a line are escaped.
struct Word<'t> {
    text: &'t str,
    /// Shows the mark of a redacted credential as it is.
    is_redacted: bool,
}

impl<'t> Word<'t> {
    fn of(text: &'t str) -> Self {
        Self { text, is_redacted: false }
    }

    fn redacted(text: &'t str) -> Self {
        Self { text, is_redacted: true }
    }
}

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'[' | b']' | b'"');
        if self.text.len() <= WORD_BYTES && self.text.bytes().all(is_plain) {
            return f.write_str(self.text);
        }
        let (mut rest, mut left) = (self.text, WORD_BYTES);
        while let Some(c) = rest.chars().next() {
            let is_kept = c.is_alphanumeric() || u8::try_from(c).is_ok_and(is_plain);
            let (part, length) = match rest.strip_prefix(REDACTED) {
                Some(_) if self.is_redacted => (REDACTED.len(), REDACTED.len()),
                _ if is_kept => (c.len_utf8(), c.len_utf8()),
                _ => (c.len_utf8(), c.escape_unicode().len()),
            };
            let Some(still) = left.checked_sub(length) else { return f.write_str("...") };
            let (shown, behind) = rest.split_at(part);
            if length == part {
                f.write_str(shown)?
            } else {
                write!(f, "{}", c.escape_unicode())?
            }
            (rest, left) = (behind, still);
        }
        Ok(())
    }
}

/// The value of a field below `info`: one word, or words in quotes.
pub(super) struct Value<'t>(pub(super) &'t str);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.contains(' ') || self.0.len() > WORD_BYTES {
            return Word::of(self.0).fmt(f);
        }
        let mut separator = '"';
        for word in self.0.split(' ') {
            write!(f, "{separator}{}", Word::of(word))?;
            separator = ' ';
        }
        f.write_char('"')
    }
}

/// At most 80 bytes, whole characters.
struct Cut<'t>(&'t str);

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LIMIT: usize = 80;
        match self.0.len() {
            ..=LIMIT => f.write_str(self.0),
            _ => write!(f, "{}...", &self.0[..self.0.floor_char_boundary(LIMIT)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, line};
    use crate::logging::fields::Fields;
    use openshell_proxy::record::AUDIT;
    use time::macros::datetime;
    use tracing::Level;

    fn of(target: &str, fields: &[(&'static str, &str)]) -> String {
        let mut record = Fields::default();
        for (name, value) in fields {
            record.push(name, value);
        }
        let made = datetime!(2026-01-02 03:04:05.006 UTC);
        line(&Source { made, level: Level::INFO, target, spans: "" }, &record, "box-1")
    }

    const CURL: [(&str, &str); 8] = [
        ("class", "NET"),
        ("activity", "OPEN"),
        ("binary", "/usr/bin/curl"),
        ("pid", "7"),
        ("host", "a.test"),
        ("port", "443"),
        ("policy", "web"),
        ("engine", "opa"),
    ];

    #[test]
    fn log_01_and_03_an_allowed_connection() {
        let fields = [&CURL[..], &[("severity", "INFO"), ("action", "ALLOWED"), ("reason", ""), ("code", "")]].concat();
        let expected = "2026-01-02T03:04:05.006Z OCSF NET:OPEN [INFO] ALLOWED /usr/bin/curl(7) -> a.test:443 \
                        [policy:web engine:opa] sandbox=box-1";
        assert_eq!(of(AUDIT, &fields), expected);
    }

    #[test]
    fn log_04_and_07_a_long_reason_is_cut_at_a_character() {
        let reason = format!("{}{}", "x".repeat(79), "é".repeat(9));
        let fields =
            [&CURL[..], &[("severity", "MED"), ("action", "DENIED"), ("reason", &reason), ("code", "c")]].concat();
        assert!(of(AUDIT, &fields).ends_with(&format!(" [reason:{}...] [code:c] sandbox=box-1", "x".repeat(79))));
    }

    #[test]
    fn log_09_other_records_name_level_and_target() {
        assert_eq!(
            of("openshell::x", &[("message", "hello")]),
            "2026-01-02T03:04:05.006Z INFO openshell::x: hello sandbox=box-1"
        );
    }

    #[test]
    fn log_11_a_process_that_ended() {
        let fields = [
            ("class", "PROC"),
            ("activity", "TERMINATE"),
            ("severity", "INFO"),
            ("binary", "sh"),
            ("pid", "2"),
            ("exit", "3"),
        ];
        assert!(of(AUDIT, &fields).ends_with(" OCSF PROC:TERMINATE [INFO] sh(2) [exit:3] sandbox=box-1"));
    }

    #[test]
    fn a_path_of_anything_is_one_word_with_what_stands_for_a_credential() {
        let path = |path: &str| {
            let fields = [("class", "HTTP"), ("activity", "GET"), ("number", "0"), ("path", path), ("engine", "l7")];
            let line = of(AUDIT, &fields);
            line.split_once("://:").unwrap().1.rsplit_once(" [policy").unwrap().0.to_owned()
        };
        assert_eq!(path("/bot[CREDENTIAL]/a[b] é"), r"/bot[CREDENTIAL]/a\u{5b}b\u{5d}\u{20}é");
        let long = format!("/{}", "x".repeat(511));
        assert_eq!(path(&long), long);
        assert_eq!(path(&format!("{long}y")), format!("{long}..."));
        assert_eq!(path(&format!("{}[y", &long[..510])), format!("{}...", &long[..510]));
    }

    #[test]
    fn what_a_workload_chooses_cannot_forge_a_line() {
        let message = "a\n2026 OCSF \u{1b}[31m sandbox=other";
        let fields = [("class", "CONFIG"), ("activity", "X"), ("severity", "INFO"), ("message", message)];
        let expected = r" OCSF CONFIG:X [INFO] a\n2026 OCSF \u{1b}[31m sandbox=other sandbox=box-1";
        assert!(of(AUDIT, &fields).ends_with(expected));
    }
}
