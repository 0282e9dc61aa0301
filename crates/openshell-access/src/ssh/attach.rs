//! The SSH subsystem `openshell-main`, with which a client attaches to the main process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openshell_events::words::SshActivity;
use openshell_supervisor::command::pty::Size;
use openshell_supervisor::command::streams::retained::{Output, Piece};
use russh::ChannelWriteHalf;
use russh::server::{Handle, Msg};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::main_process::{Attached, Happened, MainProcess};
use crate::ssh::channels::Channels;
use crate::ssh::input::InputQueue;
use crate::ssh::report::{Facts, Reporter};
use crate::ssh::session::{STANDARD_ERROR, end_channel};

/// Name of the subsystem.
pub(crate) const NAME: &str = "openshell-main";

/// Keys that detach a client from a terminal: Ctrl-P, Ctrl-Q.
const DETACH: [u8; 2] = [0x10, 0x11];

/// Longest wait for a client to leave after it was told of the end.
const LEAVING: Duration = Duration::from_millis(500);

/// A client that is attached to the main process.
pub(crate) struct Attachment {
    pub(crate) process: Arc<MainProcess>,
    pub(crate) reporter: Reporter,
    pub(crate) is_read_only: bool,
    /// Size of the client's terminal, if it has one.
    pub(crate) size: Option<Size>,
    /// The channels, which include this one until its end.
    pub(crate) channels: Channels,
    pub(crate) output: ChannelWriteHalf<Msg>,
    pub(crate) handle: Handle,
    pub(crate) input: Arc<InputQueue>,
    pub(crate) signals: mpsc::Receiver<Signal>,
    pub(crate) sizes: watch::Receiver<Option<Size>>,
}

impl Attachment {
    /// Serves the client until the main process has ended, or the client has detached or gone.
    pub(crate) async fn run(mut self) {
        let mut attached = self.process.attach(self.is_read_only);
        let command = Some(NAME);
        self.reporter.report(
            SshActivity::Exec,
            Facts {
                command,
                ..Facts::default()
            },
        );
        if let Some(size) = self.size {
            attached.resize(size);
        }
        let sent = AtomicU64::new(0);
        let code = self.serve(&mut attached, &sent).await;
        self.input.close();
        if let Some(code) = code {
            attached.release_keyboard();
            end_channel(&self.handle, self.output.id(), code.into()).await;
            // Data may be on its way until the client closes the channel. The end of the run waits
            // for that, but not for long.
            let gone = async { while self.signals.recv().await.is_some() {} };
            let _ = timeout(LEAVING, gone).await;
        }
        drop(attached);
        self.channels.remove(self.output.id());
        let transferred = Some((self.input.total(), sent.into_inner()));
        let facts = Facts {
            command,
            exit: code.map(i32::from),
            transferred,
            ..Facts::default()
        };
        self.reporter.report(SshActivity::Close, facts);
    }

    /// Serves the client. Returns its exit code; `None` if the client has gone.
    async fn serve(&mut self, attached: &mut Attached, sent: &AtomicU64) -> Option<u8> {
        let keyboard = attached.keyboard();
        let mut typing = std::pin::pin!(type_into(&self.input, keyboard));
        let mut is_typing = true;
        loop {
            tokio::select! {
                happened = attached.next() => match happened {
                    Happened::Ended(code) => return Some(code),
                    Happened::Wrote(piece) => {
                        sent.fetch_add(piece.bytes.len() as u64, Ordering::Relaxed);
                        // A client that does not read holds nobody up. What it misses is dropped
                        // and counted.
                        let mut sending = std::pin::pin!(send(&self.output, piece));
                        loop {
                            tokio::select! {
                                told = &mut sending => break told.ok()?,
                                signal = self.signals.recv() => attached.signal(signal?.as_raw()),
                            }
                        }
                    }
                },
                is_detached = &mut typing, if is_typing => if is_detached { return Some(0) } else { is_typing = false },
                signal = self.signals.recv() => match signal {
                    Some(signal) => attached.signal(signal.as_raw()),
                    None => return None,
                },
                Ok(()) = self.sizes.changed() => {
                    let size = *self.sizes.borrow_and_update();
                    for size in size.into_iter() { attached.resize(size); }
                }
            }
        }
    }
}

async fn send(
    output: &ChannelWriteHalf<Msg>,
    Piece {
        output: from,
        bytes,
        lost,
        ..
    }: Piece,
) -> Result<(), russh::Error> {
    if lost > 0 {
        let notice = format!("\r\n[openshell-sandbox: {lost} bytes of output were dropped]\r\n");
        output.extended_data_bytes(STANDARD_ERROR, notice).await?;
    }
    match from {
        Output::Standard => output.data_bytes(bytes).await,
        Output::Error => output.extended_data_bytes(STANDARD_ERROR, bytes).await,
    }
}

/// Writes the client's input to the terminal, if the client has the keyboard. Returns true if the
/// client has detached, false if its input ends or the terminal takes no more.
async fn type_into(
    input: &InputQueue,
    mut keyboard: Option<tokio::net::unix::pipe::Sender>,
) -> bool {
    let mut detaching = Detaching::default();
    while let Some(data) = input.next().await {
        let Some(keyboard) = &mut keyboard else {
            continue;
        };
        let (typed, is_detached) = detaching.filter(&data);
        if keyboard.write_all(&typed).await.is_err() {
            return false;
        }
        if is_detached {
            return true;
        }
    }
    false
}

/// The search for the keys with which a client detaches.
#[derive(Debug, Default)]
struct Detaching {
    /// True if the last key was the first of them.
    has_first: bool,
}

impl Detaching {
    /// Returns what to type, and true if the client detaches after that.
    fn filter(&mut self, data: &[u8]) -> (Vec<u8>, bool) {
        let mut typed = Vec::with_capacity(data.len() + 1);
        for &byte in data {
            if self.has_first && byte == DETACH[1] {
                return (typed, true);
            }
            if std::mem::replace(&mut self.has_first, byte == DETACH[0]) {
                typed.push(DETACH[0]);
            }
            if !self.has_first {
                typed.push(byte);
            }
        }
        (typed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::Detaching;

    #[test]
    fn the_keys_that_detach_are_found_across_packets_and_the_first_alone_is_typed() {
        let mut keys = Detaching::default();
        assert_eq!(keys.filter(b"ls\n"), (b"ls\n".to_vec(), false));
        assert_eq!(keys.filter(b"a\x10"), (b"a".to_vec(), false));
        assert_eq!(keys.filter(b"b\x10\x10"), (b"\x10b\x10".to_vec(), false));
        assert_eq!(keys.filter(b"\x11rest"), (Vec::new(), true));
    }
}
