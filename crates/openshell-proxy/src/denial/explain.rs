//! Explains refusals: the detail for the workload, and the line of policy that would permit what
//! was refused.

use openshell_events::reason::ReasonCode;
use openshell_policy::address::{CONTROL_PLANE_PORTS, never_reachable};
use openshell_policy::network::rpc::{Revision, is_strict_name};
use openshell_policy::network::rule::Glob;
use openshell_policy::proposal::is_one_program;

use crate::denial::judged::{About, At, GIT_FETCH, JudgedMessage, JudgedRequest, RequestFault};
use crate::denial::refusal::{
    AddressFault, Facts, Matches, Nearest, ProgramFault, Refusal, Subject,
};
use crate::ground::peer::Caller;
use crate::ground::target::Target;

impl Refusal {
    /// Returns the detail in words, about `subject`.
    #[must_use]
    pub fn detail(&self, subject: &Subject) -> String {
        let mut detail = String::new();
        let mut rest = self.template(subject.is_inside);
        while let Some((text, after)) = rest.split_once('{') {
            let (field, after) = after.split_once('}').unwrap_or((after, ""));
            detail.push_str(text);
            detail.push_str(&self.field(field, subject));
            rest = after;
        }
        detail + rest
    }

    /// Returns the value of a template's field.
    fn field(&self, name: &str, subject: &Subject) -> String {
        match name {
            "request" => subject.request.clone(),
            "method" => subject
                .request
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned(),
            "target" => subject
                .target
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            "named" => match self.facts() {
                Facts::Authority(named) => named.clone(),
                Facts::None
                | Facts::Nearest(_)
                | Facts::Policy(_)
                | Facts::Addresses(..)
                | Facts::Request(_)
                | Facts::NoCredential(_)
                | Facts::CredentialHost(_)
                | Facts::CredentialPath(_)
                | Facts::Leak(_)
                | Facts::Placeholder
                | Facts::Program(..)
                | Facts::Model(_) => String::new(),
            },
            _ => self.reason().to_owned(),
        }
    }

    /// Returns the fix like [`Self::fix`], with addresses, which the workload is not told.
    #[must_use]
    pub fn fix_with_addresses(&self, target: &Target, caller: Option<&Caller>) -> Option<String> {
        let flags = self.flags_with_addresses(target);
        flags.or_else(|| self.fix(target, caller))
    }

    /// Returns the line of policy, or of configuration, that would permit `target` to `caller`. For
    /// a policy of flags it is a flag where one can permit it.
    #[must_use]
    pub fn fix(&self, target: &Target, caller: Option<&Caller>) -> Option<String> {
        if self.no_fix(target).is_none()
            && let Some(flags) = self.flags(target)
        {
            return Some(flags);
        }
        match self.facts() {
            _ if self.code() == ReasonCode::UpstreamWantsCertificate => Some(format!(
                "network_policies: if the program has a certificate, set `tls: skip`, without \
                 `protocol`, on the endpoints of {target}; then the program does TLS itself"
            )),
            Facts::Nearest(_) if self.no_fix(target).is_some() => None,
            Facts::Nearest(nearest) => {
                // A path with a wildcard would also permit other programs.
                let caller = caller.filter(|caller| is_one_program(&caller.program.executable))?;
                Some(policy_line(nearest.as_ref(), target, caller))
            }
            Facts::Addresses(policy, AddressFault::Unlisted(_)) => {
                let endpoints = endpoints(policy.as_deref());
                Some(format!(
                    "{endpoints}: add `allowed_ips` to {target}; the address is in the log"
                ))
            }
            Facts::Request(request) => Some(rule_line(request, target)),
            Facts::NoCredential(name) => Some(format!(
                "credentials: add {name} (the file of --credentials)"
            )),
            Facts::CredentialHost(name) => {
                let host = flow_text(&target.to_string());
                Some(format!(
                    "credentials.{name}.hosts: add {host} (the file of --credentials)"
                ))
            }
            Facts::CredentialPath(name) => Some(format!(
                "credentials.{name}.path: shorten or remove it (the file of --credentials)"
            )),
            Facts::Leak(policy) => {
                let endpoints = endpoints(policy.as_deref());
                Some(format!(
                    "{endpoints}: if the secret may go there, add `leaks: allow` to each of \
                     {target} (or use --leaks report)"
                ))
            }
            Facts::Placeholder => Some(
                "do not send `openshell:resolve:env:…` there; the proxy replaces it only in the \
                 path and in the value of a header or of a query parameter"
                    .to_owned(),
            ),
            Facts::Program(path, ProgramFault::Modified) => Some(format!(
                "network_policies: an entry `- {{path: {}}}` without `exact: true` would permit it",
                flow_text(path)
            )),
            Facts::Program(path, ProgramFault::Changed) => Some(format!(
                "network_policies: if this program may change, list it as `- {{path: {}, pinned: \
                 false}}`",
                flow_text(path)
            )),
            Facts::Addresses(_, AddressFault::NeverReachable | AddressFault::Other)
            | Facts::None
            | Facts::Policy(_)
            | Facts::Authority(_)
            | Facts::Model(_) => None,
        }
    }

