//! One connection's facts; the only place that reports what became of it.

use std::sync::Arc;

use crate::credentials::vault::Credential;
use crate::decide::message::{Judged, MessagePermit};
use crate::decide::permit::Permit;
use crate::denial::refusal::{Refusal, Subject};
use crate::inference::api::ApiCall;
use crate::inference::usage::Usage;
use crate::peer::{Caller, Callers};
use crate::placeholder::redacted;
use crate::target::{Scheme, Target};
use openshell_policy::denial::Denial;
use openshell_policy::reason::ReasonCode;

/// The target of the events that are audit records; the binary's logging gives them their form.
pub const AUDIT: &str = "ocsf";

/// Where decisions are reported. Called on the connections' way, so it must not block.
pub trait Audit: std::fmt::Debug + Send + Sync {
    /// Counts a refusal that a policy could change.
    fn denied(&self, denial: Denial);
}

/// What is known of a decision so far. Exactly one event comes of it.
#[derive(Debug)]
pub struct Record {
    audit: Arc<dyn Audit>,
    subject: Subject,
    /// The request, where one is judged and not a connection.
    http: Option<Http>,
    policy: Option<String>,
    /// How its request came to its leave.
    judged: Option<Judged>,
    observed: Option<ReasonCode>,
    /// Whether the models are asked, and then how.
    inference: Option<Routed>,
    /// The names of the credentials that it carries.
    credentials: String,
    finished: bool,
}

/// A request.
#[derive(Clone, Debug)]
struct Http {
    method: String,
    path: String,
    scheme: Scheme,
    /// Its number inside its connection, from 1 on; `None` where it came by itself.
    number: Option<u64>,
    /// Whether it turned its connection into another one.
    is_upgrade: bool,
}

impl Http {
    /// The request in words: with its target, unless its connection has that already.
    fn named(&self, target: &Target) -> String {
        let Self { method, path, .. } = self;
        match self.number {
            None => format!("{method} {target}{path}"),
            Some(_) => format!("{method} {path}"),
        }
    }
}

/// How a model was asked.
#[derive(Clone, Debug, Default)]
struct Routed {
    route: String,
    call: Option<ApiCall>,
    usage: Usage,
    remark: String,
}

