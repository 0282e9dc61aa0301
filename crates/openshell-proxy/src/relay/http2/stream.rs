//! One stream: a request, its exchange and its response.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::Reason;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::rt::Executor as _;
use hyper::{Request, Response};
use parking_lot::{Mutex, MutexGuard};
use tracing::{Instrument as _, debug_span};

use super::client::Client;
use super::pool::PooledConnection;
use crate::denial::refusal::Refusal;
use crate::denial::reply;
use crate::ground::limits::Limits;
use crate::reach::authorize::connection::StreamId;
use crate::relay::body::searched::Kept;
use crate::relay::exchange::{Exchange, ExchangeError, Outbound};
use crate::report::record::{Outcome, Record};
use crate::wire::http::body::{ResponseBody, boxed, full};
use crate::wire::http::head;
use crate::wire::io::complete_body::CompleteBody;

/// A stream, until both its request and its response have ended.
#[derive(Debug)]
struct Stream {
    client: Arc<Client>,
    id: StreamId,
    /// Its upstream connection, once the exchange has a response or has failed.
    connection: Mutex<Option<PooledConnection>>,
}

impl Stream {
    fn connection(&self) -> MutexGuard<'_, Option<PooledConnection>> {
        self.connection.lock()
    }

    /// Notes that the response has ended. If the request body has not, and no other stream uses the
    /// upstream connection, the body may take [`Limits::LINGER`] more. Then the connection is
    /// closed, because other streams may wait for it.
    fn response_ended(self: Arc<Self>) {
        let is_exclusive = self
            .connection()
            .as_ref()
            .is_some_and(PooledConnection::is_exclusive);
        if is_exclusive && Arc::strong_count(&self) > 1 {
            let stream = Arc::downgrade(&self);
            self.client.pool.tasks().spawner().execute(async move {
                tokio::time::sleep(Limits::LINGER).await;
                if let Some(stream) = stream.upgrade()
                    && let Some(connection) = stream.connection().as_mut()
                {
                    connection.upstream.close_unless_ready();
                }
            });
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.client.tunnel.connection.complete(self.id);
        self.client.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The guard of an unanswered stream. If it is dropped, the client has cancelled the stream. That
/// is counted, because the stream's queued bytes may still be held.
struct CancelGuard<'c> {
    client: &'c Client,
    has_response: bool,
}

impl Drop for CancelGuard<'_> {
    fn drop(&mut self) {
        if !self.has_response {
            let cancelled = self.client.cancelled.fetch_add(1, Ordering::Relaxed) + 1;
            if cancelled >= Limits::STREAMS_ABANDONED
                && 2 * cancelled > self.client.count.load(Ordering::Relaxed)
            {
                self.client.flooded.notify_one();
            }
        }
    }
}

/// A response body that keeps its stream until it has ended.
struct StreamBody {
    body: ResponseBody,
    stream: Option<Arc<Stream>>,
}

impl StreamBody {
    fn end(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.response_ended();
        }
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.end();
    }
}

impl hyper::body::Body for StreamBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            this.end();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The error of a request that was not processed, so that its client may send it again.
#[derive(Debug, thiserror::Error)]
#[error("not sent")]
pub(super) struct NotSent(#[source] pub(super) h2::Error);

/// Answers one stream of `client`.
///
/// # Errors
/// Fails if the upstream has not processed the request, so that the client may send it again.
pub(super) async fn answer(
    client: Arc<Client>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, NotSent> {
    let id = StreamId::after(client.count.fetch_add(1, Ordering::Relaxed));
    if client.open.fetch_add(1, Ordering::Relaxed) >= Limits::STREAMS_HELD {
        client.flooded.notify_one();
    }
    let mut guard = CancelGuard {
        client: &client,
        has_response: false,
    };
    let stream = Arc::new(Stream {
        client: Arc::clone(&client),
        id,
        connection: Mutex::default(),
    });
    let mut record = client.tunnel.record(&request, id.get());
    let is_grpc = head::is_grpc(request.headers());
    let span = debug_span!("request", n = id.get(), request = record.request());
    let exchanged = exchange(&stream, request, &mut record)
        .instrument(span)
        .await;
    guard.has_response = true;
    let refusal = match exchanged {
        Ok(response) => {
            record.finish(Outcome::Allowed);
            return Ok(response.map(|body| {
                boxed(StreamBody {
                    body,
                    stream: Some(stream),
                })
            }));
        }
        Err(ExchangeError::NotSent) => {
            let refusal = Refusal::upstream_unreachable(
                "the upstream takes no more requests on its connection".to_owned(),
            );
            record.finish(Outcome::Refused(&refusal));
            return Err(NotSent(Reason::REFUSED_STREAM.into()));
        }
        Err(error) => error.into_refusal(),
    };
    let response = if is_grpc {
        reply::refused_call(&refusal, record.subject())
    } else {
        reply::refused(&refusal, record.subject(), &client.tunnel.services.guidance)
    };
    record.finish(Outcome::Refused(&refusal));
    Ok(response.map(full))
}

/// Runs the exchange of `stream`, and stores the upstream connection in it.
async fn exchange(
    stream: &Arc<Stream>,
    request: Request<Incoming>,
    record: &mut Record,
) -> Result<Response<ResponseBody>, ExchangeError> {
    let client = &stream.client;
    let services = &client.tunnel.services;
    let tasks = client.pool.tasks();
    let program = record.program().to_owned();
    let bytes = head::bytes(request.uri(), request.headers());
    let acquired = match services.memory.head(&program, bytes) {
        Some(room) => client
            .pool
            .acquire(&services.egress, &program)
            .await
            .map(|connection| (connection, room)),
        None => Err(Refusal::limit_reached(
            "too many requests wait for their answers",
        )),
    };
    let (mut connection, _room) = match acquired {
        Ok(acquired) => acquired,
        Err(refusal) => {
            drop(CompleteBody::of_stream(
                request.into_body(),
                tasks.spawner(),
            ));
            return Err(refusal.into());
        }
    };
    let held: Kept = Arc::clone(stream) as _;
    let exchange = Exchange {
        services,
        upgrades: None,
        client: None,
        held: Some(held),
    };
    let mut source = client.tunnel.source(&mut connection, Some(stream.id));
    let request = Outbound::of_client(request, tasks);
    let exchanged = exchange.run(&mut source, request, record).await;
    if exchanged.is_err() {
        if matches!(exchanged, Err(ExchangeError::NotSent))
            && !connection.upstream.is_open_to(&client.tunnel.origin)
        {
            client.upstream_ended.notify_one();
        }
        // The rest of the request may still be in flight.
        connection.upstream.close_unless_ready();
    }
    *stream.connection() = Some(connection);
    exchanged
}
