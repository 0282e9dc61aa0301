//! Opens the other end of a tunnel for a client and its target, whatever protocol the request used.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use bytes::Bytes;
use openshell_events::event::Way;
use openshell_events::words::Door;
use tracing::{Instrument as _, debug_span};

use crate::decide::identify::Identity;
use crate::decide::own_lines::OwnLines;
use crate::decide::permit::Inspection;
use crate::denial::refusal::Refusal;
use crate::doors::proxy::Proxy;
use crate::ground::peer::Caller;
use crate::ground::quota::QuotaGuard;
use crate::ground::socket::ClientStream;
use crate::ground::target::{Origin, Scheme, Target};
use crate::inference;
use crate::policy_local;
use crate::policy_local::serve::PolicyClient;
use crate::reach::authorize::asker::Asker;
use crate::reach::authorize::authorizer::Authorization;
use crate::reach::authorize::revocation::RevocationWatch;
use crate::reach::dial::Dialed;
use crate::reach::resolve::guard::Destination;
use crate::relay::asking::Asking;
use crate::report::closing::Closing;
use crate::report::record::Record;

/// A client that got a tunnel.
pub struct Connected {
    /// The client's socket.
    pub client: ClientStream,
    /// The bytes that followed its request for the tunnel.
    pub surplus: Bytes,
    /// The other end of the tunnel.
    pub opened: Opened,
    /// Reports the end of the tunnel.
    pub closing: Closing,
}

/// The other end of a tunnel.
pub enum Opened {
    /// A permitted upstream, and the watch over its authorization.
    Upstream(Dialed, RevocationWatch),
    /// The models.
    Models(ModelsClient),
    /// The host by which programs ask about the policy.
    PolicyLocal(PolicyConnection),
}

/// A client of the host by which programs ask about the policy.
pub struct PolicyConnection {
    /// The program and what it has asked for.
    pub client: PolicyClient,
    /// Guard of the program's connection quota.
    pub quota: QuotaGuard,
}

/// A client of the models.
pub struct ModelsClient {
    /// The program, if it was identified.
    pub caller: Option<Caller>,
    /// The requested host and port.
    pub target: Target,
    /// Guard of the program's connection quota.
    pub quota: QuotaGuard,
}

/// The ingress of one client connection.
#[derive(Clone, Copy)]
pub(super) struct Ingress<'p> {
    pub(super) proxy: &'p Proxy,
    /// The program that made the connection.
    pub(super) identity: &'p Identity,
    /// How the connection came to the proxy.
    pub(super) way: Way,
}

impl<'p> Ingress<'p> {
    /// Creates the ingress of `client`, which `identity` identifies and which came by `door`.
    pub(super) fn new(
        proxy: &'p Proxy,
        identity: &'p Identity,
        client: &ClientStream,
        door: Door,
    ) -> Self {
        let source = client.peer_addr().ok();
        Self {
            proxy,
            identity,
            way: Way {
                door: Some(door),
                source,
                dialed: None,
            },
        }
    }

    /// Returns the same ingress, by another door.
    pub(super) fn by(self, door: Door) -> Self {
        Self {
            way: Way {
                door: Some(door),
                ..self.way
            },
            ..self
        }
    }

    /// Returns what reports the end of `opened`.
    pub(super) fn closing(&self, opened: &Opened) -> Closing {
        let audit = &self.proxy.services.audit;
        match opened {
            Opened::Upstream(dialed, watch) => {
                let connection = watch.connection();
                let permit = watch.connection().permit();
                self.closing_at(
                    dialed.address,
                    connection.caller(),
                    connection.target(),
                    permit.policy(),
                )
            }
            Opened::Models(ModelsClient { caller, target, .. }) => Closing::new(
                audit,
                caller.clone(),
                target.clone(),
                None,
                self.by(Door::Models).way,
            ),
            Opened::PolicyLocal(PolicyConnection { client, .. }) => Closing::new(
                audit,
                Some(client.asker.caller().clone()),
                client.origin.target.clone(),
                None,
                self.way,
            ),
        }
    }

    /// Returns what reports the end of a connection to `target` at `address`, which `policy`
    /// permits.
    pub(super) fn closing_at(
        &self,
        address: SocketAddr,
        caller: &Caller,
        target: &Target,
        policy: Option<&str>,
    ) -> Closing {
        Closing::new(
            &self.proxy.services.audit,
            Some(caller.clone()),
            target.clone(),
            policy,
            self.way_to(address),
        )
    }

    /// Returns the calling program, for logs, if it is identified; no decision depends on it.
    pub(super) fn caller(&self) -> Option<Caller> {
        self.identity
            .as_ref()
            .ok()
            .map(|identified| identified.caller().clone())
    }

    /// Returns how the connection came to the proxy, with the upstream at `dialed`.
    pub(super) fn way_to(&self, dialed: SocketAddr) -> Way {
        Way {
            dialed: Some(dialed),
            ..self.way
        }
    }

