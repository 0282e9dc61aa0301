//! How long a permitted connection may last: until the policy changes its mind, or a further owner of its socket is found
//! whom it would refuse.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::{Method, Uri};
use tokio::sync::{oneshot, watch};

use crate::context::Context;
use crate::decide::action::Message;
use crate::decide::connection::{judge, observe};
use crate::decide::message;
use crate::decide::permit::Permit;
use crate::identify::sweep::{Further, Owners};
use crate::limits::Limits;
use crate::peer::Callers;
use crate::refusal::Refusal;
use crate::resolve::guard;
use crate::target::Target;

/// A permitted connection: whose it is, where it leads, and what it is permitted by now.
#[derive(Debug)]
pub struct Connection {
    callers: Mutex<Callers>,
    target: Target,
    /// Where it leads; several, where it has several ways there.
    addresses: Mutex<Vec<IpAddr>>,
    permit: Mutex<Arc<Permit>>,
    does: Mutex<Doing>,
    /// Told that it ends, where it has something to say before.
    farewell: watch::Sender<bool>,
}

/// What goes on in a connection, which a later generation must permit as well.
#[derive(Clone, Debug)]
pub enum Does {
    /// Nothing yet.
    Nothing,
    /// Bytes that nobody looks at.
    Opaque,
    /// A request, also when it has been answered, or what it turned the connection into; the next one of its number takes its place.
    Request(u64, Method, Uri),
}

/// All that goes on in a connection.
#[derive(Clone, Debug, Default)]
struct Doing {
    is_opaque: bool,
    /// By their numbers.
    requests: BTreeMap<u64, (Method, Uri)>,
}

impl Doing {
    fn begin(&mut self, does: Does) {
        match does {
            Does::Nothing => {}
            Does::Opaque => self.is_opaque = true,
            Does::Request(number, method, uri) => drop(self.requests.insert(number, (method, uri))),
        }
    }
}

impl Connection {
    /// A connection of `callers` to the target of `permit`, at `address`.
    #[must_use]
    pub fn new(callers: Callers, permit: Permit, address: IpAddr) -> Self {
        Self {
            callers: Mutex::new(callers),
            target: permit.target().clone(),
            addresses: Mutex::new(vec![address]),
            permit: Mutex::new(Arc::new(permit)),
            does: Mutex::default(),
            farewell: watch::Sender::new(false),
        }
    }

    /// Who opened it.
    #[must_use]
    pub fn callers(&self) -> Callers {
        lock(&self.callers).clone()
    }

    /// Where it leads.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What it was permitted by last.
    #[must_use]
    pub fn permit(&self) -> Arc<Permit> {
        Arc::clone(&lock(&self.permit))
    }

    /// Notes that it leads to another address of its target from now on; besides those where it leads already, if it `has_ways`.
    pub fn moved_to(&self, address: IpAddr, has_ways: bool) {
        let mut addresses = lock(&self.addresses);
        if !has_ways {
            addresses.clear();
        }
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }

    /// Notes that a request that was judged by `permit` goes on; whether that is still the permit in force.
    #[must_use]
    pub fn goes_on(&self, ctx: &Context, permit: &Permit, number: u64, (method, uri): (Method, Uri)) -> bool {
        lock(&self.does).begin(Does::Request(number, method, uri));
        permit.generation() == ctx.policy.load().generation()
    }

    /// What it is permitted by now that it does something else, by the generation in force.
    ///
    /// # Errors
    /// It is permitted no longer.
    pub async fn begin(&self, ctx: &Context, does: Does) -> Result<Arc<Permit>, Refusal> {
        let is_opaque = matches!(does, Does::Opaque);
        lock(&self.does).begin(does);
        let permit = self.permit();
        if permit.generation() == ctx.policy.load().generation() {
            // A request is judged next; nobody judges what is not looked at.
            return match is_opaque {
                true => still_permitted(&permit, &lock(&self.does)).map(|()| permit),
                false => Ok(permit),
            };
        }
        self.judge(ctx, None).await.map_err(|refusal| Refusal::PolicyChanged(refusal.log_reason()))
    }

    /// Notes that the request `number` is over.
    pub fn finished(&self, number: u64) {
        lock(&self.does).requests.remove(&number);
    }

    /// Tells when the connection ends; until then nobody waits for what it has to say.
    #[must_use]
    pub fn farewell(&self) -> watch::Receiver<bool> {
        self.farewell.subscribe()
    }

    /// Whether it has something to say before it ends, of which it is told now.
    #[must_use]
    pub fn has_farewell(&self) -> bool {
        self.farewell.send(true).is_ok()
    }

