//! Bounds on questions, so that nobody can tire a person.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// The most requests that are held at once.
pub(super) const HELD: usize = 64;

/// The most requests of one program that are held at once.
pub(super) const HELD_OF_PROGRAM: usize = 16;

/// The most new questions of one program in a minute.
const NEW_OF_PROGRAM: usize = 5;

/// The most requests of one program that are asked about in a minute, new or not.
const ASKED: usize = 120;

/// The denials in a row after which a program is not asked for any more.
const DENIALS: u32 = 3;

/// The most things that are not asked again.
const DENIED_FOR_RUN: usize = 1_024;

/// The waits in a row that nobody looks at, after which nothing waits.
const UNSEEN: u32 = 5;

/// The time in which new questions are counted.
const MINUTE: Duration = Duration::from_secs(60);

/// What is not asked again after it was denied for the run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeniedForRun {
    pub(super) program: String,
    pub(super) target: String,
    pub(super) request: Option<(String, String)>,
    /// The method of a message, and what it is about.
    pub(super) message: Option<(String, Option<String>)>,
}

/// What counts as new.
#[derive(Clone, Debug, PartialEq, Eq)]
struct New {
    at: Instant,
    program: String,
    target: String,
}

/// The counts behind the bounds.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    new: VecDeque<New>,
    /// When requests were asked about, by program.
    asked: HashMap<String, VecDeque<Instant>>,
    /// Denials in a row, by program.
    denials: HashMap<String, u32>,
    denied: BTreeSet<DeniedForRun>,
    /// True once there was no room for another one.
    is_full: bool,
    unseen: u32,
    /// Requests that were not held because of a bound.
    pub(super) refused: u64,
}

impl Bounds {
    /// Returns true if `wish` of `program` may not be asked about.
    pub(super) fn forbid(&self, program: &str, wish: &DeniedForRun) -> bool {
        self.forbid_all(program) || self.denied.contains(wish)
    }

    /// Counts a new question of `program` about `target`; returns false if there are more than `rate`
    /// in a minute. Another one about the same target is not new.
    pub(super) fn count(&mut self, program: &str, target: &str, rate: usize) -> bool {
        let now = Instant::now();
        while self
            .new
            .front()
            .is_some_and(|new| now.duration_since(new.at) >= MINUTE)
        {
            self.new.pop_front();
        }
        // A question takes time to make, whether anybody sees it or not.
        self.asked.retain(|_, asked| {
            while asked
                .front()
                .is_some_and(|at| now.duration_since(*at) >= MINUTE)
            {
                asked.pop_front();
            }
            !asked.is_empty()
        });
        let asked = self.asked.entry(program.to_owned()).or_default();
        if asked.len() >= ASKED {
            return false;
        }
        asked.push_back(now);
        let mut of_program = self.new.iter().filter(|new| new.program == program);
        if of_program.clone().any(|new| new.target == target) {
            return true;
        }
        if self.new.len() >= rate || of_program.nth(NEW_OF_PROGRAM - 1).is_some() {
            return false;
        }
        self.new.push_back(New {
            at: now,
            program: program.to_owned(),
            target: target.to_owned(),
        });
        true
    }

    /// Counts a denial of `program`; returns true if it is not asked for any more because of it.
    pub(super) fn deny(&mut self, program: &str) -> bool {
        let count = self.denials.entry(program.to_owned()).or_default();
        *count += 1;
        *count == DENIALS
    }

    /// Ends the row of denials of `program`.
    pub(super) fn permit(&mut self, program: &str) {
        self.denials.remove(program);
    }

    /// Notes that `wish` is not asked again; returns true if nothing is asked any more because of it.
    pub(super) fn deny_for_run(&mut self, wish: DeniedForRun) -> bool {
        if self.denied.len() < DENIED_FOR_RUN {
            self.denied.insert(wish);
            return false;
        }
        !std::mem::replace(&mut self.is_full, true)
    }

