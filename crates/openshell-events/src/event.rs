//! Events for operators and auditors: decisions on connections and requests, findings, and the
//! sandbox's own state.

use core::time::Duration;
use std::fmt;
use std::net::SocketAddr;

use crate::denial::Denial;
use crate::reason::ReasonCode;
use crate::words::{
    Action, Activity, ApprovalActivity, Confidence, ConfigState, Decision, Door, EndedBy, Engine,
    FileAccess, FindingActivity, LifecycleActivity, ProcessActivity, Severity, SshActivity,
    SshDoor,
};

/// A receiver of events. The proxy calls it while it serves a connection, so it must not block.
pub trait Audit: fmt::Debug + Send + Sync {
    /// Takes one event.
    fn event(&self, event: &Event<'_>);
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub enum Event<'e> {
    /// A connection was decided on.
    Connection(ConnectionDecided<'e>),
    /// A request was decided on.
    Request(RequestDecided<'e>),
    /// A permitted connection has ended.
    Closed(ConnectionClosed<'e>),
    /// The firewall rejected a packet that was not sent through the proxy.
    Bypass(BypassAttempt<'e>),
    /// A name was looked up.
    Name(NameLookedUp<'e>),
    /// A client outside connected to a published port.
    Published(PublishedConnection<'e>),
    /// An access to a file was refused.
    File(FileRefused<'e>),
    /// A sign of misuse was found.
    Finding(Finding<'e>),
    /// The state of the sandbox changed.
    Configuration(Configuration<'e>),
    /// The sandbox started or ended.
    Lifecycle(Lifecycle<'e>),
    /// A command started or ended.
    Process(Process<'e>),
    /// A step of an SSH connection.
    Ssh(Ssh<'e>),
    /// A question to a person was asked or answered.
    Approval(Approval<'e>),
}

/// The program at one end, and the target at the other.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'e> {
    /// The program, if it is known.
    pub binary: Option<&'e str>,
    /// Its process id inside the sandbox, if it is known.
    pub pid: Option<i32>,
    /// The target's host, if it is known.
    pub host: Option<&'e str>,
    /// Its port, if it is known and the protocol has ports.
    pub port: Option<u16>,
}

/// A decision, and what it is based on.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'e> {
    /// How urgent the event is.
    pub severity: Severity,
    /// The effect.
    pub action: Action,
    /// The policy that the decision follows from, if one is known.
    pub policy: Option<&'e str>,
    /// The part of the sandbox that decided; `None` if no rule was applied to the request.
    pub engine: Option<Engine>,
    /// The decision.
    pub decision: Decision,
    /// The cause in a sentence; empty if there is nothing to add.
    pub reason: &'e str,
    /// The reason code of a refusal, or of what would be a refusal in another mode.
    pub code: Option<ReasonCode>,
    /// The id of the question to a person that it waited for, if it did.
    pub approval: Option<&'e str>,
}

/// How a connection came to the proxy, and where it went from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// The door at which it came; `None` until it has asked for a target.
    pub door: Option<Door>,
    /// The client's address inside the sandbox, if it is known.
    pub source: Option<SocketAddr>,
    /// The upstream's address, once it is connected.
    pub dialed: Option<SocketAddr>,
}

/// How long the steps of a decision took; `None` for a step that was not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// The decision itself.
    pub decision: Option<Duration>,
    /// The connection to the upstream.
    pub connect: Option<Duration>,
}

/// The processes behind a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lineage<'e> {
    /// Executables of the program's ancestors, nearest first.
    pub ancestors: &'e [String],
    /// Absolute paths among the arguments of the program and its ancestors.
    pub cmdline_paths: &'e [String],
}

/// A decision on a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionDecided<'e> {
    /// The step that was taken, or that failed.
    pub activity: Activity,
    /// Both ends.
    pub ends: Ends<'e>,
    /// The processes behind it.
    pub lineage: Lineage<'e>,
    /// How it came to the proxy, and where it went.
    pub way: Way,
    /// How long its steps took.
    pub took: Took,
    /// The decision.
    pub decided: Decided<'e>,
    /// The denial that it is counted as.
    pub denial: Option<&'e Denial>,
}

/// A decision on a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestDecided<'e> {
    /// The method.
    pub method: &'e str,
    /// The path, with `[CREDENTIAL]` in place of each placeholder.
    pub path: &'e str,
    /// `http` or `https`.
    pub scheme: &'e str,
    /// The number of the request in its connection, from 1 on; `None` for a forwarded request.
    pub number: Option<u64>,
    /// Both ends.
    pub ends: Ends<'e>,
    /// The processes behind it; empty for a request in a connection, whose own event names them.
    pub lineage: Lineage<'e>,
    /// How it came to the proxy, and where it went; empty for a request in a connection.
    pub way: Way,
    /// How long its steps took.
    pub took: Took,
    /// The decision.
    pub decided: Decided<'e>,
    /// The names of the credentials that it carries, separated by commas; empty if there are none.
    pub credentials: &'e str,
    /// The call of a model, if the request is one.
    pub model: Option<ModelCall<'e>>,
    /// The message in its body that the decision is on, if it is on one.
    pub message: Option<&'e RpcMessage<'e>>,
    /// The denial that it is counted as.
    pub denial: Option<&'e Denial>,
}

/// A message of JSON-RPC or of the Model Context Protocol (MCP).
#[derive(Clone, Copy, Debug)]
pub struct RpcMessage<'e> {
    /// True for MCP.
    pub is_mcp: bool,
    /// Its method if it is a known one, or what it is.
    pub label: &'e str,
    /// Its method; empty if it has none.
    pub method: &'e str,
    /// The tool, resource or prompt that it is about; empty if it is about none.
    pub about: &'e str,
    /// Its id, as JSON; empty if it has none.
    pub id: &'e str,
}

/// A call of a model.
#[derive(Clone, Copy, Debug)]
pub struct ModelCall<'e> {
    /// The name of the route.
    pub route: &'e str,
    /// The interface that the client speaks.
    pub interface: &'e str,
    /// The kind of request.
    pub kind: &'e str,
    /// The tokens used.
    pub usage: TokenUsage,
}

/// The tokens of a request to a model and of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// The tokens of the request, if the answer states them.
    pub input: Option<u64>,
    /// The tokens of the answer, if it states them.
    pub output: Option<u64>,
}

impl TokenUsage {
    /// Returns the sum of both; an unknown number counts as 0.
    #[must_use]
    pub fn total(self) -> u64 {
        self.input
            .unwrap_or(0)
            .saturating_add(self.output.unwrap_or(0))
    }
}

/// The end of a permitted connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionClosed<'e> {
    /// How urgent the event is.
    pub severity: Severity,
    /// Both ends.
    pub ends: Ends<'e>,
    /// The policy that permitted it, if one is known.
    pub policy: Option<&'e str>,
    /// How it came to the proxy, and where it went.
    pub way: Way,
    /// Bytes that the client received.
    pub received: u64,
    /// Bytes that the client sent.
    pub sent: u64,
    /// How long it lasted, in milliseconds.
    pub milliseconds: u64,
    /// Who or what ended it.
    pub by: EndedBy,
    /// The cause in a sentence; empty if there is nothing to add.
    pub reason: &'e str,
    /// The reason code, if a policy ended it.
    pub code: Option<ReasonCode>,
    /// The denial that it is counted as.
    pub denial: Option<&'e Denial>,
}

/// A packet that the firewall rejected.
#[derive(Clone, Copy, Debug)]
pub struct BypassAttempt<'e> {
    /// Both ends.
    pub ends: Ends<'e>,
    /// The processes behind it, if they are known.
    pub lineage: Lineage<'e>,
    /// The decision.
    pub decided: Decided<'e>,
    /// The transport protocol: `tcp`, `udp`, or its number.
    pub protocol: &'e str,
    /// The denial that it is counted as.
    pub denial: Option<&'e Denial>,
}

/// A look-up of a name: by a program inside, or by the proxy outside for a name in the policy.
#[derive(Clone, Copy, Debug)]
pub struct NameLookedUp<'e> {
    /// The name.
    pub name: &'e str,
    /// The kind of record; `None` for a look-up outside.
    pub kind: Option<&'e str>,
    /// How urgent the event is.
    pub severity: Severity,
    /// The effect.
    pub action: Action,
    /// The number of addresses found outside, and how many seconds they are valid.
    pub found: Option<(usize, u64)>,
    /// Further look-ups of the name since the last event.
    pub repeated: u64,
    /// The cause of a refusal or failure; empty if there is nothing to add.
    pub reason: &'e str,
    /// The reason code.
    pub code: Option<ReasonCode>,
    /// The denial that it is counted as.
    pub denial: Option<&'e Denial>,
}

/// A connection from outside of the sandbox to a server inside.
#[derive(Clone, Copy, Debug)]
pub struct PublishedConnection<'e> {
    /// How urgent the event is.
    pub severity: Severity,
    /// The effect.
    pub action: Action,
    /// The client.
    pub client: SocketAddr,
    /// The address at which the port is published.
    pub address: SocketAddr,
    /// The port of the server, at the loopback address inside.
    pub port: u16,
    /// Why there is no connection; empty if there is one.
    pub reason: &'e str,
}

