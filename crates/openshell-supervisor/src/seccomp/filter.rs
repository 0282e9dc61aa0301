//! Compiles rows to a BPF program before anything is forked (seccomp(2)).
//!
//! All answers are in one program, because the kernel verifies, compiles and runs every installed
//! program. It is a search tree over the numbers of calls, whose leaves hold the rows of each
//! number. So a call without a row passes after a few comparisons.

use std::collections::BTreeMap;
use std::io;

use libc::sock_filter;

use crate::seccomp::bpf::{
    ARCH, ARCHITECTURE, NUMBER, Test, and, argument, end, end_with_error, jump, jump_if, load,
};
use crate::seccomp::rules::{Comparison, Condition, LAST_KNOWN, Row};
use crate::sys;

/// A compiled filter.
#[derive(Clone, Debug)]
pub struct Filter(Vec<sock_filter>);

/// The error for a row with more conditions than a jump can skip.
#[derive(Debug, thiserror::Error)]
#[error("cannot compile the system-call filter: {0} has too many conditions")]
pub struct CompileError(&'static str);

impl Filter {
    /// Compiles `rows`. If several match a call, the one whose action is declared first
    /// answers. A call through another architecture's table kills the process. A call above
    /// [`LAST_KNOWN`], which the rows cannot know, gets ENOSYS.
    ///
    /// # Errors
    /// Fails if a row has more conditions than a jump can skip.
    pub fn compile(rows: impl Iterator<Item = Row>) -> Result<Self, CompileError> {
        let mut calls: BTreeMap<u32, Vec<Row>> = BTreeMap::new();
        for row in rows {
            // The numbers of calls are small.
            calls.entry(row.number as u32).or_default().push(row);
        }
        let mut leaves = Vec::with_capacity(calls.len());
        for (number, mut rows) in calls {
            rows.sort_by_key(|row| row.action);
            leaves.push((number, answers(&rows)?));
        }
        let mut program = vec![
            load(ARCH),
            jump_if(Test::Equal, ARCHITECTURE, 1, 0),
            end(libc::SECCOMP_RET_KILL_PROCESS),
            load(NUMBER),
            jump_if(Test::Greater, LAST_KNOWN, 0, 1),
            end_with_error(libc::ENOSYS),
        ];
        program.extend(tree(&leaves));
        Ok(Self(program))
    }

    /// Installs the filter for the calling thread and everything that it starts. Needs
    /// `no_new_privs` or CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// Fails if the kernel lacks seccomp filters.
    pub(crate) fn install(&self) -> io::Result<()> {
        sys::set_seccomp_filter(&self.0, sys::Threads::This)
    }

    /// Installs the filter for all threads of the calling process.
    ///
    /// # Errors
    /// Fails if the kernel lacks seccomp filters, or if a thread already has a filter that the
    /// others do not have.
    pub(crate) fn install_for_process(&self) -> io::Result<()> {
        sys::set_seccomp_filter(&self.0, sys::Threads::All)
    }

    #[cfg(test)]
    pub(super) fn program(&self) -> &[sock_filter] {
        &self.0
    }
}

/// The largest number of calls that are compared one after the other.
const LEAVES: usize = 3;

/// Returns the instructions that search for the loaded number and continue with its answers. A call
/// that is not found is allowed.
fn tree(leaves: &[(u32, Vec<sock_filter>)]) -> Vec<sock_filter> {
    let mut steps = Vec::new();
    if leaves.len() > LEAVES {
        let (lower, upper) = leaves.split_at(leaves.len() / 2);
        let first = upper.first().map_or(0, |(number, _)| *number);
        let lower = tree(lower);
        steps.extend([jump_if(Test::AtLeast, first, 0, 1), skip(&lower)]);
        steps.extend(lower);
        steps.extend(tree(upper));
        return steps;
    }
    for (number, answers) in leaves {
        steps.extend([jump_if(Test::Equal, *number, 1, 0), skip(answers)]);
        steps.extend_from_slice(answers);
    }
    steps.push(end(libc::SECCOMP_RET_ALLOW));
    steps
}

fn skip(steps: &[sock_filter]) -> sock_filter {
    // The kernel accepts at most 4,096 instructions.
    jump(u32::try_from(steps.len()).unwrap_or(u32::MAX))
}

/// Returns the instructions that answer a call with the first of `rows` whose conditions hold, and
/// allow it if there is none.
fn answers(rows: &[Row]) -> Result<Vec<sock_filter>, CompileError> {
    let mut steps = Vec::new();
    for row in rows {
        steps.extend(answer(row)?);
        if row.when.is_empty() {
            return Ok(steps);
        }
    }
    steps.push(end(libc::SECCOMP_RET_ALLOW));
    Ok(steps)
}

/// Returns the instructions of a row: its answer, which they skip unless all conditions hold.
fn answer(row: &Row) -> Result<Vec<sock_filter>, CompileError> {
    let mut steps = vec![end_with_error(row.action.errno())];
    // The conditions are added from the last to the first, because each jumps over everything
    // behind it.
    for (
        index,
        Condition {
            argument: place,
            comparison,
        },
    ) in row.when.iter().enumerate().rev()
    {
        let beyond = u8::try_from(steps.len()).map_err(|_| CompileError(row.name))?;
        let lower = argument((*place).into());
        let mut condition = vec![load(lower)];
        match comparison {
            Comparison::Equal(value) => condition.push(jump_if(Test::Equal, *value, 0, beyond)),
            Comparison::Unequal(value) => condition.push(jump_if(Test::Equal, *value, beyond, 0)),
            Comparison::Masked { mask, value } => {
                condition.extend([and(*mask), jump_if(Test::Equal, *value, 0, beyond)]);
            }
            Comparison::Unmasked { mask, value } => {
                condition.extend([and(*mask), jump_if(Test::Equal, *value, beyond, 0)]);
            }
            Comparison::NotNull => condition.extend([
                jump_if(Test::Equal, 0, 0, 2),
                load(lower + 4),
                jump_if(Test::Equal, 0, beyond, 0),
            ]),
        }
        let before = index.checked_sub(1).and_then(|before| row.when.get(before));
        if before
            .is_some_and(|before| before.argument == *place && leaves_it_loaded(before.comparison))
        {
            condition.remove(0);
        }
        steps.splice(0..0, condition);
    }
    Ok(steps)
}

/// Returns true if the lower half of the argument is still loaded after the comparison.
fn leaves_it_loaded(comparison: Comparison) -> bool {
    matches!(comparison, Comparison::Equal(_) | Comparison::Unequal(_))
}