    /// Returns the reason why no line of policy can permit `target`; `None` if one can.
    #[must_use]
    pub fn no_fix(&self, target: &Target) -> Option<String> {
        let is_never_reachable = match self.facts() {
            // The port is checked first, even for a host without an address.
            Facts::Addresses(_, AddressFault::Unlisted(_) | AddressFault::Other) => {
                return is_control_plane(target).then(|| never(target, CONTROL_PLANE));
            }
            Facts::Addresses(_, AddressFault::NeverReachable) => true,
            Facts::Nearest(_) => false,
            Facts::None
            | Facts::Policy(_)
            | Facts::Request(_)
            | Facts::Authority(_)
            | Facts::NoCredential(_)
            | Facts::CredentialHost(_)
            | Facts::CredentialPath(_)
            | Facts::Leak(_)
            | Facts::Placeholder
            | Facts::Program(..)
            | Facts::Model(_) => return None,
        };
        let host = target.host.to_string();
        let is_own = || {
            rustix::system::uname()
                .nodename()
                .to_bytes()
                .eq_ignore_ascii_case(host.as_bytes())
        };
        let why = match never_reachable(&host) {
            _ if is_control_plane(target) => CONTROL_PLANE,
            Some(why) => why,
            None if is_own() => "it is the host itself",
            None if is_never_reachable => "its address is never reachable",
            None => return None,
        };
        Some(never(target, why))
    }
}

const CONTROL_PLANE: &str = "a control plane may listen at this port";

fn is_control_plane(target: &Target) -> bool {
    CONTROL_PLANE_PORTS.contains(&target.port)
}

fn never(target: &Target, why: &str) -> String {
    format!("no policy permits {target}: {why}")
}

/// Returns the YAML path of the endpoints of `policy`.
fn endpoints(policy: Option<&str>) -> String {
    policy.map_or_else(
        || "endpoints".to_owned(),
        |key| format!("network_policies.{key}.endpoints"),
    )
}

fn policy_line(nearest: Option<&Nearest>, target: &Target, caller: &Caller) -> String {
    let binary = flow_text(&caller.program.executable);
    let endpoint = format!(
        "{{host: {}, port: {}}}",
        flow_text(&target.host.to_string()),
        target.port
    );
    match nearest {
        Some(Nearest {
            name,
            matches: Matches::Endpoint,
        }) => {
            format!("network_policies.{name}.binaries: add `- {{path: {binary}}}`")
        }
        Some(Nearest {
            name,
            matches: Matches::HostAndBinary | Matches::Binary,
        }) => {
            format!("network_policies.{name}.endpoints: add `- {endpoint}`")
        }
        Some(Nearest {
            matches: Matches::Host,
            ..
        })
        | None => {
            format!(
                "network_policies: add `NAME: {{endpoints: [{endpoint}], binaries: [{{path: \
                 {binary}}}]}}`"
            )
        }
    }
}