    /// Authorizes a connection to `target` by the policy together with the lines `own`, and resolves and
    /// checks its addresses.
    pub(super) async fn authorize(
        &self,
        target: &Target,
        own: &OwnLines,
        record: &mut Record,
    ) -> Result<(Authorization, Destination), Refusal> {
        let services = &self.proxy.services;
        let authorization = services
            .authorizer
            .authorize(self.identity, target, own, record)
            .await?;
        let destination = services.egress.destination(&authorization.permit).await?;
        services
            .authorizer
            .note_destination(&authorization, &destination);
        Ok((authorization, destination))
    }

    /// Opens the other end of a tunnel to `target` for the client at `socket`.
    pub(super) async fn open(
        &self,
        target: Target,
        socket: Option<BorrowedFd<'_>>,
        record: &mut Record,
    ) -> Result<Opened, Refusal> {
        record.came_by(self.way);
        if inference::is_target(&target) {
            return self.connect_models(target, record).await;
        }
        if policy_local::is_host(&target) {
            return self.connect_policy(target, record);
        }
        let span = debug_span!("request", request = record.request());
        self.connect(&target, socket, record).instrument(span).await
    }

    /// Authorizes and dials `target`.
    async fn connect(
        &self,
        target: &Target,
        socket: Option<BorrowedFd<'_>>,
        record: &mut Record,
    ) -> Result<Opened, Refusal> {
        let services = &self.proxy.services;
        let mut asking = Asking::new(services);
        let mut own = OwnLines::default();
        let (authorization, dialed) = loop {
            let (authorization, destination) = match self.authorize(target, &own, record).await {
                Err(refusal) if asking.may_ask(&refusal) => {
                    let caller = record.subject().caller.clone();
                    let (Some(caller), Ok(identified)) = (caller, self.identity) else {
                        return Err(refusal);
                    };
                    let asker = services.authorizer.asker(identified, caller);
                    let own = &mut own;
                    let asked =
                        asking.about_connection(refusal, asker, target, own, socket, record);
                    Box::pin(asked).await?;
                    continue;
                }
                authorized => authorized?,
            };
            asking.settle();
            // Only the first bytes, which follow the response, tell if TLS is to be intercepted, so
            // the certificate authority must be ready before the response.
            match authorization.permit.inspection() {
                Inspection::Passthrough => {}
                Inspection::Unjudged | Inspection::Judged(_) => {
                    self.proxy.interceptor.authority()?;
                }
            }
            let program = &authorization.caller.program.executable;
            let began = Instant::now();
            let dialed = services.egress.connect(&destination, program).await?;
            record.connected_since(began);
            // The policy may have changed while the target was dialled.
            if !authorization.is_stale() {
                break (authorization, dialed);
            }
        };
        record.came_by(self.way_to(dialed.address));
        let watch = RevocationWatch::new(authorization, dialed.address.ip());
        Ok(Opened::Upstream(dialed, watch))
    }

    /// Returns the program that made the connection.
    ///
    /// # Errors
    /// It is not identified.
    pub(super) fn asker(&self) -> Result<Asker, Refusal> {
        let identified = self.identity.as_ref().map_err(Clone::clone)?;
        let caller = identified.caller().clone();
        Ok(self.proxy.services.authorizer.asker(identified, caller))
    }

    /// Opens a connection to the host by which programs ask about the policy, which needs no
    /// permission by it.
    fn connect_policy(&self, target: Target, record: &mut Record) -> Result<Opened, Refusal> {
        record.served_inside();
        if let Some(caller) = self.caller() {
            record.called_by(caller);
        }
        if !policy_local::is_target(&target) {
            return Err(Refusal::bad_request(policy_local::WRONG_SCHEME));
        }
        let asker = self.asker()?;
        let program = &asker.caller().program.executable;
        let quota = self.proxy.services.egress.reserve(program)?;
        let origin = Origin {
            scheme: Scheme::Http,
            target,
        };
        let client = PolicyClient { asker, origin };
        Ok(Opened::PolicyLocal(PolicyConnection { client, quota }))
    }

    /// Opens a connection to the models at `target`, which needs no permission by the policy.
    async fn connect_models(&self, target: Target, record: &mut Record) -> Result<Opened, Refusal> {
        let services = &self.proxy.services;
        let caller = self.caller();
        if let Some(caller) = &caller {
            record.called_by(caller.clone());
        }
        record.intercepted();
        if self.proxy.inference.is_none() {
            return Err(Refusal::inference_not_configured());
        }
        // Models need no permission by the policy, but the caller must be identified.
        self.identity.as_ref().map_err(Clone::clone)?;
        self.proxy.interceptor.authority()?;
        let program = caller
            .as_ref()
            .map_or("-", |caller| caller.program.executable.as_str());
        let quota = services.egress.reserve(program)?;
        Ok(Opened::Models(ModelsClient {
            caller,
            target,
            quota,
        }))
    }
}
