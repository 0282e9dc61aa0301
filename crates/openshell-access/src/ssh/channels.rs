//! The channels of a connection.

use std::collections::HashMap;
use std::sync::Arc;

use openshell_supervisor::command::pty::Size;
use parking_lot::{Mutex, MutexGuard};
use russh::server::Msg;
use russh::{ChannelId, ChannelWriteHalf};
use rustix::process::Signal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::ssh::input::InputQueue;
use crate::ssh::limits::Limits;
use crate::ssh::terminal::TerminalRequest;
use crate::ssh::variables::Variables;

/// A channel, by its state.
pub(crate) enum Channel {
    /// A session without a command so far.
    Idle(Box<Idle>),
    /// A session with a command. Dropping `control` hangs up.
    Running {
        input: Arc<InputQueue>,
        control: mpsc::Sender<Signal>,
        size: watch::Sender<Option<Size>>,
    },
    /// A forwarded connection.
    Relay(Arc<InputQueue>),
}

/// What a client has asked for before it starts a command.
pub(crate) struct Idle {
    pub(crate) output: ChannelWriteHalf<Msg>,
    pub(crate) terminal: Option<TerminalRequest>,
    pub(crate) variables: Variables,
}

/// All channels of a connection.
#[derive(Clone)]
pub(crate) struct Channels {
    channels: Arc<Mutex<HashMap<ChannelId, (Channel, OwnedSemaphorePermit)>>>,
    /// Permits for the channels that all connections together may still open.
    slots: Arc<Semaphore>,
}

impl Channels {
    pub(crate) fn new(slots: Arc<Semaphore>) -> Self {
        Self {
            channels: Arc::default(),
            slots,
        }
    }

    /// Locks the map, which a panic elsewhere cannot leave half changed.
    fn lock(&self) -> MutexGuard<'_, HashMap<ChannelId, (Channel, OwnedSemaphorePermit)>> {
        self.channels.lock()
    }

    /// Adds a channel; returns false if there are too many.
    pub(crate) fn open(&self, id: ChannelId, channel: Channel) -> bool {
        let mut channels = self.lock();
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok();
        let slot = slot.filter(|_| channels.len() < Limits::CHANNELS_PER_CONNECTION);
        slot.map(|slot| channels.insert(id, (channel, slot)))
            .is_some()
    }

    /// Removes a channel.
    pub(crate) fn remove(&self, id: ChannelId) -> Option<Channel> {
        self.lock().remove(&id).map(|(channel, _)| channel)
    }

    /// Calls `change` with a channel.
    pub(crate) fn with<T>(
        &self,
        id: ChannelId,
        change: impl FnOnce(&mut Channel) -> T,
    ) -> Option<T> {
        self.lock().get_mut(&id).map(|(channel, _)| change(channel))
    }

    /// Returns the queue of a channel's data.
    pub(crate) fn input(&self, id: ChannelId) -> Option<Arc<InputQueue>> {
        self.with(id, |channel| match channel {
            Channel::Running { input, .. } | Channel::Relay(input) => Some(Arc::clone(input)),
            Channel::Idle(_) => None,
        })?
    }

    /// Returns the sender of signals to a running session.
    pub(crate) fn control(&self, id: ChannelId) -> Option<mpsc::Sender<Signal>> {
        self.with(id, |channel| match channel {
            Channel::Running { control, .. } => Some(control.clone()),
            Channel::Idle(_) | Channel::Relay(_) => None,
        })?
    }

    /// Ends the waits of all input queues.
    pub(crate) fn relax(&self) {
        for (channel, _) in self.lock().values() {
            if let Channel::Running { input, .. } | Channel::Relay(input) = channel {
                input.relax();
            }
        }
    }

    /// Returns true if the input queue of any channel is long.
    pub(crate) fn has_long_input(&self) -> bool {
        self.lock().values().any(|(channel, _)| match channel {
            Channel::Running { input, .. } | Channel::Relay(input) => input.is_long(),
            Channel::Idle(_) => false,
        })
    }

    /// Closes all channels.
    pub(crate) fn close(&self) {
        for (_, (channel, _)) in self.lock().drain() {
            if let Channel::Relay(input) = channel {
                input.close();
            }
        }
    }
}
