//! Connections to the door of a name: the client sends no request, and the door gives the target.

use std::os::fd::AsFd as _;
use std::time::Duration;

use bytes::Bytes;
use openshell_events::words::Door;
use rustix::net::sockopt;

use super::door::{Connected, Ingress};
use crate::decide::identify::Identity;
use crate::doors::proxy::Proxy;
use crate::ground::socket::ClientStream;
use crate::ground::target::Target;
use crate::report::record::{Outcome, Record};

/// Connects `client`, which `identity` identifies, to `target`. A refusal is a reset, because the
/// client expects no answer.
pub async fn serve(
    proxy: &Proxy,
    client: ClientStream,
    identity: &Identity,
    target: Target,
) -> Option<Connected> {
    let ingress = Ingress::new(proxy, identity, &client, Door::Name);
    let mut record = Record::new(
        &proxy.services.audit,
        format!("CONNECT {target}"),
        Some(target.clone()),
    );
    match ingress
        .open(target, Some(client.as_fd()), &mut record)
        .await
    {
        Ok(opened) => {
            record.finish(Outcome::Allowed);
            let closing = ingress.closing(&opened);
            Some(Connected {
                client,
                surplus: Bytes::new(),
                opened,
                closing,
            })
        }
        Err(refusal) => {
            record.finish(Outcome::Refused(&refusal));
            reset(&client);
            None
        }
    }
}

/// Makes the connection of `client` end with a reset.
pub(crate) fn reset(client: &ClientStream) {
    // If the option is refused, the connection ends in order, and the client gets no answer either.
    let _ = sockopt::set_socket_linger(client, Some(Duration::ZERO));
}
