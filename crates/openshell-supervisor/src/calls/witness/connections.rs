//! Keeps the callers of connections that are not accepted yet, and of connects that went elsewhere.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The bit of a socket's mark that only the witness's own connects have. The egress firewall
/// demands it of connections to doors.
pub const DOOR_MARK: u32 = 1 << 31;

/// The largest number of connections that wait to be accepted at once. It is more than the queue of
/// a listener holds.
pub(super) const PENDING: usize = 4_096;

/// The time in which a connection must be accepted.
const ACCEPT_DEADLINE: Duration = Duration::from_secs(30);

/// The same time if there are [`PENDING`] connections. It is enough to send a first packet twice.
const FULL_DEADLINE: Duration = Duration::from_secs(4);

/// The time between two removals of connections that were not accepted in time.
const PURGE_INTERVAL: Duration = Duration::from_secs(1);

/// The number of connects elsewhere that are remembered. The egress firewall logs five per second.
const NOTES: usize = 256;

/// The largest number of notes per second, because it takes long to look at a caller with many
/// ancestors.
const NOTES_PER_SECOND: u32 = 100;

/// The callers of connections that are not accepted yet, by nonce.
#[derive(Debug)]
pub(super) struct Pending<C> {
    connections: HashMap<u64, (Instant, C)>,
    last: u64,
    /// The time at which connections that were not accepted in time were last removed.
    purged: Option<Instant>,
}

impl<C> Default for Pending<C> {
    fn default() -> Self {
        Self {
            connections: HashMap::new(),
            last: 0,
            purged: None,
        }
    }
}

impl<C> Pending<C> {
    /// Adds a connection of `caller` and returns its nonce, which no other connection ever gets.
    /// Returns the caller if there are [`PENDING`] connections already.
    pub(super) fn add(&mut self, caller: C) -> Result<u64, C> {
        let now = Instant::now();
        let is_full = self.connections.len() >= PENDING;
        if is_full
            || self
                .purged
                .is_none_or(|purged| now.duration_since(purged) >= PURGE_INTERVAL)
        {
            self.purged = Some(now);
            let deadline = if is_full {
                FULL_DEADLINE
            } else {
                ACCEPT_DEADLINE
            };
            self.connections
                .retain(|_, (begin, _)| now.duration_since(*begin) < deadline);
        }
        if self.connections.len() >= PENDING {
            return Err(caller);
        }
        self.last += 1;
        self.connections.insert(self.last, (now, caller));
        Ok(self.last)
    }

    /// Removes the connection with `nonce`. Returns its caller if the connection was accepted in
    /// time.
    pub(super) fn take(&mut self, nonce: u64) -> Option<C> {
        let (begin, caller) = self.connections.remove(&nonce)?;
        (begin.elapsed() < ACCEPT_DEADLINE).then_some(caller)
    }
}

/// The notes of the last connects elsewhere, by the mark of their packets.
#[derive(Debug)]
pub(super) struct Notes<N> {
    notes: VecDeque<N>,
    /// The mark of the last note.
    last: u32,
    /// The start of the current second, and the number of notes asked for in it.
    second: Option<(Instant, u32)>,
}

impl<N> Default for Notes<N> {
    fn default() -> Self {
        Self {
            notes: VecDeque::new(),
            last: 0,
            second: None,
        }
    }
}

impl<N: Clone> Notes<N> {
    /// Adds a note and returns its mark, which is never 0 and never has [`DOOR_MARK`] set.
    pub(super) fn add(&mut self, note: N) -> u32 {
        if self.last == DOOR_MARK - 1 {
            *self = Self::default();
        }
        if self.notes.len() == NOTES {
            self.notes.pop_front();
        }
        self.notes.push_back(note);
        self.last += 1;
        self.last
    }

    /// Returns true if there is room for a further note in this second, and reserves it.
    pub(super) fn has_room(&mut self) -> bool {
        let now = Instant::now();
        match &mut self.second {
            Some((begin, count)) if now.duration_since(*begin) < Duration::from_secs(1) => {
                *count += 1;
                *count <= NOTES_PER_SECOND
            }
            second => {
                *second = Some((now, 1));
                true
            }
        }
    }

    pub(super) fn get(&self, mark: u32) -> Option<N> {
        let from_last = usize::try_from(self.last.checked_sub(mark)?).ok()?;
        let index = self.notes.len().checked_sub(from_last + 1)?;
        self.notes.get(index).cloned()
    }
}

/// The number of sockets connected to the name server that are remembered.
const ASKERS: usize = 256;

/// How long such a socket is remembered. Afterwards its port may belong to another socket.
const ASKING: Duration = Duration::from_secs(10);

/// The notes of the last sockets that were connected to the name server, by their ports.
#[derive(Debug)]
pub(super) struct Askers<N>(VecDeque<(Instant, u16, N)>);

impl<N> Default for Askers<N> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<N: Clone> Askers<N> {
    pub(super) fn add(&mut self, port: u16, note: N) {
        if self.0.len() == ASKERS {
            self.0.pop_front();
        }
        self.0.push_back((Instant::now(), port, note));
    }

    /// Returns the note of the last socket at `port`.
    pub(super) fn get(&self, port: u16) -> Option<N> {
        let (begin, _, note) = self.0.iter().rev().find(|(_, of, _)| *of == port)?;
        (begin.elapsed() < ASKING).then(|| note.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{DOOR_MARK, NOTES, NOTES_PER_SECOND, Notes, PENDING, Pending};

    #[test]
    fn a_connection_has_one_caller_once_and_their_number_is_bounded() {
        let mut pending = Pending::default();
        let nonces: Vec<u64> = (0..PENDING)
            .map(|caller| pending.add(caller).unwrap())
            .collect();
        assert_eq!(pending.add(7), Err(7));
        assert_eq!(pending.take(nonces[5]), Some(5));
        assert_eq!(pending.take(nonces[5]), None);
        let next = pending.add(9).unwrap();
        assert!(!nonces.contains(&next), "a nonce is never used again");
        assert_eq!(pending.take(next), Some(9));
        assert_eq!(pending.take(0), None);
    }

    #[test]
    fn the_last_notes_are_found_by_their_marks_and_no_mark_is_a_doors() {
        let mut notes = Notes::default();
        let marks: Vec<u32> = (0..NOTES + 3).map(|caller| notes.add(caller)).collect();
        assert_eq!(notes.get(marks[2]), None);
        assert_eq!(notes.get(marks[3]), Some(3));
        assert_eq!(notes.get(marks[NOTES + 2]), Some(NOTES + 2));
        assert_eq!(
            (
                notes.get(0),
                notes.get(marks[NOTES + 2] + 1),
                notes.get(u32::MAX)
            ),
            (None, None, None)
        );
        let room = (0..10 * NOTES_PER_SECOND)
            .filter(|_| notes.has_room())
            .count();
        assert!((100..1000).contains(&room), "{room}");
        notes.last = DOOR_MARK - 1;
        assert_eq!(notes.add(1), 1);
        assert_eq!(notes.get(1), Some(1));
    }
}
