//! How long a permitted connection may last: until the policy changes its mind, or a further owner of its socket is found
//! whom it would refuse.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::context::{Context, Limits};
use crate::decide::connection::judge;
use crate::identify::caller::Callers;
use crate::identify::sweep::{Further, Owners};
use crate::intake::Target;
use crate::refusal::Refusal;
use crate::resolve::guard;

/// What a connection that lasts is judged by again.
#[derive(Debug)]
pub struct Tenure {
    callers: Callers,
    target: Target,
    address: IpAddr,
    generations: watch::Receiver<u64>,
    /// The generation that permitted it last.
    generation: u64,
    /// Its socket, if not all processes were looked at and nobody has been asked to.
    unsearched: Option<u32>,
    /// Where the answer comes of who was asked to.
    further: Option<oneshot::Receiver<Further>>,
    /// The answer, until it has been judged.
    found: Option<Owners>,
}

impl Tenure {
    /// Of a connection of `callers` to `target`, at `address`, permitted by `generation` of those that `generations` tells of.
    /// `unsearched` is its socket, if not all processes were looked at.
    #[must_use]
    pub fn new(
        callers: Callers,
        target: Target,
        address: IpAddr,
        (generations, generation): (watch::Receiver<u64>, u64),
        unsearched: Option<u32>,
    ) -> Self {
        Self { callers, target, address, generations, generation, unsearched, further: None, found: None }
    }

    /// Takes over what an earlier request of the same connection waits for: who else owns its socket concerns this one too.
    pub fn inherit(&mut self, earlier: Self) {
        self.further = earlier.further;
        self.found = earlier.found;
    }

    /// Who opened it.
    #[must_use]
    pub fn callers(&self) -> &Callers {
        &self.callers
    }

    /// Where it leads.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns when the connection may last no longer, with the reason. Nothing is lost if it is dropped and asked again.
    pub async fn ended(&mut self, ctx: &Arc<Context>) -> Refusal {
        loop {
            match self.next(ctx).await {
                Ok(()) => {}
                Err(refusal) => return refusal,
            }
        }
    }

    /// Waits for one thing to judge, and judges it.
    async fn next(&mut self, ctx: &Arc<Context>) -> Result<(), Refusal> {
        if let Some(found) = self.found.clone() {
            let callers = self.callers.with(found.iter().map(|owner| owner.caller.clone()));
            self.judge(ctx, &callers, Some(found)).await?;
            (self.callers, self.found) = (callers, None);
            return Ok(());
        }
        if self.further.is_none() {
            self.further = self.unsearched.take().map(|inode| ctx.unsearched.add(inode));
        }
        let (generations, generation) = (&mut self.generations, self.generation);
        let changed = async { generations.wait_for(|current| *current != generation).await.is_ok() };
        tokio::select! {
            changed = changed => {
                // Whoever could change the policy is gone: it stays.
                if !changed {
                    std::future::pending::<()>().await;
                }
            }
            found = receive(&mut self.further) => {
                self.further = None;
                self.found = Some(found?);
                return Ok(());
            }
        }
        let callers = self.callers.clone();
        self.judge(ctx, &callers, None).await.map_err(|refusal| Refusal::PolicyChanged(refusal.log_reason()))
    }

    /// Judges `callers` by the policy in force, and `further` ones, who are new, also by what they run.
    async fn judge(&mut self, ctx: &Arc<Context>, callers: &Callers, further: Option<Owners>) -> Result<(), Refusal> {
        let (snapshot, identifier) = (ctx.policy.load(), Arc::clone(&ctx.identifier));
        let generation = snapshot.generation();
        // Nothing is refused in a run that is observed, and nobody has more to lose.
        if ctx.observations.is_none() {
            let (callers, target, address) = (callers.clone(), self.target.clone(), self.address);
            let turn = Arc::clone(&ctx.turns).acquire_owned().await;
            let turn = turn.map_err(|error| Refusal::Engine(error.to_string()))?;
            let judged = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                let verify = || match &further {
                    Some(owners) => owners.iter().try_for_each(|owner| identifier.verify_owner(owner)),
                    None => Ok(()),
                };
                let permit = judge(&snapshot, &callers, &target, verify)?;
                guard::check(&permit, vec![address]).map(drop)
            });
            judged.await.unwrap_or_else(|error| Err(Refusal::Engine(error.to_string())))?;
        }
        self.generation = generation;
        Ok(())
    }
}

/// What the sweep found, if there is one to come.
async fn receive(further: &mut Option<oneshot::Receiver<Further>>) -> Further {
    match further {
        Some(receiver) => receiver.await.unwrap_or_else(|_| {
            Err(Refusal::CallerUnknown("the search for further owners of the socket was given up".to_owned()))
        }),
        None => std::future::pending().await,
    }
}

/// Looks for further owners of sockets, for as long as the sandbox lives: one look at all processes for all of them that wait,
/// then a pause, so that it takes its share of a processor and no more.
pub async fn sweep(ctx: Arc<Context>) {
    loop {
        let waiting = ctx.unsearched.take().await;
        let inodes: Vec<u32> = waiting.keys().copied().collect();
        let identifier = Arc::clone(&ctx.identifier);
        let start = Instant::now();
        let looked = tokio::task::spawn_blocking(move || identifier.sweep(&inodes)).await;
        let mut looked = looked.unwrap_or_else(|error| Err(Refusal::Engine(error.to_string())));
        for (inode, connection) in waiting {
            let found = match &mut looked {
                Ok(owners) => Ok(owners.remove(&inode).unwrap_or_default().into()),
                Err(refusal) => Err(refusal.clone()),
            };
            // A connection that has ended meanwhile hears nothing.
            let _ = connection.send(found);
        }
        let pause = start.elapsed() * (Limits::SWEEP_SHARE - 1);
        tokio::time::sleep(pause.max(Duration::from_millis(50))).await;
    }
}
