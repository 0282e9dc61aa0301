use super::{Forms, Matcher, SecretSearch};

/// Returns `parts` in one, with each byte of what is found replaced by `*`.
fn masked(secret: &str, parts: &[&[u8]]) -> String {
    let forms = Forms::of(secret.as_bytes());
    let search = SecretSearch::new(std::iter::once(&forms));
    let mut matcher = Matcher::default();
    let mut at = 0;
    let mut text = parts.concat();
    let mut places = Vec::new();
    for part in parts {
        matcher.push(&search, part, at, |_, place| places.push(place));
        at += part.len();
    }
    for place in places {
        text[place].fill(b'*');
    }
    String::from_utf8(text).unwrap()
}

/// Checks that all of `form` is found and nothing beside it, wherever it is cut in three.
#[track_caller]
fn check(secret: &str, form: &str) {
    let text = format!("{{\"a\": \"{form}\", \"b\"}}");
    let expected = text.replace(form, &"*".repeat(form.len()));
    let text = text.as_bytes();
    for first in 0..=text.len() {
        for second in first..=text.len() {
            let parts = [&text[..first], &text[first..second], &text[second..]];
            assert_eq!(
                masked(secret, &parts),
                expected,
                "{form} cut at {first} and {second}"
            );
        }
    }
}

#[test]
fn a_secret_is_found_as_every_encoder_writes_it() {
    let secret = "aB3+/=\"'<&>:x";
    for form in [
        "aB3+/=\"'<&>:x",
        // .NET's and Java's encoders of JSON.
        r"aB3\u002B/=\u0022\u0027\u003C\u0026\u003E:x",
        r#"aB3+/\u003d\"\u0027\u003c\u0026\u003e:x"#,
        r#"aB3+\/=\"'<&>:x"#,
        r#"aB3\x2b\x2F\x3d\"\'\x3c\x26\x3E\x3ax"#,
        // Handlebars', PHP's, Python's and Go's of HTML.
        "aB3+&#x2F;&#x3D;&quot;&#x27;&lt;&amp;&gt;:x",
        "aB3+/=&quot;&#039;&lt;&amp;&gt;:x",
        "aB3&#43;/=&#34;&#39;&lt;&amp;&gt;:x",
        "aB3+/=&quot;&apos;&lt;&amp;&gt;:x",
        "aB3&plus;&sol;&equals;&quot;&apos;&LT;&AMP;&GT;&colon;x",
        "aB3&#x0002b;/&#061;&#X22;&#0039;&#60;&#38;&#62;&#58;x",
        // Percent-encoding in upper, lower and mixed case.
        "aB3%2B%2F%3D%22%27%3C%26%3E%3Ax",
        "aB3%2b/%3d%22'%3C%26%3e:x",
        "%61%42%33%2b%2F%3d%22%27%3C%26%3e%3A%78",
        r"\u0061\u0042\u0033\u002b\u002f\u003d\u0022\u0027\u003c\u0026\u003e\u003a\u0078",
    ] {
        check(secret, form);
    }
}

#[test]
fn characters_beyond_ascii_are_found_as_they_are_escaped() {
    for form in [
        "Zoë-🔑-pass",
        r"Zo\u00eb-\ud83d\udd11-pass",
        r"Zo\xeb-\uD83D\uDD11-pass",
        "Zo%C3%AB-%f0%9f%94%91-pass",
        "Zo&#235;-&#x1f511;-pass",
    ] {
        check("Zoë-🔑-pass", form);
    }
}

#[test]
fn a_secret_of_escapes_is_found_as_it_is_and_escaped() {
    for (secret, form) in [
        ("50%2Boff%", "50%2Boff%"),
        ("50%2Boff%", "50%252Boff%25"),
        (r"C:\new\u002b", r"C:\new\u002b"),
        (r"C:\new\u002b", r"C:\\new\\u002b"),
        ("a&lt;b&c", "a&lt;b&c"),
        ("a&lt;b&c", "a&amp;lt;b&amp;c"),
        ("two words", "two+words"),
        ("two words", "two%20words"),
    ] {
        check(secret, form);
    }
}

