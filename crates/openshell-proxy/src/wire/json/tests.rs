use super::{Json, JsonError, KeyInAnotherCase, NESTING, NUMBER};

fn fault(text: &str) -> Option<JsonError> {
    Json::read(text.as_bytes()).err()
}

/// Copies a value with the functions that look it up.
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
    if let Some(number) = json.number() {
        return serde_json::from_str(number).unwrap_or_default();
    }
    json.boolean().map_or(serde_json::Value::Null, Into::into)
}

#[test]
fn values_are_what_another_reader_finds() {
    for text in [
        r#" {"a": [1, -0, 2.5e3, "x\"]}\\", {"b": {}}, [], [[]], true, false, null], "\u0061b": "\ud83d\ude00\n\/"} "#,
        "7",
        r#""\b\f\t\r""#,
        "[ ]",
        r#"{"":"","é":"ſ"}"#,
    ] {
        let json = Json::read(text.as_bytes()).unwrap();
        let expected: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(copied(json), expected, "{text}");
        assert_eq!(json.as_str(), text.trim());
    }
}

#[test]
fn a_text_with_a_fault_is_not_read() {
    let deep = |depth| "[".repeat(depth) + &"]".repeat(depth);
    let long = |length| "1".repeat(length);
    assert_eq!(fault(&deep(NESTING)), None);
    assert_eq!(fault(&deep(NESTING + 1)), Some(JsonError::Nesting));
    assert_eq!(fault(&deep(1_000_000)), Some(JsonError::Nesting));
    assert_eq!(fault(&long(NUMBER)), None);
    assert_eq!(fault(&long(NUMBER + 1)), Some(JsonError::Number));
    assert_eq!(fault("1e400"), None);
    for text in [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"b":{},"\u0061":1}"#,
        r#"[{"b":{"":1,"c":2,"":3}}]"#,
    ] {
        assert_eq!(fault(text), Some(JsonError::KeyTwice), "{text}");
    }
    assert_eq!(fault(r#"{"a":{"a":{"a":1}},"b":{"a":1}}"#), None);
    for text in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800\ud800""#,
        r#""\ud800x""#,
        r#""\ud800\n""#,
    ] {
        assert_eq!(fault(text), Some(JsonError::Surrogate), "{text}");
    }
    assert_eq!(fault("\u{feff}{}"), Some(JsonError::ByteOrderMark));
    for bytes in [&b"\xff\xfe{\0}\0"[..], b"\"\xed\xa0\x80\"", b"\"\xc0\xaf\""] {
        assert_eq!(Json::read(bytes).err(), Some(JsonError::Encoding));
    }
    for (text, at) in [
        ("", 0),
        (" ", 1),
        ("{", 1),
        ("[1,]", 3),
        ("[,1]", 1),
        (r#"{"a"}"#, 4),
        (r#"{"a":1,}"#, 7),
        ("{a:1}", 1),
        ("01", 1),
        ("1.", 2),
        ("+1", 0),
        ("1e", 2),
        (".5", 0),
        ("NaN", 0),
        ("nul", 0),
        ("{} {}", 3),
        ("\"a\nb\"", 2),
        ("\"\0\"", 1),
        (r#""\x""#, 2),
        (r#""\u+123""#, 3),
        ("[1]\u{a0}", 3),
        ("'a'", 0),
        ("[1 2]", 3),
        ("/**/1", 0),
    ] {
        assert_eq!(fault(text), Some(JsonError::Syntax(at)), "{text:?}");
    }
}

#[test]
fn a_key_that_a_server_may_take_for_another_is_an_error() {
    let field = |text: &'static str, key| {
        let json = Json::read(text.as_bytes()).unwrap();
        json.field(key).map(|field| field.map(Json::as_str))
    };
    assert_eq!(field(r#"{"b":2,"a": 1 }"#, "a"), Ok(Some("1")));
    assert_eq!(field(r#"{"\u0061":1}"#, "a"), Ok(Some("1")));
    assert_eq!(field(r#"{"b":{"a":1}}"#, "a"), Ok(None));
    assert_eq!(field("[1]", "a"), Ok(None));
    for text in [
        r#"{"Params":1}"#,
        r#"{"params":1,"PARAMS":2}"#,
        r#"{"param\u017f":1}"#,
    ] {
        assert_eq!(field(text, "params"), Err(KeyInAnotherCase), "{text}");
    }
}
