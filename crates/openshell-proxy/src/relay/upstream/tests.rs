use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::{Request, Response, StatusCode};
use openshell_events::reason::ReasonCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::{Incoming, SendError, Upstream};
use crate::credentials::inject::inject;
use crate::credentials::vault::Vault;
use crate::ground::limits::Limits;
use crate::ground::target::{Origin, Scheme};
use crate::reach::resolve::guard::Destination;
use crate::relay::body::searched::whole;
use crate::testing;
use crate::wire::io::tasks::ConnectionTasks;
use crate::wire::memory::Memory;

const ADDRESS: SocketAddr = SocketAddr::new(testing::UPSTREAM, 80);

fn origin(host_and_port: &str) -> Origin {
    Origin {
        scheme: Scheme::Http,
        target: testing::target(host_and_port),
    }
}

/// Establishes an HTTP/1.1 connection to web.test, and returns its other end, too.
async fn established(tasks: &ConnectionTasks) -> (Upstream, DuplexStream) {
    let (near, far) = duplex(64 * 1024);
    let mut upstream = Upstream::new(tasks.clone());
    upstream
        .establish(origin("web.test:80"), ADDRESS, near)
        .await
        .unwrap();
    (upstream, far)
}

/// Sends a request through `upstream`, which asks to switch to the protocol `asked`.
async fn sent(
    upstream: &mut Upstream,
    asked: Option<&'static str>,
) -> Result<Response<Incoming>, SendError> {
    let request = Request::get("http://web.test/a")
        .body(whole(Bytes::new()))
        .unwrap();
    let request = inject(request, &origin("web.test:80"), &Vault::default(), false).unwrap();
    let asked = asked.map(HeaderValue::from_static);
    upstream.send(request, asked.as_ref()).await
}

/// Sends `answer` when the head of a request has arrived.
async fn answering(far: &mut DuplexStream, answer: &[u8]) {
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\n") {
        assert_ne!(far.read_buf(&mut heard).await.unwrap(), 0);
    }
    // The proxy may give up this upstream before it has heard everything.
    let _ = far.write_all(answer).await;
}

/// Returns how an exchange ends whose upstream sends `answer` when it has the head of the request.
async fn answered(
    answer: &[u8],
    asked: Option<&'static str>,
) -> (Result<Response<Incoming>, SendError>, Upstream) {
    let tasks = ConnectionTasks::default();
    let (mut upstream, mut far) = established(&tasks).await;
    let response = tokio::select! {
        (response, ()) = async { tokio::join!(sent(&mut upstream, asked), answering(&mut far, answer)) } => response,
        () = tasks.run() => unreachable!("tasks are driven for ever"),
    };
    (response, upstream)
}

