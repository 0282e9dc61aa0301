//! The requests of a client, as the SSH library passes them on.

use std::sync::Arc;

use bytes::Bytes;
use openshell_events::words::SshActivity;
use russh::server::{
    Auth, ChannelOpenHandle, Handler, Msg, Session as Connected, VerifiedPublicKey,
};
use russh::{Channel as Opened, ChannelId, ChannelOpenFailure, Error, Pty, Sig};

use super::Connection;
use crate::ssh::attach::{self};
use crate::ssh::channels::{Channel, Idle};
use crate::ssh::forward::{self, Accepting, Place, ServerInside, is_inside, may_listen};
use crate::ssh::input::Pushed;
use crate::ssh::limits::Limits;
use crate::ssh::report::Facts;
use crate::ssh::session::{What, permitted};
use crate::ssh::terminal::{TerminalRequest, size};
use crate::ssh::variables::Variables;
use crate::streamlocal;

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
                "forwarding leads only to the loopback address inside",
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
            // If the queue is full, further signals would say nothing new.
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
                "forwarding listens only at the loopback address inside",
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
        self.refuse_forward("X11", "the workload could watch a display outside");
        session.channel_failure(channel)
    }

    async fn agent_request(
        &mut self,
        _channel: ChannelId,
        _session: &mut Connected,
    ) -> Result<bool, Error> {
        self.refuse_forward("agent", "the workload could use keys outside");
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
