use std::future::{pending, poll_fn};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use h2::Reason;
use hyper::{Request, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::pool::UpstreamPool;
use super::{Client, serve};
use crate::ground::limits::Limits;
use crate::relay::upstream::Upstream;
use crate::testing::{self, Remembered};
use crate::wire::io::tasks::ConnectionTasks;
use crate::wire::memory::Memory;

#[tokio::test(start_paused = true)]
async fn an_upstream_that_reads_no_more_keeps_no_connection_from_other_streams() {
    let (services, _) =
        testing::services("{host: web.test, port: 80, protocol: rest, access: full}");
    let tunnel = testing::tunnel(&services, "web.test:80");
    let (near, mut far) = duplex(1024);
    let (near_client, client) = duplex(1024 * 1024);
    let mut first = Upstream::new(ConnectionTasks::default());
    first
        .establish(
            tunnel.origin.clone(),
            (Ipv4Addr::LOCALHOST, 80).into(),
            near,
        )
        .await
        .unwrap();
    let pool = UpstreamPool::new(first, None);
    let shared = Client::new(tunnel, pool.clone());
    tokio::spawn(async move {
        far.read_exact(&mut [0; 512]).await.unwrap();
        // Waits until there is no room for more of the request.
        tokio::time::sleep(Limits::LINGER).await;
        far.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
        pending::<()>().await;
    });
    tokio::spawn(
        async move { serve(&shared, near_client, &Memory::default().windows(), None).await },
    );
    let (mut requests, connection) = h2::client::handshake(client).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://web.test/upload").body(()).unwrap();
    let (answer, mut body) = requests.send_request(request, false).unwrap();
    body.send_data(Bytes::from(vec![0; 4_000_000]), false)
        .unwrap();
    assert_eq!(
        answer.await.unwrap().status(),
        StatusCode::PAYLOAD_TOO_LARGE
    );
    body.send_reset(Reason::CANCEL);
    tokio::time::sleep(2 * Limits::LINGER).await;
    assert_eq!(pool.free_slots(), Limits::POOLED_CONNECTIONS);
}

const ONLY_B: &str = "{host: web.test, port: 80, protocol: rest, enforcement: enforce, rules: \
                      [{allow: {method: GET, path: /b}}]}";

/// Serves an HTTP/2 client through an HTTP/1.1 upstream. Returns the audit, the client, the
/// upstream's end, and the state of the streams.
async fn served(
    endpoints: &str,
) -> (
    Arc<Remembered>,
    h2::client::SendRequest<Bytes>,
    DuplexStream,
    Arc<Client>,
) {
    let (services, audit) = testing::services(endpoints);
    let tunnel = testing::tunnel(&services, "web.test:80");
    let (near, far) = duplex(64 * 1024);
    let (near_client, client) = duplex(64 * 1024);
    let mut first = Upstream::new(ConnectionTasks::default());
    first
        .establish(
            tunnel.origin.clone(),
            (Ipv4Addr::LOCALHOST, 80).into(),
            near,
        )
        .await
        .unwrap();
    let shared = Client::new(tunnel, UpstreamPool::new(first, None));
    let serving = Arc::clone(&shared);
    tokio::spawn(
        async move { serve(&serving, near_client, &Memory::default().windows(), None).await },
    );
    let (requests, connection) = h2::client::handshake(client).await.unwrap();
    tokio::spawn(connection);
    (audit, requests, far, shared)
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_its_rules_deny_is_answered_and_its_upstream_gets_nothing() {
    let (audit, mut requests, mut far, shared) = served(ONLY_B).await;
    let request = Request::get("http://web.test/a").body(()).unwrap();
    let answer = requests
        .send_request(request, true)
        .unwrap()
        .0
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert_eq!(audit.decisions(), ["request_not_in_rules"]);
    assert_eq!(shared.pool.free_slots(), Limits::POOLED_CONNECTIONS);
    drop((requests, shared));
    let mut heard = Vec::new();
    far.read_to_end(&mut heard).await.unwrap();
    assert!(heard.is_empty(), "{}", heard.escape_ascii());
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_is_told_so_in_one_head() {
    let (audit, mut requests, _far, _) = served(ONLY_B).await;
    let call = Request::post("http://web.test/s/m")
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let answer = requests.send_request(call, true).unwrap().0.await.unwrap();
    assert_eq!(
        (answer.status(), &answer.headers()["grpc-status"]),
        (StatusCode::OK, &"7".parse().unwrap())
    );
    assert!(answer.body().is_end_stream());
    assert_eq!(audit.decisions(), ["request_not_in_rules"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_registered_from_its_leave_to_its_end() {
    let (audit, mut requests, mut far, shared) = served(ONLY_B).await;
    let request = Request::get("http://web.test/b").body(()).unwrap();
    let (answer, _) = requests.send_request(request, true).unwrap();
    far.read_exact(&mut [0; 16]).await.unwrap();
    let connection = &shared.tunnel.connection;
    let authorizer = &shared.tunnel.services.authorizer;
    let only_c = ONLY_B.replace("/b", "/c");
    authorizer.policy.replace(testing::snapshot(2, &only_c));
    assert!(connection.current_permit(authorizer).await.is_err());
    far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(answer.await.unwrap().status(), StatusCode::OK);
    while shared.open.load(Ordering::Relaxed) > 0 {
        tokio::task::yield_now().await;
    }
    assert!(connection.current_permit(authorizer).await.is_ok());
    assert_eq!(audit.decisions(), ["allowed"]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_told_to_shut_down_says_so_to_its_client() {
    let (_, mut requests, _far, shared) = served(ONLY_B).await;
    let (answer, _) = requests
        .send_request(Request::get("http://web.test/b").body(()).unwrap(), true)
        .unwrap();
    while shared.open.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(shared.tunnel.connection.notify_shutdown());
    assert!(answer.await.is_err());
    let error = poll_fn(|cx| requests.poll_ready(cx)).await.unwrap_err();
    assert!(
        error.is_go_away() && error.reason() == Some(Reason::NO_ERROR),
        "{error:?}"
    );
}
