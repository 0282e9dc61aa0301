//! The flags that would permit what was refused, for a policy that is in no file.

use std::net::IpAddr;

use openshell_events::text;
use openshell_policy::network::preset::Access;
use openshell_policy::policy::PolicyForm;

use crate::denial::judged::{At, RequestFault};
use crate::denial::refusal::{AddressFault, Facts, Refusal};
use crate::ground::target::Target;

/// The most addresses that flags name; a range is shorter for more.
const ADDRESSES: usize = 8;

impl Refusal {
    /// Returns the same refusal by a policy of this `form`.
    #[must_use]
    pub fn under(mut self, form: PolicyForm) -> Self {
        self.form = form;
        self
    }

    /// Returns the flags that would permit `target`, in words for the workload, which is told no
    /// addresses; `None` if the policy is not made of flags, or if none would help.
    pub(super) fn flags(&self, target: &Target) -> Option<String> {
        let allow = allow(self.form, target)?;
        if let Facts::Nearest(_) = self.facts() {
            return Some(format!("add {allow}"));
        }
        if let Facts::Addresses(_, AddressFault::Unlisted(_)) = self.facts() {
            return Some(format!("add {allow}@CIDR; the address is in the log"));
        }
        // A flag that permits git to fetch would permit it to push, and an endpoint with a path
        // decides whatever others say.
        if let Facts::Request(request) = self.facts()
            && request.message.is_none()
            && request.fault == RequestFault::NoRule(At::Any)
            && !request.is_git_fetch()
        {
            let access = narrowest(&request.method).as_str();
            return Some(format!("add {allow}={access}"));
        }
        None
    }

    /// Returns flags like [`Self::flags`] that name the addresses; `None` if there are none, or more
    /// than [`ADDRESSES`].
    pub(super) fn flags_with_addresses(&self, target: &Target) -> Option<String> {
        let Facts::Addresses(_, AddressFault::Unlisted(addresses)) = self.facts() else {
            return None;
        };
        let flags = with_addresses(&allow(self.form, target)?, addresses)?;
        Some(format!("add {flags}"))
    }
}

/// Returns the flag for `target` in a policy of this `form`, without what may follow it; `None` if the
/// policy is not made of flags, or if no flag can name the target.
pub(crate) fn allow(form: PolicyForm, target: &Target) -> Option<String> {
    let host = target.host.to_string();
    // A host that begins with a hyphen would be another flag.
    let is_expressible = target.port != 0 && !host.starts_with('-');
    if form != PolicyForm::Flags || !is_expressible {
        return None;
    }
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    let place = match target.port {
        443 => host,
        port => format!("{host}:{port}"),
    };
    Some(format!("--allow {}", text::shell_word(&place)))
}

/// Returns the flag `allow` for each of `addresses`; `None` if there are none, or more than
/// [`ADDRESSES`].
pub(crate) fn with_addresses(allow: &str, addresses: &[IpAddr]) -> Option<String> {
    if addresses.is_empty() || addresses.len() > ADDRESSES {
        return None;
    }
    let flags = addresses.iter().map(|address| format!("{allow}@{address}"));
    Some(flags.collect::<Vec<_>>().join(" "))
}

/// Returns the narrowest access that includes `method`.
pub(crate) fn narrowest(method: &str) -> Access {
    let narrow = [Access::ReadOnly, Access::ReadWrite];
    let includes = |access: &Access| access.methods().contains(&method);
    narrow.into_iter().find(includes).unwrap_or(Access::Full)
}

#[cfg(test)]
mod tests {
    use openshell_events::reason::ReasonCode;
    use openshell_policy::policy::PolicyForm;

    use super::ADDRESSES;
    use crate::denial::judged::{At, JudgedRequest, RequestFault};
    use crate::denial::refusal::{AddressFault, Refusal};
    use crate::testing;

    /// Returns the fix for the workload and that for the operator.
    fn fixes(refusal: Refusal, target: &str) -> (Option<String>, Option<String>) {
        let refusal = refusal.under(PolicyForm::Flags);
        let target = testing::target(target);
        (
            refusal.fix(&target, None),
            refusal.fix_with_addresses(&target, None),
        )
    }

    #[test]
    fn the_fix_of_a_policy_of_flags_is_a_flag() {
        let unknown =
            || Refusal::not_in_policy(ReasonCode::EndpointNotInPolicy, String::new(), None);
        for (target, flag) in [
            ("web.test:443", "add --allow web.test"),
            ("web.test:80", "add --allow web.test:80"),
            ("[2001:db8::1]:443", "add --allow '[2001:db8::1]'"),
        ] {
            let flag = Some(flag.to_owned());
            assert_eq!(fixes(unknown(), target), (flag.clone(), flag));
        }
        // It would be another flag.
        assert_eq!(fixes(unknown(), "-web.test:443"), (None, None));
        let document = unknown().fix(&testing::target("web.test:443"), Some(&testing::caller()));
        assert!(document.unwrap().starts_with("network_policies: add"));
    }

    #[test]
    fn only_the_operator_is_told_addresses() {
        let addresses = ["10.0.0.5", "fd00::5"].map(|address| address.parse().unwrap());
        let fault = AddressFault::Unlisted(addresses.into());
        let refusal = Refusal::address(ReasonCode::InternalAddress, String::new(), fault, None);
        let (workload, operator) = fixes(refusal, "db.test:5432");
        let workload = workload.unwrap();
        assert_eq!(
            workload,
            "add --allow db.test:5432@CIDR; the address is in the log"
        );
        assert_eq!(
            operator.unwrap(),
            "add --allow db.test:5432@10.0.0.5 --allow db.test:5432@fd00::5"
        );
        let many = AddressFault::Unlisted([addresses[0]].repeat(ADDRESSES + 1));
        let refusal = Refusal::address(ReasonCode::InternalAddress, String::new(), many, None);
        let (for_workload, for_operator) = fixes(refusal, "db.test:5432");
        assert_eq!(for_workload, for_operator);
    }

    #[test]
    fn a_request_gets_the_narrowest_access_unless_another_endpoint_decides() {
        let refused = |method: &str, at: At| {
            let request = JudgedRequest {
                policy: None,
                method: method.to_owned(),
                path: "/a".to_owned(),
                fault: RequestFault::NoRule(at),
                message: None,
            };
            fixes(Refusal::request(String::new(), request), "web.test:443").0
        };
        for (method, flag) in [
            ("GET", "add --allow web.test=read-only"),
            ("POST", "add --allow web.test=read-write"),
            ("DELETE", "add --allow web.test=full"),
        ] {
            assert_eq!(refused(method, At::Any).as_deref(), Some(flag));
        }
        for at in [At::Path("/v1/**".to_owned()), At::Nowhere] {
            assert!(!refused("POST", at).unwrap().contains("--allow"));
        }
    }
}
