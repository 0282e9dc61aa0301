//! Reports about look-ups of names.

use std::collections::{HashMap, HashSet};
use std::mem::Discriminant;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use hickory_resolver::proto::rr::RecordType;
use openshell_events::denial::Denial;
use openshell_events::event::{Audit, Event, NameLookedUp};
use openshell_events::reason::ReasonCode;
use openshell_events::words::{Action, Severity};
use openshell_policy::network::host::HostName;
use openshell_policy::policy::PolicyForm;
use parking_lot::Mutex;

use super::table::OpenError;
use crate::ground::limits::Limits;
use crate::ground::peer::Caller;

/// Stands for all names that have no count of their own.
const FURTHER_NAMES: &str = "*";

/// Reports look-ups by programs inside, and look-ups of the policy's names outside.
#[derive(Debug)]
pub struct NameReport {
    audit: Arc<dyn Audit>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The names that the policy does not know, each with the time of its last event and the number
    /// of look-ups since then.
    unknown: HashMap<String, (Instant, u64)>,
    /// The causes of failures that were reported.
    failures: HashSet<Discriminant<OpenError>>,
}

impl NameReport {
    /// Creates a reporter that sends its events to `audit`.
    #[must_use]
    pub fn new(audit: Arc<dyn Audit>) -> Self {
        Self {
            audit,
            state: Mutex::default(),
        }
    }

    /// Reports a question for a name that the policy does not know, once per
    /// [`Limits::UNKNOWN_NAME_INTERVAL`]; questions in between are counted. Names beyond
    /// [`Limits::UNKNOWN_NAMES`] are reported as [`FURTHER_NAMES`]. `form` is that of the policy;
    /// `caller` finds out who asked.
    pub(super) fn unknown(
        &self,
        name: &str,
        kind: RecordType,
        form: PolicyForm,
        caller: impl FnOnce() -> Option<Caller>,
    ) {
        let Some((name, repeated)) = self.count(name) else {
            return;
        };
        let denial = denial(name, caller().as_ref(), form);
        self.audit.event(&Event::Name(NameLookedUp {
            name,
            kind: Some(&kind.to_string()),
            severity: Severity::Low,
            action: Action::Denied,
            found: None,
            repeated,
            reason: "",
            code: Some(denial.code),
            denial: Some(&denial),
        }));
    }

    /// Counts a question for an unknown name. If an event is due, returns its name, and the number
    /// of questions since the last event.
    fn count<'n>(&self, name: &'n str) -> Option<(&'n str, u64)> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let interval = Limits::UNKNOWN_NAME_INTERVAL;
        let is_recent = |begin: &Instant| now.duration_since(*begin) < interval;
        let mut name = name;
        if !state.unknown.contains_key(name) && state.unknown.len() >= Limits::UNKNOWN_NAMES {
            state.unknown.retain(|_, (begin, _)| is_recent(begin));
            if state.unknown.len() >= Limits::UNKNOWN_NAMES {
                name = FURTHER_NAMES;
            }
        }
        let Some((begin, count)) = state.unknown.get_mut(name) else {
            state.unknown.insert(name.to_owned(), (now, 0));
            return Some((name, 0));
        };
        if is_recent(begin) {
            *count += 1;
            return None;
        }
        *begin = now;
        Some((name, std::mem::take(count)))
    }

    /// Reports that a name that the policy permits gets no doors; only the first time for each
    /// cause.
    pub(super) fn exhausted(&self, name: &HostName, kind: RecordType, error: &OpenError) {
        let mut state = self.state.lock();
        if !state.failures.insert(std::mem::discriminant(error)) {
            return;
        }
        drop(state);
        self.audit.event(&Event::Name(NameLookedUp {
            name: name.as_str(),
            kind: Some(&kind.to_string()),
            severity: Severity::High,
            action: Action::Denied,
            found: None,
            repeated: 0,
            reason: &error.to_string(),
            code: Some(ReasonCode::LimitReached),
            denial: None,
        }));
    }

    /// Reports the answer of a look-up outside, for a name of the policy: the addresses, and how
    /// many seconds they are valid.
    pub fn outside(&self, name: &HostName, answer: &Result<Vec<IpAddr>, String>, ttl: u64) {
        let (severity, found, reason, code) = match answer {
            Ok(addresses) => (Severity::Info, Some((addresses.len(), ttl)), "", None),
            Err(reason) => (
                Severity::Low,
                None,
                reason.as_str(),
                Some(ReasonCode::DnsFailed),
            ),
        };
        let name = name.as_str();
        let kind = None;
        let action = Action::Allowed;
        let repeated = 0;
        let denial = None;
        self.audit.event(&Event::Name(NameLookedUp {
            name,
            kind,
            severity,
            action,
            found,
            repeated,
            reason,
            code,
            denial,
        }));
    }
}

fn denial(name: &str, caller: Option<&Caller>, form: PolicyForm) -> Denial {
    let program = caller.map(|caller| &caller.program);
    let binary = program.map_or("-", |program| program.executable.as_str());
    let path = if binary == "-" { "PROGRAM" } else { binary };
    // No policy can permit something that is not a host name.
    let fix = HostName::parse(name).ok().map(|name| match form {
        PolicyForm::Flags => format!("add --allow {name}:PORT"),
        PolicyForm::Document => format!(
            "network_policies: add `NAME: {{endpoints: [{{host: {name}, port: PORT}}], binaries: \
             [{{path: {path}}}]}}`"
        ),
    });
    Denial {
        host: name.to_owned(),
        port: 0,
        binary: binary.to_owned(),
        ancestors: program
            .map(|program| program.ancestors.clone())
            .unwrap_or_default(),
        code: ReasonCode::EndpointNotInPolicy,
        reason: "the policy does not know the name, so it has no address inside".to_owned(),
        fix,
        request: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Limits, NameReport, PolicyForm, RecordType};
    use crate::testing::Remembered;

    #[test]
    fn a_flood_of_unknown_names_is_one_more_event_and_not_silence() {
        let audit = Arc::new(Remembered::default());
        let report = NameReport::new(Arc::clone(&audit) as _);
        for n in 0..Limits::UNKNOWN_NAMES + 100 {
            report.unknown(
                &format!("n{n}.test"),
                RecordType::A,
                PolicyForm::Document,
                || None,
            );
            report.unknown("n0.test", RecordType::A, PolicyForm::Document, || None);
        }
        assert_eq!(audit.denials().len(), Limits::UNKNOWN_NAMES + 1);
    }
}
