//! The workload's network, and the requests to the kernel that make it.

pub mod netlink;
pub mod netns;
pub mod refused_packets;
