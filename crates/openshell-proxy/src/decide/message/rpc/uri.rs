//! The canonical form of URIs.

/// Returns true if `uri` has only one form (RFC 3986 §6.2.2): no dot segments and no empty ones, no
/// encoded dot, slash, backslash or percent sign, no upper case in its scheme and host, no lower case
/// in escapes, no user, and no empty or usual port.
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
    let (authority, path) = match rest.strip_prefix("//") {
        None => (None, rest),
        Some(behind) => {
            let length = behind.find(['/', '?', '#']).unwrap_or(behind.len());
            let (authority, path) = behind.split_at(length);
            (Some(authority), path)
        }
    };
    // A file has one host, its own.
    if scheme == "file" && (authority != Some("") || !path.starts_with('/')) {
        return false;
    }
    authority.is_none_or(is_canonical_authority) && !has_bad_segment(path)
}

fn is_canonical_authority(authority: &str) -> bool {
    let is_bad = |byte: u8| byte.is_ascii_uppercase() || b"@%".contains(&byte);
    let has_usual_port = ["", "0", "80", "443"].iter().any(|port| {
        let before = authority.strip_suffix(port);
        before.is_some_and(|before| before.ends_with(':'))
    });
    !authority.bytes().any(is_bad) && !has_usual_port
}

/// Returns true if `path`, or a query or fragment behind it, has a dot segment, or if an empty segment
/// stands in the path elsewhere than at its ends. Some servers take a query for a part of the path.
fn has_bad_segment(path: &str) -> bool {
    let mut segments = path.split(['/', '?', '#']);
    if segments.any(|segment| matches!(segment, "." | "..")) {
        return true;
    }
    let path = path.split(['?', '#']).next().unwrap_or_default();
    path.contains("//")
}

/// Returns true if an escape is malformed or in lower case, or stands for a character that separates,
/// that begins an escape, or that needs none.
fn has_bad_escape(text: &str) -> bool {
    let mut parts = text.split('%');
    parts.next();
    parts.any(|part| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
        let digits = part.get(..2).filter(|digits| digits.bytes().all(is_digit));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        byte.is_none_or(|byte| {
            byte.is_ascii_alphanumeric() || byte < 0x20 || b"-._~/\\%".contains(&byte)
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
            "https://x.test:8443/a?b=c#d",
            "file:///docs/",
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
            "file:///docs/x?/../../etc/passwd",
            "file:///docs/x#/..",
            "file:///docs/%252e%252e/etc",
            "file:/etc/passwd",
            "file:////etc/passwd",
            "file://localhost/etc/passwd",
            "file:///docs//a",
            "https://x.test:443/a",
            "https://x.test:/a",
            "note://x/%c3%a9",
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
