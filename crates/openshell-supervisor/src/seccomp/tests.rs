use std::collections::BTreeSet;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::seccomp::bpf::ARCHITECTURE;
use crate::seccomp::filter::Filter;
use crate::seccomp::ioctls::{ALLOWED, Family};
use crate::seccomp::options::LEVELS;
use crate::seccomp::rules::{
    Comparison, Condition, LAST_KNOWN, Row, Sockets, rows, rows_for_shared_pids,
    rows_with_debugging, supervisor_rows,
};
use crate::sys;

/// Runs `work` on a separate thread, with or without the filter, which is per thread. The thread is
/// root with every capability, so only the filter can refuse.
fn on_thread<T: Send>(sockets: Option<Sockets>, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Some(sockets) = sockets {
                Filter::compile(rows(sockets, &[]))
                    .unwrap()
                    .install()
                    .unwrap();
            }
            work()
        });
        thread.join().unwrap()
    })
}

/// Returns arguments that meet the row's conditions and are otherwise invalid, so that the call has
/// no effect without the filter.
fn arguments(row: &Row) -> [libc::c_long; 6] {
    let mut arguments = [-1; 6];
    for condition in row.when {
        let argument = &mut arguments[usize::from(condition.argument)];
        // The upper half is set: the kernel ignores it, and so must the filter.
        let wide = |value: u32| 0x7fff_ffff_0000_0000 | i64::from(value);
        *argument = match condition.comparison {
            Comparison::Equal(value) => wide(value),
            // Its lower half is zero, like that of a page at 4 GiB.
            Comparison::NotNull => 0x7fff_0000_0000_0000,
            Comparison::Masked { value, .. } => wide(value | harmless(row.number)),
            // This is none of the families, protocols and options that a row excepts.
            Comparison::Unequal(_) | Comparison::Unmasked { .. } => wide(0x7fff),
        };
    }
    arguments
}

/// Returns bits that no condition compares, and that make the kernel refuse calls that would have
/// an effect.
fn harmless(number: libc::c_long) -> u32 {
    match number {
        // These stand for a new user namespace that shares the file system, and for a thread that
        // does not share its memory.
        libc::SYS_clone | libc::SYS_unshare => libc::CLONE_FS as u32 | 0x8000_0000,
        _ => 0,
    }
}

// Conformance: SCP-01, SCP-03, SCP-04, SCP-05.
#[test]
fn every_row_is_refused_with_its_answer() {
    // Without a network, internet sockets are refused before their other defects matter.
    let shared = rows(Sockets::Internet, &[]).count();
    for (index, row) in rows(Sockets::Local, &[]).enumerate() {
        let sockets = if index < shared {
            Sockets::Internet
        } else {
            Sockets::Local
        };
        let result = on_thread(Some(sockets), || sys::call(row.number, arguments(&row)));
        assert_eq!(result, answer(&row), "{}: {}", row.name, row.reason);
    }
}

/// Returns the expected result of a call that the row refuses.
fn answer(row: &Row) -> Result<libc::c_long, i32> {
    match row.action.errno() {
        0 => Ok(0),
        errno => Err(errno),
    }
}

#[test]
fn without_the_filter_something_else_answers_each_row() {
    for row in rows(Sockets::Local, &[]) {
        let result = on_thread(None, || sys::call(row.number, arguments(&row)));
        assert_ne!(
            result,
            answer(&row),
            "{}: root was refused without a filter",
            row.name
        );
    }
}

// Conformance: SCP-02.
#[test]
fn the_families_that_programs_need_are_open() {
    let families = [
        (libc::AF_UNIX, 0),
        (libc::AF_INET, 0),
        (libc::AF_INET6, 0),
        (libc::AF_NETLINK, libc::NETLINK_ROUTE),
    ];
    for (family, protocol) in families {
        let arguments = [
            family.into(),
            libc::SOCK_DGRAM.into(),
            protocol.into(),
            0,
            0,
            0,
        ];
        let result = on_thread(Some(Sockets::Internet), || {
            sys::call(libc::SYS_socket, arguments)
        });
        assert!(result.is_ok(), "family {family}: {result:?}");
        let result = on_thread(Some(Sockets::Local), || {
            sys::call(libc::SYS_socket, arguments)
        });
        let is_internet = family == libc::AF_INET || family == libc::AF_INET6;
        assert_eq!(
            result == Err(libc::EPERM),
            is_internet,
            "family {family} without a network"
        );
    }
}

