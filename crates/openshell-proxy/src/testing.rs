//! Parts of a proxy for unit tests of its stages: a policy of their own, no network, and an audit that remembers.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use openshell_policy::denial::Denial;
use openshell_policy::event::{Audit, Event};
use openshell_policy::network::host::Host;

use crate::authorize::authorizer::{Authorizer, Mode};
use crate::authorize::connection::Connection;
use crate::decide::connection::judge;
use crate::decide::snapshot::Snapshot;
use crate::decide::store::PolicyStore;
use crate::egress::Egress;
use crate::identify::{Identifier, Processes};
use crate::peer::{Caller, Callers, Program};
use crate::relay::services::Services;
use crate::relay::tunnel::HttpTunnel;
use crate::resolve::guard::OwnAddresses;
use crate::resolve::lookup::Resolver;
use crate::target::{Scheme, Target};

/// An audit that remembers.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<Vec<Denial>>);

impl Remembered {
    /// The codes of all denials so far.
    pub(crate) fn denials(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().iter().map(|denial| denial.code.as_str()).collect()
    }
}

impl Audit for Remembered {
    fn event(&self, event: &Event<'_>) {
        self.0.lock().unwrap().extend(event.denial().cloned());
    }
}

/// The policy of `endpoints` for curl.
pub(crate) fn snapshot(generation: u64, endpoints: &str) -> Snapshot {
    let policy =
        format!("network_policies: {{web: {{endpoints: [{endpoints}], binaries: [{{path: /usr/bin/curl}}]}}}}");
    let (policy, _) = openshell_policy::yaml::policy(&policy).unwrap();
    Snapshot::new(generation, policy, None, &|_| None).unwrap()
}

/// The program of every test.
pub(crate) fn callers() -> Callers {
    let program = Program { executable: "/usr/bin/curl".into(), ancestors: vec![], cmdline_paths: vec![] };
    Callers::new(vec![Caller { pid: 7, program: program.into() }]).unwrap()
}

/// `host:port` as a target.
pub(crate) fn target(text: &str) -> Target {
    let (host, port) = text.rsplit_once(':').unwrap();
    Target { host: Host::parse(host).unwrap(), port: port.parse().unwrap() }
}

/// Services under the policy of `endpoints`, in which no program is ever identified.
pub(crate) fn services(endpoints: &str) -> (Arc<Services>, Arc<Remembered>) {
    let processes = Processes::of_namespace(i32::try_from(std::process::id()).unwrap()).unwrap();
    let (sock_diag, _) = UnixStream::pair().unwrap();
    let own = Arc::new(OwnAddresses { listeners: Vec::new(), is_on_link: |_| false });
    let audit = Arc::new(Remembered::default());
    let policy = Arc::new(PolicyStore::new(snapshot(1, endpoints)));
    let identifier = Arc::new(Identifier::new(sock_diag.into(), 0, processes).unwrap());
    let services = Services {
        authorizer: Authorizer::new(policy, identifier, Arc::clone(&own), Mode::Enforce),
        egress: Egress::new(Arc::new(Resolver::from_system().unwrap()), own, Default::default()),
        vault: Arc::default(),
        memory: Default::default(),
        audit: Arc::clone(&audit) as _,
    };
    (Arc::new(services), audit)
}

/// An authorized connection of curl to `host:port`, at an address of documentation.
pub(crate) fn connection(services: &Services, to: &str) -> Arc<Connection> {
    let permit = judge(&services.authorizer.policy.load(), &callers(), &target(to), || Ok(())).unwrap();
    Arc::new(Connection::new(callers(), Arc::new(permit), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))))
}

/// A tunnel of curl to `host:port` in clear text.
pub(crate) fn tunnel(services: &Arc<Services>, to: &str) -> HttpTunnel {
    HttpTunnel::new(services, &connection(services, to), Scheme::Http)
}
