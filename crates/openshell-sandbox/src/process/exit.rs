//! Exit codes, and the end of a command.

use std::process::ExitCode;

use openshell_events::text;
use openshell_supervisor::init::Status;
use openshell_supervisor::init::launch::LaunchError;
use openshell_telemetry::logging;
use rustix::process::Signal;

/// The exit code that `timeout(1)` uses for a time-out.
const TIMED_OUT: u8 = 124;

/// Returns the exit code for an error that kept the command from running.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    error
        .downcast_ref::<LaunchError>()
        .map_or(1, LaunchError::exit_code)
}

/// Prints why nothing ran: one line or, for an invalid policy, one line per violation. Returns the
/// exit code.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    logging::print_failure(&text::indented(&format!("openshell-sandbox: {error:#}")));
    ExitCode::from(exit_code(error))
}

/// Why the supervisor asked the command to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// The supervisor received a signal.
    Signal,
    TimeOut,
}

impl EndCause {
    /// Returns the exit code of a command that had to be killed.
    pub(crate) fn code_of_kill(self) -> u8 {
        match self {
            Self::TimeOut => TIMED_OUT,
            Self::Signal => Status::Killed(Signal::KILL.as_raw()).exit_code(),
        }
    }
}

/// Returns the exit code of a command that ended with `status`.
pub(crate) fn code_of_status(status: Status, cause: Option<EndCause>) -> u8 {
    match cause {
        Some(EndCause::TimeOut) => TIMED_OUT,
        Some(EndCause::Signal) | None => status.exit_code(),
    }
}

/// The end of a command that ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) code: u8,
    /// Why the supervisor asked the command to end, if it did.
    pub(crate) cause: Option<EndCause>,
}

impl Ended {
    /// Returns the result, the exit code and the cause, for the log.
    pub(crate) fn summary(self) -> String {
        let result = if self.code == 0 && self.cause.is_none() {
            "success"
        } else {
            "failure"
        };
        let cause = match self.cause {
            None => "",
            Some(EndCause::Signal) => " ended by a signal",
            Some(EndCause::TimeOut) => " ended by the time-out",
        };
        format!("{result} [exit:{}]{cause}", self.code)
    }
}

#[cfg(test)]
mod tests {
    use openshell_supervisor::init::Status;

    use super::{EndCause, code_of_status};

    #[test]
    fn a_time_out_decides_the_code_and_a_signal_leaves_it_to_the_command() {
        for (status, cause, code) in [
            (Status::Exited(3), None, 3),
            (Status::Exited(256 + 7), None, 7),
            (Status::Killed(15), None, 143),
            (Status::Exited(0), Some(EndCause::Signal), 0),
            (Status::Exited(0), Some(EndCause::TimeOut), 124),
            (Status::Killed(15), Some(EndCause::TimeOut), 124),
        ] {
            assert_eq!(code_of_status(status, cause), code, "{status:?} {cause:?}");
        }
        assert_eq!(
            [EndCause::Signal, EndCause::TimeOut].map(EndCause::code_of_kill),
            [137, 124]
        );
    }
}
