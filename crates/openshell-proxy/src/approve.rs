//! What must hold before anything is answered or dialled: who asks, whether they may, and where that leads.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

use crate::context::Context;
use crate::decide::connection::{judge, observe};
use crate::decide::permit::Permit;
use crate::identify::search::{GiveUp, Search};
use crate::limits::Limits;
use crate::peer::Flow;
use crate::peer::{Caller, Callers};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::resolve::guard::Destination;
use crate::resolve::resolve;
use crate::target::Target;
use crate::tenure::{Connection, Tenure};

/// Finds out all of it.
///
/// # Errors
/// Who asks cannot be found out or may not, or no address of the target may be connected to.
pub async fn approve(
    ctx: &Context,
    flow: Flow,
    target: &Target,
    record: &mut Record,
) -> Result<(Destination, Decided), Refusal> {
    let decided = decide(ctx, flow, target, record).await?;
    record.permitted_by(&decided.permit);
    let destination = resolve(&ctx.resolver, &ctx.own, &decided.permit).await?;
    if let Some(observations) = &ctx.observations {
        observations.add(&decided.callers.first().program.executable, target, &destination);
    }
    Ok((destination, decided))
}

/// Who asks, for the log, where nothing depends on it.
pub async fn caller(ctx: &Context, flow: Flow) -> Option<Caller> {
    let identified = async {
        let turn = Arc::clone(&ctx.turns).acquire_owned().await.ok()?;
        let identifier = Arc::clone(&ctx.identifier);
        let (search, _wanted) = search();
        let work = tokio::task::spawn_blocking(move || {
            let identified = identifier.identify(flow, &search);
            drop(turn);
            identified
        });
        work.await.ok()?.ok().map(|identified| identified.callers().first().clone())
    };
    tokio::time::timeout(Limits::JUDGE_DEADLINE, identified).await.ok()?
}

/// A look for a caller, and what gives it up when nobody waits for it any more.
fn search() -> (Search, GiveUp) {
    let search = Search::new(Limits::SEARCHED_DESCRIPTORS, Limits::JUDGE_DEADLINE);
    let wanted = search.guard();
    (search, wanted)
}

/// Who may, and by what.
#[derive(Debug)]
pub struct Decided {
    /// Who asks.
    pub callers: Callers,
    /// Their socket, if not all processes were looked at.
    unsearched: Option<u32>,
    /// What permits it.
    pub permit: Permit,
    /// Tells of what comes into force.
    generations: watch::Receiver<u64>,
}

impl Decided {
    /// What lasts of it, once it is connected to `address`.
    #[must_use]
    pub fn tenure(self, address: SocketAddr) -> Tenure {
        let connection = Arc::new(Connection::new(self.callers, self.permit, address.ip()));
        Tenure::new(connection, self.generations, self.unsearched)
    }

    /// Whether another generation has come into force since.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        *self.generations.borrow() != self.permit.generation()
    }
}

/// Who asks, and whether they may. On a thread of its own, as reading /proc, hashing a program and evaluating foreign rules
/// may take their time; a few at once and not for long, so that no workload can have them all.
async fn decide(ctx: &Context, flow: Flow, target: &Target, record: &mut Record) -> Result<Decided, Refusal> {
    let generations = ctx.policy.subscribe();
    let (identifier, policy, to) = (Arc::clone(&ctx.identifier), Arc::clone(&ctx.policy), target.clone());
    let (turn, is_observed) = (Arc::clone(&ctx.turns).acquire_owned(), ctx.observations.is_some());
    let decision = async {
        let turn = turn.await;
        let (search, _wanted) = search();
        let work = tokio::task::spawn_blocking(move || {
            let identified = identifier.identify(flow, &search)?;
            let snapshot = policy.load();
            let verify = || identifier.verify(&identified);
            let permit = match is_observed {
                false => judge(&snapshot, identified.callers(), &to, verify),
                true => observe(&snapshot, identified.callers(), &to, verify),
            };
            drop(turn);
            Ok::<_, Refusal>((identified.callers().clone(), identified.unsearched(), permit))
        });
        work.await.map_err(|error| Refusal::Engine(error.to_string()))?
    };
    let decided = tokio::time::timeout(Limits::JUDGE_DEADLINE, decision).await;
    let (callers, unsearched, permit) =
        decided.map_err(|_| Refusal::CallerUnknown("finding out who asks took too long".to_owned()))??;
    record.called_by(callers.first().clone());
    Ok(Decided { callers, unsearched, permit: permit?, generations })
}
