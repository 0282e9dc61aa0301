//! One event as one line.

use std::borrow::Cow;
use std::fmt::{self, Write};

use openshell_events::event::{
    Configuration, ConnectionClosed, Decided, Ends, Event, FileRefused, Finding, Lifecycle,
    ModelCall, NameLookedUp, Process, PublishedConnection, RequestDecided, Ssh,
};
use openshell_events::reason::ReasonCode;
use openshell_events::words::REDACTED;
use openshell_events::words::{Activity, Decision, Door, Engine};
use time::OffsetDateTime;
use tracing::Level;

use openshell_events::text::printable;

/// The facts of an event.
#[derive(Clone, Copy)]
pub(super) enum Content<'e> {
    /// A message of the program, or of a library.
    Diagnostic {
        level: Level,
        target: &'e str,
        /// The spans around it, in front of its message.
        spans: &'e str,
        message: &'e str,
        /// The other fields, behind its message.
        fields: &'e str,
    },
    /// An event for the audit.
    Audit(&'e Event<'e>),
}

/// Returns the line of an event: `<time> OCSF <shorthand>` for an audit event, `<time> LEVEL
/// target: message` otherwise. Text from the workload cannot end a line or colour it. `end` is
/// behind anything that others choose.
pub(super) fn line(now: OffsetDateTime, content: Content<'_>, end: &str) -> String {
    let mut line = String::with_capacity(512);
    // Writing to a String cannot fail, and what else may is not worth a line.
    let _ = write_line(&mut line, now, content);
    line.push_str(end);
    match printable(&line) {
        Cow::Borrowed(_) => line,
        Cow::Owned(printable) => printable,
    }
}

fn write_line(line: &mut String, now: OffsetDateTime, content: Content<'_>) -> fmt::Result {
    let (year, month, day) = now.to_calendar_date();
    let (hour, minute, second, millisecond) = now.to_hms_milli();
    let month = u8::from(month);
    write!(
        line,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z "
    )?;
    let event = match content {
        Content::Diagnostic {
            level,
            target,
            spans,
            message,
            fields,
        } => {
            return write!(line, "{level} {target}: {spans}{message}{fields}");
        }
        Content::Audit(event) => event,
    };
    line.push_str("OCSF ");
    match event {
        Event::Connection(event) => network(line, event.activity, &event.ends, &event.decided),
        Event::Closed(event) => closed(line, event),
        Event::Bypass(event) => network(line, Activity::Refuse, &event.ends, &event.decided),
        Event::Request(event) => http(line, event),
        Event::Name(event) => name(line, event),
        Event::Published(event) => published(line, event),
        Event::File(event) => file(line, event),
        Event::Finding(event) => finding(line, event),
        Event::Configuration(Configuration {
            state,
            severity,
            message,
            ..
        }) => {
            write!(
                line,
                "CONFIG:{} [{}] {message}",
                state.as_str(),
                severity.as_str()
            )
        }
        Event::Lifecycle(Lifecycle {
            activity,
            severity,
            message,
        }) => {
            write!(
                line,
                "LIFECYCLE:{} [{}] openshell-sandbox {message}",
                activity.as_str(),
                severity.as_str()
            )
        }
        Event::Process(event) => process(line, event),
        Event::Ssh(event) => ssh(line, event),
    }
}

