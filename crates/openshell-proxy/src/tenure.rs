//! How long a permitted connection may last: until the policy changes its mind, or a further owner of its socket is found
//! whom it would refuse.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::context::{Context, Limits};
use crate::decide::connection::judge;
use crate::identify::caller::{Caller, Callers};
use crate::identify::sweep::Further;
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
    further: Option<oneshot::Receiver<Further>>,
}

impl Tenure {
    /// Of a connection of `callers` to `target`, at `address`; `generations` was subscribed to before it was judged, so that
    /// no change is missed. `unsearched` is its socket, if not all processes were looked at.
    #[must_use]
    pub fn new(
        ctx: &Context,
        callers: Callers,
        target: Target,
        address: IpAddr,
        generations: watch::Receiver<u64>,
        unsearched: Option<u32>,
    ) -> Self {
        let further = unsearched.map(|inode| ctx.unsearched.add(inode));
        Self { callers, target, address, generations, further }
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

    /// Returns when the connection may last no longer, with the reason.
    pub async fn ended(&mut self, ctx: &Arc<Context>) -> Refusal {
        loop {
            let judged = tokio::select! {
                changed = self.generations.changed() => {
                    // Whoever could change the policy is gone: it stays.
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    self.judge_again(ctx, None).await.map_err(|refusal| Refusal::PolicyChanged(refusal.log_reason()))
                }
                further = receive(&mut self.further) => match further {
                    Ok(further) => self.judge_again(ctx, Some(further)).await,
                    Err(refusal) => Err(refusal),
                },
            };
            if let Err(refusal) = judged {
                return refusal;
            }
        }
    }

    /// Judges by the policy in force: the callers, or further ones whom the policy must permit as well.
    async fn judge_again(&self, ctx: &Arc<Context>, further: Option<Vec<Caller>>) -> Result<(), Refusal> {
        // Nothing is refused, and nobody has more to lose.
        if ctx.observations.is_some() {
            return Ok(());
        }
        let is_known = |caller: &Caller| self.callers.iter().any(|known| known.program == caller.program);
        let others = further.map(|callers| callers.into_iter().filter(|caller| !is_known(caller)).collect());
        let callers = match others {
            None => self.callers.clone(),
            Some(others) => match Callers::new(others) {
                Some(others) => others,
                None => return Ok(()),
            },
        };
        let first = self.callers.first().program.executable.clone();
        let (snapshot, target, address) = (ctx.policy.load(), self.target.clone(), self.address);
        let Ok(turn) = Arc::clone(&ctx.turns).acquire_owned().await else { return Ok(()) };
        let judged = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let permit = judge(&snapshot, &callers, &target, || Ok(()));
            let permit = permit.map_err(|refusal| match refusal {
                Refusal::NotInPolicy { .. } if callers.first().program.executable != first => {
                    Refusal::CallerAmbiguous([first, callers.first().program.executable.clone()])
                }
                other => other,
            })?;
            guard::check(&permit, vec![address]).map(drop)
        });
        judged.await.unwrap_or_else(|error| Err(Refusal::Engine(error.to_string())))
    }
}

/// What the sweep found, once; then nothing any more.
async fn receive(further: &mut Option<oneshot::Receiver<Further>>) -> Further {
    let found = match further {
        // A sweep that never happens finds nobody.
        Some(receiver) => receiver.await.unwrap_or_else(|_| Ok(Vec::new())),
        None => std::future::pending().await,
    };
    *further = None;
    found
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
        let looked = looked.unwrap_or_else(|error| Err(Refusal::Engine(error.to_string())));
        for (inode, connection) in waiting {
            let of_this = |found: &Vec<(u32, Caller)>| {
                found.iter().filter(|(of, _)| *of == inode).map(|(_, caller)| caller.clone()).collect()
            };
            // A connection that has ended meanwhile hears nothing.
            let _ = connection.send(looked.as_ref().map(of_this).map_err(Clone::clone));
        }
        let pause = start.elapsed() * (Limits::SWEEP_SHARE - 1);
        tokio::time::sleep(pause.max(Duration::from_millis(50))).await;
    }
}
