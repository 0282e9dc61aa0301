//! Servers inside that no client has reached, summed up at the end of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::RangeInclusive;

use openshell_events::text;
use parking_lot::{Mutex, MutexGuard};

/// The most servers that are kept, and the most lines of a summary.
const SERVERS: usize = 16;

/// The most reached ports that are kept. A run that reaches that many uses its servers itself.
const REACHED: usize = 1_024;

/// Ports that the kernel chooses in a new network (ip(7), `ip_local_port_range`).
const CHOSEN: RangeInclusive<u16> = 32_768..=60_999;

/// Servers inside, and the ports that programs inside have connected to.
#[derive(Debug, Default)]
pub(crate) struct Servers(Mutex<Ports>);

#[derive(Debug, Default)]
struct Ports {
    /// Ports of servers, with their programs.
    listening: BTreeMap<u16, String>,
    reached: BTreeSet<u16>,
}

impl Servers {
    fn ports(&self) -> MutexGuard<'_, Ports> {
        // A panic elsewhere cannot leave the ports inconsistent.
        self.0.lock()
    }

    /// Notes that a `program` listens at `port`, if there is room for it.
    pub(crate) fn listens(&self, port: u16, program: impl FnOnce() -> String) {
        let is_new = {
            let ports = self.ports();
            ports.listening.len() < SERVERS
                && !ports.listening.contains_key(&port)
                && !ports.reached.contains(&port)
        };
        // The program is looked up without holding the lock.
        if is_new {
            let program = program();
            self.ports().listening.insert(port, program);
        }
    }

    /// Notes that a program inside connects to `port`.
    pub(crate) fn reached(&self, port: u16) {
        let mut ports = self.ports();
        ports.listening.remove(&port);
        if ports.reached.len() < REACHED {
            ports.reached.insert(port);
        }
    }

    /// Returns a line for each server that no program inside has connected to and that is not among
    /// the `published`; `None` if there is none, or if [`REACHED`] ports were reached.
    pub(crate) fn summary(&self, published: impl IntoIterator<Item = u16>) -> Option<String> {
        let ports = self.ports();
        let mut listening = ports.listening.clone();
        for port in published {
            listening.remove(&port);
        }
        if listening.is_empty() || ports.reached.len() == REACHED {
            return None;
        }
        let mut summary =
            "openshell-sandbox: no program connected to these servers, and none outside can:"
                .to_owned();
        for (port, program) in listening {
            let program = text::printable(&program);
            let remedy = if CHOSEN.contains(&port) {
                "the kernel chose this port; give the server a fixed port, and name it with \
                 --publish"
                    .to_owned()
            } else {
                format!("--publish {port} lets clients outside in")
            };
            // Writing to a String cannot fail.
            let _ = write!(summary, "\n  {program} at port {port}; {remedy}");
        }
        Some(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::{REACHED, SERVERS, Servers};

    #[test]
    fn a_server_is_named_unless_it_was_reached_or_is_published_and_they_are_bounded() {
        let servers = Servers::default();
        let node = || "/usr/bin/node".to_owned();
        assert_eq!(servers.summary([]), None);
        for port in [8000, 8001, 8002, 40_000] {
            servers.listens(port, node);
        }
        servers.reached(8001);
        servers.listens(8001, node);
        let expected = "openshell-sandbox: no program connected to these servers, and none outside \
                        can:\n  /usr/bin/node at port 8000; --publish 8000 lets clients outside \
                        in\n  /usr/bin/node at port 40000; the kernel chose this port; give the \
                        server a fixed port, and name it with --publish";
        assert_eq!(servers.summary([8002]).as_deref(), Some(expected));
        for port in 1..=2 * SERVERS as u16 {
            servers.listens(port, node);
        }
        assert_eq!(servers.summary([]).unwrap().lines().count(), 1 + SERVERS);
        for port in 1..=2 * REACHED as u16 {
            servers.reached(port);
        }
        assert_eq!(
            (servers.summary([]), servers.ports().reached.len()),
            (None, REACHED)
        );
    }
}
