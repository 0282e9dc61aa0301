//! How refused messages of JSON-RPC and MCP are answered: with errors of the protocol where a client
//! waits for an answer to a request of its own, else with a status of HTTP.

use openshell_policy::network::rpc::Revision;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::denial::judged::RequestFault;

/// The answer to a request whose messages are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcAnswer {
    /// The status of the response.
    pub status: u16,
    /// The errors, one for each request; empty for a response with the body of the refusal.
    errors: Vec<RpcError>,
    code: i32,
    /// True if the messages are a batch.
    is_batch: bool,
    /// True if the client takes only event streams.
    is_event: bool,
    /// The revisions that may be spoken and the one that was asked for, if that is the fault.
    versions: Option<Versions>,
}

/// What the answer to a request depends on of a message in it.
#[derive(Clone, Debug, Default)]
pub struct Answerable {
    /// False if the request holds no message.
    pub is_message: bool,
    /// Its method.
    pub method: Option<String>,
    /// Its id, as JSON, if it is a request.
    pub id: Option<String>,
    /// True if it stands in a batch.
    pub is_in_batch: bool,
}

/// An error for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RpcError {
    /// The id of the request, as JSON.
    id: String,
    /// False if another message of the batch is refused.
    is_at_fault: bool,
}

/// The data of an error about revisions (MCP 2026-07-28, `UnsupportedProtocolVersion`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Versions {
    supported: Vec<&'static str>,
    requested: String,
}

/// The code of an error that rules cause; JSON-RPC and MCP use none like it.
const REFUSED: i32 = -31403;
/// The code of MCP for a head that differs from its body.
pub const HEADER_MISMATCH: i32 = -32020;
/// The code of an error for parameters that lack what the revision demands (JSON-RPC 2.0 §5.1).
pub const INVALID_PARAMS: i32 = -32602;
/// The code of MCP for a revision that is not spoken.
const UNSUPPORTED_VERSION: i32 = -32022;

/// The sentence for requests that were not at fault.
pub const NOT_SENT: &str = "not sent: another message of the batch was refused";

impl RpcAnswer {
    /// Returns the answer to the request of `id`, whose head or parameters have the fault of `code`.
    #[must_use]
    pub fn invalid(id: String, code: i32, is_event: bool) -> Self {
        Self {
            status: 400,
            errors: vec![RpcError {
                id,
                is_at_fault: true,
            }],
            code,
            is_batch: false,
            is_event,
            versions: None,
        }
    }

    /// Returns the answer to `messages`, of which the one at `index` is refused for this `fault`;
    /// `None` if they are none.
    #[must_use]
    pub fn of(
        messages: &[Answerable],
        index: usize,
        fault: &RequestFault,
        is_event: bool,
    ) -> Option<Self> {
        let refused = messages.get(index)?;
        let mut answer = Self {
            status: 403,
            errors: Vec::new(),
            code: REFUSED,
            is_batch: refused.is_in_batch,
            is_event,
            versions: None,
        };
        if !refused.is_message {
            answer.status = 405;
            return Some(answer);
        }
        if let RequestFault::Version {
            supported,
            requested,
        } = fault
        {
            answer.status = 400;
            answer.code = UNSUPPORTED_VERSION;
            answer.versions = Some(Versions {
                supported: supported.iter().map(|version| version.as_str()).collect(),
                requested: requested.clone(),
            });
            if !supported
                .iter()
                .any(|version| Revision::is_stateless(*version))
            {
                return Some(answer);
            }
        } else if refused.method.as_deref() == Some("server/discover") {
            // Clients then use the handshake of older revisions.
            answer.status = 400;
            return Some(answer);
        }
        for (at, message) in messages.iter().enumerate() {
            if let Some(id) = &message.id {
                answer.errors.push(RpcError {
                    id: id.clone(),
                    is_at_fault: at == index,
                });
            }
        }
        if !answer.errors.is_empty() && answer.versions.is_none() {
            answer.status = 200;
        }
        Some(answer)
    }

    /// Returns true if the method of the request is what is refused.
    #[must_use]
    pub fn is_about_method(&self) -> bool {
        self.status == 405
    }

