//! Runs the command, from its start to the end of everything that it started.

mod command_supervisor;
mod event_queue;
mod job_control;
mod start_failure;

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use openshell_access::control::console::Console;
use openshell_events::text;
use openshell_events::words::{ConfigState, Severity};
use openshell_supervisor::command::signals::{self, SignalAction};
use openshell_supervisor::command::streams::Streams;
use openshell_supervisor::init::{Command, IgnoredSignals, Session};
use openshell_telemetry::health::Phase;
use openshell_telemetry::logging::{self, Tone};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Level;

use crate::config::{CommandTerminal, Config};
use crate::process::exit::Ended;
use crate::reports::approvals;
use crate::startup::serve::sandbox::Sandbox;
use command_supervisor::{CommandSupervisor, until};
use event_queue::EventQueue;
use job_control::JobControl;
use start_failure::StartContext;

/// How long whoever answers has to be told what the answer did, after the command has ended.
const TELLING: Duration = Duration::from_secs(1);

/// At a time-out, init ends everything this much later than the supervisor.
const SLACK: Duration = Duration::from_secs(1);

/// Runs the command until its end, and ends the sandbox with it.
///
/// # Errors
/// Fails if the command did not start, or if init or a task of the supervisor ended.
pub(crate) async fn run(config: &Config, mut sandbox: Sandbox) -> anyhow::Result<Ended> {
    let mut console = sandbox.console.take();
    let ended = supervise(config, &mut sandbox, console.as_mut()).await;
    sandbox.enter(if ended.is_ok() {
        Phase::Draining
    } else {
        Phase::Failed
    });
    sandbox.launcher.kill();
    // The reporters no longer need any process; meanwhile the kernel removes the processes.
    for reporter in std::mem::take(&mut sandbox.reporters) {
        reporter.finish().await;
    }
    // Every process must end before the terminal is given back, and before anything made for the
    // processes is removed.
    sandbox.launcher.end();
    flush(&mut sandbox).await;
    drop(console);
    // Clients may have reached the servers inside by these ways.
    let has_other_ways = sandbox.ssh.is_some() || sandbox.gateway.is_some();
    if let Some(process) = sandbox.main_process.take() {
        process
            .end(ended.as_ref().map_or(1, |ended| ended.code), CLIENTS)
            .await;
    }
    drop(sandbox.ssh.take());
    if let Some(gateway) = sandbox.gateway.take() {
        gateway
            .finish(ended.as_ref().ok().map(|ended| ended.code))
            .await;
    }
    if let Some(monitoring) = &mut sandbox.monitoring {
        monitoring.finish().await;
    }
    for folder in sandbox.made.remove() {
        let message = format!(
            "left {}, which the start made: it is not empty",
            folder.display()
        );
        logging::config_event(ConfigState::Left, Severity::Info, &message);
    }
    if let Some(desk) = &sandbox.approvals {
        // What an answer has let go on may end the command before whoever answered is told.
        let _ = tokio::time::timeout(TELLING, desk.all_told()).await;
    }
    let grants = sandbox.approvals.iter().flat_map(|desk| desk.grants());
    let for_run = grants.filter(|grant| grant.kept_in.is_none());
    let for_run: Vec<_> = for_run.map(|grant| grant.yaml).collect();
    let written = sandbox.run_reports.write(&sandbox.refusals, &for_run);
    if let Err(error) = written.await {
        logging::print_stderr(&text::indented(&format!("openshell-sandbox: {error:#}")));
    }
    if config.log.level >= Level::WARN {
        summarize(config, &sandbox, has_other_ways);
    }
    ended
}

/// Prints what was refused, what a person has permitted, and which servers inside nobody could
/// reach.
fn summarize(config: &Config, sandbox: &Sandbox, has_other_ways: bool) {
    if let Some(summary) = sandbox.refusals.summary() {
        logging::print_toned(Tone::Refusal, &summary);
    }
    if let Some(refusals) = &sandbox.file_refusals
        && let Some(summary) = refusals.summary()
    {
        logging::print_toned(Tone::Refusal, &summary);
    }
    let granted = sandbox.approvals.iter().flat_map(|desk| desk.granted());
    if let Some(summary) = approvals::summary(&granted.collect::<Vec<_>>()) {
        logging::print_stderr(&summary);
    }
    if has_other_ways {
        return;
    }
    let published = &config.network.publish;
    let ports = published.iter().map(|published| published.port);
    if let Some(summary) = sandbox.servers.summary(ports) {
        logging::print_stderr(&summary);
    }
}

/// Longest wait for relayed outputs after the command's end.
const FLUSH: Duration = Duration::from_secs(5);

/// A time-out that never passes: the longest time that init accepts.
const NEVER: Duration = Duration::from_secs(365 * 86_400);

/// Time for the last output of a command to arrive, if its sandbox stays.
const SETTLING: Duration = Duration::from_millis(100);

/// The longest wait for clients of the main process after its end.
const CLIENTS: Duration = Duration::from_secs(2);

/// Waits until the relayed outputs have taken everything that the command wrote. Stops waiting
/// after [`FLUSH`], or at a signal to end.
async fn flush(sandbox: &mut Sandbox) {
    let Some(streams) = sandbox.streams.take().filter(Streams::has_relays) else {
        return;
    };
    let mut flushed = tokio::task::spawn_blocking(|| streams.finish(FLUSH));
    let is_flushed = loop {
        tokio::select! {
            flushed = &mut flushed => break flushed.unwrap_or(false),
            Some(signal) = sandbox.signals.recv() => {
                if signals::action(signal, false) == SignalAction::Terminate {
                    break false;
                }
            }
        }
    };
    if !is_flushed {
        logging::print_stderr(
            "openshell-sandbox: an output accepted no more data; the last bytes that the command \
             wrote to it are lost",
        );
    }
}

