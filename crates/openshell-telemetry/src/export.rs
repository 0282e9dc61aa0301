//! Sends the metrics to a collector (OTLP over HTTP), on a separate thread: at intervals, and once
//! more at the end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use openshell_policy::secret::Secret;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::metrics::Metrics;
use crate::{families, otlp};

/// Maximum duration of the last export, for which the end of the sandbox waits.
const LAST: Duration = Duration::from_secs(1);

/// Maximum bytes of an answer.
const ANSWER_BYTES: usize = 64 * 1024;

/// A collector, and how to send to it.
#[derive(Clone, Debug)]
pub struct Collector {
    uri: Uri,
    headers: HeaderMap,
    /// Attributes of the program that exports.
    pub attributes: Vec<(String, String)>,
    /// The time between two exports.
    pub every: Duration,
    /// The maximum duration of an export.
    pub timeout: Duration,
}

impl Collector {
    /// Parses the URL of the metrics of a collector, and the headers `NAME=VALUE,…` that it wants,
    /// percent-encoded (the OpenTelemetry specification, "OTLP Exporter Configuration").
    ///
    /// # Errors
    /// The URL or a header is malformed. The message says what is wrong, and contains no header.
    pub fn parse(url: &str, headers: &Secret) -> Result<Self, String> {
        let uri: Uri = url
            .parse()
            .map_err(|error| format!("it is not a URL: {error}"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https"))
            || uri.host().is_none_or(str::is_empty)
        {
            return Err(
                "it is not a URL of the form http://HOST:PORT or https://HOST:PORT".to_owned(),
            );
        }
        if uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
        {
            return Err("it has a user name; use OTEL_EXPORTER_OTLP_HEADERS".to_owned());
        }
        let headers =
            parse_headers(headers).ok_or("the headers are not of the form NAME=VALUE,…")?;
        let every = Duration::from_secs(60);
        let timeout = Duration::from_secs(10);
        Ok(Self {
            uri,
            headers,
            attributes: Vec::new(),
            every,
            timeout,
        })
    }

    /// Returns its host, without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        self.uri.host().unwrap_or_default().trim_matches(['[', ']'])
    }

    /// Returns its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.uri
            .port_u16()
            .unwrap_or(if self.is_tls() { 443 } else { 80 })
    }

    /// Returns true if it is reached by TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }
}

fn parse_headers(text: &Secret) -> Option<HeaderMap> {
    let text = std::str::from_utf8(text.expose()).ok()?;
    let pairs = text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty());
    let header = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let mut value = HeaderValue::from_bytes(&decoded(value.trim())?).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(name.trim().as_bytes()).ok()?, value))
    };
    pairs.map(header).collect()
}

/// Replaces each `%` that two hexadecimal digits follow by the byte that they stand for.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'%' => {
                let digits = std::str::from_utf8(after.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                &after[2..]
            }
            byte => {
                bytes.push(*byte);
                after
            }
        };
    }
    Some(bytes)
}

/// A connection to a collector.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Connection for C {}

/// Makes a connection to the collector.
pub type Connect = Box<
    dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Connection>>> + Send>> + Send + Sync,
>;

/// Reports that exports begin to fail, with the reason, or, without one, that they succeed again.
pub type Report = Box<dyn Fn(Option<&str>) + Send + Sync>;

/// A running export, which ends when this is dropped.
#[derive(Debug)]
pub struct Exporter {
    running: oneshot::Sender<()>,
    /// Closed when the thread ends.
    ended: oneshot::Receiver<()>,
}

