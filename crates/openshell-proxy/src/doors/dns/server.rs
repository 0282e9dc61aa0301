//! The name server of a sandbox, which answers questions over UDP and TCP.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_resolver::proto::rr::RecordType;
use openshell_events::event::Audit;
use openshell_policy::network::host::HostName;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::message::{self, Answer, Question, Read};
use super::names::{Found, Names};
use super::report::NameReport;
use super::table::OpenError;
use crate::decide::identify::Witness;
use crate::ground::limits::Limits;
use crate::ground::peer::Caller;
use crate::reach::resolve::lookup::Resolver;

/// Answers questions for names.
#[derive(Debug)]
pub struct NameServer {
    names: Arc<Names>,
    /// The names of the host itself.
    own_names: Vec<HostName>,
    /// Looks up the few records that come from outside.
    resolver: Arc<Resolver>,
    witness: Arc<dyn Witness>,
    report: NameReport,
    /// The slots for questions that wait for a door.
    slots: Arc<Semaphore>,
    /// The slots for questions that wait for a name server outside.
    slots_outside: Semaphore,
    /// The beginning of the current minute, and the number of questions sent outside in it.
    asked: Mutex<Option<(Instant, u32)>>,
}

/// A client of the name server.
enum Client {
    /// A client that sent a datagram from this port.
    Datagram(u16),
    /// A client with a connection, made by this program if it is known.
    Connection(Option<Caller>),
}

/// The next step for a question.
enum Step {
    Answered(Answer),
    /// The doors of a name must be opened.
    Open(HostName),
    /// A name server outside must be asked for the records of a name.
    Ask(HostName),
}

