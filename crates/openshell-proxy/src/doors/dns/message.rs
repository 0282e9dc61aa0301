//! DNS messages (RFC 1035): takes one question, and gives one answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_resolver::proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, PTR};
use hickory_resolver::proto::rr::{DNSClass, Name, RData, Record, RecordType};
use openshell_policy::network::host::HostName;

use crate::ground::limits::Limits;

/// How many seconds an answer may be cached.
const TTL: u32 = 30;

/// Maximum bytes of an answer in a datagram, unless the question permits more (RFC 1035 §4.2.1).
const DATAGRAM: u16 = 512;

/// Maximum bytes of an answer in any datagram, so that none is fragmented on any link.
const LARGE_DATAGRAM: u16 = 1232;

/// A message that was read.
#[derive(Debug)]
pub enum Read {
    /// A question.
    Question(Question),
    /// A message that is not answered as a question; holds the error to answer with.
    Invalid(Vec<u8>),
    /// A message that gets no answer.
    Ignored,
}

/// A question, and the parts of it that its answer repeats.
#[derive(Clone, Debug)]
pub struct Question {
    id: u16,
    recursion_desired: bool,
    has_edns: bool,
    /// Maximum bytes of an answer in a datagram.
    datagram: u16,
    query: Query,
}

/// The content of an answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The address of a name.
    Address(IpAddr),
    /// The name of an address.
    Pointer(HostName),
    /// Records from the name server outside.
    Records(Vec<Record>),
    /// The name has no records of this kind.
    NoData,
    /// There is no such name.
    NoSuchName,
    /// Questions of this kind are not answered.
    Refused,
    /// There is no answer at the moment.
    Failed,
}

/// Reads a message, which may come from anybody inside.
#[must_use]
pub fn read(bytes: &[u8]) -> Read {
    // The header has 12 bytes; a shorter message cannot be answered.
    let (Some(id), Some(flags), true) = (bytes.first_chunk::<2>(), bytes.get(2), bytes.len() >= 12)
    else {
        return Read::Ignored;
    };
    let id = u16::from_be_bytes(*id);
    let is_response = flags & 0x80 != 0;
    let invalid = |op_code, code| match Message::error_msg(id, op_code, code).to_vec() {
        Ok(bytes) => Read::Invalid(bytes),
        Err(_) => Read::Ignored,
    };
    if is_response {
        return Read::Ignored;
    }
    let Some(message) = Some(bytes)
        .filter(|bytes| bytes.len() <= Limits::DNS_MESSAGE)
        .and_then(|bytes| Message::from_vec(bytes).ok())
    else {
        return invalid(OpCode::Query, ResponseCode::FormErr);
    };
    if message.metadata.message_type != MessageType::Query {
        return Read::Ignored;
    }
    if message.metadata.op_code != OpCode::Query {
        return invalid(message.metadata.op_code, ResponseCode::NotImp);
    }
    let [query] = message.queries.as_slice() else {
        return invalid(OpCode::Query, ResponseCode::FormErr);
    };
    if query.query_class() != DNSClass::IN {
        return invalid(OpCode::Query, ResponseCode::Refused);
    }
    let edns = message.edns.as_ref();
    if edns.is_some_and(|edns| edns.version() != 0) {
        return invalid(OpCode::Query, ResponseCode::FormErr);
    }
    Read::Question(Question {
        id,
        recursion_desired: message.metadata.recursion_desired,
        has_edns: edns.is_some(),
        datagram: edns.map_or(DATAGRAM, |edns| {
            edns.max_payload().clamp(DATAGRAM, LARGE_DATAGRAM)
        }),
        query: query.clone(),
    })
}

impl Question {
    /// Returns the name that is asked for, as it was written.
    #[must_use]
    pub fn name(&self) -> &Name {
        self.query.name()
    }

    /// Returns the name in normal form, if it is one that a host can have.
    #[must_use]
    pub fn host_name(&self) -> Option<HostName> {
        HostName::parse(&self.name().to_ascii()).ok()
    }

    /// Returns true if the question asks for the name of an address.
    #[must_use]
    pub fn is_reverse(&self) -> bool {
        let name = self.name().to_ascii().to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        name.ends_with(".in-addr.arpa") || name.ends_with(".ip6.arpa")
    }

    /// Returns the address whose name is asked for.
    #[must_use]
    pub fn address(&self) -> Option<Ipv4Addr> {
        // Only the address of a host has a pointer, and the question then has all parts of the
        // address.
        let net = (self.name().num_labels() == 6)
            .then(|| self.name().parse_arpa_name().ok())
            .flatten()?;
        match net.addr() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }

    /// Returns the kind of record that is asked for.
    #[must_use]
    pub fn kind(&self) -> RecordType {
        self.query.query_type()
    }

    /// Encodes an answer for a datagram. An answer that does not fit is truncated, so that the
    /// client asks again over TCP.
    #[must_use]
    pub fn datagram(&self, answer: Answer) -> Vec<u8> {
        let whole = self.message(answer);
        match whole.to_vec() {
            Ok(bytes) if bytes.len() <= usize::from(self.datagram) => bytes,
            _ => self.encoded(&whole.truncate()),
        }
    }

    /// Encodes an answer for a stream.
    #[must_use]
    pub fn stream(&self, answer: Answer) -> Vec<u8> {
        self.encoded(&self.message(answer))
    }

    /// Encodes `message`. If that fails, returns only a header, with SERVFAIL.
    fn encoded(&self, message: &Message) -> Vec<u8> {
        let [high, low] = self.id.to_be_bytes();
        message
            .to_vec()
            .unwrap_or_else(|_| vec![high, low, 0x80, 0x82, 0, 0, 0, 0, 0, 0, 0, 0])
    }

    fn message(&self, answer: Answer) -> Message {
        let mut message = Message::response(self.id, OpCode::Query);
        message.metadata.recursion_desired = self.recursion_desired;
        message.metadata.recursion_available = true;
        message.add_query(self.query.clone());
        if self.has_edns {
            let mut edns = Edns::new();
            edns.set_max_payload(LARGE_DATAGRAM);
            message.set_edns(edns);
        }
        let mut code = ResponseCode::NoError;
        let mut add = |data| {
            message.add_answer(Record::from_rdata(self.name().clone(), TTL, data));
        };
        match answer {
            Answer::Address(IpAddr::V4(address)) => add(RData::A(A(address))),
            Answer::Address(IpAddr::V6(address)) => add(RData::AAAA(AAAA(address))),
            Answer::Pointer(name) => match Name::from_ascii(format!("{name}.")) {
                Ok(name) => add(RData::PTR(PTR(name))),
                Err(_) => code = ResponseCode::ServFail,
            },
            Answer::Records(records) => {
                // Behind an alias the records have another owner, which a client would not expect.
                for mut record in records {
                    record.name = self.name().clone();
                    message.add_answer(record);
                }
            }
            Answer::NoData => {}
            Answer::NoSuchName => code = ResponseCode::NXDomain,
            Answer::Refused => code = ResponseCode::Refused,
            Answer::Failed => code = ResponseCode::ServFail,
        }
        message.metadata.response_code = code;
        message
    }
}

/// Returns the answer for `localhost` and the names below it (RFC 6761 §6.3).
#[must_use]
pub fn localhost(kind: RecordType) -> Answer {
    match kind {
        RecordType::A => Answer::Address(Ipv4Addr::LOCALHOST.into()),
        RecordType::AAAA => Answer::Address(Ipv6Addr::LOCALHOST.into()),
        _ => Answer::NoData,
    }
}
