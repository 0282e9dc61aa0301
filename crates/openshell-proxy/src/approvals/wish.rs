//! What a program wants, as a question shows it and as an answer judges it again.

use std::net::IpAddr;

use openshell_events::reason::ReasonCode;

use crate::approvals::bounds::DeniedForRun;
use crate::decide::connection;
use crate::decide::message::Message;
use crate::decide::own_lines::OwnLines;
use crate::decide::snapshot::Snapshot;
use crate::decide::verdict;
use crate::denial::refusal::Refusal;
use crate::ground::peer::Caller;
use crate::ground::target::Target;
use crate::reach::resolve::guard;

/// What a program wants, and the policy refuses.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The program; it is known whether it is modified.
    pub caller: Caller,
    /// The host and port.
    pub target: Target,
    /// The reason of the refusal.
    pub code: ReasonCode,
    /// The addresses that the refusal is about.
    pub addresses: Vec<IpAddr>,
    /// The request, unless only a connection is wanted.
    pub request: Option<WishedRequest>,
    /// The lines of policy that hold for it alone.
    pub own: OwnLines,
}

/// A request that is wanted.
#[derive(Clone, Debug)]
pub struct WishedRequest {
    /// The parts that rules read.
    pub message: Message,
    /// True if it is sent in clear text.
    pub is_clear: bool,
    /// Its canonical path.
    pub path: String,
    /// Its query, as it may be shown.
    pub query: Option<String>,
    /// Its body, if it has one.
    pub body: Option<WishedBody>,
    /// The message in its body, if that is what is judged.
    pub rpc: Option<WishedMessage>,
    /// The names of the credentials whose placeholders it holds.
    pub credentials: Vec<String>,
    /// True if it asks to switch to another protocol.
    pub is_upgrade: bool,
    /// True if the search has found a secret in it.
    pub has_secret: bool,
}

/// The body of a request that is wanted. Its bytes are not shown.
#[derive(Clone, Debug)]
pub struct WishedBody {
    /// Its media type, if the request names one.
    pub media_type: Option<String>,
    /// The number of its bytes, if the request names it.
    pub bytes: Option<u64>,
}

/// A message of JSON-RPC or MCP that is wanted.
#[derive(Clone, Debug)]
pub struct WishedMessage {
    /// Its method.
    pub method: String,
    /// The key that rules use for what it is about, and its value: a tool, a URI or a name.
    pub about: Option<(&'static str, String)>,
    /// Its arguments or parameters as JSON, as they may be shown.
    pub arguments: Option<String>,
}

impl Wish {
    /// Checks that `snapshot`, together with the lines of the wish, permits it. Blocks.
    ///
    /// # Errors
    /// The policy refuses it, or cannot be evaluated.
    pub(super) fn judge(&self, snapshot: &Snapshot) -> Result<(), Refusal> {
        let permit = connection::judge(snapshot, &self.caller, &self.target, || Ok(()))?;
        if !self.addresses.is_empty() {
            guard::check(&permit, self.addresses.clone())?;
        }
        if let Some(request) = &self.request {
            verdict::judge_read(&permit, &request.message)?;
        }
        Ok(())
    }

    /// Returns what is not asked again if this wish of `program` is denied for the run.
    pub(super) fn denied_for_run(&self, program: &str) -> DeniedForRun {
        let request = self.request.as_ref();
        let rpc = request.and_then(|request| request.rpc.as_ref());
        DeniedForRun {
            program: program.to_owned(),
            target: self.target.to_string(),
            request: request.map(|request| {
                let method = request.message.method.to_string();
                (method, request.path.clone())
            }),
            message: rpc.map(|rpc| {
                let about = rpc.about.as_ref();
                (rpc.method.clone(), about.map(|(_, value)| value.clone()))
            }),
        }
    }

    /// Returns the method of its request.
    pub(super) fn method(&self) -> Option<&str> {
        let request = self.request.as_ref();
        request.map(|request| request.message.method.as_str())
    }
}
