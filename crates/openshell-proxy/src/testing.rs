//! Parts of a proxy for unit tests of its stages: a policy of their own, no network, and an audit
//! that remembers.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hyper::Request;
use hyper::http::request::Parts;
use openshell_events::denial::Denial;
use openshell_events::event::{Audit, Event, Way};
use openshell_events::words::{Action, Door, EndedBy};
use openshell_policy::inference::interface::Interface;
use openshell_policy::inference::{
    Backend, Budget, KeySource, Provider, RouteSpec, Timeouts, Tools,
};
use openshell_policy::network::host::Host;
use openshell_policy::secret::Secret;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};

use crate::decide::identify::{Identifier, Identity, Processes, Witness};
use crate::decide::snapshot::Snapshot;
use crate::decide::store::PolicyStore;
use crate::doors::proxy::Proxy;
use crate::ground::peer::{Caller, Program};
use crate::ground::target::{Scheme, Target};
use crate::inference::route::Route;
use crate::policy_local::serve::PolicyLocal;
use crate::reach::authorize::authorizer::{Authorization, Authorizer, Mode};
use crate::reach::authorize::connection::Connection;
use crate::reach::authorize::revocation::RevocationWatch;
use crate::reach::dial::Egress;
use crate::reach::resolve::lookup::Resolver;
use crate::relay::services::Services;
use crate::relay::tunnel::HttpTunnel;
use crate::report::closing::Closing;
use crate::wire::tls::interceptor::Interceptor;

/// Address of every upstream: a public one, which no test dials.
pub(crate) const UPSTREAM: IpAddr = IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8));

/// An audit that remembers.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    denials: Mutex<Vec<Denial>>,
    decisions: Mutex<Vec<&'static str>>,
    published: Mutex<Vec<String>>,
    ended_by: Mutex<Vec<EndedBy>>,
}

impl Remembered {
    /// The codes of all denials so far.
    pub(crate) fn denials(&self) -> Vec<&'static str> {
        self.denials
            .lock()
            .iter()
            .map(|denial| denial.code.as_str())
            .collect()
    }

    /// The code of each decision so far; `allowed` or `aborted` where it has none.
    pub(crate) fn decisions(&self) -> Vec<&'static str> {
        self.decisions.lock().clone()
    }

    /// Whose doing each end of a connection was so far.
    pub(crate) fn ended_by(&self) -> Vec<EndedBy> {
        self.ended_by.lock().clone()
    }

    /// The action, client and reason of each connection to a published port so far.
    pub(crate) fn published(&self) -> Vec<String> {
        self.published.lock().clone()
    }
}

impl Audit for Remembered {
    fn event(&self, event: &Event<'_>) {
        self.denials.lock().extend(event.denial().cloned());
        let decided = match event {
            Event::Connection(event) => &event.decided,
            Event::Request(event) => &event.decided,
            Event::Closed(event) => {
                self.ended_by.lock().push(event.by);
                self.decisions
                    .lock()
                    .extend(event.code.map(|code| code.as_str()));
                return;
            }
            Event::Published(event) => {
                let line = format!(
                    "{} {} {}",
                    event.action.as_str(),
                    event.client,
                    event.reason
                );
                return self.published.lock().push(line);
            }
            _ => return,
        };
        let word = match (decided.code, decided.action) {
            (Some(code), _) => code.as_str(),
            (None, Action::Denied) => "aborted",
            (None, _) => "allowed",
        };
        self.decisions.lock().push(word);
    }
}

/// The policy of `endpoints` for curl.
pub(crate) fn snapshot(generation: u64, endpoints: &str) -> Snapshot {
    let policy = format!(
        "network_policies: {{web: {{endpoints: [{endpoints}], binaries: [{{path: \
         /usr/bin/curl}}]}}}}"
    );
    let (policy, _) = openshell_policy::yaml::policy(&policy).unwrap();
    Snapshot::new(generation, policy, None, &|_| None).unwrap()
}

/// Rules that permit any connection, and fail as soon as a request is judged by them.
pub(crate) fn failing_rules() -> Snapshot {
    let rules = r#"
package openshell.sandbox
import rego.v1
network_action := "allow"
matched_endpoint_config := {"host": "web.test", "ports": [80], "protocol": "rest", "enforcement": "enforce", "rules": [{"allow": {"method": "*", "path": "**"}}]}
denying_policy := ["no text"]
"#;
    let (policy, _) = openshell_policy::yaml::policy("network_policies: {}").unwrap();
    Snapshot::new(1, policy, Some(rules), &|_| None).unwrap()
}

/// The program of every test.
pub(crate) fn caller() -> Caller {
    let program = Program {
        executable: "/usr/bin/curl".into(),
        ancestors: vec![],
        cmdline_paths: vec![],
        is_modified: false,
    };
    Caller {
        pid: 7,
        program: program.into(),
    }
}