    /// Judges it by the policy in force; `further` owners of its socket, who are new, also by what they run.
    async fn judge(&self, ctx: &Context, further: Option<Owners>) -> Result<Arc<Permit>, Refusal> {
        let (snapshot, identifier) = (ctx.policy.load(), Arc::clone(&ctx.identifier));
        let mut callers = self.callers();
        let new = further.iter().flat_map(|owners| owners.iter()).map(|owner| owner.caller.clone()).collect::<Vec<_>>();
        if !new.is_empty() {
            callers = callers.with(new.iter().cloned());
        }
        let (asking, target, addresses, does) =
            (callers, self.target.clone(), lock(&self.addresses).clone(), lock(&self.does).clone());
        let (is_observed, own) = (ctx.observations.is_some(), ctx.own.clone());
        let turn = Arc::clone(&ctx.turns).acquire_owned().await;
        let turn = turn.map_err(|error| Refusal::Engine(error.to_string()))?;
        let judged = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            // In a run that is observed nobody has more to lose.
            let verify = || match further.as_ref().filter(|_| !is_observed) {
                Some(owners) => owners.iter().try_for_each(|owner| identifier.verify_owner(owner)),
                None => Ok(()),
            };
            let permit = match is_observed {
                false => judge(&snapshot, &asking, &target, verify)?,
                true => observe(&snapshot, &asking, &target, verify)?,
            };
            guard::check(&own, &permit, addresses)?;
            still_permitted(&permit, &does)?;
            Ok(Arc::new(permit))
        });
        let permit = judged.await.unwrap_or_else(|error| Err(Refusal::Engine(error.to_string())))?;
        // Another judgement may have ended meanwhile; nobody whom it found is forgotten.
        let mut callers = lock(&self.callers);
        *callers = callers.with(new.into_iter());
        let mut known = lock(&self.permit);
        if known.generation() <= permit.generation() {
            *known = Arc::clone(&permit);
        }
        Ok(permit)
    }
}

/// Whether `permit` is also for what goes on already.
fn still_permitted(permit: &Permit, does: &Doing) -> Result<(), Refusal> {
    if permit.rules().is_none() {
        return Ok(());
    }
    if does.is_opaque {
        let what = "there are rules now for what is inside, which is not looked at";
        return Err(Refusal::UnsupportedProtocol { what, policy: permit.policy().map(str::to_owned) });
    }
    does.requests.values().try_for_each(|(method, uri)| {
        let message = Message::Http { method: method.clone(), uri: uri.clone() };
        message::judge_now(permit, &permit.action(&message)?).map(drop)
    })
}

/// What is behind these locks is whole at every moment.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a connection lasts.
#[derive(Debug)]
pub struct Tenure {
    connection: Arc<Connection>,
    generations: watch::Receiver<u64>,
    /// The generation by which it was judged last; a request in it may have been judged by another since.
    judged_by: u64,
    /// Its socket, if not all processes were looked at and nobody has been asked to.
    unsearched: Option<u32>,
    /// Where the answer comes of who was asked to.
    further: Option<oneshot::Receiver<Further>>,
    /// The answer, until it has been judged.
    found: Option<Owners>,
}

impl Tenure {
    /// Of `connection`, for which `generations` tells of what comes into force. `unsearched` is its socket, if not all processes
    /// were looked at.
    #[must_use]
    pub fn new(connection: Arc<Connection>, generations: watch::Receiver<u64>, unsearched: Option<u32>) -> Self {
        let judged_by = connection.permit().generation();
        Self { connection, generations, judged_by, unsearched, further: None, found: None }
    }

    /// Takes over what an earlier request of the same connection waits for: who else owns its socket concerns this one too.
    pub fn inherit(&mut self, earlier: Self) {
        self.further = earlier.further;
        self.found = earlier.found;
    }

    /// What lasts.
    #[must_use]
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Returns when the connection may last no longer, with the reason. Nothing is lost if it is dropped and asked again.
    pub async fn ended(&mut self, ctx: &Context) -> Refusal {
        loop {
            match self.next(ctx).await {
                Ok(()) => {}
                Err(refusal) => return refusal,
            }
        }
    }

    /// Waits for one thing to judge, and judges it.
    async fn next(&mut self, ctx: &Context) -> Result<(), Refusal> {
        if let Some(found) = self.found.clone() {
            self.judged_by = self.connection.judge(ctx, Some(found)).await?.generation();
            self.found = None;
            return Ok(());
        }
        if self.further.is_none() {
            self.further = self.unsearched.take().map(|inode| ctx.unsearched.add(inode));
        }
        let (generations, generation) = (&mut self.generations, self.judged_by);
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
        let judged = self.connection.judge(ctx, None).await;
        let permit = judged.map_err(|refusal| Refusal::PolicyChanged(refusal.log_reason()))?;
        self.judged_by = permit.generation();
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
