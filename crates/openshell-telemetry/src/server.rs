//! The server for health and metrics. It has its own thread, so that it answers even when the
//! supervisor's tasks do not run.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::exposition;
use crate::health::Health;
use crate::metrics::Metrics;

/// Maximum number of connections at once; one more replaces the oldest.
const CONNECTIONS: usize = 16;

/// The time limits for the head of a request, and for one connection.
const HEAD: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(10);

/// The pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// The sockets at which the server listens.
#[derive(Debug, Default)]
pub struct Sockets {
    /// The socket for everybody who can reach it.
    pub tcp: Option<TcpListener>,
    /// The socket for those whom the permissions of its file and [`Admit`] let in.
    pub unix: Option<UnixListener>,
}

/// Returns true if the process at the other end of a Unix socket may connect.
pub type Admit = Box<dyn Fn(BorrowedFd<'_>) -> bool + Send + Sync>;

/// A running server, which ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    _running: oneshot::Sender<()>,
}

impl Server {
    /// Starts the server.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn start(
        sockets: Sockets,
        admit: Admit,
        health: Arc<Health>,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let (running, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (tcp, unix) = {
            let _runtime = runtime.enter();
            let tcp = sockets
                .tcp
                .map(tokio::net::TcpListener::from_std)
                .transpose()?;
            (
                tcp,
                sockets
                    .unix
                    .map(tokio::net::UnixListener::from_std)
                    .transpose()?,
            )
        };
        let pages = Arc::new(Pages { health, metrics });
        let serve = async move {
            if let Some(listener) = tcp {
                let pages = Arc::clone(&pages);
                tokio::spawn(async move {
                    let mut open = VecDeque::new();
                    loop {
                        pages
                            .accepted(listener.accept().await.map(|(stream, _)| stream), &mut open)
                            .await;
                    }
                });
            }
            if let Some(listener) = unix {
                tokio::spawn(async move {
                    let mut open = VecDeque::new();
                    loop {
                        match listener.accept().await {
                            Ok((stream, _)) if !admit(stream.as_fd()) => {}
                            accepted => {
                                pages
                                    .accepted(accepted.map(|(stream, _)| stream), &mut open)
                                    .await
                            }
                        }
                    }
                });
            }
            // The sender is never used: it is dropped at the end.
            let _ = ended.await;
        };
        std::thread::Builder::new()
            .name("health".to_owned())
            .spawn(move || runtime.block_on(serve))?;
        Ok(Self { _running: running })
    }
}

/// The sources of all answers.
struct Pages {
    health: Arc<Health>,
    metrics: Arc<Metrics>,
}

impl Pages {
    /// Serves one connection in addition to the `open` ones.
    async fn accepted(
        self: &Arc<Self>,
        stream: io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static>,
        open: &mut VecDeque<AbortHandle>,
    ) {
        let Ok(stream) = stream else {
            return tokio::time::sleep(PAUSE).await;
        };
        open.retain(|connection: &AbortHandle| !connection.is_finished());
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let pages = Arc::clone(self);
        let connection = tokio::spawn(async move {
            let service = service_fn(move |request| {
                let pages = Arc::clone(&pages);
                async move { Ok::<_, Infallible>(pages.answer(&request).await) }
            });
            let mut http = http1::Builder::new();
            let served = http
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // An error means that the client is gone, or has sent something that is not a request.
            let _ = timeout(DEADLINE, served).await;
        });
        open.push_back(connection.abort_handle());
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = page(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD");
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match request.uri().path() {
            "/healthz" => probe(self.health.failure().await),
            "/readyz" => probe(match self.health.unready() {
                Some(reason) => Some(reason),
                None => self.health.failure().await,
            }),
            "/metrics" => match exposition::text(&self.metrics) {
                Ok(text) => {
                    let mut response = Response::new(text.into());
                    response.headers_mut().insert(
                        CONTENT_TYPE,
                        HeaderValue::from_static(exposition::MEDIA_TYPE),
                    );
                    response
                }
                Err(error) => page(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            },
            _ => page(
                StatusCode::NOT_FOUND,
                "not found; use /healthz, /readyz or /metrics",
            ),
        }
    }
}

/// Returns the answer to a probe.
fn probe(failure: Option<&str>) -> Response<Full<Bytes>> {
    match failure {
        None => page(StatusCode::OK, "ok"),
        Some(reason) => page(StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

fn page(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(format!("{text}\n").into());
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}
