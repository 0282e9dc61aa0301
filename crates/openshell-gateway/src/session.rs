//! The session with a gateway, and the relays that it asks for.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tonic::Streaming;

use crate::channel::Backoff;
use crate::client::Gateway;
use crate::error::CallError;
use crate::proto::v1::relay_open::Target;
use crate::proto::v1::{
    GatewayMessage, RelayClose, RelayFrame, RelayInit, RelayOpen, RelayOpenResult,
    SupervisorHeartbeat, SupervisorHello, SupervisorMessage, TcpRelayTarget, gateway_message,
    relay_frame, supervisor_message,
};

/// Interval of heartbeats if the gateway does not name one.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Longest interval that a gateway may name.
const LONGEST_HEARTBEAT: u32 = 3_600;

/// Shortest and longest wait between sessions.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Age from which a session counts as good, so that the waits start again with the shortest.
const GOOD: Duration = Duration::from_secs(60);

/// How many relays may be open at once.
const RELAYS: usize = 256;

/// Time within which a relay must be ready.
const OPENING: Duration = Duration::from_secs(10);

/// Bytes of data in a frame. Together with the heads they fit into one HTTP/2 frame (RFC 9113
/// §4.2).
const FRAME_BYTES: usize = 16 * 1024 - 32;

/// How many messages to the gateway may wait.
const MESSAGES: usize = 2 * RELAYS;

/// How many frames of a relay may wait, in each direction.
const FRAMES: usize = 4;

/// A byte stream to a server inside.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Connection for C {}

/// A connection that is being established.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn Connection>>> + Send>>;

/// Where a relay ends inside the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayTarget {
    /// The SSH server of the sandbox.
    Ssh,
    /// A port of the loopback address inside the sandbox.
    Port(u16),
}

impl fmt::Display for RelayTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ssh => f.write_str("the SSH server"),
            Self::Port(port) => write!(f, "127.0.0.1:{port} inside"),
        }
    }
}

/// Makes connections for relays.
pub trait Inside: Send + Sync {
    /// Connects the relay `id` to `target`.
    fn dial(&self, target: RelayTarget, id: &str) -> Dialing;
}