#[test]
fn base64_is_found_as_it_is_escaped() {
    let secret = "s3cret?>Value~~42/??>";
    let whole = "dXNlOnMzY3JldD8+VmFsdWV+fjQyLz8/Pg==";
    for form in [
        whole.to_owned(),
        whole.replace('/', r"\/"),
        whole.replace('+', r"\u002B").replace('/', r"\u002f"),
        whole
            .replace('+', "%2B")
            .replace('/', "%2f")
            .replace('=', "%3D"),
        whole
            .replace('+', "&#x2B;")
            .replace('/', "&#x2F;")
            .replace('=', "&#x3D;"),
    ] {
        for at in 0..=form.len() {
            let (one, other) = form.as_bytes().split_at(at);
            let masked = masked(secret, &[one, other]);
            // The first and the last character also hold bits of neighbouring bytes.
            let left: String = masked.chars().filter(|c| *c != '*').collect();
            assert!(
                left.len() <= form.len() - 26 && !left.contains("Y3Jl") && !left.contains("VmFs"),
                "{form} cut at {at}: {masked}"
            );
        }
    }
}

#[test]
fn a_secret_that_repeats_itself_takes_time_by_the_length_of_the_text() {
    let secret = "a".repeat(4096);
    let text = "%61".repeat(200_000);
    let masked = masked(&secret, &[text.as_bytes()]);
    assert!(masked.bytes().all(|byte| byte == b'*'));
}

#[test]
fn what_only_looks_like_an_escape_hides_nothing() {
    for (text, expected) in [
        ("%hunter2%", "%*******%"),
        ("%2hunter2", "%2*******"),
        ("&hunter2;", "&*******;"),
        (r"\uhunter2", r"\u*******"),
        (r"\ud83d\u0068unter2", r"\ud83d************"),
        ("&#x68;untehunter2", "&#x68;unte*******"),
        ("hunte%72hunter2", "hunte%72*******"),
        ("%%68unter2", "%*********"),
        ("&&#104;unter2", "&************"),
    ] {
        let bytes: Vec<_> = text.as_bytes().chunks(1).collect();
        for parts in [vec![text.as_bytes()], bytes] {
            assert_eq!(masked("hunter2", &parts), expected, "{text}");
        }
    }
}

#[test]
fn base64_is_found_across_the_ends_of_its_lines_and_plain_text_is_not() {
    let secret = "s3cret-value-of-some-length-42";
    let encoded = "b25lIHMzY3JldC12YWx1ZS1vZi1zb21lLWxlbmd0aC00MiB0d28=";
    for end in ["\n", "\r\n", r"\n", r"\r\n", "\n\n\n\n\n\n\n\n"] {
        for line in 1..encoded.len() {
            let lines: Vec<_> = encoded
                .as_bytes()
                .chunks(line)
                .map(|line| std::str::from_utf8(line).unwrap())
                .collect();
            let text = format!("\"{}\"", lines.join(end));
            let masked = masked(secret, &[text.as_bytes()]);
            let left: String = masked.replace(r"\n", "").replace(r"\r", "");
            let left: String = left
                .chars()
                .filter(|byte| byte.is_ascii_alphanumeric())
                .collect();
            assert!(left.len() <= 13, "lines of {line} with {end:?}: {masked}");
        }
    }
    assert_eq!(masked("hunter2", &[b"hun\nter2"]), "hun\nter2");
}

#[test]
fn one_pass_finds_the_secrets_of_all_and_names_them() {
    let secrets = ["hunter2", "ter2-and-more", "hunter2", "2"];
    let forms = secrets.map(|secret| Forms::of(secret.as_bytes()));
    let search = SecretSearch::new(forms.iter());
    let mut found = Vec::new();
    Matcher::default().push(&search, b"<hunter%32-and-more>", 0, |index, place| {
        found.push((index, place))
    });
    found.sort_by_key(|(index, place)| (*index, place.start));
    found.dedup();
    assert_eq!(
        found,
        [(0, 1..10), (1, 4..19), (2, 1..10), (3, 7..10), (3, 9..10)]
    );
}

#[test]
fn a_secret_is_found_in_utf_32() {
    for order in [u32::to_le_bytes, u32::to_be_bytes] {
        let text: Vec<u8> = "\u{feff}<hunter2>"
            .chars()
            .flat_map(|character| order(u32::from(character)))
            .collect();
        let forms = Forms::of(b"hunter2");
        let mut found = Vec::new();
        Matcher::default().push(
            &SecretSearch::new(std::iter::once(&forms)),
            &text,
            0,
            |_, place| found.push(place),
        );
        assert!(found.iter().any(|place| place.len() >= 25), "{found:?}");
    }
}

#[test]
fn what_is_printed_of_the_forms_of_a_secret_shows_none_of_them() {
    let forms = Forms::of(b"correct horse battery");
    let search = SecretSearch::new(std::iter::once(&forms));
    let printed = format!("{forms:?} {search:?}");
    assert_eq!(
        printed,
        "Forms { .. } SecretSearch(Patterns { patterns: 4, .. })"
    );
}
