//! Refusals, counted for the summary of a run and for proposals.

use std::collections::{BTreeMap, BTreeSet};

use crate::reason::ReasonCode;

/// A refusal, with what is needed to count it and to propose a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The host that was asked for; an IP address if the program bypassed the proxy.
    pub host: String,
    /// Its port; 0 for protocols that have none.
    pub port: u16,
    /// The program that asked; `-` if it is unknown.
    pub binary: String,
    /// The programs that started it, nearest first.
    pub ancestors: Vec<String>,
    /// The reason code.
    pub code: ReasonCode,
    /// The reason in a sentence.
    pub reason: String,
    /// The line of policy or the flag that would permit it, or why none would.
    pub fix: Option<String>,
    /// The request, if another rule could allow it.
    pub request: Option<UnmatchedRequest>,
}

/// A request, or a message in one, that no rule allows, although one could.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnmatchedRequest {
    /// The `path` of the endpoint whose rules could allow it, if that has one.
    pub endpoint_path: Option<String>,
    /// The protocol of the rules: `rest`, `mcp` or `json-rpc`.
    pub protocol: &'static str,
    /// The method of HTTP or JSON-RPC.
    pub method: String,
    /// The key of rules for what it asks for (`path`, `tool`, `uri` or `name`), and the value.
    pub asked: Option<(&'static str, String)>,
}

/// The refusals, or the failures, of one program for one host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialSummary {
    /// The first of them.
    pub first: Denial,
    /// How many there were.
    pub count: u64,
    /// Time of the first, in milliseconds since 1970.
    pub first_seen_ms: u64,
    /// Time of the last.
    pub last_seen_ms: u64,
    /// The requests among them that no rule allowed, the first [`Denials::SAMPLES`] different ones.
    pub requests: BTreeSet<UnmatchedRequest>,
    /// Their fixes: that of the first, and different short ones, at most [`Denials::FIXES`].
    pub fixes: Vec<String>,
}

/// Refusals, counted by host, port and program; failures are counted separately. The number of
/// summaries is bounded because the workload chooses what it asks for.
#[derive(Clone, Debug, Default)]
pub struct Denials {
    summaries: BTreeMap<(String, u16, String, bool), DenialSummary>,
    /// Number of summaries that are about failures.
    failures: usize,
    others: u64,
}

impl Denials {
    /// Maximum number of summaries. Refusals that would need another one are only counted.
    pub const SUMMARIES: usize = 1024;
    /// Maximum number of summaries of failures, so that names without an address leave room for
    /// refusals.
    pub const FAILURES: usize = 128;
    /// Maximum bytes of the ancestors in a summary; the nearest are kept.
    pub const ANCESTOR_BYTES: usize = 4096;
    /// Maximum number of different requests in a summary.
    pub const SAMPLES: usize = 20;
    /// Maximum number of different fixes in a summary.
    pub const FIXES: usize = 4;
    /// Maximum bytes of each fix but the first.
    pub const FIX_BYTES: usize = 1024;

    /// Counts `denial`, which was made at `now_ms` (milliseconds since 1970).
    pub fn add(&mut self, denial: Denial, now_ms: u64) {
        let requests = denial.request.iter().cloned().collect();
        let fixes = denial.fix.iter().cloned().collect();
        self.count(DenialSummary {
            first: denial,
            count: 1,
            first_seen_ms: now_ms,
            last_seen_ms: now_ms,
            requests,
            fixes,
        });
    }

    /// Adds everything that `others` has counted.
    pub fn merge(&mut self, others: Self) {
        self.others += others.others;
        for summary in others.summaries.into_values() {
            self.count(summary);
        }
    }

    /// Returns true if nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.summaries.is_empty() && self.others == 0
    }

    fn count(&mut self, mut summary: DenialSummary) {
        let denial = &mut summary.first;
        let key = (
            denial.host.clone(),
            denial.port,
            denial.binary.clone(),
            denial.code.is_policy_denial(),
        );
        if let Some(known) = self.summaries.get_mut(&key) {
            known.count += summary.count;
            known.first_seen_ms = known.first_seen_ms.min(summary.first_seen_ms);
            known.last_seen_ms = known.last_seen_ms.max(summary.last_seen_ms);
            let room = Self::SAMPLES.saturating_sub(known.requests.len());
            known
                .requests
                .extend(summary.requests.into_iter().take(room));
            for fix in summary.fixes {
                let has_room = known.fixes.len() < Self::FIXES && fix.len() <= Self::FIX_BYTES;
                if has_room && !known.fixes.contains(&fix) {
                    known.fixes.push(fix);
                }
            }
        } else if self.summaries.len() == Self::SUMMARIES
            || (!denial.code.is_policy_denial() && self.failures == Self::FAILURES)
        {
            self.others += summary.count;
        } else {
            self.failures += usize::from(!denial.code.is_policy_denial());
            let mut room = Self::ANCESTOR_BYTES;
            denial.ancestors.retain(|ancestor| {
                let rest = room.checked_sub(ancestor.len());
                room = rest.unwrap_or(0);
                rest.is_some()
            });
            self.summaries.insert(key, summary);
        }
    }

    /// Returns the summaries, most frequent first.
    #[must_use]
    pub fn summaries(&self) -> Vec<&DenialSummary> {
        let mut summaries: Vec<_> = self.summaries.values().collect();
        summaries.sort_by_key(|summary| std::cmp::Reverse(summary.count));
        summaries
    }

    /// Returns the number of refusals that are in none of [`Self::summaries`].
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others
    }
}

