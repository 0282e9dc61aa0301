//! Comparison of two policies: what the second permits that the first does not, and the reverse.
//!
//! A permission is reported unless it is proved to be covered. So a pattern that is only written
//! differently may be reported although it means the same, but nothing new is ever left out.

mod cover;
mod files;
mod messages;
mod network;

use crate::network::PolicyName;
use crate::policy::Policy;

/// A difference between two policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// True if the second policy permits more because of this difference.
    pub is_more: bool,
    /// The permission in words, such as `/usr/bin/curl may reach web.test:443`.
    pub words: String,
}

/// Returns how `after` differs from `before`: first what it permits in addition, then what it no
/// longer permits.
#[must_use]
pub fn differences(before: &Policy, after: &Policy) -> Vec<Difference> {
    let more = permissions(after, before)
        .into_iter()
        .map(|words| Difference {
            is_more: true,
            words,
        });
    let less = permissions(before, after)
        .into_iter()
        .map(|words| Difference {
            is_more: false,
            words,
        });
    let user = (before.run_as() != after.run_as()).then(|| Difference {
        is_more: true,
        words: format!(
            "the command runs as {}, and not as {}",
            after.run_as(),
            before.run_as()
        ),
    });
    user.into_iter().chain(more).chain(less).collect()
}

/// What one network policy changes beside the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addition {
    /// What it permits in addition, in words.
    pub permits: Vec<String>,
    /// What is no longer permitted because of it, in words.
    pub takes_away: Vec<String>,
}

/// Returns what the network policy `name` of `after` changes, which is all in which `after` differs
/// from `before`.
#[must_use]
pub fn addition(before: &Policy, after: &Policy, name: &PolicyName) -> Addition {
    let (permits, takes_away) = network::added(before.network(), after.network(), name);
    Addition {
        permits,
        takes_away,
    }
}

/// Returns what `one` permits and `other` does not, in words.
fn permissions(one: &Policy, other: &Policy) -> Vec<String> {
    let debugging = (one.permits_debugging() && !other.permits_debugging())
        .then_some("commands may trace each other");
    let mut words: Vec<_> = debugging.map(str::to_owned).into_iter().collect();
    words.extend(files::permissions(one.filesystem(), other.filesystem()));
    words.extend(network::permissions(one.network(), other.network()));
    words
}

#[cfg(test)]
mod tests;
