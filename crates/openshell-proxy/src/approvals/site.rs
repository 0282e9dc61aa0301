//! The site of a host: the domain that somebody has registered, and hosts that look like others.

use std::cmp::Ordering;

use openshell_policy::network::host::Host;

/// The Public Suffix List, in the form that `.ci/public-suffixes` writes.
const SUFFIXES: &str = include_str!("../../../../data/names/public-suffixes.txt");

/// Returns the site of `host`: the registrable domain by the Public Suffix List, with its private
/// part; the host itself if it is an address or a public suffix.
#[must_use]
pub(super) fn site(host: &Host) -> String {
    let name = match host {
        Host::Address(address) => return address.to_string(),
        Host::Name(name) => name.as_str(),
    };
    let labels: Vec<_> = name.split('.').rev().collect();
    let suffix = suffix_labels(&labels);
    let count = labels.len().min(suffix + 1);
    let mut site: Vec<_> = labels.into_iter().take(count).collect();
    site.reverse();
    site.join(".")
}

/// Returns true if `host` is a name that somebody has registered, or lies below one.
#[must_use]
pub fn is_registered(host: &Host) -> bool {
    let Host::Name(name) = host else {
        return false;
    };
    let labels: Vec<_> = name.as_str().split('.').rev().collect();
    labels.len() > suffix_labels(&labels)
}

/// Returns true if names below `host` may be registered by different people.
#[must_use]
pub fn has_suffixes_below(host: &Host) -> bool {
    let Host::Name(name) = host else {
        return false;
    };
    // The list has labels from the right.
    let labels: Vec<_> = name.as_str().split('.').rev().collect();
    let below = format!("{}.", labels.join("."));
    SUFFIXES.lines().any(|rule| rule.starts_with(&below))
}

/// Returns the number of labels of the public suffix of a name, whose `labels` begin at its right.
fn suffix_labels(labels: &[&str]) -> usize {
    // The rule for names that no other rule matches is `*`.
    let mut longest = 1;
    for count in 1..=labels.len() {
        let Some((last, before)) = labels[..count].split_last() else {
            break;
        };
        let exact = labels[..count].join(".");
        if is_rule(&format!("!{exact}")) {
            return count - 1;
        }
        let wildcard = [before, &["*"]].concat().join(".");
        if is_rule(&exact) || (!before.is_empty() && !last.is_empty() && is_rule(&wildcard)) {
            longest = count;
        }
    }
    longest
}

/// Returns true if `rule` is a line of the list.
fn is_rule(rule: &str) -> bool {
    let list = SUFFIXES.as_bytes();
    let mut low = 0;
    let mut high = list.len();
    // `low` is always the beginning of a line.
    while low < high {
        let middle = low + (high - low) / 2;
        let begin = list[..middle]
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1)
            .max(low);
        let length = list[begin..].iter().position(|byte| *byte == b'\n');
        let end = length.map_or(list.len(), |length| begin + length);
        let line = &list[begin..end];
        // Comments stand before all rules.
        let order = if line.starts_with(b"#") {
            Ordering::Less
        } else {
            line.cmp(rule.as_bytes())
        };
        match order {
            Ordering::Equal => return true,
            Ordering::Less => low = end + 1,
            Ordering::Greater => high = begin,
        }
    }
    false
}

/// Returns the first of `known` that `host` looks like: it is equal after characters that look alike,
/// or on another site, where it is one edit away or begins with it. Neighbours on one site often differ
/// in one character.
pub(super) fn looks_like<'k>(
    host: &Host,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<&'k str> {
    let Host::Name(name) = host else { return None };
    let name = name.as_str();
    let own_site = site(host);
    known.into_iter().find(|known| {
        let Ok(known_host @ Host::Name(_)) = Host::parse(known) else {
            return false;
        };
        let known_site = site(&known_host);
        if known_site == own_site {
            return name != *known && skeleton(name) == skeleton(known);
        }
        name.starts_with(known) || is_alike(name, known) || is_alike(&own_site, &known_site)
    })
}

/// Returns true if a person could take one name for the other.
fn is_alike(one: &str, other: &str) -> bool {
    skeleton(one) == skeleton(other) || is_one_edit_away(one.as_bytes(), other.as_bytes())
}

/// Returns `name` with one character in place of all that look alike.
fn skeleton(name: &str) -> String {
    name.replace("rn", "m")
        .replace("vv", "w")
        .chars()
        .map(|c| match c {
            '0' => 'o',
            '1' | 'i' => 'l',
            '5' => 's',
            '_' => '-',
            other => other,
        })
        .collect()
}

/// Returns true if one inserted, removed or replaced byte, or two that change places, turn `one` into
/// `other`.
fn is_one_edit_away(one: &[u8], other: &[u8]) -> bool {
    let before = one
        .iter()
        .zip(other)
        .take_while(|(one, other)| one == other)
        .count();
    let one = &one[before..];
    let other = &other[before..];
    match (one, other) {
        ([], [_]) | ([_], []) => true,
        ([], _) | (_, []) => false,
        ([a, one_rest @ ..], [b, other_rest @ ..]) => {
            let is_swapped = match (one_rest, other_rest) {
                ([c, rest @ ..], [d, other_rest @ ..]) => a == d && b == c && rest == other_rest,
                _ => false,
            };
            one_rest == other_rest || one_rest == other || one == other_rest || is_swapped
        }
    }
}

#[cfg(test)]
mod tests {
    use openshell_policy::network::host::Host;

    use super::{looks_like, site};

    #[test]
    fn a_site_is_the_domain_that_somebody_registered() {
        for (host, expected) in [
            ("example.com", "example.com"),
            ("api.example.com", "example.com"),
            ("a.b.example.co.uk", "example.co.uk"),
            ("co.uk", "co.uk"),
            ("someone.github.io", "someone.github.io"),
            ("x.someone.github.io", "someone.github.io"),
            ("api.github.com.evil.test", "evil.test"),
            ("www.ck", "www.ck"),
            ("a.b.other.ck", "b.other.ck"),
            ("localhost", "localhost"),
            ("8.8.8.8", "8.8.8.8"),
            ("x.xn--p1ai", "x.xn--p1ai"),
        ] {
            assert_eq!(site(&Host::parse(host).unwrap()), expected, "{host}");
        }
    }

    #[test]
    fn every_rule_of_the_list_is_found() {
        let rules = super::SUFFIXES
            .lines()
            .filter(|line| !line.starts_with('#'));
        let mut count = 0;
        for rule in rules {
            assert!(super::is_rule(rule), "{rule}");
            count += 1;
        }
        assert!(count > 10_000);
        for absent in ["", "com.example.nothing", "zzzz", "# Public", "*"] {
            assert!(!super::is_rule(absent), "{absent}");
        }
    }

    #[test]
    fn hosts_that_resemble_one_of_the_policy_are_found() {
        let known = ["api.github.com", "paypal.com", "corner.test"];
        for (host, like) in [
            ("api.github.com", None),
            ("other.github.com", None),
            ("api2.github.com", None),
            ("apl.github.com", Some("api.github.com")),
            ("example.org", None),
            ("api.github.com.evil.test", Some("api.github.com")),
            ("api.githvb.com", Some("api.github.com")),
            ("www.githuub.com", Some("api.github.com")),
            ("gtihub.com", Some("api.github.com")),
            ("paypa1.com", Some("paypal.com")),
            ("comer.test", Some("corner.test")),
            ("paypal.co", Some("paypal.com")),
        ] {
            assert_eq!(
                looks_like(&Host::parse(host).unwrap(), known),
                like,
                "{host}"
            );
        }
    }
}