/// The state of a session, as it changes.
#[derive(Debug)]
pub enum Change<'c> {
    /// The gateway has accepted it.
    Accepted,
    /// The session has ended, or could not begin.
    Lost(&'c str),
    /// The gateway refuses it.
    Rejected(&'c str),
    /// The gateway does not offer sessions.
    Unknown,
    /// A relay to the target begins, or could not begin for this reason.
    Relay(Result<RelayTarget, &'c str>),
}

/// The sessions of one supervisor.
pub struct Sessions {
    gateway: Gateway,
    instance: String,
    inside: Arc<dyn Inside>,
    relays: JoinSet<()>,
    open: HashMap<String, AbortHandle>,
    slots: Arc<Semaphore>,
    changed: Box<dyn Fn(Change<'_>) + Send + Sync>,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

/// Returns a message to the gateway.
fn message(payload: supervisor_message::Payload) -> SupervisorMessage {
    SupervisorMessage {
        payload: Some(payload),
    }
}

impl Sessions {
    /// Prepares sessions of the supervisor `instance` with `gateway`. Their relays end at
    /// connections that `inside` makes. `changed` is called for each change.
    #[must_use]
    pub fn new(
        gateway: Gateway,
        instance: String,
        inside: Arc<dyn Inside>,
        changed: Box<dyn Fn(Change<'_>) + Send + Sync>,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(RELAYS));
        Self {
            gateway,
            instance,
            inside,
            relays: JoinSet::new(),
            open: HashMap::new(),
            slots,
            changed,
        }
    }

    /// Keeps a session open for as long as the future is polled.
    pub async fn run(mut self) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            let begin = Instant::now();
            let ended = self.session().await;
            if begin.elapsed() >= GOOD {
                backoff.reset();
            }
            let wait = match ended {
                Ended::Lost(reason) => {
                    (self.changed)(Change::Lost(&reason));
                    backoff.next_wait()
                }
                Ended::Rejected(reason) => {
                    (self.changed)(Change::Rejected(&reason));
                    BACKOFF.1
                }
                // A gateway of a later generation has sessions, so something between may have given
                // this answer.
                Ended::Unknown if self.gateway.is_later() => BACKOFF.1,
                Ended::Unknown => {
                    (self.changed)(Change::Unknown);
                    return std::future::pending().await;
                }
            };
            let until = Instant::now() + wait;
            // Open relays go on while there is no session.
            while timeout_at(until, next_ended(&mut self.relays))
                .await
                .is_ok()
            {}
        }
    }

    async fn session(&mut self) -> Ended {
        let (sender, messages) = mpsc::channel(MESSAGES);
        let hello = SupervisorHello {
            sandbox_id: self.gateway.id().to_owned(),
            instance_id: self.instance.clone(),
        };
        // Some gateways answer only once they have received the hello.
        let _ = sender.try_send(message(supervisor_message::Payload::Hello(hello)));
        let mut incoming = match self.gateway.connect_supervisor(messages).await {
            Ok(incoming) => incoming,
            Err(error) if error.is_unimplemented() => return Ended::Unknown,
            Err(error) => return Ended::lost(&error),
        };
        let mut beats = beats(HEARTBEAT);
        let mut heard = Instant::now();
        loop {
            let received = tokio::select! {
                received = incoming.message() => received,
                _ = beats.tick() => {
                    if heard.elapsed() > 2 * beats.period() {
                        return Ended::Lost("the gateway has said nothing for two heartbeats".to_owned());
                    }
                    let beat = message(supervisor_message::Payload::Heartbeat(SupervisorHeartbeat {}));
                    if sender.try_send(beat).is_err() {
                        return Ended::Lost("the gateway does not accept messages".to_owned());
                    }
                    continue;
                }
                () = next_ended(&mut self.relays) => {
                    self.open.retain(|_, relay| !relay.is_finished());
                    continue;
                }
            };
            heard = Instant::now();
            match received {
                Err(status) => return Ended::lost(&CallError::new("ConnectSupervisor", &status)),
                Ok(None) => return Ended::Lost("the gateway has ended it".to_owned()),
                // A message that this build does not know.
                Ok(Some(GatewayMessage { payload: None })) => {}
                Ok(Some(GatewayMessage {
                    payload: Some(payload),
                })) => match payload {
                    gateway_message::Payload::SessionAccepted(accepted) => {
                        self.gateway.note_later();
                        (self.changed)(Change::Accepted);
                        if accepted.heartbeat_interval_secs != 0 {
                            let seconds = accepted.heartbeat_interval_secs.min(LONGEST_HEARTBEAT);
                            beats = self::beats(Duration::from_secs(seconds.into()));
                        }
                    }
                    gateway_message::Payload::SessionRejected(rejected) => {
                        return Ended::Rejected(rejected.reason);
                    }
                    gateway_message::Payload::Heartbeat(_) => {}
                    gateway_message::Payload::RelayOpen(open) => self.open_relay(open, &sender),
                    gateway_message::Payload::RelayClose(RelayClose { channel_id, .. }) => {
                        if let Some(relay) = self.open.remove(&channel_id) {
                            relay.abort();
                        }
                    }
                },
            }
        }
    }

    fn open_relay(&mut self, open: RelayOpen, session: &mpsc::Sender<SupervisorMessage>) {
        let RelayOpen {
            channel_id, target, ..
        } = open;
        let refuse = |error: String| {
            (self.changed)(Change::Relay(Err(&error)));
            let result = RelayOpenResult {
                channel_id: channel_id.clone(),
                success: false,
                error,
            };
            let _ = session.try_send(message(supervisor_message::Payload::RelayOpenResult(
                result,
            )));
        };
        let target = match target {
            Some(Target::Tcp(target)) => match port(&target) {
                Ok(port) => RelayTarget::Port(port),
                Err(error) => return refuse(error),
            },
            Some(Target::Ssh(_)) | None => RelayTarget::Ssh,
        };
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            return refuse(format!("there are {RELAYS} relays already; close one"));
        };
        (self.changed)(Change::Relay(Ok(target)));
        let gateway = self.gateway.clone();
        let session = session.clone();
        let id = channel_id.clone();
        let dialing = self.inside.dial(target, &id);
        let relay = self
            .relays
            .spawn(async move { relay(gateway, session, id, dialing, slot).await });
        self.open.insert(channel_id, relay);
    }
}

/// The reason why a session has ended.
enum Ended {
    Lost(String),
    Rejected(String),
    Unknown,
}

impl Ended {
    fn lost(error: &CallError) -> Self {
        Self::Lost(error.to_string())
    }
}

fn beats(every: Duration) -> tokio::time::Interval {
    let mut beats = interval(every);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats.reset();
    beats
}

/// Waits until a relay has ended; forever if there is none.
async fn next_ended(relays: &mut JoinSet<()>) {
    if relays.join_next().await.is_none() {
        std::future::pending().await
    }
}

/// Returns the port of a target, whose host must be the loopback address inside.
fn port(TcpRelayTarget { host, port }: &TcpRelayTarget) -> Result<u16, String> {
    let is_loopback = host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<Ipv4Addr>()
            .is_ok_and(|address| address.is_loopback())
        || host.trim_matches(['[', ']']) == "::1";
    let port = u16::try_from(*port).ok().filter(|port| *port != 0);
    match (is_loopback, port) {
        (true, Some(port)) => Ok(port),
        (false, _) => Err("a relay can lead only to the loopback address inside".to_owned()),
        (true, None) => Err("the port of a relay is a number from 1 to 65535".to_owned()),
    }
}

/// Sends what `reader` reads in frames, until either has ended.
async fn copy_out(reader: &mut (impl AsyncRead + Unpin), sender: mpsc::Sender<RelayFrame>) {
    loop {
        let mut buffer = BytesMut::with_capacity(FRAME_BYTES);
        let mut part = (&mut *reader).take(FRAME_BYTES as u64);
        let Ok(1..) = part.read_buf(&mut buffer).await else {
            return;
        };
        let frame = RelayFrame {
            payload: Some(relay_frame::Payload::Data(buffer.freeze())),
        };
        if sender.send(frame).await.is_err() {
            return;
        }
    }
}

/// Connects to the server inside, tells the gateway, and relays until both directions have ended.
async fn relay(
    gateway: Gateway,
    session: mpsc::Sender<SupervisorMessage>,
    channel_id: String,
    dialing: Dialing,
    _slot: OwnedSemaphorePermit,
) {
    let until = Instant::now() + OPENING;
    let dialed = timeout_at(until, dialing)
        .await
        .unwrap_or_else(|late| Err(late.into()));
    let error = dialed
        .as_ref()
        .err()
        .map(|error| format!("no server inside: {error}"))
        .unwrap_or_default();
    let result = RelayOpenResult {
        channel_id: channel_id.clone(),
        success: dialed.is_ok(),
        error,
    };
    let told = session
        .send(message(supervisor_message::Payload::RelayOpenResult(
            result,
        )))
        .await;
    drop(session);
    let (Ok(server), Ok(())) = (dialed, told) else {
        return;
    };
    let (sender, frames) = mpsc::channel(FRAMES);
    let init = relay_frame::Payload::Init(RelayInit { channel_id });
    let _ = sender.try_send(RelayFrame {
        payload: Some(init),
    });
    let opened = timeout_at(until, gateway.relay_stream(frames)).await;
    let Ok(Ok(incoming)) = opened else { return };
    let (mut reader, mut writer) = tokio::io::split(server);
    // Its end ends only this direction.
    let out = copy_out(&mut reader, sender);
    let inwards = async {
        let ended = copy_in(incoming, &mut writer).await;
        // The server sees the end, even if the stream of the gateway broke.
        let _ = writer.shutdown().await;
        ended
    };
    // If the gateway's stream breaks, both directions end.
    let mut out = std::pin::pin!(out);
    let mut inwards = std::pin::pin!(inwards);
    tokio::select! {
        () = &mut out => drop(inwards.await),
        ended = &mut inwards => if ended.is_ok() { out.await },
    }
}

/// Bytes of frames that are written at a time. Together with the stream's window they bound the
/// memory of a relay.
const WRITTEN_BYTES: usize = 128 * 1024;

/// Writes the data of `frames` until they end, each time as many frames as have arrived.
async fn copy_in(
    mut frames: Streaming<RelayFrame>,
    writer: &mut (impl AsyncWriteExt + Unpin),
) -> Result<(), ()> {
    let mut is_ended = false;
    while !is_ended {
        let mut next = frames.message().await.map_err(drop)?;
        let mut batch = Vec::new();
        let mut bytes = 0;
        loop {
            match next {
                None => is_ended = true,
                Some(RelayFrame {
                    payload: Some(relay_frame::Payload::Data(data)),
                }) => {
                    bytes += data.len();
                    batch.push(data);
                }
                Some(RelayFrame {
                    payload: Some(relay_frame::Payload::Init(_)) | None,
                }) => {}
            }
            if is_ended || bytes >= WRITTEN_BYTES {
                break;
            }
            // These frames have been received, so they are written even if the next one fails.
            match frames.message().now_or_never() {
                Some(Ok(frame)) => next = frame,
                Some(Err(_)) => {
                    write_all(writer, &batch).await?;
                    return Err(());
                }
                None => break,
            }
        }
        write_all(writer, &batch).await?;
    }
    Ok(())
}

async fn write_all(writer: &mut (impl AsyncWriteExt + Unpin), pieces: &[Bytes]) -> Result<(), ()> {
    let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rest = &mut slices[..];
    // Skips empty pieces.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match writer.write_vectored(rest).await.map_err(drop)? {
            0 => return Err(()),
            written => IoSlice::advance_slices(&mut rest, written),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{TcpRelayTarget, port};

    #[test]
    fn relays_lead_to_loopback_alone() {
        let asked = |host: &str, number| {
            port(&TcpRelayTarget {
                host: host.to_owned(),
                port: number,
            })
        };
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1"] {
            assert_eq!(asked(host, 80), Ok(80), "{host}");
        }
        for (host, number) in [
            ("10.0.0.1", 80),
            ("", 80),
            ("example.test", 80),
            ("localhost", 0),
            ("localhost", 65_536),
        ] {
            assert!(asked(host, number).is_err(), "{host}:{number}");
        }
    }
}
