//! An event as one line.

use std::borrow::Cow;
use std::fmt::{self, Write};

use openshell_events::event::Event;
use openshell_events::facts::{Facts, Value};
use openshell_events::text::printable;
use openshell_events::words::{Class, Key};
use time::OffsetDateTime;
use tracing::Level;

use super::word::{Cut, Word};

/// Maximum bytes of a reason, or of the main command, in a line.
const TEXT_BYTES: usize = 80;

/// Maximum bytes of an SSH client's command in a line.
const COMMAND_BYTES: usize = 512;

/// The content of an event.
#[derive(Clone, Copy)]
pub(super) enum Content<'e> {
    /// A message of the program, or of a library.
    Diagnostic {
        level: Level,
        target: &'e str,
        /// The spans around it, which are shown before its message.
        spans: &'e str,
        message: &'e str,
        /// The other fields, which are shown after its message.
        fields: &'e str,
    },
    /// An event for the audit.
    Audit(&'e Event<'e>),
}

/// Returns the line of an event: `<time> OCSF <shorthand>` for an audit event, otherwise `<time>
/// LEVEL target: message`. Text from the workload can neither end a line nor colour it. `end` comes
/// after everything that others choose.
pub(super) fn line(now: OffsetDateTime, content: Content<'_>, end: &str) -> String {
    let mut line = String::with_capacity(512);
    // Writing to a String cannot fail, and any other error is not worth a line.
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
    let facts = event.facts();
    write!(
        line,
        "OCSF {}:{} [{}]",
        facts.class.as_str(),
        Word::of(facts.activity),
        facts.severity.as_str()
    )?;
    if let Some(action) = facts.action {
        write!(line, " {}", action.as_str())?;
    }
    subject(line, &facts)?;
    for key in in_brackets(facts.class) {
        bracket(line, &facts, *key)?;
    }
    match facts.get(Key::Message) {
        Some(message) => write!(line, " {message}"),
        None => Ok(()),
    }
}

/// Writes what the event is about.
fn subject(line: &mut String, facts: &Facts<'_>) -> fmt::Result {
    let program = Program(facts);
    let host = shown(facts, Key::Host);
    let port = facts.get(Key::Port).unwrap_or(Value::Number(0));
    match facts.class {
        Class::Connection | Class::Closed | Class::Bypass | Class::Approval => {
            write!(line, " {program} -> {host}:{port}")
        }
        Class::Request => request(line, facts),
        Class::Mcp | Class::Rpc => message(line, facts),
        Class::Name if facts.get(Key::RecordType).is_none() => write!(line, " {host}"),
        Class::Name => write!(line, " {host} {}", shown(facts, Key::RecordType)),
        Class::Published => write!(line, " {} -> 127.0.0.1:{port}", shown(facts, Key::Source)),
        Class::File => {
            let access = facts.text(Key::Access);
            write!(line, " {program} -> {access} {}", shown(facts, Key::Path))
        }
        Class::Finding => write!(line, " \"{}\"", facts.text(Key::Title)),
        Class::Configuration => Ok(()),
        Class::Lifecycle => write!(line, " openshell-sandbox"),
        Class::Process => write!(line, " {program}"),
        Class::Ssh => write!(line, " {}", shown(facts, Key::Client)),
    }
}

fn request(line: &mut String, facts: &Facts<'_>) -> fmt::Result {
    // A request inside a connection names its caller at the end, because the connection's own line
    // begins with the caller.
    if facts.get(Key::Number).is_none() {
        write!(line, " {} ->", Program(facts))?;
    }
    let scheme = facts.text(Key::Scheme);
    write!(
        line,
        " {} {scheme}://{}",
        shown(facts, Key::Method),
        shown(facts, Key::Host)
    )?;
    let port = facts.get(Key::Port).unwrap_or(Value::Number(0));
    let default = match scheme {
        "https" => Value::Number(443),
        _ => Value::Number(80),
    };
    if port != default {
        write!(line, ":{port}")?;
    }
    write!(line, "{}", Word::redacted(facts.text(Key::Path)))
}

fn message(line: &mut String, facts: &Facts<'_>) -> fmt::Result {
    let host = shown(facts, Key::Host);
    write!(line, " {} -> {host}", Program(facts))?;
    let port = facts.get(Key::Port).unwrap_or(Value::Number(0));
    if port != Value::Number(443) {
        write!(line, ":{port}")?;
    }
    write!(line, "{}", Word::redacted(facts.text(Key::Path)))?;
    let is_in_activity = facts
        .text(Key::RpcMethod)
        .eq_ignore_ascii_case(facts.activity);
    let words = [Key::RpcMethod, Key::RpcTarget];
    for key in words
        .into_iter()
        .filter(|key| !(is_in_activity && *key == Key::RpcMethod))
    {
        if facts.get(key).is_some() {
            write!(line, " {}", shown(facts, key))?;
        }
    }
    Ok(())
}

