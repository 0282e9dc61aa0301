//! One client's connection: which of its requests are granted.

use std::sync::Arc;

use bytes::Bytes;
use openshell_policy::words::SshActivity;
use openshell_supervisor::command::pty::Size;
use russh::server::{
    Auth, ChannelOpenHandle, Handle, Handler, Msg, Session as Connected, VerifiedPublicKey,
};
use russh::{Channel as Opened, ChannelId, ChannelOpenFailure, Error, Pty, Sig};
use rustix::process::Signal;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::attach::{self, Attachment};
use crate::channels::{Channel, Channels, Idle};
use crate::forward::{
    self, Accepting, Inward, Outward, Place, ServerInside, is_inside, may_listen,
};
use crate::input::{InputQueue, Pushed};
use crate::limits::Limits;
use crate::main_process::MainProcess;
use crate::report::{Facts, Reporter};
use crate::session::{SIGNALS, Session, What, permitted};
use crate::shared::{Authenticated, Shared};
use crate::streamlocal;
use crate::terminal::{TerminalRequest, size};
use crate::variables::Variables;

/// The requests of one client.
pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
    pub(crate) reporter: Reporter,
    pub(crate) channels: Channels,
    /// Set once the client is authenticated.
    pub(crate) authenticated: Authenticated,
    /// Listeners inside.
    pub(crate) listeners: Vec<ClientListener>,
    /// Counts the connection for as long as it lives.
    pub(crate) _slot: OwnedSemaphorePermit,
}

/// A listener inside for the client.
pub(crate) struct ClientListener {
    place: Place,
    /// Ends it when it is dropped, and none of its connections.
    _cancel: oneshot::Sender<()>,
    task: AbortHandle,
}

/// Ends of a running session channel: what its client sends.
struct Ends {
    input: Arc<InputQueue>,
    signals: mpsc::Receiver<Signal>,
    sizes: watch::Receiver<Option<Size>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.channels.close();
        for listener in &self.listeners {
            listener.task.abort();
        }
    }
}

impl Connection {
    /// Lets the client in, unless it is late.
    fn accept(&mut self, method: &'static str) -> Result<Auth, Error> {
        match self.authenticated.set() {
            Some(true) => {
                self.reporter.report(
                    SshActivity::Auth,
                    Facts {
                        authentication: Some(method),
                        ..Facts::default()
                    },
                );
            }
            Some(false) => {}
            None => return Err(Error::Disconnect),
        }
        Ok(Auth::Accept)
    }

    /// Makes a session channel a running one: one command a channel (RFC 4254 §6.5).
    fn begin(
        &mut self,
        id: ChannelId,
        connected: &mut Connected,
    ) -> Result<Option<(Idle, Ends)>, Error> {
        let input = Arc::<InputQueue>::default();
        let (control, signals) = mpsc::channel(SIGNALS);
        let (size, sizes) = watch::channel(None);
        let running = Channel::Running {
            input: Arc::clone(&input),
            control,
            size,
        };
        let idle = self.channels.with(id, |channel| match channel {
            Channel::Idle(_) => Some(std::mem::replace(channel, running)),
            Channel::Running { .. } | Channel::Relay(_) => None,
        });
        let Some(Some(Channel::Idle(idle))) = idle else {
            connected.channel_failure(id)?;
            return Ok(None);
        };
        connected.channel_success(id)?;
        Ok(Some((
            *idle,
            Ends {
                input,
                signals,
                sizes,
            },
        )))
    }

    /// Starts `what` on a session channel.
    fn start(&mut self, id: ChannelId, what: What, connected: &mut Connected) -> Result<(), Error> {
        let Some((
            Idle {
                output,
                terminal,
                variables,
            },
            ends,
        )) = self.begin(id, connected)?
        else {
            return Ok(());
        };
        let Ends {
            input,
            signals,
            sizes,
        } = ends;
        let session = Session {
            workload: Arc::clone(&self.shared.workload),
            reporter: self.reporter.clone(),
            what,
            terminal,
            variables: variables.into_inner(),
            channels: self.channels.clone(),
            output,
            handle: connected.handle(),
            input,
            signals,
            sizes,
        };
        self.shared.spawn(session.run());
        Ok(())
    }

