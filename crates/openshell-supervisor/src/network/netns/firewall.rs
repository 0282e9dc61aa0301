//! The egress firewall of the workload's namespace: its rules as rows, and their installer
//! (nftables over nfnetlink).

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::calls::witness::{DOOR_MARK, NONCE_HEADER};
use crate::network::netlink::{Message, Protocol, Socket};

/// The NFLOG group of the namespace that receives refused packets.
pub const LOG_GROUP: u16 = 7;

/// A firewall rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The packets that the rule matches.
    pub when: Match,
    /// The treatment of matching packets.
    pub verdict: Verdict,
    /// The reason for the rule.
    pub reason: &'static str,
}

/// The packets that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// TCP to one of the doors, from sockets that the witness connects, with a nonce.
    WitnessedToDoor,
    /// TCP packets out of the namespace that do not open a connection (SYN is not set).
    WithinConnection,
    /// UDP to this address and port.
    DatagramTo(SocketAddrV4),
    /// Packets that leave through loopback.
    Loopback,
    /// Neighbour and multicast listener discovery by the kernel (ICMPv6 130 to 143).
    NeighbourDiscovery,
    /// All TCP packets.
    Tcp,
    /// All packets.
    Any,
}

/// The treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass.
    Accept,
    /// Drop silently.
    Drop,
    /// Copy to [`LOG_GROUP`], at most five per second after a burst of ten, and continue with the
    /// next rule.
    Log,
    /// Refuse with a TCP reset.
    Reset,
    /// Refuse with ICMP or ICMPv6 port unreachable.
    Unreachable,
}

/// Returns the rules, in order, for a namespace whose only exits are the supervisor's doors and its
/// name server, if there is one. Packets that no rule accepts are dropped.
#[must_use]
pub fn ruleset(name_server: Option<SocketAddrV4>) -> Vec<Rule> {
    let rule = |when, verdict, reason| Rule {
        when,
        verdict,
        reason,
    };
    let questions = |server| {
        rule(
            Match::DatagramTo(server),
            Verdict::Accept,
            "questions for names",
        )
    };
    let ways_out = [
        rule(Match::WitnessedToDoor, Verdict::Accept, "the only ways out"),
        rule(
            Match::WithinConnection,
            Verdict::Accept,
            "only doors have connections, and the landing resets others",
        ),
    ];
    let others = [
        rule(
            Match::Loopback,
            Verdict::Accept,
            "servers and clients inside the sandbox",
        ),
        rule(
            Match::NeighbourDiscovery,
            Verdict::Drop,
            "the kernel's own noise, not an attempt of anybody",
        ),
        rule(
            Match::Tcp,
            Verdict::Log,
            "an attempt to go past the proxy is worth knowing",
        ),
        rule(
            Match::Tcp,
            Verdict::Reset,
            "refused at once instead of a long time-out",
        ),
        rule(Match::Any, Verdict::Log, "UDP, ICMP, SCTP… past the proxy"),
        rule(
            Match::Any,
            Verdict::Unreachable,
            "refused at once instead of a long time-out",
        ),
    ];
    ways_out
        .into_iter()
        .chain(name_server.map(questions))
        .chain(others)
        .collect()
}

/// Installs `rules` and a set of `doors` in the calling thread's namespace; either everything is
/// installed or nothing.
///
/// # Errors
/// Fails if the kernel lacks nf_tables or an expression, or if CAP_NET_ADMIN is missing.
pub(super) fn install(rules: &[Rule], doors: &[SocketAddrV4]) -> io::Result<()> {
    let socket = Socket::open(Protocol::Netfilter)?;
    let mut messages = vec![
        message(NFT_MSG_NEWTABLE, NLM_F_CREATE)
            .text(NFTA_TABLE_NAME, TABLE)
            .attribute(NFTA_TABLE_FLAGS, &be32(0)),
        message(NFT_MSG_NEWCHAIN, NLM_F_CREATE)
            .text(NFTA_CHAIN_TABLE, TABLE)
            .text(NFTA_CHAIN_NAME, CHAIN)
            .text(NFTA_CHAIN_TYPE, "filter")
            .attribute(NFTA_CHAIN_POLICY, &be32(NF_DROP))
            .nested(NFTA_CHAIN_HOOK, |hook| {
                hook.attribute(NFTA_HOOK_HOOKNUM, &be32(NF_INET_LOCAL_OUT))
                    .attribute(NFTA_HOOK_PRIORITY, &be32(0))
            }),
        message(NFT_MSG_NEWSET, NLM_F_CREATE)
            .text(NFTA_SET_TABLE, TABLE)
            .text(NFTA_SET_NAME, DOORS)
            .attribute(NFTA_SET_KEY_TYPE, &be32(IPV4_ADDRESS << 6 | INET_SERVICE))
            .attribute(NFTA_SET_KEY_LEN, &be32(DOOR_BYTES as u32))
            .attribute(NFTA_SET_ID, &be32(1)),
        elements(NFT_MSG_NEWSETELEM, doors),
    ];
    messages.extend(rules.iter().map(rule_message));
    execute(&socket, messages)
}

