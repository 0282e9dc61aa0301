//! Requests to the host, read strictly.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use tokio::time::timeout;

use crate::denial::guidance::SKILL_PATH;
use crate::denial::refusal::Refusal;
use crate::policy_local::answer::{Answer, bad, error};
use crate::wire::http::head;
use crate::wire::http::target::RequestTarget;

/// The most bytes of a body.
const BODY_BYTES: usize = 64 * 1024;

/// The time for a body.
const BODY_TIME: Duration = Duration::from_secs(15);

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Call<'p> {
    Policy,
    Denials,
    Propose,
    Proposal(&'p str),
    Wait(&'p str),
    Explain,
}

impl<'p> Call<'p> {
    pub(super) fn of(path: &'p str) -> Option<Self> {
        let call = match path.strip_prefix("/v1/")? {
            "policy/current" => Self::Policy,
            "denials" => Self::Denials,
            "proposals" => Self::Propose,
            "explain" => Self::Explain,
            other => {
                let id = other.strip_prefix("proposals/")?;
                match id.split_once('/') {
                    None => Self::Proposal(id),
                    Some((id, "wait")) => Self::Wait(id),
                    Some(_) => return None,
                }
            }
        };
        Some(call)
    }

    pub(super) fn method(&self) -> Method {
        match self {
            Self::Propose => Method::POST,
            Self::Policy | Self::Denials | Self::Proposal(_) | Self::Wait(_) | Self::Explain => {
                Method::GET
            }
        }
    }
}

/// Returns true for a request for the text that tells agents how to ask.
pub(super) fn asks_for_skill(parts: &Parts, target: &RequestTarget) -> bool {
    parts.method == Method::GET && target.path() == SKILL_PATH
}

/// Returns the value of the parameter `name` of `target`.
pub(super) fn parameter(target: &RequestTarget, name: &str) -> Result<Option<String>, Answer> {
    let parameters = target.parameters();
    let parameters = parameters.map_err(|error| bad(error.to_string()))?;
    let mut values = parameters.into_iter().filter(|(key, _)| key == name);
    let value = values.next().map(|(_, value)| value);
    if values.next().is_some() {
        return Err(bad(format!("{name} is there twice")));
    }
    Ok(value)
}

/// Returns the number of the parameter `name` of `target`, from 1 to `most`; `default` without one.
pub(super) fn number(
    target: &RequestTarget,
    name: &str,
    default: u64,
    most: u64,
) -> Result<u64, Answer> {
    let Some(text) = parameter(target, name)? else {
        return Ok(default);
    };
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_plain);
    let number = number.filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| bad(format!("{name} is a number from 1 to {most}")))
}

/// Checks the head of a request; returns its target.
pub(super) fn checked(parts: &Parts) -> Result<RequestTarget, Refusal> {
    head::check_method(&parts.method)?;
    head::check_size(parts)?;
    head::check_framing(&parts.headers)?;
    RequestTarget::canonical(&parts.method, &parts.uri, false).map_err(Refusal::target)
}

/// Reads a body.
///
/// # Errors
/// It is too long, too slow, or cut off.
pub(super) async fn read(body: Incoming) -> Result<Bytes, Answer> {
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(too_long());
    }
    let body = pin!(Limited::new(body, BODY_BYTES));
    match timeout(BODY_TIME, body.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_long()),
        Ok(Err(_)) => Err(bad("the body is malformed, or ended before its end")),
        Err(_) => Err(bad("the body did not arrive in time")),
    }
}

fn too_long() -> Answer {
    error(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        format!("a body has at most {BODY_BYTES} bytes"),
    )
}
