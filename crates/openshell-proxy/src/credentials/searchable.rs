//! Brings responses into a form that can be searched for secrets. They were requested uncompressed
//! and in no particular character set, but not every server complies.

use hyper::body::Body;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::{Response, StatusCode};

use crate::denial::refusal::Refusal;
use crate::wire::io::decoded::{ContentCoding, Decoded};
use crate::wire::memory::Memory;

/// The fields that name the coding of the parts of a body (gRPC, Connect).
const PART_ENCODINGS: [HeaderName; 2] = [
    HeaderName::from_static("grpc-encoding"),
    HeaderName::from_static("connect-content-encoding"),
];

/// The character sets in which the search finds a secret.
const CHARSETS: [&str; 9] = [
    "utf-8",
    "utf8",
    "us-ascii",
    "ascii",
    "iso-8859-1",
    "windows-1252",
    "utf-16",
    "utf-16le",
    "utf-16be",
];

/// Decodes `response`, which goes to `program`, if it is compressed. A response that cannot be
/// searched is passed on unchanged, or refused if it `answers_secret`: if its request carried one.
///
/// # Errors
/// Fails if the response is refused, or if too many others are being decoded.
pub fn searchable<B: Body>(
    mut response: Response<B>,
    memory: &Memory,
    program: &str,
    answers_secret: bool,
) -> Result<Response<Decoded<B>>, Refusal> {
    let is_empty = response.body().is_end_stream();
    let refused = |why: String| Refusal::answer_not_searched(&why);
    let as_it_is = |response: Response<B>| Ok(response.map(|body| Decoded::new(body, None)));
    if is_empty {
        return as_it_is(response);
    }
    if let Some(name) = unknown_part_encoding(response.headers())
        && answers_secret
    {
        return Err(refused(format!("its {name} is not identity")));
    }
    if let Some(charset) = unknown_charset(response.headers())
        && answers_secret
    {
        return Err(refused(format!("its character set is {charset}")));
    }
    let codings = codings(response.headers());
    let coding = match codings.as_slice() {
        [] => return as_it_is(response),
        // A part of an encoded representation cannot be decoded on its own.
        [name] if response.status() != StatusCode::PARTIAL_CONTENT => ContentCoding::parse(name),
        _ => None,
    };
    let Some(coding) = coding else {
        return if answers_secret {
            Err(refused(format!(
                "its content coding is {}",
                codings.join(&b", "[..]).escape_ascii()
            )))
        } else {
            as_it_is(response)
        };
    };
    let place = memory.decoding(program)?;
    response.headers_mut().remove(CONTENT_ENCODING);
    response.headers_mut().remove(CONTENT_LENGTH);
    Ok(response.map(|body| Decoded::new(body, Some((coding, place)))))
}

/// Returns the content codings, in the order in which they were applied.
fn codings(headers: &HeaderMap) -> Vec<Vec<u8>> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let names = values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii);
    let names = names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case(b"identity"));
    names.map(<[u8]>::to_vec).collect()
}

fn unknown_part_encoding(headers: &HeaderMap) -> Option<&'static str> {
    let is_encoded = |name: &&HeaderName| {
        headers
            .get_all(*name)
            .iter()
            .any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
    };
    match PART_ENCODINGS.iter().find(is_encoded)?.as_str() {
        "grpc-encoding" => Some("grpc-encoding"),
        _ => Some("connect-content-encoding"),
    }
}

/// Returns the character set of a text in which a secret would not be found. A text that names two
/// character sets counts as one with an unknown one.
fn unknown_charset(headers: &HeaderMap) -> Option<String> {
    let values: Vec<_> = headers
        .get_all(CONTENT_TYPE)
        .iter()
        .map(|value| value.as_bytes().to_ascii_lowercase())
        .collect();
    let value = values.join(&b';');
    let media_types = values
        .iter()
        .filter_map(|value| value.split(|byte| *byte == b';').next())
        .map(<[u8]>::trim_ascii);
    let is_text = |media_type: &[u8]| {
        media_type.starts_with(b"text/")
            || [b"json".as_slice(), b"xml"]
                .iter()
                .any(|end| media_type.ends_with(end))
    };
    if !media_types.into_iter().any(is_text) {
        return None;
    }
    let mut charsets = value.split(|byte| *byte == b';').filter_map(charset);
    let is_known = |charset: &[u8]| CHARSETS.iter().any(|known| known.as_bytes() == charset);
    let unknown = charsets
        .next()
        .filter(|charset| !is_known(charset))
        .or_else(|| charsets.next())?;
    Some(unknown.escape_ascii().to_string())
}

