//! The command of a session channel: starts it under the sandbox's confinement, relays its streams,
//! and reports its end.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::BytesMut;
use openshell_events::words::SshActivity;
use openshell_supervisor::command::pty::{self, Size};
use openshell_supervisor::init::launch::LaunchError;
use openshell_supervisor::init::{Session as SessionKind, Status};
use russh::server::{Handle, Msg};
use russh::{ChannelId, ChannelWriteHalf, Sig};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::attended::{self, Asked, Attended, HANG_UP, Heard};
use crate::command_line::{self, Parsed};
use crate::ssh::channels::Channels;
use crate::ssh::input::InputQueue;
use crate::ssh::limits::Limits;
use crate::ssh::report::{Facts, Reporter};
use crate::ssh::terminal::{self, TerminalRequest};
use crate::workload::Workload;

/// What a session runs.
#[derive(Debug)]
pub(crate) enum What {
    /// An interactive shell.
    Shell,
    /// A command line.
    Line(Vec<u8>),
    /// The SFTP server.
    Sftp,
}

/// How many signals of a client may wait.
pub(crate) const SIGNALS: usize = 32;

/// Exit code with which a shell reports that there is no such command.
const NOT_FOUND: u32 = 127;

/// Type of extended data for standard error (RFC 4254 §5.2).
pub(crate) const STANDARD_ERROR: u32 = 1;

/// Bytes that are read at a time.
const CHUNK: usize = Limits::PACKET as usize;

/// A session with its command.
pub(crate) struct Session {
    pub(crate) workload: Arc<Workload>,
    pub(crate) reporter: Reporter,
    pub(crate) what: What,
    pub(crate) terminal: Option<TerminalRequest>,
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// The channels, which include this one until its end.
    pub(crate) channels: Channels,
    /// Sends data within the client's window.
    pub(crate) output: ChannelWriteHalf<Msg>,
    /// Sends everything that is not data, in order with the data.
    pub(crate) handle: Handle,
    pub(crate) input: Arc<InputQueue>,
    /// Signals of the client; the end of the channel means that the client has gone.
    pub(crate) signals: mpsc::Receiver<Signal>,
    /// The size that the client gave last since the terminal was opened.
    pub(crate) sizes: watch::Receiver<Option<Size>>,
}

/// The supervisor's ends of a command's streams.
struct Ends {
    input: pipe::Sender,
    output: pipe::Receiver,
    errors: Option<pipe::Receiver>,
    /// Master of the command's terminal, if it has one.
    master: Option<OwnedFd>,
}

impl Session {
    /// Runs the command, and tells the client about its end: all output, the end of the output, the
    /// exit status, and the close of the channel.
    pub(crate) async fn run(mut self) {
        let command = match &self.what {
            What::Shell => "shell".to_owned(),
            What::Line(text) => command_line::redacted(text),
            What::Sftp => "sftp".to_owned(),
        };
        self.reporter.report(
            SshActivity::Exec,
            Facts {
                command: Some(&command),
                ..Facts::default()
            },
        );
        let sent = Sent::default();
        let exit = match self.command() {
            Ok((parsed, is_helper)) => match self.execute(parsed, is_helper, &sent).await {
                Ok(Status::Exited(code)) => {
                    self.finish(Exit::Code(u32::try_from(code & 0xff).unwrap_or(1)))
                        .await
                }
                Ok(Status::Killed(signal)) => self.finish(Exit::Signal(signal)).await,
                // The sandbox ended before the command had started.
                Err(LaunchError::Gone) => self.finish(Exit::Signal(Signal::KILL.as_raw())).await,
                Err(error) => self.fail(&error).await,
            },
            Err(reason) => {
                self.complain(&reason).await;
                self.finish(Exit::Code(NOT_FOUND)).await
            }
        };
        // The library does not report channels that this side has closed.
        self.channels.remove(self.output.id());
        self.input.close();
        let transferred = Some((self.input.total(), sent.bytes.into_inner()));
        let facts = Facts {
            command: Some(&command),
            exit: Some(exit),
            transferred,
            ..Facts::default()
        };
        self.reporter.report(SshActivity::Close, facts);
    }