/// Runs `work` like [`on_thread`], under the supervisor's own filter.
fn as_supervisor<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    on_thread(None, || {
        Filter::compile(supervisor_rows())
            .unwrap()
            .install()
            .unwrap();
        work()
    })
}

#[test]
fn the_supervisor_gives_up_what_its_rows_say() {
    for row in supervisor_rows().filter(|row| row.number != libc::SYS_clone) {
        let result = as_supervisor(|| sys::call(row.number, arguments(&row)));
        assert_eq!(
            result,
            Err(row.action.errno()),
            "{}: {}",
            row.name,
            row.reason
        );
    }
    // Creating a process is refused; without the filter, the same flags are refused for another
    // reason.
    let no_thread = [
        0x7fff_ffff_0000_0000 | i64::from(libc::CLONE_SIGHAND),
        -1,
        -1,
        -1,
        -1,
        -1,
    ];
    assert_eq!(
        as_supervisor(|| sys::call(libc::SYS_clone, no_thread)),
        Err(libc::EPERM)
    );
    assert_eq!(
        on_thread(None, || sys::call(libc::SYS_clone, no_thread)),
        Err(libc::EINVAL)
    );
}

#[test]
fn the_supervisor_keeps_threads_and_namespaces() {
    as_supervisor(|| {
        std::thread::spawn(|| ()).join().unwrap();
        let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&here), None).unwrap();
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn x32_numbers_are_not_a_second_way_in() {
    let under_filter =
        |number| on_thread(Some(Sockets::Internet), move || sys::call(number, [0; 6]));
    assert_eq!(
        under_filter(0x4000_0000 | libc::SYS_getpid),
        Err(libc::ENOSYS)
    );
    assert!(under_filter(libc::SYS_getpid).is_ok());
}

/// A system call as a filter sees it.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: u32,
    arguments: [u64; 6],
}

/// Runs a filter on `call` (the kernel's `Documentation/networking/filter.rst`). Returns its answer
/// and the number of instructions that it took. This does not need a kernel, so any call can be
/// tried.
fn run(program: &[libc::sock_filter], architecture: u32, call: Call) -> (u32, usize) {
    let [number, arch, pointer] =
        [call.number, architecture, 0].map(|word: u32| word.to_ne_bytes());
    let mut data = [number, arch, pointer, pointer].concat();
    data.extend(
        call.arguments
            .iter()
            .flat_map(|argument| argument.to_ne_bytes()),
    );
    let mut at = 0;
    let mut loaded = 0;
    let mut taken = 0;
    loop {
        let libc::sock_filter { code, jt, jf, k } = program[at];
        taken += 1;
        at += 1;
        let holds = match code {
            0x20 => {
                let offset = k as usize;
                loaded = u32::from_ne_bytes(data[offset..offset + 4].try_into().unwrap());
                continue;
            }
            0x54 => {
                loaded &= k;
                continue;
            }
            0x05 => {
                at += k as usize;
                continue;
            }
            0x06 => return (k, taken),
            0x15 => loaded == k,
            0x25 => loaded > k,
            0x35 => loaded >= k,
            0x45 => loaded & k != 0,
            _ => panic!("instruction {code:#x}"),
        };
        at += usize::from(if holds { jt } else { jf });
    }
}

