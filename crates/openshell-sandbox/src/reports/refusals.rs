//! The refusals of a run, counted, and summed up at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use openshell_events::denial::{Denial, DenialSummary, Denials};
use openshell_events::event::{Audit, Event, Finding};
use openshell_events::words::Severity;
use openshell_policy::proposal;
use parking_lot::Mutex;

use openshell_events::text;

/// The most lines of a summary; the log has the rest.
const LINES: usize = 10;

/// Returns the current time in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The most findings that are kept apart by their text; further ones are counted together.
const FINDINGS: usize = 64;

/// Refusals so far, and findings that a person must look at.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    denials: Mutex<Denials>,
    findings: Mutex<Findings>,
}

/// Findings in the order in which they came, each with its count.
#[derive(Debug, Default)]
struct Findings {
    kept: Vec<(String, u64)>,
    others: u64,
}

impl Audit for Refusals {
    /// Counts the denial of `event`, if it has one, and any finding of high or critical severity.
    fn event(&self, event: &Event<'_>) {
        if let Some(denial) = event.denial() {
            self.add(denial.clone());
        }
        if let Event::Finding(finding) = event
            && matches!(finding.severity, Severity::High | Severity::Critical)
        {
            self.add_finding(finding);
        }
    }
}

impl Refusals {
    fn add(&self, denial: Denial) {
        // A panic elsewhere cannot leave the value half changed.
        self.denials.lock().add(denial, now_ms());
    }

    fn add_finding(&self, finding: &Finding<'_>) {
        let text = format!("{}: {}", finding.title, finding.message);
        let mut findings = self.findings.lock();
        let is_full = findings.kept.len() >= FINDINGS;
        match findings.kept.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count += 1,
            None if is_full => findings.others += 1,
            None => findings.kept.push((text, 1)),
        }
    }

    /// Returns how many refusals were counted but not kept.
    pub(crate) fn beyond_kept(&self) -> u64 {
        self.denials.lock().others()
    }

    /// Returns the hosts of the refusals that a proposal could permit.
    pub(crate) fn hosts(&self) -> BTreeSet<String> {
        let denials = self.denials.lock();
        let refused = denials
            .summaries()
            .into_iter()
            .filter(|summary| summary.first.code.is_policy_denial());
        refused.map(|summary| summary.first.host.clone()).collect()
    }

    /// Returns a policy fragment that would permit the refused connections. `addresses` are those
    /// of [`Self::hosts`].
    pub(crate) fn proposals(&self, addresses: &BTreeMap<String, Vec<IpAddr>>) -> String {
        let denials = self.denials.lock();
        let addresses = |host: &str| addresses.get(host).cloned().unwrap_or_default();
        proposal::fragment(&proposal::propose(denials.summaries(), addresses))
    }

    /// Returns findings, refusals and failures with their counts and remedies, for people; `None`
    /// if there were none. Unlike answers to the workload, it shows addresses.
    pub(crate) fn summary(&self) -> Option<String> {
        let denials = self.denials.lock();
        let summaries = denials.summaries();
        let (refused, failed): (Vec<_>, Vec<_>) = summaries
            .into_iter()
            .partition(|summary| summary.first.code.is_policy_denial());
        let mut text = self.findings.lock().summary();
        // Denials that were not kept may be of either kind.
        let (others, rest) = if refused.is_empty() {
            (0, denials.others())
        } else {
            (denials.others(), 0)
        };
        write_section(&mut text, "refused by the policy:", &refused, others);
        write_section(&mut text, "permitted, and failed:", &failed, rest);
        Some(text).filter(|text| !text.is_empty())
    }
}

impl Findings {
    /// Returns the findings for people; empty if there are none.
    fn summary(&self) -> String {
        let mut text = String::new();
        if self.kept.is_empty() {
            return text;
        }
        text.push_str("openshell-sandbox: look at this:");
        for (finding, count) in self.kept.iter().take(LINES) {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  {count} x {}", text::printable(finding));
        }
        let rest = self
            .kept
            .iter()
            .skip(LINES)
            .map(|(_, count)| count)
            .sum::<u64>()
            + self.others;
        if rest > 0 {
            let _ = write!(text, "\n  {rest} more; see the log");
        }
        text
    }
}

