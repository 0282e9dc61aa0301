//! Finds the fields of a gateway's policy that this build does not know. Decoders drop them, but one
//! that is not known may narrow what the policy permits.

use std::collections::BTreeMap;

/// The error of bytes that are not a message (Protocol Buffers, "Encoding").
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not an encoded message")]
pub struct Malformed;

/// The fields of a message.
struct Shape {
    /// The highest number that is known.
    last: u32,
    /// Numbers below it that are not.
    gaps: &'static [u32],
    /// The fields that are messages.
    messages: &'static [(u32, &'static Shape)],
}

const fn leaf(last: u32) -> Shape {
    Shape {
        last,
        gaps: &[],
        messages: &[],
    }
}

/// The entry of a map from texts to messages, which has them in field 2 (Protocol Buffers, "Maps").
const fn entries(messages: &'static [(u32, &'static Shape)]) -> Shape {
    Shape {
        messages,
        ..leaf(2)
    }
}

const MATCHER: Shape = leaf(2);
const MATCHERS: Shape = entries(&[(2, &MATCHER)]);
const RULE: Shape = Shape {
    last: 9,
    gaps: &[8],
    messages: &[(4, &MATCHERS), (9, &MATCHERS)],
};
const ALLOW: Shape = Shape {
    messages: &[(1, &RULE)],
    ..leaf(1)
};
const OPERATION: Shape = leaf(3);
const OPERATIONS: Shape = entries(&[(2, &OPERATION)]);
const MCP: Shape = leaf(3);
const BINDING: Shape = leaf(1);
const ENDPOINT: Shape = Shape {
    messages: &[
        (7, &ALLOW),
        (10, &RULE),
        (13, &OPERATIONS),
        (23, &MCP),
        (24, &BINDING),
    ],
    ..leaf(26)
};
const BINARY: Shape = leaf(2);

/// The number of `network_policies` in a policy, and of the parts of a network policy.
const NETWORK_POLICIES: u32 = 5;
const ENDPOINTS: u32 = 2;
const BINARIES: u32 = 3;
const LAST_OF_NETWORK_POLICY: u32 = 3;

/// What is not known of one network policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unknown {
    /// A field that may narrow each of its endpoints.
    everywhere: Option<String>,
    /// By the index of an endpoint, a field in it.
    endpoints: BTreeMap<usize, String>,
    /// The number of endpoints that were read.
    count: usize,
}

impl Unknown {
    /// Returns the field for which the endpoint at `index` must be refused.
    pub(super) fn of_endpoint(&self, index: usize) -> Option<&str> {
        let own = self.endpoints.get(&index);
        own.or(self.everywhere.as_ref()).map(String::as_str)
    }
}

/// Returns what is not known of each network policy in `policy`, an encoded `SandboxPolicy`.
///
/// # Errors
/// Fails if the bytes are not a message.
pub(super) fn scan(policy: &[u8]) -> Result<BTreeMap<String, Unknown>, Malformed> {
    let mut found = BTreeMap::new();
    for field in fields(policy) {
        let (NETWORK_POLICIES, Some(entry)) = field? else {
            continue;
        };
        let mut key = String::new();
        let mut unknown = Unknown::default();
        for field in fields(entry) {
            match field? {
                (1, Some(bytes)) => {
                    let text = std::str::from_utf8(bytes).map_err(|_| Malformed)?;
                    text.clone_into(&mut key);
                }
                (2, Some(bytes)) => unknown.read(bytes)?,
                _ => {}
            }
        }
        found.insert(key, unknown);
    }
    Ok(found)
}

