//! The events of questions and answers.

use std::sync::Arc;

use openshell_events::event::{Approval, Audit, Configuration, Ends, Event};
use openshell_events::words::{ApprovalActivity, ConfigState, Severity};

use openshell_policy::network::PolicyName;

use crate::approvals::about::About;
use crate::approvals::answer::{Answerer, Decision};
use crate::approvals::grants::Grant;
use crate::approvals::question::{QuestionId, Shown};
use crate::approvals::text::quoted;

/// Reports the steps of questions.
#[derive(Debug)]
pub(super) struct Reporter {
    audit: Arc<dyn Audit>,
}

/// A step of which nothing is known.
const STEP: Approval<'static> = Approval {
    activity: ApprovalActivity::Asked,
    severity: Severity::Info,
    id: "",
    ends: Ends {
        binary: None,
        pid: None,
        host: None,
        port: None,
    },
    by: None,
    uid: None,
    scope: None,
    grant: None,
    line: None,
    reason: "",
};

/// What was permitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permission<'p> {
    /// How long it holds.
    pub(super) scope: Decision,
    /// The id of the grant, if it is one.
    pub(super) grant: Option<&'p str>,
    /// The key of the line; `None` if a policy permits it.
    pub(super) line: Option<&'p PolicyName>,
}

impl Reporter {
    pub(super) fn new(audit: Arc<dyn Audit>) -> Self {
        Self { audit }
    }

    fn report(&self, approval: Approval<'_>) {
        self.audit.event(&Event::Approval(approval));
    }

    /// Reports a step of the question `id`.
    fn step(&self, id: &QuestionId, shown: &Shown, step: Approval<'_>) {
        let caller = shown.about.caller();
        let (host, port) = shown.about.place();
        let ends = Ends {
            binary: Some(&caller.program.executable),
            pid: Some(caller.pid),
            host: Some(&host),
            port: Some(port),
        };
        let step = Approval {
            id: id.as_str(),
            ends,
            ..step
        };
        match &shown.about {
            About::Refused(_) => self.report(step),
            About::Proposed(_) => self.report_proposal(&step),
        }
    }

    /// Reports a step of the question about a proposal.
    fn report_proposal(&self, step: &Approval<'_>) {
        let state = match step.activity {
            ApprovalActivity::Asked => ConfigState::Proposed,
            ApprovalActivity::Granted => ConfigState::Approved,
            ApprovalActivity::Denied | ApprovalActivity::Expired | ApprovalActivity::Revoked => {
                ConfigState::Rejected
            }
        };
        let binary = quoted(step.ends.binary.unwrap_or("-"));
        let host = step.ends.host.unwrap_or("-");
        let port = step.ends.port.unwrap_or_default();
        let mut message = format!("{binary} -> {host}:{port} [id:{}]", step.id);
        let uid = step.uid.map(|uid| uid.to_string());
        let facts = [
            ("by", step.by),
            ("uid", uid.as_deref()),
            ("scope", step.scope),
            ("grant", step.grant),
        ];
        for (key, value) in facts {
            if let Some(value) = value {
                message.push_str(&format!(" [{key}:{value}]"));
            }
        }
        self.audit.event(&Event::Configuration(Configuration {
            state,
            severity: step.severity,
            message: &message,
            policy: None,
            line: step.line,
        }));
    }

    /// Reports a new question.
    pub(super) fn asked(&self, id: &QuestionId, shown: &Shown) {
        let step = Approval {
            severity: Severity::Low,
            ..STEP
        };
        self.step(id, shown, step);
    }

    /// Reports that nothing waits under a question any more: its client gave up, or it has waited too
    /// long.
    pub(super) fn expired(&self, id: &QuestionId, shown: &Shown, gave_up: bool) {
        let step = Approval {
            activity: ApprovalActivity::Expired,
            reason: if gave_up { "client" } else { "" },
            ..STEP
        };
        self.step(id, shown, step);
    }

    /// Reports a permission.
    pub(super) fn granted(
        &self,
        id: &QuestionId,
        shown: &Shown,
        permission: Permission<'_>,
        by: Answerer<'_>,
    ) {
        let step = Approval {
            activity: ApprovalActivity::Granted,
            severity: Severity::Medium,
            by: Some(by.way),
            uid: by.uid,
            scope: Some(permission.scope.as_str()),
            grant: permission.grant,
            line: permission.line.map(PolicyName::as_str),
            ..STEP
        };
        self.step(id, shown, step);
    }

    /// Reports a denial.
    pub(super) fn denied(
        &self,
        id: &QuestionId,
        shown: &Shown,
        decision: Decision,
        by: Answerer<'_>,
    ) {
        let step = Approval {
            activity: ApprovalActivity::Denied,
            by: Some(by.way),
            uid: by.uid,
            scope: Some(decision.as_str()),
            ..STEP
        };
        self.step(id, shown, step);
    }

    /// Reports that a grant counts no longer.
    pub(super) fn revoked(&self, grant: &Grant, by: Option<Answerer<'_>>, reason: &str) {
        self.report(Approval {
            activity: ApprovalActivity::Revoked,
            by: by.map(|by| by.way),
            uid: by.and_then(|by| by.uid),
            grant: Some(&grant.id),
            reason,
            ..STEP
        });
    }

    /// Reports that `program` is not asked for any more.
    pub(super) fn mutes(&self, program: &str) {
        let ends = Ends {
            binary: Some(program),
            ..STEP.ends
        };
        self.report(Approval {
            activity: ApprovalActivity::Denied,
            severity: Severity::Medium,
            ends,
            reason: "denied three times in a row, it is not asked for any more in this run",
            ..STEP
        });
    }

    /// Reports that nothing is asked any more.
    pub(super) fn asks_no_more(&self) {
        self.report(Approval {
            activity: ApprovalActivity::Denied,
            severity: Severity::High,
            reason: "so much was denied for the run that nothing is asked any more in it",
            ..STEP
        });
    }
}
