//! Packets of the SSH File Transfer Protocol, version 3 (draft-ietf-secsh-filexfer-02).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Types of packets.
pub(super) mod kind {
    pub(crate) const INIT: u8 = 1;
    pub(crate) const VERSION: u8 = 2;
    pub(crate) const OPEN: u8 = 3;
    pub(crate) const CLOSE: u8 = 4;
    pub(crate) const READ: u8 = 5;
    pub(crate) const WRITE: u8 = 6;
    pub(crate) const LSTAT: u8 = 7;
    pub(crate) const FSTAT: u8 = 8;
    pub(crate) const SETSTAT: u8 = 9;
    pub(crate) const FSETSTAT: u8 = 10;
    pub(crate) const OPENDIR: u8 = 11;
    pub(crate) const READDIR: u8 = 12;
    pub(crate) const REMOVE: u8 = 13;
    pub(crate) const MKDIR: u8 = 14;
    pub(crate) const RMDIR: u8 = 15;
    pub(crate) const REALPATH: u8 = 16;
    pub(crate) const STAT: u8 = 17;
    pub(crate) const RENAME: u8 = 18;
    pub(crate) const READLINK: u8 = 19;
    pub(crate) const SYMLINK: u8 = 20;
    pub(crate) const STATUS: u8 = 101;
    pub(crate) const HANDLE: u8 = 102;
    pub(crate) const DATA: u8 = 103;
    pub(crate) const NAME: u8 = 104;
    pub(crate) const ATTRS: u8 = 105;
    pub(crate) const EXTENDED: u8 = 200;
    pub(crate) const EXTENDED_REPLY: u8 = 201;
}

/// The fields of a request that have not been read yet. Each method returns `None` if the packet is
/// too short.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'p>(pub(super) &'p [u8]);

impl<'p> Fields<'p> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*number)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    pub(super) fn bytes(&mut self) -> Option<&'p [u8]> {
        let length = usize::try_from(self.u32()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Reads a path; an empty one means the current directory.
    pub(super) fn path(&mut self) -> Option<&'p Path> {
        let bytes = self.bytes()?;
        Some(Path::new(if bytes.is_empty() {
            OsStr::new(".")
        } else {
            OsStr::from_bytes(bytes)
        }))
    }
}

/// A reply, whose length is filled in at the end.
#[derive(Debug)]
pub(super) struct Reply<'o> {
    output: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> Reply<'o> {
    pub(super) fn new(output: &'o mut Vec<u8>, kind: u8, id: u32) -> Self {
        let start = output.len();
        output.extend([0; 4]);
        output.push(kind);
        output.extend(id.to_be_bytes());
        Self { output, start }
    }

    pub(super) fn u32(&mut self, number: u32) {
        self.output.extend(number.to_be_bytes());
    }

    pub(super) fn u64(&mut self, number: u64) {
        self.output.extend(number.to_be_bytes());
    }

    /// Adds bytes, which must be fewer than a packet can hold.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.output.extend_from_slice(bytes);
    }

    /// Adds up to `most` bytes, which `read` fills in, and returns how many; drops the reply if
    /// there are none.
    ///
    /// # Errors
    /// Fails if `read` fails, and then drops the reply.
    pub(super) fn filled(
        mut self,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
    ) -> rustix::io::Result<usize> {
        let place = self.output.len();
        self.output.resize(place + 4 + most, 0);
        let filled = read(self.output.get_mut(place + 4..).unwrap_or_default());
        match filled {
            Ok(count @ 1..) => {
                self.output.truncate(place + 4 + count);
                if let Some(length) = self.output.get_mut(place..place + 4) {
                    length.copy_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
                }
                self.finish();
            }
            Ok(0) | Err(_) => self.output.truncate(self.start),
        }
        filled
    }

    /// Fills in the length.
    pub(super) fn finish(&mut self) {
        let length = u32::try_from(self.output.len() - self.start - 4).unwrap_or(u32::MAX);
        if let Some(place) = self.output.get_mut(self.start..self.start + 4) {
            place.copy_from_slice(&length.to_be_bytes());
        }
    }
}
