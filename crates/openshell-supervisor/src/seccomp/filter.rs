//! Compiles rows to BPF, before anything is forked (seccomp(2)).

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::seccomp::rules::{Action, Comparison, Condition, LAST_KNOWN, Row};
use crate::sys;

/// A compiled filter: one BPF program per action, as a program has a single action for all of its rules.
#[derive(Clone, Debug)]
pub struct Filter(Vec<Vec<libc::sock_filter>>);

/// Failure to compile rows.
#[derive(Debug, thiserror::Error)]
#[error("cannot compile the system-call filter for this architecture")]
pub struct CompileError(#[source] seccompiler::BackendError);

impl Filter {
    /// Compiles `rows`. A call through another architecture's table kills the process.
    ///
    /// # Errors
    /// seccompiler does not support the architecture.
    pub fn compile<'r>(rows: impl Iterator<Item = &'r Row>) -> Result<Self, CompileError> {
        let mut actions: BTreeMap<Action, BTreeMap<i64, Vec<SeccompRule>>> = BTreeMap::new();
        for row in rows {
            let rules = actions.entry(row.action).or_default().entry(row.number).or_default();
            // A system call without rules matches always.
            if !row.when.is_empty() {
                let conditions = row.when.iter().map(condition).collect::<Result<_, _>>().map_err(CompileError)?;
                rules.push(SeccompRule::new(conditions).map_err(CompileError)?);
            }
        }
        let programs = actions.into_iter().map(|(action, rules)| program(action, rules));
        Ok(Self(programs.collect::<Result<_, _>>().map_err(CompileError)?))
    }

    /// Installs the filter for the calling thread and all that it starts. Needs `no_new_privs` or CAP_SYS_ADMIN.
    /// Programs are installed from last to first, as the first may refuse further installations.
    ///
    /// # Errors
    /// The kernel lacks seccomp filters.
    pub(crate) fn install(&self) -> io::Result<()> {
        self.0.iter().rev().try_for_each(|program| sys::set_seccomp_filter(program, sys::Threads::This))
    }

    /// Installs the filter for all threads of the calling process.
    ///
    /// # Errors
    /// The kernel lacks seccomp filters, or a thread already has a filter that the others have not.
    pub(crate) fn install_for_process(&self) -> io::Result<()> {
        self.0.iter().rev().try_for_each(|program| sys::set_seccomp_filter(program, sys::Threads::All))
    }

    #[cfg(test)]
    pub(super) fn programs(&self) -> &[Vec<libc::sock_filter>] {
        &self.0
    }
}

fn condition(condition: &Condition) -> Result<SeccompCondition, seccompiler::BackendError> {
    let (length, operator, value) = match condition.comparison {
        Comparison::Equal(value) => (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value),
        Comparison::Unequal(value) => (SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value),
        Comparison::NotNull => (SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0),
        Comparison::Masked { mask, value } => (SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(u64::from(mask)), value),
    };
    SeccompCondition::new(condition.argument, length, operator, u64::from(value))
}

fn program(
    action: Action,
    rules: BTreeMap<i64, Vec<SeccompRule>>,
) -> Result<Vec<libc::sock_filter>, seccompiler::BackendError> {
    let architecture: TargetArch = std::env::consts::ARCH.try_into()?;
    let refuse = SeccompAction::Errno(action.errno().cast_unsigned());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)?;
    let program: BpfProgram = filter.try_into()?;
    let program = program.into_iter().map(|instruction| libc::sock_filter {
        code: instruction.code,
        jt: instruction.jt,
        jf: instruction.jf,
        k: instruction.k,
    });
    let mut program: Vec<_> = program.collect();
    refuse_unknown(&mut program);
    Ok(program)
}

/// Returns ENOSYS for every number above [`LAST_KNOWN`], as the rows cannot know such calls.
fn refuse_unknown(program: &mut Vec<libc::sock_filter>) {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    // `struct seccomp_data` begins with the number. All jumps are forward, and those over the load (of the architecture
    // check) end at it, so two instructions inserted behind it shift no target.
    let load_number = program.iter().position(|instruction| instruction.code == LOAD_WORD && instruction.k == 0);
    let behind = load_number.map_or(program.len(), |index| index + 1);
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
    program.splice(behind..behind, [instruction(JUMP_GREATER, 0, 1, LAST_KNOWN), instruction(RETURN, 0, 0, refuse)]);
}