/// Returns the reason code of an exchange that failed.
#[track_caller]
fn failed(response: Result<Response<Incoming>, SendError>) -> ReasonCode {
    match response {
        Err(SendError::Failed(refusal)) => refusal.code(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_answer_with_two_lengths_has_that_of_its_coding() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\nTransfer-Encoding: \
                   chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    let tasks = ConnectionTasks::default();
    let (mut upstream, mut far) = established(&tasks).await;
    let exchange = async {
        let (response, ()) = tokio::join!(sent(&mut upstream, None), answering(&mut far, answer));
        let response = response.unwrap();
        assert!(
            !response.headers().contains_key(CONTENT_LENGTH)
                && !response.headers().contains_key(TRANSFER_ENCODING)
        );
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "hi"
        );
    };
    tokio::select! {
        () = exchange => {}
        () = tasks.run() => unreachable!("tasks are driven for ever"),
    }
}

#[tokio::test]
async fn an_answer_in_another_coding_than_chunked_fails() {
    for coding in ["gzip, chunked", "gzip", "identity", "chunked, chunked"] {
        let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n");
        let (response, _) = answered(answer.as_bytes(), None).await;
        assert_eq!(
            failed(response),
            ReasonCode::UpstreamUnreachable,
            "{coding}"
        );
    }
}

#[tokio::test]
async fn an_upstream_that_sends_without_answering_is_given_up() {
    let interim = b"HTTP/1.1 102 Processing\r\n\r\n";
    let (response, _) = answered(
        &interim.repeat(Limits::UNANSWERED_BYTES / interim.len() + 1),
        None,
    )
    .await;
    assert_eq!(failed(response), ReasonCode::UpstreamUnreachable);
}

#[tokio::test]
async fn an_answer_that_is_no_http_fails() {
    let (response, _) = answered(b"220 ready\r\n\r\n", None).await;
    assert_eq!(failed(response), ReasonCode::UpstreamUnreachable);
}

#[tokio::test]
async fn protocols_are_switched_only_to_one_that_was_asked_for_and_only_by_its_handshake() {
    let switched = |headers: &str| {
        format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{headers}\r\n")
    };
    let accept = "Upgrade: websocket\r\nSec-WebSocket-Accept: x\r\n";
    for (asked, headers, may) in [
        (None, accept, false),
        (Some("websocket"), "Upgrade: websocket\r\n", false),
        (
            Some("websocket"),
            "Upgrade: other\r\nSec-WebSocket-Accept: x\r\n",
            false,
        ),
        (Some("websocket"), "", false),
        (Some("websocket"), accept, true),
        (Some("echo, other"), "Upgrade: Other\r\n", true),
    ] {
        let (response, _) = answered(switched(headers).as_bytes(), asked).await;
        if may {
            assert_eq!(
                response.unwrap().status(),
                StatusCode::SWITCHING_PROTOCOLS,
                "{asked:?}: {headers}"
            )
        } else {
            assert_eq!(
                failed(response),
                ReasonCode::UnsolicitedUpgrade,
                "{asked:?}: {headers}"
            )
        }
    }
}

#[tokio::test]
async fn a_connection_ends_with_an_answer_that_says_so_or_has_no_length() {
    for (answer, is_ending) in [
        ("HTTP/1.1 204 No Content\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            true,
        ),
        ("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\n\r\n", true),
    ] {
        let (response, upstream) = answered(answer.as_bytes(), None).await;
        response.unwrap();
        assert_eq!(upstream.is_ending(), is_ending, "{answer}");
    }
}

#[tokio::test]
async fn an_upstream_that_closes_instead_of_answering_has_failed_unless_it_kept_its_connection() {
    for (is_kept, said) in [(false, ""), (true, ""), (true, "HTTP/1.1 2")] {
        let tasks = ConnectionTasks::default();
        let (mut upstream, mut far) = established(&tasks).await;
        let answers = async move {
            if is_kept {
                answering(&mut far, b"HTTP/1.1 204 No Content\r\n\r\n").await;
            }
            answering(&mut far, said.as_bytes()).await;
        };
        let requests = async {
            if is_kept {
                sent(&mut upstream, None).await.unwrap();
            }
            sent(&mut upstream, None).await
        };
        let response = tokio::select! {
            (response, ()) = async { tokio::join!(requests, answers) } => response,
            () = tasks.run() => unreachable!("tasks are driven for ever"),
        };
        if is_kept && said.is_empty() {
            assert!(matches!(response, Err(SendError::Closed)), "{response:?}")
        } else {
            assert_eq!(failed(response), ReasonCode::UpstreamUnreachable)
        }
    }
}

#[tokio::test]
async fn what_other_clients_forgive_in_a_head_is_an_answer_and_what_is_none_is_named() {
    let many = format!("HTTP/1.1 204 No Content\r\n{}\r\n", "X: v\r\n".repeat(300));
    for forgiven in [
        "HTTP/1.1 204 No Content\r\nX-A : b\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nX-A: b\r\n c\r\n\r\n",
        &many,
    ] {
        let (response, _) = answered(forgiven.as_bytes(), None).await;
        assert_eq!(
            response.unwrap().status(),
            StatusCode::NO_CONTENT,
            "{forgiven}"
        );
    }
    for (malformed, defect) in [
        (
            "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
            "a line of its head is not a header",
        ),
        (
            "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
            "a line of its head is not a header",
        ),
        (
            "HTTP/1.1 2x0 OK\r\n\r\n",
            "its status is not a number of three digits",
        ),
        (
            "ICY 200 OK\r\n\r\n",
            "it does not begin with HTTP/1.1 or HTTP/1.0",
        ),
    ] {
        let (response, _) = answered(malformed.as_bytes(), None).await;
        let Err(SendError::Failed(refusal)) = response else {
            panic!("{malformed}: {response:?}")
        };
        assert_eq!(refusal.reason(), defect, "{malformed}");
    }
}

#[tokio::test]
async fn a_request_without_a_connection_is_not_sent() {
    let mut upstream = Upstream::new(ConnectionTasks::default());
    assert!(upstream.is_unused());
    assert!(matches!(
        sent(&mut upstream, None).await,
        Err(SendError::NotSent(_))
    ));
}

#[tokio::test]
async fn a_connection_is_used_again_for_its_origin_at_its_address_alone() {
    let at = |address: &str| Destination::configured_by_operator(vec![address.parse().unwrap()]);
    let tasks = ConnectionTasks::default();
    let (upstream, far) = established(&tasks).await;
    let here = at("8.8.8.8:80");
    let elsewhere = at("8.8.4.4:80");
    let both = "8.8.4.4:80".parse().unwrap();
    let both = Destination::configured_by_operator(vec![both, ADDRESS]);
    assert_eq!(
        upstream.reusable(&origin("web.test:80"), &here),
        Some(ADDRESS)
    );
    assert_eq!(
        upstream.reusable(&origin("web.test:80"), &both),
        Some(ADDRESS)
    );
    assert_eq!(upstream.reusable(&origin("web.test:80"), &elsewhere), None);
    assert_eq!(upstream.reusable(&origin("web.test:81"), &here), None);
    assert_eq!(
        upstream.reusable(
            &Origin {
                scheme: Scheme::Https,
                ..origin("web.test:80")
            },
            &here
        ),
        None
    );
    assert!(
        upstream.clone_http2().is_none(),
        "no other stream shares it"
    );
    drop(far);
    tokio::select! {
        () = tasks.run() => unreachable!("tasks are driven for ever"),
        () = async { while upstream.is_open_to(&origin("web.test:80")) { tokio::task::yield_now().await } } => {}
    }
    assert_eq!(upstream.reusable(&origin("web.test:80"), &here), None);
}

/// Returns a frame of HTTP/2 (RFC 9113 §4.1).
fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, 0], &stream.to_be_bytes(), payload].concat()
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// Reads frames up to the head of a request.
async fn read_request(far: &mut DuplexStream) {
    far.read_exact(&mut [0; 24]).await.unwrap();
    loop {
        let mut head = [0; 9];
        far.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        far.read_exact(&mut vec![0; length.try_into().unwrap()])
            .await
            .unwrap();
        if head[3] == HEADERS {
            return;
        }
    }
}

