//! Errors of calls, with the text that people see.

use std::error::Error;
use std::fmt;
use std::io;

use tonic::{Code, Status};

/// A call that failed.
#[derive(Clone, Debug)]
pub struct CallError {
    call: &'static str,
    code: Code,
    message: String,
}

impl CallError {
    pub(crate) fn new(call: &'static str, status: &Status) -> Self {
        // The innermost cause is the most informative.
        let mut cause = status.source();
        let mut is_lost = false;
        while let Some(inner) = cause.and_then(Error::source) {
            is_lost |= inner.is::<io::Error>();
            cause = Some(inner);
        }
        let message = cause.map_or_else(|| status.message().to_owned(), ToString::to_string);
        // The text comes from the gateway and goes into log lines.
        let message: String = message
            .chars()
            .filter(|c| !c.is_control())
            .take(Self::MESSAGE_CHARS)
            .collect();
        // A connection that was lost or never made is not a failure of the gateway.
        is_lost |= ["broken pipe", "connection reset"]
            .iter()
            .any(|lost| message.contains(lost));
        let code = match status.code() {
            Code::Unknown | Code::Internal if is_lost => Code::Cancelled,
            code => code,
        };
        Self {
            call,
            code,
            message,
        }
    }

    pub(crate) fn of(call: &'static str, code: Code, message: impl Into<String>) -> Self {
        Self {
            call,
            code,
            message: message.into(),
        }
    }

    /// Returns the error for a stream that the gateway has ended.
    pub(crate) fn broken(call: &'static str) -> Self {
        Self::of(call, Code::Unavailable, "the gateway has ended the stream")
    }

    /// Longest text of a gateway that is kept, in characters.
    const MESSAGE_CHARS: usize = 512;

    /// Returns true if the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.code,
            Code::Unavailable
                | Code::DeadlineExceeded
                | Code::ResourceExhausted
                | Code::Internal
                | Code::Unknown
                // The connection was closed during the call.
                | Code::Cancelled
        )
    }

    /// Returns true if there is no connection to the gateway, or no answer on it.
    #[must_use]
    pub fn is_unreached(&self) -> bool {
        matches!(
            self.code,
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
        )
    }

    /// Returns true if the gateway does not have the call, because it is of an earlier generation.
    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    /// Returns true if the gateway does not know who is calling.
    #[must_use]
    pub fn is_unauthenticated(&self) -> bool {
        self.code == Code::Unauthenticated
    }

    /// Returns true if the gateway refuses this sandbox, does not know it, or does not have the
    /// call.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(
            self.code,
            Code::PermissionDenied | Code::NotFound | Code::Unimplemented
        )
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, remedy) = match self.code {
            Code::Unavailable => (
                "the gateway cannot be reached",
                "check --openshell-endpoint and OPENSHELL_TLS_CA",
            ),
            Code::Cancelled => (
                "the gateway has closed the connection",
                "for `https`, check that it trusts OPENSHELL_TLS_CERT and that this is still valid",
            ),
            Code::DeadlineExceeded => ("the gateway does not answer in time", "check its load"),
            Code::ResourceExhausted => ("the gateway has too much to do", "the sandbox asks again"),
            Code::Unauthenticated => (
                "the gateway does not know who is calling",
                "set OPENSHELL_SANDBOX_TOKEN, OPENSHELL_SANDBOX_TOKEN_FILE or \
                 OPENSHELL_K8S_SA_TOKEN_FILE to a valid token",
            ),
            Code::PermissionDenied => (
                "the gateway refuses this sandbox",
                "check --sandbox-id against the token",
            ),
            Code::NotFound => (
                "the gateway does not know this sandbox",
                "check --sandbox-id",
            ),
            Code::Unimplemented => (
                "the gateway does not have this call",
                "it is of an earlier generation",
            ),
            Code::InvalidArgument | Code::FailedPrecondition => (
                "the gateway refuses the request",
                "compare its version with the sandbox's",
            ),
            Code::Internal | Code::Unknown | Code::DataLoss => {
                ("the gateway failed", "see its log")
            }
            _ => ("the call failed", "see the gateway's log"),
        };
        write!(f, "{}: {what}: {} ({remedy})", self.call, self.message)
    }
}

impl Error for CallError {}
