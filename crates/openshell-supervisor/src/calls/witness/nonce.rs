//! Puts the nonce of a connection into an option of the IP header of its first packet, which the
//! accepting end keeps.
//!
//! The option is a full Record Route (RFC 791 §3.1). No router writes into it, and it needs no
//! capability. The workload can neither set this option nor send packets with other headers,
//! because its system-call filter refuses both.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::sys::socket;

/// IPOPT_RR, the length of the option, and a pointer past its end, which means that it is full.
const FULL_ROUTE: [u8; 3] = [7, 11, 12];

/// The first byte of an IPv4 header with the option, and the first bytes of the option, which
/// follows the other fields.
pub const NONCE_HEADER: (u8, [u8; 3]) = (0x48, FULL_ROUTE);

/// IPOPT_END, which pads the header to a whole word.
const END: u8 = 0;

/// The length of an IPv4 header without options, in bytes.
const HEADER: usize = 20;

/// The greatest length of the headers of a first packet, of IP and of TCP, in bytes.
const HEADERS: usize = 120;

/// Makes `listener` keep the first packet of each connection, from which a [`super::Witness`] takes
/// the nonce.
///
/// # Errors
/// Fails if the socket does not listen for TCP.
pub fn save_first_packets(listener: impl AsFd) -> io::Result<()> {
    socket::save_first_packets(listener.as_fd())
}

/// Puts `nonce` into the packets that `socket` sends, until [`clear`] is called.
pub(super) fn put(socket: BorrowedFd<'_>, nonce: u64) -> io::Result<()> {
    let mut options = [END; 12];
    options[..3].copy_from_slice(&FULL_ROUTE);
    options[3..11].copy_from_slice(&nonce.to_be_bytes());
    socket::set_ip_options(socket, &options)
}

/// Removes the nonce from the packets that `socket` sends.
pub(super) fn clear(socket: BorrowedFd<'_>) -> io::Result<()> {
    socket::set_ip_options(socket, &[])
}

/// Returns the nonce of an accepted connection.
pub(super) fn take(accepted: BorrowedFd<'_>) -> Option<u64> {
    let mut headers = [0; HEADERS];
    let length = socket::first_packet(accepted, &mut headers).ok()?;
    let nonce = parse(headers.get(..length)?)?;
    // Without this, the kernel would return the option in each packet of the accepted end.
    let _ = clear(accepted);
    Some(nonce)
}

/// Parses the headers of a first packet. Only the witness sends one with options.
fn parse(headers: &[u8]) -> Option<u64> {
    let first = headers.first()?;
    if *first != NONCE_HEADER.0 {
        return None;
    }
    let nonce = headers
        .get(HEADER..)?
        .strip_prefix(&FULL_ROUTE)?
        .first_chunk::<8>()?;
    Some(u64::from_be_bytes(*nonce))
}

#[cfg(test)]
mod tests {
    use super::{FULL_ROUTE, HEADER, parse};

    #[test]
    fn only_headers_with_the_whole_option_have_a_nonce() {
        let mut packet = vec![0; HEADER];
        packet[0] = 0x48;
        packet.extend(FULL_ROUTE);
        packet.extend(7_u64.to_be_bytes());
        packet.push(0);
        packet.extend([0; 20]);
        assert_eq!(parse(&packet), Some(7));
        for length in 0..HEADER + 11 {
            assert_eq!(parse(&packet[..length]), None, "{length}");
        }
        for (index, byte) in [
            (0, 0x45),
            (0, 0x68),
            (HEADER, 68),
            (HEADER + 1, 12),
            (HEADER + 2, 4),
        ] {
            let mut other = packet.clone();
            other[index] = byte;
            assert_eq!(parse(&other), None, "{index}");
        }
    }
}
