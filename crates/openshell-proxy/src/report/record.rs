//! The record of one decision. Only records report the outcomes of decisions.

use std::sync::Arc;
use std::time::Instant;

use openshell_events::denial::Denial;
use openshell_events::event::{
    Audit, ConnectionDecided, Decided, Ends, Event, Finding, Lineage, ModelCall, RequestDecided,
    TokenUsage, Took, Way,
};
use openshell_events::reason::ReasonCode;
use openshell_events::words::{
    Action, Activity, Confidence, Decision, Engine, FindingActivity, Severity,
};

use crate::decide::message::rpc::RpcMessage;
use crate::decide::verdict::Judged;
use crate::denial::answer::NOT_SENT;
use crate::denial::refusal::{Refusal, Subject};
use crate::ground::peer::Caller;
use crate::ground::target::{Scheme, Target};
use crate::report::finding::{LeakFinding, SecretFinding};
use crate::report::message::{Message, loggable};
use crate::secrets::needles::CONCEALED;

/// The facts of one decision so far, for which exactly one event is emitted.
#[derive(Debug)]
pub struct Record {
    audit: Arc<dyn Audit>,
    subject: Subject,
    /// The request, if the decision is on a request and not on a connection.
    http: Option<Http>,
    /// The messages in its body, if the decision is on these.
    messages: Vec<Message>,
    policy: Option<String>,
    /// How the rules judged the request.
    judged: Option<Judged>,
    observed: Option<ReasonCode>,
    way: Way,
    took: Took,
    /// The model call, if the request is for a model.
    inference: Option<Inference>,
    /// Comma-separated names of the credentials in the request.
    credentials: String,
    /// The id of the question that it waited for.
    approval: Option<String>,
    /// True if the sandbox itself answers.
    is_own: bool,
    finished: bool,
}

/// An HTTP request.
#[derive(Clone, Debug)]
struct Http {
    method: String,
    path: String,
    scheme: Scheme,
    /// Its number on its connection, from 1 on; `None` for a forwarded request.
    number: Option<u64>,
    /// True if its response switched protocols.
    is_upgrade: bool,
    /// True if its path holds a secret, and is therefore not shown.
    is_concealed: bool,
}

impl Http {
    /// Describes the request, with its target unless the connection's event names that.
    fn named(&self, target: &Target) -> String {
        let Self { method, path, .. } = self;
        match self.number {
            None => format!("{method} {target}{path}"),
            Some(_) => format!("{method} {path}"),
        }
    }
}

/// The part of a request that concerns models.
#[derive(Clone, Debug, Default)]
struct Inference {
    /// The call, once a route is chosen.
    call: Option<Call>,
    usage: TokenUsage,
    /// A remark on a response that was cut off; empty for others.
    remark: String,
}

/// A call to the backend of a route.
#[derive(Clone, Debug)]
struct Call {
    route: String,
    interface: &'static str,
    kind: &'static str,
}

/// The outcome of a decision.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'o> {
    /// It is permitted, and the upstream was reached.
    Allowed,
    /// It is refused, or the upstream was not reached.
    Refused(&'o Refusal),
    /// The client left before the decision.
    Aborted,
}

impl Record {
    /// Creates the record of `request`, such as `CONNECT example.com:443`, and its `target`, if it
    /// has one.
    #[must_use]
    pub fn new(audit: &Arc<dyn Audit>, request: String, target: Option<Target>) -> Self {
        Self {
            audit: Arc::clone(audit),
            subject: Subject {
                request,
                target,
                caller: None,
                is_inside: false,
            },
            http: None,
            messages: Vec::new(),
            policy: None,
            judged: None,
            observed: None,
            way: Way::default(),
            took: Took::default(),
            credentials: String::new(),
            approval: None,
            inference: None,
            is_own: false,
            finished: false,
        }
    }

