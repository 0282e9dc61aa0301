//! Supervision of the command: its events, signals and time.

use std::future::pending;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use openshell_access::main_process::MainProcess;
use openshell_events::event::Process;
use openshell_events::words::{ProcessActivity, Severity};
use openshell_supervisor::command::signals::{self, Received, SignalAction};
use openshell_supervisor::init::launch::{Event, Running};
use openshell_telemetry::logging;
use rustix::process::Signal;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::config::CommandTerminal;
use crate::process::exit::{self, EndCause};
use crate::process::signals::forward;
use crate::run::workload::job_control::JobControl;
use crate::run::workload::start_failure::StartContext;

/// The reason in log lines about a command that ran too long.
const TIMED_OUT_REASON: &str = "time-out";

/// Waits until `time`, or forever if there is none.
pub(super) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// Supervises the command: passes signals on, and applies the time-out and the grace before a kill.
pub(super) struct CommandSupervisor<'c> {
    context: StartContext<'c>,
    /// Triggers reading the policy again.
    reload: Arc<Notify>,
    /// `None` until the command is known to run.
    running: Option<Arc<Running>>,
    /// Stops and continues the command together with the caller's job.
    job: JobControl<'c>,
    /// The main process as attached clients see it, which is told what the command does.
    main_process: Option<Arc<MainProcess>>,
    /// Signals that came before the command ran, each once.
    early: Vec<i32>,
    /// When the command's time is over: the time-out or, once it was asked to end, the grace.
    deadline: Option<Instant>,
    /// When to pass on the signal that asks the command to end, and that signal.
    draining: Option<(Instant, i32)>,
    cause: Option<EndCause>,
}

impl<'c> CommandSupervisor<'c> {
    /// Supervises a command that init was asked for at this moment.
    pub(super) fn new(
        context: StartContext<'c>,
        job: JobControl<'c>,
        reload: Arc<Notify>,
        main_process: Option<Arc<MainProcess>>,
    ) -> Self {
        let deadline = context
            .config
            .command
            .timeout
            .map(|limit| Instant::now() + limit);
        Self {
            context,
            reload,
            running: None,
            job,
            main_process,
            early: Vec::new(),
            deadline,
            draining: None,
            cause: None,
        }
    }

    /// Returns why the command was asked to end, if it was.
    pub(super) fn cause(&self) -> Option<EndCause> {
        self.cause
    }

    /// Returns true once the command is known to run.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns true once the command is to end, by a signal or because its time is over.
    pub(super) fn is_ending(&self) -> bool {
        self.draining.is_some() || self.cause.is_some()
    }

    /// Waits for the next deadline, if there is one.
    pub(super) async fn deadline(&self) {
        let draining = self.draining.map(|(end, _)| end);
        until(self.deadline.into_iter().chain(draining).min()).await;
    }

    /// Handles an event. Returns the exit code if the command has ended.
    ///
    /// # Errors
    /// Fails if the command did not start, or init ended.
    pub(super) fn event(&mut self, event: Event) -> anyhow::Result<Option<u8>> {
        match event {
            Event::Started(running) => self.started(running),
            Event::NotStarted(error) => return Err(self.context.explain(error)),
            Event::Ended(status) => return Ok(Some(exit::code_of_status(status, self.cause))),
            Event::Stopped(signal) => self.stopped(signal)?,
            Event::AllStopped => self.job.everything_stopped()?,
            Event::Lost(message) => return Err(anyhow!("{message}; the sandbox ends")),
            Event::OutOfTime => {
                self.ask_to_end(EndCause::TimeOut);
                self.log_end(Severity::Critical, None);
                self.print_time_out();
                return Ok(Some(EndCause::TimeOut.code_of_kill()));
            }
            Event::SandboxGone(Some(why)) => {
                return Err(anyhow!(
                    "the sandbox's init ended, and every process with it: {why}"
                ));
            }
            Event::SandboxGone(None) => {
                bail!("the sandbox's init ended, and every process with it")
            }
        }
        Ok(None)
    }

