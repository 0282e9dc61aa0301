//! Waits for the supervisor's own children: init, and orphans where the supervisor is PID 1 of an image.

use rustix::process::{Pid, WaitOptions};

use crate::init::Init;

/// The only one in the supervisor that waits.
#[derive(Debug)]
pub struct Reaper {
    init: Pid,
}

impl Reaper {
    /// A reaper that knows `init` from the orphans.
    #[must_use]
    pub fn new(init: &Init) -> Self {
        Self { init: init.pid }
    }

    /// Collects every child that has ended; true if init is among them, or there are no children any more.
    #[must_use]
    pub fn collect(&self) -> bool {
        self.wait(WaitOptions::NOHANG)
    }

    /// Waits until init has ended, which is when every process of the sandbox has.
    pub fn wait_for_init(&self) {
        while !self.wait(WaitOptions::empty()) {}
    }

    fn wait(&self, options: WaitOptions) -> bool {
        loop {
            match rustix::process::wait(options) {
                Ok(Some((pid, _))) if pid == self.init => return true,
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }
}