    /// Returns the body and its media type; `None` if it is the one of the refusal. That one is the
    /// `data` of each error, as JSON, and `sentence` its message.
    #[must_use]
    pub fn body(&self, sentence: &str, data: &str) -> Option<(Vec<u8>, &'static str)> {
        if self.errors.is_empty() {
            return None;
        }
        let errors = self.errors.iter().map(|error| Envelope {
            jsonrpc: "2.0",
            id: RawValue::from_string(error.id.clone()).ok(),
            error: Content {
                code: self.code,
                message: if error.is_at_fault {
                    sentence
                } else {
                    NOT_SENT
                },
                data: match &self.versions {
                    _ if !error.is_at_fault => None,
                    Some(versions) => serde_json::value::to_raw_value(versions).ok(),
                    None => RawValue::from_string(data.to_owned()).ok(),
                },
            },
        });
        let errors: Vec<_> = errors.collect();
        // Texts and numbers always have a JSON form.
        let json = match errors.as_slice() {
            [only] if !self.is_batch => serde_json::to_string(only),
            all => serde_json::to_string(all),
        };
        let json = json.unwrap_or_default();
        // Only an answer of the protocol is an event.
        Some(if self.is_event && self.status == 200 {
            (
                format!("event: message\ndata: {json}\n\n").into_bytes(),
                "text/event-stream",
            )
        } else {
            (json.into_bytes(), "application/json")
        })
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    jsonrpc: &'static str,
    id: Option<Box<RawValue>>,
    error: Content<'a>,
}

#[derive(Serialize)]
struct Content<'a> {
    code: i32,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
}

#[cfg(test)]
mod tests {
    use openshell_policy::network::endpoint::Protocol;
    use openshell_policy::network::rpc::Revision;
    use serde_json::{Value, json};

    use super::{Answerable, HEADER_MISMATCH, RpcAnswer};
    use crate::denial::guidance::Guidance;
    use crate::denial::judged::{At, JudgedMessage, JudgedRequest, RequestFault};
    use crate::denial::refusal::{Refusal, Subject};
    use crate::denial::reply;

    fn message(method: Option<&str>, id: Option<&str>) -> Answerable {
        Answerable {
            is_message: true,
            method: method.map(str::to_owned),
            id: id.map(str::to_owned),
            is_in_batch: false,
        }
    }

    fn call(id: &str) -> Answerable {
        message(Some("tools/call"), Some(id))
    }

    /// Returns status, media type and body of the answer to `messages`, of which the one at `index`
    /// is refused for `fault`.
    fn answer(
        messages: &[Answerable],
        index: usize,
        fault: RequestFault,
        is_event: bool,
    ) -> (u16, String, String) {
        let answer = RpcAnswer::of(messages, index, &fault, is_event).unwrap();
        let request = JudgedRequest {
            policy: Some("web".to_owned()),
            method: "POST".to_owned(),
            path: "/mcp".to_owned(),
            message: Some(JudgedMessage {
                protocol: Protocol::Mcp,
                is_response: false,
                method: messages[index].method.clone(),
                about: None,
                is_about_one: true,
                is_limited: false,
            }),
            fault,
        };
        let refusal =
            Refusal::request("tool a is not permitted".to_owned(), request).answered(answer);
        let subject = Subject {
            request: "POST /mcp".to_owned(),
            target: None,
            caller: None,
            is_inside: true,
        };
        let response = reply::refused(&refusal, &subject, &Guidance::default());
        assert!(
            !response.headers().contains_key("connection"),
            "the connection goes on"
        );
        assert!(!response.headers().contains_key("www-authenticate"));
        let allow = response
            .headers()
            .get("allow")
            .map(|allow| allow.to_str().unwrap());
        assert_eq!(allow, (response.status() == 405).then_some("POST"));
        let media_type = response.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        let body = String::from_utf8(response.body().to_vec()).unwrap();
        (response.status().as_u16(), media_type, body)
    }

    fn no_rule() -> RequestFault {
        RequestFault::NoRule(At::Any)
    }