/// An access to a file or folder that the sandbox refused.
#[derive(Clone, Copy, Debug)]
pub struct FileRefused<'e> {
    /// How urgent the event is.
    pub severity: Severity,
    /// The program, if it is known.
    pub binary: Option<&'e str>,
    /// Its process id inside the sandbox, if it is known.
    pub pid: Option<i32>,
    /// The access.
    pub access: FileAccess,
    /// The path inside.
    pub path: &'e str,
    /// The cause.
    pub reason: &'e str,
}

/// A sign of misuse.
#[derive(Clone, Copy, Debug)]
pub struct Finding<'e> {
    /// The reaction.
    pub activity: FindingActivity,
    /// How urgent it is.
    pub severity: Severity,
    /// The kind of finding.
    pub title: &'e str,
    /// How certain it is.
    pub confidence: Confidence,
    /// What was found, in a sentence for people.
    pub message: &'e str,
}

/// A change of the sandbox's state: a policy loaded, a restriction enforced.
#[derive(Clone, Copy, Debug)]
pub struct Configuration<'e> {
    /// The new state.
    pub state: ConfigState,
    /// How urgent it is.
    pub severity: Severity,
    /// What happened, in a sentence for people.
    pub message: &'e str,
    /// The version of the policy that it is about, if it is about one.
    pub policy: Option<PolicyId<'e>>,
    /// The key of the line that somebody has permitted, if it is about one.
    pub line: Option<&'e str>,
}

