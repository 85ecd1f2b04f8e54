//! How long nothing has moved, and what is due because of it. No I/O; time is an argument.

use std::time::{Duration, Instant};

/// The first time that rank 0 is asked whether waiting is in vain; then ever more seldom.
const FIRST: Duration = Duration::from_millis(50);
const SELDOM: Duration = Duration::from_secs(5);

/// So many bytes in `desync_after` are not standing still, fewer are.
const CRAWL: u64 = 64 << 10;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing, until then.
    Nothing(Instant),
    /// Ask whether somebody has left.
    Ask,
    /// It takes too long: ask where all are.
    Late,
}

/// A clock that is set back when something moves.
#[derive(Debug)]
pub struct Watch {
    late_after: Duration,
    since: Instant,
    moved: u64,
    asked: Duration,
    told: bool,
}

impl Watch {
    /// Begins.
    pub fn new(late_after: Duration, now: Instant) -> Self {
        Self { late_after, since: now, moved: 0, asked: FIRST, told: false }
    }

    /// An operation is done, or another begins.
    pub fn reset(&mut self, moved: u64, now: Instant) {
        *self = Self { moved, ..Self::new(self.late_after, now) };
    }

    /// Looks at the clock, and at how many bytes have moved.
    pub fn look(&mut self, moved: u64, now: Instant) -> Due {
        if moved >= self.moved + CRAWL && !self.told {
            self.reset(moved, now);
        }
        let waited = now.saturating_duration_since(self.since);
        if waited >= self.late_after && !self.told {
            self.told = true;
            return Due::Late;
        }
        if waited >= self.asked && !self.told {
            self.asked = waited + waited.min(SELDOM);
            return Due::Ask;
        }
        let next = if self.told { waited + SELDOM } else { self.asked.min(self.late_after) };
        Due::Nothing(self.since + next)
    }

    /// Since when nothing has moved.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// How long nothing has moved, in seconds.
    pub fn seconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_ever_more_seldom_and_once_where_all_are() {
        let start = Instant::now();
        let mut watch = Watch::new(Duration::from_secs(1), start);
        let mut heard = Vec::new();
        let mut now = start;
        while now < start + Duration::from_secs(3) {
            match watch.look(0, now) {
                Due::Nothing(then) => now = then.max(now + Duration::from_millis(1)),
                due => heard.push((due, (now - start).as_millis())),
            }
        }
        let asks = [50, 100, 200, 400, 800].map(|at| (Due::Ask, at));
        assert_eq!(heard, [&asks[..], &[(Due::Late, 1000)]].concat());
    }

    #[test]
    fn what_crawls_is_late_and_what_moves_is_not() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        for (each, late) in [(CRAWL / 20, true), (CRAWL / 5, false)] {
            let mut watch = Watch::new(second, start);
            let looks = (1..100).map(|i| watch.look(each * i, start + second / 10 * i as u32));
            assert_eq!(looks.collect::<Vec<_>>().contains(&Due::Late), late, "{each}");
        }
    }
}
