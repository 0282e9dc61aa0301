//! Findings of secrets in requests and responses.

use std::sync::Arc;

use openshell_events::event::{Audit, Event, Finding};
use openshell_events::words::{Confidence, FindingActivity, Severity};

use crate::denial::refusal::Subject;
use crate::ground::target::Target;

/// A finding of secrets in a request.
#[derive(Clone, Debug)]
pub struct SecretFinding {
    pub(super) audit: Arc<dyn Audit>,
    pub(super) subject: Arc<Subject>,
}

impl SecretFinding {
    /// Returns the target of the request, if it has one.
    #[must_use]
    pub fn target(&self) -> Option<&Target> {
        self.subject.target.as_ref()
    }

    /// Reports `secret`, such as `the secret of the credential NAME`.
    pub fn report(&self, secret: &str) {
        let Subject {
            request,
            target,
            caller,
            ..
        } = &*self.subject;
        let target = target.as_ref().map(ToString::to_string).unwrap_or_default();
        let caller = caller
            .as_ref()
            .map(|caller| format!(" by {}", caller.program.executable))
            .unwrap_or_default();
        let message = format!(
            "{request} to {target}{caller} holds {secret}; reported once for this host (--leaks \
             block refuses it, `leaks: allow` at the endpoint permits it)"
        );
        self.audit.event(&Event::Finding(Finding {
            activity: FindingActivity::Detected,
            severity: Severity::High,
            title: "Secret In A Request",
            confidence: Confidence::High,
            message: &message,
        }));
    }
}

/// A finding of a secret in a response, in which it was masked for the workload.
#[derive(Clone, Debug)]
pub struct LeakFinding {
    pub(super) audit: Arc<dyn Audit>,
    pub(super) request: String,
    pub(super) target: String,
    pub(super) credentials: String,
}

impl LeakFinding {
    /// Reports the masked secret.
    pub fn report(self) {
        let Self {
            request,
            target,
            credentials,
            ..
        } = &self;
        let message = format!(
            "Answer of {target} to {request} held a secret of {credentials}, which was masked"
        );
        self.emit(FindingActivity::Blocked, Severity::Medium, &message);
    }

    /// Reports that a response could not be searched, because it is encoded although the request
    /// asked for no encoding.
    pub fn report_encoded(&self) {
        let Self {
            request,
            target,
            credentials,
            ..
        } = self;
        let message = format!(
            "Answer of {target} to {request} is encoded, and was not searched for {credentials}"
        );
        self.emit(FindingActivity::Detected, Severity::Low, &message);
    }

    fn emit(&self, activity: FindingActivity, severity: Severity, message: &str) {
        self.audit.event(&Event::Finding(Finding {
            activity,
            severity,
            title: "Credential In An Answer",
            confidence: Confidence::High,
            message,
        }));
    }
}