/// Returns the character set that a parameter names.
fn charset(parameter: &[u8]) -> Option<&[u8]> {
    let equals = parameter.iter().position(|byte| *byte == b'=')?;
    let (name, value) = parameter.split_at(equals);
    let value = value.get(1..).unwrap_or_default().trim_ascii();
    let value = value
        .strip_prefix(b"\"")
        .and_then(|name| name.strip_suffix(b"\""))
        .unwrap_or(value);
    (name.trim_ascii() == b"charset").then_some(value)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Full};
    use hyper::Response;
    use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH};

    use super::searchable;
    use crate::wire::memory::Memory;

    fn answer(fields: &[(&str, &str)]) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from_static(b"\x1f\x8bx")));
        for (name, value) in fields {
            response.headers_mut().append(
                hyper::header::HeaderName::try_from(*name).unwrap(),
                value.parse().unwrap(),
            );
        }
        response
    }

    #[test]
    fn an_answer_to_a_secret_that_cannot_be_searched_is_refused_and_others_pass() {
        let memory = Memory::default();
        let texts = [
            "text/html",
            "application/json",
            "application/atom+xml",
            "application/problem+json",
        ];
        for (fields, is_refused) in [
            (vec![], false),
            (vec![("content-encoding", "identity")], false),
            (vec![("content-encoding", "gzip")], false),
            (vec![("content-encoding", "X-GZIP")], false),
            (vec![("content-encoding", "br")], false),
            (vec![("content-encoding", "compress")], true),
            (vec![("content-encoding", "gzip, br")], true),
            (
                vec![("content-encoding", "gzip"), ("content-encoding", "gzip")],
                true,
            ),
            (vec![("grpc-encoding", "gzip")], true),
            (vec![("connect-content-encoding", "zstd")], true),
            (
                vec![("content-type", "application/octet-stream; charset=utf-7")],
                false,
            ),
            (vec![("content-type", "application/zip")], false),
            (vec![("content-type", "text/plain;charset = IBM037")], true),
            (
                vec![("content-type", "text/plain; charset=utf-8; charset=IBM037")],
                true,
            ),
            (
                vec![
                    ("content-type", "text/plain; charset=utf-8"),
                    ("content-type", "text/plain; charset=IBM037"),
                ],
                true,
            ),
            (
                vec![
                    ("content-type", "application/zip"),
                    ("content-type", "text/plain; charset=IBM037"),
                ],
                true,
            ),
        ] {
            assert_eq!(
                searchable(answer(&fields), &memory, "/a", true).is_err(),
                is_refused,
                "{fields:?}"
            );
            assert!(
                searchable(answer(&fields), &memory, "/a", false).is_ok(),
                "{fields:?}"
            );
        }
        for text in texts {
            for (charset, is_refused) in [
                ("utf-8", false),
                ("\"UTF-16\"", false),
                ("latin5", true),
                ("utf-7", true),
                ("utf-32", true),
            ] {
                let fields = [("content-type", &*format!("{text};a=b; Charset={charset}"))];
                assert_eq!(
                    searchable(answer(&fields), &memory, "/a", true).is_err(),
                    is_refused,
                    "{fields:?}"
                );
            }
        }
        let mut part = answer(&[("content-encoding", "gzip")]);
        *part.status_mut() = hyper::StatusCode::PARTIAL_CONTENT;
        assert!(searchable(part, &memory, "/a", true).is_err());
    }

    #[tokio::test]
    async fn a_compressed_answer_is_passed_on_decoded_and_a_broken_one_ends_early() {
        use compression_codecs::core::Level;
        use compression_codecs::core::util::{PartialBuffer, WriteBuffer};
        use compression_codecs::{
            BrotliEncoder, DeflateEncoder, EncodeV2, GzipEncoder, ZlibEncoder, ZstdEncoder,
        };
        let memory = Memory::default();
        // The second text fills its parts exactly, and the third is a decompression bomb.
        for text in [
            b"s3cret ".repeat(1000),
            vec![b'a'; 16 * 1024],
            vec![b'a'; 20 << 20],
            Vec::new(),
        ] {
            let flate =
                || compression_codecs::flate::params::FlateEncoderParams::from(Level::Default);
            let encoders: [(&str, Box<dyn EncodeV2>); 5] = [
                ("gzip", Box::new(GzipEncoder::new(flate()))),
                ("deflate", Box::new(ZlibEncoder::new(flate()))),
                ("deflate", Box::new(DeflateEncoder::new(flate()))),
                ("br", Box::new(BrotliEncoder::new(Default::default()))),
                ("zstd", Box::new(ZstdEncoder::new(3))),
            ];
            for (name, mut encoder) in encoders {
                let mut encoded = vec![0; 21 << 20];
                let mut output = WriteBuffer::new_initialized(&mut encoded);
                let mut input = PartialBuffer::new(&*text);
                while !input.unwritten().is_empty() {
                    encoder.encode(&mut input, &mut output).unwrap();
                }
                while !encoder.finish(&mut output).unwrap() {}
                let length = output.written_len();
                encoded.truncate(length);
                let mut response = answer(&[
                    ("content-encoding", name),
                    ("content-length", &length.to_string()),
                ]);
                *response.body_mut() = Full::new(Bytes::from(encoded.clone()));
                let decoded = searchable(response, &memory, "/a", true).unwrap();
                let headers = decoded.headers();
                assert!(
                    headers.get(CONTENT_ENCODING).is_none()
                        && headers.get(CONTENT_LENGTH).is_none()
                );
                let decoded = decoded.into_body().collect().await;
                let decoded = decoded
                    .unwrap_or_else(|error| panic!("{name}, {}: {error}", text.len()))
                    .to_bytes();
                assert!(
                    decoded == text,
                    "{name}: {} of {}",
                    decoded.len(),
                    text.len()
                );
                if text.is_empty() {
                    continue;
                }
                encoded.truncate(length - 1);
                let mut response = answer(&[("content-encoding", name)]);
                *response.body_mut() = Full::new(Bytes::from(encoded));
                assert!(
                    searchable(response, &memory, "/a", true)
                        .unwrap()
                        .into_body()
                        .collect()
                        .await
                        .is_err(),
                    "{name}"
                );
            }
        }
    }
}
