use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use openshell_policy::credential::{Binding, BoundHost, CredentialName};
use openshell_policy::issuers::Issuers;
use openshell_policy::network::host::Host;
use openshell_policy::secret::Secret;

use super::detector::{LeakDetector, LeakMode};
use super::scan::Scan;
use crate::credentials::vault::{Credential, Vault};
use crate::secrets::needles::{Kind, Needles, Value, has_secret};

/// Joins the parts of a secret. The whole secret stands nowhere in this file, so that scanners of
/// repositories do not report it.
fn secret(parts: &[&str]) -> String {
    parts.concat()
}

const LETTERS: &str = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0";

/// Returns one secret of each shape, with its issuer.
fn samples() -> Vec<(String, &'static str)> {
    let upper = LETTERS.to_ascii_uppercase();
    vec![
        (secret(&["sk-", "ant-api03-", LETTERS]), "Anthropic"),
        (secret(&["sk-", "or-v1-", LETTERS]), "OpenRouter"),
        (secret(&["sk-", LETTERS]), "OpenAI"),
        (secret(&["sk-", "proj-", LETTERS, "_-", LETTERS]), "OpenAI"),
        (secret(&["gh", "p_", &LETTERS[..36]]), "GitHub"),
        (secret(&["gh", "o_", &LETTERS[..36]]), "GitHub"),
        (secret(&["gh", "s_", &LETTERS[..36]]), "GitHub"),
        (
            secret(&["github", "_pat_", LETTERS, "_", LETTERS]),
            "GitHub",
        ),
        (secret(&["AI", "za", &LETTERS[..35]]), "Google"),
        (
            secret(&["xo", "xb-1234567890-1234567890-", &LETTERS[..24]]),
            "Slack",
        ),
        (secret(&["xa", "pp-1-A0123-456-", LETTERS]), "Slack"),
        (
            secret(&["12345678", "90:A", "A", &LETTERS[..33]]),
            "Telegram",
        ),
        (
            secret(&["MTE4", &LETTERS[..20], ".Gabc12.", &LETTERS[..38]]),
            "Discord",
        ),
        (secret(&["BS", "A", &LETTERS[..28]]), "Brave Search"),
        (
            secret(&["AK", "IA", &upper[..16], "\nsecret = ", LETTERS]),
            "AWS",
        ),
        (secret(&["np", "m_", &LETTERS[..36]]), "npm"),
        (
            secret(&["py", "pi-AgEIcHlwaS5vcmc", LETTERS, LETTERS]),
            "PyPI",
        ),
        (
            secret(&["-----BEGIN", " RSA PRIVATE KEY-----\n", LETTERS]),
            "private keys",
        ),
    ]
}

fn needles() -> Arc<Needles> {
    let binding = |hosts: &[&str]| Binding {
        hosts: Some(
            hosts
                .iter()
                .map(|host| BoundHost::parse(host).unwrap())
                .collect(),
        ),
        path: None,
    };
    let pem = [
        "-----BEGIN X-----",
        &"line+of/the=key".repeat(4),
        &"another+line/of=it".repeat(4),
        "-----END X-----",
    ];
    let values = [
        (
            "VALUE",
            b"s3cret/Value+42=".to_vec(),
            binding(&["home.test"]),
        ),
        (
            "LONG",
            [
                b"begins as others do, ".repeat(20),
                b"and ends in a way of its own: 0xfeed".to_vec(),
            ]
            .concat(),
            binding(&[]),
        ),
        ("LINES", pem.join("\n").into_bytes(), binding(&[])),
        ("SHORT", b"1".to_vec(), binding(&[])),
    ];
    let values = values.map(|(name, value, binding)| (name, Secret::new(value), binding));
    let values = values.iter().map(|(name, secret, binding)| Value {
        name,
        secret,
        home: binding.hosts.as_deref(),
        kind: Kind::Credential,
    });
    Arc::new(Needles::new(Issuers::known().into_shapes(), values))
}