/// Returns the facts that are shown in brackets, in this order.
fn in_brackets(class: Class) -> &'static [Key] {
    match class {
        Class::Connection | Class::Bypass => &[Key::Engine, Key::Reason, Key::Code, Key::Approval],
        Class::Closed => &[
            Key::Policy,
            Key::Door,
            Key::BytesIn,
            Key::EndedBy,
            Key::Reason,
            Key::Code,
        ],
        Class::Request => &[
            Key::Engine,
            Key::Decision,
            Key::Number,
            Key::Credentials,
            Key::Route,
            Key::Reason,
            Key::Code,
            Key::Approval,
            Key::Binary,
        ],
        Class::Mcp | Class::Rpc => &[
            Key::Engine,
            Key::Decision,
            Key::Id,
            Key::Number,
            Key::Credentials,
            Key::Reason,
            Key::Code,
            Key::Approval,
        ],
        Class::Name => &[Key::Addresses, Key::Repeated, Key::Reason, Key::Code],
        Class::Published => &[Key::PublishedAt, Key::Reason],
        Class::File => &[Key::Reason],
        Class::Finding => &[Key::Confidence],
        Class::Approval => &[
            Key::Id,
            Key::AnsweredBy,
            Key::Uid,
            Key::Scope,
            Key::Grant,
            Key::Reason,
        ],
        Class::Configuration | Class::Lifecycle => &[],
        Class::Process => &[Key::Exit, Key::Command, Key::Reason],
        Class::Ssh => &[
            Key::Door,
            Key::Authentication,
            Key::Command,
            Key::Target,
            Key::Exit,
            Key::BytesIn,
            Key::Reason,
        ],
    }
}

/// Writes the fact of `key` in brackets, together with the facts that belong to it. An unknown fact
/// is left out, unless its place is part of the form.
fn bracket(line: &mut String, facts: &Facts<'_>, key: Key) -> fmt::Result {
    match key {
        // The line of a forwarded request begins with its program.
        Key::Binary if facts.get(Key::Number).is_none() => return Ok(()),
        Key::Binary => return write!(line, " [by:{}]", Program(facts)),
        // No rule was applied to the request.
        Key::Engine if facts.class == Class::Request && facts.get(key).is_none() => return Ok(()),
        Key::Engine => {
            let policy = shown(facts, Key::Policy);
            return write!(line, " [policy:{policy} engine:{}]", shown(facts, key));
        }
        Key::Policy => return write!(line, " [policy:{}]", shown(facts, key)),
        Key::Door => return write!(line, " [door:{}]", shown(facts, key)),
        _ => {}
    }
    let Some(value) = facts.get(key) else {
        return Ok(());
    };
    match key {
        Key::Route => model(line, facts),
        Key::BytesIn => {
            write!(line, " [in:{value} out:{}", shown(facts, Key::BytesOut))?;
            if let Some(milliseconds) = facts.get(Key::Milliseconds) {
                write!(line, " ms:{milliseconds}")?;
            }
            line.write_char(']')
        }
        Key::Addresses => {
            let ttl = shown(facts, Key::Ttl);
            write!(line, " [addresses:{value} ttl:{ttl}]")
        }
        // The action already says as much as the usual decisions.
        Key::Decision if matches!(value, Value::Text("allow" | "deny")) => Ok(()),
        Key::Command if facts.class == Class::Ssh => {
            write!(line, " [cmd:{}]", Cut::of(facts.text(key), COMMAND_BYTES))
        }
        Key::Command => write!(line, " [cmd:{}]", Cut::of(facts.text(key), TEXT_BYTES)),
        Key::Reason => write!(line, " [reason:{}]", Cut::of(facts.text(key), TEXT_BYTES)),
        Key::Authentication => write!(line, " [auth:{value}]"),
        Key::Code => write!(line, " [code:{value}]"),
        Key::EndedBy | Key::AnsweredBy => write!(line, " [by:{value}]"),
        Key::Exit => write!(line, " [exit:{value}]"),
        Key::PublishedAt => write!(line, " [published:{value}]"),
        _ => write!(line, " [{}:{}]", key.as_str(), shown(facts, key)),
    }
}

fn model(line: &mut String, facts: &Facts<'_>) -> fmt::Result {
    write!(line, " [route:{}", shown(facts, Key::Route))?;
    let input = facts.get(Key::InputTokens);
    let output = facts.get(Key::OutputTokens);
    if input.is_some() || output.is_some() {
        let none = Value::Number(0);
        write!(
            line,
            " tokens:{}/{}",
            input.unwrap_or(none),
            output.unwrap_or(none)
        )?;
    }
    line.write_char(']')
}

/// Returns the value of a fact as one word, `-` if it is not known.
fn shown<'e>(facts: &Facts<'e>, key: Key) -> Shown<'e> {
    Shown(facts.get(key))
}

struct Shown<'e>(Option<Value<'e>>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Value::Text(text)) => Word::of(text).fmt(f),
            Some(value) => value.fmt(f),
            None => f.write_char('-'),
        }
    }
}

/// The program of an event, with its process id.
struct Program<'f>(&'f Facts<'f>);

impl fmt::Display for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.0.get(Key::Pid).unwrap_or(Value::Number(0));
        write!(f, "{}({pid})", shown(self.0, Key::Binary))
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

    use super::super::renderings_tests::{ALLOWED, DENIED, ENDS};
    use super::{Content, line};

    const NOW: time::OffsetDateTime = datetime!(2026-01-02 03:04:05.006 UTC);

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
        message: None,
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
                line: None,
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
                line: None,
            }),
            expected,
        );
    }
}