    /// Attaches a session channel to the main process.
    fn attach(
        &mut self,
        id: ChannelId,
        process: Arc<MainProcess>,
        connected: &mut Connected,
    ) -> Result<(), Error> {
        let Some((
            Idle {
                output,
                terminal,
                variables,
            },
            ends,
        )) = self.begin(id, connected)?
        else {
            return Ok(());
        };
        let Ends {
            input,
            signals,
            sizes,
        } = ends;
        let attachment = Attachment {
            process,
            reporter: self.reporter.clone(),
            is_read_only: variables.is_read_only(),
            size: terminal.map(|terminal| terminal.size),
            channels: self.channels.clone(),
            output,
            handle: connected.handle(),
            input,
            signals,
            sizes,
        };
        self.shared.spawn(attachment.run());
        Ok(())
    }

    /// Relays a channel to a server inside.
    async fn open_inward(
        &mut self,
        channel: Opened<Msg>,
        target: String,
        server: ServerInside,
        reply: ChannelOpenHandle,
        connected: &mut Connected,
    ) -> Result<(), Error> {
        let (_, output) = channel.split();
        let input = Arc::<InputQueue>::default();
        if !self
            .channels
            .open(output.id(), Channel::Relay(Arc::clone(&input)))
        {
            self.refuse_forward(&target, "too many channels");
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        let workload = Arc::clone(&self.shared.workload);
        let reporter = self.reporter.clone();
        let channels = self.channels.clone();
        let handle = connected.handle();
        let inward = Inward {
            workload,
            reporter,
            target,
            server,
            reply,
            channels,
            output,
            handle,
            input,
        };
        self.shared.spawn(inward.run());
        Ok(())
    }

    /// Returns true if the client may have a further listener.
    fn has_room_for_listener(&mut self, target: &str) -> bool {
        self.listeners
            .retain(|listener| !listener.task.is_finished());
        let has_room = self.listeners.len() < Limits::LISTENERS;
        if !has_room {
            self.refuse_forward(target, "too many listeners");
        }
        has_room
    }

    /// Carries connections inside to the client.
    fn accept_for_client(&mut self, place: Place, accepting: Accepting, handle: Handle) {
        self.reporter.report(
            SshActivity::Forward,
            Facts {
                target: Some(&place.to_string()),
                ..Facts::default()
            },
        );
        let (cancel, cancelled) = oneshot::channel();
        let reporter = self.reporter.clone();
        let channels = self.channels.clone();
        let outward = Outward {
            accepting,
            place: place.clone(),
            reporter,
            channels,
            handle,
            cancelled,
        };
        let task = self.shared.spawn(outward.run());
        self.listeners.push(ClientListener {
            place,
            _cancel: cancel,
            task,
        });
    }

    /// Ends the listener at `place`; returns true if there is one.
    fn cancel(&mut self, place: &str) -> bool {
        let index = self
            .listeners
            .iter()
            .position(|listener| listener.place.to_string() == place);
        index
            .map(|index| self.listeners.swap_remove(index))
            .is_some()
    }

    fn refuse_forward(&self, target: &str, reason: &str) {
        let facts = Facts {
            target: Some(target),
            reason,
            is_refused: true,
            ..Facts::default()
        };
        self.reporter.report(SshActivity::Forward, facts);
    }
}

impl Handler for Connection {
    type Error = Error;

    async fn auth_none(&mut self, _user: &str) -> Result<Auth, Error> {
        self.accept("none")
    }

