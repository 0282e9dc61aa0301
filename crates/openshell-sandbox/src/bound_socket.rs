//! Unix sockets for clients outside of the sandbox.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use openshell_supervisor::trusted_symlinks::place_to_make;
use rustix::fs::Mode;

/// A socket at a path, removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of what is to be removed.
    identity: (u64, u64),
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        // Another server may have taken its place.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|data| (data.dev(), data.ino()) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl BoundSocket {
    /// Listens at `path`, for this user and root alone: missing folders are made for them alone, and one that is there must not be open to
    /// others. Replaces the socket of a server that is gone.
    ///
    /// # Errors
    /// The socket cannot be made there, or others could put another one in its place.
    pub(crate) fn bind(path: &Path) -> anyhow::Result<Self> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { bail!("it names no file") };
        let folder = &place_to_make(folder)?;
        let path = &folder.join(name);
        if !folder.exists() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .context("its folder cannot be made")?;
        }
        let data = std::fs::metadata(folder).context("its folder cannot be looked at")?;
        let own = rustix::process::geteuid().as_raw();
        if data.uid() != own && data.uid() != 0 || data.mode() & 0o022 != 0 && data.mode() & 0o1000 == 0 {
            bail!("others may write to its folder");
        }
        match std::fs::symlink_metadata(path) {
            Ok(data) if data.file_type().is_socket() && UnixStream::connect(path).is_err() => {
                std::fs::remove_file(path).context("the socket of an ended server is in its place")?;
            }
            Ok(_) => bail!("something else is in its place"),
            Err(_) => {}
        }
        // Between binding and a change of permissions others could connect.
        let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(mask);
        let listener = bound?;
        listener.set_nonblocking(true)?;
        let data = std::fs::symlink_metadata(path)?;
        Ok(Self { listener, path: path.to_owned(), identity: (data.dev(), data.ino()) })
    }

    /// Returns another handle of the socket.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(crate) fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}
