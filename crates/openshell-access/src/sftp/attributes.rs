//! Attributes of files, as packets carry them and as listings of directories show them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Stat, Timespec, Timestamps};
use time::OffsetDateTime;

use super::packet::{Fields, Reply};

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 0x8000_0000;

/// Attributes to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) size: Option<u64>,
    pub(super) owner: Option<(u32, u32)>,
    pub(super) permissions: Option<u32>,
    /// Times of the last access and of the last change, in seconds since 1970.
    pub(super) times: Option<(u32, u32)>,
}

impl Wanted {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let flags = fields.u32()?;
        let mut wanted = Self::default();
        if flags & SIZE != 0 {
            wanted.size = Some(fields.u64()?);
        }
        if flags & OWNER != 0 {
            wanted.owner = Some((fields.u32()?, fields.u32()?));
        }
        if flags & PERMISSIONS != 0 {
            wanted.permissions = Some(fields.u32()?);
        }
        if flags & TIMES != 0 {
            wanted.times = Some((fields.u32()?, fields.u32()?));
        }
        if flags & EXTENDED != 0 {
            for _ in 0..fields.u32()? {
                fields.bytes()?;
                fields.bytes()?;
            }
        }
        Some(wanted)
    }

    /// Returns the times for utimensat(2).
    pub(super) fn timestamps(&self) -> Option<Timestamps> {
        let (access, change) = self.times?;
        let time = |seconds: u32| Timespec {
            tv_sec: seconds.into(),
            tv_nsec: 0,
        };
        Some(Timestamps {
            last_access: time(access),
            last_modification: time(change),
        })
    }
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    size: u64,
    uid: u32,
    gid: u32,
    mode: u32,
    links: u64,
    accessed: i64,
    changed: i64,
}

impl From<&Metadata> for Found {
    fn from(data: &Metadata) -> Self {
        let uid = data.uid();
        let gid = data.gid();
        let mode = data.mode();
        let links = data.nlink();
        Self {
            size: data.size(),
            uid,
            gid,
            mode,
            links,
            accessed: data.atime(),
            changed: data.mtime(),
        }
    }
}

impl From<&Stat> for Found {
    #[allow(
        clippy::useless_conversion,
        reason = "the count of links has 32 bits on other processors"
    )]
    fn from(data: &Stat) -> Self {
        Self {
            size: u64::try_from(data.st_size).unwrap_or(0),
            uid: data.st_uid,
            gid: data.st_gid,
            mode: data.st_mode,
            links: u64::from(data.st_nlink),
            accessed: data.st_atime,
            changed: data.st_mtime,
        }
    }
}

impl Found {
    pub(super) fn write(&self, reply: &mut Reply<'_>) {
        // The protocol has 32 bits for times, which end in 2106.
        let seconds = |time: i64| u32::try_from(time).unwrap_or(0);
        reply.u32(SIZE | OWNER | PERMISSIONS | TIMES);
        reply.u64(self.size);
        for number in [
            self.uid,
            self.gid,
            self.mode,
            seconds(self.accessed),
            seconds(self.changed),
        ] {
            reply.u32(number);
        }
    }

    /// Returns the line that `ls -l` would print for a file with this name. Clients show it
    /// unchanged.
    pub(super) fn line(&self, name: &[u8]) -> Vec<u8> {
        const MONTHS: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        let time =
            OffsetDateTime::from_unix_timestamp(self.changed).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let month = MONTHS
            .get(usize::from(u8::from(time.month())) - 1)
            .unwrap_or(&"");
        let Self {
            uid,
            gid,
            size,
            links,
            ..
        } = self;
        let day = time.day();
        let year = time.year();
        let mode = self.mode_text();
        let line =
            format!("{mode} {links:>3} {uid:<8} {gid:<8} {size:>8} {month} {day:>2} {year:>5} ");
        [line.as_bytes(), name].concat()
    }

    fn mode_text(&self) -> String {
        let kind = match self.mode & 0o170_000 {
            0o040_000 => 'd',
            0o120_000 => 'l',
            0o020_000 => 'c',
            0o060_000 => 'b',
            0o010_000 => 'p',
            0o140_000 => 's',
            _ => '-',
        };
        let bits = (0..9).rev().zip("rwx".chars().cycle());
        std::iter::once(kind)
            .chain(bits.map(|(bit, letter)| {
                if self.mode & 1 << bit != 0 {
                    letter
                } else {
                    '-'
                }
            }))
            .collect()
    }
}
