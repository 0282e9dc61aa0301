//! Fuzz targets of the parsers for bytes of the workload and of upstreams: samples, mutated at
//! random, and their invariants.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a failed step is a failed test"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fuzz::{Random, fuzz};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use openshell_events::event::{Audit, Event};
use openshell_policy::credential::{Binding, CredentialName};
use openshell_policy::network::host::Host;
use openshell_policy::secret::Secret;
use openshell_proxy::credentials::inject::inject;
use openshell_proxy::credentials::redact::Scrubber;
use openshell_proxy::credentials::vault::Vault;
use openshell_proxy::doors::dns::message::{self, Answer, Read};
use openshell_proxy::doors::ingress;
use openshell_proxy::ground::target::{Origin, Scheme, Target};
use openshell_proxy::inference::model::with_model;
use openshell_proxy::inference::usage::Meter;
use openshell_proxy::secrets::placeholder::{Coding, MARKER, find, is_hidden_in, redacted};
use openshell_proxy::wire::detect::protocol;
use openshell_proxy::wire::http::target::RequestTarget;
use openshell_proxy::wire::json::Json;
use openshell_proxy::wire::tls::authority::Authority;
use openshell_proxy::wire::tls::terminate::read_client_hello;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;

#[test]
fn fuzzed_targets_are_plain_stay_as_they_are_and_lead_nowhere_else() {
    let samples: [&[u8]; 9] = [
        b"/",
        b"/a/b?c=d",
        b"/pub/../priv",
        b"/%2e%2e/x",
        b"/a;v=1/..;/b",
        b"/a%252fb",
        b"/%c3%a4/%C0%AF",
        b"//a//b//",
        b"/@scope%2fname",
    ];
    let words: [&[u8]; 14] = [
        b"..",
        b"/",
        b"//",
        b"%",
        b"%2e",
        b"%2F",
        b"%5c",
        b"%25",
        b"%00",
        b";",
        b";x=",
        b"?",
        b"\xc3\xa4",
        b"%zz",
    ];
    fuzz("canonical target", &samples, &words, |input| {
        let Ok(uri) = Uri::try_from(input) else {
            return;
        };
        for slash in [false, true] {
            let Ok(target) = RequestTarget::canonical(&Method::GET, &uri, slash) else {
                continue;
            };
            for path in [Some(target.path()), target.without_parameters()]
                .into_iter()
                .flatten()
            {
                assert!(path.starts_with('/') && !path.contains("//"), "{path}");
                assert!(
                    !path.split('/').any(|segment| matches!(segment, "." | "..")),
                    "{path}"
                );
                assert!(
                    path.bytes()
                        .all(|byte| byte.is_ascii_graphic() && byte != b'\\'),
                    "{path}"
                );
                let escapes: Vec<_> = path
                    .split('%')
                    .skip(1)
                    .map(|behind| behind.get(..2).unwrap())
                    .collect();
                assert!(
                    escapes
                        .iter()
                        .all(|digits| digits.to_uppercase() == *digits),
                    "{path}"
                );
                assert!(slash || !escapes.contains(&"2F"), "{path}");
            }
            let sent = target.to_uri().unwrap();
            assert_eq!(sent.query(), uri.query());
            assert_eq!(
                RequestTarget::canonical(&Method::GET, &sent, slash),
                Ok(target)
            );
        }
    });
}

#[test]
fn fuzzed_first_bytes_are_named_once() {
    let samples: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\r\n\nPOST /x HTTP/1.0\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"SSH-2.0-x\r\n",
        b"EHLO a\r\n",
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
        b"GET /a HTTP/",
    ];
    let words: [&[u8]; 8] = [
        b" ",
        b"\r\n",
        b"\n",
        b"HTTP/1.1",
        b"HTTP/",
        b"GET",
        b"\x16",
        b"\x03",
    ];
    fuzz("detection", &samples, &words, |input| {
        let mut said = None;
        for end in 0..=input.len() {
            let now = protocol(&input[..end]);
            assert!(
                said.is_none() || now == said,
                "{said:?}, then {now:?} at {end}"
            );
            said = now;
        }
    });
}

const SECRETS: [(&str, &str); 4] = [
    ("A", "<first>"),
    ("A_B", "%second/"),
    ("v1_C", "x"),
    ("D", "aabaa"),
];

fn vault() -> Vault {
    Vault::new(SECRETS.map(|(name, secret)| {
        (
            CredentialName::parse(name).unwrap(),
            Secret::new(secret.as_bytes().to_vec()),
            Binding::default(),
        )
    }))
}

