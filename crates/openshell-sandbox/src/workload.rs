//! The command's life: started, waited for, signalled, timed, and the end of everything with it.

use std::collections::VecDeque;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{anyhow, bail};
use openshell_supervisor::environment::Environment;
use openshell_supervisor::init::{Command, Session, Status};
use openshell_supervisor::landlock::Request;
use openshell_supervisor::launch::{Event, LaunchError, Running};
use openshell_supervisor::signals::{self, Meaning, Received};
use rustix::process::Signal;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::Level;

use crate::config::Config;
use crate::logging::{self, ProcessEvent};
use crate::startup::Sandbox;
use crate::terminal::{self, Terminal};

/// How much later than the supervisor init ends everything at a time-out.
const SLACK: Duration = Duration::from_secs(1);

/// What `timeout(1)` ends with.
const TIMED_OUT: u8 = 124;
/// Reason in the log lines of a command that ran too long.
const TIMED_OUT_REASON: &str = "time-out";
/// What a shell ends with when a command cannot be executed, and when there is none.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The exit code of an error that kept the command from running.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<LaunchError>() {
        Some(LaunchError::NotFound(_)) => NOT_FOUND,
        Some(LaunchError::NotExecutable { .. } | LaunchError::NoInterpreter(_)) => NOT_EXECUTABLE,
        _ => 1,
    }
}

/// The end of a command that ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) code: u8,
    /// Cause of an end that is not the command's own, whatever its code.
    asked: Option<Asked>,
}

impl Ended {
    /// Result, exit code and cause, for the log.
    pub(crate) fn summary(self) -> String {
        let result = if self.code == 0 && self.asked.is_none() { "success" } else { "failure" };
        let cause = match self.asked {
            None => "",
            Some(Asked::Signalled) => " ended by a signal",
            Some(Asked::TimedOut) => " ended by the time-out",
        };
        format!("{result} [exit:{}]{cause}", self.code)
    }
}

/// Runs the command until its end, and ends the sandbox with it.
pub(crate) async fn run(config: &Config, mut sandbox: Sandbox) -> anyhow::Result<Ended> {
    let terminal = config.interactive.then(Terminal::lend).transpose()?;
    let ended = live(config, &mut sandbox).await;
    // Every process is gone before the terminal is taken back, and before anything that was made for them.
    sandbox.launcher.end();
    drop(terminal);
    flush(&mut sandbox).await;
    for folder in sandbox.made.remove() {
        let message = format!("left {}, which the start made: it is not empty", folder.display());
        logging::config_event("LEFT", "INFO", &message);
    }
    for reporter in std::mem::take(&mut sandbox.reporters) {
        reporter.finish().await;
    }
    if let Err(error) = sandbox.results.write(&sandbox.refusals).await {
        logging::print_stderr(&format!("openshell-sandbox: {error:#}"));
    }
    if let Some(summary) = sandbox.refusals.summary().filter(|_| config.log_level >= Level::WARN) {
        logging::print_stderr(&summary);
    }
    ended
}

/// How long an output may take to accept what the command wrote to it, when the command has ended.
const FLUSH: Duration = Duration::from_secs(5);

/// Waits for relayed outputs to take what the command wrote, but not for ever, and no longer than until a signal to end.
async fn flush(sandbox: &mut Sandbox) {
    let Some(streams) = sandbox.streams.take() else { return };
    let mut flushed = tokio::task::spawn_blocking(|| streams.finish(FLUSH));
    let is_flushed = loop {
        tokio::select! {
            flushed = &mut flushed => break flushed.unwrap_or(false),
            Some(signal) = sandbox.signals.recv() => {
                if signals::meaning(signal, false) == Meaning::Terminate {
                    break false;
                }
            }
        }
    };
    if !is_flushed {
        logging::print_stderr(
            "openshell-sandbox: an output took no more; the last bytes that the command wrote to it are lost",
        );
    }
}

async fn live(config: &Config, sandbox: &mut Sandbox) -> anyhow::Result<Ended> {
    let news = start(config, sandbox)?;
    let start_dir = sandbox.directories.first();
    let reload = Arc::clone(&sandbox.reload);
    let (environment, granted) = (&sandbox.environment, &sandbox.granted);
    let mut life = Life {
        config,
        reload,
        start_dir,
        environment,
        granted,
        running: None,
        early: Vec::new(),
        deadline: None,
        asked: None,
    };
    life.deadline = config.timeout.map(|limit| Instant::now() + limit);
    let code = loop {
        let code = tokio::select! {
            event = news.next() => life.hear(event)?,
            Some(signal) = sandbox.signals.recv() => life.signalled(signal)?,
            ended = sandbox.tasks.ended() => return Err(ended.into()),
            () = reached(life.deadline) => life.out_of_time(),
        };
        if let Some(code) = code {
            break code;
        }
    };
    life.note("TERMINATE", "INFO", Some(code.into()), &format!("Process exited with code {code}"));
    Ok(Ended { code, asked: life.asked })
}