fn rule_line(request: &JudgedRequest, target: &Target) -> String {
    let JudgedRequest {
        policy,
        method,
        path,
        fault,
        message,
    } = request;
    let endpoints = endpoints(policy.as_deref());
    if let Some(message) = message
        && let Some(line) = message_line(message, fault, &endpoints, target)
    {
        return line;
    }
    let literal_method = flow_text(method);
    let literal_path = flow_text(&Glob::literal(path));
    match fault {
        RequestFault::EncodedSlash => {
            format!(
                "{endpoints}: add `allow_encoded_slash: true` to each of {target} that has rules"
            )
        }
        RequestFault::Upgrade(protocol) => {
            let protocol = protocol.as_str();
            format!(
                "{endpoints}: add `upgrades: [{protocol}]` to each of {target} that has rules; \
                 bytes follow that nobody judges"
            )
        }
        RequestFault::Ambiguous(Some(other)) => format!(
            "{endpoints}: if the endpoint of {target} with `path: {}` is meant, ask for that path, or \
             write a glob there that matches {literal_path} too",
            flow_text(other)
        ),
        RequestFault::Ambiguous(None) => format!(
            "{endpoints}: a `path` of {target} matches {literal_path} only as it is written, and not \
             decoded; `**` in it matches both"
        ),
        RequestFault::Version { requested, .. } => {
            let requested = serde_json::Value::from(requested.as_str());
            format!("{endpoints}: add {requested} to `mcp: {{versions: […]}}` of {target}")
        }
        RequestFault::DenyRule => {
            format!(
                "{endpoints}: `deny_rules` of {target} match {literal_method} {literal_path}, and \
                 win over any rule"
            )
        }
        RequestFault::NoRule(at @ (At::Any | At::Path(_))) if request.is_git_fetch() => {
            format!(
                "{endpoints}: git fetches by POST; add to the `rules` of {target}{at} `- allow: {{method: \
             POST, path: \"/**{GIT_FETCH}\"}}`, beside `- allow: {{method: GET, path: \"**\"}}` in \
             place of `access: read-only`",
                at = with_path(at)
            )
        }
        RequestFault::NoRule(At::Nowhere) => format!(
            "{endpoints}: ask for the `path` of one of them; or, if messages need no judgement there, \
             add `- {{host: {}, port: {}, path: {literal_path}, protocol: rest, enforcement: enforce, rules: [{{allow: {{method: {literal_method}, path: \
             {literal_path}}}}}]}}`, with the `allowed_ips` of the others, if they have any",
            flow_text(&target.host.to_string()),
            target.port
        ),
        RequestFault::NoRule(at) => format!(
            "{endpoints}: add to the `rules` of {target}{} `- allow: {{method: {literal_method}, path: \
             {literal_path}}}`; if it has `access`, replace that by `rules` that also have what it \
             permitted, such as `- allow: {{method: GET, path: \"**\"}}`",
            with_path(at)
        ),
    }
}

/// Returns the line that would permit a message; `None` if it is that of the request.
fn message_line(
    message: &JudgedMessage,
    fault: &RequestFault,
    endpoints: &str,
    target: &Target,
) -> Option<String> {
    let method = message.method.as_deref().map(flow_text);
    let about = message.about.as_ref();
    let rule = about.map(|(about, value)| {
        let key = about.key();
        format!("{key}: {}", flow_text(&Glob::literal(value)))
    });
    let method = method.map(|method| format!("method: {method}"));
    let keys: Vec<_> = method.into_iter().chain(rule).collect();
    let keys = keys.join(", ");
    match (fault, about) {
        (RequestFault::NoRule(_), _) if message.is_response => Some(
            "the server has not asked, or has its answer; no line of policy would permit another"
                .to_owned(),
        ),
        (RequestFault::NoRule(_), None) if keys.is_empty() => {
            let protocol = message.protocol.as_str();
            Some(format!(
                "no rule of {target} permits it; `protocol: {protocol}` has POST, and for MCP the \
                 stream by GET and the end of a session by DELETE"
            ))
        }
        (RequestFault::NoRule(_), Some((About::OtherForm, _))) => Some(
            "rules compare URIs in one form: no dot segments, no needless escapes, and scheme and \
             host in lower case; ask for that form"
                .to_owned(),
        ),
        (RequestFault::NoRule(_), Some((About::Tool, tool))) if !is_strict_name(tool) => {
            Some(format!(
                "{endpoints}: set `mcp: {{strict_tool_names: false}}` at {target}, and list the tool"
            ))
        }
        (RequestFault::NoRule(at), _) if message.is_limited => Some(format!(
            "{endpoints}: the rules of {target}{} for this tool have conditions on `arguments`; if the call \
             should pass, widen one of them, because a rule without would permit every argument",
            with_path(at)
        )),
        (RequestFault::NoRule(at), _) => {
            let at = with_path(at);
            Some(format!(
                "{endpoints}: add to the `rules` of {target}{at} `- allow: {{{keys}}}`"
            ))
        }
        (RequestFault::DenyRule, _) => Some(format!(
            "{endpoints}: `deny_rules` of {target} match {{{keys}}}, and win over any rule"
        )),
        (RequestFault::Version { requested, .. }, _) if Revision::parse(requested).is_err() => {
            Some(
                "this build does not know that revision; let the server negotiate a known one"
                    .to_owned(),
            )
        }
        (
            RequestFault::Ambiguous(_)
            | RequestFault::EncodedSlash
            | RequestFault::Version { .. }
            | RequestFault::Upgrade(_),
            _,
        ) => None,
    }
}

