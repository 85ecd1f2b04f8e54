//! How long a thread looks for messages before it sleeps.

use std::time::Duration;

/// It is not left out more often than this at a time.
const SELDOM: u32 = 4096;

/// To look for a message is faster than to sleep and be woken up, if it comes soon; but if the one
/// who sends it has no core to run on, looking keeps it from working. So whenever looking was in
/// vain, it is left out for a while, each time for twice as long; once it pays again, the time
/// becomes shorter bit by bit.
#[derive(Debug)]
pub struct Spin {
    most: Duration,
    /// So many times it is still left out.
    rest: u32,
    penalty: u32,
}

impl Spin {
    /// At most so long.
    pub fn new(most: Duration) -> Self {
        Self { most, rest: 0, penalty: 0 }
    }

    /// How long to look.
    pub fn budget(&self) -> Duration {
        if self.rest == 0 { self.most } else { Duration::ZERO }
    }

    /// It took so long until a message came.
    pub fn waited(&mut self, took: Duration) {
        if self.rest > 0 {
            self.rest -= 1;
        } else if took <= self.most {
            self.penalty = self.penalty.saturating_sub(1);
        } else {
            self.penalty = (self.penalty * 2).clamp(1, SELDOM);
            self.rest = self.penalty;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it is looked in a thousand waits that all take so long.
    fn looks(took: Duration) -> usize {
        let mut spin = Spin::new(Duration::from_micros(50));
        let once = |_: &i32| {
            let looked = !spin.budget().is_zero();
            spin.waited(took);
            looked
        };
        (0..1000).filter(once).count()
    }

    #[test]
    fn looks_where_it_pays() {
        assert_eq!(looks(Duration::from_micros(20)), 1000);
        assert!(looks(Duration::from_micros(200)) <= 10);
    }
}
