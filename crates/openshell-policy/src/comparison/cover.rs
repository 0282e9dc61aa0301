//! Patterns that cover others: every text that the second matches the first matches too.

use std::collections::BTreeSet;

use globset::GlobBuilder;

use crate::network::binary::Binary;
use crate::network::endpoint::Endpoint;
use crate::network::rule::{DenyRule, Glob, HttpRule, QueryMatcher};

/// Segments of patterns that are compared; longer ones cover only themselves.
const SEGMENTS: usize = 64;

/// Returns true if the glob `one` covers the glob `other`, whose segments are separated by `separator`.
pub(super) fn glob(one: &str, other: &str, separator: char) -> bool {
    if one == other {
        return true;
    }
    let (one, other): (Vec<_>, Vec<_>) = (one.split(separator).collect(), other.split(separator).collect());
    one.len() + other.len() <= SEGMENTS && segments(&one, &other, &mut BTreeSet::new())
}

/// As [`glob`], over segments; `known` holds the lengths of what does not cover, so that none is compared twice.
fn segments(one: &[&str], other: &[&str], known: &mut BTreeSet<(usize, usize)>) -> bool {
    if known.contains(&(one.len(), other.len())) {
        return false;
    }
    let covers = match (one, other) {
        ([], []) => true,
        // At the end it stands for one segment at least.
        (["**"], [_, ..]) => true,
        (["**"] | [], _) => false,
        (["**", rest @ ..], _) => {
            segments(rest, other, known) || other.split_first().is_some_and(|(_, other)| segments(one, other, known))
        }
        ([first, rest @ ..], [other_first, other_rest @ ..]) => {
            *other_first != "**" && segment(first, other_first) && segments(rest, other_rest, known)
        }
        ([_, ..], []) => false,
    };
    if !covers {
        known.insert((one.len(), other.len()));
    }
    covers
}

fn segment(one: &str, other: &str) -> bool {
    let is_literal = !other.contains(['*', '?', '[', ']', '{', '}', '\\']);
    // Compiled once already.
    let matches = || GlobBuilder::new(one).build().is_ok_and(|one| one.compile_matcher().is_match(other));
    one == other || one == "*" || is_literal && matches()
}

/// Returns true if the path glob `one` covers `other`.
fn path(one: &Glob, other: &Glob) -> bool {
    one.is_everything() || glob(one.as_str(), other.as_str(), '/')
}

fn query(one: &QueryMatcher, other: &QueryMatcher) -> bool {
    let covered = |other: &Glob| one.globs().iter().any(|one| one == other || one.as_str() == "**");
    other.globs().iter().all(covered)
}

/// Returns true if every request that `other` matches `one` matches too.
pub(super) fn rule(one: &HttpRule, other: &HttpRule) -> bool {
    let (method, other_method) = (one.method.as_str(), other.method.as_str());
    let has_method = method == "*" || method == other_method || method == "GET" && other_method == "HEAD";
    let has_key =
        |(key, matcher): (&String, &QueryMatcher)| other.query.get(key).is_some_and(|other| query(matcher, other));
    has_method && path(&one.path, &other.path) && one.query.iter().all(has_key)
}

/// Returns true if `one` denies every request that `other` denies.
pub(super) fn deny(one: &DenyRule, other: &DenyRule) -> bool {
    rule(&one.rule, &other.rule) && (!one.case_sensitive || other.case_sensitive)
}

/// Returns true if `one` is for every program that `other` is for.
pub(super) fn binary(one: &Binary, other: &Binary) -> bool {
    let (path, other_path) = (one.path.to_string(), other.path.to_string());
    // A path without `*` is literal, whatever else it holds.
    let covers = path == other_path || path.contains('*') && glob(&path, &other_path, '/');
    covers && (!one.exact || other.exact) && (!one.pinned || other.pinned)
}

/// Returns false if no program is one of both.
pub(super) fn binaries_overlap(one: &Binary, other: &Binary) -> bool {
    let (one, other) = (one.path.to_string(), other.path.to_string());
    let literal = |path: &str| path.find(['*', '?', '[', '{', '\\']).unwrap_or(path.len());
    match (one.contains('*'), other.contains('*')) {
        (false, false) => one == other,
        (true, false) => glob(&one, &other, '/'),
        (false, true) => glob(&other, &one, '/'),
        (true, true) => {
            let (one, other) = (one.get(..literal(&one)).unwrap_or(""), other.get(..literal(&other)).unwrap_or(""));
            one.starts_with(other) || other.starts_with(one)
        }
    }
}

/// Returns false if no host is one of both.
pub(super) fn hosts_overlap(one: &Endpoint, other: &Endpoint) -> bool {
    let (Some(one), Some(other)) = (one.host(), other.host()) else { return true };
    let (one, other) = (one.to_string(), other.to_string());
    let suffix = |host: &str| host.trim_start_matches('*').to_owned();
    match (one.contains('*'), other.contains('*')) {
        (false, false) => one == other,
        (true, false) => glob(&one, &other, '.'),
        (false, true) => glob(&other, &one, '.'),
        (true, true) => suffix(&one).ends_with(&suffix(&other)) || suffix(&other).ends_with(&suffix(&one)),
    }
}

/// Returns true if `one` is for every host and address of `other`.
pub(super) fn host(one: &Endpoint, other: &Endpoint) -> bool {
    let has_name = match (one.host(), other.host()) {
        (None, None) => other.resolve().iter().all(|pattern| one.resolve().contains(pattern)),
        (Some(one), Some(other)) => glob(&one.to_string(), &other.to_string(), '.'),
        (None, Some(_)) | (Some(_), None) => false,
    };
    let listed = |range| one.allowed_ips().iter().any(|known| known.includes(range));
    has_name
        && match (one.allowed_ips(), other.allowed_ips()) {
            ([], []) => true,
            // Public addresses, of which the other lists some or none.
            ([], _) => false,
            (_, []) => false,
            (_, ranges) => ranges.iter().all(listed),
        }
}