fn http(line: &mut String, event: &RequestDecided<'_>) -> fmt::Result {
    let RequestDecided {
        method,
        path,
        scheme,
        number,
        ends,
        decided,
        credentials,
        model,
        ..
    } = event;
    let method = Word::of(method);
    let program = Program(ends);
    write!(
        line,
        "HTTP:{method} [{}] {} ",
        decided.severity.as_str(),
        decided.action.as_str()
    )?;
    // Inside a connection the caller stands behind, as the connection's own line began with it.
    if number.is_none() {
        write!(line, "{program} -> ")?;
    }
    write!(
        line,
        "{method} {scheme}://{}",
        Word::of(ends.host.unwrap_or("-"))
    )?;
    if !matches!(
        (*scheme, ends.port),
        ("http", Some(80)) | ("https", Some(443))
    ) {
        write!(line, ":{}", ends.port.unwrap_or(0))?;
    }
    write!(line, "{}", Word::redacted(path))?;
    if let Some(engine) = decided.engine {
        write!(
            line,
            " [policy:{} engine:{}]",
            Word::of(decided.policy.unwrap_or("-")),
            engine.as_str()
        )?;
    }
    match decided.decision {
        Decision::Audit | Decision::AllowUpgrade => {
            write!(line, " [decision:{}]", decided.decision.as_str())?
        }
        Decision::Allow | Decision::Deny | Decision::None => {}
    }
    if let Some(number) = number {
        write!(line, " [request:{number}]")?;
    }
    if !credentials.is_empty() {
        write!(line, " [credentials:{}]", Word::of(credentials))?;
    }
    if let Some(ModelCall { route, usage, .. }) = model {
        write!(line, " [route:{}", Word::of(route))?;
        if usage.input.is_some() || usage.output.is_some() {
            write!(
                line,
                " tokens:{}/{}",
                usage.input.unwrap_or(0),
                usage.output.unwrap_or(0)
            )?;
        }
        line.push(']');
    }
    reason(line, decided)?;
    if number.is_some() {
        write!(line, " [by:{program}]")?;
    }
    Ok(())
}

fn network(
    line: &mut String,
    activity: Activity,
    ends: &Ends<'_>,
    decided: &Decided<'_>,
) -> fmt::Result {
    write!(
        line,
        "NET:{} [{}] {} {} -> {}:{} [policy:{} engine:{}]",
        activity.as_str(),
        decided.severity.as_str(),
        decided.action.as_str(),
        Program(ends),
        Word::of(ends.host.unwrap_or("-")),
        ends.port.unwrap_or(0),
        Word::of(decided.policy.unwrap_or("-")),
        decided.engine.map_or("", Engine::as_str),
    )?;
    reason(line, decided)
}

fn closed(line: &mut String, event: &ConnectionClosed<'_>) -> fmt::Result {
    let ConnectionClosed {
        severity,
        ends,
        policy,
        way,
        received,
        sent,
        milliseconds,
        by,
        reason: text,
        code,
        ..
    } = event;
    write!(
        line,
        "NET:CLOSE [{}] {} -> {}:{} [policy:{}] [door:{}] [in:{received} out:{sent} \
         ms:{milliseconds}] [by:{}]",
        severity.as_str(),
        Program(ends),
        Word::of(ends.host.unwrap_or("-")),
        ends.port.unwrap_or(0),
        Word::of(policy.unwrap_or("-")),
        way.door.map_or("-", Door::as_str),
        by.as_str(),
    )?;
    cause(line, text, *code)
}

fn reason(line: &mut String, decided: &Decided<'_>) -> fmt::Result {
    cause(line, decided.reason, decided.code)
}

fn cause(line: &mut String, reason: &str, code: Option<ReasonCode>) -> fmt::Result {
    if !reason.is_empty() {
        write!(line, " [reason:{}]", Cut::of(reason))?;
    }
    if let Some(code) = code {
        write!(line, " [code:{}]", code.as_str())?;
    }
    Ok(())
}

fn name(line: &mut String, event: &NameLookedUp<'_>) -> fmt::Result {
    let NameLookedUp {
        name,
        kind,
        severity,
        action,
        found,
        repeated,
        reason,
        code,
        ..
    } = event;
    write!(
        line,
        "DNS:RESOLVE [{}] {} {}",
        severity.as_str(),
        action.as_str(),
        Word::of(name)
    )?;
    if let Some(kind) = kind {
        write!(line, " {}", Word::of(kind))?;
    }
    if let Some((addresses, ttl)) = found {
        write!(line, " [addresses:{addresses} ttl:{ttl}]")?;
    }
    if *repeated > 0 {
        write!(line, " [repeated:{repeated}]")?;
    }
    cause(line, reason, *code)
}

fn published(line: &mut String, event: &PublishedConnection<'_>) -> fmt::Result {
    let PublishedConnection {
        severity,
        action,
        client,
        address,
        port,
        reason,
    } = event;
    let severity = severity.as_str();
    let action = action.as_str();
    write!(
        line,
        "NET:PUBLISH [{severity}] {action} {client} -> 127.0.0.1:{port} [published:{address}]"
    )?;
    if !reason.is_empty() {
        write!(line, " [reason:{}]", Cut::of(reason))?;
    }
    Ok(())
}

