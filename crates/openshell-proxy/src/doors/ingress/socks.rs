//! Requests for tunnels over SOCKS5 (RFC 1928): CONNECT without authentication, to names and
//! addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;

use bytes::Bytes;
use openshell_events::words::Door;
use openshell_policy::network::host::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::door::{Connected, Ingress};
use crate::decide::identify::Identity;
use crate::denial::refusal::Refusal;
use crate::doors::dns::names::named;
use crate::doors::proxy::Proxy;
use crate::ground::limits::Limits;
use crate::ground::socket::ClientStream;
use crate::ground::target::Target;
use crate::report::record::{Outcome, Record};

/// The version, which is the first byte that a client sends.
pub const VERSION: u8 = 5;

const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Reply codes.
const SUCCEEDED: u8 = 0;
const NOT_ALLOWED: u8 = 2;
const COMMAND_UNKNOWN: u8 = 7;
const ADDRESS_UNKNOWN: u8 = 8;

/// A request.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Connect(Host, u16),
    /// A request that is answered with this reply code, for this reason.
    Invalid(u8, &'static str),
}

/// Serves the request of `client`, which `identity` identifies; returns its connection if that is
/// permitted.
pub async fn serve(
    proxy: &Proxy,
    mut client: ClientStream,
    identity: &Identity,
) -> Option<Connected> {
    let audit = &proxy.services.audit;
    let refuse = |refusal: &Refusal, record: Record| record.finish(Outcome::Refused(refusal));
    let request = match timeout(Limits::HEAD_DEADLINE, read(&mut client)).await {
        Ok(Ok(request)) => request,
        Ok(Err(error)) if error.kind() != io::ErrorKind::InvalidData => return None,
        Ok(Err(_)) | Err(_) => {
            let refusal = Refusal::bad_request(
                "a SOCKS5 client must offer to connect without authentication, and ask at once",
            );
            refuse(&refusal, Record::new(audit, "request".to_owned(), None));
            return None;
        }
    };
    let target = match request {
        Request::Connect(host, port) => named(proxy.names.as_deref(), Target { host, port }),
        Request::Invalid(code, reason) => {
            refuse(
                &Refusal::bad_request(reason),
                Record::new(audit, "CONNECT".to_owned(), None),
            );
            let _ = reply(&mut client, code).await;
            return None;
        }
    };
    let mut record = Record::new(audit, format!("CONNECT {target}"), Some(target.clone()));
    let ingress = Ingress::new(proxy, identity, &client, Door::Socks);
    match ingress
        .open(target, Some(client.as_fd()), &mut record)
        .await
    {
        Ok(opened) => {
            record.finish(Outcome::Allowed);
            let closing = ingress.closing(&opened);
            // If the client is gone, its connection ends at the first byte.
            let _ = reply(&mut client, SUCCEEDED).await;
            Some(Connected {
                client,
                surplus: Bytes::new(),
                opened,
                closing,
            })
        }
        Err(refusal) => {
            refuse(&refusal, record);
            let _ = reply(&mut client, NOT_ALLOWED).await;
            None
        }
    }
}