fn execute(socket: &Socket, messages: Vec<Message>) -> io::Result<()> {
    socket.execute_batch(
        batch_edge(NFNL_MSG_BATCH_BEGIN),
        messages,
        batch_edge(NFNL_MSG_BATCH_END),
    )
}

/// The number of doors in one batch, which has to fit into a socket's buffer.
const DOORS_AT_ONCE: usize = 2_000;

/// Adds `opened` to the set of doors and removes `closed`, through `socket`, which belongs to the
/// namespace. The set must contain all of `closed`.
///
/// # Errors
/// Fails if CAP_NET_ADMIN is missing, or if the kernel has no memory; then a part may already be
/// done.
pub(super) fn change_doors(
    socket: &Socket,
    opened: &[SocketAddrV4],
    closed: &[SocketAddrV4],
) -> io::Result<()> {
    let removals = closed
        .chunks(DOORS_AT_ONCE)
        .map(|doors| elements(NFT_MSG_DELSETELEM, doors));
    let additions = opened
        .chunks(DOORS_AT_ONCE)
        .map(|doors| elements(NFT_MSG_NEWSETELEM, doors));
    removals
        .chain(additions)
        .try_for_each(|message| execute(socket, vec![message]))
}

/// Returns the message that adds or removes `doors` in the set.
fn elements(kind: u16, doors: &[SocketAddrV4]) -> Message {
    let element = |list: Message, door: &SocketAddrV4| {
        // Each field is padded to a multiple of four bytes.
        let key: [u8; DOOR_BYTES] = [&door.ip().octets()[..], &door.port().to_be_bytes(), &[0; 2]]
            .concat()
            .try_into()
            .unwrap_or_default();
        list.nested(NFTA_LIST_ELEM, |element| {
            element.nested(NFTA_SET_ELEM_KEY, |nested| {
                nested.attribute(NFTA_DATA_VALUE, &key)
            })
        })
    };
    message(kind, NLM_F_CREATE)
        .text(NFTA_SET_ELEM_LIST_TABLE, TABLE)
        .text(NFTA_SET_ELEM_LIST_SET, DOORS)
        .nested(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
            doors.iter().fold(list, element)
        })
}

const TABLE: &str = "openshell";
const CHAIN: &str = "output";
const DOORS: &str = "doors";

/// The length of a member of the set in bytes: address, port, padding.
const DOOR_BYTES: usize = 8;

/// The types of its fields; only nft(8) needs them, to print the set.
const IPV4_ADDRESS: u32 = 7;
const INET_SERVICE: u32 = 13;

const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;
const NFPROTO_INET: u8 = 1;

const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
const NFT_MSG_NEWSET: u16 = 9;
const NFT_MSG_NEWSETELEM: u16 = 12;
const NFT_MSG_DELSETELEM: u16 = 14;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_KEY_TYPE: u16 = 4;
const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_ID: u16 = 10;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;

const NF_INET_LOCAL_OUT: u32 = 3;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NFT_REG_VERDICT: u32 = 0;
const NFT_REG_1: u32 = 1;
/// The word behind the first word of [`NFT_REG_1`].
const NFT_REG32_01: u32 = 9;
const NFT_META_MARK: u32 = 3;
const NFT_META_OIF: u32 = 5;
const NFT_META_NFPROTO: u32 = 15;
const NFT_META_L4PROTO: u32 = 16;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
const NFT_CMP_EQ: u32 = 0;
const NFT_CMP_LTE: u32 = 3;
const NFT_CMP_GTE: u32 = 5;
const NFT_REJECT_TCP_RST: u32 = 1;
const NFT_REJECT_ICMPX_UNREACH: u32 = 2;
const NFT_REJECT_ICMPX_PORT_UNREACH: u8 = 1;
const LOOPBACK_INDEX: u32 = 1;
/// The offset of the byte with the flags in a TCP header, and the flag of packets that open a
/// connection (RFC 9293 §3.1).
const TCP_FLAGS: u32 = 13;
const TCP_SYN: u8 = 2;

