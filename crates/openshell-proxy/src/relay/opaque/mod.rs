//! The relay of bytes both ways without inspection. It ends when both sides have ended, or when
//! neither has sent anything for [`Limits::IDLE`].

mod answers;
mod hello;
mod look;
mod messages;
mod search;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::Semaphore;

pub use self::answers::{AnswerSearch, Mask};
pub use self::look::StreamEnd;
pub use self::search::ClientSearch;

use self::answers::Answers;
use self::look::{Look, Looked, Searched};
use crate::ground::limits::Limits;
use crate::wire::io::coop::CoopBudget;
use crate::wire::io::metered::{Meter, Side};
use crate::wire::io::prefixed::Prefixed;
use crate::wire::io::upstream_stream::UpstreamStream;

/// The number of bytes of one copy. A side that fills the buffer is streaming, and gets a pipe.
const BUFFER_BYTES: usize = 16 * 1024;

/// Permits for streams to have a pipe, which takes two descriptors. Other streams are copied.
static PIPES: Semaphore = Semaphore::const_new(256);

/// The silence after which a stream gives its pipe back.
const PIPE_IDLE: Duration = Duration::from_millis(100);

/// The size of a pipe in bytes: the kernel's limit for unprivileged processes (pipe(7)).
const PIPE_BYTES: usize = 1024 * 1024;

/// The searches of a connection that is not inspected.
#[derive(Debug, Default)]
pub struct OpaqueSearch {
    /// The search of what the client sends.
    pub client: ClientSearch,
    /// The search of what the upstream answers.
    pub answers: AnswerSearch,
}

/// Relays between `client`, from which `surplus` was read already, and `upstream`, from which
/// `early` was. Both directions are searched by `search`. A side that has ended its sending may
/// still receive.
///
/// # Errors
/// Fails if either side fails, if both are silent for [`Limits::IDLE`], or if something is found
/// that must not leave.
pub async fn relay(
    client: TcpStream,
    surplus: Bytes,
    upstream: UpstreamStream,
    early: Bytes,
    mut search: OpaqueSearch,
    meter: &Meter,
) -> Result<(), StreamEnd> {
    search.client.scan(&surplus)?;
    let UpstreamStream::Direct(upstream) = upstream;
    let mut ends = Ends {
        client,
        upstream,
        is_complete: false,
    };
    let Ends {
        client, upstream, ..
    } = &mut ends;
    let relayed = relay_all(client, surplus, upstream, early, search, meter).await;
    ends.is_complete = match &relayed {
        Ok(()) | Err(StreamEnd::Idle) => true,
        Err(StreamEnd::Io(error)) => error.kind() != io::ErrorKind::ConnectionReset,
        Err(StreamEnd::Refused(_)) => false,
    };
    relayed
}

/// Both ends of a relay. If the relay is not complete when this is dropped, both are reset, so that
/// neither side takes truncated bytes for complete ones. That is the case if a side was reset, if
/// bytes were refused, or if the connection is no longer permitted.
struct Ends {
    client: TcpStream,
    upstream: TcpStream,
    is_complete: bool,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if !self.is_complete {
            // This may fail for a side that is gone already, which does not matter.
            let _ = (
                self.client.set_zero_linger(),
                self.upstream.set_zero_linger(),
            );
        }
    }
}

async fn relay_all(
    client: &mut TcpStream,
    surplus: Bytes,
    upstream: &mut TcpStream,
    early: Bytes,
    search: OpaqueSearch,
    meter: &Meter,
) -> Result<(), StreamEnd> {
    let OpaqueSearch {
        client: mut client_search,
        mut answers,
    } = search;
    upstream.write_all(&surplus).await?;
    meter.add_from_client(surplus.len());
    drop(surplus);
    let from = Counter {
        meter,
        side: Side::Client,
    };
    let to = Counter {
        meter,
        side: Side::Upstream,
    };
    let (mut from_client, mut to_client) = client.split();
    let (mut from_upstream, mut to_upstream) = upstream.split();
    let asked = one_way(
        &mut from_client,
        &mut to_upstream,
        &from,
        &mut client_search,
    );
    let answered = async {
        if answers.masks() {
            let answers = Answers::new(Prefixed::new(early, from_upstream), answers);
            return one_way_searched(answers, &mut to_client, &to).await;
        }
        answers.scan(&early)?;
        to_client.write_all(&early).await?;
        to.add(early.len());
        drop(early);
        one_way(&mut from_upstream, &mut to_client, &to, &mut answers).await
    };
    let both = async { tokio::try_join!(asked, answered) };
    tokio::select! {
        done = both => done.map(drop),
        () = idle(meter) => Err(StreamEnd::Idle),
    }
}