/// Returns the names of the secrets found in a text that comes in `parts`.
fn found(needles: &Arc<Needles>, parts: &[&[u8]]) -> Vec<String> {
    let mut scan = Scan::new(Arc::clone(needles));
    let mut found = Vec::new();
    for part in parts {
        scan.push(part, |secret| found.push(secret));
    }
    scan.finish(|secret| found.push(secret));
    let mut names: Vec<_> = found
        .into_iter()
        .map(|secret| needles.secret(secret).unwrap().name.clone())
        .collect();
    names.sort();
    names.dedup();
    names
}

fn hex(text: &str, upper: bool) -> String {
    text.bytes()
        .map(|byte| {
            if upper {
                format!("{byte:02X}")
            } else {
                format!("{byte:02x}")
            }
        })
        .collect()
}

fn percent(text: &str, is_kept: fn(u8) -> bool) -> String {
    let escaped = |byte: u8| {
        if is_kept(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(escaped).collect()
}

/// Returns `text` in every encoding that is searched for. The first is the text itself.
fn encodings(text: &str) -> Vec<String> {
    let mut all = vec![
        text.to_owned(),
        percent(text, |byte| byte.is_ascii_alphanumeric()),
        percent(text, |byte| {
            byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
        }),
        percent(text, |byte| byte.is_ascii_alphanumeric())
            .replace("%2D", "%2d")
            .replace("%5F", "%5f"),
        hex(text, true),
        hex(text, false),
    ];
    for before in ["", ":", "u:", "x", "xy"] {
        let whole = format!("{before}{text}, and more");
        all.extend([STANDARD.encode(&whole), URL_SAFE_NO_PAD.encode(&whole)]);
    }
    all
}

#[test]
fn secrets_of_every_shape_and_value_are_found_in_every_encoding() {
    let needles = needles();
    let values = [
        "s3cret/Value+42=",
        "and ends in a way of its own: 0xfeed",
        "another+line/of=itanother+line/of=it",
    ];
    let values = values.into_iter().zip(["VALUE", "LONG", "LINES"]);
    for (text, name) in samples()
        .into_iter()
        .chain(values.map(|(text, name)| (text.to_owned(), name)))
    {
        for encoded in encodings(&text) {
            for around in [
                ("", ""),
                ("{\"key\": \"", "\"}"),
                ("a=b&key=", "&c=d"),
                ("export KEY='", "'\n"),
            ] {
                let text = format!("{}{encoded}{}", around.0, around.1);
                let names = found(&needles, &[text.as_bytes()]);
                assert!(
                    names.iter().any(|found| found == name),
                    "{name}: {text}: {names:?}"
                );
            }
        }
    }
}

#[test]
fn secrets_are_found_behind_escapes_in_lines_and_in_paths() {
    let needles = needles();
    let samples = samples();
    let of = |wanted: &str| {
        samples
            .iter()
            .find(|(_, name)| *name == wanted)
            .unwrap()
            .0
            .clone()
    };
    let github = of("GitHub");
    let telegram = of("Telegram");
    let google = of("Google");
    let pem = of("private keys");
    for (text, name) in [
        (format!("/bot{telegram}/sendMessage"), "Telegram"),
        (format!("/k/{google}/x"), "Google"),
        (format!("{{\"a\": \"key\\u003d{github}\"}}"), "GitHub"),
        (format!("\x1b[32m{github}\x1b[0m"), "GitHub"),
        (format!("{{\"a\": \"\\u001b[1;32m{github}\"}}"), "GitHub"),
        (
            lines(
                &STANDARD.encode(format!("a line before, and then {github} and more")),
                76,
                "\n",
            ),
            "GitHub",
        ),
        (
            lines(
                &hex(&format!("a line before, and then {github}"), false),
                60,
                "\n",
            ),
            "GitHub",
        ),
        (
            format!(
                "a=b&key={}",
                percent(&pem, |byte| byte.is_ascii_alphanumeric()
                    || b" -".contains(&byte))
                .replace(' ', "+")
            ),
            "private keys",
        ),
        (
            format!(
                "path={}",
                percent("s3cret/Value+42=", |byte| byte.is_ascii_alphanumeric()
                    || byte == b'/')
            ),
            "VALUE",
        ),
    ] {
        assert_eq!(found(&needles, &[text.as_bytes()]), [name], "{text}");
    }
    assert!(
        has_secret(&format!("/bot{telegram}/x"))
            && has_secret("/a/gh%70_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8")
    );
    assert!(!has_secret("/repos/a/b?page=2"));
}

#[test]
fn a_secret_is_found_wherever_it_is_cut() {
    let needles = needles();
    let samples = samples();
    let texts: Vec<_> = ["Anthropic", "Telegram", "AWS", "Discord"]
        .iter()
        .map(|wanted| {
            samples
                .iter()
                .find(|(_, name)| name == wanted)
                .unwrap()
                .clone()
        })
        .chain([("s3cret/Value+42=".to_owned(), "VALUE")])
        .collect();
    for (text, name) in texts {
        for encoded in encodings(&text) {
            let text = format!("some text before, {encoded}, and some after");
            let bytes = text.as_bytes();
            for cut in 0..=bytes.len() {
                let names = found(&needles, &[&bytes[..cut], &bytes[cut..]]);
                assert!(
                    names.iter().any(|found| found == name),
                    "{name}: {text} cut at {cut}"
                );
            }
            let single: Vec<_> = bytes.chunks(1).collect();
            assert!(
                found(&needles, &single).iter().any(|found| found == name),
                "{name}: {text} byte by byte"
            );
            for filler in [1_000, 1_024, 5_000, 70_000] {
                let long = [vec![b' '; filler], bytes.to_vec(), vec![b' '; filler]].concat();
                for size in [700, 1_025, 16_384] {
                    let parts: Vec<_> = long.chunks(size).collect();
                    assert!(
                        found(&needles, &parts).iter().any(|found| found == name),
                        "{name}: {filler} by {size}"
                    );
                }
            }
        }
    }
}

/// Breaks `text` into lines.
fn lines(text: &str, length: usize, end: &str) -> String {
    text.as_bytes()
        .chunks(length)
        .flat_map(|line| [std::str::from_utf8(line).unwrap(), end])
        .collect()
}

#[test]
fn secrets_are_found_wherever_an_encoded_line_ends_within_them() {
    let needles = needles();
    let values = [
        ("s3cret/Value+42=".to_owned(), "VALUE"),
        ("and ends in a way of its own: 0xfeed".to_owned(), "LONG"),
    ];
    for (secret, name) in samples().into_iter().chain(values) {
        for before in (0..60).step_by(4) {
            let text = format!(
                "{} {secret}\nand more that follows it, a line or two.\n",
                &"padding ".repeat(8)[..before]
            );
            for encoded in [
                STANDARD.encode(&text),
                URL_SAFE_NO_PAD.encode(&text),
                hex(&text, true),
                hex(&text, false),
            ] {
                for (length, end) in [(76, "\n"), (64, "\r\n"), (60, "%0A"), (76, "\\n")] {
                    let text = lines(&encoded, length, end);
                    let parts: Vec<_> = text.as_bytes().chunks(50).collect();
                    for parts in [&[text.as_bytes()], parts.as_slice()] {
                        let names = found(&needles, parts);
                        assert!(
                            names.iter().any(|found| found == name),
                            "{name} after {before}: {parts:?}: {names:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Returns a Discord token.
fn token_of_parts() -> String {
    samples()
        .into_iter()
        .find(|(_, name)| *name == "Discord")
        .unwrap()
        .0
}

#[test]
fn a_token_of_parts_is_found_within_a_long_encoded_text() {
    let needles = needles();
    for before in [3_000, 3_001, 3_002] {
        let text = format!(
            "{}\n{{\"token\": \"{}\"}}\n{}",
            &"a line. ".repeat(400)[..before],
            token_of_parts(),
            "and more ".repeat(400)
        );
        let encoded = [
            STANDARD.encode(&text),
            URL_SAFE_NO_PAD.encode(&text),
            hex(&text, true),
            hex(&text, false),
        ];
        for encoded in encoded {
            let place = encoded.len() * (before + 13) / text.len();
            for size in [90, 700, 1_025, 16_384] {
                let parts: Vec<_> = encoded.as_bytes().chunks(size).collect();
                assert_eq!(found(&needles, &parts), ["Discord"], "{before} by {size}");
            }
            for cut in (place - 10..place + 160).step_by(3) {
                let (one, other) = encoded.as_bytes().split_at(cut);
                assert_eq!(
                    found(&needles, &[one, other]),
                    ["Discord"],
                    "{before} cut at {cut}"
                );
            }
        }
    }
}

#[test]
fn a_token_of_parts_is_found_in_encoded_lines_behind_paths_and_among_other_letters() {
    let needles = needles();
    let token = token_of_parts();
    for before in [
        "",
        "# Токен бота\nT=",
        "日本語 = ",
        "a longer text that stands before it: ",
        "0\u{1}\u{2}\u{0}\u{3}:",
    ] {
        let text = format!("{before}{token}\n");
        for encoded in [
            STANDARD.encode(&text),
            URL_SAFE_NO_PAD.encode(&text),
            hex(&text, true),
            hex(&text, false),
        ] {
            for prefix in [
                "",
                "/w/",
                "key-",
                "x:\\n",
                "d=%7B%22t%22%3A%22",
                "/repos/a-b/c_d/contents/",
                "0x",
            ] {
                assert_eq!(
                    found(&needles, &[format!("{prefix}{encoded}").as_bytes()]),
                    ["Discord"],
                    "{prefix}{encoded}"
                );
            }
            for (length, end) in [
                (60, "\n"),
                (60, "%0A"),
                (64, "\\n"),
                (76, "\r\n"),
                (76, "%0d%0a"),
                (76, "\\r\\n"),
            ] {
                let text = lines(&encoded, length, end);
                let found_in =
                    |parts: &[&[u8]]| assert_eq!(found(&needles, parts), ["Discord"], "{parts:?}");
                found_in(&[text.as_bytes()]);
                for cut in (0..text.len()).step_by(7) {
                    let (one, other) = text.as_bytes().split_at(cut);
                    found_in(&[one, other]);
                    found_in(&[one, other, &[b' '; 2_000]]);
                }
            }
        }
    }
    let escaped = percent(&token, |byte| byte.is_ascii_alphanumeric());
    for filler in 1_000..1_100 {
        let text = [
            vec![b' '; filler],
            escaped.clone().into_bytes(),
            vec![b' '; 3_000],
        ]
        .concat();
        let parts: Vec<_> = text.chunks(1_025).collect();
        assert_eq!(found(&needles, &parts), ["Discord"], "{filler}");
    }
}

#[test]
fn the_bytes_that_may_begin_a_secret_are_told_until_it_is_complete() {
    let needles = needles();
    for (text, _) in samples()
        .into_iter()
        .filter(|(_, name)| ["Anthropic", "GitHub", "private keys"].contains(name))
    {
        let mut scan = Scan::new(Arc::clone(&needles));
        scan.push(b"before ", |_| panic!("nothing is there"));
        for (index, byte) in text.bytes().enumerate() {
            let mut is_found = false;
            scan.push(&[byte], |_| is_found = true);
            if is_found {
                break;
            }
            assert!(
                index < 3 || scan.undecided() > index,
                "{text} after {index}"
            );
        }
    }
    // A token of parts is recognized by its dots; if it is encoded, by what it decodes to.
    for (shown, text) in [
        (24, token_of_parts()),
        (36, STANDARD.encode(token_of_parts())),
        (36, hex(&token_of_parts(), false)),
    ] {
        for before in ["before ", "key=", "x"] {
            let mut scan = Scan::new(Arc::clone(&needles));
            scan.push(before.as_bytes(), |_| panic!("nothing is there"));
            for (index, byte) in text.bytes().enumerate() {
                let mut is_found = false;
                scan.push(&[byte], |_| is_found = true);
                if is_found || (shown == 24 && before == "x") {
                    break;
                }
                assert!(
                    index < shown || scan.undecided() > 0,
                    "{before}{text} after {index}"
                );
            }
        }
    }
    let mut scan = Scan::new(needles);
    scan.push(b"an ordinary line of text\n", |_| ());
    assert_eq!(scan.undecided(), 0);
}

#[test]
fn how_much_may_begin_a_secret_tells_nothing_of_a_value() {
    let with = needles();
    let without = Arc::new(Needles::new(
        Issuers::known().into_shapes(),
        std::iter::empty(),
    ));
    for encoded in encodings("s3cret/Value+42=") {
        for end in 0..encoded.len() {
            let undecided = |needles: &Arc<Needles>| {
                let mut scan = Scan::new(Arc::clone(needles));
                scan.push(&encoded.as_bytes()[..end], |_| ());
                scan.undecided()
            };
            assert_eq!(undecided(&with), undecided(&without), "{}", &encoded[..end]);
        }
    }
}

#[test]
fn keys_with_headers_in_json_and_without_a_digit_are_found() {
    let needles = needles();
    let begin = secret(&["-----BEGIN", " RSA PRIVATE KEY-----"]);
    let upper = "ABCDEFGHIJKLMNOP";
    for (text, name) in [
        (
            format!(
                "{begin}\nProc-Type: 4,ENCRYPTED\nDEK-Info: \
                 DES-EDE3-CBC,0123456789ABCDEF\n\n{LETTERS}"
            ),
            "private keys",
        ),
        (
            format!("{{\"key\": \"{begin}\\n{LETTERS}\\n\"}}"),
            "private keys",
        ),
        (secret(&["AK", "IA", upper, "\nsecret = ", LETTERS]), "AWS"),
    ] {
        assert_eq!(found(&needles, &[text.as_bytes()]), [name], "{text}");
    }
}

#[test]
fn what_only_looks_like_a_secret_is_none() {
    let needles = needles();
    let digits = "0".repeat(60);
    for text in [
        "task-0123456789abcdefghijklmnopqrstuvwxyz0123456789",
        "https://news.test/sk-SK/2024/the-longest-headline-of-all-that-was-ever-written-in-2024",
        "sk-learn-0-24-2-documentation-of-the-next-release-candidate",
        "class=\"sk-spinner-0123456789-abcdefghijklmnopqrstuvwxyz\"",
        "the shape ghp_ and 36 letters; ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "-----BEGIN CERTIFICATE-----\nMIIEvQIBADAN",
        "-----BEGIN PUBLIC KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
        "AKIAIOSFODNN7EXAMPLE and nothing beside it",
        "AKIAIOSFODNN7EXAMPLE in the commit 0123456789abcdef0123456789abcdef01234567",
        "if text.starts_with(\"-----BEGIN PRIVATE KEY-----\") { return \
         parse_the_key(text.trim_start().lines().skip(1)) }",
        "-----BEGIN RSA PRIVATE KEY-----\\n...\\n-----END RSA PRIVATE KEY-----\\n",
        "gsk_gl_shader_args_builder_set_vec3_and_vec4, \
         hf_hub_download_with_retries_v2_of_many_parts",
        "sk_test_environment_number_2_labels, \
         pypi-publish-workflow-of-the-release-2024-guide-for-all",
        "version 1.2.3, MNO.abc123.x, eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.signature-of-the-token",
        "12:AAAAA, 123456789:AAA",
        "sha256-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        &digits,
    ] {
        let names = found(&needles, &[text.as_bytes()]);
        assert!(names.is_empty(), "{text}: {names:?}");
    }
}

/// Returns bytes that are as good as random (Marsaglia's xorshift).
fn random(length: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next)
        .flatten()
        .take(length)
        .collect()
}

#[test]
fn images_packs_and_indexes_hold_no_secrets() {
    let needles = needles();
    let random = random(6 * 1024 * 1024);
    let base64 = STANDARD.encode(&random);
    let lines: Vec<_> = base64
        .as_bytes()
        .chunks(76)
        .flat_map(|line| [line, b"\n"])
        .collect();
    let index: String = random
        .chunks(32)
        .take(20_000)
        .enumerate()
        .map(|(number, hash)| {
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("<a \
                     href=\"../../packages/{number}/package-{number}.whl#sha256={hash}\">package_{number}-py3-none-any.whl</a>\n")
        })
        .collect();
    let lock: String = random
        .chunks(64)
        .take(20_000)
        .map(|hash| {
            format!(
                "\"integrity\": \"sha512-{}\", \"resolved\": \"https://a.test/x/-/x-1.2.3.tgz\",\n",
                STANDARD.encode(hash)
            )
        })
        .collect();
    let lines = lines.concat();
    let for_urls = URL_SAFE_NO_PAD.encode(&random);
    let texts: [(&str, &[u8]); 6] = [
        ("random bytes", &random),
        ("an image in Base64", base64.as_bytes()),
        ("an image in lines of Base64", &lines),
        ("an image for URLs", for_urls.as_bytes()),
        ("an index of packages", index.as_bytes()),
        ("a lock file", lock.as_bytes()),
    ];
    for (what, text) in texts {
        let parts: Vec<_> = text.chunks(16 * 1024).collect();
        let names = found(&needles, &parts);
        assert!(names.is_empty(), "{what}: {names:?}");
    }
}

#[test]
fn files_of_the_machine_hold_no_secrets_but_keys() {
    let needles = needles();
    let mut searched = 0;
    for folder in [
        "/usr/share/doc",
        "/usr/lib/python3/dist-packages",
        "/usr/include",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
    ] {
        let mut folders = vec![std::path::PathBuf::from(folder)];
        while let Some(folder) = folders.pop().filter(|_| searched < 64 * 1024 * 1024) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let kind = entry.file_type().unwrap();
                if kind.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
                    folders.push(path);
                } else if let Some(text) =
                    kind.is_file().then(|| std::fs::read(&path).ok()).flatten()
                {
                    searched += text.len();
                    let names = found(&needles, &[&text]);
                    let only_keys = names.iter().all(|name| name == "private keys");
                    assert!(only_keys, "{}: {names:?}", path.display());
                }
            }
        }
    }
    assert!(searched > 1024 * 1024);
}

#[test]
fn a_secret_is_at_home_with_its_issuer_and_where_it_is_bound() {
    let needles = needles();
    let goes = |text: &str, host: &str| {
        let mut scan = Scan::new(Arc::clone(&needles));
        let mut secrets = Vec::new();
        let host = Host::parse(host).unwrap();
        scan.push(text.as_bytes(), |secret| secrets.push(secret));
        scan.finish(|secret| secrets.push(secret));
        assert!(!secrets.is_empty(), "{text}");
        secrets
            .iter()
            .all(|secret| needles.secret(*secret).unwrap().home.includes_host(&host))
    };
    let github = &samples()[4].0;
    assert!(
        goes(github, "api.github.com") && !goes(github, "gitlab.com") && !goes(github, "evil.test")
    );
    assert!(goes("s3cret/Value+42=", "home.test") && !goes("s3cret/Value+42=", "web.test"));
    let npm = &samples()[15].0;
    assert!(
        !goes(npm, "web.test"),
        "what has no known home is at home nowhere"
    );
}

#[test]
fn tokens_of_the_gateway_are_known_by_their_signer_and_those_without_one_by_their_value() {
    let jwt = |header: &str, claims: &str| {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!(
            "{}.{}.{}",
            part(header),
            part(claims),
            part(&[LETTERS, claims, claims].concat())
        )
    };
    let known = |tokens: &[&str]| {
        let detector = LeakDetector::new(LeakMode::Report);
        let secrets: Vec<_> = tokens
            .iter()
            .map(|token| Arc::new(Secret::new(token.as_bytes().to_vec())))
            .collect();
        detector.know_tokens(&secrets, &[]);
        detector.needles(&Arc::default())
    };
    let signed = "{\"alg\":\"EdDSA\",\"typ\":\"JWT\",\"kid\":\"gateway-1\"}";
    let of_signer = known(&[&jwt(signed, "{\"sub\":\"sandbox-1\",\"exp\":1}")]);
    for encoded in encodings(&jwt(signed, "{\"sub\":\"another sandbox\",\"exp\":2}")) {
        assert_eq!(
            found(&of_signer, &[encoded.as_bytes()]),
            ["the gateway"],
            "{encoded}"
        );
        let single: Vec<_> = encoded.as_bytes().chunks(1).collect();
        assert_eq!(found(&of_signer, &single), ["the gateway"], "{encoded}");
    }
    let other = jwt(
        &signed.replace("gateway-1", "another"),
        "{\"sub\":\"somebody\"}",
    );
    assert!(found(&of_signer, &[other.as_bytes()]).is_empty());
    // Many tokens have headers like these.
    for usual in [
        "{\"alg\":\"HS256\",\"typ\":\"JWT\"}",
        "{\"alg\":\"RS256\",\"kid\":\"1\"}",
    ] {
        let tokens = [
            jwt(usual, "{\"sub\":\"sandbox-1\"}"),
            jwt(usual, "{\"sub\":\"sandbox-1\",\"exp\":2}"),
        ];
        let by_value = known(&[&tokens[0], &tokens[1]]);
        let is_found = |token: &str| !found(&by_value, &[token.as_bytes()]).is_empty();
        assert!(
            is_found(&tokens[0])
                && is_found(&tokens[1])
                && !is_found(&jwt(usual, "{\"sub\":\"somebody\"}"))
        );
    }
    // A platform also signs tokens of others.
    let detector = LeakDetector::new(LeakMode::Report);
    let platform = jwt(signed, "{\"sub\":\"sandbox-1\"}");
    detector.know_tokens(&[], &[Arc::new(Secret::new(platform.clone().into_bytes()))]);
    let needles = detector.needles(&Arc::default());
    assert!(
        found(&needles, &[platform.as_bytes()]) == ["the gateway"]
            && found(&needles, &[other.as_bytes()]).is_empty()
    );
}

#[test]
fn the_supervisors_own_secrets_are_no_words_and_no_credentials() {
    let secret = |text: &str| Arc::new(Secret::new(text.as_bytes().to_vec()));
    let detector = LeakDetector::new(LeakMode::Report);
    detector.know_tokens(
        &[
            secret("a-shared-Secret-of-2026"),
            secret("own-Secret-of-2026"),
        ],
        &[],
    );
    let keys = [
        "lm-studio",
        "not-needed-at-all-by-this-one",
        "route-key-0123456789",
    ];
    let keys = keys.map(|key| {
        Arc::new(Credential::of(
            "route r".to_owned(),
            Secret::new(key.as_bytes().to_vec()),
        ))
    });
    detector.know_keys(keys.iter());
    let name = CredentialName::parse("SHARED").unwrap();
    let binding = Binding {
        hosts: Some(vec![BoundHost::parse("home.test").unwrap()]),
        path: None,
    };
    let vault = Vault::new([(
        name,
        Secret::new(b"a-shared-Secret-of-2026".to_vec()),
        binding,
    )]);
    let needles = detector.needles(&Arc::new(vault));
    let text = "lm-studio not-needed-at-all-by-this-one a-shared-Secret-of-2026 own-Secret-of-2026 \
                route-key-0123456789";
    assert_eq!(
        found(&needles, &[text.as_bytes()]),
        ["SHARED", "route r", "the gateway"]
    );
}

#[test]
fn bytes_are_searched_in_one_pass_and_text_in_three() {
    let needles = Needles::new(Issuers::known().into_shapes(), std::iter::empty());
    assert_eq!(
        needles.passes(),
        3,
        "each costs a tenth of the speed of uploads"
    );
    let needles = self::needles();
    let mut bytes = random(64 * 1024);
    let token = &samples()[4].0;
    let base64 = STANDARD.encode(&samples()[4].0);
    bytes.splice(30_000..30_000, [b" ", token.as_bytes(), b" "].concat());
    assert_eq!(found(&needles, &[&bytes]), ["GitHub"]);
    // A text in which every letter has more than one byte is still a text.
    let cyrillic = "текст ".repeat(10_000);
    let text = [&cyrillic[..], &base64, &cyrillic].concat();
    let parts: Vec<_> = text.as_bytes().chunks(16_383).collect();
    assert_eq!(found(&needles, &parts), ["GitHub"]);
}
