//! State of a client connection at the ingress, and the connection that a permitted CONNECT yields.

use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::authorize::authorizer::Authorization;
use crate::authorize::revocation::RevocationWatch;
use crate::denial::refusal::Refusal;
use crate::egress::Dialed;
use crate::peer::{Caller, Flow};
use crate::proxy::Proxy;
use crate::quota::QuotaGuard;
use crate::record::Record;
use crate::relay::http1::Session;
use crate::resolve::guard::Destination;
use crate::target::Target;

/// A client with a tunnel.
pub struct Connected {
    /// The client's socket.
    pub client: TcpStream,
    /// Bytes that followed the head of the CONNECT.
    pub surplus: Bytes,
    /// The other end of the tunnel.
    pub opened: Opened,
}

/// The other end of a tunnel.
pub enum Opened {
    /// A permitted upstream, and the watch over its authorization.
    Upstream(Dialed, RevocationWatch),
    /// The models.
    Models(ModelsClient),
}

/// A client of the models.
pub struct ModelsClient {
    /// The program, if it was identified; no decision depends on it.
    pub caller: Option<Caller>,
    /// The requested host and port.
    pub target: Target,
    /// Guard of the program's connection quota.
    pub quota: QuotaGuard,
}

/// The ingress of one client connection.
pub(super) struct Door<'p> {
    pub(super) proxy: &'p Proxy,
    pub(super) flow: Flow,
    pub(super) session: &'p Session,
    /// Takes the client's side of a tunnel, which opens with the response, and its other end.
    pub(super) opener: mpsc::Sender<(OnUpgrade, Opened)>,
}

impl Door<'_> {
    /// Authorizes a connection to `target`, and resolves and checks its addresses.
    pub(super) async fn authorize(
        &self,
        target: &Target,
        record: &mut Record,
    ) -> Result<(Authorization, Destination), Refusal> {
        let services = &self.proxy.services;
        let authorization = services.authorizer.authorize(self.flow, target, record).await?;
        let destination = services.egress.destination(&authorization.permit).await?;
        services.authorizer.note_destination(&authorization, &destination);
        Ok((authorization, destination))
    }
}
