//! The parts of a sandbox that a start begins to make before it has read its configuration.

mod export;
pub(crate) mod monitoring;
pub(crate) mod network;

use std::time::SystemTime;

use openshell_supervisor::helpers::runner::Runner;
use openshell_supervisor::host::privilege::Privilege;
use openshell_supervisor::init::Init;

use crate::process::parent::Parent;
use crate::process::timings::Timings;
use crate::startup::groundwork::network::PendingNetwork;

/// What a start begins with.
pub(crate) struct Groundwork {
    /// A time before any file was read.
    pub(crate) begun: SystemTime,
    pub(crate) privilege: Privilege,
    pub(crate) init: Init,
    pub(crate) network: PendingNetwork,
    /// The parent of programs outside, if an option names one.
    pub(crate) runner: Option<Runner>,
    /// The parent that the sandbox ends with.
    pub(crate) parent: Option<Parent>,
    pub(crate) timings: Timings,
}
