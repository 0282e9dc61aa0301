//! Forwarding: connections of clients to servers in the sandbox, and of its programs to clients.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BytesMut;
use openshell_events::words::SshActivity;
use russh::server::{ChannelOpenHandle, Handle, Msg};
use russh::{Channel, ChannelOpenFailure, ChannelWriteHalf};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::ssh::channels::{self, Channels};
use crate::ssh::input::InputQueue;
use crate::ssh::limits::Limits;
use crate::ssh::report::{Facts, Reporter};
use crate::ssh::session::breathe;
use crate::streamlocal::{self, Helper};
use crate::workload::Workload;

/// Returns true if a target's host is the loopback address inside.
pub(crate) fn is_inside(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<Ipv4Addr>()
            .is_ok_and(|address| address.is_loopback())
        || host == "::1"
}

/// Returns true if a client may ask us to listen at `address`. In any case we listen at the
/// loopback address inside.
pub(crate) fn may_listen(address: &str) -> bool {
    matches!(address, "" | "*" | "0.0.0.0" | "::") || is_inside(address)
}

/// A server in the sandbox.
#[derive(Clone, Debug)]
pub(crate) enum ServerInside {
    /// At this port of the loopback address.
    Port(u16),
    /// At the Unix socket with this path.
    Path(String),
}

/// A client's connection to a server inside.
pub(crate) struct Inward {
    pub(crate) workload: Arc<Workload>,
    pub(crate) reporter: Reporter,
    /// The server as the client names it.
    pub(crate) target: String,
    pub(crate) server: ServerInside,
    pub(crate) reply: ChannelOpenHandle,
    /// The channels, which include this one until its end.
    pub(crate) channels: Channels,
    pub(crate) output: ChannelWriteHalf<Msg>,
    pub(crate) handle: Handle,
    pub(crate) input: Arc<InputQueue>,
}

impl Inward {
    /// Connects to the server, and relays until both directions have ended.
    pub(crate) async fn run(self) {
        let Self {
            workload,
            reporter,
            target,
            server,
            reply,
            channels,
            output,
            handle,
            input,
        } = self;
        let connected = match &server {
            ServerInside::Port(port) => workload.inside.dial(*port).await.map(Stream::Tcp),
            ServerInside::Path(path) => streamlocal::connect(&workload, path)
                .await
                .map(Stream::Unix),
        };
        let stream = match connected {
            Ok(stream) => stream,
            Err(error) => {
                let reason = format!("no server inside: {error}");
                let facts = Facts {
                    target: Some(&target),
                    reason: &reason,
                    is_refused: true,
                    ..Facts::default()
                };
                reporter.report(SshActivity::Forward, facts);
                channels.remove(output.id());
                return reply.reject(ChannelOpenFailure::ConnectFailed).await;
            }
        };
        reporter.report(
            SshActivity::Forward,
            Facts {
                target: Some(&target),
                ..Facts::default()
            },
        );
        reply.accept().await;
        let transferred = Some(relay(stream, &output, &handle, &input).await);
        channels.remove(output.id());
        reporter.report(
            SshActivity::Close,
            Facts {
                target: Some(&target),
                transferred,
                ..Facts::default()
            },
        );
    }
}

/// A connection inside the sandbox.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A place inside at which connections for a client are accepted, as the client named it.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Port { address: String, port: u32 },
    Path(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port { address, port } => write!(f, "{address}:{port}"),
            Self::Path(path) => f.write_str(path),
        }
    }
}

impl Place {
    /// Opens a channel to the client for a connection from `peer`.
    async fn open(
        &self,
        handle: &Handle,
        peer: Option<SocketAddr>,
    ) -> Result<Channel<Msg>, russh::Error> {
        match (self, peer) {
            (Self::Port { address, port }, Some(peer)) => {
                let host = peer.ip().to_string();
                let from = u32::from(peer.port());
                handle
                    .channel_open_forwarded_tcpip(address.clone(), *port, host, from)
                    .await
            }
            (Self::Path(path), _) => {
                handle
                    .channel_open_forwarded_streamlocal(path.clone())
                    .await
            }
            (Self::Port { .. }, None) => Err(russh::Error::WrongChannel),
        }
    }
}

/// A source of connections inside.
pub(crate) enum Accepting {
    Port(TcpListener),
    Path(Helper),
}