/// Returns how a stream ends whose upstream answers its head with `answer`.
async fn answered_in_http2(answer: &[u8]) -> Result<Response<Incoming>, SendError> {
    let tasks = ConnectionTasks::default();
    let (near, mut far) = duplex(64 * 1024);
    let mut upstream = Upstream::new(tasks.clone());
    let _ended = upstream
        .establish_http2(
            origin("web.test:80"),
            ADDRESS,
            near,
            &Memory::default().windows(),
        )
        .await
        .unwrap();
    assert!(
        upstream.is_shared()
            && upstream
                .clone_http2()
                .is_some_and(|other| other.is_shared())
    );
    let answering = async move {
        far.write_all(&frame(SETTINGS, 0, &[])).await.unwrap();
        read_request(&mut far).await;
        far.write_all(answer).await.unwrap();
    };
    tokio::select! {
        (response, ()) = async { tokio::join!(sent(&mut upstream, None), answering) } => response,
        () = tasks.run() => unreachable!("tasks are driven for ever"),
    }
}

#[tokio::test]
async fn a_stream_that_its_upstream_has_not_processed_is_one_to_send_again() {
    let refused_stream = 7_u32.to_be_bytes();
    let no_error = 0_u32.to_be_bytes();
    let none = 0_u32.to_be_bytes();
    let refused = answered_in_http2(&frame(RST_STREAM, 1, &refused_stream)).await;
    assert!(matches!(refused, Err(SendError::Refused)), "{refused:?}");
    let behind_the_last = answered_in_http2(&frame(GOAWAY, 0, &[none, no_error].concat())).await;
    assert!(
        matches!(behind_the_last, Err(SendError::Refused)),
        "{behind_the_last:?}"
    );
}

#[tokio::test]
async fn a_stream_that_its_upstream_may_have_processed_fails() {
    let internal_error = 2_u32.to_be_bytes();
    let cancel = 8_u32.to_be_bytes();
    assert_eq!(
        failed(answered_in_http2(&frame(RST_STREAM, 1, &cancel)).await),
        ReasonCode::UpstreamUnreachable
    );
    let fault = frame(GOAWAY, 0, &[1_u32.to_be_bytes(), internal_error].concat());
    assert_eq!(
        failed(answered_in_http2(&fault).await),
        ReasonCode::UpstreamUnreachable
    );
}
