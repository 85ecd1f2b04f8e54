//! Adaptive spinning before a thread sleeps.

use std::time::Duration;

/// Largest number of consecutive waits without spinning.
const MAX_BACKOFF: u32 = 64;

/// Spinning is faster than sleeping if the message arrives soon. If the sender has no core to run
/// on, spinning delays it. So every unsuccessful spin doubles the number of waits without spinning
/// (exponential backoff), and every successful one shortens it. So do short waits without spinning,
/// because spinning might have succeeded.
#[derive(Debug)]
pub struct Spin {
    limit: Duration,
    /// Waits left without spinning.
    skip: u32,
    backoff: u32,
}

impl Spin {
    /// Spins at most `limit`.
    pub fn new(limit: Duration) -> Self {
        Self { limit, skip: 0, backoff: 0 }
    }

    /// How long to spin in the next wait.
    pub fn budget(&self) -> Duration {
        if self.skip == 0 { self.limit } else { Duration::ZERO }
    }

    /// Records how long a wait took since bytes last moved.
    pub fn waited(&mut self, took: Duration) {
        if self.skip > 0 {
            let sooner = if took <= self.limit { self.skip / 8 } else { 0 };
            self.skip -= 1 + sooner.min(self.skip - 1);
        } else if took <= self.limit {
            self.backoff /= 2;
        } else {
            self.backoff = (self.backoff * 2).clamp(1, MAX_BACKOFF);
            self.skip = self.backoff;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of spins in a thousand waits that each take this long.
    fn spins(took: Duration) -> usize {
        let mut spin = Spin::new(Duration::from_micros(50));
        let once = |_: &i32| {
            let spun = !spin.budget().is_zero();
            spin.waited(took);
            spun
        };
        (0..1000).filter(once).count()
    }

    #[test]
    fn spins_on_short_waits_and_backs_off_on_long_ones() {
        assert_eq!(spins(Duration::from_micros(20)), 1000);
        assert!(spins(Duration::from_micros(200)) <= 25);
    }

    #[test]
    fn spins_again_soon_after_waits_become_short() {
        let mut spin = Spin::new(Duration::from_micros(50));
        while spin.skip < MAX_BACKOFF {
            spin.waited(Duration::from_micros(200));
        }
        (0..25).for_each(|_| spin.waited(Duration::from_micros(20)));
        assert_eq!(spin.budget(), Duration::from_micros(50));
    }
}