impl NameServer {
    /// Creates a name server for `names`, and for `own_names`, which resolve to the loopback
    /// address. Questions for other names are reported to `audit`.
    #[must_use]
    pub fn new(
        names: Arc<Names>,
        own_names: Vec<HostName>,
        resolver: Arc<Resolver>,
        witness: Arc<dyn Witness>,
        audit: Arc<dyn Audit>,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(Limits::DNS_QUESTIONS));
        let slots_outside = Semaphore::new(Limits::DNS_QUESTIONS_OUTSIDE);
        let asked = Mutex::default();
        Self {
            names,
            own_names,
            resolver,
            witness,
            report: NameReport::new(audit),
            slots,
            slots_outside,
            asked,
        }
    }

    /// Answers questions at `datagrams` and `listener`, forever.
    pub async fn run(self, datagrams: UdpSocket, listener: TcpListener) {
        let server = Arc::new(self);
        let datagrams = Arc::new(datagrams);
        tokio::join!(
            Arc::clone(&server).serve_streams(listener),
            server.serve_datagrams(datagrams)
        );
    }

    async fn serve_datagrams(self: Arc<Self>, datagrams: Arc<UdpSocket>) {
        let mut waiting = JoinSet::new();
        // One byte more than a message may have, so that a longer message is noticed.
        let mut buffer = vec![0; Limits::DNS_MESSAGE + 1];
        loop {
            while waiting.try_join_next().is_some() {}
            let (filled, from) = match datagrams.recv_from(&mut buffer).await {
                Ok(received) => received,
                // The client of an earlier answer is gone, or memory is short.
                Err(_) => {
                    tokio::time::sleep(Limits::ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            let question = match message::read(buffer.get(..filled).unwrap_or_default()) {
                Read::Question(question) => question,
                Read::Invalid(answer) => {
                    send(&datagrams, &answer, from).await;
                    continue;
                }
                Read::Ignored => continue,
            };
            let step = self.step(&question, &Client::Datagram(from.port()));
            let server = Arc::clone(&self);
            let datagrams = Arc::clone(&datagrams);
            match (step, Arc::clone(&self.slots).try_acquire_owned()) {
                (Step::Answered(answer), _) => {
                    send(&datagrams, &question.datagram(answer), from).await
                }
                (step, Ok(slot)) => drop(waiting.spawn(async move {
                    let answer = server.finish(step, question.kind(), slot).await;
                    send(&datagrams, &question.datagram(answer), from).await;
                })),
                // The client will ask again.
                (_, Err(_)) => {}
            }
        }
    }

    async fn serve_streams(self: Arc<Self>, listener: TcpListener) {
        let slots = Arc::new(Semaphore::new(Limits::DNS_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok((client, _)) = listener.accept().await else {
                tokio::time::sleep(Limits::ACCEPT_BACKOFF_MAX).await;
                continue;
            };
            let caller = self.witness.caller(client.as_fd()).and_then(Result::ok);
            let caller = caller.map(|identified| identified.caller().clone());
            let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                continue;
            };
            let server = Arc::clone(&self);
            connections.spawn(async move {
                // A client that is gone or too slow asks no more questions.
                let _ = server
                    .serve_stream(client, &Client::Connection(caller))
                    .await;
                drop(slot);
            });
        }
    }

    /// Answers the questions of a connection one after the other (RFC 7766 §6.2.1).
    async fn serve_stream(&self, mut stream: TcpStream, client: &Client) -> io::Result<()> {
        loop {
            let message = timeout(Limits::DNS_DEADLINE, async {
                let length = usize::from(stream.read_u16().await?);
                let mut message = vec![0; length.min(Limits::DNS_MESSAGE + 1)];
                stream.read_exact(&mut message).await.map(|_| message)
            });
            let answer = match message::read(&message.await??) {
                Read::Question(question) => {
                    let answer = match self.step(&question, client) {
                        Step::Answered(answer) => answer,
                        step => {
                            let slot = Arc::clone(&self.slots)
                                .acquire_owned()
                                .await
                                .map_err(io::Error::other)?;
                            self.finish(step, question.kind(), slot).await
                        }
                    };
                    question.stream(answer)
                }
                Read::Invalid(answer) => {
                    let _ = timeout(Limits::DNS_DEADLINE, write(&mut stream, &answer)).await?;
                    return Ok(());
                }
                Read::Ignored => return Ok(()),
            };
            timeout(Limits::DNS_DEADLINE, write(&mut stream, &answer)).await??;
        }
    }

    /// Answers a question if that needs no waiting; otherwise returns the next step.
    fn step(&self, question: &Question, client: &Client) -> Step {
        let kind = question.kind();
        if matches!(kind, RecordType::ANY | RecordType::AXFR | RecordType::IXFR) {
            return Step::Answered(Answer::Refused);
        }
        if question.is_reverse() {
            // Other addresses have no names here, and the policy cannot permit a question for them.
            let name = question
                .address()
                .and_then(|address| self.names.name(address.into()));
            return Step::Answered(match (name, kind) {
                (Some(name), RecordType::PTR) => Answer::Pointer(name),
                (Some(_), _) => Answer::NoData,
                (None, _) => Answer::NoSuchName,
            });
        }
        let Some(name) = question.host_name() else {
            return Step::Answered(self.refuse(&question.name().to_ascii(), kind, client));
        };
        if is_localhost(&name) {
            return Step::Answered(message::localhost(kind));
        }
        if self.own_names.contains(&name) {
            let is_address = kind == RecordType::A;
            return Step::Answered(if is_address {
                message::localhost(kind)
            } else {
                Answer::NoData
            });
        }
        if kind == RecordType::SRV
            && let Some(of) = service_host(&name)
            && self.names.is_tcp(&of)
        {
            return Step::Ask(name);
        }
        match (self.names.find(&name), kind) {
            (Found::At(address), RecordType::A) => Step::Answered(Answer::Address(address.into())),
            (Found::Closed, RecordType::A) => Step::Open(name),
            (Found::At(_) | Found::Closed, RecordType::TXT) if self.names.is_tcp(&name) => {
                Step::Ask(name)
            }
            (Found::At(_) | Found::Closed, _) => Step::Answered(Answer::NoData),
            (Found::Asked, RecordType::A) => {
                self.refuse(name.as_str(), kind, client);
                Step::Open(name)
            }
            (Found::Asked, _) => Step::Answered(Answer::NoData),
            (Found::UnknownWithDomain, _) => Step::Answered(Answer::NoSuchName),
            (Found::Unknown, _) => {
                // The host is known; it only does not have the service.
                if service_host(&name)
                    .is_some_and(|of| matches!(self.names.find(&of), Found::At(_) | Found::Closed))
                {
                    return Step::Answered(Answer::NoData);
                }
                Step::Answered(self.refuse(name.as_str(), kind, client))
            }
        }
    }

    /// Answers a question that has to wait, and holds `slot` meanwhile.
    async fn finish(&self, step: Step, kind: RecordType, slot: OwnedSemaphorePermit) -> Answer {
        let name = match step {
            Step::Answered(answer) => return answer,
            Step::Ask(name) => {
                drop(slot);
                return self.ask(&name, kind).await;
            }
            Step::Open(name) => name,
        };
        let (real, slot) = if self.names.needs_real(&name) {
            drop(slot);
            let Some(real) = self.real_address(&name).await else {
                return Answer::Failed;
            };
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else {
                return Answer::Failed;
            };
            (real, slot)
        } else {
            (None, slot)
        };
        let names = Arc::clone(&self.names);
        let opened = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            let opened = names.open(&name, real);
            (name, opened)
        });
        match opened.await {
            Ok((_, Ok(address))) => Answer::Address(address.into()),
            Ok((_, Err(OpenError::Unknown))) => Answer::NoSuchName,
            Ok((name, Err(error))) => {
                self.report.exhausted(&name, kind, &error);
                Answer::Failed
            }
            Err(_) => Answer::Failed,
        }
    }

    /// Returns the first IPv4 address that `name` has outside, if it has one; `None` if that cannot
    /// be found out.
    async fn real_address(&self, name: &HostName) -> Option<Option<Ipv4Addr>> {
        let _slot = self.slot_outside()?;
        self.resolver.first_ipv4(name).await.ok()
    }

    /// Takes a slot for a question outside. Both the questions at once and those in a minute are
    /// limited.
    fn slot_outside(&self) -> Option<SemaphorePermit<'_>> {
        let mut asked = self.asked.lock();
        let now = Instant::now();
        let has_room = match &mut *asked {
            Some((begin, count)) if now.duration_since(*begin) < Duration::from_secs(60) => {
                *count += 1;
                *count <= Limits::DNS_QUESTIONS_A_MINUTE
            }
            asked => {
                *asked = Some((now, 1));
                true
            }
        };
        if has_room {
            self.slots_outside.try_acquire().ok()
        } else {
            None
        }
    }

    /// Asks a name server outside, but only a few times a minute: the question itself leaves the
    /// sandbox.
    async fn ask(&self, name: &HostName, kind: RecordType) -> Answer {
        let Some(_slot) = self.slot_outside() else {
            return Answer::Failed;
        };
        match self.resolver.records(name, kind).await {
            Ok(records) if records.is_empty() => Answer::NoData,
            Ok(records) => Answer::Records(records),
            Err(_) => Answer::Failed,
        }
    }

    /// Refuses, and reports, a question for a name that the policy does not know.
    fn refuse(&self, name: &str, kind: RecordType, client: &Client) -> Answer {
        let form = self.names.form();
        self.report.unknown(name, kind, form, || match client {
            Client::Datagram(port) => self.witness.asker(*port),
            Client::Connection(caller) => caller.clone(),
        });
        Answer::NoSuchName
    }
}

async fn send(datagrams: &UdpSocket, answer: &[u8], to: SocketAddr) {
    // If the client is gone, the answer is not needed.
    let _ = datagrams.send_to(answer, to).await;
}

async fn write(stream: &mut TcpStream, answer: &[u8]) -> io::Result<()> {
    let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
    stream
        .write_all(&[&length.to_be_bytes(), answer].concat())
        .await
}

fn is_localhost(name: &HostName) -> bool {
    name.as_str() == "localhost" || name.as_str().ends_with(".localhost")
}

/// Returns the host of a service: the name after `_service._tcp.` (RFC 2782). The name of a service
/// has at most 15 letters, digits and hyphens (RFC 6335 §5.1), so a question that leaves the
/// sandbox can carry only little data in it.
fn service_host(name: &HostName) -> Option<HostName> {
    let (service, rest) = name.as_str().split_once('.')?;
    let (protocol, host) = rest.split_once('.')?;
    let service = service.strip_prefix('_')?;
    let is_service = (1..=15).contains(&service.len())
        && service
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && protocol == "_tcp";
    is_service.then(|| HostName::parse(host).ok()).flatten()
}