#[test]
fn fuzzed_heads_have_no_placeholder_left_and_no_secret_for_nothing() {
    let samples: [&[u8]; 9] = [
        b"/openshell%253Aresolve%253Aenv%253openshell:resolve:env:D\n",
        b"/a?b=c\nx-key: openshell:resolve:env:A\n",
        b"/botopenshell:resolve:env:A/x?k=openshell:resolve:env:A_B&y=1\n",
        b"/?openshell%3Aresolve%3aenv%3AA=x\n",
        b"/\nauthorization: Basic dXNlcjpvcGVuc2hlbGw6cmVzb2x2ZTplbnY6QQ==\n",
        b"/\nauthorization: Bearer openshell:resolve:env:v1_C openshell:resolve:env:D\n",
        b"/openshell%253Aresolve%253Aenv%253AA\nopenshell: resolve:env:A\n",
        b"/\ncookie: a=openshell:resolve:env:Z; b=openshell:resolve:env:\n",
        b"/a/b\nx: b3BlbnNoZWxsOnJlc29sdmU6ZW52OkE=\n",
    ];
    let words: [&[u8]; 12] = [
        b"openshell",
        b":resolve",
        b":env:",
        b"%3A",
        b"%25",
        b"A",
        b"_B",
        b"\n",
        b": ",
        b"Basic ",
        b"?",
        b"openshell:resolve:env:A",
    ];
    let vault = vault();
    let origin = Origin {
        scheme: Scheme::Https,
        target: Target {
            host: Host::parse("web.test").unwrap(),
            port: 443,
        },
    };
    fuzz("rewriting", &samples, &words, |input| {
        let mut lines = input.split(|byte| *byte == b'\n');
        let Ok(uri) = Uri::try_from(lines.next().unwrap()) else {
            return;
        };
        if let Some(shown) = redacted(uri.path()) {
            assert!(
                find(shown.as_bytes(), Coding::Percent).is_empty(),
                "{shown}"
            );
        }
        let mut request = Request::new(());
        *request.uri_mut() = RequestTarget::as_written(&uri).to_uri().unwrap();
        for line in lines {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else {
                continue;
            };
            let name = HeaderName::from_bytes(&line[..colon]);
            let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
            if let (Ok(name), Ok(value)) = (name, value) {
                request.headers_mut().append(name, value);
            }
        }
        let asked = request.clone();
        let Ok(released) = inject(request, &origin, &vault, false) else {
            return;
        };
        let used: Vec<_> = released
            .used()
            .iter()
            .map(|credential| credential.name().to_owned())
            .collect();
        let sent = released.into_request();
        let texts = |request: &Request<()>| {
            let names = request
                .headers()
                .iter()
                .map(|(name, value)| [name.as_str().as_bytes(), b":", value.as_bytes()].concat());
            let uri = request.uri();
            names
                .chain([
                    uri.path().as_bytes().to_vec(),
                    uri.query().unwrap_or_default().as_bytes().to_vec(),
                ])
                .collect::<Vec<_>>()
        };
        for text in texts(&sent) {
            // A token that only differs from a marker in its first bits is none.
            let token = text
                .strip_prefix(b"authorization:Basic ")
                .and_then(|token| STANDARD.decode(token).ok());
            let mut text = token.unwrap_or(text).escape_ascii().to_string();
            // A secret may complete a marker with the text before it. Refusing that would reveal
            // how the secret begins.
            for (_, secret) in SECRETS {
                text = text.replace(secret, "\n");
            }
            assert!(!is_hidden_in(text.as_bytes()), "{text}");
        }
        let was_asked = texts(&asked).iter().any(|text| is_hidden_in(text));
        assert_eq!(was_asked, !used.is_empty(), "{used:?}");
        if used.is_empty() {
            assert_eq!((sent.uri(), sent.headers()), (asked.uri(), asked.headers()));
        } else {
            assert!(texts(&asked).concat().len() >= MARKER.len());
        }
    });
}

