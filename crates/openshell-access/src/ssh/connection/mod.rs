//! The connection of one client, and which of its requests are granted.

mod handler;

use std::sync::Arc;

use openshell_events::words::SshActivity;
use openshell_supervisor::command::pty::Size;
use russh::server::{Auth, ChannelOpenHandle, Handle, Msg, Session as Connected};
use russh::{Channel as Opened, ChannelId, ChannelOpenFailure, Error};
use rustix::process::Signal;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::main_process::MainProcess;
use crate::ssh::attach::Attachment;
use crate::ssh::channels::{Channel, Channels, Idle};
use crate::ssh::forward::{Accepting, Inward, Outward, Place, ServerInside};
use crate::ssh::input::InputQueue;
use crate::ssh::limits::Limits;
use crate::ssh::report::{Facts, Reporter};
use crate::ssh::session::{SIGNALS, Session, What};
use crate::ssh::shared::{Authenticated, Shared};

/// The requests of one client.
pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
    pub(crate) reporter: Reporter,
    pub(crate) channels: Channels,
    /// Set once the client is authenticated.
    pub(crate) authenticated: Authenticated,
    /// Listeners inside on behalf of the client.
    pub(crate) listeners: Vec<ClientListener>,
    /// Counts as one connection for as long as this one lives.
    pub(crate) _slot: OwnedSemaphorePermit,
}

/// A listener inside on behalf of the client.
pub(crate) struct ClientListener {
    place: Place,
    /// Dropping it ends the listener but none of its connections.
    _cancel: oneshot::Sender<()>,
    task: AbortHandle,
}

/// Receivers for what the client of a running session channel sends.
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

    /// Turns an idle session channel into a running one; a channel runs only one command (RFC 4254
    /// §6.5).
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

    /// Relays a channel to a server in the sandbox.
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

    /// Returns true if the client may have another listener.
    fn has_room_for_listener(&mut self, target: &str) -> bool {
        self.listeners
            .retain(|listener| !listener.task.is_finished());
        let has_room = self.listeners.len() < Limits::LISTENERS;
        if !has_room {
            self.refuse_forward(target, "too many listeners");
        }
        has_room
    }

    /// Carries connections that `accepting` gives to the client.
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