/// Supervises the command from its start to its end.
async fn supervise(
    config: &Config,
    sandbox: &mut Sandbox,
    mut console: Option<&mut Console>,
) -> anyhow::Result<Ended> {
    let mut timings = sandbox.timings.take();
    let events = start(config, sandbox, console.as_deref_mut())?;
    if let Some(sessions) = sandbox.sessions.take() {
        sandbox
            .tasks
            .spawn("session with the gateway", sessions.run());
    }
    let environment = &sandbox.environment;
    let granted = &sandbox.granted;
    let context = StartContext {
        config,
        start_dir: sandbox.directories.first(),
        environment,
        granted,
    };
    let launcher = Arc::clone(&sandbox.launcher);
    let job = JobControl::new(&launcher, console, config.command.ignores_stops);
    let mut command = CommandSupervisor::new(
        context,
        job,
        Arc::clone(&sandbox.reload),
        sandbox.main_process.clone(),
    );
    let code = loop {
        let code = tokio::select! {
            event = events.next() => command.event(event)?,
            Some(signal) = sandbox.signals.recv() => { command.signal(signal)?; None }
            ended = sandbox.tasks.ended() => return Err(ended.into()),
            () = command.deadline() => command.deadline_reached(),
        };
        if let Some(code) = code {
            break code;
        }
        if command.is_running() {
            sandbox.enter(Phase::Ready);
            if let Some(timings) = timings.take() {
                timings.print_with("command");
            }
        }
        if command.is_ending() {
            sandbox.close();
        }
    };
    command.log_end(Severity::Info, Some(code.into()));
    let ended = Ended {
        code,
        cause: command.cause(),
    };
    if config.command.keep && !command.is_ending() {
        keep(config, sandbox, ended.code).await?;
    }
    Ok(ended)
}

/// Keeps the sandbox for clients until a signal ends it.
async fn keep(config: &Config, sandbox: &mut Sandbox, code: u8) -> anyhow::Result<()> {
    let (ended, end) = oneshot::channel::<()>();
    let ended = Mutex::new(Some(ended));
    // When the sandbox ends, this drops the sender, which completes `end`.
    sandbox
        .launcher
        .on_end(Box::new(move |_| drop(ended.lock().take())))?;
    if config.command.timeout.is_some() {
        // The time-out was for the command, not for the sandbox.
        sandbox.launcher.end_after(NEVER)?;
    }
    let mut end = std::pin::pin!(end);
    let mut drained = None;
    if let Some(process) = sandbox.main_process.clone() {
        // Lets the last output arrive. The end of the streams may never come, because other
        // processes can hold them open.
        tokio::time::sleep(SETTLING).await;
        process.end(code, Duration::ZERO).await;
    }
    loop {
        tokio::select! {
            Some(signal) = sandbox.signals.recv() => match signals::action(signal, false) {
                // Only the first signal waits.
                SignalAction::Terminate if drained.is_none() && !config.command.drain.is_zero() => {
                    sandbox.close();
                    drained = Some(Instant::now() + config.command.drain);
                }
                SignalAction::Terminate => return Ok(()),
                SignalAction::Reload => sandbox.reload.notify_one(),
                _ => {}
            },
            ended = sandbox.tasks.ended() => return Err(ended.into()),
            () = until(drained) => return Ok(()),
            _ = &mut end => bail!("the sandbox's init ended, and every process with it"),
        }
    }
}

/// Asks init to start the command. Its events arrive in the queue that is returned.
fn start(
    config: &Config,
    sandbox: &Sandbox,
    console: Option<&mut Console>,
) -> anyhow::Result<Arc<EventQueue>> {
    let Some(streams) = &sandbox.streams else {
        bail!("the standard streams belong to another command")
    };
    let has_keyboard = console.is_some();
    logging::before_output();
    let is_foreground = console.map_or(Ok(false), Console::attach)?;
    let variables = sandbox
        .environment
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let command = Command {
        arguments: config.command.words.clone(),
        environment: variables.collect(),
        directories: sandbox.directories.clone(),
        session: match config.command.terminal {
            CommandTerminal::Own => Session::Terminal,
            CommandTerminal::Callers(_) if has_keyboard => Session::Job { is_foreground },
            CommandTerminal::Callers(_) => Session::New,
        },
        ignored: IgnoredSignals::Kept,
    };
    if let Some(limit) = config.command.timeout {
        // The supervisor ends the command earlier, unless it is stopped itself.
        sandbox
            .launcher
            .end_after(limit + config.command.grace + SLACK)?;
    }
    let events = Arc::new(EventQueue::default());
    let sender = Arc::clone(&events);
    let descriptors = streams.as_fds()?;
    let listener = Box::new(move |event| sender.push(event));
    match streams.terminal().filter(|_| has_keyboard) {
        Some(terminal) => sandbox
            .launcher
            .start_job(&command, descriptors, terminal, listener)?,
        None => sandbox.launcher.start(&command, descriptors, listener)?,
    }
    Ok(events)
}