#[cfg(test)]
mod tests {
    use super::{Denial, Denials, UnmatchedRequest};
    use crate::reason::ReasonCode;

    fn denial(host: &str, binary: &str) -> Denial {
        let host = host.to_owned();
        let binary = binary.to_owned();
        let code = ReasonCode::EndpointNotInPolicy;
        Denial {
            host,
            port: 443,
            binary,
            ancestors: Vec::new(),
            code,
            reason: String::new(),
            fix: None,
            request: None,
        }
    }

    #[test]
    fn refusals_are_counted_by_host_port_and_program() {
        let mut denials = Denials::default();
        for (host, binary) in [("a", "/1"), ("b", "/1"), ("b", "/2"), ("b", "/1")] {
            denials.add(denial(host, binary), 0);
        }
        denials.add(
            Denial {
                port: 80,
                ..denial("b", "/1")
            },
            0,
        );
        let counts: Vec<_> = denials
            .summaries()
            .iter()
            .map(|summary| summary.count)
            .collect();
        assert_eq!(counts, [2, 1, 1, 1]);
        assert_eq!(denials.summaries()[0].first.host, "b");
    }

    #[test]
    fn what_a_workload_asks_for_cannot_grow_them_without_end() {
        let mut denials = Denials::default();
        for n in 0..5000 {
            denials.add(denial(&n.to_string(), "/1"), 0);
        }
        assert_eq!(
            (denials.summaries().len(), denials.others()),
            (1024, 5000 - 1024)
        );
        let mut denials = Denials::default();
        denials.add(
            Denial {
                ancestors: vec!["x".repeat(1000); 64],
                ..denial("a", "/1")
            },
            0,
        );
        assert_eq!(denials.summaries()[0].first.ancestors.len(), 4);
        for n in 0..5000 {
            for fix in [format!("short {}", n / 2), "long".repeat(n)] {
                let fix = Some(fix);
                denials.add(
                    Denial {
                        fix,
                        ..denial("a", "/1")
                    },
                    0,
                );
            }
        }
        let fixes = &denials.summaries()[0].fixes;
        assert_eq!(fixes[..3], ["short 0", "", "long"]);
        assert_eq!(fixes.len(), Denials::FIXES);
    }

    #[test]
    fn failures_leave_room_for_refusals() {
        let mut denials = Denials::default();
        for n in 0..5000 {
            denials.add(
                Denial {
                    code: ReasonCode::DnsFailed,
                    ..denial(&n.to_string(), "/1")
                },
                0,
            );
        }
        denials.add(denial("0", "/1"), 0);
        let refused = denials
            .summaries()
            .into_iter()
            .filter(|summary| summary.first.code.is_policy_denial());
        assert_eq!((refused.count(), denials.others()), (1, 5000 - 128));
    }

    #[test]
    fn of_many_requests_twenty_are_kept_and_all_are_counted() {
        let mut denials = Denials::default();
        denials.add(
            Denial {
                code: ReasonCode::RequestInDenyRules,
                ..denial("a", "/1")
            },
            0,
        );
        for n in 0..100 {
            let request = Some(UnmatchedRequest {
                endpoint_path: None,
                protocol: "rest",
                method: "GET".to_owned(),
                asked: Some(("path", format!("/{n}"))),
            });
            denials.add(
                Denial {
                    code: ReasonCode::RequestNotInRules,
                    request,
                    ..denial("a", "/1")
                },
                0,
            );
        }
        let summary = denials.summaries()[0];
        assert_eq!(
            (summary.count, summary.requests.len()),
            (101, Denials::SAMPLES)
        );
    }

    #[test]
    fn what_could_not_be_sent_is_counted_with_what_came_since() {
        let mut unsent = Denials::default();
        let mut since = Denials::default();
        unsent.add(denial("a", "/1"), 5);
        since.add(denial("a", "/1"), 9);
        since.add(denial("b", "/1"), 9);
        since.merge(unsent);
        let summary = since.summaries()[0];
        assert_eq!(
            (summary.count, summary.first_seen_ms, summary.last_seen_ms),
            (2, 5, 9)
        );
        assert_eq!(since.summaries().len(), 2);
    }
}
