//! A gateway's credentials, and their placeholders.

use std::collections::VecDeque;
use std::time::{Duration, UNIX_EPOCH};

use openshell_events::text::{self, printable};
use openshell_gateway::convert::environment::{
    ProviderCredential, ProviderEnvironment, StaticBinding,
};
use openshell_gateway::convert::policy::ProviderBinding;
use openshell_policy::credential::{
    Binding, BoundHost, CredentialName, MARKER, MAX_CREDENTIALS, PathPrefix, check_secret,
};
use openshell_policy::secret::Secret;
use openshell_policy::variable;
use openshell_supervisor::command::environment;

use crate::secrets::credential_file::{CredentialReport, CredentialSet, Held};

/// How many revisions before the one in force still have valid placeholders, for today's values.
const REVISIONS: usize = 8;

/// The names in placeholders that the workload may still have, and the endpoints that providers are
/// bound to.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    /// Revisions whose placeholders were given out, the newest last.
    revisions: VecDeque<u64>,
    /// Handles, each with the name of its credential, the newest last.
    handles: VecDeque<(String, String)>,
    bindings: Vec<ProviderBinding>,
}

impl Placeholders {
    /// Takes over the endpoints that name providers. Returns true if they differ from those before.
    pub(super) fn bind(&mut self, bindings: &[ProviderBinding]) -> bool {
        let is_other = self.bindings != bindings;
        self.bindings = bindings.to_vec();
        is_other
    }

    /// Returns an empty set of credentials.
    pub(super) fn none() -> CredentialSet {
        let report = CredentialReport {
            warnings: Vec::new(),
            summary: "the gateway: 0 credentials".to_owned(),
        };
        CredentialSet {
            held: Vec::new(),
            variables: Vec::new(),
            report,
        }
    }

    /// Returns the credentials of `given`, with the variables of commands.
    pub(super) fn of(&mut self, given: ProviderEnvironment) -> CredentialSet {
        let mut warnings = Vec::new();
        let mut variables = Vec::new();
        let mut entries = Vec::new();
        let mut left_out = |name: &str, why: &str| {
            warnings
                .push(printable(&format!("the gateway: {name} is left out: {why}")).into_owned());
        };
        for name in given.dynamic {
            left_out(
                &name,
                "credentials that are made on demand are not in this build",
            );
        }
        for (name, value) in given.variables {
            if is_refused(&name) || value.contains('\0') {
                left_out(&name, "a gateway may not set it")
            } else {
                variables.push((name, value))
            }
        }
        self.note_revision(given.revision);
        for ProviderCredential {
            name,
            secret,
            expires_at_ms,
            binding,
        } in given.credentials
        {
            let parsed = match usable(&name, &secret, entries.len()) {
                Ok(parsed) => parsed,
                Err(why) => {
                    left_out(&name, &why);
                    continue;
                }
            };
            let placeholder = self.note_handle(&name, binding.as_ref());
            variables.push((name.clone(), placeholder));
            let hosts = binding.as_ref().map(|binding| self.hosts(binding));
            entries.push(Held {
                name: parsed,
                secret,
                binding: Binding { hosts, path: None },
                expires: expires_at_ms.map(|expires| UNIX_EPOCH + Duration::from_millis(expires)),
                aliases: self.aliases(&name),
            });
        }
        let kept = (REVISIONS + 1) * entries.len().max(1);
        self.handles
            .drain(..self.handles.len().saturating_sub(kept));
        let counted = text::counted(entries.len() as u64, "credential", "credentials");
        let summary = format!("the gateway: {counted}");
        CredentialSet {
            held: entries,
            variables,
            report: CredentialReport { warnings, summary },
        }
    }

    /// Remembers a `revision` of the credentials.
    fn note_revision(&mut self, revision: u64) {
        if revision != 0 && self.revisions.back() != Some(&revision) {
            self.revisions.push_back(revision);
            self.revisions
                .drain(..self.revisions.len().saturating_sub(REVISIONS + 1));
        }
    }

    /// Remembers the handle of the credential `name`, if its `binding` has one. Returns the
    /// placeholder.
    fn note_handle(&mut self, name: &str, binding: Option<&StaticBinding>) -> String {
        let handle = binding
            .map(|binding| binding.handle.as_str())
            .filter(|handle| is_handle(handle));
        if let Some(handle) = handle {
            let held = (handle.to_owned(), name.to_owned());
            self.handles.retain(|known| *known != held);
            self.handles.push_back(held);
        }
        self.placeholder(name, handle)
    }

    /// Returns the placeholder of the credential `name`.
    fn placeholder(&self, name: &str, handle: Option<&str>) -> String {
        match (handle, self.revisions.back()) {
            (Some(handle), _) => format!("{MARKER}{handle}_{name}"),
            (None, Some(revision)) => format!("{MARKER}v{revision}_{name}"),
            (None, None) => format!("{MARKER}{name}"),
        }
    }

    /// Returns the other names of the credential `name` in placeholders that were given out.
    fn aliases(&self, name: &str) -> Vec<String> {
        let revisions = self
            .revisions
            .iter()
            .map(|revision| format!("v{revision}_{name}"));
        let handles = self
            .handles
            .iter()
            .filter(|(_, of)| of == name)
            .map(|(handle, _)| format!("{handle}_{name}"));
        revisions.chain(handles).collect()
    }

    /// Returns where a credential may go. If it has no endpoints of its own, these are the
    /// endpoints of the policy that name its provider.
    fn hosts(&self, binding: &StaticBinding) -> Vec<BoundHost> {
        if !binding.endpoints.is_empty() {
            return binding
                .endpoints
                .iter()
                .filter_map(|(host, port, path)| bound(host, *port, path))
                .collect();
        }
        let provider = |bound: &&ProviderBinding| {
            !bound.provider.is_empty() && bound.provider == binding.identity
        };
        let endpoints = self.bindings.iter().filter(provider);
        endpoints
            .flat_map(|one| {
                one.ports
                    .iter()
                    .filter_map(|port| bound(&one.host, *port, ""))
            })
            .collect()
    }
}

/// Returns the name of a credential beside as many others; or why it is left out.
fn usable(name: &str, secret: &Secret, others: usize) -> Result<CredentialName, String> {
    let parsed = CredentialName::parse(name).map_err(|_| "it is not a valid variable name")?;
    if is_refused(name) {
        return Err("a gateway may not set it".to_owned());
    }
    check_secret(secret.expose()).map_err(|violation| violation.to_string())?;
    if others == MAX_CREDENTIALS {
        return Err(format!("at most {MAX_CREDENTIALS} credentials are allowed"));
    }
    Ok(parsed)
}

/// Returns the bound host; `None` if the parts are invalid, so that the secret does not go there.
fn bound(host: &str, port: u32, path: &str) -> Option<BoundHost> {
    let host = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    // A gateway names no scheme. Servers at ports other than that of HTTPS may speak without TLS.
    let text = match port {
        0 => host,
        443 => format!("{host}:443"),
        port => format!("http://{host}:{port}"),
    };
    let bound = BoundHost::parse(&text).ok()?;
    match path {
        "" | "/" => Some(bound),
        path => Some(bound.with_path(PathPrefix::parse(path).ok()?)),
    }
}

/// Returns true if a gateway may not set the variable `name`.
fn is_refused(name: &str) -> bool {
    environment::is_reserved(name) || variable::is_refused(name)
}

/// Returns true if `handle` has the form of a handle: `s` and 64 hex digits.
fn is_handle(handle: &str) -> bool {
    handle.strip_prefix('s').is_some_and(|digits| {
        digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}
