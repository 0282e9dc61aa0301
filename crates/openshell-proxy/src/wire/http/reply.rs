//! The responses that the proxy makes itself, except refusals.

use bytes::Bytes;
use hyper::Response;
use hyper::ext::ReasonPhrase;

/// Returns the response to a permitted CONNECT.
#[must_use]
pub fn established() -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    response
        .extensions_mut()
        .insert(ReasonPhrase::from_static(b"Connection Established"));
    response
}