impl Accepting {
    /// Waits for a connection; returns it with its other end if it is TCP.
    ///
    /// # Errors
    /// Fails if no more connections can come.
    async fn accept(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        match self {
            Self::Port(listener) => loop {
                match listener.accept().await {
                    Ok((stream, peer)) => return Ok((Stream::Tcp(stream), Some(peer))),
                    Err(_) => breathe().await,
                }
            },
            Self::Path(helper) => Ok((Stream::Unix(helper.next().await?), None)),
        }
    }
}

/// A listener inside, on behalf of a client.
pub(crate) struct Outward {
    pub(crate) accepting: Accepting,
    pub(crate) place: Place,
    pub(crate) reporter: Reporter,
    pub(crate) channels: Channels,
    pub(crate) handle: Handle,
    /// Ends the listener but none of its connections.
    pub(crate) cancelled: oneshot::Receiver<()>,
}

impl Outward {
    /// Carries connections to the client until the client cancels the listener, and then waits
    /// until the last of them has ended.
    pub(crate) async fn run(self) {
        let Self {
            accepting,
            place,
            reporter,
            channels,
            handle,
            mut cancelled,
        } = self;
        let mut relays = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = accepting.accept() => accepted,
                _ = &mut cancelled => break,
                Some(_) = relays.join_next() => continue,
            };
            let Ok((stream, peer)) = accepted else { break };
            if relays.len() < Limits::CHANNELS_PER_CONNECTION {
                let place = place.clone();
                let reporter = reporter.clone();
                relays.spawn(outward(
                    stream,
                    peer,
                    place,
                    reporter,
                    channels.clone(),
                    handle.clone(),
                ));
            }
        }
        drop(accepting);
        while relays.join_next().await.is_some() {}
    }
}

/// Carries one connection to the client.
async fn outward(
    stream: Stream,
    peer: Option<SocketAddr>,
    place: Place,
    reporter: Reporter,
    channels: Channels,
    handle: Handle,
) {
    let Ok(channel) = place.open(&handle, peer).await else {
        return;
    };
    let (_, output) = channel.split();
    let id = output.id();
    // The channel was added when the client confirmed it.
    let Some(input) = channels.input(id) else {
        let _ = handle.close(id).await;
        return;
    };
    let transferred = Some(relay(stream, &output, &handle, &input).await);
    channels.remove(id);
    let target = place.to_string();
    reporter.report(
        SshActivity::Close,
        Facts {
            target: Some(&target),
            transferred,
            ..Facts::default()
        },
    );
}

/// Adds a channel that the client has confirmed.
pub(crate) fn confirmed(channels: &Channels, id: russh::ChannelId) {
    // If there is no room for it, the task that asked for the channel finds nothing and closes it.
    channels.open(id, channels::Channel::Relay(Arc::default()));
}

/// Relays until both directions have ended, then closes the channel. Returns the bytes from the
/// client and the bytes to it.
async fn relay(
    server: Stream,
    client: &ChannelWriteHalf<Msg>,
    handle: &Handle,
    input: &InputQueue,
) -> (u64, u64) {
    match server {
        Stream::Tcp(stream) => {
            // Small writes must not be delayed.
            let _ = stream.set_nodelay(true);
            let (reader, writer) = stream.into_split();
            copy(reader, writer, client, handle, input).await
        }
        Stream::Unix(stream) => {
            let (reader, writer) = stream.into_split();
            copy(reader, writer, client, handle, input).await
        }
    }
}

async fn copy(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    client: &ChannelWriteHalf<Msg>,
    handle: &Handle,
    input: &InputQueue,
) -> (u64, u64) {
    let sent = AtomicU64::new(0);
    let id = client.id();
    let inward = async {
        while let Some(data) = input.next().await {
            writer.write_all(&data).await?;
        }
        writer.shutdown().await
    };
    let outward = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(Limits::PACKET as usize);
            if reader.read_buf(&mut buffer).await? == 0 {
                return io::Result::Ok(());
            }
            sent.fetch_add(buffer.len() as u64, Ordering::Relaxed);
            client
                .data_bytes(buffer.split().freeze())
                .await
                .map_err(io::Error::other)?;
        }
    };
    let outward = async {
        outward.await?;
        handle
            .eof(id)
            .await
            .map_err(|()| io::ErrorKind::BrokenPipe.into())
    };
    // Either side may break off, and then there is nobody to tell.
    tokio::select! {
        _ = async { tokio::try_join!(inward, outward) } => {}
        () = input.closed() => {}
    }
    input.close();
    let _ = handle.close(id).await;
    (input.total(), sent.into_inner())
}
