//! Calls the tests' gRPC service in each of the four ways, through the proxy of its environment,
//! inside TLS and in clear, and prints the results.

#![expect(clippy::disallowed_methods, reason = "a test's program prints")]
#![expect(
    clippy::unwrap_used,
    reason = "in a test a failed step is a failed test"
)]

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream as stream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};
use tower::service_fn;

/// Messages as raw bytes.
#[derive(Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// Opens a tunnel to `uri` through the proxy.
async fn connect(uri: Uri) -> std::io::Result<TokioIo<TcpStream>> {
    let proxy = std::env::var("HTTPS_PROXY").unwrap();
    let mut stream = TcpStream::connect(proxy.trim_start_matches("http://")).await?;
    let target = format!("{}:{}", uri.host().unwrap(), uri.port_u16().unwrap_or(443));
    stream
        .write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())
        .await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    assert!(
        head.starts_with(b"HTTP/1.1 200 "),
        "{}",
        String::from_utf8_lossy(&head)
    );
    Ok(TokioIo::new(stream))
}

async fn call(channel: Channel) {
    let path = |name: &str| PathAndQuery::try_from(format!("/lab.Calls/{name}")).unwrap();
    let mut client = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    client.ready().await.unwrap();
    let shown = |answer: Result<tonic::Response<Bytes>, Status>| match answer {
        Ok(answer) => String::from_utf8_lossy(answer.get_ref()).into_owned(),
        Err(status) => format!("{:?} {}", status.code(), status.message()),
    };
    let words = || stream::iter([Bytes::from("abc"), Bytes::from("de")]);
    let one = client
        .unary(Request::new(Bytes::from("hello")), path("One"), Plain)
        .await;
    println!("one {}", shown(one));
    client.ready().await.unwrap();
    let count = client
        .client_streaming(Request::new(words()), path("Count"), Plain)
        .await;
    println!("count {}", shown(count));
    for name in ["Many", "Talk"] {
        client.ready().await.unwrap();
        match client
            .streaming(Request::new(words()), path(name), Plain)
            .await
        {
            Ok(answer) => {
                let mut messages = answer.into_inner();
                let mut count = 0;
                while messages.message().await.unwrap().is_some() {
                    count += 1;
                }
                println!("{name} {count}");
            }
            Err(status) => println!("{name} {:?} {}", status.code(), status.message()),
        }
    }
    client.ready().await.unwrap();
    let large = Bytes::from(vec![b'x'; 3_000_000]);
    let answer = client
        .unary(Request::new(large.clone()), path("One"), Plain)
        .await;
    println!(
        "large {}",
        answer.is_ok_and(|answer| *answer.get_ref() == large)
    );
    client.ready().await.unwrap();
    let mut late = Request::new(Bytes::from("sleep5"));
    late.set_timeout(Duration::from_millis(300));
    println!(
        "late {}",
        shown(client.unary(late, path("One"), Plain).await)
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let authority =
        Certificate::from_pem(std::fs::read(std::env::var("SSL_CERT_FILE").unwrap()).unwrap());
    let secure = Endpoint::from_static("https://web.test")
        .tls_config(ClientTlsConfig::new().ca_certificate(authority));
    for endpoint in [
        secure.unwrap(),
        Endpoint::from_static("http://web.test:8080"),
    ] {
        call(
            endpoint
                .connect_with_connector(service_fn(connect))
                .await
                .unwrap(),
        )
        .await;
    }
}
