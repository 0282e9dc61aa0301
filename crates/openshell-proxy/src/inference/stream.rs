//! The response of a backend while it is streamed: it is metered, and cut off if the backend stalls
//! or fails.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE};
use hyper::http::response::Parts;
use serde_json::json;
use tokio::time::{Instant, Sleep, sleep};

use crate::ground::limits::Limits;
use crate::inference::api::ApiCall;
use crate::inference::route::Route;
use crate::inference::usage::Meter;
use crate::report::record::{Outcome, Record};
use crate::wire::http::body::ResponseBody;

/// What is needed to report a response when it is complete.
#[derive(Debug)]
pub struct Report {
    /// The record of the request.
    pub record: Record,
    /// The route.
    pub route: Arc<Route>,
    /// The call.
    pub call: ApiCall,
    /// Estimated tokens of the request, counted when it was sent.
    pub cost: u64,
}

/// The body of a response.
#[derive(Debug)]
pub struct Streamed {
    body: ResponseBody,
    is_events: bool,
    meter: Meter,
    idle: Pin<Box<Sleep>>,
    report: Option<Report>,
    /// True once a client that reads events was told that the response is cut off.
    is_cut: bool,
}

impl Streamed {
    /// Streams `body`, which belongs to the response head `head`.
    #[must_use]
    pub fn new(head: &Parts, body: ResponseBody, report: Report) -> Self {
        let kind = head
            .headers
            .get(CONTENT_TYPE)
            .map(|value| value.as_bytes().to_ascii_lowercase());
        let is_plain = !head.headers.contains_key(CONTENT_ENCODING);
        let is_events = is_plain && kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
        let idle = Box::pin(sleep(report.route.timeouts.idle));
        Self {
            body,
            is_events,
            meter: Meter::default(),
            idle,
            report: Some(report),
            is_cut: false,
        }
    }

    fn finish(&mut self, remark: &str) {
        if let Some(Report {
            mut record,
            route,
            call,
            cost,
        }) = self.report.take()
        {
            let usage = self.meter.usage();
            // A response without usage, or cut off before it, costs at least the estimate.
            let has_usage = usage.output.is_some() && remark.is_empty();
            // A server may treat a free call as a different one, which has usage.
            let is_reported = has_usage || call.is_free();
            let tokens = if is_reported {
                usage.total()
            } else {
                usage.total().max(cost + self.meter.estimate())
            };
            route.settle(cost, tokens);
            record.record_usage(usage, remark);
            record.finish(Outcome::Allowed);
        }
    }

    /// Cuts the response off for the reason `why`. A client that reads events first gets an error
    /// event, in which it is also `told` more.
    fn cut_off(&mut self, why: &str, told: &str) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.finish(why);
        if !self.is_events {
            return Poll::Ready(Some(Err(io::Error::other("the answer was cut off"))));
        }
        self.is_cut = true;
        self.idle
            .as_mut()
            .reset(Instant::now() + Limits::TRUNCATION_GRACE);
        let message = format!("the answer of the model was cut off{told}");
        let error = json!({"error": {"type": "proxy_stream_error", "message": message}});
        Poll::Ready(Some(Ok(Frame::data(
            format!("\n\nevent: error\ndata: {error}\n\n").into(),
        ))))
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if this.is_cut {
            // An error drops data that is not written yet, so the event gets a moment to be sent.
            ready!(this.idle.as_mut().poll(cx));
            return Poll::Ready(Some(Err(io::Error::other("the answer was cut off"))));
        }
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(report) = &this.report {
                    this.idle
                        .as_mut()
                        .reset(Instant::now() + report.route.timeouts.idle);
                }
                if let Some(data) = frame.data_ref() {
                    this.meter.read(data);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.cut_off(&format!("the answer was cut off: {error}"), "")
            }
            Poll::Ready(None) => {
                this.finish("");
                Poll::Ready(None)
            }
            Poll::Pending => match this.idle.as_mut().poll(cx) {
                Poll::Ready(()) => {
                    let seconds = this
                        .report
                        .as_ref()
                        .map_or(0, |report| report.route.timeouts.idle.as_secs());
                    let told =
                        format!(": nothing came for {seconds} s (`timeouts.idle` of its route)");
                    this.cut_off(&format!("the backend sent nothing for {seconds} s"), &told)
                }
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

impl Drop for Streamed {
    /// Ends the report if the client has left; this also closes the connection to the backend.
    fn drop(&mut self) {
        let remark = if self.body.is_end_stream() {
            ""
        } else {
            "the client left before the end of the answer"
        };
        self.finish(remark);
    }
}