fn be32(value: u32) -> [u8; 4] {
    value.to_be_bytes()
}

/// Begins a message with `struct nfgenmsg`, whose last field is big-endian.
fn message(kind: u16, flags: u16) -> Message {
    Message::request(
        NFNL_SUBSYS_NFTABLES << 8 | kind,
        flags,
        &[NFPROTO_INET, 0, 0, 0],
    )
}

fn batch_edge(kind: u16) -> Message {
    let [high, low] = NFNL_SUBSYS_NFTABLES.to_be_bytes();
    Message::request(kind, 0, &[0, 0, high, low])
}

fn rule_message(rule: &Rule) -> Message {
    message(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND)
        .text(NFTA_RULE_TABLE, TABLE)
        .text(NFTA_RULE_CHAIN, CHAIN)
        .nested(NFTA_RULE_EXPRESSIONS, |list| {
            verdict_expressions(match_expressions(list, rule.when), rule.verdict)
        })
}

fn match_expressions(list: Message, when: Match) -> Message {
    match when {
        Match::WitnessedToDoor => {
            let list = meta_is(list, NFT_META_NFPROTO, &[libc::NFPROTO_IPV4 as u8]);
            let list = meta_is(list, NFT_META_L4PROTO, &[libc::IPPROTO_TCP as u8]);
            let list = payload(list, NFT_PAYLOAD_NETWORK_HEADER, 16, 4);
            let list = payload_to(list, NFT_REG32_01, NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2);
            let list = expression(list, "lookup", |data| {
                data.text(NFTA_LOOKUP_SET, DOORS)
                    .attribute(NFTA_LOOKUP_SREG, &be32(NFT_REG_1))
            });
            let mark = DOOR_MARK.to_ne_bytes();
            let list = compare(masked(meta(list, NFT_META_MARK), &mark), NFT_CMP_EQ, &mark);
            let list = compare(
                payload(list, NFT_PAYLOAD_NETWORK_HEADER, 0, 1),
                NFT_CMP_EQ,
                &[NONCE_HEADER.0],
            );
            compare(
                payload(list, NFT_PAYLOAD_NETWORK_HEADER, 20, 3),
                NFT_CMP_EQ,
                &NONCE_HEADER.1,
            )
        }
        Match::WithinConnection => {
            let list = meta_is(list, NFT_META_L4PROTO, &[libc::IPPROTO_TCP as u8]);
            let list = payload(list, NFT_PAYLOAD_TRANSPORT_HEADER, TCP_FLAGS, 1);
            compare(masked(list, &[TCP_SYN]), NFT_CMP_EQ, &[0])
        }
        Match::DatagramTo(address) => {
            let list = meta_is(
                destination_is(list, *address.ip()),
                NFT_META_L4PROTO,
                &[libc::IPPROTO_UDP as u8],
            );
            compare(
                payload(list, NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2),
                NFT_CMP_EQ,
                &address.port().to_be_bytes(),
            )
        }
        Match::Loopback => meta_is(list, NFT_META_OIF, &LOOPBACK_INDEX.to_ne_bytes()),
        Match::NeighbourDiscovery => {
            let list = meta_is(list, NFT_META_L4PROTO, &[libc::IPPROTO_ICMPV6 as u8]);
            let list = payload(list, NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1);
            compare(compare(list, NFT_CMP_GTE, &[130]), NFT_CMP_LTE, &[143])
        }
        Match::Tcp => meta_is(list, NFT_META_L4PROTO, &[libc::IPPROTO_TCP as u8]),
        Match::Any => list,
    }
}

fn verdict_expressions(list: Message, verdict: Verdict) -> Message {
    match verdict {
        Verdict::Accept => immediate(list, NF_ACCEPT),
        Verdict::Drop => immediate(list, NF_DROP),
        Verdict::Log => {
            // The limit comes before the log. Otherwise repeated attempts would flood the socket.
            let list = expression(list, "limit", |data| {
                data.attribute(NFTA_LIMIT_RATE, &5_u64.to_be_bytes())
                    .attribute(NFTA_LIMIT_UNIT, &1_u64.to_be_bytes())
                    .attribute(NFTA_LIMIT_BURST, &be32(10))
            });
            expression(list, "log", |data| {
                data.attribute(NFTA_LOG_GROUP, &LOG_GROUP.to_be_bytes())
                    .attribute(NFTA_LOG_SNAPLEN, &be32(128))
                    .attribute(NFTA_LOG_QTHRESHOLD, &1_u16.to_be_bytes())
            })
        }
        Verdict::Reset => expression(list, "reject", |data| {
            data.attribute(NFTA_REJECT_TYPE, &be32(NFT_REJECT_TCP_RST))
        }),
        Verdict::Unreachable => expression(list, "reject", |data| {
            data.attribute(NFTA_REJECT_TYPE, &be32(NFT_REJECT_ICMPX_UNREACH))
                .attribute(NFTA_REJECT_ICMP_CODE, &[NFT_REJECT_ICMPX_PORT_UNREACH])
        }),
    }
}