/// Returns the words that tell the endpoints at `at` from the others of a target.
fn with_path(at: &At) -> String {
    match at {
        At::Any | At::Nowhere => String::new(),
        At::Path(path) => format!(" with `path: {}`", flow_text(path)),
    }
}

/// Quotes a text for YAML flow style, if it needs quotes.
fn flow_text(text: &str) -> String {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-' | b'+');
    if text.bytes().all(plain) {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use openshell_events::denial::UnmatchedRequest;
    use openshell_events::reason::ReasonCode;
    use openshell_policy::network::endpoint::UpgradeProtocol;
    use openshell_policy::network::host::Host;

    use crate::denial::judged::{At, JudgedRequest, RequestFault};
    use crate::denial::refusal::{Refusal, Subject};
    use crate::ground::target::Target;

    fn subject(is_inside: bool) -> Subject {
        let target = Target {
            host: Host::parse("web.test").unwrap(),
            port: 443,
        };
        Subject {
            request: "GET /a".to_owned(),
            target: Some(target),
            caller: None,
            is_inside,
        }
    }

    #[test]
    fn facts_are_put_into_a_detail_once_whatever_they_hold() {
        let refusal = Refusal::authority_mismatch("{target}{".to_owned());
        let expected = "the request is for {target}{, and its connection is to web.test:443";
        assert_eq!(refusal.detail(&subject(true)), expected);
        let refusal = Refusal::upstream_tls_invalid("{".to_owned());
        assert_eq!(
            refusal.detail(&subject(true)),
            "connection to web.test:443 failed: {"
        );
    }

    #[test]
    fn a_refusal_says_what_its_code_does_unless_it_was_made_with_a_text_of_its_own() {
        let [head, model] = [
            Refusal::head_too_large(),
            Refusal::inference_request_too_large(7),
        ];
        assert_eq!(
            [head.code(), model.code()],
            [ReasonCode::RequestTooLarge; 2]
        );
        assert_eq!([head.status(), model.status()], [431, 413]);
        assert_eq!(
            head.detail(&subject(true)),
            "the head of a request may have at most 64 KiB and 256 lines"
        );
        assert_eq!(
            model.detail(&subject(true)),
            "a request for a model may have at most 7 bytes"
        );
    }

    #[test]
    fn requests_are_counted_for_a_proposal_unless_a_rule_denies_them() {
        let of = |fault| {
            let request = JudgedRequest {
                policy: None,
                method: "GET".to_owned(),
                path: "/a".to_owned(),
                fault,
                message: None,
            };
            Refusal::request("the reason".to_owned(), request)
        };
        let asked = Some(UnmatchedRequest {
            endpoint_path: None,
            protocol: "rest",
            method: "GET".to_owned(),
            asked: Some(("path", "/a".to_owned())),
        });
        let cases = [
            (RequestFault::NoRule(At::Any), asked.clone()),
            (RequestFault::EncodedSlash, asked),
            (
                RequestFault::Upgrade(UpgradeProtocol::parse("tcp").unwrap()),
                None,
            ),
            (RequestFault::DenyRule, None),
        ];
        for (fault, allowable) in cases {
            assert!(of(fault.clone()).is_counted(), "{fault:?}");
            assert_eq!(
                of(fault.clone()).allowable_request(),
                allowable,
                "{fault:?}"
            );
        }
        assert!(!Refusal::bad_request("no rule would help").is_counted());
        assert_eq!(
            of(RequestFault::NoRule(At::Any)).detail(&subject(true)),
            "the reason"
        );
        assert_eq!(
            of(RequestFault::NoRule(At::Any)).detail(&subject(false)),
            "GET /a denied by L7 policy"
        );
    }
}
