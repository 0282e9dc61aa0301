//! One connection's facts; the only place that reports what became of it.

use crate::decide::connection::Permit;
use crate::identify::caller::{Caller, Callers};
use crate::intake::Target;
use crate::refusal::Refusal;
use openshell_policy::denial::{Denial, DenialStage, ReasonCode};

/// The target of the events that are audit records; the binary's logging gives them their form.
pub const AUDIT: &str = "ocsf";

/// Where refusals are counted. Called on the connections' way, so it must not block.
pub trait DenialSink: std::fmt::Debug + Send + Sync {
    /// Counts one.
    fn denied(&self, denial: Denial);
}

/// What is known of a decision so far. Exactly one event comes of it.
#[derive(Debug)]
pub struct Record {
    request: String,
    /// Method and path, where a request is judged and not a connection.
    http: Option<(String, String)>,
    target: Option<Target>,
    caller: Option<Caller>,
    policy: Option<String>,
    observed: Option<ReasonCode>,
    finished: bool,
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
    pub fn new(request: String, target: Option<Target>) -> Self {
        Self { request, http: None, target, caller: None, policy: None, observed: None, finished: false }
    }

    /// A record of a plain-HTTP request for `path` of `target`.
    #[must_use]
    pub fn http(method: &str, path: &str, target: Target) -> Self {
        let mut record = Self::new(format!("{method} {target}{path}"), Some(target));
        record.http = Some((method.to_owned(), path.to_owned()));
        record
    }

    /// A record of an open connection of `callers` to `target`, which is judged again.
    #[must_use]
    pub fn of(callers: &Callers, target: Target) -> Self {
        let mut record = Self::new(format!("CONNECT {target}"), Some(target));
        record.called_by(callers.first().clone());
        record
    }

    /// What was asked for.
    #[must_use]
    pub fn request(&self) -> &str {
        &self.request
    }

    /// Who asks, once that is known.
    #[must_use]
    pub fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Where to.
    #[must_use]
    pub fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    /// Notes who asks.
    pub fn called_by(&mut self, caller: Caller) {
        self.caller = Some(caller);
    }

    /// Notes that it was permitted, and by which policy.
    pub fn permitted_by(&mut self, permit: &Permit) {
        self.policy = permit.policy().map(str::to_owned);
        self.observed = permit.observed();
    }

    /// Reports, and has what the policy refused counted.
    pub fn finish(mut self, outcome: Outcome<'_>, denials: &dyn DenialSink) {
        self.report(outcome);
        if let Outcome::Refused(refusal) | Outcome::Revoked(refusal) = outcome
            && let Some(denial) = self.denial(refusal)
        {
            denials.denied(denial);
        }
    }

    /// What a policy could change. Malformed requests, limits, and upstreams that are not there it could not.
    fn denial(&self, refusal: &Refusal) -> Option<Denial> {
        let is_policys = matches!(refusal.code().stage(), DenialStage::L4 | DenialStage::Identity | DenialStage::Ssrf);
        let target = self.target.as_ref().filter(|_| is_policys)?;
        let program = self.caller.as_ref().map(|caller| &caller.program);
        Some(Denial {
            host: target.host.to_string(),
            port: target.port,
            binary: program.map_or_else(|| "-".to_owned(), |program| program.executable.clone()),
            ancestors: program.map(|program| program.ancestors.clone()).unwrap_or_default(),
            code: refusal.code(),
            reason: refusal.log_reason(),
            fix: refusal.fix(target, self.caller.as_ref()),
        })
    }

    fn report(&mut self, outcome: Outcome<'_>) {
        self.finished = true;
        let policy = self.policy.as_deref().unwrap_or("-");
        match outcome {
            Outcome::Allowed => self.emit(&Event {
                activity: "OPEN",
                severity: if self.observed.is_some() { "MED" } else { "INFO" },
                action: "ALLOWED",
                policy,
                engine: if self.observed.is_some() { "observe" } else { "opa" },
                reason: "",
                code: self.observed.map_or("", ReasonCode::as_str),
                message: &format!("{} allowed", self.request),
            }),
            Outcome::Refused(refusal) => {
                let stage = refusal.code().stage();
                let (activity, severity, action, policy) = match stage {
                    // Permitted, but there was nobody there.
                    DenialStage::Upstream => ("FAIL", "LOW", "ALLOWED", policy),
                    _ => ("OPEN", "MED", "DENIED", "-"),
                };
                self.emit(&Event {
                    activity,
                    severity,
                    action,
                    policy,
                    engine: if stage == DenialStage::Ssrf { "ssrf" } else { "opa" },
                    reason: &refusal.log_reason(),
                    code: refusal.code().as_str(),
                    message: &refusal.detail(&self.request, self.target.as_ref()),
                });
            }
            Outcome::Revoked(refusal) => self.emit(&Event {
                activity: "CLOSE",
                // Somebody passed a permitted socket on to a program that may not have it.
                severity: if refusal.code().stage() == DenialStage::Identity { "HIGH" } else { "MED" },
                action: "DENIED",
                policy: "-",
                engine: "opa",
                reason: &refusal.log_reason(),
                code: refusal.code().as_str(),
                message: &format!("{} closed", self.request),
            }),
            Outcome::Aborted => self.emit(&Event {
                activity: "FAIL",
                severity: "LOW",
                action: "DENIED",
                policy: "-",
                engine: "-",
                reason: "the connection ended before the decision",
                code: "",
                message: &format!("{} ended", self.request),
            }),
        }
    }

    fn emit(&self, event: &Event<'_>) {
        let binary = self.caller.as_ref().map_or("-", |caller| caller.program.executable.as_str());
        let pid = self.caller.as_ref().map_or(0, |caller| caller.pid);
        let host = self.target.as_ref().map_or_else(|| "-".to_owned(), |target| target.host.to_string());
        let port = self.target.as_ref().map_or(0, |target| target.port);
        let (class, activity, path) = match &self.http {
            Some((method, path)) => ("HTTP", method.as_str(), path.as_str()),
            None => ("NET", event.activity, ""),
        };
        tracing::info!(
            target: AUDIT,
            class,
            activity,
            path,
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
            "{}", event.message
        );
    }
}

struct Event<'e> {
    activity: &'static str,
    severity: &'static str,
    action: &'static str,
    policy: &'e str,
    engine: &'static str,
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
