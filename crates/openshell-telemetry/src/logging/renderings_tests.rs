//! Every kind of event in every form of the log, as `renderings.txt` has them: its line, its
//! record, and its fields for a gateway.

use openshell_events::event::{
    Approval, BypassAttempt, Configuration, ConnectionClosed, ConnectionDecided, Decided, Ends,
    Event, FileRefused, Finding, Lifecycle, Lineage, ModelCall, NameLookedUp, PolicyId, Process,
    PublishedConnection, RequestDecided, Ssh, TokenUsage, Took, Way,
};
use openshell_events::reason::ReasonCode;
use openshell_events::words::{
    Action, Activity, ApprovalActivity, Confidence, ConfigState, Decision, Door, EndedBy, Engine,
    FileAccess, FindingActivity, LifecycleActivity, ProcessActivity, Severity, SshActivity,
    SshDoor,
};
use time::macros::datetime;

use super::identity::RunIdentity;
use super::shorthand::{self, Content};
use super::{ocsf, push};

pub(super) const ENDS: Ends<'_> = Ends {
    binary: Some("/usr/bin/curl"),
    pid: Some(7),
    host: Some("web.test"),
    port: Some(8080),
};

const NOTHING_KNOWN: Ends<'_> = Ends {
    binary: None,
    pid: None,
    host: None,
    port: None,
};

pub(super) const ALLOWED: Decided<'_> = Decided {
    severity: Severity::Info,
    action: Action::Allowed,
    policy: Some("web"),
    engine: Some(Engine::Policy),
    decision: Decision::Allow,
    reason: "",
    code: None,
    approval: None,
};

pub(super) const DENIED: Decided<'_> = Decided {
    severity: Severity::Medium,
    action: Action::Denied,
    policy: None,
    decision: Decision::Deny,
    reason: "no policy",
    code: Some(ReasonCode::EndpointNotInPolicy),
    ..ALLOWED
};

