use std::future::pending;
use std::net::Ipv4Addr;

use bytes::Bytes;
use h2::Reason;
use hyper::{Request, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

use super::pool::UpstreamPool;
use super::{Client, serve};
use crate::io::tasks::ConnectionTasks;
use crate::limits::Limits;
use crate::memory::Memory;
use crate::relay::upstream::Upstream;
use crate::testing;

#[tokio::test(start_paused = true)]
async fn an_upstream_that_reads_no_more_keeps_no_connection_from_other_streams() {
    let (services, _) = testing::services("{host: web.test, port: 80, protocol: rest, access: full}");
    let tunnel = testing::tunnel(&services, "web.test:80");
    let ((near, mut far), (near_client, client)) = (duplex(1024), duplex(1024 * 1024));
    let mut first = Upstream::new(ConnectionTasks::default());
    first.establish(tunnel.origin.clone(), (Ipv4Addr::LOCALHOST, 80).into(), near).await.unwrap();
    let pool = UpstreamPool::new(first, None);
    let shared = Client::new(tunnel, pool.clone());
    tokio::spawn(async move {
        far.read_exact(&mut [0; 512]).await.unwrap();
        // Until there is no room for more of it.
        tokio::time::sleep(Limits::LINGER).await;
        far.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        pending::<()>().await;
    });
    tokio::spawn(async move { serve(&shared, near_client, &Memory::default().windows(), None).await });
    let (mut requests, connection) = h2::client::handshake(client).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://web.test/upload").body(()).unwrap();
    let (answer, mut body) = requests.send_request(request, false).unwrap();
    body.send_data(Bytes::from(vec![0; 4_000_000]), false).unwrap();
    assert_eq!(answer.await.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
    body.send_reset(Reason::CANCEL);
    tokio::time::sleep(2 * Limits::LINGER).await;
    assert_eq!(pool.free_slots(), Limits::POOLED_CONNECTIONS);
}
