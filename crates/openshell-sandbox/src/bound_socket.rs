//! Unix sockets for clients outside of the sandbox.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use openshell_supervisor::paths::own_folder::OwnFolder;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A socket at a path, removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    listener: UnixListener,
    /// The path of the socket, through the folder's open descriptor.
    path: PathBuf,
    _folder: OwnFolder,
    /// Device and inode of the socket that is to be removed.
    identity: (u64, u64),
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        // Another server may have put its socket in this place.
        if std::fs::symlink_metadata(&self.path)
            .is_ok_and(|data| (data.dev(), data.ino()) == self.identity)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl BoundSocket {
    /// Listens at `path` for this user and root only. Makes missing folders for this user only;
    /// others must not be able to write to a folder that exists, unless it is sticky. Replaces the
    /// socket of a server that is gone.
    ///
    /// # Errors
    /// Fails if the socket cannot be made there, or others could put another one in its place.
    pub(crate) fn bind(path: &Path) -> anyhow::Result<Self> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            bail!("it does not end with a file name")
        };
        let folder = OwnFolder::make(folder, 0o700).context("its folder cannot be made")?;
        let path = folder.reached().join(name);
        let data = std::fs::metadata(folder.reached()).context("its folder cannot be read")?;
        let own = rustix::process::geteuid().as_raw();
        if data.uid() != own && data.uid() != 0
            || data.mode() & 0o022 != 0 && data.mode() & 0o1000 == 0
        {
            bail!("others may write to its folder; name one where only you or root may write");
        }
        match std::fs::symlink_metadata(&path) {
            Ok(data) if data.file_type().is_socket() && is_ended(&path)? => {
                std::fs::remove_file(&path)
                    .context("the socket of a server that has ended cannot be removed")?;
            }
            Ok(_) => bail!(
                "another file, or the socket of a running server, is in its place; name another \
                 path"
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("what is in its place cannot be read"),
        }
        // If the permissions were set only after binding, others could connect in between.
        let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(&path);
        rustix::process::umask(mask);
        let listener = bound?;
        listener.set_nonblocking(true)?;
        let data = std::fs::symlink_metadata(&path)?;
        Ok(Self {
            listener,
            path,
            _folder: folder,
            identity: (data.dev(), data.ino()),
        })
    }

    /// Returns another handle of the socket.
    ///
    /// # Errors
    /// Fails if no more descriptors are available.
    pub(crate) fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

/// Returns true if no server listens at the socket any more. A server that accepts no connections
/// at the moment still counts.
fn is_ended(socket: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let client = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let connected = rustix::net::connect(client, &SocketAddrUnix::new(socket)?);
    Ok(matches!(connected, Err(Errno::CONNREFUSED | Errno::NOENT)))
}
