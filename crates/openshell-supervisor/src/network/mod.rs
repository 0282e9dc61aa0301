//! The workload's network, and requests to the kernel for it.

pub mod netlink;
pub mod netns;
pub mod refused_packets;
