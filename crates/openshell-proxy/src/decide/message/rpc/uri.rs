//! The canonical form of URIs.

/// Returns true if `uri` has only one form (RFC 3986 §6.2.2): no dot segments, no encoded dot, slash
/// or backslash, no upper case in its scheme and host, and no user.
pub(super) fn is_canonical(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once(':') else {
        return false;
    };
    let of_scheme =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    if !scheme.starts_with(|first: char| first.is_ascii_lowercase())
        || !scheme.bytes().all(of_scheme)
    {
        return false;
    }
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\\\"<>^`{|}".contains(&byte);
    if !rest.bytes().all(is_plain) || has_bad_escape(rest) {
        return false;
    }
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(behind) => {
            let length = behind.find(['/', '?', '#']).unwrap_or(behind.len());
            let (authority, path) = behind.split_at(length);
            if authority
                .bytes()
                .any(|byte| byte.is_ascii_uppercase() || b"@%".contains(&byte))
            {
                return false;
            }
            path
        }
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    !path.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// Returns true if an escape is malformed, or stands for a character that separates or that needs
/// no escape.
fn has_bad_escape(text: &str) -> bool {
    let mut parts = text.split('%');
    parts.next();
    parts.any(|part| {
        let byte = part
            .get(..2)
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        byte.is_none_or(|byte| {
            byte.is_ascii_alphanumeric() || byte < 0x20 || b"-._~/\\".contains(&byte)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::is_canonical;

    #[test]
    fn a_uri_with_another_form_is_not_canonical() {
        for uri in [
            "file:///docs/a.md",
            "file:///docs/a%20b",
            "https://x.test/a?b=../c#d",
            "urn:a:b",
            "note://x/%C3%A9",
            "file:///a/..b/c.",
        ] {
            assert!(is_canonical(uri), "{uri}");
        }
        for uri in [
            "",
            "docs/a",
            "/docs/a",
            "File:///docs",
            "https://X.test/a",
            "https://user@x.test/a",
            "file:///docs/../etc",
            "file:///docs/.",
            "file:..",
            "file:///docs/%2e%2e/etc",
            "file:///docs/%2E",
            "file:///docs%2fa",
            "file:///docs%2Fa",
            "file:///docs%5ca",
            "file:///docs\\a",
            "file:///a%",
            "file:///a%zz",
            "file:///a%61",
            "file:///a%00",
            "file:///a b",
            "file:///é",
            "1a:b",
            "a\nb:c",
        ] {
            assert!(!is_canonical(uri), "{uri}");
        }
    }
}