    /// Returns true if nothing of `program` is asked about.
    pub(super) fn forbid_all(&self, program: &str) -> bool {
        let is_muted = self
            .denials
            .get(program)
            .is_some_and(|count| *count >= DENIALS);
        is_muted || self.is_full || self.unseen >= UNSEEN
    }

    /// Notes a wait that nobody looked at.
    pub(super) fn was_unseen(&mut self) {
        self.unseen += 1;
    }

    /// Notes that somebody looks.
    pub(super) fn is_seen(&mut self) {
        self.unseen = 0;
    }

    /// Returns the programs that are not asked for any more.
    pub(super) fn muted(&self) -> Vec<&str> {
        let muted = self.denials.iter().filter(|(_, count)| **count >= DENIALS);
        let mut muted: Vec<_> = muted.map(|(program, _)| program.as_str()).collect();
        muted.sort_unstable();
        muted
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ASKED, Bounds, DENIALS, DENIED_FOR_RUN, DeniedForRun, MINUTE, NEW_OF_PROGRAM, UNSEEN,
    };

    fn wish(number: usize) -> DeniedForRun {
        DeniedForRun {
            program: "/bin/a".to_owned(),
            target: number.to_string(),
            request: None,
            message: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_questions_are_counted_by_the_minute_and_further_ones_of_a_target_are_not_new() {
        let mut bounds = Bounds::default();
        for number in 0..NEW_OF_PROGRAM {
            assert!(bounds.count("/bin/a", &number.to_string(), 10));
        }
        assert!(!bounds.count("/bin/a", "other", 10));
        for _ in NEW_OF_PROGRAM + 1..ASKED {
            assert!(bounds.count("/bin/a", "0", 10));
        }
        assert!(!bounds.count("/bin/a", "0", 10), "too many at all");
        for number in 0..NEW_OF_PROGRAM {
            assert!(bounds.count("/bin/b", &number.to_string(), 10));
        }
        assert!(!bounds.count("/bin/c", "0", 10), "ten of all programs");
        tokio::time::advance(MINUTE).await;
        assert!(bounds.count("/bin/a", "other", 10));
    }

    #[test]
    fn three_denials_in_a_row_mute_a_program_until_one_is_permitted() {
        let mut bounds = Bounds::default();
        let denials: Vec<_> = (0..DENIALS).map(|_| bounds.deny("/bin/a")).collect();
        assert_eq!(denials, [false, false, true]);
        assert!(bounds.forbid("/bin/a", &wish(0)));
        assert!(!bounds.forbid("/bin/b", &wish(0)));
        assert_eq!(bounds.muted(), ["/bin/a"]);
        bounds.permit("/bin/a");
        assert!(!bounds.forbid("/bin/a", &wish(0)));
    }

    #[test]
    fn what_is_denied_for_the_run_has_a_bound_and_beyond_it_nothing_is_asked() {
        let mut bounds = Bounds::default();
        for number in 0..DENIED_FOR_RUN {
            assert!(!bounds.deny_for_run(wish(number)));
        }
        assert!(bounds.forbid("/bin/a", &wish(0)));
        assert!(!bounds.forbid("/bin/a", &wish(DENIED_FOR_RUN)));
        assert!(bounds.deny_for_run(wish(DENIED_FOR_RUN)));
        assert!(bounds.forbid("/bin/a", &wish(DENIED_FOR_RUN + 1)));
        assert!(!bounds.deny_for_run(wish(DENIED_FOR_RUN + 1)), "said once");
    }

    #[test]
    fn after_waits_that_nobody_saw_nothing_waits_until_somebody_looks() {
        let mut bounds = Bounds::default();
        for _ in 0..UNSEEN {
            assert!(!bounds.forbid("/bin/a", &wish(0)));
            bounds.was_unseen();
        }
        assert!(bounds.forbid("/bin/a", &wish(0)));
        bounds.is_seen();
        assert!(!bounds.forbid("/bin/a", &wish(0)));
    }
}
