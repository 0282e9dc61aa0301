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
    let needs_path = matches!(scheme, "http" | "https");
    authority.is_none_or(is_canonical_authority)
        && !has_bad_segment(path)
        && (!needs_path || path.starts_with('/'))
}

/// Returns true for a byte that may stand in a URI as it is (RFC 3986 §2).
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\\\"<>^`{|}".contains(&byte)
}

fn is_canonical_authority(authority: &str) -> bool {
    let is_bad = |byte: u8| byte.is_ascii_uppercase() || b"@%".contains(&byte);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_usual = |port: &str| matches!(port, "" | "80" | "443") || port.starts_with('0');
    !authority.bytes().any(is_bad) && !host.ends_with('.') && !port.is_some_and(is_usual)
}

/// Returns true if `path`, or a query or fragment behind it, has a dot segment, or if an empty segment
/// stands in the path elsewhere than at its ends. Some servers take a query for a part of the path.
fn has_bad_segment(path: &str) -> bool {
    let mut segments = path.split(['/', '?', '#']);
    let name = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
    if segments.any(|segment| matches!(name(segment).as_str(), "." | "..")) {
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
        // What separates parts may stand in both forms; everything else that may stand as it is must.
        byte.is_none_or(|byte| {
            byte < 0x20 || b"/\\%".contains(&byte) || is_plain(byte) && !b"?#[]".contains(&byte)
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
            "https://x.test:0443/a",
            "https://x.test./a",
            "https://x.test",
            "https://x.test/a/..;x/b",
            "file:///data/a%40b",
            "file:///data/a%2Bb",
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
