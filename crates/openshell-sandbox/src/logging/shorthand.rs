//! One event as one line.

use std::fmt::{self, Write};

use openshell_proxy::credentials::placeholder::REDACTED;
use openshell_proxy::record::AUDIT;
use time::OffsetDateTime;
use time::macros::format_description;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// An event's fields as text, the message among them.
#[derive(Default)]
pub(super) struct Fields(Vec<(&'static str, String)>);

impl Fields {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }

    fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    /// Whether the event is about the sandbox itself, and not as it should be.
    pub(super) fn needs_attention(&self) -> bool {
        self.get("class") == "CONFIG" && !matches!(self.get("severity"), "INFO" | "LOW")
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}

/// The line of an event: `<time> OCSF <shorthand>` for an audit record, `<time> LEVEL target: message` otherwise. What
/// the workload chooses cannot end a line or colour it.
pub(super) fn line(now: OffsetDateTime, level: Level, target: &str, fields: &Fields) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    let stamp = now.format(format).unwrap_or_default();
    let text = match (target == AUDIT, fields.get("class")) {
        (true, "NET") => format!("OCSF {}", network(fields)),
        (true, "HTTP") => format!("OCSF {}", http(fields)),
        (true, "PROC") => format!("OCSF {}", process(fields)),
        (true, "FINDING") => format!(
            "OCSF FINDING:{} [{}] \"{}\" [confidence:{}] {}",
            fields.get("activity"),
            fields.get("severity"),
            fields.get("title"),
            fields.get("confidence"),
            fields.get("message")
        ),
        (true, _) => format!(
            "OCSF {}:{} [{}] {}",
            fields.get("class"),
            fields.get("activity"),
            fields.get("severity"),
            fields.get("message")
        ),
        (false, _) => format!("{level} {target}: {}", fields.get("message")),
    };
    format!("{stamp} {}", printable(&text))
}

fn http(fields: &Fields) -> String {
    let get = |name| fields.get(name);
    let is_default = matches!((get("scheme"), get("port")), ("http", "80") | ("https", "443"));
    let port = if is_default { String::new() } else { format!(":{}", get("port")) };
    // Inside a connection the caller stands behind, as the connection's own line began with it.
    let is_inside = get("number") != "0";
    let caller = format!("{}({})", word(get("binary")), get("pid"));
    let who = if is_inside { String::new() } else { format!("{caller} -> ") };
    let mut line = format!(
        "HTTP:{0} [{1}] {2} {who}{0} {3}://{4}{port}{5}",
        word(get("activity")),
        get("severity"),
        get("action"),
        get("scheme"),
        word(get("host")),
        word(get("path")).replace(&word(REDACTED), REDACTED),
    );
    // Writing to a String cannot fail.
    if !get("engine").is_empty() {
        let _ = write!(line, " [policy:{} engine:{}]", word(get("policy")), get("engine"));
    }
    if matches!(get("decision"), "audit" | "allow_upgrade") {
        let _ = write!(line, " [decision:{}]", get("decision"));
    }
    if is_inside {
        let _ = write!(line, " [request:{}]", get("number"));
    }
    if !get("credentials").is_empty() {
        let _ = write!(line, " [credentials:{}]", word(get("credentials")));
    }
    if !get("route").is_empty() {
        let _ = write!(line, " [route:{}", word(get("route")));
        if !get("tokens").is_empty() {
            let _ = write!(line, " tokens:{}", get("tokens"));
        }
        line.push(']');
    }
    line = with_reason(line, fields);
    if is_inside {
        let _ = write!(line, " [by:{caller}]");
    }
    line
}

fn network(fields: &Fields) -> String {
    let get = |name| fields.get(name);
    let line = format!(
        "NET:{} [{}] {} {}({}) -> {}:{} [policy:{} engine:{}]",
        get("activity"),
        get("severity"),
        get("action"),
        word(get("binary")),
        get("pid"),
        word(get("host")),
        get("port"),
        word(get("policy")),
        get("engine"),
    );
    with_reason(line, fields)
}

fn with_reason(mut line: String, fields: &Fields) -> String {
    let get = |name| fields.get(name);
    if !get("reason").is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(line, " [reason:{}]", cut(get("reason")));
    }
    if !get("code").is_empty() {
        let _ = write!(line, " [code:{}]", get("code"));
    }
    line
}

fn process(fields: &Fields) -> String {
    let get = |name| fields.get(name);
    let mut line = format!("PROC:{} [{}] {}({})", get("activity"), get("severity"), word(get("binary")), get("pid"));
    for name in ["exit", "cmd"] {
        if !get(name).is_empty() {
            let _ = write!(line, " [{name}:{}]", cut(get(name)));
        }
    }
    line
}

/// Bytes of a name in a line.
const WORD_BYTES: usize = 512;

/// A name that the workload may have chosen, as one word: without what ends a field or reorders a line.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || (c.is_ascii_graphic() && !matches!(c, '[' | ']' | '"'));
    let mut whole = String::with_capacity(text.len());
    for c in text.chars() {
        if is_plain(c) { whole.push(c) } else { whole.extend(c.escape_unicode()) }
    }
    // Longer than any host, and than any path that people use.
    if whole.len() <= WORD_BYTES { whole } else { format!("{}...", &whole[..whole.floor_char_boundary(WORD_BYTES)]) }
}

/// At most 80 bytes, whole characters.
fn cut(text: &str) -> String {
    const LIMIT: usize = 80;
    if text.len() <= LIMIT {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(LIMIT)])
}

/// `text` on one line, and without what a terminal would act on.
pub(crate) fn printable(text: &str) -> String {
    // Directional formatting (UAX 9) would show a line in another order than it has.
    let reorders =
        |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || reorders(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::{Fields, line};
    use openshell_proxy::record::AUDIT;
    use time::macros::datetime;
    use tracing::Level;

    fn of(target: &str, fields: &[(&'static str, &str)]) -> String {
        let fields = Fields(fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect());
        line(datetime!(2026-01-02 03:04:05.006 UTC), Level::INFO, target, &fields)
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
                        [policy:web engine:opa]";
        assert_eq!(of(AUDIT, &fields), expected);
    }

    #[test]
    fn log_04_and_07_a_long_reason_is_cut_at_a_character() {
        let reason = format!("{}{}", "x".repeat(79), "é".repeat(9));
        let fields =
            [&CURL[..], &[("severity", "MED"), ("action", "DENIED"), ("reason", &reason), ("code", "c")]].concat();
        assert!(of(AUDIT, &fields).ends_with(&format!(" [reason:{}...] [code:c]", "x".repeat(79))));
    }

    #[test]
    fn log_09_other_records_name_level_and_target() {
        assert_eq!(of("openshell::x", &[("message", "hello")]), "2026-01-02T03:04:05.006Z INFO openshell::x: hello");
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
        assert!(of(AUDIT, &fields).ends_with(" OCSF PROC:TERMINATE [INFO] sh(2) [exit:3]"));
    }

    #[test]
    fn what_a_workload_chooses_cannot_forge_a_line() {
        let fields =
            [("class", "CONFIG"), ("activity", "X"), ("severity", "INFO"), ("message", "a\n2026 OCSF \u{1b}[31m")];
        assert!(of(AUDIT, &fields).ends_with(r" OCSF CONFIG:X [INFO] a\n2026 OCSF \u{1b}[31m"));
    }
}