    fn started(&mut self, running: Running) {
        let words: Vec<_> = self
            .context
            .config
            .command
            .words
            .iter()
            .map(|word| word.display().to_string())
            .collect();
        let cmd = words.join(" ");
        let name = &self.name();
        let pid = running.pid;
        logging::process_event(Process {
            activity: ProcessActivity::Launch,
            severity: Severity::Info,
            name,
            pid,
            exit: None,
            command: Some(&cmd),
            reason: None,
        });
        for number in self.early.drain(..) {
            forward(&running, number);
        }
        let running = Arc::new(running);
        self.job.started(Arc::clone(&running));
        if let Some(process) = &self.main_process {
            process.set_running(Arc::clone(&running));
        }
        self.running = Some(running);
    }

    /// Handles a stop of the command.
    fn stopped(&mut self, signal: i32) -> anyhow::Result<()> {
        // A command that is told to end must be running, so that it can.
        if self.is_ending() {
            Ok(self.job.resume()?)
        } else {
            Ok(self.job.command_stopped(signal)?)
        }
    }

    /// Handles a signal to the supervisor.
    ///
    /// # Errors
    /// Fails if the terminal or init is gone.
    pub(super) fn signal(&mut self, mut signal: Received) -> anyhow::Result<()> {
        let number = signal.number;
        // A shell whose terminal hangs up sends SIGHUP to its jobs.
        signal.is_hang_up |= number == Signal::HUP.as_raw() && self.job.hang_up();
        match signals::action(signal, self.context.config.is_interactive()) {
            SignalAction::Forward => {
                if !self.job.signal(number)? {
                    self.forward(number);
                }
            }
            // Only the first signal waits; a second one is passed on at once.
            SignalAction::Terminate
                if !self.is_ending() && !self.context.config.command.drain.is_zero() =>
            {
                self.draining = Some((Instant::now() + self.context.config.command.drain, number));
            }
            SignalAction::Terminate => self.terminate(number),
            SignalAction::Reload => self.reload.notify_one(),
        }
        Ok(())
    }

    /// Asks the command to end with the signal `number`.
    fn terminate(&mut self, number: i32) {
        self.draining = None;
        self.forward(number);
        // An interactive shell ignores other signals, and takes SIGHUP for the end of its terminal.
        if self.context.config.command.terminal == CommandTerminal::Own {
            self.forward(Signal::HUP.as_raw());
        }
        self.ask_to_end(EndCause::Signal);
    }

    /// Handles a deadline that has passed. Returns the exit code if the command has to be killed.
    pub(super) fn deadline_reached(&mut self) -> Option<u8> {
        if let Some((end, number)) = self.draining
            && end <= Instant::now()
        {
            self.terminate(number);
            return None;
        }
        if let Some(cause) = self.cause {
            return Some(cause.code_of_kill());
        }
        self.ask_to_end(EndCause::TimeOut);
        self.log_end(Severity::Critical, None);
        self.print_time_out();
        self.forward(Signal::TERM.as_raw());
        None
    }

    fn print_time_out(&self) {
        let limit =
            humantime::format_duration(self.context.config.command.timeout.unwrap_or_default());
        logging::print_stderr(&format!(
            "openshell-sandbox: time-out: the command ran for {limit} (--timeout), so the sandbox \
             ends it"
        ));
    }

    /// Gives the command only the grace from now on; later calls change nothing.
    fn ask_to_end(&mut self, cause: EndCause) {
        if self.cause.is_none() {
            self.cause = Some(cause);
            self.deadline = Some(Instant::now() + self.context.config.command.grace);
        }
    }

    fn forward(&mut self, number: i32) {
        match &self.running {
            Some(running) => forward(running, number),
            None if !self.early.contains(&number) => self.early.push(number),
            None => {}
        }
    }

    fn name(&self) -> String {
        self.context
            .config
            .command
            .words
            .first()
            .map(|word| word.display().to_string())
            .unwrap_or_default()
    }

    /// Logs the end of the command.
    pub(super) fn log_end(&self, severity: Severity, exit: Option<i32>) {
        logging::process_event(Process {
            activity: ProcessActivity::Terminate,
            severity,
            name: &self.name(),
            pid: self.running.as_ref().map_or(0, |running| running.pid),
            exit,
            command: None,
            reason: (self.cause == Some(EndCause::TimeOut)).then_some(TIMED_OUT_REASON),
        });
    }
}