/// The counter of the bytes that one side sends.
struct Counter<'m> {
    meter: &'m Meter,
    side: Side,
}

impl Counter<'_> {
    fn add(&self, count: usize) {
        match self.side {
            Side::Client => self.meter.add_from_client(count),
            Side::Upstream => self.meter.add_to_client(count),
        }
    }

    fn end(&self) {
        self.meter.note_end(self.side);
    }

    /// Notes that the other side takes no more bytes.
    fn other_end(&self) {
        self.meter.note_end(match self.side {
            Side::Client => Side::Upstream,
            Side::Upstream => Side::Client,
        });
    }
}

/// Relays as [`relay`] does, but between streams that are not sockets, and does not reset them at a
/// refusal.
///
/// # Errors
/// Fails as [`relay`] does.
pub async fn copy<C, U>(client: C, upstream: U, search: OpaqueSearch) -> Result<(), StreamEnd>
where
    C: AsyncRead + AsyncWrite,
    U: AsyncRead + AsyncWrite,
{
    let meter = Meter::default();
    let from = Counter {
        meter: &meter,
        side: Side::Client,
    };
    let to = Counter {
        meter: &meter,
        side: Side::Upstream,
    };
    let (from_client, mut to_client) = tokio::io::split(client);
    let (from_upstream, mut to_upstream) = tokio::io::split(upstream);
    let questions = Looked::new(from_client, search.client);
    let answers = Answers::new(from_upstream, search.answers);
    let asked = one_way_searched(questions, &mut to_upstream, &from);
    let answered = one_way_searched(answers, &mut to_client, &to);
    let both = async { tokio::try_join!(asked, answered) };
    tokio::select! {
        done = both => done.map(drop),
        () = idle(&meter) => Err(StreamEnd::Idle),
    }
}

thread_local! {
    /// The buffer of all copies of a worker. Its bytes are written or moved elsewhere before the
    /// next copy reads.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER_BYTES]);
}

/// The result of one copy.
struct Copied {
    /// The number of bytes that were read; 0 at the end of the stream.
    read: usize,
    /// The bytes that could not be written at once.
    rest: Bytes,
}

/// Relays one direction to its end, and passes the end on. An idle direction holds no buffer.
async fn one_way(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    counter: &Counter<'_>,
    search: &mut impl Look,
) -> Result<(), StreamEnd> {
    loop {
        let copied = poll_fn(|cx| {
            BUFFER.with_borrow_mut(|buffer| copy_once(from, to, counter, search, buffer, cx))
        });
        let Copied { read, rest } = copied.await?;
        if read == 0 {
            counter.end();
            return Ok(to.shutdown().await?);
        }
        to.write_all(&rest)
            .await
            .inspect_err(|_| counter.other_end())?;
        // If there are no descriptors for a pipe, copying goes on.
        if read == BUFFER_BYTES
            && !search.is_active()
            && let Ok(_permit) = PIPES.try_acquire()
            && let Ok(pipe) = Pipe::new()
            && let Paused::Ended = pipe.stream(from.as_ref(), to.as_ref(), counter).await?
        {
            counter.end();
            return Ok(to.shutdown().await?);
        }
    }
}

/// Relays one direction through its search to its end, and passes the end on.
async fn one_way_searched(
    mut from: impl Searched,
    to: &mut (impl AsyncWrite + Unpin),
    counter: &Counter<'_>,
) -> Result<(), StreamEnd> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let mut part = ReadBuf::new(&mut buffer);
        let read = poll_fn(|cx| from.poll_part(cx, &mut part)).await;
        read.inspect_err(|_| counter.end())?;
        if part.filled().is_empty() {
            counter.end();
            return Ok(to.shutdown().await?);
        }
        counter.add(part.filled().len());
        // TLS may keep what it has taken until it is flushed.
        let written = async {
            to.write_all(part.filled()).await?;
            to.flush().await
        };
        written.await.inspect_err(|_| counter.other_end())?;
    }
}