    /// Returns the program to run, and true if it is the supervisor's own.
    fn command(&mut self) -> Result<(Parsed, bool), String> {
        let may_log_in = self.workload.has_login_shells;
        match &mut self.what {
            What::Shell => command_line::interactive(may_log_in)
                .map(|shell| (shell, false))
                .ok_or("this sandbox has no shell; name a program to run".to_owned()),
            What::Line(text) => {
                // The output of a profile would disturb the protocols of rsync and scp.
                let is_login = may_log_in && self.terminal.is_some();
                Ok((command_line::parse(std::mem::take(text), is_login)?, false))
            }
            What::Sftp => {
                let arguments = self.workload.sftp.iter().map(OsString::from).collect();
                Ok((
                    Parsed {
                        arguments,
                        ..Parsed::default()
                    },
                    true,
                ))
            }
        }
    }

    async fn complain(&self, reason: &str) {
        // The client may have gone.
        let _ = self
            .output
            .extended_data_bytes(STANDARD_ERROR, format!("openshell-sandbox: {reason}\n"))
            .await;
    }

    async fn fail(&self, error: &LaunchError) -> i32 {
        self.complain(&with_causes(error)).await;
        self.finish(Exit::Code(error.exit_code().into())).await
    }

    /// Ends the channel; returns the exit code for the log.
    async fn finish(&self, exit: Exit) -> i32 {
        let id = self.output.id();
        match exit {
            Exit::Code(code) => {
                end_channel(&self.handle, id, code).await;
                i32::try_from(code).unwrap_or(1)
            }
            Exit::Signal(signal) => {
                // Failures mean that the client has gone.
                let _ = self.handle.eof(id).await;
                let _ = self
                    .handle
                    .exit_signal_request(id, name_of(signal), false, String::new(), String::new())
                    .await;
                let _ = self.handle.close(id).await;
                128 + signal
            }
        }
    }

    /// Starts the command, and relays its streams until it ends.
    async fn execute(
        &mut self,
        parsed: Parsed,
        is_helper: bool,
        sent: &Sent,
    ) -> Result<Status, LaunchError> {
        let request = self.terminal.take().filter(|_| !is_helper);
        let (ends, theirs) = match &request {
            Some(request) => self.open_terminal(request).await?,
            None => open_pipes().map_err(|source| LaunchError::Ipc { source })?,
        };
        let asked = self.asked(parsed, request.as_ref(), &ends);
        let workload = &self.workload;
        let command = asked.command(&workload.environment, &workload.directories);
        let launcher = &workload.launcher;
        let attended = Attended::start(launcher, &command, theirs.as_fds(), None, ()).await?;
        drop((command, theirs));
        Ok(self.supervise(attended, ends, sent).await)
    }

