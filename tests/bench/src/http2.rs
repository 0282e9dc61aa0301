//! HTTP/2 inside TLS: server and measurements.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::client::{Tls, dial};

/// Address of the server.
pub(crate) const TARGET: &str = "10.99.0.1:8444";

type Body = BoxBody<Bytes, Infallible>;

/// Serves until it is killed: two bytes for a GET, an endless stream for `GET /slow`, a gRPC
/// message for a POST.
pub(crate) fn serve(config: &ServerConfig) {
    let mut config = config.clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = std::net::TcpListener::bind(TARGET).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        runtime().block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                client.set_nodelay(true).unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let client = acceptor.accept(client).await.unwrap();
                    let protocol = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    // A client may break off.
                    let _ = protocol
                        .serve_connection(TokioIo::new(client), service_fn(answer))
                        .await;
                });
            }
        });
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    if request.method() == Method::POST {
        let message = request
            .into_body()
            .collect()
            .await
            .map(|body| body.to_bytes())
            .unwrap_or_default();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let body = Full::from(message).with_trailers(std::future::ready(Some(Ok(trailers))));
        let mut response = Response::new(body.boxed());
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        return Ok(response);
    }
    Ok(Response::new(match request.uri().path() {
        "/slow" => {
            let parts = tokio_stream(Bytes::from(vec![0; 16 * 1024]));
            StreamBody::new(parts).boxed()
        }
        _ => Full::from("ok").boxed(),
    }))
}

/// An endless stream of `part`.
fn tokio_stream(part: Bytes) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> {
    futures_util::stream::repeat_with(move || Ok(Frame::data(part.clone())))
}

async fn open() -> SendRequest<Full<Bytes>> {
    let stream = dial(TARGET);
    stream.set_nonblocking(true).unwrap();
    let mut config = (*Tls::new().0).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("10.99.0.1").unwrap();
    let stream =
        TlsConnector::from(Arc::new(config)).connect(name, TcpStream::from_std(stream).unwrap());
    let protocol = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = protocol
        .handshake(TokioIo::new(stream.await.unwrap()))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

async fn get(sender: &mut SendRequest<Full<Bytes>>, path: &str) -> Response<Incoming> {
    let uri = format!("https://{TARGET}{path}");
    sender.ready().await.unwrap();
    let request = Request::get(uri).body(Full::default()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert!(response.status().is_success(), "{response:?}");
    response
}

async fn fetch(sender: &mut SendRequest<Full<Bytes>>) {
    get(sender, "/").await.into_body().collect().await.unwrap();
}

/// Returns the responses a second of `streams` concurrent streams in one connection.
pub(crate) fn rate(streams: usize) -> f64 {
    runtime().block_on(async {
        let mut sender = open().await;
        fetch(&mut sender).await;
        let start = Instant::now();
        let all = (0..streams).map(|_| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                let mut count = 0_u32;
                while start.elapsed() < Duration::from_secs(2) {
                    fetch(&mut sender).await;
                    count += 1;
                }
                count
            })
        });
        let mut count = 0;
        for stream in all.collect::<Vec<_>>() {
            count += stream.await.unwrap();
        }
        f64::from(count) / start.elapsed().as_secs_f64()
    })
}

/// Returns the times of consecutive calls.
pub(crate) fn calls(count: usize) -> Vec<f64> {
    runtime().block_on(async {
        let mut sender = open().await;
        let mut times = Vec::new();
        for _ in 0..count {
            let start = Instant::now();
            let message = Full::from(&b"\0\0\0\0\x05hello"[..]);
            let request = Request::post(format!("https://{TARGET}/api/Call?v=1"));
            let request = request
                .header(CONTENT_TYPE, "application/grpc")
                .header("te", "trailers")
                .body(message);
            sender.ready().await.unwrap();
            let response = sender.send_request(request.unwrap()).await.unwrap();
            let answer = response.into_body().collect().await.unwrap();
            assert_eq!(answer.trailers().unwrap()["grpc-status"], "0");
            times.push(start.elapsed().as_secs_f64());
        }
        times
    })
}

/// Returns the times of requests beside a stream that is read slowly, or without one.
pub(crate) fn beside(is_slow: bool, count: usize) -> Vec<f64> {
    runtime().block_on(async {
        let mut sender = open().await;
        fetch(&mut sender).await;
        if is_slow {
            let mut slow = get(&mut sender, "/slow").await.into_body();
            tokio::spawn(async move {
                while slow.frame().await.is_some() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
        let mut times = Vec::new();
        for _ in 0..count {
            let start = Instant::now();
            fetch(&mut sender).await;
            times.push(start.elapsed().as_secs_f64());
        }
        times
    })
}