    /// Creates the record of a forwarded request for `path` of `target`.
    #[must_use]
    pub fn http(
        audit: &Arc<dyn Audit>,
        method: &str,
        path: &str,
        scheme: Scheme,
        target: Target,
    ) -> Self {
        let http = Http {
            method: method.to_owned(),
            path: loggable(path),
            scheme,
            number: None,
            is_upgrade: false,
            is_concealed: false,
        };
        let mut record = Self::new(audit, http.named(&target), Some(target));
        record.http = Some(http);
        record
    }

    /// Makes this the record of a request on a connection to its target, the `number`th.
    #[must_use]
    pub fn inside(mut self, number: u64) -> Self {
        if let (Some(http), Some(target)) = (&mut self.http, &self.subject.target) {
            http.number = Some(number);
            self.subject.request = http.named(target);
            self.subject.is_inside = true;
        }
        self
    }

    /// Creates the record of an open connection of `caller` to `target` that is judged again.
    #[must_use]
    pub fn of(audit: &Arc<dyn Audit>, caller: &Caller, target: Target) -> Self {
        let mut record = Self::new(audit, format!("CONNECT {target}"), Some(target));
        record.called_by(caller.clone());
        record
    }

    /// Returns the request in words, such as `CONNECT example.com:443`.
    #[must_use]
    pub fn request(&self) -> &str {
        &self.subject.request
    }

    /// Returns the connection or request that is decided on.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Notes the way by which the connection came, as far as it is known.
    pub fn came_by(&mut self, way: Way) {
        self.way = way;
    }

    /// Notes a decision that began at `began` and ended now. Its time is added to that of decisions
    /// before it.
    pub fn decided_since(&mut self, began: Instant) {
        self.took.decision = Some(self.took.decision.unwrap_or_default() + began.elapsed());
    }

    /// Notes that the upstream, which was dialled at `began`, is connected now.
    pub fn connected_since(&mut self, began: Instant) {
        self.took.connect = Some(began.elapsed());
    }

    /// Notes the caller.
    pub fn called_by(&mut self, caller: Caller) {
        self.subject.caller = Some(caller);
    }

    /// Notes that `policy` permits the connection. If the run only observes, `observed` is the code
    /// with which the connection would otherwise be refused.
    pub fn permitted_by(&mut self, policy: Option<&str>, observed: Option<ReasonCode>) {
        self.policy = policy.map(str::to_owned);
        self.observed = observed;
    }

    /// Notes the path that is judged.
    pub fn asks_for(&mut self, path: &str) {
        let path = loggable(path);
        if let (Some(http), Some(target)) = (&mut self.http, &self.subject.target)
            && http.path != path
            && !http.is_concealed
        {
            http.path = path;
            self.subject.request = http.named(target);
        }
    }

    /// Notes that the path holds a secret, which no log may show.
    pub fn conceal_path(&mut self) {
        self.asks_for(CONCEALED);
        if let Some(http) = &mut self.http {
            http.is_concealed = true;
        }
    }

    /// Notes that the request is permitted, by `policy` if one is named, and how it was `judged`.
    pub fn request_permitted_by(&mut self, policy: Option<&str>, judged: &Judged) {
        if policy.is_some() {
            self.policy = policy.map(str::to_owned);
        }
        self.judged = Some(judged.clone());
    }