/// Reads what has arrived, and writes as much of it as the other side takes at once.
fn copy_once(
    from: &mut ReadHalf<'_>,
    to: &WriteHalf<'_>,
    counter: &Counter<'_>,
    search: &mut impl Look,
    buffer: &mut [u8],
    cx: &mut Context<'_>,
) -> Poll<Result<Copied, StreamEnd>> {
    let mut buffer = ReadBuf::new(buffer);
    ready!(Pin::new(from).poll_read(cx, &mut buffer)).inspect_err(|_| counter.end())?;
    let read = buffer.filled();
    counter.add(read.len());
    if search.is_active() {
        search.scan(read)?;
    }
    let written = match to.try_write(read) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        written => written.inspect_err(|_| counter.other_end())?,
    };
    let rest = read
        .get(written..)
        .map(Bytes::copy_from_slice)
        .unwrap_or_default();
    Poll::Ready(Ok(Copied {
        read: read.len(),
        rest,
    }))
}

/// A pipe that moves bytes between sockets inside the kernel (splice(2)).
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

/// The reason why a stream has paused.
enum Paused {
    /// No bytes have come for [`PIPE_IDLE`].
    Waiting,
    /// The stream has ended.
    Ended,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller pipe works as well, so an error does not matter.
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES);
        Ok(Self { reader, writer })
    }

    /// Moves bytes until none have come for [`PIPE_IDLE`]. The pipe is empty whenever this waits
    /// for more.
    async fn stream(
        &self,
        from: &TcpStream,
        to: &TcpStream,
        counter: &Counter<'_>,
    ) -> io::Result<Paused> {
        let mut budget = CoopBudget::default();
        loop {
            budget.next().await;
            let fill = || splice(from, &self.writer, PIPE_BYTES);
            let mut buffered = match from.try_io(Interest::READABLE, fill) {
                Ok(0) => return Ok(Paused::Ended),
                Ok(filled) => filled,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    budget.moved(0);
                    match tokio::time::timeout(PIPE_IDLE, from.readable()).await {
                        Ok(ready) => ready?,
                        Err(_) => return Ok(Paused::Waiting),
                    }
                    continue;
                }
                Err(error) => {
                    counter.end();
                    return Err(error);
                }
            };
            counter.add(buffered);
            budget.moved(buffered);
            while buffered > 0 {
                to.writable().await?;
                let drain = || splice(&self.reader, to, buffered);
                match to.try_io(Interest::WRITABLE, drain) {
                    Ok(drained) => buffered -= drained,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        counter.other_end();
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// Moves up to `length` bytes, one end of which is a pipe.
fn splice(from: impl AsFd, to: impl AsFd, length: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    Ok(rustix::pipe::splice(from, None, to, None, length, flags)?)
}

/// Returns when nothing has been moved for [`Limits::IDLE`].
async fn idle(meter: &Meter) {
    let mut before = meter.bytes();
    loop {
        tokio::time::sleep(Limits::IDLE).await;
        let now = meter.bytes();
        if now == before {
            return;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use tokio::net::TcpStream;

    use super::{Counter, Meter, PIPE_BYTES, Pipe, PipeFlags, Side};
    use crate::ground::limits::Limits;

    /// Creates a pipe of the largest size that any user may have. A socket has less room by
    /// default.
    fn large() -> Pipe {
        let pipe = Pipe::new().unwrap();
        assert!(rustix::pipe::fcntl_getpipe_size(&pipe.writer).unwrap() >= PIPE_BYTES);
        pipe
    }

    /// Uses an end of a pipe in place of a socket.
    fn stream(end: OwnedFd) -> TcpStream {
        TcpStream::from_std(end.into()).unwrap()
    }

    #[tokio::test]
    async fn a_stream_that_never_waits_leaves_others_of_its_thread_their_turn() {
        let source = large();
        let sink = large();
        let mut sender = File::from(source.writer);
        sender.write_all(&vec![0; PIPE_BYTES]).unwrap();
        let from = stream(source.reader);
        let to = stream(sink.writer);
        let (_, _) = tokio::join!(from.readable(), to.writable());
        // This pipe moves less at once than is there.
        let (reader, writer) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let step = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
        let pipe = Pipe { reader, writer };
        let meter = Meter::default();
        let counter = Counter {
            meter: &meter,
            side: Side::Client,
        };
        let mut stream = pin!(pipe.stream(&from, &to, &counter));
        assert!(
            stream
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        let (moved, _) = meter.bytes();
        assert!(
            moved > 0 && moved <= (Limits::COOP_BYTES + step) as u64,
            "{moved} bytes at once"
        );
    }
}