/// Renders the events about connections.
fn connections(render: &mut impl FnMut(Event<'_>)) {
    let ancestors = ["/usr/bin/bash".to_owned(), "/usr/bin/make".to_owned()];
    let paths = ["/work/a.sh".to_owned()];
    let lineage = Lineage {
        ancestors: &ancestors,
        cmdline_paths: &paths,
    };
    let way = Way {
        door: Some(Door::Connect),
        source: Some("127.0.0.1:4000".parse().unwrap()),
        dialed: Some("192.0.2.7:8080".parse().unwrap()),
    };
    let connection = ConnectionDecided {
        activity: Activity::Open,
        ends: ENDS,
        lineage,
        way,
        took: Took::default(),
        decided: ALLOWED,
        denial: None,
    };
    render(Event::Connection(connection));
    render(Event::Connection(ConnectionDecided {
        decided: DENIED,
        way: Way::default(),
        lineage: Lineage::default(),
        ..connection
    }));
    let literal = Ends {
        host: Some("[2001:db8::1]"),
        ..NOTHING_KNOWN
    };
    render(Event::Connection(ConnectionDecided {
        activity: Activity::Fail,
        ends: literal,
        way: Way::default(),
        decided: Decided {
            engine: Some(Engine::Undecided),
            decision: Decision::None,
            action: Action::Other,
            ..DENIED
        },
        ..connection
    }));
    let closed = ConnectionClosed {
        severity: Severity::Info,
        ends: ENDS,
        policy: Some("web"),
        way,
        received: 12,
        sent: 7,
        milliseconds: 1_500,
        by: EndedBy::Client,
        reason: "",
        code: None,
        denial: None,
    };
    render(Event::Closed(closed));
    render(Event::Closed(ConnectionClosed {
        severity: Severity::Low,
        policy: None,
        way: Way::default(),
        by: EndedBy::Policy,
        reason: "not any more",
        code: Some(ReasonCode::PolicyChanged),
        ..closed
    }));
    let bypass = Decided {
        policy: Some("bypass-detect"),
        engine: Some(Engine::Firewall),
        ..DENIED
    };
    render(Event::Bypass(BypassAttempt {
        ends: ENDS,
        lineage,
        decided: bypass,
        protocol: "udp",
        denial: None,
    }));
    let published = PublishedConnection {
        severity: Severity::Info,
        action: Action::Allowed,
        client: "192.0.2.7:51344".parse().unwrap(),
        address: "0.0.0.0:8080".parse().unwrap(),
        port: 8000,
        reason: "",
    };
    render(Event::Published(published));
    render(Event::Published(PublishedConnection {
        action: Action::Other,
        reason: "no server",
        ..published
    }));
    let name = NameLookedUp {
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
    render(Event::Name(name));
    render(Event::Name(NameLookedUp {
        kind: None,
        severity: Severity::Info,
        action: Action::Allowed,
        found: Some((2, 60)),
        repeated: 0,
        code: None,
        ..name
    }));
}

/// Renders requests.
fn requests(render: &mut impl FnMut(Event<'_>)) {
    let request = RequestDecided {
        method: "GET",
        path: "/a[CREDENTIAL]",
        scheme: "http",
        number: None,
        ends: ENDS,
        lineage: Lineage::default(),
        way: Way {
            door: Some(Door::Forward),
            source: None,
            dialed: Some("192.0.2.7:8080".parse().unwrap()),
        },
        took: Took::default(),
        decided: ALLOWED,
        credentials: "",
        model: None,
        message: None,
        denial: None,
    };
    render(Event::Request(request));
    let inside = RequestDecided {
        method: "POST",
        scheme: "https",
        number: Some(3),
        ends: Ends {
            port: Some(443),
            ..ENDS
        },
        way: Way::default(),
        decided: Decided {
            engine: Some(Engine::Rules),
            ..ALLOWED
        },
        credentials: "A,B",
        ..request
    };
    render(Event::Request(inside));
    render(Event::Request(RequestDecided {
        method: "PURGE",
        decided: Decided {
            decision: Decision::Audit,
            ..DENIED
        },
        ..inside
    }));
    render(Event::Request(RequestDecided {
        decided: DENIED,
        ends: NOTHING_KNOWN,
        ..inside
    }));
    render(Event::Request(RequestDecided {
        decided: Decided {
            engine: None,
            decision: Decision::AllowUpgrade,
            ..ALLOWED
        },
        ..inside
    }));
    let usage = TokenUsage {
        input: Some(3),
        output: None,
    };
    let model = ModelCall {
        route: "local",
        interface: "openai_responses",
        kind: "responses",
        usage,
    };
    render(Event::Request(RequestDecided {
        credentials: "",
        model: Some(model),
        ..inside
    }));
    render(Event::Request(RequestDecided {
        model: Some(ModelCall {
            usage: TokenUsage::default(),
            ..model
        }),
        ..inside
    }));
}

/// Renders the events about what programs and people do, and about the sandbox's own state.
fn others(render: &mut impl FnMut(Event<'_>)) {
    let file = FileRefused {
        severity: Severity::Low,
        binary: Some("/usr/bin/touch"),
        pid: Some(9),
        access: FileAccess::Write,
        path: "/etc/x",
        reason: "not in the policy",
    };
    render(Event::File(file));
    render(Event::File(FileRefused {
        binary: None,
        pid: None,
        access: FileAccess::Execute,
        ..file
    }));
    render(Event::Finding(Finding {
        activity: FindingActivity::Detected,
        severity: Severity::High,
        title: "A Title",
        confidence: Confidence::High,
        message: "the facts",
    }));
    let configuration = Configuration {
        state: ConfigState::Loaded,
        severity: Severity::Info,
        message: "a policy",
        policy: None,
        line: None,
    };
    render(Event::Configuration(configuration));
    render(Event::Configuration(Configuration {
        policy: Some(PolicyId {
            number: 2,
            hash: "ab12",
        }),
        ..configuration
    }));
    render(Event::Lifecycle(Lifecycle {
        activity: LifecycleActivity::End,
        severity: Severity::Critical,
        message: "success",
    }));
    let process = Process {
        activity: ProcessActivity::Launch,
        severity: Severity::Info,
        name: "sh",
        pid: 2,
        exit: None,
        command: Some("sh -c x"),
        reason: None,
    };
    render(Event::Process(process));
    render(Event::Process(Process {
        activity: ProcessActivity::Terminate,
        exit: Some(3),
        command: Some(""),
        reason: Some("time-out"),
        ..process
    }));
    let approval = Approval {
        activity: ApprovalActivity::Granted,
        severity: Severity::Medium,
        id: "q-1",
        ends: Ends {
            binary: Some("/usr/bin/curl"),
            pid: Some(7),
            host: Some("a.test"),
            port: Some(443),
        },
        by: Some("terminal"),
        uid: Some(1000),
        scope: Some("run"),
        grant: Some("g1"),
        line: Some("ask_a.test_443"),
        reason: "",
    };
    render(Event::Approval(approval));
    render(Event::Approval(Approval {
        activity: ApprovalActivity::Expired,
        severity: Severity::Info,
        by: None,
        uid: None,
        scope: None,
        grant: None,
        line: None,
        reason: "client",
        ..approval
    }));
    let ssh = Ssh {
        activity: SshActivity::Exec,
        severity: Severity::Info,
        action: Action::Allowed,
        door: SshDoor::Tcp,
        client: "127.0.0.1:4000",
        authentication: Some("publickey"),
        command: Some("ls -l"),
        target: None,
        exit: None,
        transferred: None,
        reason: "",
    };
    render(Event::Ssh(ssh));
    render(Event::Ssh(Ssh {
        activity: SshActivity::Close,
        action: Action::Denied,
        door: SshDoor::Exec,
        authentication: None,
        command: None,
        target: Some("db.test:5432"),
        exit: Some(1),
        transferred: Some((5, 6)),
        reason: "refused",
        ..ssh
    }));
}

#[test]
fn every_form_of_the_log_has_the_facts_of_every_event() {
    let made = datetime!(2026-01-02 03:04:05.006 UTC);
    let identity = RunIdentity::new("box-1".to_owned(), Vec::new());
    let mut rendered = String::new();
    let mut render = |event: Event<'_>| {
        let line = shorthand::line(made, Content::Audit(&event), "");
        let record = ocsf::record(made, &event, "-", &identity);
        let record = record.replace(env!("CARGO_PKG_VERSION"), "VERSION");
        let fields = push::fields(&event);
        let fields: Vec<_> = fields
            .sorted()
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        rendered.push_str(&format!("{line}\n{record}\n{}\n\n", fields.join("; ")));
    };
    connections(&mut render);
    requests(&mut render);
    others(&mut render);
    for (rendered, expected) in rendered.lines().zip(include_str!("renderings.txt").lines()) {
        assert_eq!(rendered, expected);
    }
    assert_eq!(rendered, include_str!("renderings.txt"));
}
