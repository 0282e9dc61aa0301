//! The state of the doors of one client connection, and the connection that a permitted CONNECT yields.

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

/// A client whose CONNECT was answered: the rest of its connection is its own.
pub struct Connected {
    /// Its socket.
    pub client: TcpStream,
    /// The bytes that it sent behind the head of its request.
    pub surplus: Bytes,
    /// The other end.
    pub opened: Opened,
}

/// The other end of a connection.
pub enum Opened {
    /// A permitted upstream, and the watch over the permit.
    Upstream(Dialed, RevocationWatch),
    /// The models.
    Models(ModelsClient),
}

/// A client of models.
pub struct ModelsClient {
    /// The program, if it is known; nothing depends on it.
    pub caller: Option<Caller>,
    /// The host and port that it asked for.
    pub target: Target,
    /// Its part of the program's connections.
    pub quota: QuotaGuard,
}

/// The doors of one client connection.
pub(super) struct Door<'p> {
    pub(super) proxy: &'p Proxy,
    pub(super) flow: Flow,
    pub(super) session: &'p Session,
    /// Takes the result of a permitted CONNECT, whose answer is on its way.
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
