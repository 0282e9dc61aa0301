//! What was refused during a run: counted, and summed up at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use openshell_policy::denial::{Denial, Denials};
use openshell_policy::proposal;
use openshell_proxy::record::DenialSink;

use crate::logging;

/// Lines of a summary; the log has the rest.
const LINES: usize = 10;

/// Refusals so far.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Denials>);

impl DenialSink for Refusals {
    fn denied(&self, denial: Denial) {
        // What is behind the lock is whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(denial);
    }
}

impl Refusals {
    /// The hosts of what was refused and could be proposed.
    pub(crate) fn hosts(&self) -> BTreeSet<String> {
        let denials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        denials.summaries().iter().map(|summary| summary.first.host.clone()).collect()
    }

    /// What was refused as additions to a policy; `addresses` are those of [`Self::hosts`].
    pub(crate) fn proposals(&self, addresses: &BTreeMap<String, Vec<IpAddr>>) -> String {
        let denials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = |host: &str| addresses.get(host).cloned().unwrap_or_default();
        proposal::fragment(&proposal::propose(denials.summaries(), addresses))
    }

    /// What was refused, how often, and the line of policy that would allow it, for people; `None` if nothing was.
    pub(crate) fn summary(&self) -> Option<String> {
        let denials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let summaries = denials.summaries();
        if summaries.is_empty() {
            return None;
        }
        let mut text = "openshell-sandbox: refused by the policy:".to_owned();
        for summary in summaries.iter().take(LINES) {
            let Denial { host, port, binary, code, fix, .. } = &summary.first;
            let line = format!("{} x {binary} -> {host}:{port}: {}", summary.count, code.as_str());
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  {}", logging::printable(&line));
            if let Some(fix) = fix {
                let _ = write!(text, "\n      {}", logging::printable(fix));
            }
        }
        let rest = summaries.iter().skip(LINES).map(|summary| summary.count).sum::<u64>() + denials.others();
        if rest > 0 {
            let _ = write!(text, "\n  {rest} more; see the log");
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use openshell_policy::denial::{Denial, ReasonCode};
    use openshell_proxy::record::DenialSink;

    use super::Refusals;

    fn denial(host: String, binary: &str) -> Denial {
        let (code, fix) = (ReasonCode::EndpointNotInPolicy, Some("add `x`".to_owned()));
        let (binary, ancestors, reason) = (binary.to_owned(), Vec::new(), String::new());
        Denial { host, port: 443, binary, ancestors, code, reason, fix, request: None }
    }

    #[test]
    fn the_summary_says_what_how_often_and_what_would_allow_it() {
        let refusals = Refusals::default();
        assert_eq!(refusals.summary(), None);
        (0..3).for_each(|_| refusals.denied(denial("a.test".to_owned(), "/bin/a\n\u{1b}[1mforged")));
        (0..12).for_each(|n| refusals.denied(denial(format!("{n}.test"), "/bin/b")));
        let summary = refusals.summary().unwrap();
        let lines: Vec<_> = summary.lines().collect();
        assert!(
            lines[1].contains("3 x /bin/a") && lines[1].ends_with("a.test:443: endpoint_not_in_policy"),
            "{lines:?}"
        );
        assert!(!summary.contains('\u{1b}') && lines[2].trim() == "add `x`", "{lines:?}");
        assert_eq!((lines.len(), lines[21].trim()), (22, "3 more; see the log"));
    }
}