fn file(line: &mut String, event: &FileRefused<'_>) -> fmt::Result {
    let FileRefused {
        severity,
        binary,
        pid,
        access,
        path,
        reason,
    } = event;
    let severity = severity.as_str();
    let access = access.as_str();
    let program = Program(&Ends {
        binary: *binary,
        pid: *pid,
        host: None,
        port: None,
    });
    write!(
        line,
        "FILE:REFUSE [{severity}] DENIED {program} -> {access} {}",
        Word::of(path)
    )?;
    cause(line, reason, None)
}

fn finding(line: &mut String, event: &Finding<'_>) -> fmt::Result {
    let Finding {
        activity,
        severity,
        title,
        confidence,
        message,
    } = event;
    let activity = activity.as_str();
    let severity = severity.as_str();
    let confidence = confidence.as_str();
    write!(
        line,
        "FINDING:{activity} [{severity}] \"{title}\" [confidence:{confidence}] {message}"
    )
}

fn process(line: &mut String, event: &Process<'_>) -> fmt::Result {
    let Process {
        activity,
        severity,
        name,
        pid,
        exit,
        command,
        reason,
    } = event;
    write!(
        line,
        "PROC:{} [{}] {}({pid})",
        activity.as_str(),
        severity.as_str(),
        Word::of(name)
    )?;
    if let Some(exit) = exit {
        write!(line, " [exit:{exit}]")?;
    }
    if let Some(command) = command.filter(|command| !command.is_empty()) {
        write!(line, " [cmd:{}]", Cut::of(command))?;
    }
    if let Some(reason) = reason {
        write!(line, " [reason:{}]", Cut::of(reason))?;
    }
    Ok(())
}

fn ssh(line: &mut String, event: &Ssh<'_>) -> fmt::Result {
    let Ssh {
        activity,
        severity,
        action,
        door,
        client,
        authentication,
        command,
        target,
        exit,
        transferred,
        reason,
    } = event;
    let activity = activity.as_str();
    let severity = severity.as_str();
    let action = action.as_str();
    write!(
        line,
        "SSH:{activity} [{severity}] {action} {} [door:{}]",
        Word::of(client),
        door.as_str()
    )?;
    if let Some(method) = authentication {
        write!(line, " [auth:{method}]")?;
    }
    if let Some(command) = command {
        write!(
            line,
            " [cmd:{}]",
            Cut {
                text: command,
                limit: COMMAND_BYTES
            }
        )?;
    }
    if let Some(target) = target {
        write!(line, " [target:{}]", Word::of(target))?;
    }
    if let Some(exit) = exit {
        write!(line, " [exit:{exit}]")?;
    }
    if let Some((received, sent)) = transferred {
        write!(line, " [in:{received} out:{sent}]")?;
    }
    cause(line, reason, None)
}

/// A program with its process id.
struct Program<'e>(&'e Ends<'e>);

impl fmt::Display for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}({})",
            Word::of(self.0.binary.unwrap_or("-")),
            self.0.pid.unwrap_or(0)
        )
    }
}

/// Bytes of a name in a line: longer than any host, and than any path that people use.
const WORD_BYTES: usize = 512;

/// A name that the workload may have chosen, as one word: characters that end a field or reorder a
/// line are escaped.
struct Word<'t> {
    text: &'t str,
    /// Shows the mark of a redacted credential as it is.
    is_redacted: bool,
}

impl<'t> Word<'t> {
    fn of(text: &'t str) -> Self {
        Self {
            text,
            is_redacted: false,
        }
    }

