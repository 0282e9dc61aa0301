//! Bounds on everything that a workload, or a client of a published port, can grow.

use std::time::Duration;

/// Bounds, each with its unit and its reason.
#[derive(Debug)]
pub struct Limits;

impl Limits {
    /// Connections at once: as many as a supervisor with the usual 8,192 descriptors can hold at
    /// two descriptors each. Judged connections take three, so the last of those wait.
    pub const CONNECTIONS: usize = 4_096;
    /// Descriptors that no new connection takes, or one in 32 if that is more: they are needed for
    /// a moment to see who makes the next connection, and for what connections take when they
    /// begin.
    pub const SPARE_DESCRIPTORS: u64 = 16;
    /// Connections at once to one published port: many times as many as a browser opens.
    pub const PUBLISHED_CONNECTIONS: usize = 512;
    /// Sockets opened inside at once for all published ports, each by two threads for a moment.
    pub const OPENING_INSIDE: usize = 16;
    /// Threads that serve connections: enough to saturate a link within one kernel, few enough for
    /// hundreds of sandboxes on a large host.
    pub const WORKERS: usize = 8;
    /// Bytes that one stream moves before it yields its thread: a few tenths of a millisecond.
    pub const COOP_BYTES: usize = 512 * 1024;
    /// The same for a stream of HTTP/2, whose frames may be as short as 9 bytes.
    pub const COOP_FRAME_BYTES: usize = 32 * 1024;
    /// Task polls between two checks for I/O events in a worker's runtime.
    pub const EVENT_INTERVAL: u32 = 8;
    /// Connections at once of one program, so that it leaves some to the others.
    pub const CONNECTIONS_PER_PROGRAM: usize = 1_024;
    /// Connections beyond [`Self::CONNECTIONS`] that still get a refusal as their answer; further
    /// ones are closed.
    pub const REFUSED_CONNECTIONS: usize = 64;
    /// Bytes of the head of a CONNECT: the documented limit, and the smallest that hyper accepts.
    pub const CONNECT_HEAD_BYTES: usize = 8 * 1024;
    /// Bytes of the head of any other request, as HTTP/2 counts them: more than browsers' cookies
    /// and long queries have.
    pub const HEAD_BYTES: usize = 64 * 1024;
    /// Header lines of such a head.
    pub const HEAD_LINES: usize = 256;
    /// Bytes of a head that are read, so that the refusal of a head above [`Self::HEAD_BYTES`] can
    /// say why.
    pub const READ_HEAD_BYTES: usize = Self::HEAD_BYTES + 16 * 1024;
    /// Header lines that are read for the same reason.
    pub const READ_HEAD_LINES: usize = 2 * Self::HEAD_LINES;
    /// Bytes at the beginning of a connection that can still become a request.
    pub const DETECTED_BYTES: usize = 16 * 1024;
    /// Bytes that an upstream may send before its final response, including interim responses; far
    /// more than any head has.
    pub const UNANSWERED_BYTES: usize = 4 * 1024 * 1024;
    /// Header lines of an upstream's response, which may have more than a request.
    pub const ANSWER_LINES: usize = 1_024;
    /// HTTP/2 connections at once; beyond them a client that offers both protocols gets HTTP/1.1.
    pub const HTTP2_CONNECTIONS: usize = 256;
    /// Concurrent streams of one HTTP/2 connection.
    pub const STREAMS: u32 = 100;
    /// Flow-control window in bytes of one client stream. The client is near, so a small one
    /// suffices.
    pub const STREAM_WINDOW: u32 = 128 * 1024;
    /// Flow-control window in bytes of a client connection: room for every stream, so that unread
    /// ones do not block the others.
    pub const CONNECTION_WINDOW: u32 = Self::STREAMS * Self::STREAM_WINDOW;
    /// Flow-control window in bytes of one upstream stream. The upstream may be far away: a fast
    /// line carries as much in a tenth of a second.
    pub const UPSTREAM_STREAM_WINDOW: u32 = 1024 * 1024;
    /// Flow-control window in bytes of an upstream connection: room for 32 unread streams.
    pub const UPSTREAM_WINDOW: u32 = 32 * 1024 * 1024;
    /// KiB of the windows of all HTTP/2 connections, beyond each one's minimum: two connections get
    /// theirs in full, further ones less and less.
    pub const WINDOWS_KIB: usize = 192 * 1024;
    /// KiB of the heads of unanswered HTTP/2 requests: four hundred of the largest.
    pub const STREAM_HEADS_KIB: usize = 32 * 1024;
    /// KiB that are held back of all responses together while they are searched for secrets: enough
    /// for some 100,000 responses with a key of 50 bytes.
    pub const SEARCHED_KIB: usize = 128 * 1024;
    /// Bytes of one stream queued for sending.
    pub const STREAM_SEND_BYTES: usize = 64 * 1024;
    /// Streams cancelled before their response, after which their connection ends if they are more
    /// than half of its streams.
    pub const STREAMS_ABANDONED: u64 = 200;
    /// Open streams of a connection, including cancelled ones whose body the upstream has not taken
    /// yet: twice [`Self::STREAMS`].
    pub const STREAMS_HELD: usize = 2 * Self::STREAMS as usize;
    /// Streams reset before they were accepted, after which their connection ends (CVE-2023-44487).
    pub const STREAM_RESETS: usize = 20;
    /// Malformed streams answered by a reset, after which their connection ends.
    pub const STREAM_ERRORS: usize = 64;
    /// HTTP/1.1 connections to an upstream for the streams of one client: as many as browsers open.
    pub const POOLED_CONNECTIONS: usize = 6;
    /// Time for the GOAWAY of a revoked connection to be sent.
    pub const GOAWAY_GRACE: Duration = Duration::from_millis(250);
    /// Bytes of the head of an HTTP/2 response: somewhat less than the HTTP library reads of one in
    /// HTTP/1.1.
    pub const ANSWER_HEAD_BYTES: u32 = 256 * 1024;
    /// Bytes that secrets may add to the head of a request.
    pub const INJECTED_BYTES: usize = 256 * 1024;
    /// Credentials in one request; its response is searched for each.
    pub const CREDENTIALS_PER_REQUEST: usize = 64;
    /// Pairs of a host and a secret in requests to it that are reported one by one.
    pub const LEAKS_REPORTED: usize = 1024;
    /// Time for which bytes that may be the beginning of a secret wait for more, if secrets are
    /// refused.
    pub const LEAK_HOLD: Duration = Duration::from_millis(50);
    /// Bytes of the largest text that is searched on a connection's thread; larger ones are
    /// searched on other threads.
    pub const SEARCHED_BYTES: usize = 64 * 1024;
    /// Larger texts that are searched at once.
    pub const LARGE_SEARCHES: usize = 2;
    /// KiB of all requests that are read before they are sent, for rules and for searches.
    pub const AHEAD_KIB: usize = 256 * 1024;
    /// The part of this memory that one program may have.
    pub const AHEAD_KIB_PER_PROGRAM: usize = Self::AHEAD_KIB / 4;
    /// Time for which a request waits for this memory.
    pub const AHEAD_WAIT: Duration = Duration::from_secs(10);
    /// Time for the part of a body that rules read to arrive.
    pub const AHEAD_DEADLINE: Duration = Duration::from_secs(120);
    /// Longest pause between two parts of such a body.
    pub const AHEAD_PAUSE: Duration = Duration::from_secs(30);
    /// Bytes of a body that are searched before its request is sent, so that a refusal can still be
    /// the response.
    pub const PREFETCH_BYTES: usize = 64 * 1024;
    /// Time for these bytes to arrive.
    pub const PREFETCH_DEADLINE: Duration = Duration::from_millis(100);
    /// The same for long or unsized bodies: a client may be waiting for a response to the first
    /// part.
    pub const PREFETCH_DEADLINE_UNSIZED: Duration = Duration::from_millis(20);
    /// Time for which bytes of an uninspected response wait for more if they may be the beginning
    /// of a secret to be masked.
    pub const MASK_HOLD: Duration = Duration::from_millis(5);
    /// First bytes of an uninspected connection that are searched for placeholders.
    pub const FIRST_BYTES: usize = 64 * 1024;
    /// KiB of requests for models held at once, each counted twice for its rewritten form: room for
    /// one of the largest.
    pub const INFERENCE_KIB: usize = 2 * openshell_policy::inference::MAX_REQUEST_BYTES / 1024;
    /// Time that such a request waits for memory.
    pub const INFERENCE_WAIT: Duration = Duration::from_secs(10);
    /// Time for the body of such a request to arrive.
    pub const INFERENCE_BODY: Duration = Duration::from_secs(120);
    /// Longest silence within such a body.
    pub const INFERENCE_SILENCE: Duration = Duration::from_secs(30);
    /// Bytes of a request whose model is replaced on a connection thread; larger ones go to a
    /// blocking thread.
    pub const REWRITTEN_BYTES: usize = 1024 * 1024;
    /// Time between telling a client that its response is cut off and closing.
    pub const TRUNCATION_GRACE: Duration = Duration::from_millis(50);
    /// Bytes of a body that are read, or queued for sending, at once: sixteen TLS records.
    pub const BUFFER_BYTES: usize = 256 * 1024;
    /// Time that a closing connection waits for its peer to read the last bytes.
    pub const LINGER: Duration = Duration::from_secs(2);
    /// Bytes that the peer may still send meanwhile: as much as a fast link has in flight.
    pub const LINGER_BYTES: usize = 4 * 1024 * 1024;
    /// Hosts whose certificates, and upstreams whose TLS sessions, are cached.
    pub const CERTIFICATES: usize = 1_024;
    /// Time for a head to arrive: longer than any client takes unless it holds the connection on
    /// purpose.
    pub const HEAD_DEADLINE: Duration = Duration::from_secs(10);
    /// Interval of the checks for dead clients. A connection ends if two checks in a row find its
    /// client half-closed without a response, or stalled.
    pub const HALF_CLOSE_TIMEOUT: Duration = Duration::from_secs(15);
    /// Time to connect to an upstream, over all its addresses.
    pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
    /// Head start of one address over the next (RFC 8305 §5).
    pub const CONNECT_STAGGER: Duration = Duration::from_millis(250);
    /// Addresses of one name that are used; real names have fewer, and each one costs a check.
    pub const ADDRESSES: usize = 64;
    /// Time for a name to resolve.
    pub const LOOKUP_DEADLINE: Duration = Duration::from_secs(10);
    /// Silence, both ways, after which an established connection ends; long polls and idle sessions
    /// need as much.
    pub const IDLE: Duration = Duration::from_secs(2 * 60 * 60);
    /// Silence before the first TCP keepalive probe.
    pub const KEEPALIVE: Duration = Duration::from_secs(60);
    /// Programs with a fingerprint. None is ever forgotten, or trust on first use would not hold.
    pub const FINGERPRINTS: usize = 4_096;
    /// Programs in use at once, each with a descriptor until its connections are accepted and
    /// judged.
    pub const EXECUTABLES: usize = 4_096;
    /// Programs whose descriptors are kept because they probably connect again.
    pub const RECENT_EXECUTABLES: usize = 16;
    /// Bytes of a program that are read for its fingerprint; the largest in use have a few hundred
    /// megabytes.
    pub const PROGRAM_BYTES: u64 = 2 * 1024 * 1024 * 1024;
    /// Compressed responses that are decoded at once for a search, each with a window of up to 16
    /// MB.
    pub const DECODED_ANSWERS: usize = 16;
    /// Connections whose programs are read, or that are judged, at once; more would only compete
    /// for the processors.
    pub const JUDGING: usize = 32;
    /// Those of them whose program is not listed in the policy.
    pub const JUDGING_UNLISTED: usize = 4;
    /// Open connections that are judged again at once after a change of the policy.
    pub const JUDGING_OPEN: usize = 8;
    /// Programs that are read for their fingerprints at once, if they are below
    /// [`Self::LARGE_PROGRAM`].
    pub const READING_SMALL: usize = 2;
    /// Larger programs that are read at once.
    pub const READING_LARGE: usize = 1;
    /// Bytes from which on a program counts as large, together with its ancestors.
    pub const LARGE_PROGRAM: u64 = 64 * 1024 * 1024;
    /// Time after a change of the policy for which an open connection goes on before it has been
    /// judged again; after that, no byte passes until it is.
    pub const HOLD_AFTER: Duration = Duration::from_secs(1);
    /// Time to judge a connection, the wait for a slot included.
    pub const JUDGE_DEADLINE: Duration = Duration::from_secs(10);
    /// Cached decisions of one policy generation, if each counts for [`Self::DECISION_BYTES`].
    pub const DECISIONS: usize = 16_384;
    /// Bytes that a cached decision counts for at least; larger ones evict more of the others.
    pub const DECISION_BYTES: usize = 1024;
    /// Bytes of a reason that are kept.
    pub const REASON_BYTES: usize = 4 * 1024;
    /// Ancestors of a caller, up to the command that init started.
    pub const ANCESTORS: usize = 64;
    /// Absolute paths among the arguments of a caller and its ancestors, for the reason text.
    pub const CMDLINE_PATHS: usize = 16;
    /// Bytes of one such path.
    pub const CMDLINE_PATH_BYTES: usize = 256;
    /// Bytes of one process's arguments that are read.
    pub const CMDLINE_BYTES: usize = 16 * 1024;
    /// Bytes of a process's mappings that are read; large programs have some hundred kilobytes.
    pub const MAPS_BYTES: u64 = 8 * 1024 * 1024;
    /// Names with open doors at once.
    pub const NAMES: usize = 4_096;
    /// Doors open at once.
    pub const DOORS: usize = 8_192;
    /// Ports of all doors, each with a listener for the life of the sandbox.
    pub const DOOR_PORTS: usize = 1_024;
    /// Time after which a name that nobody has asked for again may lose its doors to another one:
    /// as long as clients keep answers.
    pub const NAME_UNASKED: Duration = Duration::from_secs(30);
    /// New names a minute that the policy permits only by wildcards.
    pub const WILDCARD_NAMES: u32 = 256;
    /// Bytes of a question for a name.
    pub const DNS_MESSAGE: usize = 8 * 1024;
    /// Questions at once that wait for a door, or for a name server outside.
    pub const DNS_QUESTIONS: usize = 64;
    /// Questions at once that wait for a name server outside.
    pub const DNS_QUESTIONS_OUTSIDE: usize = 8;
    /// Questions for a name server outside in a minute: enough for the start of any program.
    pub const DNS_QUESTIONS_A_MINUTE: u32 = 64;
    /// Connections to the name server at once.
    pub const DNS_CONNECTIONS: usize = 64;
    /// Time for a question to arrive over TCP, and between two of them.
    pub const DNS_DEADLINE: Duration = Duration::from_secs(10);
    /// Bytes of an answer from a name server outside that are passed on.
    pub const DNS_RECORDS: usize = 4 * 1024;
    /// Unknown names whose questions are counted separately.
    pub const UNKNOWN_NAMES: usize = 1_024;
    /// Time for which further questions for an unknown name are only counted.
    pub const UNKNOWN_NAME_INTERVAL: Duration = Duration::from_secs(60);
    /// Time for open connections to end with the sandbox: their clients are gone, and most notice
    /// at once.
    pub const DRAIN: Duration = Duration::from_millis(250);
    /// Pause after a failed accept, doubled after each further one up to
    /// [`Self::ACCEPT_BACKOFF_MAX`].
    pub const ACCEPT_BACKOFF: Duration = Duration::from_millis(5);
    /// Longest pause after a failed accept.
    pub const ACCEPT_BACKOFF_MAX: Duration = Duration::from_secs(1);
}
