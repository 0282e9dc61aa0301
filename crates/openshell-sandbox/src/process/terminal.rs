//! Log lines while a command has the caller's terminal.

use openshell_access::control::console::Lines;
use openshell_telemetry::logging;

/// Functions that hold log lines back from the terminal, and release them.
pub(crate) const HELD_LINES: Lines = Lines {
    hold: logging::hold,
    release: logging::release,
};
