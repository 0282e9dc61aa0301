//! Decides whether one pattern covers another: whether it matches every text that the other
//! matches.

use std::collections::BTreeSet;

use globset::GlobBuilder;

use crate::network::binary::Binary;
use crate::network::endpoint::Endpoint;
use crate::network::rule::{DenyRule, Glob, HttpRule, QueryMatcher};

/// The most segments that two patterns may have together to be compared; longer patterns cover only
/// themselves.
const SEGMENTS: usize = 64;

/// Returns true if an endpoint at the path `one` counts for every request of one at `other`.
pub(super) fn is_for(one: Option<&Glob>, other: Option<&Glob>) -> bool {
    match (one, other) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(one), Some(other)) => path(one, other),
    }
}

/// Returns true if the glob `one` covers the glob `other`, whose segments are separated by
/// `separator`. A pattern with alternatives or classes, which could hold a separator, covers only
/// literal texts and itself.
pub(super) fn glob(one: &str, other: &str, separator: char) -> bool {
    let is_plain = |pattern: &str| !pattern.contains(['?', '[', ']', '{', '}', '\\']);
    let is_literal = |pattern: &str| is_plain(pattern) && !pattern.contains('*');
    if one == other {
        return true;
    }
    if is_literal(one) {
        return false;
    }
    if is_literal(other) && matches(one, other, separator) {
        return true;
    }
    if !is_plain(one) || !is_plain(other) {
        return false;
    }
    let (parts, other_parts): (Vec<_>, Vec<_>) = (
        one.split(separator).collect(),
        other.split(separator).collect(),
    );
    let cover = Cover {
        takes_none: separator == '/',
    };
    parts.len() + other_parts.len() <= SEGMENTS
        && cover.segments(&parts, &other_parts, &mut BTreeSet::new())
}

/// Returns true if the glob `one` matches `text`, with the same meaning of globs as in rules.
fn matches(one: &str, text: &str, separator: char) -> bool {
    // `**.` stands for at least one label, so `**.NAME` does not match `NAME`.
    let text = if separator == '.' && one.starts_with("**.") {
        let Some((_, behind)) = text.split_once('.') else {
            return false;
        };
        behind
    } else {
        text
    };
    let as_path = |text: &str| text.replace(separator, "/");
    let glob = GlobBuilder::new(&as_path(one))
        .literal_separator(true)
        .build();
    glob.is_ok_and(|glob| glob.compile_matcher().is_match(as_path(text)))
}

/// A comparison of globs.
struct Cover {
    /// True if a `**` that has segments behind it may stand for no segment.
    takes_none: bool,
}

impl Cover {
    /// Returns true if the segments of `one` cover those of `other`. `known` holds the lengths of
    /// pairs that do not, so that no pair is compared twice.
    fn segments(&self, one: &[&str], other: &[&str], known: &mut BTreeSet<(usize, usize)>) -> bool {
        if known.contains(&(one.len(), other.len())) {
            return false;
        }
        let covers = match (one, other) {
            ([], []) => true,
            // A `**` at the end stands for at least one segment.
            (["**"], [_, ..]) => true,
            (["**"] | [], _) => false,
            (["**", rest @ ..], _) => {
                let shorter = other.split_first().map(|(_, other)| other);
                self.takes_none && self.segments(rest, other, known)
                    || shorter.is_some_and(|shorter| {
                        self.segments(rest, shorter, known) || self.segments(one, shorter, known)
                    })
            }
            ([first, rest @ ..], [other_first, other_rest @ ..]) => {
                *other_first != "**"
                    && segment(first, other_first)
                    && self.segments(rest, other_rest, known)
            }
            ([_, ..], []) => false,
        };
        if !covers {
            known.insert((one.len(), other.len()));
        }
        covers
    }
}

fn segment(one: &str, other: &str) -> bool {
    one == other || one == "*" || !other.contains('*') && matches(one, other, '/')
}

/// Returns true if the path glob `one` covers `other`.
pub(super) fn path(one: &Glob, other: &Glob) -> bool {
    one.is_everything() || glob(one.as_str(), other.as_str(), '/')
}

fn query(one: &QueryMatcher, other: &QueryMatcher) -> bool {
    let covered = |other: &Glob| {
        one.globs()
            .iter()
            .any(|one| one == other || one.as_str() == "**")
    };
    other.globs().iter().all(covered)
}

/// Returns true if `one` matches every request that `other` matches.
pub(super) fn rule(one: &HttpRule, other: &HttpRule) -> bool {
    let method = one.method.as_str();
    let other_method = other.method.as_str();
    let has_method =
        method == "*" || method == other_method || method == "GET" && other_method == "HEAD";
    let has_key = |(key, matcher): (&String, &QueryMatcher)| {
        other
            .query
            .get(key)
            .is_some_and(|other| query(matcher, other))
    };
    has_method && path(&one.path, &other.path) && one.query.iter().all(has_key)
}

/// Returns true if `one` denies every request that `other` denies.
pub(super) fn deny(one: &DenyRule, other: &DenyRule) -> bool {
    rule(&one.rule, &other.rule) && (!one.case_sensitive || other.case_sensitive)
}

/// Returns true if `one` is for every program that `other` is for.
pub(super) fn binary(one: &Binary, other: &Binary) -> bool {
    let path = one.path.to_string();
    let other_path = other.path.to_string();
    // A path without `*` is literal, even if it has braces.
    let covers = path == other_path || path.contains('*') && glob(&path, &other_path, '/');
    covers && (!one.exact || other.exact) && (!one.pinned || other.pinned)
}

/// Returns false if no connection can match both entries. An entry also covers what its programs
/// start, unless it is `exact`.
pub(super) fn binaries_overlap(one: &Binary, other: &Binary) -> bool {
    let is_exact = one.exact && other.exact;
    let one = one.path.to_string();
    let other = other.path.to_string();
    let literal = |path: &str| {
        path.split(['*', '?', '[', '{', '\\'])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    !is_exact || {
        let one = literal(&one);
        let other = literal(&other);
        one.starts_with(&other) || other.starts_with(&one)
    }
}

/// Returns false if no host can match both endpoints.
pub(super) fn hosts_overlap(one: &Endpoint, other: &Endpoint) -> bool {
    let (Some(one), Some(other)) = (one.host(), other.host()) else {
        return true;
    };
    let one = one.to_string();
    let other = other.to_string();
    let suffix = |host: &str| {
        host.rsplit(['*', '?', ']', '}', '\\'])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let end = suffix(&one);
    let other_end = suffix(&other);
    if one == end && other == other_end {
        one == other
    } else {
        end.ends_with(&other_end) || other_end.ends_with(&end)
    }
}

/// Returns true if `one` is for every host and address of `other`.
pub(super) fn host(one: &Endpoint, other: &Endpoint) -> bool {
    let has_name = match (one.host(), other.host()) {
        (None, None) => other
            .resolve()
            .iter()
            .all(|pattern| one.resolve().contains(pattern)),
        (Some(one), Some(other)) => one == other || glob(&one.glob(), &other.glob(), '.'),
        (None, Some(_)) | (Some(_), None) => false,
    };
    let listed = |range| one.allowed_ips().iter().any(|known| known.includes(range));
    has_name
        && match (one.allowed_ips(), other.allowed_ips()) {
            ([], []) => true,
            // `one` permits every public address, but `other` permits only the ranges that it
            // lists.
            ([], _) => false,
            (_, []) => false,
            (_, ranges) => ranges.iter().all(listed),
        }
}