    async fn auth_publickey(
        &mut self,
        _user: &str,
        _key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, Error> {
        self.accept("publickey")
    }

    async fn channel_open_session(
        &mut self,
        channel: Opened<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Connected,
    ) -> Result<(), Error> {
        let (_, output) = channel.split();
        let id = output.id();
        let idle = Idle {
            output,
            terminal: None,
            variables: Variables::default(),
        };
        if self.channels.open(id, Channel::Idle(Box::new(idle))) {
            reply.accept().await
        } else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await
        }
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Opened<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        session: &mut Connected,
    ) -> Result<(), Error> {
        let target = format!("{host}:{port}");
        let port = u16::try_from(port).ok().filter(|port| *port > 0);
        let (true, Some(port)) = (is_inside(host), port) else {
            self.refuse_forward(
                &target,
                "forwarding leads to the loopback address inside alone",
            );
            reply
                .reject(ChannelOpenFailure::AdministrativelyProhibited)
                .await;
            return Ok(());
        };
        self.open_inward(channel, target, ServerInside::Port(port), reply, session)
            .await
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Opened<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        session: &mut Connected,
    ) -> Result<(), Error> {
        self.open_inward(
            channel,
            path.to_owned(),
            ServerInside::Path(path.to_owned()),
            reply,
            session,
        )
        .await
    }

    async fn channel_open_confirmation(
        &mut self,
        id: ChannelId,
        _max_packet_size: u32,
        _window_size: u32,
        _session: &mut Connected,
    ) -> Result<(), Error> {
        forward::confirmed(&self.channels, id);
        Ok(())
    }

    async fn channel_close(
        &mut self,
        channel: ChannelId,
        _session: &mut Connected,
    ) -> Result<(), Error> {
        if let Some(Channel::Relay(input)) = self.channels.remove(channel) {
            input.close();
        }
        Ok(())
    }

    async fn channel_eof(
        &mut self,
        channel: ChannelId,
        _session: &mut Connected,
    ) -> Result<(), Error> {
        if let Some(input) = self.channels.input(channel) {
            input.end();
        }
        Ok(())
    }

    async fn data(
        &mut self,
        channel: ChannelId,
        data: &[u8],
        session: &mut Connected,
    ) -> Result<(), Error> {
        let Some(input) = self.channels.input(channel) else {
            return Ok(());
        };
        if input.push(Bytes::copy_from_slice(data)).await == Pushed::Full {
            let reason = "too much input that nothing reads";
            self.reporter.report(
                SshActivity::Close,
                Facts {
                    reason,
                    is_refused: true,
                    ..Facts::default()
                },
            );
            self.channels.remove(channel);
            input.close();
            session.close(channel)?;
        }
        Ok(())
    }

    async fn window_adjusted(
        &mut self,
        _: ChannelId,
        _size: u32,
        _session: &mut Connected,
    ) -> Result<(), Error> {
        self.channels.relax();
        Ok(())
    }

    fn adjust_window(&mut self, _channel: ChannelId, _current: u32) -> u32 {
        if self.channels.has_long_input() {
            Limits::SMALL_WINDOW
        } else {
            Limits::WINDOW
        }
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        term: &str,
        columns: u32,
        rows: u32,
        _pixel_width: u32,
        _pixel_height: u32,
        modes: &[(Pty, u32)],
        session: &mut Connected,
    ) -> Result<(), Error> {
        let is_taken = self.channels.with(channel, |channel| match channel {
            Channel::Idle(idle) if idle.terminal.is_none() => {
                idle.terminal = Some(TerminalRequest::new(term, size(columns, rows), modes));
                true
            }
            _ => false,
        });
        if is_taken == Some(true) {
            session.channel_success(channel)
        } else {
            session.channel_failure(channel)
        }
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        value: &str,
        session: &mut Connected,
    ) -> Result<(), Error> {
        let is_set = self.channels.with(channel, |channel| match channel {
            Channel::Idle(idle) => idle.variables.set(name, value),
            _ => false,
        });
        if is_set == Some(true) {
            session.channel_success(channel)
        } else {
            session.channel_failure(channel)
        }
    }