impl Exporter {
    /// Starts the export of `metrics`, counted from `start`.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn start(
        collector: Collector,
        connect: Connect,
        report: Report,
        metrics: Arc<Metrics>,
        start: SystemTime,
    ) -> io::Result<Self> {
        let (running, ending) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let exports = async move {
            let export = Export {
                collector,
                connect,
                metrics,
                start,
            };
            let has_failed = AtomicBool::new(false);
            let send = async |limit| {
                let sent = timeout(limit, export.send()).await;
                let failure = sent
                    .unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
                    .err();
                if has_failed.swap(failure.is_some(), Ordering::Relaxed) != failure.is_some() {
                    report(failure.as_deref());
                }
            };
            let at_intervals = async {
                loop {
                    tokio::time::sleep(export.collector.every).await;
                    send(export.collector.timeout).await;
                }
            };
            // The end does not wait for an export that is under way.
            if tokio::select! { () = at_intervals => false, asked = ending => asked.is_ok() } {
                send(LAST).await;
            }
        };
        std::thread::Builder::new()
            .name("export".to_owned())
            .spawn(move || {
                runtime.block_on(exports);
                drop(end);
            })?;
        Ok(Self { running, ended })
    }

    /// Exports once more, for at most a second, and ends.
    pub async fn finish(self) {
        // The thread may have ended already.
        let _ = self.running.send(());
        let _ = self.ended.await;
    }
}

/// What is exported, and to where.
struct Export {
    collector: Collector,
    connect: Connect,
    metrics: Arc<Metrics>,
    start: SystemTime,
}

impl Export {
    /// Sends the current metrics.
    ///
    /// # Errors
    /// The collector cannot be reached, or does not accept the metrics. The message says why.
    async fn send(&self) -> Result<(), String> {
        let Collector {
            uri,
            headers,
            attributes,
            ..
        } = &self.collector;
        let families = families::now(&self.metrics);
        let message =
            otlp::export(&families, attributes, self.start, SystemTime::now()).encode_to_vec();
        let stream = (self.connect)().await.map_err(|error| error.to_string())?;
        let failed = |error: hyper::Error| error.to_string();
        let (mut client, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::post(path)
            .body(Full::new(Bytes::from(message)))
            .map_err(|error| error.to_string())?;
        request.headers_mut().extend(headers.clone());
        request.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-protobuf"),
        );
        let host = uri
            .authority()
            .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        request
            .headers_mut()
            .insert(HOST, host.unwrap_or_else(|| HeaderValue::from_static("")));
        // This task ends with the client, or when the collector closes the connection.
        let connection = tokio::spawn(connection);
        let exchange = async {
            let response = client.send_request(request).await.map_err(failed)?;
            let status = response.status();
            // The answer is read to its end, so that the collector can close the connection.
            let _ = Limited::new(response.into_body(), ANSWER_BYTES)
                .collect()
                .await;
            if status.is_success() {
                Ok(())
            } else {
                Err(format!("it answers {status}"))
            }
        };
        let sent = exchange.await;
        connection.abort();
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::Collector;
    use openshell_policy::secret::Secret;

    fn parsed(url: &str, headers: &str) -> Result<Collector, String> {
        Collector::parse(url, &Secret::new(headers.as_bytes().to_vec()))
    }

    #[test]
    fn urls_and_headers_are_those_of_the_specification() {
        let collector = parsed(
            "https://[2001:db8::1]/v1/metrics",
            " authorization=Bearer%20x%3D , x-a=b,",
        )
        .unwrap();
        assert_eq!(
            (collector.host(), collector.port(), collector.is_tls()),
            ("2001:db8::1", 443, true)
        );
        assert_eq!(collector.headers["authorization"], "Bearer x=");
        assert!(
            !format!("{collector:?}").contains("Bearer"),
            "{collector:?}"
        );
        assert_eq!(parsed("http://c:4318/v1/metrics", "").unwrap().port(), 4318);
        for (url, headers) in [
            ("", ""),
            ("c:4318", ""),
            ("ftp://c/", ""),
            ("http:///x", ""),
            ("http://u:p@c/", ""),
            ("http://c/", "x"),
            ("http://c/", "x y=z"),
            ("http://c/", "x=%0a"),
            ("http://c/", "x=%4"),
        ] {
            let error = parsed(url, headers).unwrap_err();
            assert!(!error.contains("x=%"), "{error}");
        }
    }
}