    /// Notes the messages in the body of the request, which are decided on one by one.
    pub fn holds<'m>(&mut self, messages: impl Iterator<Item = &'m RpcMessage>) {
        self.messages = messages.map(Message::of).collect();
    }

    /// Notes that the message at `index` is permitted, by `policy` if one is named, and how it was
    /// `judged`.
    pub fn message_permitted_by(&mut self, index: usize, policy: Option<&str>, judged: &Judged) {
        if let Some(message) = self.messages.get_mut(index) {
            message.permitted = Some((policy.map(str::to_owned), judged.clone()));
        }
    }

    /// Notes that the request is for a model and needs no policy.
    pub fn intercepted(&mut self) {
        self.inference.get_or_insert_default();
    }

    /// Notes that the sandbox itself answers, and needs no policy.
    pub fn served_inside(&mut self) {
        self.is_own = true;
    }

    /// Returns true if a route has been chosen.
    fn is_routed(&self) -> bool {
        self.inference
            .as_ref()
            .is_some_and(|inference| inference.call.is_some())
    }

    /// Ends the record without an event, because the requests on the connection are reported
    /// instead.
    pub fn left_to_requests(mut self) {
        self.finished = true;
    }

    /// Notes the chosen route, its interface, and the kind of the call.
    pub fn routed(&mut self, route: &str, interface: &'static str, kind: &'static str) {
        let call = Call {
            route: route.to_owned(),
            interface,
            kind,
        };
        self.inference = Some(Inference {
            call: Some(call),
            ..Inference::default()
        });
    }

    /// Notes the token usage of a response, and a `remark` if it was cut off.
    pub fn record_usage(&mut self, usage: TokenUsage, remark: &str) {
        if let Some(inference) = &mut self.inference {
            inference.usage = usage;
            remark.clone_into(&mut inference.remark);
        }
    }

    /// Notes the `id` of the question to a person that it waited for.
    pub fn asked_by(&mut self, id: String) {
        self.approval = Some(id);
    }

    fn approval(&self) -> Option<&str> {
        self.approval.as_deref()
    }

    /// Notes the names of the credentials in the request.
    pub fn carries(&mut self, names: impl IntoIterator<Item = String>) {
        self.credentials = names.into_iter().collect::<Vec<_>>().join(",");
    }

    /// Returns the program that made the request; its share of a resource is counted by this name.
    #[must_use]
    pub fn program(&self) -> &str {
        self.subject
            .caller
            .as_ref()
            .map_or("-", |caller| &caller.program.executable)
    }

    /// Creates the finding for a response that may hold one of the credentials `names`.
    #[must_use]
    pub fn echo<'n>(&self, names: impl Iterator<Item = &'n str>) -> LeakFinding {
        let names: Vec<_> = names.collect();
        let target = self
            .subject
            .target
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let credentials = if names.len() > 1 {
            format!("one of {}", names.join(", "))
        } else {
            names.join("")
        };
        LeakFinding {
            audit: Arc::clone(&self.audit),
            request: self.subject.request.clone(),
            target,
            credentials,
        }
    }

    /// Creates the finding for secrets in the request.
    #[must_use]
    pub fn secret_finding(&self) -> SecretFinding {
        SecretFinding {
            audit: Arc::clone(&self.audit),
            subject: Arc::new(self.subject.clone()),
        }
    }

    /// Notes that the response switched protocols.
    pub fn upgraded(&mut self) {
        if let Some(http) = &mut self.http {
            http.is_upgrade = true;
        }
    }

    /// Ends the record of a connection that is no longer permitted, without an event, because its
    /// end is reported elsewhere. Returns the denial to count.
    #[must_use]
    pub fn revoked(mut self, refusal: &Refusal) -> Option<Denial> {
        self.finished = true;
        self.denial(refusal)
    }

    /// Reports the outcome.
    pub fn finish(mut self, outcome: Outcome<'_>) {
        self.report(outcome);
    }

    /// Returns the denial to count, if another policy or the operator could permit the refused
    /// request.
    fn denial(&self, refusal: &Refusal) -> Option<Denial> {
        let Subject { target, caller, .. } = &self.subject;
        let target = target.as_ref().filter(|_| refusal.is_counted())?;
        let program = caller.as_ref().map(|caller| &caller.program);
        Some(Denial {
            host: target.host.to_string(),
            port: target.port,
            binary: program.map_or_else(|| "-".to_owned(), |program| program.executable.clone()),
            ancestors: program
                .map(|program| program.ancestors.clone())
                .unwrap_or_default(),
            code: refusal.code(),
            reason: refusal.reason().to_owned(),
            fix: refusal
                .fix_with_addresses(target, caller.as_ref())
                .or_else(|| refusal.no_fix(target)),
            request: refusal.allowable_request(),
        })
    }

    fn report(&mut self, outcome: Outcome<'_>) {
        self.finished = true;
        match outcome {
            Outcome::Allowed => self.report_allowed(""),
            Outcome::Refused(refusal) => self.report_refused(refusal),
            // The request may have been sent already, and taken effect.
            Outcome::Aborted if self.judged.is_some() || self.is_routed() => {
                self.report_allowed("the connection ended before the answer");
            }
            Outcome::Aborted => {
                let decided = Decided {
                    severity: Severity::Low,
                    action: Action::Denied,
                    policy: None,
                    engine: Some(Engine::Undecided),
                    decision: Decision::None,
                    reason: "the connection ended before the decision",
                    code: None,
                    approval: self.approval(),
                };
                self.emit(Activity::Fail, decided, None, None);
            }
        }
    }

    fn report_allowed(&self, remark: &str) {
        if self.messages.is_empty() {
            self.report_judged(self.policy.as_deref(), self.judged.as_ref(), None, remark);
        }
        for (index, message) in self.messages.iter().enumerate() {
            let (policy, judged) = match &message.permitted {
                Some((policy, judged)) => (policy.as_deref(), Some(judged)),
                None => (None, None),
            };
            let policy = policy.or(self.policy.as_deref());
            self.report_judged(policy, judged, Some(index), remark);
        }
    }

    /// Reports that the request, or the message at `index` in it, was sent.
    fn report_judged(
        &self,
        policy: Option<&str>,
        judged: Option<&Judged>,
        index: Option<usize>,
        remark: &str,
    ) {
        let is_upgrade = self.http.as_ref().is_some_and(|http| http.is_upgrade);
        let (engine, decision, reason, code) = match judged {
            _ if let Some(inference) = &self.inference => {
                let remark = if inference.remark.is_empty() {
                    remark
                } else {
                    inference.remark.as_str()
                };
                (Some(Engine::Inference), Decision::Allow, remark, None)
            }
            _ if self.is_own => (Some(Engine::Sandbox), Decision::Allow, remark, None),
            _ if self.observed.is_some() => (
                Some(Engine::Observation),
                Decision::Allow,
                remark,
                self.observed,
            ),
            Some(Judged::Audited { code, reason }) => (
                Some(Engine::Rules),
                Decision::Audit,
                reason.as_str(),
                Some(*code),
            ),
            Some(Judged::Allowed) => (Some(Engine::Rules), Decision::Allow, remark, None),
            // No rule has judged it.
            Some(Judged::Unjudged) if self.subject.is_inside => {
                (None, Decision::Allow, remark, None)
            }
            Some(Judged::Unjudged) | None => (Some(Engine::Policy), Decision::Allow, remark, None),
        };
        let decided = Decided {
            severity: if self.observed.is_some() {
                Severity::Medium
            } else {
                Severity::Info
            },
            action: if is_upgrade {
                Action::Other
            } else {
                Action::Allowed
            },
            policy,
            engine,
            decision: if is_upgrade && decision == Decision::Allow {
                Decision::AllowUpgrade
            } else {
                decision
            },
            reason,
            code,
            approval: self.approval(),
        };
        self.emit(Activity::Open, decided, None, index);
    }

    fn report_refused(&self, refusal: &Refusal) {
        let code = refusal.code();
        let stage = refusal.code().stage();
        if code == ReasonCode::UnsolicitedUpgrade {
            self.report_unsolicited();
        }
        let decided = Decided {
            severity: code.report().severity,
            action: code.report().action,
            policy: refusal
                .nearest_rule()
                .or(self.policy.as_deref())
                .filter(|_| stage.names_policy()),
            engine: Some(stage.engine()),
            decision: Decision::Deny,
            reason: refusal.reason(),
            code: Some(code),
            approval: self.approval(),
        };
        let activity = code.report().activity;
        let denial = self.denial(refusal);
        if self.messages.is_empty() {
            self.emit(activity, decided, denial.as_ref(), None);
        }
        let is_open = |message: &Message| message.permitted.is_none();
        let at_fault = self.messages.iter().position(is_open).unwrap_or_default();
        for index in 0..self.messages.len() {
            if index == at_fault {
                self.emit(activity, decided, denial.as_ref(), Some(index));
            } else {
                let reason = NOT_SENT;
                self.emit(activity, Decided { reason, ..decided }, None, Some(index));
            }
        }
    }

    /// Reports an upstream that tried to open a channel past the rules.
    fn report_unsolicited(&self) {
        self.audit.event(&Event::Finding(Finding {
            activity: FindingActivity::Blocked,
            severity: Severity::High,
            title: "Unsolicited 101 Switching Protocols",
            confidence: Confidence::High,
            message: &format!("Unsolicited 101 upgrade blocked: {}", self.subject.request),
        }));
    }

    fn host(&self) -> Option<String> {
        self.subject
            .target
            .as_ref()
            .map(|target| target.host.to_string())
    }

    fn ends<'e>(&'e self, host: Option<&'e str>) -> Ends<'e> {
        let Subject { target, caller, .. } = &self.subject;
        Ends {
            binary: caller
                .as_ref()
                .map(|caller| caller.program.executable.as_str()),
            pid: caller.as_ref().map(|caller| caller.pid),
            host,
            port: target.as_ref().map(|target| target.port),
        }
    }

    /// Emits the event of the decision on the request, or on the message at `index` in it.
    fn emit(
        &self,
        activity: Activity,
        decided: Decided<'_>,
        denial: Option<&Denial>,
        index: Option<usize>,
    ) {
        let message = index.and_then(|index| self.messages.get(index));
        let message = message.map(Message::facts);
        // The times are those of the whole request.
        let took = match index {
            Some(1..) => Took::default(),
            _ => self.took,
        };
        let host = self.host();
        let ends = self.ends(host.as_deref());
        let lineage = self
            .subject
            .caller
            .as_ref()
            .map(Caller::lineage)
            .unwrap_or_default();
        let event = match &self.http {
            Some(Http {
                method,
                path,
                scheme,
                number,
                ..
            }) => Event::Request(RequestDecided {
                method,
                path,
                scheme: scheme.as_str(),
                number: *number,
                ends,
                lineage: if number.is_none() {
                    lineage
                } else {
                    Lineage::default()
                },
                way: self.way,
                took,
                decided,
                credentials: &self.credentials,
                model: self.model(),
                message: message.as_ref(),
                denial,
            }),
            None => Event::Connection(ConnectionDecided {
                activity,
                ends,
                lineage,
                way: self.way,
                took: self.took,
                decided,
                denial,
            }),
        };
        self.audit.event(&event);
    }

    fn model(&self) -> Option<ModelCall<'_>> {
        let Inference { call, usage, .. } = self.inference.as_ref()?;
        let Call {
            route,
            interface,
            kind,
        } = call.as_ref()?;
        Some(ModelCall {
            route,
            interface,
            kind,
            usage: *usage,
        })
    }
}

