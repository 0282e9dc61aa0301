//! One client's HTTP connection, at the doors and inside a connection that was opened.

use std::future::pending;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, Notify};

use crate::context::Context;
use crate::credentials::body::{self, FirstBytes};
use crate::http::reply::Body;
use crate::io::lingering::Linger;
use crate::io::prefixed::Prefixed;
use crate::limits::Limits;
use crate::quota::QuotaGuard;
use crate::record::{Outcome, Record};
use crate::refusal::Refusal;
use crate::relay::opaque;
use crate::relay::upstream::Upstream;
use crate::tenure::{Connection, Tenure};

/// What the requests of one client connection share.
#[derive(Debug, Default)]
pub struct Session {
    /// The client's socket, to see whether anybody is still there.
    client: Option<OwnedFd>,
    /// The upstream connection of its requests, and its program's share where that is its own.
    pub(crate) upstream: Mutex<(Upstream, Option<QuotaGuard>)>,
    /// What its last request may last by, where every request has its own.
    tenure: Mutex<Option<Tenure>>,
    /// What it is for.
    last: std::sync::Mutex<Option<Arc<Connection>>>,
    /// There is a new one.
    tenured: Notify,
    /// What goes on instead, after an answer that switched protocols.
    upgraded: Mutex<Option<(OnUpgrade, OnUpgrade)>>,
    requests: AtomicU64,
    has_answered: AtomicBool,
    /// A request has no answer yet.
    is_asked: AtomicBool,
    /// There was a request.
    was_asked: AtomicBool,
    /// Something was read.
    has_begun: Arc<AtomicBool>,
    /// A placeholder was met in a body of which a part is sent already, and nobody has been told.
    misplaced: Arc<AtomicBool>,
}

/// Why a client is waited for no longer.
enum Gone {
    /// Nobody is there.
    Deserted,
    /// It began its first request and went silent.
    Stuck,
}

impl Session {
    /// Of the client at the other end of `client`.
    #[must_use]
    pub fn new(client: Option<OwnedFd>) -> Self {
        Self { client, ..Self::default() }
    }

    /// Serves `client`, by `protocol`, as `answer` says, and relays what an answer has turned the connection into. Ends as well
    /// when its last request may last no longer, or when nobody is there to be answered.
    ///
    /// # Errors
    /// The client sent what is refused without having been asked, as malformed heads are, or behind an answer.
    pub async fn serve<S, F>(
        &self,
        ctx: &Context,
        client: S,
        protocol: &http1::Builder,
        answer: impl Fn(Request<Incoming>) -> F,
    ) -> Result<(), Option<Refusal>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Option<Response<Body>>>,
    {
        let served = self.serve_all(ctx, client, protocol, answer).await;
        if self.take_misplaced() { Err(Some(body::in_body())) } else { served }
    }

    async fn serve_all<S, F>(
        &self,
        ctx: &Context,
        client: S,
        protocol: &http1::Builder,
        answer: impl Fn(Request<Incoming>) -> F,
    ) -> Result<(), Option<Refusal>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Option<Response<Body>>>,
    {
        let answer = service_fn(|request| {
            self.is_asked.store(true, Ordering::Relaxed);
            self.was_asked.store(true, Ordering::Relaxed);
            let answer = answer(request);
            async {
                let answer = answer.await;
                self.is_asked.store(false, Ordering::Relaxed);
                self.has_answered.store(true, Ordering::Relaxed);
                answer.ok_or(Unanswered)
            }
        });
        let client = TokioIo::new(Linger::new(client, Arc::clone(&self.has_begun)));
        let connection = protocol.serve_connection(client, answer).with_upgrades();
        let crew = self.upstream.lock().await.0.crew();
        let (mut revoked, mut driven) = (pin!(self.revoked(ctx)), pin!(crew.run()));
        tokio::select! {
            served = connection => match served {
                // Between two requests a client may take its time, and go.
                Err(error) if !(error.is_timeout() && self.has_answered.load(Ordering::Relaxed)) => {
                    return Err(refused_by_library(&error));
                }
                _ => {}
            },
            () = &mut driven => {}
            () = &mut revoked => return Ok(()),
            gone = self.gone() => return match gone {
                Gone::Deserted => Ok(()),
                Gone::Stuck => Err(Some(Refusal::BadRequest("the head of the request did not arrive in time"))),
            },
        }
        if let Some((client, upstream)) = self.upgraded.lock().await.take() {
            let relayed = tokio::select! {
                relayed = relay_upgraded::<S>(client, upstream, FirstBytes::new(&ctx.vault.load())) => relayed,
                () = driven => Ok(()),
                () = revoked => Ok(()),
            };
            relayed.map_err(Some)?;
        }
        Ok(())
    }