/// Returns the answer that `rows` should give to `call`.
fn meant(rows: &[Row], call: Call) -> u32 {
    let holds = |condition: &Condition| {
        let argument = call.arguments[usize::from(condition.argument)];
        match condition.comparison {
            Comparison::Equal(value) => argument as u32 == value,
            Comparison::Unequal(value) => argument as u32 != value,
            Comparison::NotNull => argument != 0,
            Comparison::Masked { mask, value } => argument as u32 & mask == value,
            Comparison::Unmasked { mask, value } => argument as u32 & mask != value,
        }
    };
    let matching = rows
        .iter()
        .filter(|row| row.number as u32 == call.number && row.when.iter().all(holds));
    let first = matching
        .min_by_key(|row| row.action)
        .map(|row| row.action.errno());
    let unknown = (call.number > LAST_KNOWN).then_some(libc::ENOSYS);
    unknown.or(first).map_or(libc::SECCOMP_RET_ALLOW, |errno| {
        libc::SECCOMP_RET_ERRNO | errno as u32
    })
}

/// Returns the filters of workloads and of the supervisor.
fn filters() -> [Vec<Row>; 5] {
    [
        rows(Sockets::Internet, &[]).collect(),
        rows(
            Sockets::Local,
            &[Family::Graphics, Family::Kfd, Family::Nvidia],
        )
        .collect(),
        rows(Sockets::Local, &[Family::Other]).collect(),
        rows_with_debugging(Sockets::Internet, &[]).collect(),
        supervisor_rows().collect(),
    ]
}

/// Returns calls with this number, whose arguments are the values in the conditions of `rows` and
/// neighbouring values, with and without bits in the upper half.
fn calls(rows: &[Row], number: u32) -> Vec<Call> {
    let of_call = rows.iter().filter(|row| row.number as u32 == number);
    let conditions: Vec<_> = of_call.flat_map(|row| row.when).collect();
    let mut all = vec![[0; 6]];
    for argument in 0..5 {
        let mut named = BTreeSet::from([0]);
        for condition in &conditions {
            if usize::from(condition.argument) == argument {
                named.extend(match condition.comparison {
                    Comparison::Equal(value) | Comparison::Unequal(value) => {
                        vec![value, value ^ 1, value ^ 0x8000_0000]
                    }
                    Comparison::Masked { mask, value } | Comparison::Unmasked { mask, value } => {
                        vec![value, value ^ mask, value | !mask]
                    }
                    Comparison::NotNull => vec![1],
                });
            }
        }
        let before = std::mem::take(&mut all);
        for arguments in before {
            for value in &named {
                for upper in [0, 1 << 32] {
                    let mut arguments: [u64; 6] = arguments;
                    arguments[argument] = u64::from(*value) | upper;
                    all.push(arguments);
                }
            }
        }
    }
    all.into_iter()
        .map(|arguments| Call { number, arguments })
        .collect()
}

#[test]
fn a_filter_answers_every_call_as_its_rows_mean_it() {
    for rows in filters() {
        let filter = Filter::compile(rows.iter().copied()).unwrap();
        for number in (0..LAST_KNOWN + 600).chain([0x4000_0000, 0x4000_0000 | 41, u32::MAX]) {
            for call in calls(&rows, number) {
                let (answer, _) = run(filter.program(), ARCHITECTURE, call);
                assert_eq!(answer, meant(&rows, call), "{call:x?}");
            }
        }
    }
}

/// Compiles `rows` with another compiler. Returns a program for each row, with its number, the
/// first action first.
fn second_opinion(rows: &[Row]) -> Vec<(u32, Vec<libc::sock_filter>)> {
    let mut ordered = rows.to_vec();
    ordered.sort_by_key(|row| row.action);
    let program = |row: Row| {
        // A call passes if one of the conditions does not hold.
        let passing: Vec<_> = row.when.iter().flat_map(opposites).collect();
        let rules = passing
            .into_iter()
            .map(|condition| SeccompRule::new(vec![condition]).unwrap());
        let rules: Vec<_> = rules.collect();
        // For this compiler, a number without rules always matches.
        let of_call = (!rules.is_empty()).then_some((row.number, rules));
        let filter = SeccompFilter::new(
            of_call.into_iter().collect(),
            SeccompAction::Errno(row.action.errno().cast_unsigned()),
            SeccompAction::Allow,
            std::env::consts::ARCH.try_into().unwrap(),
        );
        let program: BpfProgram = filter.unwrap().try_into().unwrap();
        let steps = program.into_iter().map(|step| libc::sock_filter {
            code: step.code,
            jt: step.jt,
            jf: step.jf,
            k: step.k,
        });
        (row.number as u32, steps.collect())
    };
    ordered.into_iter().map(program).collect()
}

