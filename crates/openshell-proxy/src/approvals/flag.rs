//! The flags of a later run that permit what a line permits, for a policy that is made of flags.

use openshell_policy::network::endpoint::Endpoint;
use openshell_policy::policy::PolicyForm;

use crate::approvals::wish::Wish;
use crate::denial::flags;
use crate::denial::judged::is_git_fetch;

/// The method of requests that read.
const READING: &str = "GET";

/// Returns the flags that permit `wish` as the line with `endpoint` does, beside a policy of this `form`;
/// `None` if there are none. They are for every program.
pub(super) fn flags(wish: &Wish, endpoint: &Endpoint, form: PolicyForm) -> Option<String> {
    let allow = flags::allow(form, &wish.target)?;
    if !wish.addresses.is_empty() {
        return flags::with_addresses(&allow, &wish.addresses);
    }
    let request = wish.request.as_ref();
    let is_fetch =
        request.is_some_and(|request| is_git_fetch(request.message.method.as_str(), &request.path));
    let is_of_requests = endpoint.l7().is_some_and(|l7| l7.rpc.is_none());
    // An endpoint with a path decides whatever a flag says, and a flag that permits git to fetch permits it
    // to push.
    if !is_of_requests || endpoint.path().is_some() || is_fetch {
        return None;
    }
    let access = flags::narrowest(wish.method().unwrap_or(READING));
    Some(format!("{allow}={}", access.as_str()))
}