    #[test]
    fn a_refused_request_is_answered_with_an_error_for_its_id() {
        for id in ["7", "\"x\\u00e9\"", "123456789012345678901234567890"] {
            let (status, media_type, body) = answer(&[call(id)], 0, no_rule(), false);
            assert_eq!((status, media_type.as_str()), (200, "application/json"));
            assert!(
                body.starts_with(&format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-31403,"
                )),
                "{body}"
            );
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(
                body["error"]["message"],
                "tool a is not permitted (request_not_in_rules)"
            );
            assert_eq!(body["error"]["data"]["reason_code"], "request_not_in_rules");
        }
        let (_, media_type, body) = answer(&[call("7")], 0, no_rule(), true);
        assert_eq!(media_type, "text/event-stream");
        assert!(
            body.starts_with("event: message\ndata: {\"jsonrpc\"") && body.ends_with("}\n\n\n"),
            "{body:?}"
        );
    }

    #[test]
    fn each_request_of_a_refused_batch_gets_an_error() {
        let notification = message(Some("notifications/progress"), None);
        let in_batch = |id| {
            let mut message = call(id);
            message.is_in_batch = true;
            message
        };
        let (_, _, body) = answer(&[in_batch("1")], 0, no_rule(), false);
        assert!(body.starts_with('['), "{body}");
        let (status, _, body) = answer(
            &[in_batch("1"), in_batch("2"), notification.clone()],
            1,
            no_rule(),
            false,
        );
        assert_eq!(status, 200);
        let body: Value = serde_json::from_str(&body).unwrap();
        let errors: Vec<_> = body
            .as_array()
            .unwrap()
            .iter()
            .map(|error| (&error["id"], &error["error"]["message"]))
            .collect();
        let expected = [
            (
                &json!(1),
                &json!("not sent: another message of the batch was refused"),
            ),
            (
                &json!(2),
                &json!("tool a is not permitted (request_not_in_rules)"),
            ),
        ];
        assert_eq!(errors, expected);
        let response = message(None, None);
        assert_eq!(
            answer(&[notification, response], 1, no_rule(), false).0,
            403
        );
    }

    #[test]
    fn what_waits_for_no_answer_is_refused_by_a_status() {
        let refusal = |message: Answerable| {
            let (status, media_type, body) = answer(&[message], 0, no_rule(), true);
            assert_eq!(media_type, "application/json");
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["reason_code"], "request_not_in_rules");
            status
        };
        assert_eq!(refusal(message(Some("x"), None)), 403);
        assert_eq!(refusal(message(None, None)), 403);
        assert_eq!(refusal(Answerable::default()), 405);
        assert_eq!(refusal(message(Some("server/discover"), Some("1"))), 400);
    }

    #[test]
    fn a_client_that_speaks_another_revision_learns_which_to_speak() {
        let fault = |supported: &[Revision]| RequestFault::Version {
            supported: supported.to_vec(),
            requested: "2027-01-01".to_owned(),
        };
        let (status, _, body) = answer(
            &[call("1")],
            0,
            fault(&[Revision::R20251125, Revision::R20260728]),
            false,
        );
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &body["error"]["code"]), (400, &json!(-32022)));
        let data = json!({"supported": ["2025-11-25", "2026-07-28"], "requested": "2027-01-01"});
        assert_eq!(body["error"]["data"], data);
        let (status, _, body) = answer(&[call("1")], 0, fault(&[Revision::R20251125]), false);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (status, &body["reason_code"]),
            (400, &json!("request_not_in_rules"))
        );
        assert!(
            body.get("jsonrpc").is_none(),
            "clients fall back to the handshake"
        );
    }

    #[test]
    fn a_head_that_differs_is_an_error_of_mcp() {
        let answer = RpcAnswer::invalid("7".to_owned(), HEADER_MISMATCH, false);
        let refusal = Refusal::message_invalid("mcp-name differs".to_owned()).answered(answer);
        let subject = Subject {
            request: "POST /mcp".to_owned(),
            target: None,
            caller: None,
            is_inside: true,
        };
        let response = reply::refused(&refusal, &subject, &Guidance::default());
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(response.status(), 400);
        assert_eq!(
            (&body["id"], &body["error"]["code"]),
            (&json!(7), &json!(-32020))
        );
    }
}
