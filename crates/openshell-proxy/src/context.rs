//! What every connection shares.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::credentials::vault::CurrentVault;
use crate::decide::store::PolicyStore;
use crate::identify::Identifier;
use crate::identify::sweep::Unsearched;
use crate::inference::route::Inference;
use crate::memory::Memory;
use crate::observe::Observations;
use crate::quota::Quota;
use crate::record::Audit;
use crate::resolve::guard::OwnAddresses;
use crate::resolve::lookup::Resolver;
use crate::tls::authority::Authority;
use crate::tls::originate::Trust;

/// What every connection shares.
#[derive(Debug)]
pub struct Context {
    /// The policy in force.
    pub policy: Arc<PolicyStore>,
    /// Finds out who is calling.
    pub identifier: Arc<Identifier>,
    /// Sockets of which one owner is known, and the others are still looked for.
    pub unsearched: Unsearched,
    /// Turns at finding out; [`Limits::IDENTIFYING`] of them.
    pub turns: Arc<Semaphore>,
    /// Places for HTTP/2 connections; [`Limits::HTTP2_CONNECTIONS`] of them.
    pub http2: Arc<Semaphore>,
    /// Memory that connections may take together.
    pub memory: Memory,
    /// The supervisor's resolver; the workload's is never asked.
    pub resolver: Arc<Resolver>,
    /// Addresses of the supervisor's own, which no policy makes reachable.
    pub own: OwnAddresses,
    /// Who opens TLS; `None` where programs could not be told to trust it, and what would be opened is refused.
    pub authority: Option<Authority>,
    /// Which upstreams are trusted.
    pub trust: Trust,
    /// What placeholders stand for.
    pub vault: Arc<CurrentVault>,
    /// Which models there are; `None` where nobody has said.
    pub inference: Option<Arc<Inference>>,
    /// How many connections each program has.
    pub shares: Arc<Quota>,
    /// Where decisions are reported.
    pub audit: Arc<dyn Audit>,
    /// What a run uses, where it is observed and nothing that a policy could permit is refused.
    pub observations: Option<Arc<Observations>>,
    /// Where the workload's connections come from; others are closed unanswered.
    pub workload: Ipv4Addr,
}
