//! The instructions of the kernel's filter machine (seccomp(2), the kernel's
//! `Documentation/networking/filter.rst`).

use libc::sock_filter;

/// The architecture in `struct seccomp_data` (linux/audit.h).
#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

/// The offsets of the call's number and architecture in `struct seccomp_data`.
pub(super) const NUMBER: u32 = 0;
pub(super) const ARCH: u32 = 4;

/// Returns the offset of the lower half of an argument. The upper half is four bytes behind it,
/// because both architectures are little-endian.
pub(super) const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// A comparison of the accumulator with a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Test {
    Equal,
    Greater,
    AtLeast,
    /// Any bit of the number is set.
    AnyBit,
}

/// Loads the word at `offset` of `struct seccomp_data`.
pub(super) const fn load(offset: u32) -> sock_filter {
    step(
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        0,
        0,
        offset,
    )
}

/// Keeps only the bits of `mask`.
pub(super) const fn and(mask: u32) -> sock_filter {
    step(
        (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16,
        0,
        0,
        mask,
    )
}

/// Skips `yes` instructions if the comparison with `value` holds, otherwise `no` instructions.
pub(super) const fn jump_if(test: Test, value: u32, yes: u8, no: u8) -> sock_filter {
    let test = match test {
        Test::Equal => libc::BPF_JEQ,
        Test::Greater => libc::BPF_JGT,
        Test::AtLeast => libc::BPF_JGE,
        Test::AnyBit => libc::BPF_JSET,
    };
    step((libc::BPF_JMP | test | libc::BPF_K) as u16, yes, no, value)
}

/// Skips `count` instructions.
pub(super) const fn jump(count: u32) -> sock_filter {
    step((libc::BPF_JMP | libc::BPF_JA) as u16, 0, 0, count)
}

/// Ends with `answer` (`SECCOMP_RET_…`).
pub(super) const fn end(answer: u32) -> sock_filter {
    step((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, answer)
}

/// Ends with an error number for the caller.
pub(super) const fn end_with_error(errno: i32) -> sock_filter {
    end(libc::SECCOMP_RET_ERRNO | errno.cast_unsigned())
}

const fn step(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}