/// Returns conditions, at least one of which holds if and only if `condition` does not hold.
fn opposites(condition: &Condition) -> Vec<SeccompCondition> {
    let one = |length, operator, value: u32| {
        SeccompCondition::new(condition.argument, length, operator, value.into()).unwrap()
    };
    let half = |operator, value| one(SeccompCmpArgLen::Dword, operator, value);
    match condition.comparison {
        Comparison::Equal(value) => vec![half(SeccompCmpOp::Ne, value)],
        Comparison::Unequal(value) => vec![half(SeccompCmpOp::Eq, value)],
        Comparison::NotNull => vec![one(SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)],
        Comparison::Unmasked { mask, value } => {
            vec![half(SeccompCmpOp::MaskedEq(mask.into()), value)]
        }
        // At least one bit differs.
        Comparison::Masked { mask, value } => {
            let bits = (0..u32::BITS).map(|bit| 1 << bit);
            let of_mask = bits.filter(|bit| mask & bit != 0);
            of_mask
                .map(|bit| half(SeccompCmpOp::MaskedEq(bit.into()), !value & bit))
                .collect()
        }
    }
}

/// Returns the first call that the filter of `rows` answers in another way than a second compiler's
/// programs of `others`.
fn disagreement(rows: &[Row], others: &[Row]) -> Option<Call> {
    let filter = Filter::compile(rows.iter().copied()).unwrap();
    let programs = second_opinion(others);
    for number in 0..=LAST_KNOWN {
        for call in calls(rows, number) {
            let (answer, _) = run(filter.program(), ARCHITECTURE, call);
            let mut second = libc::SECCOMP_RET_ALLOW;
            for (_, program) in programs.iter().filter(|(of, _)| *of == number) {
                second = run(program, ARCHITECTURE, call).0;
                if second != libc::SECCOMP_RET_ALLOW {
                    break;
                }
            }
            if answer != second {
                return Some(call);
            }
        }
    }
    None
}

#[test]
fn a_second_compiler_makes_filters_of_the_same_answers_and_each_row_counts() {
    for rows in filters() {
        let disagreement = disagreement(&rows, &rows);
        assert!(disagreement.is_none(), "{disagreement:x?}");
    }
    let rows: Vec<_> = rows(Sockets::Internet, &[]).collect();
    // Without a row, or with another condition, the two must disagree about some call.
    let number = libc::SYS_memfd_create;
    let without: Vec<_> = rows
        .iter()
        .copied()
        .filter(|row| row.number != number)
        .collect();
    let call = disagreement(&rows, &without).unwrap();
    assert_eq!(i64::from(call.number), number);
    let first = rows.iter().position(|row| !row.when.is_empty()).unwrap();
    let mut changed = rows.clone();
    changed[first].when = &[];
    let call = disagreement(&rows, &changed).unwrap();
    assert_eq!(i64::from(call.number), rows[first].number);
}

#[test]
fn a_call_of_another_architecture_kills_whatever_its_number() {
    let filter = Filter::compile(rows(Sockets::Internet, &[])).unwrap();
    for number in 0..LAST_KNOWN + 10 {
        let (answer, _) = run(
            filter.program(),
            0x4000_0003,
            Call {
                number,
                arguments: [0; 6],
            },
        );
        assert_eq!(answer, libc::SECCOMP_RET_KILL_PROCESS);
    }
}

