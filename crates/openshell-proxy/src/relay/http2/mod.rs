//! One client's HTTP/2 connection inside a tunnel: each of its streams is an exchange.

mod client;
pub mod pool;
pub mod prior_knowledge;
mod stream;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use h2::Reason;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::denial::refusal::Refusal;
use crate::denial::reply;
use crate::ground::limits::Limits;
use crate::relay::http1::report_refused;
use crate::relay::services::Services;
use crate::relay::tunnel::HttpTunnel;
use crate::relay::upstream::Upstream;
use crate::report::record::{Outcome, Record};
use crate::wire::http::body::full;
use crate::wire::http::head;
use crate::wire::io::complete_body::CompleteBody;
use crate::wire::io::lingering::Linger;
use crate::wire::io::tasks::{ConnectionTasks, Spawner};
use crate::wire::memory::Windows;
use client::Client;
use pool::UpstreamPool;
use prior_knowledge::SettingsCheck;
use stream::{NotSent, answer};

#[cfg(test)]
mod tests;

/// The protocol of an upstream connection, as far as it is known before a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/2 by the client's prior knowledge, which the server's SETTINGS has yet to confirm.
    Unknown,
}

impl HttpTunnel {
    /// Serves the streams of `client` through `upstream` at `address`, which speaks `protocol`.
    pub async fn serve_http2<C, U>(
        &self,
        client: C,
        upstream: U,
        address: SocketAddr,
        protocol: UpstreamProtocol,
    ) where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        U: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let windows = self.services.memory.windows();
        let mut first = Upstream::new(ConnectionTasks::default());
        let origin = self.origin.clone();
        let (established, confirmed) = match protocol {
            UpstreamProtocol::Http1 => (
                first
                    .establish(origin, address, upstream)
                    .await
                    .map(|()| None),
                None,
            ),
            UpstreamProtocol::Http2 => (
                first
                    .establish_http2(origin, address, upstream, &windows)
                    .await
                    .map(Some),
                None,
            ),
            UpstreamProtocol::Unknown => {
                let (upstream, confirmed) = SettingsCheck::new(upstream);
                (
                    first
                        .establish_http2(origin, address, upstream, &windows)
                        .await
                        .map(Some),
                    Some(confirmed),
                )
            }
        };
        let Ok(ended) = established else { return };
        let shared = Client::new(self.clone(), UpstreamPool::new(first, confirmed));
        if let Err(refusal) = serve(&shared, client, &windows, ended).await {
            report_refused(&self.services, &self.connection, &refusal);
        }
    }
}

