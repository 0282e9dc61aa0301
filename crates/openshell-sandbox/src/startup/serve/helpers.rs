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

/// Why no program is started any more.
const OVER: &str = "the runner of helper programs has ended";

/// How much later than the deadline of a program its report may come.
const LATE: Duration = Duration::from_secs(5);

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
    /// True once the runner has ended.
    is_over: bool,
}

impl Waiting {
    fn end(&mut self) {
        self.is_over = true;
        self.receivers.clear();
    }
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
                // The report is lost, and its start fails by its own deadline.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let message = format!("the report of a helper program is lost: {error}");
                    logging::config_event(ConfigState::Failed, Severity::Medium, &message);
                }
                Err(error) => break error.to_string(),
            }
        };
        let message =
            format!("helper programs cannot be started any more, restart to use them: {why}");
        logging::config_event(ConfigState::Failed, Severity::High, &message);
        self.waiting.lock().end();
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
            if waiting.is_over {
                return Err(io::Error::other(OVER));
            }
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
        match tokio::time::timeout(limit + LATE, receiver).await {
            Ok(Ok(report)) => Ok(report),
            Ok(Err(_)) => Err(io::Error::other(OVER)),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
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