/// What became of it.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'o> {
    /// Permitted, and the upstream reached.
    Allowed,
    /// Refused, or not reached.
    Refused(&'o Refusal),
    /// Permitted before, and no longer.
    Revoked(&'o Refusal),
    /// It ended before there was a decision.
    Aborted,
}

impl Record {
    /// A record of `request`, such as `CONNECT example.com:443`, for `target` where it has one.
    #[must_use]
    pub fn new(audit: &Arc<dyn Audit>, request: String, target: Option<Target>) -> Self {
        Self {
            audit: Arc::clone(audit),
            subject: Subject { request, target, caller: None, is_inside: false },
            http: None,
            policy: None,
            judged: None,
            observed: None,
            credentials: String::new(),
            inference: None,
            finished: false,
        }
    }

    /// A record of a request for `path` of `target` that came by itself.
    #[must_use]
    pub fn http(audit: &Arc<dyn Audit>, method: &str, path: &str, scheme: Scheme, target: Target) -> Self {
        let http = Http { method: method.to_owned(), path: shown(path), scheme, number: None, is_upgrade: false };
        let mut record = Self::new(audit, http.named(&target), Some(target));
        record.http = Some(http);
        record
    }

    /// The same request as number `number` inside a connection to its target.
    #[must_use]
    pub fn inside(mut self, number: u64) -> Self {
        if let (Some(http), Some(target)) = (&mut self.http, &self.subject.target) {
            http.number = Some(number);
            self.subject.request = http.named(target);
            self.subject.is_inside = true;
        }
        self
    }

    /// A record of an open connection of `callers` to `target`, which is judged again.
    #[must_use]
    pub fn of(audit: &Arc<dyn Audit>, callers: &Callers, target: Target) -> Self {
        let mut record = Self::new(audit, format!("CONNECT {target}"), Some(target));
        record.called_by(callers.first().clone());
        record
    }

    /// The request in words, such as `CONNECT example.com:443`.
    #[must_use]
    pub fn request(&self) -> &str {
        &self.subject.request
    }

    /// The connection or request that it is of.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Notes who asks.
    pub fn called_by(&mut self, caller: Caller) {
        self.subject.caller = Some(caller);
    }

    /// Notes that it was permitted, and by which policy.
    pub fn permitted_by(&mut self, permit: &Permit) {
        self.policy = permit.policy().map(str::to_owned);
        self.observed = permit.observed();
    }

    /// Notes which path is judged.
    pub fn asks_for(&mut self, path: &str) {
        if let (Some(http), Some(target)) = (&mut self.http, &self.subject.target)
            && http.path != path
        {
            path.clone_into(&mut http.path);
            self.subject.request = http.named(target);
        }
    }

    /// Notes that its request was permitted, and how.
    pub fn request_permitted_by(&mut self, permit: &MessagePermit) {
        if permit.policy().is_some() {
            self.policy = permit.policy().map(str::to_owned);
        }
        self.judged = Some(permit.judged().clone());
    }

    /// Notes that it is for the models, about which no policy is asked.
    pub fn intercepted(&mut self) {
        self.inference.get_or_insert_default();
    }

    /// Whether a route is asked.
    fn is_routed(&self) -> bool {
        self.inference.as_ref().is_some_and(|routed| routed.call.is_some())
    }

    /// Leaves it to the requests inside to report what becomes of them.
    pub fn left_to_requests(mut self) {
        self.finished = true;
    }

    /// Notes which route is asked, and what for.
    pub fn routed(&mut self, route: &str, call: ApiCall) {
        self.inference = Some(Routed { route: route.to_owned(), call: Some(call), ..Routed::default() });
    }

    /// Notes what an answer took, and how it ended if not by itself.
    pub fn record_usage(&mut self, usage: Usage, remark: &str) {
        if let Some(routed) = &mut self.inference {
            routed.usage = usage;
            remark.clone_into(&mut routed.remark);
        }
    }

    /// Notes which credentials it carries.
    pub fn carries(&mut self, names: impl IntoIterator<Item = String>) {
        self.credentials = names.into_iter().collect::<Vec<_>>().join(",");
    }

    /// What reports that its answer held one of the `watched` credentials.
    #[must_use]
    pub fn echo(&self, watched: &[Arc<Credential>]) -> LeakFinding {
        let target = self.subject.target.as_ref().map(ToString::to_string).unwrap_or_default();
        let names: Vec<_> = watched.iter().map(|credential| credential.name()).collect();
        let credentials = if names.len() > 1 { format!("one of {}", names.join(", ")) } else { names.join("") };
        LeakFinding { request: self.subject.request.clone(), target, credentials }
    }

    /// Notes that the connection is another one from here on.
    pub fn upgraded(&mut self) {
        if let Some(http) = &mut self.http {
            http.is_upgrade = true;
        }
    }

    /// Reports, and has what the policy refused counted.
    pub fn finish(mut self, outcome: Outcome<'_>) {
        self.report(outcome);
        if let Outcome::Refused(refusal) | Outcome::Revoked(refusal) = outcome
            && let Some(denial) = self.denial(refusal)
        {
            self.audit.denied(denial);
        }
    }

    /// The denial to count, if another policy or the operator could permit what was refused.
    fn denial(&self, refusal: &Refusal) -> Option<Denial> {
        let Subject { target, caller, .. } = &self.subject;
        let target = target.as_ref().filter(|_| refusal.is_counted())?;
        let program = caller.as_ref().map(|caller| &caller.program);
        Some(Denial {
            host: target.host.to_string(),
            port: target.port,
            binary: program.map_or_else(|| "-".to_owned(), |program| program.executable.clone()),
            ancestors: program.map(|program| program.ancestors.clone()).unwrap_or_default(),
            code: refusal.code(),
            reason: refusal.reason().to_owned(),
            fix: refusal.fix(target, caller.as_ref()).or_else(|| refusal.no_fix(target)),
            request: refusal.allowable_request(),
        })
    }

    fn report(&mut self, outcome: Outcome<'_>) {
        self.finished = true;
        match outcome {
            Outcome::Allowed => self.report_allowed(""),
            Outcome::Refused(refusal) => self.report_refused(refusal),
            Outcome::Revoked(refusal) => self.emit(&Event {
                activity: "CLOSE",
                severity: refusal.code().stage().severity_of_closing().as_str(),
                action: "DENIED",
                policy: "-",
                engine: "opa",
                decision: "deny",
                reason: refusal.reason(),
                code: refusal.code().as_str(),
                message: &format!("{} closed", self.subject.request),
            }),
            // It may have been sent already, and done what it does.
            Outcome::Aborted if self.judged.is_some() || self.is_routed() => {
                self.report_allowed("the connection ended before the answer")
            }
            Outcome::Aborted => self.emit(&Event {
                activity: "FAIL",
                severity: "LOW",
                action: "DENIED",
                policy: "-",
                engine: "-",
                decision: "",
                reason: "the connection ended before the decision",
                code: "",
                message: &format!("{} ended", self.subject.request),
            }),
        }
    }

    fn report_allowed(&self, remark: &'static str) {
        let is_upgrade = self.http.as_ref().is_some_and(|http| http.is_upgrade);
        let observed = self.observed.map_or("", ReasonCode::as_str);
        let (engine, decision, reason, code) = match &self.judged {
            _ if let Some(routed) = &self.inference => {
                let remark = if routed.remark.is_empty() { remark } else { routed.remark.as_str() };
                ("inference", "allow", remark, "")
            }
            _ if self.observed.is_some() => ("observe", "allow", remark, observed),
            Some(Judged::Audited { code, reason }) => ("l7", "audit", reason.as_str(), code.as_str()),
            Some(Judged::Allowed) => ("l7", "allow", remark, ""),
            // No rule has seen it.
            Some(Judged::Unjudged) if self.subject.is_inside => ("", "allow", remark, ""),
            Some(Judged::Unjudged) | None => ("opa", "allow", remark, ""),
        };
        let message = match &self.http {
            _ if let Some(Routed { call: Some(call), .. }) = &self.inference => format!(
                "Intercepted inference request, routing locally: {} (protocol={}, kind={})",
                self.subject.request,
                call.interface.as_str(),
                call.kind
            ),
            Some(Http { number: Some(number), .. }) if engine.is_empty() => {
                let is_injected = !self.credentials.is_empty();
                format!("HTTP_REQUEST {} credentials_injected={is_injected} request_num={number}", self.subject.request)
            }
            Some(_) if engine == "l7" => format!("L7_REQUEST {decision} {} reason={reason}", self.subject.request),
            _ => format!("{} allowed", self.subject.request),
        };
        self.emit(&Event {
            activity: "OPEN",
            severity: if self.observed.is_some() { "MED" } else { "INFO" },
            action: if is_upgrade { "OTHER" } else { "ALLOWED" },
            policy: self.policy.as_deref().unwrap_or("-"),
            engine,
            decision: if is_upgrade && decision == "allow" { "allow_upgrade" } else { decision },
            reason,
            code,
            message: &message,
        });
    }

    fn report_refused(&self, refusal: &Refusal) {
        let (code, stage) = (refusal.code(), refusal.code().stage());
        let policy = refusal.nearest_rule().or(self.policy.as_deref()).filter(|_| stage.names_policy());
        if code == ReasonCode::UnsolicitedUpgrade {
            self.report_unsolicited();
        }
        self.emit(&Event {
            activity: code.report().activity.as_str(),
            severity: code.report().severity.as_str(),
            action: code.report().action.as_str(),
            policy: policy.unwrap_or("-"),
            engine: stage.engine().as_str(),
            decision: "deny",
            reason: refusal.reason(),
            code: code.as_str(),
            message: &refusal.detail(&self.subject),
        });
    }

    /// Somebody tried to make a way past the rules.
    fn report_unsolicited(&self) {
        tracing::info!(
            target: AUDIT,
            class = "FINDING",
            activity = "BLOCKED",
            severity = "HIGH",
            title = "Unsolicited 101 Switching Protocols",
            confidence = "high",
            "Unsolicited 101 upgrade blocked: {}", self.subject.request
        );
    }

    fn emit(&self, event: &Event<'_>) {
        let binary = match &self.subject.caller {
            Some(caller) => caller.program.executable.as_str(),
            None => "-",
        };
        let pid = self.subject.caller.as_ref().map_or(0, |caller| caller.pid);
        let host = self.subject.target.as_ref().map_or_else(|| "-".to_owned(), |target| target.host.to_string());
        let port = self.subject.target.as_ref().map_or(0, |target| target.port);
        let (class, activity, path, scheme, number) = match &self.http {
            Some(Http { method, path, scheme, number, .. }) => {
                ("HTTP", method.as_str(), path.as_str(), scheme.as_str(), number.unwrap_or(0))
            }
            None => ("NET", event.activity, "", "", 0),
        };
        let routed = self.inference.as_ref().filter(|routed| routed.call.is_some());
        let route = routed.map_or("", |routed| routed.route.as_str());
        let tokens = routed.map_or_else(String::new, |Routed { usage, .. }| match usage {
            Usage { input: None, output: None } => String::new(),
            Usage { input, output } => format!("{}/{}", input.unwrap_or(0), output.unwrap_or(0)),
        });
        tracing::info!(
            target: AUDIT,
            class,
            activity,
            path,
            scheme,
            number,
            decision = event.decision,
            severity = event.severity,
            action = event.action,
            binary,
            pid,
            host,
            port,
            policy = event.policy,
            engine = event.engine,
            reason = event.reason,
            code = event.code,
            credentials = self.credentials,
            route,
            tokens,
            "{}", event.message
        );
    }
}

/// `path` as logs may hold it.
fn shown(path: &str) -> String {
    redacted(path).unwrap_or_else(|| path.to_owned())
}

/// Reports that an upstream sent back a secret, which the workload did not get.
#[derive(Clone, Debug)]
pub struct LeakFinding {
    request: String,
    target: String,
    credentials: String,
}

impl LeakFinding {
    /// Reports it.
    pub fn report(self) {
        let Self { request, target, credentials } = &self;
        Self::emit(
            "BLOCKED",
            "MED",
            &format!("Answer of {target} to {request} held a secret of {credentials}, which was masked"),
        );
    }

    /// Reports that the answer is encoded although that was not wanted, so that nobody knows what it holds.
    pub fn report_encoded(&self) {
        let Self { request, target, credentials } = self;
        Self::emit(
            "DETECTED",
            "LOW",
            &format!("Answer of {target} to {request} is encoded, and was not searched for {credentials}"),
        );
    }

    fn emit(activity: &'static str, severity: &'static str, message: &str) {
        tracing::info!(
            target: AUDIT,
            class = "FINDING",
            activity,
            severity,
            title = "Credential In An Answer",
            confidence = "high",
            "{message}"
        );
    }
}

struct Event<'e> {
    activity: &'static str,
    severity: &'static str,
    action: &'static str,
    policy: &'e str,
    engine: &'static str,
    decision: &'static str,
    reason: &'e str,
    code: &'static str,
    message: &'e str,
}

impl Drop for Record {
    /// A record that nobody finished is a connection that ended before its decision: reported, so that none is missing.
    fn drop(&mut self) {
        if !self.finished {
            self.report(Outcome::Aborted);
        }
    }
}