/// Reads the methods that a client offers, accepts one, and reads the client's request.
///
/// # Errors
/// The client is gone, or does not speak SOCKS5 without authentication (`InvalidData`).
async fn read(client: &mut ClientStream) -> io::Result<Request> {
    let invalid = || Err(io::ErrorKind::InvalidData.into());
    if client.read_u8().await? != VERSION {
        return invalid();
    }
    let mut methods = vec![0; usize::from(client.read_u8().await?)];
    client.read_exact(&mut methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        client.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return invalid();
    }
    client.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    let [version, command, _, kind] = client.read_u32().await?.to_be_bytes();
    if version != VERSION {
        return invalid();
    }
    let host = match kind {
        IPV4 => Some(Host::Address(
            Ipv4Addr::from(client.read_u32().await?).into(),
        )),
        IPV6 => Some(Host::Address(
            IpAddr::from(Ipv6Addr::from(client.read_u128().await?)).to_canonical(),
        )),
        NAME => {
            let mut name = vec![0; usize::from(client.read_u8().await?)];
            client.read_exact(&mut name).await?;
            std::str::from_utf8(&name)
                .ok()
                .and_then(|name| Host::parse(name).ok())
        }
        // The length of such an address is unknown, so no more can be read.
        _ => {
            return Ok(Request::Invalid(
                ADDRESS_UNKNOWN,
                "the host must be a name or an IP address",
            ));
        }
    };
    let port = client.read_u16().await?;
    Ok(match (command, host, port) {
        (CONNECT, None, _) => {
            Request::Invalid(ADDRESS_UNKNOWN, "the host must be a name or an IP address")
        }
        (CONNECT, _, 0) => {
            Request::Invalid(ADDRESS_UNKNOWN, "the port must be a number from 1 to 65535")
        }
        (CONNECT, Some(host), port) => Request::Connect(host, port),
        _ => Request::Invalid(
            COMMAND_UNKNOWN,
            "the proxy serves only the command CONNECT of SOCKS5",
        ),
    })
}

/// Writes a reply, which contains no address.
async fn reply(client: &mut ClientStream, code: u8) -> io::Result<()> {
    client
        .write_all(&[VERSION, code, 0, IPV4, 0, 0, 0, 0, 0, 0])
        .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::serve;
    use crate::decide::identify::Identity;
    use crate::denial::refusal::Refusal;
    use crate::testing;

    /// Sends `said`; the answer must be `heard`, and `codes` are all decisions.
    async fn check(said: &[u8], heard: &[u8], codes: &[&str]) {
        let (services, audit) = testing::services("{host: web.test, port: 443}");
        let (mut client, near) = testing::tcp().await;
        let proxy = testing::proxy(&services);
        let identity = Identity::Err(Refusal::caller_unknown("nobody".to_owned()));
        let speaking = async {
            client.write_all(said).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let (connected, answer) = tokio::join!(serve(&proxy, near, &identity), speaking);
        assert!(connected.is_none());
        assert_eq!(
            (answer.as_slice(), audit.decisions().as_slice()),
            (heard, codes),
            "{said:?}"
        );
        assert_eq!(Arc::strong_count(&services), 2);
    }

    fn asking(request: &[u8]) -> Vec<u8> {
        [&[5, 2, 2, 0], request].concat()
    }

    fn replied(code: u8) -> Vec<u8> {
        vec![5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0]
    }

    #[tokio::test]
    async fn a_request_is_refused_in_its_own_words() {
        let name = [&[5, 1, 0, 3, 8][..], b"web.test", &[1, 187]].concat();
        check(&asking(&name), &replied(2), &["caller_unknown"]).await;
        check(
            &asking(&[5, 1, 0, 1, 8, 8, 8, 8, 1, 187]),
            &replied(2),
            &["caller_unknown"],
        )
        .await;
        let v6 = [&[5, 1, 0, 4][..], &[0x20; 16], &[1, 187]].concat();
        check(&asking(&v6), &replied(2), &["caller_unknown"]).await;
        check(
            &asking(&[5, 2, 0, 1, 8, 8, 8, 8, 1, 187]),
            &replied(7),
            &["bad_request"],
        )
        .await;
        check(
            &asking(&[5, 1, 0, 1, 8, 8, 8, 8, 0, 0]),
            &replied(8),
            &["bad_request"],
        )
        .await;
        check(&asking(&[5, 1, 0, 9]), &replied(8), &["bad_request"]).await;
        check(
            &asking(&[5, 1, 0, 3, 1, b'!', 1, 187]),
            &replied(8),
            &["bad_request"],
        )
        .await;
    }

    #[tokio::test]
    async fn a_client_that_insists_on_authentication_or_is_none_is_refused_and_one_that_goes_is_no_decision()
     {
        check(&[5, 1, 2], &[5, 0xff], &["bad_request"]).await;
        check(&asking(&[4, 1, 0, 1]), &[5, 0], &["bad_request"]).await;
        check(&[5], &[], &[]).await;
        check(&asking(&[5, 1, 0]), &[5, 0], &[]).await;
    }
}