#[test]
fn a_call_without_a_row_passes_after_a_few_comparisons() {
    let rows: Vec<_> = rows(Sockets::Internet, &[]).collect();
    let filter = Filter::compile(rows.iter().copied()).unwrap();
    let free =
        (0..LAST_KNOWN).filter(|number| !rows.iter().any(|row| row.number as u32 == *number));
    let longest = free
        .map(|number| {
            run(
                filter.program(),
                ARCHITECTURE,
                Call {
                    number,
                    arguments: [0; 6],
                },
            )
            .1
        })
        .max();
    assert!(longest <= Some(24), "{longest:?}");
}

#[test]
fn every_row_has_a_reason() {
    assert!(rows(Sockets::Local, &[]).all(|row| !row.reason.is_empty()));
}

#[test]
fn every_option_that_may_be_set_passes_and_its_neighbours_do_not() {
    on_thread(Some(Sockets::Internet), || {
        // The descriptor is not a socket, so the kernel returns EBADF for calls that pass the
        // filter.
        let set = |level: i32, option: i32| {
            sys::call(
                libc::SYS_setsockopt,
                [-1, level.into(), option.into(), 0, 0, 0],
            )
        };
        for level in LEVELS {
            for (name, number) in level.allowed {
                assert_eq!(set(level.number, *number), Err(libc::EBADF), "{name}");
            }
            for number in
                (0..512).filter(|number| !level.allowed.iter().any(|(_, known)| known == number))
            {
                assert_eq!(
                    set(level.number, number),
                    Err(libc::ENOPROTOOPT),
                    "{} {number}",
                    level.name
                );
            }
        }
        for level in (0..300).filter(|level| !LEVELS.iter().any(|known| known.number == *level)) {
            assert_eq!(set(level, 1), Err(libc::ENOPROTOOPT), "level {level}");
        }
    });
}

#[test]
fn protocols_and_types_that_programs_need_are_open_and_no_others() {
    let dgram = libc::SOCK_DGRAM;
    let stream = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    on_thread(Some(Sockets::Internet), || {
        let open = |family: i32, kind: i32, protocol: i32| {
            sys::call(
                libc::SYS_socket,
                [family.into(), kind.into(), protocol.into(), 0, 0, 0],
            )
        };
        for family in [libc::AF_INET, libc::AF_INET6] {
            for (kind, protocol) in [
                (stream, 0),
                (stream, libc::IPPROTO_TCP),
                (dgram, 0),
                (dgram, libc::IPPROTO_UDP),
            ] {
                assert!(
                    open(family, kind, protocol).is_ok(),
                    "{family} {kind} {protocol}"
                );
            }
            for protocol in (2..300).filter(|number| ![6, 17, 58].contains(number)) {
                // This type does not exist; the kernel itself would return EINVAL for it.
                assert_eq!(
                    open(family, 7, protocol),
                    Err(libc::EPROTONOSUPPORT),
                    "protocol {protocol}"
                );
                assert_eq!(
                    open(family, stream, protocol),
                    Err(libc::EPROTONOSUPPORT),
                    "protocol {protocol}"
                );
            }
            for kind in [
                libc::SOCK_RAW,
                libc::SOCK_RDM,
                libc::SOCK_SEQPACKET,
                libc::SOCK_DCCP,
                10,
            ] {
                assert_eq!(
                    open(family, kind | libc::SOCK_CLOEXEC, 0),
                    Err(libc::EPROTONOSUPPORT),
                    "type {kind}"
                );
            }
        }
        let seqpacket = [libc::AF_UNIX, libc::SOCK_SEQPACKET];
        assert!(
            open(seqpacket[0], seqpacket[1], 0).is_ok(),
            "Unix sockets have types of their own"
        );
    });
}

#[test]
fn personalities_that_programs_set_are_open() {
    on_thread(Some(Sockets::Internet), || {
        for persona in [0xffff_ffff_i64, 0, 0x8, 0x2_0000, 0x4_0000, 0x4_0008, 0] {
            assert!(
                sys::call(libc::SYS_personality, [persona, 0, 0, 0, 0, 0]).is_ok(),
                "{persona:x}"
            );
        }
        assert_eq!(
            sys::call(libc::SYS_personality, [0x40_0000, 0, 0, 0, 0, 0]),
            Err(libc::EPERM),
            "READ_IMPLIES_EXEC"
        );
    });
}