    fn redacted(text: &'t str) -> Self {
        Self {
            text,
            is_redacted: true,
        }
    }
}

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'[' | b']' | b'"');
        if self.text.len() <= WORD_BYTES && self.text.bytes().all(is_plain) {
            return f.write_str(self.text);
        }
        let mut rest = self.text;
        let mut left = WORD_BYTES;
        while let Some(c) = rest.chars().next() {
            let is_kept = c.is_alphanumeric() || u8::try_from(c).is_ok_and(is_plain);
            let (part, length) = match rest.strip_prefix(REDACTED) {
                Some(_) if self.is_redacted => (REDACTED.len(), REDACTED.len()),
                _ if is_kept => (c.len_utf8(), c.len_utf8()),
                _ => (c.len_utf8(), c.escape_unicode().len()),
            };
            let Some(still) = left.checked_sub(length) else {
                return f.write_str("...");
            };
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

/// Bytes of a reason, or of the main command, in a line.
const TEXT_BYTES: usize = 80;

/// Bytes of a command of an SSH client in a line.
const COMMAND_BYTES: usize = 512;

/// At most `limit` bytes, whole characters.
struct Cut<'t> {
    text: &'t str,
    limit: usize,
}

impl<'t> Cut<'t> {
    fn of(text: &'t str) -> Self {
        Self {
            text,
            limit: TEXT_BYTES,
        }
    }
}

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.get(..self.text.floor_char_boundary(self.limit)) {
            Some(kept) if kept.len() < self.text.len() => write!(f, "{kept}..."),
            _ => f.write_str(self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use openshell_events::event::{
        BypassAttempt, Configuration, ConnectionClosed, ConnectionDecided, Decided, Ends, Event,
        Finding, Lifecycle, Lineage, ModelCall, NameLookedUp, Process, PublishedConnection,
        RequestDecided, TokenUsage, Took, Way,
    };
    use openshell_events::reason::ReasonCode;
    use openshell_events::words::{
        Action, Activity, Confidence, ConfigState, Decision, Door, EndedBy, Engine,
        FindingActivity, LifecycleActivity, ProcessActivity, Severity,
    };
    use time::macros::datetime;
    use tracing::Level;

    use super::{Content, line};

    const NOW: time::OffsetDateTime = datetime!(2026-01-02 03:04:05.006 UTC);

    const ENDS: Ends<'_> = Ends {
        binary: Some("/usr/bin/curl"),
        pid: Some(7),
        host: Some("web.test"),
        port: Some(8080),
    };

    const ALLOWED: Decided<'_> = Decided {
        severity: Severity::Info,
        action: Action::Allowed,
        policy: Some("web"),
        engine: Some(Engine::Policy),
        decision: Decision::Allow,
        reason: "",
        code: None,
    };

    const DENIED: Decided<'_> = Decided {
        severity: Severity::Medium,
        action: Action::Denied,
        policy: None,
        decision: Decision::Deny,
        reason: "no policy",
        code: Some(ReasonCode::EndpointNotInPolicy),
        ..ALLOWED
    };

    const REQUEST: RequestDecided<'_> = RequestDecided {
        method: "GET",
        path: "/a",
        scheme: "http",
        number: None,
        ends: ENDS,
        lineage: Lineage {
            ancestors: &[],
            cmdline_paths: &[],
        },
        way: Way {
            door: None,
            source: None,
            dialed: None,
        },
        took: Took {
            decision: None,
            connect: None,
        },
        decided: ALLOWED,
        credentials: "",
        model: None,
        denial: None,
    };

    /// An allowed connection.
    const CONNECTION: ConnectionDecided<'_> = ConnectionDecided {
        activity: Activity::Open,
        ends: ENDS,
        lineage: Lineage {
            ancestors: &[],
            cmdline_paths: &[],
        },
        way: Way {
            door: None,
            source: None,
            dialed: None,
        },
        took: Took {
            decision: None,
            connect: None,
        },
        decided: ALLOWED,
        denial: None,
    };

    #[track_caller]
    fn check(event: Event<'_>, expected: &str) {
        let line = line(NOW, Content::Audit(&event), " sandbox=box-1");
        assert_eq!(
            line,
            format!("2026-01-02T03:04:05.006Z OCSF {expected} sandbox=box-1")
        );
    }

    #[test]
    fn a_connection_to_a_published_port_is_one_line() {
        let connection = PublishedConnection {
            severity: Severity::Info,
            action: Action::Allowed,
            client: "192.0.2.7:51344".parse().unwrap(),
            address: "0.0.0.0:8080".parse().unwrap(),
            port: 8000,
            reason: "",
        };
        let expected =
            "NET:PUBLISH [INFO] ALLOWED 192.0.2.7:51344 -> 127.0.0.1:8000 [published:0.0.0.0:8080]";
        check(Event::Published(connection), expected);
        let failed = PublishedConnection {
            severity: Severity::Low,
            action: Action::Other,
            reason: "no server",
            ..connection
        };
        let expected = "NET:PUBLISH [LOW] OTHER 192.0.2.7:51344 -> 127.0.0.1:8000 \
                        [published:0.0.0.0:8080] [reason:no server]";
        check(Event::Published(failed), expected);
    }

    // Conformance: LOG-01, LOG-03.
    #[test]
    fn decisions_on_connections() {
        let of = |activity, decided| {
            Event::Connection(ConnectionDecided {
                activity,
                decided,
                ..CONNECTION
            })
        };
        check(
            of(Activity::Open, ALLOWED),
            "NET:OPEN [INFO] ALLOWED /usr/bin/curl(7) -> web.test:8080 [policy:web engine:opa]",
        );
        check(
            of(Activity::Open, DENIED),
            "NET:OPEN [MED] DENIED /usr/bin/curl(7) -> web.test:8080 [policy:- engine:opa] \
             [reason:no policy] [code:endpoint_not_in_policy]",
        );
        let observed = Decided {
            severity: Severity::Medium,
            policy: None,
            engine: Some(Engine::Observation),
            code: Some(ReasonCode::BinaryNotInPolicy),
            ..ALLOWED
        };
        check(
            of(Activity::Open, observed),
            "NET:OPEN [MED] ALLOWED /usr/bin/curl(7) -> web.test:8080 [policy:- engine:observe] \
             [code:binary_not_in_policy]",
        );
        let undecided = Decided {
            severity: Severity::Low,
            engine: Some(Engine::Undecided),
            decision: Decision::None,
            reason: "the connection ended before the decision",
            code: None,
            ..DENIED
        };
        let nothing_known = Ends {
            binary: None,
            pid: None,
            host: None,
            port: None,
        };
        check(
            Event::Connection(ConnectionDecided {
                activity: Activity::Fail,
                ends: nothing_known,
                decided: undecided,
                ..CONNECTION
            }),
            "NET:FAIL [LOW] DENIED -(0) -> -:0 [policy:- engine:-] [reason:the connection ended \
             before the decision]",
        );
        let closed = ConnectionClosed {
            severity: Severity::Info,
            ends: ENDS,
            policy: Some("web"),
            way: Way {
                door: Some(Door::Name),
                ..Way::default()
            },
            received: 12,
            sent: 7,
            milliseconds: 1_500,
            by: EndedBy::Client,
            reason: "",
            code: None,
            denial: None,
        };
        let line =
            "/usr/bin/curl(7) -> web.test:8080 [policy:web] [door:name] [in:12 out:7 ms:1500]";
        check(
            Event::Closed(closed),
            &format!("NET:CLOSE [INFO] {line} [by:client]"),
        );
        let severity = Severity::Medium;
        let by = EndedBy::Policy;
        let code = Some(ReasonCode::PolicyChanged);
        let closed = ConnectionClosed {
            severity,
            by,
            reason: "not any more",
            code,
            ..closed
        };
        let cause = "[by:policy] [reason:not any more] [code:policy_changed]";
        check(
            Event::Closed(closed),
            &format!("NET:CLOSE [MED] {line} {cause}"),
        );
        let looked_up = NameLookedUp {
            name: "db.test",
            kind: Some("AAAA"),
            severity: Severity::Low,
            action: Action::Denied,
            found: None,
            repeated: 3,
            reason: "",
            code: Some(ReasonCode::EndpointNotInPolicy),
            denial: None,
        };
        let line =
            "DNS:RESOLVE [LOW] DENIED db.test AAAA [repeated:3] [code:endpoint_not_in_policy]";
        check(Event::Name(looked_up), line);
        let found = NameLookedUp {
            kind: None,
            severity: Severity::Info,
            action: Action::Allowed,
            found: Some((2, 60)),
            ..looked_up
        };
        let found = NameLookedUp {
            repeated: 0,
            code: None,
            ..found
        };
        check(
            Event::Name(found),
            "DNS:RESOLVE [INFO] ALLOWED db.test [addresses:2 ttl:60]",
        );
        let rejected = Decided {
            policy: Some("bypass-detect"),
            engine: Some(Engine::Firewall),
            reason: "direct connection bypassed HTTP CONNECT proxy",
            code: Some(ReasonCode::DirectConnection),
            ..DENIED
        };
        check(
            Event::Bypass(BypassAttempt {
                ends: ENDS,
                lineage: Lineage::default(),
                decided: rejected,
                protocol: "udp",
                denial: None,
            }),
            "NET:REFUSE [MED] DENIED /usr/bin/curl(7) -> web.test:8080 [policy:bypass-detect \
             engine:nftables] [reason:direct connection bypassed HTTP CONNECT proxy] \
             [code:direct_connection]",
        );
    }

    #[test]
    fn decisions_on_requests() {
        let rules = Decided {
            engine: Some(Engine::Rules),
            ..ALLOWED
        };
        let inside = RequestDecided {
            number: Some(3),
            scheme: "https",
            decided: rules,
            ..REQUEST
        };
        let cases = [
            (
                REQUEST,
                "HTTP:GET [INFO] ALLOWED /usr/bin/curl(7) -> GET http://web.test:8080/a \
                 [policy:web engine:opa]",
            ),
            (
                RequestDecided {
                    ends: Ends {
                        port: Some(80),
                        ..ENDS
                    },
                    ..REQUEST
                },
                "HTTP:GET [INFO] ALLOWED /usr/bin/curl(7) -> GET http://web.test/a [policy:web \
                 engine:opa]",
            ),
            (
                RequestDecided {
                    ends: Ends {
                        port: Some(443),
                        ..ENDS
                    },
                    ..inside
                },
                "HTTP:GET [INFO] ALLOWED GET https://web.test/a [policy:web engine:l7] [request:3] \
                 [by:/usr/bin/curl(7)]",
            ),
            (
                RequestDecided {
                    decided: Decided {
                        engine: None,
                        ..ALLOWED
                    },
                    credentials: "A,B",
                    ..inside
                },
                "HTTP:GET [INFO] ALLOWED GET https://web.test:8080/a [request:3] [credentials:A,B] \
                 [by:/usr/bin/curl(7)]",
            ),
            (
                RequestDecided {
                    decided: Decided {
                        decision: Decision::Audit,
                        reason: "not permitted",
                        code: Some(ReasonCode::RequestNotInRules),
                        ..rules
                    },
                    ..inside
                },
                "HTTP:GET [INFO] ALLOWED GET https://web.test:8080/a [policy:web engine:l7] \
                 [decision:audit] [request:3] [reason:not permitted] [code:request_not_in_rules] \
                 [by:/usr/bin/curl(7)]",
            ),
            (
                RequestDecided {
                    decided: Decided {
                        action: Action::Other,
                        decision: Decision::AllowUpgrade,
                        ..rules
                    },
                    ..inside
                },
                "HTTP:GET [INFO] OTHER GET https://web.test:8080/a [policy:web engine:l7] \
                 [decision:allow_upgrade] [request:3] [by:/usr/bin/curl(7)]",
            ),
        ];
        for (event, expected) in cases {
            check(Event::Request(event), expected);
        }
    }

    #[test]
    fn calls_of_models_with_their_tokens() {
        let decided = Decided {
            policy: None,
            engine: Some(Engine::Inference),
            ..ALLOWED
        };
        let of = |input, output| {
            let usage = TokenUsage { input, output };
            let call = ModelCall {
                route: "local",
                interface: "openai_responses",
                kind: "responses",
                usage,
            };
            Event::Request(RequestDecided {
                number: Some(1),
                decided,
                model: Some(call),
                ..REQUEST
            })
        };
        let line = |route: &str| {
            format!(
                "HTTP:GET [INFO] ALLOWED GET http://web.test:8080/a [policy:- engine:inference] \
                 [request:1] {route} [by:/usr/bin/curl(7)]"
            )
        };
        check(of(None, None), &line("[route:local]"));
        check(of(Some(3), None), &line("[route:local tokens:3/0]"));
        check(of(Some(3), Some(4)), &line("[route:local tokens:3/4]"));
    }

    // Conformance: LOG-04, LOG-07.
    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let reason = format!("{}{}", "x".repeat(79), "é".repeat(9));
        let decided = Decided {
            reason: &reason,
            ..DENIED
        };
        check(
            Event::Connection(ConnectionDecided {
                decided,
                ..CONNECTION
            }),
            &format!(
                "NET:OPEN [MED] DENIED /usr/bin/curl(7) -> web.test:8080 [policy:- engine:opa] \
                 [reason:{}...] [code:endpoint_not_in_policy]",
                "x".repeat(79)
            ),
        );
    }

    // Conformance: LOG-09.
    #[test]
    fn other_records_name_level_and_target() {
        let level = Level::INFO;
        let target = "openshell::x";
        let message = "hello";
        let content = Content::Diagnostic {
            level,
            target,
            spans: "",
            message,
            fields: "",
        };
        let expected = "2026-01-02T03:04:05.006Z INFO openshell::x: hello sandbox=box-1";
        assert_eq!(line(NOW, content, " sandbox=box-1"), expected);
    }

    #[test]
    fn findings_and_the_sandboxs_own_state() {
        let severity = Severity::High;
        let message = "the facts";
        let activity = FindingActivity::Detected;
        let title = "A Title";
        check(
            Event::Finding(Finding {
                activity,
                severity,
                title,
                confidence: Confidence::High,
                message,
            }),
            "FINDING:DETECTED [HIGH] \"A Title\" [confidence:high] the facts",
        );
        let state = ConfigState::Degraded;
        check(
            Event::Configuration(Configuration {
                state,
                severity,
                message,
                policy: None,
            }),
            "CONFIG:DEGRADED [HIGH] the facts",
        );
        let activity = LifecycleActivity::End;
        check(
            Event::Lifecycle(Lifecycle {
                activity,
                severity,
                message,
            }),
            "LIFECYCLE:END [HIGH] openshell-sandbox the facts",
        );
    }

    // Conformance: LOG-11.
    #[test]
    fn a_command_that_started_and_one_that_ended() {
        let started = Process {
            activity: ProcessActivity::Launch,
            severity: Severity::Info,
            name: "sh",
            pid: 2,
            exit: None,
            command: Some("sh -c x"),
            reason: None,
        };
        check(
            Event::Process(started),
            "PROC:LAUNCH [INFO] sh(2) [cmd:sh -c x]",
        );
        let ended = Process {
            activity: ProcessActivity::Terminate,
            exit: Some(3),
            command: None,
            ..started
        };
        check(
            Event::Process(ended),
            "PROC:TERMINATE [INFO] sh(2) [exit:3]",
        );
        let killed = Process {
            severity: Severity::Critical,
            exit: None,
            reason: Some("time-out"),
            ..ended
        };
        check(
            Event::Process(killed),
            "PROC:TERMINATE [CRIT] sh(2) [reason:time-out]",
        );
    }

    #[test]
    fn a_path_of_anything_is_one_word_with_what_stands_for_a_credential() {
        let path = |path: &str| {
            let line = line(
                NOW,
                Content::Audit(&Event::Request(RequestDecided { path, ..REQUEST })),
                " sandbox=box-1",
            );
            line.split_once(":8080")
                .unwrap()
                .1
                .rsplit_once(" [policy")
                .unwrap()
                .0
                .to_owned()
        };
        assert_eq!(
            path("/bot[CREDENTIAL]/a[b] é"),
            r"/bot[CREDENTIAL]/a\u{5b}b\u{5d}\u{20}é"
        );
        let long = format!("/{}", "x".repeat(511));
        assert_eq!(path(&long), long);
        assert_eq!(path(&format!("{long}y")), format!("{long}..."));
        assert_eq!(
            path(&format!("{}[y", &long[..510])),
            format!("{}...", &long[..510])
        );
    }

    #[test]
    fn what_a_workload_chooses_cannot_forge_a_line() {
        let message = "a\n2026 OCSF \u{1b}[31m sandbox=other";
        let state = ConfigState::Loaded;
        let severity = Severity::Info;
        let expected = r"CONFIG:LOADED [INFO] a\n2026 OCSF \u{1b}[31m sandbox=other";
        check(
            Event::Configuration(Configuration {
                state,
                severity,
                message,
                policy: None,
            }),
            expected,
        );
    }
}