fn write_section(text: &mut String, title: &str, summaries: &[&DenialSummary], others: u64) {
    if summaries.is_empty() {
        return;
    }
    let line_break = if text.is_empty() { "" } else { "\n" };
    // Writing to a String cannot fail.
    let _ = write!(text, "{line_break}openshell-sandbox: {title}");
    for summary in summaries.iter().take(LINES) {
        let Denial {
            host,
            port,
            binary,
            code,
            reason,
            ..
        } = &summary.first;
        let port = if *port == 0 {
            String::new()
        } else {
            format!(":{port}")
        };
        let line = format!(
            "{} x {binary} -> {host}{port}: {}",
            summary.count,
            code.as_str()
        );
        let _ = write!(text, "\n  {}", text::printable(&line));
        let reason = Some(reason.as_str()).filter(|_| code.stage().is_explained());
        let fixes = summary.fixes.iter().map(|fix| {
            fix.strip_suffix("; the address is in the log")
                .unwrap_or(fix)
        });
        for detail in reason.into_iter().chain(fixes) {
            let _ = write!(text, "\n      {}", text::printable(detail));
        }
    }
    let rest = summaries
        .iter()
        .skip(LINES)
        .map(|summary| summary.count)
        .sum::<u64>()
        + others;
    if rest > 0 {
        let _ = write!(text, "\n  {rest} more; see the log");
    }
}

#[cfg(test)]
mod tests {
    use openshell_events::denial::Denial;
    use openshell_events::reason::ReasonCode;

    use super::Refusals;

    fn denial(host: String, binary: &str) -> Denial {
        let code = ReasonCode::EndpointNotInPolicy;
        let fix = Some("add `x`".to_owned());
        let binary = binary.to_owned();
        let ancestors = Vec::new();
        let reason = String::new();
        Denial {
            host,
            port: 443,
            binary,
            ancestors,
            code,
            reason,
            fix,
            request: None,
        }
    }

    #[test]
    fn the_summary_says_what_how_often_and_what_would_allow_it() {
        let refusals = Refusals::default();
        assert_eq!(refusals.summary(), None);
        for _ in 0..3 {
            refusals.add(denial("a.test".to_owned(), "/bin/a\n\u{1b}[1mforged"));
        }
        for n in 0..12 {
            refusals.add(denial(format!("{n}.test"), "/bin/b"));
        }
        let summary = refusals.summary().unwrap();
        let lines: Vec<_> = summary.lines().collect();
        assert!(
            lines[1].contains("3 x /bin/a")
                && lines[1].ends_with("a.test:443: endpoint_not_in_policy"),
            "{lines:?}"
        );
        assert!(
            !summary.contains('\u{1b}') && lines[2].trim() == "add `x`",
            "{lines:?}"
        );
        assert_eq!((lines.len(), lines[21].trim()), (22, "3 more; see the log"));
    }

    #[test]
    fn a_failure_is_no_refusal_and_an_address_is_named_to_the_operator() {
        let refusals = Refusals::default();
        let of = |code, reason: &str, fix: Option<&str>| {
            let reason = reason.to_owned();
            let fix = fix.map(str::to_owned);
            refusals.add(Denial {
                code,
                reason,
                fix,
                ..denial("a.test".to_owned(), "/bin/a")
            });
        };
        of(
            ReasonCode::DnsFailed,
            "DNS resolution of a.test failed: no such name",
            None,
        );
        let only_failures = "openshell-sandbox: permitted, and failed:\n  \
                             1 x /bin/a -> a.test:443: dns_failed\n      \
                             DNS resolution of a.test failed: no such name";
        assert_eq!(refusals.summary().as_deref(), Some(only_failures));
        let address = "a.test resolves to internal address 10.0.0.1, connection rejected";
        of(
            ReasonCode::InternalAddress,
            address,
            Some("add `allowed_ips`; the address is in the log"),
        );
        let both = format!(
            "openshell-sandbox: refused by the policy:\n  1 x /bin/a -> a.test:443: \
             internal_address\n      {address}\n      add `allowed_ips`\n{only_failures}"
        );
        assert_eq!(refusals.summary(), Some(both));
        assert_eq!(refusals.hosts().len(), 1);
    }
}