    async fn shell_request(
        &mut self,
        channel: ChannelId,
        session: &mut Connected,
    ) -> Result<(), Error> {
        self.start(channel, What::Shell, session)
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        data: &[u8],
        session: &mut Connected,
    ) -> Result<(), Error> {
        self.start(channel, What::Line(data.to_vec()), session)
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        session: &mut Connected,
    ) -> Result<(), Error> {
        match (name, &self.shared.workload.main_process) {
            ("sftp", _) => self.start(channel, What::Sftp, session),
            (attach::NAME, Some(process)) => self.attach(channel, Arc::clone(process), session),
            _ => session.channel_failure(channel),
        }
    }

    async fn window_change_request(
        &mut self,
        channel: ChannelId,
        columns: u32,
        rows: u32,
        _pixel_width: u32,
        _pixel_height: u32,
        session: &mut Connected,
    ) -> Result<(), Error> {
        let size = size(columns, rows);
        self.channels.with(channel, |channel| match channel {
            Channel::Idle(idle) => {
                if let Some(terminal) = &mut idle.terminal {
                    terminal.size = size;
                }
            }
            Channel::Running { size: wanted, .. } => {
                wanted.send_replace(Some(size));
            }
            Channel::Relay(_) => {}
        });
        session.channel_success(channel)
    }

    async fn signal(
        &mut self,
        channel: ChannelId,
        signal: Sig,
        _session: &mut Connected,
    ) -> Result<(), Error> {
        if let (Some(control), Some(signal)) = (self.channels.control(channel), permitted(&signal))
        {
            // More of them carry no more information.
            let _ = control.try_send(signal);
        }
        Ok(())
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        session: &mut Connected,
    ) -> Result<bool, Error> {
        let target = format!("{address}:{port}");
        let wanted = u16::try_from(*port).ok().filter(|_| may_listen(address));
        let Some(wanted) = wanted else {
            self.refuse_forward(
                &target,
                "forwarding listens at the loopback address inside alone",
            );
            return Ok(false);
        };
        if !self.has_room_for_listener(&target) {
            return Ok(false);
        }
        let listen = async {
            let listener = self.shared.workload.inside.listen(wanted).await?;
            std::io::Result::Ok((listener.local_addr()?.port(), listener))
        };
        let (chosen, listener) = match listen.await {
            Ok(listening) => listening,
            Err(error) => {
                self.refuse_forward(&target, &format!("cannot listen inside: {error}"));
                return Ok(false);
            }
        };
        *port = chosen.into();
        let place = Place::Port {
            address: address.to_owned(),
            port: *port,
        };
        self.accept_for_client(place, Accepting::Port(listener), session.handle());
        Ok(true)
    }

    async fn streamlocal_forward(
        &mut self,
        path: &str,
        session: &mut Connected,
    ) -> Result<bool, Error> {
        if !self.has_room_for_listener(path) {
            return Ok(false);
        }
        match streamlocal::listen(&self.shared.workload, path).await {
            Ok(helper) => {
                self.accept_for_client(
                    Place::Path(path.to_owned()),
                    Accepting::Path(helper),
                    session.handle(),
                );
                Ok(true)
            }
            Err(error) => {
                self.refuse_forward(path, &format!("cannot listen inside: {error}"));
                Ok(false)
            }
        }
    }

    async fn cancel_streamlocal_forward(
        &mut self,
        path: &str,
        _session: &mut Connected,
    ) -> Result<bool, Error> {
        Ok(self.cancel(path))
    }

    async fn x11_request(
        &mut self,
        channel: ChannelId,
        _single_connection: bool,
        _protocol: &str,
        _cookie: &str,
        _screen: u32,
        session: &mut Connected,
    ) -> Result<(), Error> {
        self.refuse_forward("X11", "a display outside would be the workload's to watch");
        session.channel_failure(channel)
    }

    async fn agent_request(
        &mut self,
        _channel: ChannelId,
        _session: &mut Connected,
    ) -> Result<bool, Error> {
        self.refuse_forward("agent", "keys outside would be the workload's to use");
        Ok(false)
    }

    async fn cancel_tcpip_forward(
        &mut self,
        address: &str,
        port: u32,
        _session: &mut Connected,
    ) -> Result<bool, Error> {
        Ok(self.cancel(&format!("{address}:{port}")))
    }
}