const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_LOOKUP_SET: u16 = 1;
const NFTA_LOOKUP_SREG: u16 = 2;
const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFTA_BITWISE_SREG: u16 = 1;
const NFTA_BITWISE_DREG: u16 = 2;
const NFTA_BITWISE_LEN: u16 = 3;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_LIMIT_RATE: u16 = 1;
const NFTA_LIMIT_UNIT: u16 = 2;
const NFTA_LIMIT_BURST: u16 = 3;
const NFTA_LOG_GROUP: u16 = 1;
const NFTA_LOG_SNAPLEN: u16 = 3;
const NFTA_LOG_QTHRESHOLD: u16 = 4;
const NFTA_REJECT_TYPE: u16 = 1;
const NFTA_REJECT_ICMP_CODE: u16 = 2;

fn expression(list: Message, name: &str, data: impl FnOnce(Message) -> Message) -> Message {
    list.nested(NFTA_LIST_ELEM, |element| {
        element
            .text(NFTA_EXPR_NAME, name)
            .nested(NFTA_EXPR_DATA, data)
    })
}

fn meta(list: Message, key: u32) -> Message {
    expression(list, "meta", |data| {
        data.attribute(NFTA_META_DREG, &be32(NFT_REG_1))
            .attribute(NFTA_META_KEY, &be32(key))
    })
}

fn meta_is(list: Message, key: u32, value: &[u8]) -> Message {
    compare(meta(list, key), NFT_CMP_EQ, value)
}

/// Keeps only the bits of `mask` in the loaded value.
fn masked(list: Message, mask: &[u8]) -> Message {
    expression(list, "bitwise", |data| {
        data.attribute(NFTA_BITWISE_SREG, &be32(NFT_REG_1))
            .attribute(NFTA_BITWISE_DREG, &be32(NFT_REG_1))
            .attribute(NFTA_BITWISE_LEN, &be32(mask.len() as u32))
            .nested(NFTA_BITWISE_MASK, |nested| {
                nested.attribute(NFTA_DATA_VALUE, mask)
            })
            .nested(NFTA_BITWISE_XOR, |nested| {
                nested.attribute(NFTA_DATA_VALUE, &vec![0; mask.len()])
            })
    })
}

fn payload(list: Message, base: u32, offset: u32, length: u32) -> Message {
    payload_to(list, NFT_REG_1, base, offset, length)
}

/// Loads bytes of the packet into `register`.
fn payload_to(list: Message, register: u32, base: u32, offset: u32, length: u32) -> Message {
    expression(list, "payload", |data| {
        data.attribute(NFTA_PAYLOAD_DREG, &be32(register))
            .attribute(NFTA_PAYLOAD_BASE, &be32(base))
            .attribute(NFTA_PAYLOAD_OFFSET, &be32(offset))
            .attribute(NFTA_PAYLOAD_LEN, &be32(length))
    })
}

fn destination_is(list: Message, address: Ipv4Addr) -> Message {
    let list = meta_is(list, NFT_META_NFPROTO, &[libc::NFPROTO_IPV4 as u8]);
    compare(
        payload(list, NFT_PAYLOAD_NETWORK_HEADER, 16, 4),
        NFT_CMP_EQ,
        &address.octets(),
    )
}

fn compare(list: Message, operator: u32, value: &[u8]) -> Message {
    expression(list, "cmp", |data| {
        data.attribute(NFTA_CMP_SREG, &be32(NFT_REG_1))
            .attribute(NFTA_CMP_OP, &be32(operator))
            .nested(NFTA_CMP_DATA, |nested| {
                nested.attribute(NFTA_DATA_VALUE, value)
            })
    })
}

fn immediate(list: Message, code: u32) -> Message {
    expression(list, "immediate", |data| {
        data.attribute(NFTA_IMMEDIATE_DREG, &be32(NFT_REG_VERDICT))
            .nested(NFTA_IMMEDIATE_DATA, |nested| {
                nested.nested(NFTA_DATA_VERDICT, |verdict| {
                    verdict.attribute(NFTA_VERDICT_CODE, &be32(code))
                })
            })
    })
}