/// Returns the HTTP/2 settings towards clients: limits for streams, for their sizes, and for frames
/// without a request.
fn protocol(tasks: &ConnectionTasks, streams: u32, windows: &Windows) -> http2::Builder<Spawner> {
    let mut protocol = http2::Builder::new(tasks.spawner());
    protocol
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .initial_stream_window_size(windows.client_stream())
        .initial_connection_window_size(windows.client())
        .max_send_buf_size(windows.send())
        // Heads somewhat above the limit are read, so that their refusal can be sent.
        .max_header_list_size(u32::try_from(Limits::READ_HEAD_BYTES).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(Limits::STREAM_RESETS)
        .max_local_error_reset_streams(Limits::STREAM_ERRORS)
        .auto_date_header(false);
    protocol
}

/// Serves the streams of `io` with these `windows`, until the client closes, the tunnel shuts down,
/// or the connection has been idle for [`Limits::IDLE`]. After `ended`, the end of the shared
/// upstream connection, only open streams are completed.
///
/// # Errors
/// Fails if the client violates the protocol, or floods its connection.
async fn serve<C>(
    client: &Arc<Client>,
    io: C,
    windows: &Windows,
    ended: Option<oneshot::Receiver<()>>,
) -> Result<(), Refusal>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut shutdown = client.tunnel.connection.shutdown_signal();
    let pool = &client.pool;
    let streams = Arc::clone(client);
    let answer = move |request| answer(Arc::clone(&streams), request);
    let io = TokioIo::new(Linger::of_frames(io));
    let is_asked = client.tunnel.services.approvals.is_some();
    let count = pool.max_concurrent_streams(is_asked);
    let protocol = protocol(pool.tasks(), count, windows);
    let mut connection = pin!(protocol.serve_connection(io, service_fn(answer)));
    {
        // Drives the streams. Those that are left when this block ends are reset.
        let mut driven = pin!(pool.tasks().run());
        let mut idle = pin!(idle(client));
        let mut ended = pin!(end_of(ended));
        let mut is_ending = false;
        loop {
            tokio::select! {
                served = &mut connection => return served.err().as_ref().and_then(violation).map_or(Ok(()), Err),
                () = &mut driven => {}
                _ = shutdown.wait_for(|is_over| *is_over) => break,
                () = client.flooded.notified() => return Err(FLOODED),
                // Open streams are completed; new ones belong to the client's next connection.
                () = &mut ended, if !is_ending => {
                    connection.as_mut().graceful_shutdown();
                    is_ending = true;
                }
                () = client.upstream_ended.notified(), if !is_ending => {
                    connection.as_mut().graceful_shutdown();
                    is_ending = true;
                }
                // After GOAWAY the connection is kept only while streams are open.
                () = tokio::time::sleep(Limits::HEAD_DEADLINE), if is_ending => {
                    if client.open.load(Ordering::Relaxed) == 0 {
                        return Ok(());
                    }
                }
                () = &mut idle, if !is_ending => {
                    connection.as_mut().graceful_shutdown();
                    is_ending = true;
                }
            }
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(Limits::GOAWAY_GRACE, connection).await;
    Ok(())
}

/// Returns at the end of the shared upstream connection; without one, never.
async fn end_of(ended: Option<oneshot::Receiver<()>>) {
    match ended {
        Some(ended) => drop(ended.await),
        None => std::future::pending().await,
    }
}

/// Returns when there has been no stream for [`Limits::IDLE`].
async fn idle(client: &Client) {
    const SAMPLES: u32 = 8;
    let mut last = 0;
    let mut quiet = Duration::ZERO;
    while quiet < Limits::IDLE {
        tokio::time::sleep(Limits::IDLE / SAMPLES).await;
        let count = client.count.load(Ordering::Relaxed);
        let is_quiet = count == last && client.open.load(Ordering::Relaxed) == 0;
        quiet = if is_quiet {
            quiet + Limits::IDLE / SAMPLES
        } else {
            Duration::ZERO
        };
        last = count;
    }
}

const FLOODED: Refusal = Refusal::limit_reached("the client floods its HTTP/2 connection");

/// Returns the refusal for an error of the HTTP library, if the client violated the protocol. A
/// client that went away did not.
fn violation(error: &hyper::Error) -> Option<Refusal> {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return match error.reason() {
                _ if !error.is_library() => None,
                Some(Reason::ENHANCE_YOUR_CALM) => Some(FLOODED),
                _ => Some(Refusal::bad_request(
                    "the client does not follow the rules of HTTP/2",
                )),
            };
        }
        cause = error.source();
    }
    None
}

/// Answers the first stream of `client` with `refusal`, and ends its connection.
pub async fn refuse<C>(services: &Services, client: C, refusal: &Refusal, record: Record)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let plain = reply::refused(refusal, record.subject(), &services.guidance);
    let call = reply::refused_call(refusal, record.subject());
    record.finish(Outcome::Refused(refusal));
    let has_answered = AtomicBool::new(false);
    let answered = Notify::new();
    let tasks = ConnectionTasks::default();
    let answer = service_fn(|request: Request<Incoming>| {
        let is_first = !has_answered.swap(true, Ordering::Relaxed);
        let content = if head::is_grpc(request.headers()) {
            &call
        } else {
            &plain
        };
        let response = is_first.then(|| content.clone().map(full));
        drop(CompleteBody::of_stream(
            request.into_body(),
            tasks.spawner(),
        ));
        answered.notify_one();
        async { response.ok_or(NotSent(Reason::REFUSED_STREAM.into())) }
    });
    let client = TokioIo::new(Linger::of_frames(client));
    let windows = services.memory.windows();
    let mut connection =
        pin!(protocol(&tasks, Limits::STREAMS, &windows).serve_connection(client, answer));
    let served = async {
        let mut driven = pin!(tasks.run());
        let mut is_ending = false;
        loop {
            tokio::select! {
                _ = &mut connection => return,
                () = &mut driven => {}
                () = answered.notified(), if !is_ending => {
                    connection.as_mut().graceful_shutdown();
                    is_ending = true;
                }
            }
        }
    };
    let _ = timeout(Limits::HEAD_DEADLINE, served).await;
}