/// Returns the conditions of a row in the words of the documentation page.
#[cfg(target_arch = "x86_64")]
fn conditions(row: &Row) -> String {
    let condition = |condition: &Condition| {
        let place = condition.argument + 1;
        match condition.comparison {
            Comparison::Equal(value) => format!("argument {place} is {value:#x}"),
            Comparison::Unequal(value) => format!("argument {place} is not {value:#x}"),
            Comparison::NotNull => format!("argument {place} is not null"),
            Comparison::Masked { mask, value } => {
                format!("argument {place} & {mask:#x} is {value:#x}")
            }
            Comparison::Unmasked { mask, value } => {
                format!("argument {place} & {mask:#x} is not {value:#x}")
            }
        }
    };
    // The long lists are those of options, which the page shows in a separate table.
    match row.when {
        [] => "always".to_owned(),
        [first, ..]
            if row.number == libc::SYS_setsockopt
                && matches!(first.comparison, Comparison::Equal(_)) =>
        {
            format!(
                "{}, and the option is none of those below",
                condition(first)
            )
        }
        [first, ..]
            if row.number == libc::SYS_ioctl
                && matches!(first.comparison, Comparison::Unequal(_)) =>
        {
            "argument 2 is none of the commands below".to_owned()
        }
        all => all.iter().map(condition).collect::<Vec<_>>().join(", "),
    }
}

#[test]
fn with_shared_process_numbers_others_are_left_alone_and_the_caller_is_not() {
    let on_filtered = |row: &Row, arguments: [libc::c_long; 6]| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                Filter::compile(rows_for_shared_pids(true))
                    .unwrap()
                    .install()
                    .unwrap();
                sys::call(row.number, arguments)
            });
            thread.join().unwrap()
        })
    };
    for row in rows_for_shared_pids(true) {
        assert_eq!(
            on_filtered(&row, arguments(&row)),
            Err(libc::EPERM),
            "{}",
            row.name
        );
        assert_ne!(on_filtered(&row, [0; 6]), Err(libc::EPERM), "{}", row.name);
    }
    assert_eq!(rows_for_shared_pids(false).count(), 0);
}

// One row exists only on x86-64.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_page_of_system_calls_shows_every_row_and_every_option() {
    let name = |row: &Row| row.name.trim_start_matches("SYS_").to_owned();
    let errno = |row: &Row| match row.action.errno() {
        libc::EPERM => "EPERM",
        libc::ENOSYS => "ENOSYS",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::ENOPROTOOPT => "ENOPROTOOPT",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ENOTTY => "ENOTTY",
        _ => "success, and nothing happens",
    };
    let line = |row: Row| {
        let when = conditions(&row);
        let reason = row.reason;
        let breaks = row.breaks;
        format!(
            "| `{}` | {when} | {} | {reason} | {breaks} |\n",
            name(&row),
            errno(&row)
        )
    };
    let rows: String = rows(Sockets::Local, &[]).map(line).collect();
    let others: String = rows_for_shared_pids(true).map(line).collect();
    let options: String = LEVELS
        .iter()
        .map(|level| {
            let names: Vec<_> = level.allowed.iter().map(|(name, _)| *name).collect();
            format!("| {} | {} |\n", level.name, names.join(" "))
        })
        .collect();
    let page = include_str!("../../../../docs/security/system-calls.md");
    let commands: String = ALLOWED
        .iter()
        .map(|(name, number)| format!("| `{name}` | {number:#x} |\n"))
        .collect();
    for (what, table) in [
        ("calls", rows),
        ("others", others),
        ("options", options),
        ("commands", commands),
    ] {
        let found = page
            .split(&format!("<!-- {what} -->\n"))
            .nth(1)
            .unwrap_or_default();
        assert!(
            found == table,
            "docs/security/system-calls.md, between its marks `{what}`, should hold:\n{table}"
        );
    }
}