/// Asks for the command; what becomes of it comes as news.
fn start(config: &Config, sandbox: &Sandbox) -> anyhow::Result<Arc<News>> {
    let variables = sandbox.environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    let command = Command {
        arguments: config.command.clone(),
        environment: variables.collect(),
        directories: sandbox.directories.clone(),
        session: if config.interactive { Session::Foreground } else { Session::New },
    };
    if let Some(limit) = config.timeout {
        // The supervisor itself is faster, unless it is stopped.
        sandbox.launcher.end_after(limit + config.grace + SLACK)?;
    }
    let news = Arc::new(News::default());
    let tell = Arc::clone(&news);
    let Some(streams) = &sandbox.streams else { bail!("the standard streams belong to another command") };
    sandbox.launcher.start(&command, streams.as_fds(), Box::new(move |event| tell.push(event)))?;
    Ok(news)
}

/// Events in their order, none lost: a stop that nobody has looked at yet says no more when it comes again.
#[derive(Default)]
struct News {
    events: Mutex<VecDeque<Event>>,
    arrived: Notify,
}

impl News {
    fn push(&self, event: Event) {
        let mut events = self.lock();
        if !matches!((events.back(), &event), (Some(Event::Stopped(_)), Event::Stopped(_))) {
            events.push_back(event);
        }
        self.arrived.notify_one();
    }

    async fn next(&self) -> Event {
        loop {
            if let Some(event) = self.lock().pop_front() {
                return event;
            }
            self.arrived.notified().await;
        }
    }

    /// What is behind the lock is whole at every moment.
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why the command was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Signalled,
    TimedOut,
}

/// Where the command is in its life.
struct Life<'c> {
    config: &'c Config,
    /// Has the policy read again.
    reload: Arc<Notify>,
    /// Where the command should start.
    start_dir: Option<&'c PathBuf>,
    /// The command's environment and file rules.
    environment: &'c Environment,
    granted: &'c Request,
    /// `None` until it is known to run.
    running: Option<Running>,
    /// Signals that came before that, each once.
    early: Vec<i32>,
    /// When the patience ends: the time-out, and once the command was asked to end, the grace.
    deadline: Option<Instant>,
    asked: Option<Asked>,
}

