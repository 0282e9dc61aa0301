//! The parts of a sandbox that are under way before its configuration has been read.

pub(crate) mod monitoring;
pub(crate) mod network;

use std::time::SystemTime;

use openshell_supervisor::host::privilege::Privilege;
use openshell_supervisor::init::Init;

use crate::parent::Parent;
use crate::startup::groundwork::network::PendingNetwork;
use crate::timings::Timings;

/// What a start begins with.
pub(crate) struct Groundwork {
    /// The time before any file was read.
    pub(crate) begun: SystemTime,
    pub(crate) privilege: Privilege,
    pub(crate) init: Init,
    pub(crate) network: PendingNetwork,
    /// The parent that the sandbox ends with.
    pub(crate) parent: Option<Parent>,
    pub(crate) timings: Timings,
}