    /// Relays streams, signals and sizes until the command has ended, and either all its output is
    /// sent or the client has gone.
    async fn supervise(&mut self, mut attended: Attended, ends: Ends, sent: &Sent) -> Status {
        let Ends {
            input,
            output,
            errors,
            master,
        } = ends;
        let has_terminal = master.is_some();
        let mut feeding =
            std::pin::pin!(feed(&self.input, input, master.as_ref().map(AsFd::as_fd)));
        let mut relaying = std::pin::pin!(relay(&self.output, output, errors, sent));
        let mut is_fed = false;
        let mut is_relayed = false;
        let mut is_gone = false;
        let mut ended = None;
        let mut deadline = None;
        let mut last_sent = 0;
        loop {
            if let Some(status) = ended.take_if(|_| is_relayed || is_gone) {
                return status;
            }
            let timer = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut feeding, if !is_fed => is_fed = true,
                () = &mut relaying, if !is_relayed => is_relayed = true,
                heard = attended.next(), if ended.is_none() => match heard {
                    // Only shells deal with stops.
                    Heard::Stopped(_) => {}
                    Heard::Ended(status) => {
                        ended = Some(status);
                        // Other processes may hold a terminal forever. A pipe ends when the last of
                        // them closes it.
                        deadline = has_terminal.then(|| Instant::now() + Limits::SILENCE);
                    }
                },
                Ok(()) = self.sizes.changed(), if !is_gone => {
                    let size = *self.sizes.borrow_and_update();
                    if let (Some(master), Some(size)) = (&master, size) {
                        let _ = pty::resize(master.as_fd(), size);
                    }
                }
                signal = self.signals.recv(), if !is_gone => match signal {
                    Some(signal) => attended.signal(signal.as_raw()),
                    None => {
                        is_gone = true;
                        attended.hang_up();
                        deadline = Some(Instant::now() + HANG_UP);
                    }
                },
                () = timer => match (&ended, is_gone) {
                    (None, _) => {
                        deadline = None;
                        attended.signal(Signal::KILL.as_raw());
                    }
                    (Some(_), true) => {}
                    (Some(_), false) => {
                        // All output is sent if none was since the last check and none waits for
                        // the client.
                        let now_sent = sent.bytes.load(Ordering::Relaxed);
                        is_relayed |= now_sent == last_sent && !sent.is_waiting.load(Ordering::Relaxed);
                        last_sent = now_sent;
                        deadline = Some(Instant::now() + Limits::SILENCE);
                    }
                },
            }
        }
    }

    async fn open_terminal(
        &self,
        request: &TerminalRequest,
    ) -> Result<(Ends, Theirs), LaunchError> {
        let terminal = attended::open_terminal(&self.workload.launcher, request.size).await?;
        let open = || {
            terminal::apply(terminal.streams()[0], &request.modes)?;
            let (master, slave) = terminal.into_parts();
            let ends = Ends {
                input: pipe::Sender::from_owned_fd_unchecked(master.try_clone()?)?,
                output: pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?,
                errors: None,
                master: Some(master),
            };
            Ok((ends, Theirs::Terminal(slave)))
        };
        open().map_err(|source| LaunchError::Terminal { source })
    }

    fn asked(&mut self, parsed: Parsed, request: Option<&TerminalRequest>, ends: &Ends) -> Asked {
        let kind = request.map_or("dumb", |request| &request.kind);
        let mut variables: Vec<(OsString, OsString)> = vec![
            ("TERM".into(), kind.into()),
            ("SSH_CONNECTION".into(), self.connection().into()),
        ];
        let master = ends.master.as_ref().map(AsFd::as_fd);
        if let Some(path) = master.and_then(terminal::path) {
            variables.push(("SSH_TTY".into(), path));
        }
        variables.append(&mut self.variables);
        variables.extend(parsed.variables);
        Asked {
            arguments: parsed.arguments,
            variables,
            directory: parsed.directory,
            session: match request {
                Some(_) => SessionKind::Terminal,
                None => SessionKind::New,
            },
        }
    }

    /// Returns the value of `SSH_CONNECTION` (ssh(1)).
    fn connection(&self) -> String {
        match self.reporter.client.addresses {
            Some((client, server)) => {
                format!(
                    "{} {} {} {}",
                    client.ip(),
                    client.port(),
                    server.ip(),
                    server.port()
                )
            }
            None => "UNKNOWN 65535 UNKNOWN 65535".to_owned(),
        }
    }
}

/// Ends a channel with an exit status, after all of its output.
pub(crate) async fn end_channel(handle: &Handle, id: ChannelId, code: u32) {
    // Failures mean that the client has gone.
    let _ = handle.eof(id).await;
    let _ = handle.exit_status_request(id, code).await;
    let _ = handle.close(id).await;
}

/// The command's ends of its streams.
enum Theirs {
    Terminal(OwnedFd),
    Pipes([OwnedFd; 3]),
}

impl Theirs {
    fn as_fds(&self) -> [BorrowedFd<'_>; 3] {
        match self {
            Self::Terminal(slave) => [slave.as_fd(); 3],
            Self::Pipes(pipes) => pipes.each_ref().map(AsFd::as_fd),
        }
    }
}

fn open_pipes() -> io::Result<(Ends, Theirs)> {
    let open = || pipe_with(PipeFlags::CLOEXEC);
    let [
        (input, ours_input),
        (ours_output, output),
        (ours_errors, errors),
    ] = [open()?, open()?, open()?];
    let ends = Ends {
        input: pipe::Sender::from_owned_fd(ours_input)?,
        output: pipe::Receiver::from_owned_fd(ours_output)?,
        errors: Some(pipe::Receiver::from_owned_fd(ours_errors)?),
        master: None,
    };
    Ok((ends, Theirs::Pipes([input, output, errors])))
}

