//! What a gateway is told about a run: log lines, denials, activity, a session, and the exit of the
//! main process.

pub(crate) mod denials;
mod session;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use openshell_events::event::Audit;
use openshell_gateway::channel::Backoff;
use openshell_gateway::client::Gateway;
use openshell_gateway::logs::{self, Lines};
use openshell_gateway::session::{Inside, Sessions};
use openshell_gateway::token::Tokens;
use openshell_proxy::credentials::leaks::detector::LeakDetector;
use openshell_proxy::credentials::watched::CurrentVault;
use openshell_proxy::reach::resolve::lookup::Resolver;
use openshell_sources::gateway::Receiver;
use openshell_sources::tasks::Tasks;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use denials::{DenialReports, LookUp};

/// The longest time that the last reports may take.
const FINISH: Duration = Duration::from_secs(5);

/// The shortest and the longest wait between attempts to report the exit.
const EXIT_RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// The reports of one run.
pub(crate) struct GatewayReports {
    gateway: Gateway,
    receiver: Receiver,
    /// The random id of this supervisor, the same until its end.
    instance: String,
    denials: Arc<DenialReports>,
    stop_logs: oneshot::Sender<()>,
    logs_ended: oneshot::Receiver<()>,
}

impl GatewayReports {
    /// Starts to send log `lines` and denials to `receiver`.
    ///
    /// # Errors
    /// Fails if the system provides no random numbers.
    pub(crate) fn start(
        receiver: Receiver,
        lines: Option<Lines>,
        resolver: Arc<Resolver>,
        tasks: &mut Tasks,
    ) -> anyhow::Result<Self> {
        let (stop_logs, stopped) = oneshot::channel();
        let (done, logs_ended) = oneshot::channel();
        let gateway = receiver.gateway.clone();
        if let Some(lines) = lines {
            let push = logs::push(gateway.clone(), lines, stopped);
            tasks.spawn("log lines for the gateway", async move {
                push.await;
                drop(done);
                std::future::pending().await
            });
        }
        let denials = Arc::new(DenialReports::new(receiver.clone(), resolver));
        tasks.spawn("denials for the gateway", Arc::clone(&denials).run());
        tasks.spawn(
            "activity for the gateway",
            Arc::clone(&denials).run_activity(),
        );
        Ok(Self {
            gateway,
            receiver,
            instance: random_uuid()?,
            denials,
            stop_logs,
            logs_ended,
        })
    }

    /// Returns the gateway as the receiver of reports.
    pub(crate) fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Returns what reports denials.
    pub(crate) fn denials(&self) -> &Arc<DenialReports> {
        &self.denials
    }

    /// Returns the receiver of the run's events.
    pub(crate) fn audit(&self) -> Arc<dyn Audit> {
        Arc::clone(&self.denials) as _
    }

    /// Tells `leaks` the gateway's tokens: the current ones before this returns, later ones for as
    /// long as the returned future is polled. The future also prepares the search for later ones.
    pub(crate) fn know_tokens(
        &self,
        leaks: Arc<LeakDetector>,
        vault: Arc<CurrentVault>,
    ) -> impl Future<Output = ()> + use<> {
        let mut tokens = self.gateway.tokens();
        let know = |leaks: &LeakDetector, tokens: &Tokens| {
            leaks.know_tokens(&tokens.issued, &tokens.exchanged)
        };
        know(&leaks, &tokens.borrow_and_update());
        async move {
            while tokens.changed().await.is_ok() {
                know(&leaks, &tokens.borrow_and_update());
                let leaks = Arc::clone(&leaks);
                let vault = Arc::clone(&vault);
                // If this panics, the next request prepares the search.
                let _ = tokio::task::spawn_blocking(move || leaks.prepare(&vault.load())).await;
            }
            std::future::pending().await
        }
    }

    /// Returns the sessions, whose relays end `inside`.
    pub(crate) fn sessions(&self, inside: Arc<dyn Inside>) -> Sessions {
        session::sessions(self.gateway.clone(), self.instance.clone(), inside)
    }

    /// Sends the remaining reports, and the exit code of the main process if it ran, within five
    /// seconds.
    pub(crate) async fn finish(self, exit: Option<u8>) {
        let until = Instant::now() + FINISH;
        let Self {
            gateway,
            receiver: _,
            instance,
            denials,
            stop_logs,
            logs_ended,
        } = self;
        let reports = async {
            let exit = async {
                if let Some(code) = exit {
                    report_exit(&gateway, &instance, code).await;
                }
            };
            let logs = async {
                drop(stop_logs);
                let _ = logs_ended.await;
            };
            tokio::join!(
                exit,
                denials.flush(LookUp::No),
                denials.flush_activity(),
                logs
            )
        };
        if timeout_at(until, reports).await.is_err() {
            tracing::warn!(
                "the gateway did not accept the last reports within {} seconds",
                FINISH.as_secs()
            );
        }
    }
}

/// Reports the exit, and tries again until the gateway accepts it or has no such call.
async fn report_exit(gateway: &Gateway, instance: &str, code: u8) {
    let mut backoff = Backoff::new(EXIT_RETRY.0, EXIT_RETRY.1);
    while let Err(error) = gateway.report_exit(instance, code.into()).await {
        if error.is_unimplemented() {
            return;
        }
        tracing::debug!("the exit was not reported: {error}");
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

/// Returns a random UUID (RFC 9562 §5.4).
fn random_uuid() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("cannot get a random number from the kernel")?;
    let number = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let digits = format!("{number:032x}");
    let (first, rest) = digits.split_at(8);
    let (second, rest) = rest.split_at(4);
    let (third, rest) = rest.split_at(4);
    let (fourth, last) = rest.split_at(4);
    Ok([first, second, third, fourth, last].join("-"))
}

#[cfg(test)]
mod tests {
    use super::random_uuid;

    #[test]
    fn an_instance_has_a_random_uuid() {
        let one = random_uuid().unwrap();
        let parts: Vec<_> = one.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{one}");
        assert_eq!(one.chars().nth(14), Some('4'));
        assert!("89ab".contains(one.chars().nth(19).unwrap()), "{one}");
        assert_ne!(one, random_uuid().unwrap());
    }
}
