//! The supervisor's side of the runner: it has programs outside of the sandbox give answers.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use openshell_access::packet_socket::PacketSocket;
use openshell_events::words::{ConfigState, Severity};
use openshell_supervisor::command::packets;
use openshell_supervisor::helpers::runner::Runner;
use openshell_supervisor::helpers::wire::{Program, Report, Request, Start};
use openshell_telemetry::logging;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The programs that the runner starts.
#[derive(Debug)]
pub(super) struct Helpers {
    socket: PacketSocket,
    waiting: Mutex<Waiting>,
}

/// The starts whose reports are waited for.
#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    receivers: BTreeMap<u64, oneshot::Sender<Report>>,
}

impl Helpers {
    /// Tells `runner` its `programs`. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Fails if the runner has ended.
    pub(super) fn begin(runner: Runner, programs: Vec<Program>) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            socket: PacketSocket::new(runner.begin(programs)?)?,
            waiting: Mutex::default(),
        }))
    }

    /// Receives what programs did. Once the runner has ended, every start fails.
    pub(super) async fn receive(self: Arc<Self>) {
        let why = loop {
            match self.socket.receive::<Report>().await {
                Ok(Some((report, _))) => {
                    let receiver = self.waiting.lock().receivers.remove(&report.number);
                    if let Some(receiver) = receiver {
                        // Who asked may have gone.
                        let _ = receiver.send(report);
                    }
                }
                Ok(None) => break "it was ended".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        let message =
            format!("helper programs cannot be started any more, restart to use them: {why}");
        logging::config_event(ConfigState::Failed, Severity::High, &message);
        self.waiting.lock().receivers.clear();
        pending().await
    }

    /// Has the program with this index run, with `input`, for as long as `limit`. It ends with the
    /// returned future.
    ///
    /// # Errors
    /// Fails if the runner has ended.
    pub(super) async fn run(
        &self,
        program: usize,
        input: String,
        limit: Duration,
        output_bytes: usize,
    ) -> io::Result<Report> {
        let (sender, receiver) = oneshot::channel();
        let number = {
            let mut waiting = self.waiting.lock();
            waiting.last += 1;
            let number = waiting.last;
            waiting.receivers.insert(number, sender);
            number
        };
        let _running = Started {
            helpers: self,
            number,
        };
        let start = Start {
            number,
            program,
            input,
            milliseconds: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            output_bytes,
        };
        self.socket.send(&Request::Start(start), &[]).await?;
        receiver
            .await
            .map_err(|_| io::Error::other("the runner of helper programs has ended"))
    }
}

/// A program that was started, and that is ended when nobody waits for it any more.
struct Started<'h> {
    helpers: &'h Helpers,
    number: u64,
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        let waited = self.helpers.waiting.lock().receivers.remove(&self.number);
        if waited.is_some() {
            // Otherwise its own deadline ends it.
            let cancel = Request::Cancel(self.number);
            let _ = packets::send(self.helpers.socket.as_fd(), &cancel, &[]);
        }
    }
}
