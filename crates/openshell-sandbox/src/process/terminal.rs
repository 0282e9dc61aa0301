//! Log lines while a command has the caller's terminal.

use openshell_access::control::console::Lines;
use openshell_telemetry::logging;

/// How they are kept off it.
pub(crate) const HELD_LINES: Lines = Lines {
    hold: logging::hold,
    release: logging::release,
};