#[test]
fn fuzzed_answers_are_masked_however_they_are_cut() {
    let samples: [&[u8]; 4] = [
        b"plain <first> text",
        b"%second/%25second%2F%25second%2f",
        b"aabaabaabaa x",
        b"PGZpcnN0Pg== JXNlY29uZC8",
    ];
    let words: [&[u8]; 8] = [
        b"<first>",
        b"<fir",
        b"st>",
        b"aabaa",
        b"aab",
        b"aa",
        b"x",
        b"%second/",
    ];
    let vault = vault();
    let credentials = || {
        SECRETS
            .iter()
            .map(|(name, _)| Arc::clone(vault.get(name).unwrap()))
            .collect()
    };
    let mut random = Random::default();
    fuzz("masking", &samples, &words, |input| {
        let whole = Scrubber::new(credentials())
            .whole(input)
            .unwrap_or_else(|| input.to_vec());
        let mut scrubber = Scrubber::new(credentials());
        let mut rest = input;
        let mut passed = Vec::new();
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(random.below(rest.len()) + 1);
            passed.extend(scrubber.push(Bytes::copy_from_slice(part)).0);
            rest = behind;
        }
        passed.extend(scrubber.finish());
        // Lines do not wait for what follows, so of a secret in several the first may have left.
        let has_lines = input
            .iter()
            .any(|byte| matches!(byte, b'\n' | b'\r' | b'\\'));
        if !has_lines {
            assert_eq!(
                passed.escape_ascii().to_string(),
                whole.escape_ascii().to_string()
            );
        }
        for (_, secret) in SECRETS {
            assert!(
                !passed
                    .windows(secret.len())
                    .any(|part| part == secret.as_bytes())
            );
        }
    });
}

/// The first record of a TLS 1.2 or 1.3 client, with SNI and ALPN.
fn client_hello(version: u8) -> Vec<u8> {
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_be_bytes();
    let mut extensions = b"\x00\x00\x00\x0d\x00\x0b\x00\x00\x08web.test".to_vec();
    extensions.extend(b"\x00\x0a\x00\x04\x00\x02\x00\x1d\x00\x0d\x00\x04\x00\x02\x04\x03");
    extensions.extend(b"\x00\x10\x00\x0b\x00\x09\x08http/1.1");
    extensions.extend([0, 0x2b, 0, 3, 2, 3, version]);
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend(b"\x00\x00\x04\x13\x01\xc0\x2b\x01\x00");
    body.extend(length(&extensions));
    body.extend(extensions);
    let mut handshake = vec![1, 0];
    handshake.extend(length(&body));
    handshake.extend(body);
    let mut record = vec![0x16, 3, 1];
    record.extend(length(&handshake));
    record.extend(handshake);
    record
}

#[test]
fn fuzzed_client_hellos_leave_the_authority_as_it_is() {
    let one = client_hello(4);
    let other = client_hello(3);
    let words: [&[u8]; 5] = [
        b"\x00",
        b"\xff\xff",
        b"\x16\x03\x01\x00\x05",
        b"web.test",
        b"\x01\x00\x00",
    ];
    let authority = Authority::create().unwrap();
    let host = Host::parse("web.test").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    fuzz("ClientHello", &[&one, &other], &words, |input| {
        runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(64 * 1024);
            client.write_all(input).await.unwrap();
            client.shutdown().await.unwrap();
            // The client has closed, so every handshake fails.
            let Ok(hello) = read_client_hello(server).await else {
                return;
            };
            assert!(hello.terminate(&authority, &host, true, "").await.is_err());
        });
    });
}

#[test]
fn fuzzed_messages_are_masked_and_leave_when_they_are_whole() {
    let message =
        |text: &[u8]| [&[0, 0, 0, 0, u8::try_from(text.len()).unwrap()][..], text].concat();
    let plain = message(b"plain text");
    let secret = message(b"a <first> b");
    let samples: [&[u8]; 5] = [
        &plain,
        &secret,
        b"\x00\x00\x00\x00\x00",
        b"\x01\xff\xff\xff\xff<first>",
        b"\x00\x00\x00\x00\x03aabaa",
    ];
    let words: [&[u8]; 6] = [
        b"<first>",
        b"aabaa",
        b"\x00\x00\x00\x00",
        b"\x00",
        b"aab",
        &plain,
    ];
    let vault = vault();
    let credentials = || {
        SECRETS
            .iter()
            .map(|(name, _)| Arc::clone(vault.get(name).unwrap()))
            .collect()
    };
    let mut random = Random::default();
    fuzz("masking of messages", &samples, &words, |input| {
        let whole = Scrubber::new(credentials())
            .whole(input)
            .unwrap_or_else(|| input.to_vec());
        let mut scrubber = Scrubber::of_messages(credentials());
        let mut rest = input;
        let mut passed = Vec::new();
        // Ends of the messages, if the input holds any.
        let mut ends = Vec::new();
        let mut at = 0;
        while let Some(length) = input.get(at + 1..at + 5).filter(|_| input[at] <= 1) {
            at += 5 + u32::from_be_bytes(length.try_into().unwrap()) as usize;
            ends.push(at);
        }
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(random.below(rest.len()) + 1);
            passed.extend(scrubber.push(Bytes::copy_from_slice(part)).0);
            rest = behind;
            let came = input.len() - rest.len();
            // After an invalid message no further ones are expected.
            let are_messages = input[..came].get(at).is_none_or(|flags| *flags <= 1);
            let ended = ends.iter().rev().find(|end| are_messages && **end <= came);
            assert!(
                ended.is_none_or(|end| passed.len() >= *end),
                "{ends:?}: {} of {came}",
                passed.len()
            );
        }
        passed.extend(scrubber.finish());
        assert_eq!(passed.len(), whole.len());
        // A secret cannot span two messages: the prefix between them holds a byte that no secret
        // has.
        if ends.last().is_some_and(|end| *end == input.len())
            && SECRETS.iter().all(|(_, secret)| !secret.contains('\0'))
        {
            let leaks = |text: &[u8]| {
                SECRETS.iter().any(|(_, secret)| {
                    text.windows(secret.len())
                        .any(|part| part == secret.as_bytes())
                })
            };
            let mut start = 0;
            for end in ends {
                assert!(!leaks(&passed[start + 5..end]), "{}", passed.escape_ascii());
                start = end;
            }
        }
    });
}