/// A version of a policy.
#[derive(Clone, Copy, Debug)]
pub struct PolicyId<'e> {
    /// Its number, from 1 on.
    pub number: u64,
    /// Its hash: SHA-256 of its file in hex digits, or what its gateway says.
    pub hash: &'e str,
}

/// The sandbox's own start or end.
#[derive(Clone, Copy, Debug)]
pub struct Lifecycle<'e> {
    /// Start or end.
    pub activity: LifecycleActivity,
    /// How urgent it is.
    pub severity: Severity,
    /// The outcome, in a sentence for people.
    pub message: &'e str,
}

/// The start or end of a command.
#[derive(Clone, Copy, Debug)]
pub struct Process<'e> {
    /// Start or end.
    pub activity: ProcessActivity,
    /// How urgent it is.
    pub severity: Severity,
    /// The name of the program.
    pub name: &'e str,
    /// Its process id; 0 if it did not start.
    pub pid: i32,
    /// Its exit code, once it has ended.
    pub exit: Option<i32>,
    /// The command line, at its start.
    pub command: Option<&'e str>,
    /// Why it ended, if it did not end by itself.
    pub reason: Option<&'e str>,
}

/// A step of an SSH connection.
#[derive(Clone, Copy, Debug)]
pub struct Ssh<'e> {
    /// The step.
    pub activity: SshActivity,
    /// How urgent it is.
    pub severity: Severity,
    /// The effect.
    pub action: Action,
    /// The door at which the client came.
    pub door: SshDoor,
    /// The client: an address, a process, or the id of a relay.
    pub client: &'e str,
    /// The method of authentication, once the client has authenticated.
    pub authentication: Option<&'e str>,
    /// The command line, or the subsystem.
    pub command: Option<&'e str>,
    /// The target of a forwarding, or the address at which it listens.
    pub target: Option<&'e str>,
    /// The exit code of a command that has ended.
    pub exit: Option<i32>,
    /// Bytes from the client and bytes to it, for a channel that has ended.
    pub transferred: Option<(u64, u64)>,
    /// The cause of a refusal or an early end; empty if there is nothing to add.
    pub reason: &'e str,
}

impl<'e> Event<'e> {
    /// Returns the denial that the event is counted as, if it is one.
    #[must_use]
    pub fn denial(&self) -> Option<&'e Denial> {
        match self {
            Self::Connection(decided) => decided.denial,
            Self::Request(decided) => decided.denial,
            Self::Closed(closed) => closed.denial,
            Self::Bypass(attempt) => attempt.denial,
            Self::Name(name) => name.denial,
            Self::Published(_)
            | Self::File(_)
            | Self::Finding(_)
            | Self::Configuration(_)
            | Self::Lifecycle(_)
            | Self::Process(_)
            | Self::Ssh(_)
            | Self::Approval(_) => None,
        }
    }
}

/// A step of a question to a person. It holds no query, no argument, no body and no typed words.
#[derive(Clone, Copy, Debug)]
pub struct Approval<'e> {
    /// The step.
    pub activity: ApprovalActivity,
    /// How urgent it is.
    pub severity: Severity,
    /// The id of the question; empty if the step is about a grant alone.
    pub id: &'e str,
    /// Both ends.
    pub ends: Ends<'e>,
    /// How the answer came, if there is one.
    pub by: Option<&'e str>,
    /// The user who answered, if that is known.
    pub uid: Option<u32>,
    /// How long a permission lasts, or what a denial covers.
    pub scope: Option<&'e str>,
    /// The id of the grant, if the step is about one.
    pub grant: Option<&'e str>,
    /// The key of the line that was permitted.
    pub line: Option<&'e str>,
    /// Why the step was taken; empty if there is nothing to add.
    pub reason: &'e str,
}
