//! Bounds on everything that a workload can grow.

use std::time::Duration;

/// Bounds, each with its reason.
#[derive(Debug)]
pub struct Limits;

impl Limits {
    /// Connections at once: what a supervisor with the usual 8,192 descriptors can hold, at two each; at three, as those are whose
    /// requests are judged, the last of them wait.
    pub const CONNECTIONS: usize = 4_096;
    /// Threads that serve connections: enough for every byte that a link inside of one kernel brings, and few enough for a sandbox
    /// among hundreds on a large host.
    pub const WORKERS: usize = 8;
    /// Bytes that a connection moves without a pause before others of its thread have their turn: some tenths of a millisecond.
    pub const COOP_BYTES: usize = 512 * 1024;
    /// Steps of connections after which a thread looks for what has arrived meanwhile.
    pub const EVENT_INTERVAL: u32 = 8;
    /// Connections at once of one program, so that it leaves some to the others.
    pub const CONNECTIONS_PER_PROGRAM: usize = 1_024;
    /// Connections beyond those that are still told why they are refused; further ones are closed.
    pub const REFUSED_CONNECTIONS: usize = 64;
    /// Bytes of the head of a CONNECT or forward request: what the interface promises, and hyper's smallest.
    pub const HEAD_BYTES: usize = 8 * 1024;
    /// Bytes of the head of a request inside a connection, and of first bytes that could still be one…
    pub const INSPECTED_HEAD_BYTES: usize = 16 * 1024;
    /// …and its lines; more than any client sends.
    pub const HEAD_LINES: usize = 128;
    /// Bytes that an upstream sends before its answer, interim ones included; far more than any answer's head.
    pub const UNANSWERED_BYTES: usize = 4 * 1024 * 1024;
    /// Lines of an upstream's answer: it may be more generous than clients are.
    pub const ANSWER_LINES: usize = 256;
    /// HTTP/2 connections at once; whoever offers HTTP/1.1 as well speaks that beyond them.
    pub const HTTP2_CONNECTIONS: usize = 256;
    /// Requests beside each other in one of them…
    pub const STREAMS: u32 = 100;
    /// …bytes of one that may be on their way from its client, which is near…
    pub const STREAM_WINDOW: u32 = 128 * 1024;
    /// …and of all: room for each, or those that nobody reads would hold up the others.
    pub const CONNECTION_WINDOW: u32 = Self::STREAMS * Self::STREAM_WINDOW;
    /// The same from an upstream, which may be far away: as much as a fast line carries in a tenth of a second…
    pub const UPSTREAM_STREAM_WINDOW: u32 = 1024 * 1024;
    /// …and room for as many that nobody reads as people have open.
    pub const UPSTREAM_WINDOW: u32 = 32 * 1024 * 1024;
    /// KiB of the windows of all HTTP/2 connections together, beside what each has at the least: two connections have all that they may,
    /// the others of them less and less.
    pub const WINDOWS_KIB: usize = 192 * 1024;
    /// KiB of the heads of HTTP/2 requests that are not answered: two thousand of the largest that are let through.
    pub const STREAM_HEADS_KIB: usize = 32 * 1024;
    /// KiB that are held back of all answers that are searched for secrets: of a key of 50 bytes some 100,000 answers.
    pub const SEARCHED_KIB: usize = 128 * 1024;
    /// Bytes of a stream that wait to be sent.
    pub const STREAM_SEND_BYTES: usize = 64 * 1024;
    /// Requests that a connection's client has given up before their answers, until it is ended if they are the most of all.
    pub const STREAMS_ABANDONED: u64 = 200;
    /// Requests of a connection that are not over, those among them that its client has given up or has an answer to and that an
    /// upstream does not take: twice what may go on beside each other.
    pub const STREAMS_HELD: usize = 2 * Self::STREAMS as usize;
    /// Requests that are cancelled before anybody has looked at them, until their connection ends (CVE-2023-44487)…
    pub const STREAM_RESETS: usize = 20;
    /// …and malformed ones that are answered by a reset.
    pub const STREAM_ERRORS: usize = 64;
    /// HTTP/1.1 connections to an upstream for the streams of one client: as many as browsers open.
    pub const POOLED_CONNECTIONS: usize = 6;
    /// Time for a connection to say that it ends, when it is permitted no longer.
    pub const GOAWAY_GRACE: Duration = Duration::from_millis(250);
    /// Bytes of the head of an HTTP/2 answer.
    pub const ANSWER_HEAD_BYTES: u32 = 64 * 1024;
    /// Bytes that secrets may add to the head of a request.
    pub const RELEASED_BYTES: usize = 256 * 1024;
    /// Credentials in one request; in its answer each is looked for.
    pub const CREDENTIALS_PER_REQUEST: usize = 64;
    /// Bytes of a body that is looked at before anything of its request is sent, so that its refusal can be told…
    pub const PREFETCH_BYTES: u64 = 64 * 1024;
    /// …and time for it to arrive.
    pub const PREFETCH_DEADLINE: Duration = Duration::from_millis(100);
    /// The same where it is longer, or nobody knows: who waits for an answer to its first part must not wait for long.
    pub const PREFETCH_DEADLINE_UNSIZED: Duration = Duration::from_millis(20);
    /// First bytes of a connection that are looked at for placeholders where nothing else is.
    pub const FIRST_BYTES: usize = 64 * 1024;
    /// KiB of requests for models that are held at once, each twice while it is rewritten: room for the largest…
    pub const INFERENCE_KIB: usize = 2 * openshell_policy::inference::MAX_REQUEST_BYTES / 1024;
    /// …how long one waits for its room…
    pub const INFERENCE_WAIT: Duration = Duration::from_secs(10);
    /// …how long it may take until it is whole…
    pub const INFERENCE_BODY: Duration = Duration::from_secs(120);
    /// …and how long it may be silent meanwhile.
    pub const INFERENCE_SILENCE: Duration = Duration::from_secs(30);
    /// Bytes of a request whose model is replaced on the thread that serves others.
    pub const REWRITTEN_BYTES: usize = 1024 * 1024;
    /// Time to tell a client that an answer is cut off, before it is.
    pub const TRUNCATION_GRACE: Duration = Duration::from_millis(50);
    /// Bytes of a body that are read, or wait to be written, at once: sixteen records of TLS.
    pub const BUFFER_BYTES: usize = 256 * 1024;
    /// Time for the other side to read what was said last…
    pub const LINGER: Duration = Duration::from_secs(2);
    /// …and bytes that it may still send meanwhile: as much as is in flight on a fast link.
    pub const LINGER_BYTES: usize = 4 * 1024 * 1024;
    /// Hosts whose certificates, or whose upstreams' sessions, are kept.
    pub const CERTIFICATES: usize = 1_024;
    /// Silence after first bytes that could still be a request, where it matters to no rule whether they are.
    pub const DETECT_TIMEOUT: Duration = Duration::from_millis(500);
    /// Time for a head to arrive: longer than any client takes that is not holding the connection on purpose.
    pub const HEAD_DEADLINE: Duration = Duration::from_secs(10);
    /// Time after which a client that has ended its sending, and was not answered for as long again, is taken to have gone.
    pub const HALF_CLOSE_TIMEOUT: Duration = Duration::from_secs(15);
    /// Time to reach an upstream, over all its addresses.
    pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
    /// Head start of one address over the next (RFC 8305 §5).
    pub const CONNECT_STAGGER: Duration = Duration::from_millis(250);
    /// Addresses of one name that are looked at; real names have fewer, and every one costs a check.
    pub const ADDRESSES: usize = 64;
    /// Time for a name to resolve.
    pub const LOOKUP_DEADLINE: Duration = Duration::from_secs(10);
    /// An established connection without a byte either way: below this, long polls and idle sessions would die.
    pub const IDLE: Duration = Duration::from_secs(2 * 60 * 60);
    /// Silence after which TCP asks whether the peer is still there.
    pub const KEEPALIVE: Duration = Duration::from_secs(60);
    /// Programs whose fingerprints are remembered; they are never forgotten, or trust on first use would not hold.
    pub const FINGERPRINTS: usize = 4_096;
    /// Bytes of a program that is read for its fingerprint; the largest that people run are a few hundred megabytes.
    pub const PROGRAM_BYTES: u64 = 2 * 1024 * 1024 * 1024;
    /// Descriptors of all processes that are looked at to find one caller: half a second's worth, and more than the programs of
    /// a sandbox hold that has few processes…
    pub const SEARCHED_DESCRIPTORS: usize = 250_000;
    /// …and to find all further owners afterwards…
    pub const SWEPT_DESCRIPTORS: usize = 20_000_000;
    /// …which nobody waits for…
    pub const SWEEP_DEADLINE: Duration = Duration::from_secs(60);
    /// …and time to find the program of a packet that was refused.
    pub const REPORT_DEADLINE: Duration = Duration::from_secs(1);
    /// Connections whose callers are looked for at once: more would only wait for the same processors.
    pub const IDENTIFYING: usize = 32;
    /// Time to find out who is calling and to judge it, waiting for a turn included.
    pub const JUDGE_DEADLINE: Duration = Duration::from_secs(10);
    /// Decisions remembered by one policy generation…
    pub const DECISIONS: usize = 16_384;
    /// …and the bytes of their questions on average; larger ones push out more of the others.
    pub const DECISION_BYTES: usize = 1024;
    /// Bytes of a reason that are kept.
    pub const REASON_BYTES: usize = 4 * 1024;
    /// Processes of a sandbox that are all looked at before a caller is known; some 10 us each.
    pub const SEARCHED_PROCESSES: usize = 128;
    /// Owners of sockets that are looked at first where there are more, and as many of the newest processes.
    pub const RECENT_CALLERS: usize = 32;
    /// How much of the time may go into looking at all of them afterwards: one part in this many.
    pub const SWEEP_SHARE: u32 = 5;
    /// Processes between a caller and the command that init started.
    pub const ANCESTORS: usize = 64;
    /// Absolute paths kept of a caller's arguments and its ancestors', for the reason text.
    pub const CMDLINE_PATHS: usize = 16;
    /// Bytes of one such path.
    pub const CMDLINE_PATH_BYTES: usize = 256;
    /// Bytes of one process's arguments that are looked at.
    pub const CMDLINE_BYTES: usize = 16 * 1024;
    /// Time that open connections have when the sandbox ends: their clients are gone, and most notice that at once.
    pub const DRAIN: Duration = Duration::from_millis(250);
    /// Pause after an accept that failed, doubled up to the second value while it goes on.
    pub const ACCEPT_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
}