#[test]
fn fuzzed_bodies_have_the_model_of_their_route_or_are_refused() {
    let samples: [&[u8]; 6] = [
        br#"{"mod\u0065Cl":"a", "x":{"y":[1,2.5e372,null,true]}}"#,
        br#"{"model":"any","messages":[{"role":"user","content":"hi"}]}"#,
        br#"{"messages":[{"model":"x"}],"model": "any","stream":true}"#,
        br#"{"model":"a","model":"b"}"#,
        br#"{}"#,
        br#"{"mod\u0065l":"a", "x":{"y":[1,2.5e3,null,true]}}"#,
    ];
    let words: [&[u8]; 10] = [
        b"\"model\"",
        b":",
        b"{",
        b"}",
        b"[",
        b"\"",
        b"\\",
        b"mod\\u0065l",
        b",",
        b"null",
    ];
    fuzz("models", &samples, &words, |input| {
        let Ok(written) = with_model(Bytes::copy_from_slice(input), "gpt-x") else {
            return;
        };
        // Values as text, since a number may be too large for any type.
        type Object<'i> = BTreeMap<String, &'i RawValue>;
        let texts = |object: Object<'_>| {
            object
                .into_iter()
                .map(|(key, value)| (key, value.get().to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        let expected =
            serde_json::from_slice::<Object<'_>>(input).expect("only an object is rewritten");
        let mut expected = texts(expected);
        let model = r#""gpt-x""#.to_owned();
        for (_, value) in expected
            .iter_mut()
            .filter(|(key, _)| key.eq_ignore_ascii_case("model"))
        {
            value.clone_from(&model);
        }
        expected.insert("model".to_owned(), model);
        assert_eq!(texts(serde_json::from_slice(&written).unwrap()), expected);
    });
}

#[test]
fn fuzzed_answers_tell_their_tokens_however_they_are_cut() {
    let samples: [&[u8]; 4] = [
        br#"{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":22}}"#,
        b"data: {\"usage\":{\"input_tokens\":1,\"output_tokens\":2}}\n\ndata: [DONE]\n\n",
        br#"{"usage":{"input_tokens":18446744073709551616,"output_tokens":-1}}"#,
        br#"{"usage" : {"usage":{}}}"#,
    ];
    let words: [&[u8]; 6] = [
        b"\"usage\"",
        b":",
        b"{",
        b"}",
        b"\"input_tokens\"",
        b"99999999999999999999",
    ];
    let mut random = Random::default();
    fuzz("usage", &samples, &words, |input| {
        let mut whole = Meter::default();
        let mut cut = Meter::default();
        let mut rest = input;
        whole.read(input);
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(random.below(rest.len()) + 1);
            cut.read(part);
            rest = behind;
        }
        assert_eq!(cut.usage(), whole.usage());
    });
}

/// An audit that ignores its events.
#[derive(Debug)]
struct Unreported;

impl Audit for Unreported {
    fn event(&self, _: &Event<'_>) {}
}

#[test]
fn fuzzed_doors_lead_where_they_say() {
    let samples: [&[u8]; 7] = [
        b"web.test:443",
        b"[2001:db8::1]:8443",
        b"http://web.test/x?y",
        b"https://10.99.0.1:8443/",
        b"http://user@web.test/",
        b"WEB.test.:080",
        b"*",
    ];
    let words: [&[u8]; 10] = [
        b":", b"@", b"[", b"]", b".", b"http://", b"0", b"65536", b"%", b"::",
    ];
    let audit: Arc<dyn Audit> = Arc::new(Unreported);
    fuzz("doors", &samples, &words, |input| {
        let Ok(uri) = Uri::try_from(input) else {
            return;
        };
        let request = |method: Method| {
            Request::builder()
                .method(method)
                .uri(uri.clone())
                .body(())
                .unwrap()
        };
        let found = [
            ingress::connect::intake(&audit, None, &request(Method::CONNECT)).1,
            ingress::forward::intake(&audit, None, &request(Method::GET))
                .1
                .map(|origin| origin.target),
        ];
        for target in found.into_iter().flatten() {
            assert_ne!(target.port, 0);
            let again = Request::builder()
                .method(Method::CONNECT)
                .uri(target.to_string())
                .body(())
                .unwrap();
            assert_eq!(
                ingress::connect::intake(&audit, None, &again).1.unwrap(),
                target
            );
        }
    });
}

#[test]
fn fuzzed_questions_for_names_are_answered_in_a_datagram_or_not_at_all() {
    let question = |name: &[u8], kind: u16, more: &[u8]| {
        [
            b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01",
            name,
            &kind.to_be_bytes(),
            b"\x00\x01",
            more,
        ]
        .concat()
    };
    let options = b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00";
    let samples = [
        question(b"\x02db\x04test\x00", 1, options),
        question(
            b"\x011\x010\x0218\x03198\x07in-addr\x04arpa\x00",
            12,
            options,
        ),
        question(b"\x05_mysq\x04_tcp\x02db\x04test\x00", 33, options),
        question(b"\xc0\x0c", 28, b""),
    ];
    let samples: Vec<_> = samples.iter().map(Vec::as_slice).collect();
    let words: [&[u8]; 6] = [
        b"\xc0\x0c",
        b"\x3f",
        b"\x00\x00\x29",
        b"\xff\xff",
        b"\x04test\x00",
        b"\x00",
    ];
    fuzz(
        "question for a name",
        &samples,
        &words,
        |bytes| match message::read(bytes) {
            Read::Ignored => {}
            Read::Invalid(answer) => assert_eq!(answer[..2], bytes[..2]),
            Read::Question(question) => {
                let _ = (
                    question.host_name(),
                    question.address(),
                    question.is_reverse(),
                    question.kind(),
                );
                for answer in [
                    Answer::NoData,
                    Answer::NoSuchName,
                    Answer::Address(std::net::Ipv4Addr::LOCALHOST.into()),
                ] {
                    let datagram = question.datagram(answer.clone());
                    assert!(
                        datagram.len() <= 1232 && datagram[..2] == bytes[..2],
                        "{} bytes",
                        datagram.len()
                    );
                    assert!(
                        matches!(message::read(&datagram), Read::Ignored),
                        "an answer is no question"
                    );
                }
            }
        },
    );
}

/// Copies a value with the functions that look values up.
fn copied(json: Json<'_>) -> serde_json::Value {
    if json.is_object() {
        let entries = json.entries();
        return entries
            .map(|(key, value)| (key.into_owned(), copied(value)))
            .collect();
    }
    if json.is_array() {
        return json.items().map(copied).collect();
    }
    if let Some(text) = json.text() {
        return text.into();
    }
    json.number().map_or_else(
        || json.boolean().map_or(serde_json::Value::Null, Into::into),
        |number| serde_json::from_str(number).unwrap(),
    )
}

#[test]
fn fuzzed_json_that_has_no_fault_is_what_another_reader_reads() {
    let samples: [&[u8]; 4] = [
        br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x","arguments":{"a":[1,2.5e-3,null,true]}}}"#,
        br#"[{"a\u0062":"\ud83d\ude00"}, [], {}, [[-0]], "x"]"#,
        b" 12345678901234567890 ",
        "\"\u{e9}\u{fffd}\u{17f}\\\\\\\"\"".as_bytes(),
    ];
    let words: [&[u8]; 12] = [
        b"\\u",
        b"\\ud83d",
        b"\"",
        b"{",
        b"}",
        b"[",
        b",",
        b":",
        b"1e9",
        b"\\",
        b"\"a\":",
        b"\xef\xbb\xbf",
    ];
    fuzz("strict JSON", &samples, &words, |bytes| {
        let other = serde_json::from_slice::<serde_json::Value>(bytes);
        match (Json::read(bytes), other) {
            (Ok(json), Ok(other)) => assert_eq!(copied(json), other),
            (Ok(_), Err(error)) => {
                assert!(
                    error.to_string().starts_with("number out of range"),
                    "{error}"
                );
            }
            (Err(_), _) => {}
        }
    });
}
