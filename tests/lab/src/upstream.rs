//! Upstream servers that record the bytes that they receive.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::net::Shutdown;

use crate::host::Lab;

/// A server. Dropping it stops it.
#[derive(Debug)]
pub struct Upstream {
    listener: Arc<TcpListener>,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Upstream {
    /// Starts a server at `address` that sends `answer` after the first bytes of each connection;
    /// without one it echoes.
    pub(crate) fn start(lab: &Lab, address: SocketAddr, answer: Option<&'static [u8]>) -> Self {
        let listener = Arc::new(lab.inside(move || TcpListener::bind(address).unwrap()));
        let seen: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let accepting = Arc::clone(&listener);
        let record = Arc::clone(&seen);
        thread::spawn(move || {
            for (index, stream) in accepting.incoming().map_while(Result::ok).enumerate() {
                record.lock().unwrap().push(Vec::new());
                let record = Arc::clone(&record);
                thread::spawn(move || {
                    serve(stream, answer, |bytes| {
                        record.lock().unwrap()[index].extend(bytes)
                    })
                });
            }
        });
        Self { listener, seen }
    }

    /// Returns the bytes received so far, by connection.
    ///
    /// # Panics
    /// A server thread panicked.
    #[must_use]
    pub fn seen(&self) -> Vec<Vec<u8>> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        // Wakes the thread from its accept.
        let _ = rustix::net::shutdown(&*self.listener, Shutdown::Both);
    }
}

fn serve(mut stream: TcpStream, answer: Option<&'static [u8]>, record: impl Fn(&[u8])) {
    let mut buffer = [0; 4096];
    while let Ok(filled @ 1..) = stream.read(&mut buffer) {
        record(&buffer[..filled]);
        if stream
            .write_all(answer.unwrap_or(&buffer[..filled]))
            .is_err()
        {
            return;
        }
    }
}