    /// To be set when a placeholder is met in a body of which a part is sent already.
    #[must_use]
    pub fn misplaced(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.misplaced)
    }

    /// Whether one was met, once: whoever asks has it reported.
    pub fn take_misplaced(&self) -> bool {
        self.misplaced.swap(false, Ordering::Relaxed)
    }

    /// What the last request was for, where every request has a connection of its own.
    #[must_use]
    pub fn last(&self) -> Option<Arc<Connection>> {
        lock(&self.last).clone()
    }

    /// Counts a request.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Goes on with both ends, once the answer that switches protocols is written.
    pub async fn upgrade(&self, client: OnUpgrade, upstream: OnUpgrade) {
        *self.upgraded.lock().await = Some((client, upstream));
    }

    /// Has the connection judged by `tenure` from now on.
    pub async fn judged_again_by(&self, tenure: Tenure) {
        *lock(&self.last) = Some(Arc::clone(tenure.connection()));
        *self.tenure.lock().await = Some(tenure);
        self.tenured.notify_one();
    }

    /// Returns when the client is waited for in vain: it has broken off; or it has ended its sending and has still not been
    /// answered a while later, when it may be waiting but more likely has gone; or it has begun its first request and not ended it.
    async fn gone(&self) -> Gone {
        let (mut was_over, mut was_stuck) = (false, false);
        loop {
            tokio::time::sleep(Limits::DESERTED).await;
            let is_asked = self.is_asked.load(Ordering::Relaxed);
            // Later on what comes may be the rest of a body that is answered already.
            let is_stuck = !self.was_asked.load(Ordering::Relaxed) && self.has_begun.load(Ordering::Relaxed);
            if is_stuck && was_stuck {
                return Gone::Stuck;
            }
            was_stuck = is_stuck;
            let Some(client) = &self.client else { continue };
            let mut state = [PollFd::new(client, PollFlags::RDHUP)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let events = match rustix::event::poll(&mut state, Some(&now)) {
                Ok(_) => state[0].revents(),
                Err(_) => PollFlags::empty(),
            };
            if events.intersects(PollFlags::HUP | PollFlags::ERR) {
                return Gone::Deserted;
            }
            let is_over = is_asked && events.contains(PollFlags::RDHUP);
            if is_over && was_over {
                return Gone::Deserted;
            }
            was_over = is_over;
        }
    }

    /// Returns when the last request, whose answer may still be on its way, is permitted no longer.
    async fn revoked(&self, ctx: &Context) {
        let mut current: Option<Tenure> = None;
        loop {
            let ended = async {
                match current.as_mut() {
                    Some(tenure) => tenure.ended(ctx).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = self.tenured.notified() => {
                    if let Some(mut newer) = self.tenure.lock().await.take() {
                        current.take().into_iter().for_each(|earlier| newer.inherit(earlier));
                        current = Some(newer);
                    }
                }
                refusal = ended => {
                    current.iter().for_each(|tenure| revoked(ctx, tenure.connection(), &refusal));
                    return;
                }
            }
        }
    }
}

/// What is behind the lock is whole at every moment.
fn lock<T>(value: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that nothing is answered to: its connection ends.
#[derive(Debug, thiserror::Error)]
#[error("not answered")]
struct Unanswered;

/// Relays bytes both ways until both sides are done.
async fn relay_upgraded<S>(client: OnUpgrade, upstream: OnUpgrade, first: FirstBytes) -> Result<(), Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else { return Ok(()) };
    // What still comes is the other protocol's, and read away by nobody.
    let Ok(parts) = client.downcast::<TokioIo<Linger<S>>>() else { return Ok(()) };
    let client = Prefixed::new(parts.read_buf, parts.io.into_inner().into_inner());
    // Which side broke off is nobody's decision; both learn of it by the end of their connection.
    opaque::copy(client, TokioIo::new(upstream), first)
        .await
        .err()
        .as_ref()
        .and_then(body::misplaced)
        .map_or(Ok(()), Err)
}

/// Why the HTTP library gave a client up, if that is a decision: a client that went away asked for nothing.
fn refused_by_library(error: &hyper::Error) -> Option<Refusal> {
    if error.is_parse_too_large() {
        Some(Refusal::RequestTooLarge)
    } else if error.is_parse() {
        Some(Refusal::BadRequest("the request is not HTTP/1.1"))
    } else if error.is_timeout() {
        Some(Refusal::BadRequest("the head of the request did not arrive in time"))
    } else {
        None
    }
}

/// Reports that an open connection is permitted no longer.
pub fn revoked(ctx: &Context, connection: &Connection, refusal: &Refusal) {
    let record = Record::of(&ctx.audit, &connection.callers(), connection.target().clone());
    record.finish(Outcome::Revoked(refusal));
}