fn identifier(init: i32) -> Identifier {
    let processes = Processes::new(File::open("/proc").unwrap().into(), init);
    Identifier::new(processes, Box::new(|_| false))
}

/// The identity of the test's own process.
pub(crate) fn identity() -> Identity {
    let own = std::process::id().cast_signed();
    let parent = std::os::unix::process::parent_id().cast_signed();
    identifier(parent).identify(own)
}

/// A witness that has seen nobody.
#[derive(Debug)]
struct Blind;

impl Witness for Blind {
    fn caller(&self, _: BorrowedFd<'_>) -> Option<Identity> {
        None
    }

    fn sender(&self, _: u32) -> Option<Caller> {
        None
    }

    fn asker(&self, _: u16) -> Option<Caller> {
        None
    }
}

/// `host:port` as a target.
pub(crate) fn target(text: &str) -> Target {
    let (host, port) = text.rsplit_once(':').unwrap();
    Target {
        host: Host::parse(host).unwrap(),
        port: port.parse().unwrap(),
    }
}

/// Services under the policy of `endpoints`, in which no program is ever identified, so that
/// nothing reaches their egress.
pub(crate) fn services(endpoints: &str) -> (Arc<Services>, Arc<Remembered>) {
    let audit = Arc::new(Remembered::default());
    (
        services_with(snapshot(1, endpoints), Arc::clone(&audit) as _),
        audit,
    )
}

/// As [`services`], under `snapshot` and with `audit`.
pub(crate) fn services_with(snapshot: Snapshot, audit: Arc<dyn Audit>) -> Arc<Services> {
    let policy = Arc::new(PolicyStore::new(snapshot));
    let identifier = Arc::new(identifier(1));
    Arc::new(Services {
        approvals: None,
        authorizer: Authorizer::new(policy, identifier, Mode::Enforce),
        egress: Egress::new(
            Arc::new(Resolver::from_system().unwrap()),
            Default::default(),
        ),
        vault: Arc::default(),
        leaks: Arc::default(),
        sessions: Arc::default(),
        memory: Default::default(),
        guidance: Arc::default(),
        audit,
    })
}

/// A proxy of `services` without CA or models.
pub(crate) fn proxy(services: &Arc<Services>) -> Arc<Proxy> {
    let services = Arc::clone(services);
    let interceptor = Interceptor::new(None);
    let policy_local = PolicyLocal::new(
        Arc::clone(&services.authorizer.policy),
        Arc::default(),
        None,
        Arc::clone(&services.guidance),
    );
    Arc::new(Proxy {
        services,
        witness: Arc::new(Blind),
        admission: Default::default(),
        interceptor,
        names: None,
        inference: None,
        policy_local: Arc::new(policy_local),
    })
}

/// Leave of curl to reach `host:port`.
pub(crate) fn authorization(services: &Services, to: &str) -> Authorization {
    Authorization::assumed(&services.authorizer, caller(), &target(to)).unwrap()
}

/// The watch over a connection of curl to `host:port`, at [`UPSTREAM`].
pub(crate) fn watch(services: &Services, to: &str) -> RevocationWatch {
    RevocationWatch::new(authorization(services, to), UPSTREAM)
}

/// An authorized connection of curl to `host:port`, at [`UPSTREAM`].
pub(crate) fn connection(services: &Services, to: &str) -> Arc<Connection> {
    Arc::clone(watch(services, to).connection())
}

/// The report of the end of `connection`, whose client came by `door`.
pub(crate) fn closing(services: &Services, connection: &Connection, door: Door) -> Closing {
    let caller = connection.caller().clone();
    let target = connection.target().clone();
    Closing::new(
        &services.audit,
        Some(caller),
        target,
        None,
        Way {
            door: Some(door),
            ..Way::default()
        },
    )
}

/// A tunnel of curl to `host:port` in clear text.
pub(crate) fn tunnel(services: &Arc<Services>, to: &str) -> HttpTunnel {
    HttpTunnel::new(services, &connection(services, to), Scheme::Http)
}

/// The head of a request.
pub(crate) fn head(request: Request<()>) -> Parts {
    request.into_parts().0
}

/// A route to `backend` for chat completions, with `budget` and `key`.
pub(crate) fn route(backend: &str, budget: Budget, key: &str) -> Route {
    let spec = RouteSpec {
        tools: Tools::default(),
        name: backend.to_owned(),
        backend: Backend::parse(backend).unwrap(),
        model: "model-of-the-route".to_owned(),
        provider: Provider::Bearer,
        interfaces: [Interface::OpenaiChatCompletions].into(),
        key: KeySource::None,
        timeouts: Timeouts::default(),
        budget,
    };
    Route::new(spec, Some(Secret::new(key.into()))).unwrap()
}

/// Both ends of a loopback connection, the one that connected first.
pub(crate) async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    (near, listener.accept().await.unwrap().0)
}

/// A loopback address at which nothing listens.
pub(crate) async fn closed_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}
