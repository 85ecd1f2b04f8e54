//! One signal of a scheduler comes many times: to every node of the job, and to us where we run on
//! one of them. No I/O.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long after a signal the same one, come another way, is no new one.
const ECHO: Duration = Duration::from_secs(2);

/// The signals that came lately.
#[derive(Debug, Default)]
pub struct Chorus {
    /// When a signal last counted, and whether it came by a node.
    last: HashMap<i32, (Instant, bool)>,
}

impl Chorus {
    /// Whether a signal is a new one. What comes twice straight to us is always two: a user who
    /// presses Ctrl-C again means it.
    pub fn is_new(&mut self, signal: i32, by_node: bool, now: Instant) -> bool {
        let echo = self.last.get(&signal).is_some_and(|&(when, by_another)| {
            (by_node || by_another) && now.saturating_duration_since(when) < ECHO
        });
        if !echo {
            self.last.insert(signal, (now, by_node));
        }
        !echo
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_nodes_get_counts_once_and_the_next_one_again() {
        let (mut chorus, start) = (Chorus::default(), Instant::now());
        let mut new = |signal, by_node, millis| {
            chorus.is_new(signal, by_node, start + Duration::from_millis(millis))
        };
        assert!(new(10, true, 0) && !new(10, true, 5) && !new(10, false, 10));
        assert!(new(15, true, 20), "another signal is another one");
        assert!(new(10, true, 60_000), "and so is the same one, later");
        assert!(new(2, false, 0) && !new(2, true, 10) && new(2, false, 20), "Ctrl-C twice");
    }
}
