//! Makes the witness, and tells the proxy what the witness has seen.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openshell_events::event::Audit;
use openshell_proxy::decide::identify::{self, Identifier, Identity};
use openshell_proxy::denial::refusal::Refusal;
use openshell_proxy::ground::peer::Caller;
use openshell_proxy::report::record::{Outcome, Record};
use openshell_sources::tasks::Tasks;
use openshell_supervisor::calls::waiting_calls::{Handler, WaitingCalls};
use openshell_supervisor::calls::witness::{
    Callers, IsDoor, Network, Refused, Witness, WitnessError,
};
use openshell_supervisor::network::netns::{INTERFACE, NAME_SERVER, WORKLOAD};
use tokio::sync::mpsc;

use crate::reports::servers::Servers;

/// The most refused connects that wait to be reported.
const REPORTS: usize = 64;

/// The shortest time between two reports, so that many refusals do not fill the log.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the witness of the connects among the sandbox's `calls`, to `doors` and elsewhere, and
/// the handler of these calls. `socket` is a socket of the sandbox's network. Connects that the
/// witness refuses are reported to `audit`, and servers inside to `servers`.
///
/// # Errors
/// Fails if processes of the sandbox cannot be examined.
pub(crate) fn create(
    calls: &WaitingCalls,
    doors: IsDoor,
    socket: impl AsFd,
    identifier: Arc<Identifier>,
    servers: Arc<Servers>,
    audit: Arc<dyn Audit>,
    tasks: &mut Tasks,
) -> Result<(Arc<dyn identify::Witness>, Handler), WitnessError> {
    let (reports, received) = mpsc::channel(REPORTS);
    let unreported = Arc::new(AtomicU64::new(0));
    tasks.spawn("witness", report(received, Arc::clone(&unreported), audit));
    let name_server = NAME_SERVER;
    let socket = socket.as_fd();
    let network = Network {
        doors,
        name_server,
        own: WORKLOAD,
        interface: INTERFACE,
        socket,
    };
    let witness = Witness::new(
        calls,
        network,
        Described {
            identifier,
            servers,
            reports,
            unreported,
        },
    )?;
    let handler = witness.handler();
    Ok((Arc::new(Sight(witness)), handler))
}

/// What the witness reports.
enum Report {
    /// A connect was refused, for this reason.
    Refused(Option<Identity>, Refused),
    /// The witness has ended.
    Failed(io::Error),
}

/// Describes callers to the witness.
struct Described {
    identifier: Arc<Identifier>,
    servers: Arc<Servers>,
    reports: mpsc::Sender<Report>,
    /// The number of refusals for which the queue had no room.
    unreported: Arc<AtomicU64>,
}

impl Callers for Described {
    type Caller = Identity;
    type Note = Option<Caller>;

    fn describe(&self, thread: i32) -> Identity {
        self.identifier.identify(thread)
    }

    fn note(&self, thread: i32) -> Option<Caller> {
        self.identifier
            .identify(thread)
            .ok()
            .map(|identified| identified.caller().clone())
    }

    fn listens(&self, port: u16, thread: i32) {
        let program = || {
            self.note(thread).map_or_else(
                || "-".to_owned(),
                |caller| caller.program.executable.clone(),
            )
        };
        self.servers.listens(port, program);
    }

    fn reaches(&self, port: u16) {
        self.servers.reached(port);
    }

    fn refused(&self, caller: Option<Identity>, why: Refused) {
        if self.reports.try_send(Report::Refused(caller, why)).is_err() {
            self.unreported.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn failed(&self, error: io::Error) {
        // May wait for room, because nothing is as urgent, and the receiver never blocks.
        let _ = self.reports.blocking_send(Report::Failed(error));
    }
}

/// The witness in the form in which the proxy asks it.
#[derive(Debug)]
struct Sight(Witness<Described>);

impl identify::Witness for Sight {
    fn caller(&self, client: BorrowedFd<'_>) -> Option<Identity> {
        self.0.caller(client)
    }

    fn sender(&self, mark: u32) -> Option<Caller> {
        self.0.noted(mark).flatten()
    }

    fn asker(&self, port: u16) -> Option<Caller> {
        self.0.asker(port).flatten()
    }
}

/// Reports refused connects until the witness fails.
async fn report(
    mut reports: mpsc::Receiver<Report>,
    unreported: Arc<AtomicU64>,
    audit: Arc<dyn Audit>,
) {
    while let Some(report) = reports.recv().await {
        match report {
            Report::Refused(caller, why) => report_refused(&audit, caller, &why),
            Report::Failed(error) => {
                return tracing::error!("cannot identify callers any more: {error}");
            }
        }
        tokio::time::sleep(REPORT_INTERVAL).await;
        match unreported.swap(0, Ordering::Relaxed) {
            0 => {}
            count => {
                tracing::warn!("more connects were refused, and not reported one by one: {count}")
            }
        }
    }
}

fn report_refused(audit: &Arc<dyn Audit>, caller: Option<Identity>, why: &Refused) {
    let refusal = match why {
        Refused::Pending => Refusal::limit_reached("too many connections wait to be accepted"),
        Refused::Foreign | Refused::Unreadable(_) => Refusal::caller_unknown(why.to_string()),
    };
    let mut record = Record::new(audit, "connect".to_owned(), None);
    if let Some(Ok(identified)) = caller {
        record.called_by(identified.caller().clone());
    }
    record.finish(Outcome::Refused(&refusal));
}
