//! Exit codes, and the end of a command.

use openshell_supervisor::init::Status;
use openshell_supervisor::init::launch::LaunchError;
use rustix::process::Signal;

/// Exit code of `timeout(1)` at a time-out.
const TIMED_OUT: u8 = 124;
/// Exit codes of a shell when a command cannot be executed, and when there is none.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Returns the exit code for an error that kept the command from running.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<LaunchError>() {
        Some(LaunchError::NotFound(_)) => NOT_FOUND,
        Some(LaunchError::NotExecutable { .. } | LaunchError::NoInterpreter(_)) => NOT_EXECUTABLE,
        _ => 1,
    }
}

/// Cause of an end that the supervisor asked the command for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// A signal to the supervisor.
    Signal,
    TimeOut,
}

impl EndCause {
    /// Returns the exit code of a command that had to be killed.
    pub(crate) fn code_of_kill(self) -> u8 {
        match self {
            Self::TimeOut => TIMED_OUT,
            Self::Signal => code_of_killed(),
        }
    }
}

/// Returns the exit code of a command that ended with `status`.
pub(crate) fn code_of_status(status: Status, cause: Option<EndCause>) -> u8 {
    match (cause, status) {
        (Some(EndCause::TimeOut), _) => TIMED_OUT,
        // The kernel keeps 8 bits of an exit code.
        (_, Status::Exited(code)) => u8::try_from(code & 0xff).unwrap_or(1),
        (_, Status::Killed(signal)) => code_of_signal(signal),
    }
}

/// Returns the exit code of a command that ended with its sandbox.
pub(crate) fn code_of_killed() -> u8 {
    code_of_signal(Signal::KILL.as_raw())
}

fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The end of a command that ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) code: u8,
    /// Cause of an end that the supervisor asked for.
    pub(crate) cause: Option<EndCause>,
}

impl Ended {
    /// Returns result, exit code and cause, for the log.
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
