//! The marks of a question: what a person should know before an answer.

use std::collections::BTreeSet;

use openshell_policy::network::host::Host;
use openshell_policy::policy::Policy;

use crate::approvals::line::is_reading;
use crate::approvals::site::{looks_like, site};
use crate::approvals::wish::Wish;

/// The names of programs that run scripts.
const INTERPRETERS: &str = include_str!("../../../../data/names/interpreters.txt");

/// A mark.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// The program runs scripts.
    Interpreter,
    /// The line is also for everything that the program starts.
    Children,
    /// The workload can change the program's file.
    WritableProgram,
    /// The method changes something.
    Writes,
    /// There is a body, which nobody sees.
    Body,
    /// The policy has nothing of this site.
    NewSite,
    /// The name has characters beyond ASCII.
    International,
    /// The request is sent in clear text.
    NoTls,
    /// The host resembles this one of the policy.
    LooksLike(String),
    /// The host is an address.
    AddressLiteral,
    /// The name leads inside the network.
    InternalAddress,
    /// A placeholder of a credential stands in the request.
    Credential,
    /// The search has found a secret of another host.
    Secret,
    /// The request switches to another protocol.
    Upgrade,
    /// Bytes follow that nobody judges.
    Opaque,
}

impl Mark {
    /// Returns true if it takes a second key to permit what it stands for.
    pub(super) fn is_dangerous(&self) -> bool {
        match self {
            Self::WritableProgram
            | Self::LooksLike(_)
            | Self::InternalAddress
            | Self::Credential
            | Self::Secret
            | Self::Upgrade
            | Self::Opaque => true,
            Self::Interpreter
            | Self::Children
            | Self::Writes
            | Self::Body
            | Self::NewSite
            | Self::International
            | Self::NoTls
            | Self::AddressLiteral => false,
        }
    }

    /// Returns the word, which is the same in all outputs.
    pub(super) fn word(&self) -> String {
        let word = match self {
            Self::Interpreter => "interpreter",
            Self::Children => "children",
            Self::WritableProgram => "writable_program",
            Self::Writes => "writes",
            Self::Body => "body",
            Self::NewSite => "new_site",
            Self::International => "international",
            Self::NoTls => "no_tls",
            Self::LooksLike(host) => return format!("looks_like:{host}"),
            Self::AddressLiteral => "address_literal",
            Self::InternalAddress => "internal_address",
            Self::Credential => "credential",
            Self::Secret => "secret",
            Self::Upgrade => "upgrade",
            Self::Opaque => "opaque",
        };
        word.to_owned()
    }
}

/// The marks of a question that hold.
#[derive(Debug, Default)]
pub(super) struct Marks(pub(super) BTreeSet<Mark>);

impl Marks {
    /// Returns the marks of `wish` under `policy`; the file of its program `is_writable` for the
    /// workload.
    pub(super) fn of(wish: &Wish, policy: &Policy, is_writable: bool) -> Self {
        let mut marks = Self::default();
        let program = &wish.caller.program;
        marks.program(&program.executable, is_writable);
        marks.add(program.is_modified, Mark::Children);
        marks.host(&wish.target.host, policy);
        marks.add(!wish.addresses.is_empty(), Mark::InternalAddress);
        if let Some(request) = &wish.request {
            let is_read = is_reading(request.message.method.as_str());
            marks.add(!is_read, Mark::Writes);
            marks.add(request.body.is_some(), Mark::Body);
            marks.add(request.is_clear, Mark::NoTls);
            marks.add(!request.credentials.is_empty(), Mark::Credential);
            marks.add(request.has_secret, Mark::Secret);
            marks.add(request.is_upgrade, Mark::Upgrade);
        }
        marks
    }

    /// Adds `mark` if it `holds`.
    pub(super) fn add(&mut self, holds: bool, mark: Mark) {
        if holds {
            self.0.insert(mark);
        }
    }

    /// Adds the marks of the program at `path`, whose file `is_writable` for the workload.
    pub(super) fn program(&mut self, path: &str, is_writable: bool) {
        self.add(is_interpreter(path), Mark::Interpreter);
        self.add(is_writable, Mark::WritableProgram);
    }

    /// Adds the marks of `host` under `policy`.
    pub(super) fn host(&mut self, host: &Host, policy: &Policy) {
        let known = hosts(policy);
        let own_site = site(host);
        let is_of_site =
            |known: &String| Host::parse(known).is_ok_and(|known| site(&known) == own_site);
        self.add(!known.iter().any(is_of_site), Mark::NewSite);
        let text = host.to_string();
        let is_international = text.split('.').any(|label| label.starts_with("xn--"));
        self.add(is_international, Mark::International);
        self.add(matches!(host, Host::Address(_)), Mark::AddressLiteral);
        if let Some(like) = looks_like(host, known.iter().map(String::as_str)) {
            self.add(true, Mark::LooksLike(like.to_owned()));
        }
    }
}

/// Returns the hosts that `policy` names, those with wildcards without them.
fn hosts(policy: &Policy) -> BTreeSet<String> {
    let policies = policy.network().values();
    let endpoints = policies.flat_map(|policy| &policy.endpoints);
    let hosts = endpoints.filter_map(|endpoint| endpoint.host());
    hosts
        .map(|host| {
            let text = host.to_string();
            match text.rsplit_once("*.") {
                Some((_, behind)) => behind.to_owned(),
                None => text,
            }
        })
        .collect()
}

/// Returns true if the program at `path` runs scripts: its name, without a version, is that of an
/// interpreter.
fn is_interpreter(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = name.strip_suffix(".exe").unwrap_or(name);
    let without_version =
        name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'));
    INTERPRETERS
        .lines()
        .any(|known| known == name || known == without_version)
}

#[cfg(test)]
mod tests {
    use super::is_interpreter;

    #[test]
    fn an_interpreter_is_known_by_its_name_with_or_without_a_version() {
        for (path, expected) in [
            ("/bin/sh", true),
            ("/usr/bin/python3.11", true),
            ("/opt/node-22/bin/node", true),
            ("/usr/bin/ruby3.3", true),
            ("/usr/bin/perl5.36.0", true),
            ("/usr/bin/curl", false),
            ("/usr/bin/git", false),
            ("/usr/bin/#", false),
        ] {
            assert_eq!(is_interpreter(path), expected, "{path}");
        }
    }
}