impl Life<'_> {
    /// The exit code, if `event` was the end.
    fn hear(&mut self, event: Event) -> anyhow::Result<Option<u8>> {
        match event {
            Event::Started(running) => self.started(running),
            Event::NotStarted(error) => return Err(self.not_started(error)),
            Event::Ended(status) => return Ok(Some(self.code(status))),
            Event::Stopped(signal) => {
                if let Some(running) = self.running.as_ref().filter(|_| self.config.interactive) {
                    terminal::stopped(running, signal)?;
                }
            }
            Event::OutOfTime => {
                self.ask(Asked::TimedOut);
                self.note("TERMINATE", "CRIT", None, "Process timed out while the supervisor was stopped");
                self.say_timed_out();
                return Ok(Some(TIMED_OUT));
            }
            Event::SandboxGone(Some(why)) => {
                return Err(anyhow!("the sandbox's init ended, and every process with it: {why}"));
            }
            Event::SandboxGone(None) => bail!("the sandbox's init ended, and every process with it"),
        }
        Ok(None)
    }

    /// Why the command never ran.
    fn not_started(&self, error: LaunchError) -> anyhow::Error {
        let context = match &error {
            LaunchError::Directory { .. } => self.not_entered(),
            LaunchError::NotFound(_) => self.not_granted().or_else(|| self.elsewhere()),
            _ => self.elsewhere(),
        };
        match context {
            Some(context) => anyhow!(error).context(context),
            None => error.into(),
        }
    }

    fn not_entered(&self) -> Option<String> {
        let user = self.environment.get("USER")?.display();
        let folder = self.start_dir?.display();
        Some(format!(
            "the workload's user {user} may not enter the working directory {folder}; let it in (chmod, setfacl), or name another with \
             --workdir"
        ))
    }

    /// A program that exists on the host, where the sandbox cannot see it.
    fn not_granted(&self) -> Option<String> {
        let word = Path::new(self.config.command.first()?);
        let is_program = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|data| data.is_file());
        let found = if word.components().count() > 1 {
            Some(word.to_path_buf()).filter(|word| word.is_absolute() && is_program(word))
        } else {
            std::env::split_paths(self.environment.get("PATH")?).map(|folder| folder.join(word)).find(is_program)
        };
        // A path that is granted is out of reach for another reason.
        let found = std::fs::canonicalize(found?).ok().filter(|found| !self.granted.grants_reading(found))?;
        let (path, folder) = (found.display(), found.parent()?.display());
        Some(format!(
            "{path} is there, but the policy does not grant it; add `{folder}` to filesystem_policy.read_only, with what else it needs"
        ))
    }

    /// A relative path is looked for where the command starts.
    fn elsewhere(&self) -> Option<String> {
        let word = Path::new(self.config.command.first()?);
        let is_relative = word.is_relative() && word.components().count() > 1;
        let wanted = self.config.current_dir.as_ref().filter(|_| self.config.workdir.is_none() && is_relative)?;
        let is_elsewhere = self.start_dir != Some(wanted);
        is_elsewhere
            .then(|| format!("the policy does not grant the current directory {} (see --workdir)", wanted.display()))
    }

    fn started(&mut self, running: Running) {
        let words: Vec<_> = self.config.command.iter().map(|word| word.display().to_string()).collect();
        let cmd = words.join(" ");
        let (name, pid) = (&self.name(), running.pid);
        let event =
            ProcessEvent { activity: "LAUNCH", severity: "INFO", name, pid, exit: None, cmd: Some(&cmd), reason: None };
        logging::process_event(&event, &format!("Process started: pid={pid}"));
        self.early.drain(..).for_each(|number| crate::signals::forward(&running, number));
        self.running = Some(running);
    }

    fn signalled(&mut self, signal: Received) -> anyhow::Result<Option<u8>> {
        let number = signal.number;
        match signals::meaning(signal, self.config.interactive) {
            // Continued by the caller's shell, in its foreground or not.
            Meaning::Forward if number == Signal::CONT.as_raw() && self.config.interactive => {
                self.running.as_ref().map_or(Ok(()), terminal::resume)?;
            }
            Meaning::Forward => self.forward(number),
            Meaning::Terminate => {
                self.forward(number);
                self.ask(Asked::Signalled);
            }
            Meaning::Reload => self.reload.notify_one(),
        }
        Ok(None)
    }

    fn out_of_time(&mut self) -> Option<u8> {
        match self.asked {
            None => {
                self.ask(Asked::TimedOut);
                self.note("TERMINATE", "CRIT", None, "Process timed out, killing");
                self.say_timed_out();
                self.forward(Signal::TERM.as_raw());
                None
            }
            Some(Asked::TimedOut) => Some(TIMED_OUT),
            Some(Asked::Signalled) => Some(killed(Signal::KILL.as_raw())),
        }
    }

    fn say_timed_out(&self) {
        let limit = humantime::format_duration(self.config.timeout.unwrap_or_default());
        logging::print_stderr(&format!(
            "openshell-sandbox: time-out: the command ran for {limit} (--timeout) and is ended"
        ));
    }

    /// From now on the command has the grace left, whatever was granted before.
    fn ask(&mut self, why: Asked) {
        if self.asked.is_none() {
            self.asked = Some(why);
            self.deadline = Some(Instant::now() + self.config.grace);
        }
    }

    fn code(&self, status: Status) -> u8 {
        match (self.asked, status) {
            (Some(Asked::TimedOut), _) => TIMED_OUT,
            // The kernel keeps 8 bits of an exit code.
            (_, Status::Exited(code)) => u8::try_from(code & 0xff).unwrap_or(1),
            (_, Status::Killed(signal)) => killed(signal),
        }
    }

    fn forward(&mut self, number: i32) {
        match &self.running {
            Some(running) => crate::signals::forward(running, number),
            None if !self.early.contains(&number) => self.early.push(number),
            None => {}
        }
    }

    fn name(&self) -> String {
        self.config.command.first().map(|word| word.display().to_string()).unwrap_or_default()
    }

    fn note(&self, activity: &'static str, severity: &'static str, exit: Option<i32>, message: &str) {
        let (name, pid) = (&self.name(), self.running.as_ref().map_or(0, |running| running.pid));
        let reason = (self.asked == Some(Asked::TimedOut)).then_some(TIMED_OUT_REASON);
        logging::process_event(&ProcessEvent { activity, severity, name, pid, exit, cmd: None, reason }, message);
    }
}

fn killed(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}
