//! The values of options.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use openshell_policy::address::AddressRange;
use openshell_policy::network::host::HostPattern;
use openshell_sources::policy::composed::{Access, Allowed};
use openshell_telemetry::logging::Label;

/// Longest name of a sandbox, in bytes: that of a host.
const NAME_BYTES: usize = 64;

/// Longest reason of an answer.
pub(crate) const REASON_CHARACTERS: usize = 500;

/// Parses a name that is one word of a log line.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    if text.is_empty() || text.len() > NAME_BYTES || !text.bytes().all(is_plain) {
        return Err(format!(
            "a name is 1 to {NAME_BYTES} characters of A-Z a-z 0-9 _ . -"
        ));
    }
    Ok(text.to_owned())
}

/// Parses the reason of an answer.
pub(crate) fn reason(text: &str) -> Result<String, String> {
    let length = text.chars().count();
    if length > REASON_CHARACTERS || text.chars().any(char::is_control) {
        return Err(format!(
            "a reason is one line of at most {REASON_CHARACTERS} characters"
        ));
    }
    Ok(text.to_owned())
}

/// Parses a label that is one word of a log line.
pub(crate) fn label(text: &str) -> Result<Label, String> {
    const FORM: &str = "a label is KEY=VALUE: a key of up to 63 characters a-z 0-9 _ . -, which \
                        begins with a letter and is not `sandbox`, and a value of 1 to 128 \
                        characters of A-Z a-z 0-9 _ . - / : @ +";
    let (key, value) = text.split_once('=').ok_or(FORM)?;
    let is_key =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
    let is_value = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/:@+".contains(&byte);
    let is_named = key.starts_with(|first: char| first.is_ascii_lowercase())
        && key.len() <= 63
        && key != "sandbox";
    if !is_named
        || !key.bytes().all(is_key)
        || !(1..=128).contains(&value.len())
        || !value.bytes().all(is_value)
    {
        return Err(FORM.to_owned());
    }
    Ok(Label {
        key: key.to_owned(),
        value: value.to_owned(),
    })
}

/// Longest duration: a year, short enough to be added to a clock.
const LONGEST: Duration = Duration::from_secs(31_536_000);

/// Parses seconds, or a number with a unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map(Duration::from_secs).ok();
    let read = seconds.or_else(|| humantime::parse_duration(text).ok());
    match read {
        Some(read) if read <= LONGEST => Ok(read),
        Some(_) => Err("at most 365 days".to_owned()),
        None => Err("expected seconds, or a time such as 90s, 5m or 1h30m".to_owned()),
    }
}

/// Parses a number of bytes, with K, M or G for powers of 1024.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (text.get(..text.len() - 1), 10),
        Some(b'm' | b'M') => (text.get(..text.len() - 1), 20),
        Some(b'g' | b'G') => (text.get(..text.len() - 1), 30),
        _ => (Some(text), 0),
    };
    let number = digits
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse::<u64>().ok());
    let bytes = number
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|bytes| *bytes >= 4096);
    bytes.ok_or_else(|| "a size is a number of bytes, at least 4K, such as 64M or 2G".to_owned())
}

/// A port of a server inside, and the address outside at which it is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) address: SocketAddr,
    pub(crate) port: u16,
}

/// Parses `[ADDR:]PORT[:PORT]`.
pub(super) fn published(text: &str) -> Result<Published, String> {
    const FORM: &str = "expected [ADDR:]PORT[:PORT], such as 8000, 8080:8000, 0.0.0.0:8080:8000 or \
                        [::1]:8080:8000";
    let number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse::<u16>().ok())
            .flatten()
    };
    // An IPv6 address is in brackets, so what is left of it has colons between ports alone.
    let (address, ports) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, ports) = rest.split_once("]:").ok_or(FORM)?;
            (IpAddr::V6(address.parse().map_err(|_| FORM)?), ports)
        }
        None => match text
            .split_once(':')
            .and_then(|(first, ports)| Some((first.parse().ok()?, ports)))
        {
            Some((address, ports)) => (IpAddr::V4(address), ports),
            None => (IpAddr::V4(Ipv4Addr::LOCALHOST), text),
        },
    };
    let (outside, inside) = ports.split_once(':').unwrap_or((ports, ports));
    let outside = number(outside).ok_or(FORM)?;
    let port = number(inside).ok_or(FORM)?;
    if port == 0 {
        return Err("the port of the server inside must be named: PORT:PORT".to_owned());
    }
    Ok(Published {
        address: (address, outside).into(),
        port,
    })
}

/// Parses `HOST[:PORT][@CIDR][=ACCESS]`.
pub(crate) fn allowed(text: &str) -> Result<Allowed, String> {
    let (place, access) = match text.split_once('=') {
        None => (text, None),
        Some((place, word)) => {
            let access = match word {
                "read-only" => Access::ReadOnly,
                "read-write" => Access::ReadWrite,
                "full" => Access::Full,
                "tcp" => Access::Tcp,
                _ if word.contains('@') => {
                    return Err("write addresses before the access: HOST@CIDR=ACCESS".to_owned());
                }
                _ => {
                    return Err(format!(
                        "`{word}` is not one of read-only, read-write, full, tcp"
                    ));
                }
            };
            (place, Some(access))
        }
    };
    if place.contains("://") {
        return Err("write only the host, without `https://`".to_owned());
    }
    let (place, addresses) = match place.split_once('@') {
        None => (place, None),
        Some((place, range)) => {
            let range = AddressRange::parse(range).map_err(|error| error.to_string())?;
            (place, Some(range))
        }
    };
    if !place.starts_with('[') && place.matches(':').count() > 1 {
        return Err(format!("write an IPv6 address in brackets: [{place}]"));
    }
    let (host, port) = match place
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (
            host,
            Some(rest.strip_prefix(':').ok_or("expected [ADDRESS]:PORT")?),
        ),
        None => place
            .rsplit_once(':')
            .map_or((place, None), |(host, port)| (host, Some(port))),
    };
    let number = |port: &str| {
        Some(port)
            .filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))?
            .parse()
            .ok()
    };
    let port = match port {
        None => NonZeroU16::new(443),
        Some(port) => number(port),
    };
    let port = port.ok_or("a port is a whole number from 1 to 65535")?;
    HostPattern::parse(host).map_err(|error| error.to_string())?;
    Ok(Allowed {
        host: host.to_owned(),
        port,
        addresses,
        access,
    })
}

/// Parses a port.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| "a port is a whole number from 1 to 65535".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Published, published};

    #[test]
    fn published_ports_have_the_loopback_address_and_the_same_port_unless_they_name_others() {
        for (text, address, port) in [
            ("8000", "127.0.0.1:8000", 8000),
            ("8080:8000", "127.0.0.1:8080", 8000),
            ("0:8000", "127.0.0.1:0", 8000),
            ("127.0.0.2:8000", "127.0.0.2:8000", 8000),
            ("0.0.0.0:8080:8000", "0.0.0.0:8080", 8000),
            ("[::1]:8080:8000", "[::1]:8080", 8000),
            ("[::]:8000", "[::]:8000", 8000),
        ] {
            assert_eq!(
                published(text),
                Ok(Published {
                    address: address.parse().unwrap(),
                    port
                }),
                "{text}"
            );
        }
        for text in [
            "", "0", "x", "8000:", ":8000", "8080:0", "1:2:3", "70000", "+80", "host:80", "::1:80",
            "[::1]80", "1.2.3.4",
        ] {
            assert!(published(text).is_err(), "{text}");
        }
    }
}