/// Writes the client's data to the command until one of them ends.
async fn feed(queue: &InputQueue, mut input: pipe::Sender, master: Option<BorrowedFd<'_>>) {
    while let Some(data) = queue.next().await {
        // An error means that the command has closed its input or has ended.
        if input.write_all(&data).await.is_err() {
            return queue.close();
        }
    }
    // A terminal does not end; instead, a character tells the end of input.
    if let Some(end) = master.and_then(terminal::end_of_input) {
        let _ = input.write_all(&[end]).await;
        std::future::pending().await
    }
}

/// Sends the command's output to the client until the output ends or the client has gone.
async fn relay(
    client: &ChannelWriteHalf<Msg>,
    mut output: pipe::Receiver,
    mut errors: Option<pipe::Receiver>,
    sent: &Sent,
) {
    let mut is_open = true;
    let mut buffer = BytesMut::new();
    let mut error_buffer = BytesMut::new();
    while is_open || errors.is_some() {
        buffer.reserve(CHUNK);
        error_buffer.reserve(CHUNK);
        let from_errors = async {
            match &mut errors {
                Some(errors) => errors.read_buf(&mut error_buffer).await,
                None => std::future::pending().await,
            }
        };
        // Reading from a terminal fails, instead of ending, when its last process has ended.
        let told = tokio::select! {
            read = output.read_buf(&mut buffer), if is_open => {
                is_open = matches!(read, Ok(1..));
                sent.count(buffer.len());
                client.data_bytes(buffer.split().freeze()).await
            }
            read = from_errors => {
                if !matches!(read, Ok(1..)) {
                    errors = None;
                }
                sent.count(error_buffer.len());
                client.extended_data_bytes(STANDARD_ERROR, error_buffer.split().freeze()).await
            }
        };
        sent.is_waiting.store(false, Ordering::Relaxed);
        if told.is_err() {
            return;
        }
    }
}

/// Progress of the output to the client.
#[derive(Default)]
struct Sent {
    bytes: AtomicU64,
    /// True while output waits for room in the client's window.
    is_waiting: AtomicBool,
}

impl Sent {
    /// Counts bytes that are about to be sent.
    fn count(&self, bytes: usize) {
        self.is_waiting.store(true, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

enum Exit {
    Code(u32),
    Signal(i32),
}

/// Signals that have a name in SSH (RFC 4254 §6.10).
const NAMES: &[(Signal, Sig)] = &[
    (Signal::ABORT, Sig::ABRT),
    (Signal::ALARM, Sig::ALRM),
    (Signal::FPE, Sig::FPE),
    (Signal::HUP, Sig::HUP),
    (Signal::ILL, Sig::ILL),
    (Signal::INT, Sig::INT),
    (Signal::KILL, Sig::KILL),
    (Signal::PIPE, Sig::PIPE),
    (Signal::QUIT, Sig::QUIT),
    (Signal::SEGV, Sig::SEGV),
    (Signal::TERM, Sig::TERM),
    (Signal::USR1, Sig::USR1),
];

fn name_of(signal: i32) -> Sig {
    let known = NAMES
        .iter()
        .find(|(known, _)| known.as_raw() == signal)
        .map(|(_, name)| name.clone());
    known.unwrap_or_else(|| match signal {
        _ if signal == Signal::USR2.as_raw() => Sig::Custom("USR2".to_owned()),
        _ => Sig::Custom(format!("{signal}@openshell")),
    })
}

/// Returns the signal for `name`, if clients may send it.
pub(crate) fn permitted(name: &Sig) -> Option<Signal> {
    Some(match name {
        Sig::HUP => Signal::HUP,
        Sig::INT => Signal::INT,
        Sig::KILL => Signal::KILL,
        Sig::QUIT => Signal::QUIT,
        Sig::TERM => Signal::TERM,
        Sig::USR1 => Signal::USR1,
        Sig::Custom(name) if name == "USR2" => Signal::USR2,
        _ => return None,
    })
}

/// Formats an error and its causes on one line.
fn with_causes(error: &LaunchError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Waits a moment, for when the system has no more file descriptors.
pub(crate) async fn breathe() {
    sleep(Limits::SILENCE).await;
}