impl Drop for Record {
    /// Reports an unfinished record as a connection that ended before its decision, so that every
    /// decision has an event.
    fn drop(&mut self) {
        if !self.finished {
            self.report(Outcome::Aborted);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use openshell_events::event::{Audit, Decided, Event};
    use openshell_events::reason::ReasonCode;
    use openshell_policy::network::host::Host;
    use parking_lot::Mutex;

    use super::{Outcome, Record};
    use crate::decide::verdict::Judged;
    use crate::denial::refusal::Refusal;
    use crate::ground::peer::{Caller, Program};
    use crate::ground::target::{Scheme, Target};

    /// An audit that keeps a line of each event.
    #[derive(Debug, Default)]
    struct Kept(Mutex<Vec<String>>);

    impl Audit for Kept {
        fn event(&self, event: &Event<'_>) {
            let line = |kind: &str, decided: &Decided<'_>| {
                let severity = decided.severity.as_str();
                let action = decided.action.as_str();
                let counted = if event.denial().is_some() {
                    ", counted"
                } else {
                    ""
                };
                format!("{kind} {severity} {action}{counted}: {}", decided.reason)
            };
            let line = match event {
                Event::Connection(event) => line(event.activity.as_str(), &event.decided),
                Event::Request(event) => line(event.method, &event.decided),
                Event::Finding(event) => event.title.to_owned(),
                other => panic!("a record does not report {other:?}"),
            };
            self.0.lock().push(line);
        }
    }

    fn target() -> Target {
        Target {
            host: Host::parse("web.test").unwrap(),
            port: 443,
        }
    }

    fn request(audit: &Arc<dyn Audit>) -> Record {
        Record::http(audit, "GET", "/a", Scheme::Https, target()).inside(1)
    }

    fn connection(audit: &Arc<dyn Audit>) -> Record {
        let program = Program {
            executable: "/usr/bin/curl".into(),
            ancestors: Vec::new(),
            cmdline_paths: Vec::new(),
            is_modified: false,
        };
        Record::of(
            audit,
            &Caller {
                pid: 7,
                program: program.into(),
            },
            target(),
        )
    }

    /// Checks the lines of the events that `report` makes.
    #[track_caller]
    fn check(report: impl FnOnce(&Arc<dyn Audit>), expected: &[&str]) {
        let kept = Arc::new(Kept::default());
        report(&(Arc::clone(&kept) as _));
        assert_eq!(*kept.0.lock(), expected);
    }

    #[test]
    fn each_record_reports_one_decision_also_when_it_is_dropped() {
        check(
            |audit| connection(audit).finish(Outcome::Allowed),
            &["OPEN INFO ALLOWED: "],
        );
        let ended = "FAIL LOW DENIED: the connection ended before the decision";
        check(|audit| drop(connection(audit)), &[ended]);
        check(|audit| connection(audit).left_to_requests(), &[]);
    }

    #[test]
    fn a_request_that_may_have_been_sent_is_reported_as_allowed() {
        let report = |audit: &Arc<dyn Audit>| {
            let mut record = request(audit);
            record.request_permitted_by(Some("web"), &Judged::Allowed);
            drop(record);
        };
        check(
            report,
            &["GET INFO ALLOWED: the connection ended before the answer"],
        );
    }

    #[test]
    fn a_denial_is_counted_if_a_policy_could_change_it() {
        let refused = |refusal: Refusal| {
            move |audit: &Arc<dyn Audit>| connection(audit).finish(Outcome::Refused(&refusal))
        };
        let denied = Refusal::not_in_policy(
            ReasonCode::EndpointNotInPolicy,
            "no policy".to_owned(),
            None,
        );
        check(refused(denied), &["OPEN MED DENIED, counted: no policy"]);
        check(
            refused(Refusal::bad_request("no host")),
            &["OPEN MED DENIED: no host"],
        );
        check(
            refused(Refusal::upstream_timeout()),
            &["FAIL LOW ALLOWED: the upstream did not answer"],
        );
    }

    #[test]
    fn an_unsolicited_upgrade_is_a_finding_besides() {
        check(
            |audit| request(audit).finish(Outcome::Refused(&Refusal::unsolicited_upgrade())),
            &[
                "Unsolicited 101 Switching Protocols",
                "GET MED DENIED: the upstream answered 101, but the client did not ask for this \
                 switch",
            ],
        );
    }
}
