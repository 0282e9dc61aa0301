//! The workload's network, and requests to the kernel for it.

pub mod netlink;
pub mod netns;