impl Unknown {
    /// Reads a network policy. One that comes in several parts is one message.
    fn read(&mut self, message: &[u8]) -> Result<(), Malformed> {
        for field in fields(message) {
            match field? {
                (ENDPOINTS, Some(bytes)) => {
                    if let Some(number) = first_unknown(bytes, &ENDPOINT)? {
                        let what = format!("field {number} of an endpoint");
                        self.endpoints.insert(self.count, what);
                    }
                    self.count += 1;
                }
                (BINARIES, Some(bytes)) => {
                    if let Some(number) = first_unknown(bytes, &BINARY)? {
                        self.everywhere = Some(format!("field {number} of a binary"));
                    }
                }
                (number, _) if number > LAST_OF_NETWORK_POLICY => {
                    self.everywhere = Some(format!("field {number} of a network policy"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the first field in `message` of which `shape` knows nothing, with the numbers that lead
/// to it, such as `7.1.12`.
fn first_unknown(message: &[u8], shape: &Shape) -> Result<Option<String>, Malformed> {
    for field in fields(message) {
        let (number, bytes) = field?;
        if number > shape.last || shape.gaps.contains(&number) {
            return Ok(Some(number.to_string()));
        }
        let inner = shape.messages.iter().find(|(known, _)| *known == number);
        if let (Some((_, shape)), Some(bytes)) = (inner, bytes)
            && let Some(rest) = first_unknown(bytes, shape)?
        {
            return Ok(Some(format!("{number}.{rest}")));
        }
    }
    Ok(None)
}

/// A field: its number, and its bytes if it has a length.
type Field<'m> = (u32, Option<&'m [u8]>);

/// Returns the fields of `message` in their order.
fn fields(message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, Malformed>> {
    let mut rest = message;
    std::iter::from_fn(move || (!rest.is_empty()).then(|| field(&mut rest)))
}

/// Takes a field from the beginning of `rest`. If it is malformed, nothing follows.
fn field<'m>(rest: &mut &'m [u8]) -> Result<Field<'m>, Malformed> {
    let message = std::mem::take(rest);
    let mut behind = message;
    let key = varint(&mut behind)?;
    let number = u32::try_from(key >> 3).map_err(|_| Malformed)?;
    let bytes = match key & 7 {
        0 => {
            varint(&mut behind)?;
            None
        }
        1 => {
            taken(&mut behind, 8)?;
            None
        }
        2 => {
            let length = varint(&mut behind)?;
            Some(taken(&mut behind, length)?)
        }
        5 => {
            taken(&mut behind, 4)?;
            None
        }
        // Groups, which proto3 does not have.
        _ => return Err(Malformed),
    };
    *rest = behind;
    Ok((number, bytes))
}

/// Takes an integer of up to ten bytes, of seven bits each, from the beginning of `rest`.
fn varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *taken(rest, 1)?.first().ok_or(Malformed)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

/// Takes `length` bytes from the beginning of `rest`.
fn taken<'m>(rest: &mut &'m [u8], length: u64) -> Result<&'m [u8], Malformed> {
    let length = usize::try_from(length).map_err(|_| Malformed)?;
    let (bytes, behind) = rest.split_at_checked(length).ok_or(Malformed)?;
    *rest = behind;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{ALLOW, BINARY, BINDING, ENDPOINT, MATCHER, MCP, OPERATION, RULE, scan};

    /// Returns the numbers of the fields of `message` in the description of the messages.
    fn described(message: &str) -> BTreeSet<u32> {
        let text = include_str!("../../../../proto/sandbox.proto");
        let start = text.find(&format!("message {message} {{")).unwrap();
        let body = text[start..].split_once("\n}").unwrap().0;
        let number = |line: &str| {
            let (_, behind) = line.trim().strip_suffix(';')?.rsplit_once(" = ")?;
            behind.parse().ok()
        };
        body.lines().filter_map(number).collect()
    }

    #[test]
    fn the_numbers_that_are_known_are_those_of_the_messages() {
        for (message, shape) in [
            ("NetworkEndpoint", &ENDPOINT),
            ("L7Rule", &ALLOW),
            ("L7Allow", &RULE),
            ("L7DenyRule", &RULE),
            ("L7QueryMatcher", &MATCHER),
            ("GraphqlOperation", &OPERATION),
            ("McpOptions", &MCP),
            ("NetworkCredentialBinding", &BINDING),
            ("NetworkBinary", &BINARY),
        ] {
            let known = (1..=shape.last).filter(|number| !shape.gaps.contains(number));
            assert_eq!(
                known.collect::<BTreeSet<_>>(),
                described(message),
                "{message}"
            );
        }
        assert_eq!(described("NetworkPolicyRule"), [1, 2, 3].into());
        assert_eq!(described("SandboxPolicy"), (1..=6).collect());
    }

    /// Encodes a field with a length.
    fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
        let mut message = varint(u64::from(number) << 3 | 2);
        message.extend(varint(bytes.len() as u64));
        message.extend(bytes);
        message
    }

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value > 0x7f {
            bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// Wraps an unknown field into the fields with these numbers, the innermost last.
    fn nested(numbers: &[u32]) -> Vec<u8> {
        let inner = field(200, b"x");
        numbers
            .iter()
            .rev()
            .fold(inner, |inner, number| field(*number, &inner))
    }

    /// Returns a policy `a` with `rule`.
    fn policy(rule: &[u8]) -> Vec<u8> {
        field(5, &[field(1, b"a"), field(2, rule)].concat())
    }

    #[test]
    fn an_unknown_field_is_found_at_each_level() {
        let known = field(2, &field(1, b"a.test"));
        for (numbers, what) in [
            (&[2][..], "field 200 of an endpoint"),
            (&[2, 7], "field 7.200 of an endpoint"),
            (&[2, 7, 1], "field 7.1.200 of an endpoint"),
            (&[2, 7, 1, 4], "field 7.1.4.200 of an endpoint"),
            (&[2, 7, 1, 4, 2], "field 7.1.4.2.200 of an endpoint"),
            (&[2, 7, 1, 9, 2], "field 7.1.9.2.200 of an endpoint"),
            (&[2, 10], "field 10.200 of an endpoint"),
            (&[2, 10, 9, 2], "field 10.9.2.200 of an endpoint"),
            (&[2, 13, 2], "field 13.2.200 of an endpoint"),
            (&[2, 23], "field 23.200 of an endpoint"),
            (&[2, 24], "field 24.200 of an endpoint"),
        ] {
            let found = scan(&policy(
                &[known.clone(), nested(numbers), known.clone()].concat(),
            ));
            let unknown = found.unwrap().remove("a").unwrap();
            assert_eq!(
                [0, 1, 2].map(|index| unknown.of_endpoint(index)),
                [None, Some(what), None]
            );
        }
        for (numbers, what) in [
            (&[][..], "field 200 of a network policy"),
            (&[3], "field 200 of a binary"),
        ] {
            let found = scan(&policy(&[known.clone(), nested(numbers)].concat()));
            let unknown = found.unwrap().remove("a").unwrap();
            assert_eq!(unknown.of_endpoint(0), Some(what));
        }
        // An entry's message may come in parts.
        let parts = [field(1, b"a"), field(2, &nested(&[2])), field(2, &known)].concat();
        let found = scan(&field(5, &parts)).unwrap();
        assert_eq!(found["a"].of_endpoint(0), Some("field 200 of an endpoint"));
        assert_eq!(found["a"].of_endpoint(1), None);
        let allow = field(7, &field(1, &field(8, b"x")));
        let found = scan(&policy(&field(2, &allow))).unwrap();
        assert_eq!(
            found["a"].of_endpoint(0),
            Some("field 7.1.8 of an endpoint")
        );
        assert_eq!(scan(&policy(&known)).unwrap()["a"].of_endpoint(0), None);
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for bytes in [
            &b"\x2a\x05a"[..],
            b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x2b",
            b"\x29\x00",
        ] {
            assert!(scan(bytes).is_err(), "{bytes:?}");
        }
    }
}
