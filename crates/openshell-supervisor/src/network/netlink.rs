//! Netlink requests, and the socket that carries them (netlink(7)).
//!
//! Every request except the ends of a batch asks for an acknowledgement, which is read at once. A
//! socket belongs to the network namespace in which it was opened.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The netlink families that are used (`linux/netlink.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes.
    Route,
    /// nftables and packet logs.
    Netfilter,
}

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 16;

/// The size of the receive buffer, in bytes.
const RECEIVE_BUFFER: usize = 32 * 1024;

/// A request that is being built: header, fixed part, attributes.
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Begins a request of type `kind` with the fixed part `body`.
    #[must_use]
    pub fn request(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend_from_slice(body);
        let mut message = Self { bytes };
        message.pad();
        message
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attribute(mut self, kind: u16, payload: &[u8]) -> Self {
        self.push_attribute(kind, payload);
        self
    }

    /// Adds a NUL-terminated text attribute.
    #[must_use]
    pub fn text(self, kind: u16, text: &str) -> Self {
        self.attribute(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Adds an attribute that holds the attributes added by `fill`.
    #[must_use]
    pub fn nested(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        let mut filled = fill(self);
        filled.close_attribute(start, kind | NLA_F_NESTED);
        filled
    }

    /// Adds raw bytes and padding.
    #[must_use]
    pub fn raw(mut self, payload: &[u8]) -> Self {
        self.bytes.extend_from_slice(payload);
        self.pad();
        self
    }

    fn push_attribute(&mut self, kind: u16, payload: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(payload);
        self.close_attribute(start, kind);
    }

    fn close_attribute(&mut self, start: usize, kind: u16) {
        // The length of an attribute has 16 bits. Attributes are far shorter; only lists of doors
        // have some tens of kilobytes.
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn sealed(mut self, sequence: u32, flags: u16) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        let flags = flags | u16::from_ne_bytes([self.bytes[6], self.bytes[7]]);
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// A netlink socket, bound to the namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// Fails if the kernel lacks the protocol, or if no more descriptors are available.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let number = match protocol {
            // NETLINK_ROUTE is 0, the default protocol.
            Protocol::Route => None,
            Protocol::Netfilter => Some(rustix::net::netlink::NETFILTER),
        };
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            number,
        )?;
        Ok(Self { fd })
    }

    /// Sends `messages` together, and waits until the kernel has acknowledged each.
    ///
    /// # Errors
    /// Fails with the kernel's first refusal.
    pub fn execute(&self, messages: Vec<Message>) -> io::Result<()> {
        self.transact(messages, |_| true)
    }

    /// Sends an nfnetlink batch: `messages` between a begin and an end message, which are not
    /// acknowledged. The kernel applies either all of it or nothing.
    ///
    /// # Errors
    /// Fails with the kernel's first refusal.
    pub fn execute_batch(
        &self,
        begin: Message,
        messages: Vec<Message>,
        end: Message,
    ) -> io::Result<()> {
        let last = messages.len() + 1;
        let all = std::iter::once(begin)
            .chain(messages)
            .chain([end])
            .collect();
        self.transact(all, |index| index != 0 && index != last)
    }

    fn transact(
        &self,
        messages: Vec<Message>,
        wants_ack: impl Fn(usize) -> bool,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut pending = 0;
        for (index, message) in messages.into_iter().enumerate() {
            let ack = wants_ack(index);
            pending += usize::from(ack);
            let sequence = u32::try_from(index).unwrap_or(u32::MAX);
            bytes.extend(message.sealed(sequence, if ack { NLM_F_ACK } else { 0 }));
        }
        self.send(&bytes)?;
        while pending > 0 {
            for response in self.receive()? {
                if response.kind == NLMSG_ERROR {
                    acknowledged(&response.payload)?;
                    pending -= 1;
                }
            }
        }
        Ok(())
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = rustix::net::send(&self.fd, bytes, SendFlags::empty())?;
        if sent == bytes.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    pub(super) fn receive(&self) -> io::Result<Vec<Response>> {
        let mut buffer = vec![0_u8; RECEIVE_BUFFER];
        let (_, length) = rustix::net::recv(&self.fd, buffer.as_mut_slice(), RecvFlags::TRUNC)?;
        let bytes = buffer.get(..length).ok_or(io::ErrorKind::InvalidData)?;
        responses(bytes)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A message from the kernel.
pub(super) struct Response {
    pub(super) kind: u16,
    pub(super) payload: Vec<u8>,
}

/// Returns the value of the attribute `kind` in `attributes`.
pub(super) fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    while let Some(header) = attributes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = attributes.get(4..length)?;
        if u16::from_ne_bytes([header[2], header[3]]) & NLA_TYPE_MASK == kind {
            return Some(value);
        }
        attributes = attributes
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    None
}

fn responses(mut bytes: &[u8]) -> io::Result<Vec<Response>> {
    let mut responses = Vec::new();
    while let Some((header, _)) = bytes.split_first_chunk::<HEADER>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let payload = bytes
            .get(HEADER..length)
            .ok_or(io::ErrorKind::InvalidData)?;
        responses.push(Response {
            kind,
            payload: payload.to_vec(),
        });
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(responses)
}

/// Returns the error in an error message; code 0 is an acknowledgement.
fn acknowledged(payload: &[u8]) -> io::Result<()> {
    let code = payload
        .first_chunk::<4>()
        .ok_or(io::ErrorKind::InvalidData)?;
    match i32::from_ne_bytes(*code) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(
            code.checked_neg().unwrap_or(i32::MAX),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{acknowledged, responses};

    #[test]
    fn fuzzed_answers_of_the_kernel_are_read_or_refused() {
        let message = [
            &24_u32.to_ne_bytes()[..],
            &2_u16.to_ne_bytes(),
            &[0; 10],
            &8_u16.to_ne_bytes(),
            &[1, 0, 9, 9, 9, 9],
        ]
        .concat();
        let words: [&[u8]; 4] = [&[0xff; 4], &[0; 4], &[8, 0, 1, 0], &i32::MIN.to_ne_bytes()];
        fuzz::fuzz("answers of the kernel", &[&message], &words, |input| {
            let Ok(responses) = responses(input) else {
                return;
            };
            for response in responses {
                let _ = acknowledged(&response.payload);
            }
        });
    }
}
