use std::future::pending;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bytes::Bytes;
use h2::Reason;
use hyper::{Request, StatusCode};
use openshell_policy::denial::Denial;
use openshell_policy::network::host::Host;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::sync::Semaphore;

use super::{Lanes, serve};
use crate::context::Context;
use crate::decide::connection::judge;
use crate::decide::snapshot::Snapshot;
use crate::decide::store::PolicyStore;
use crate::identify::{Identifier, Processes};
use crate::limits::Limits;
use crate::memory::Memory;
use crate::peer::{Caller, Callers, Program};
use crate::record::Audit;
use crate::relay::http::Inside;
use crate::relay::upstream::Upstream;
use crate::resolve::lookup::Resolver;
use crate::target::{Scheme, Target};
use crate::tenure::Connection;

#[derive(Debug)]
struct Uncounted;

impl Audit for Uncounted {
    fn denied(&self, _: Denial) {}
}

/// A connection on which everything may be asked.
fn everything() -> Inside {
    let policy = "network_policies: {web: {endpoints: [{host: web.test, port: 80, protocol: rest, access: full}], \
                  binaries: [{path: /usr/bin/curl}]}}";
    let (policy, _) = openshell_policy::yaml::policy(policy).unwrap();
    let snapshot = Snapshot::new(1, policy, None, &|_| None).unwrap();
    let program = Program { executable: "/usr/bin/curl".into(), ancestors: vec![], cmdline_paths: vec![] };
    let callers = Callers::new(vec![Caller { pid: 7, program: program.into() }]).unwrap();
    let target = Target { host: Host::parse("web.test").unwrap(), port: 80 };
    let permit = judge(&snapshot, &callers, &target, || Ok(())).unwrap();
    let processes = Processes::of_namespace(i32::try_from(std::process::id()).unwrap()).unwrap();
    let (unasked, _) = UnixStream::pair().unwrap();
    let ctx = Context {
        policy: Arc::new(PolicyStore::new(snapshot)),
        identifier: Arc::new(Identifier::new(unasked.into(), 0, processes).unwrap()),
        unsearched: Default::default(),
        turns: Arc::new(Semaphore::new(1)),
        http2: Arc::new(Semaphore::new(1)),
        memory: Default::default(),
        resolver: Arc::new(Resolver::from_system().unwrap()),
        own: crate::resolve::guard::OwnAddresses { listeners: Vec::new(), is_on_link: |_| false },
        authority: None,
        trust: Default::default(),
        vault: Arc::default(),
        inference: None,
        shares: Arc::default(),
        audit: Arc::new(Uncounted),
        observations: None,
        workload: Ipv4Addr::LOCALHOST,
    };
    let connection = Arc::new(Connection::new(callers, permit, IpAddr::V4(Ipv4Addr::LOCALHOST)));
    Inside { ctx: Arc::new(ctx), connection, scheme: Scheme::Http }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_reads_no_more_keeps_no_connection_from_other_streams() {
    let inside = everything();
    let ((near, mut far), (near_client, client)) = (duplex(1024), duplex(1024 * 1024));
    let mut first = Upstream::default();
    first.keep(inside.origin(), (Ipv4Addr::LOCALHOST, 80).into(), near).await.unwrap();
    let lanes = Lanes::new(first, Arc::default(), None);
    tokio::spawn(async move {
        far.read_exact(&mut [0; 512]).await.unwrap();
        // Until there is no room for more of it.
        tokio::time::sleep(Limits::LINGER).await;
        far.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        pending::<()>().await;
    });
    let served = Arc::clone(&lanes);
    tokio::spawn(async move { serve(&inside, near_client, &Memory::default().windows(), served).await });
    let (mut requests, connection) = h2::client::handshake(client).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://web.test/upload").body(()).unwrap();
    let (answer, mut body) = requests.send_request(request, false).unwrap();
    body.send_data(Bytes::from(vec![0; 4_000_000]), false).unwrap();
    assert_eq!(answer.await.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
    body.send_reset(Reason::CANCEL);
    tokio::time::sleep(2 * Limits::LINGER).await;
    assert_eq!(lanes.turns.available_permits(), Limits::LANES);
}
