//! Delay before a job is restarted. No I/O.

use std::time::Duration;

/// The first restart is immediate; the delays of the next double from and up to these.
const DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// An attempt that ran for this long was not caused by what made the previous ones fail.
const RESET_AFTER: Duration = Duration::from_secs(300);

/// Exponential back-off between attempts that fail soon after each other.
#[derive(Debug, Default)]
pub struct RestartBackoff {
    /// Restarts since the last attempt that ran for long.
    restarts: u32,
}

impl RestartBackoff {
    /// The delay after a failed attempt that ran for `ran`.
    pub fn delay_after(&mut self, ran: Duration) -> Duration {
        if ran >= RESET_AFTER {
            self.restarts = 0;
        }
        let delay = match self.restarts {
            0 => Duration::ZERO,
            n => DELAYS.0.saturating_mul(1 << (n - 1).min(16)).min(DELAYS.1),
        };
        self.restarts = self.restarts.saturating_add(1);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_minute_and_reset_after_a_long_attempt() {
        let mut backoff = RestartBackoff::default();
        let mut seconds = |ran| backoff.delay_after(ran).as_secs();
        let short = Duration::from_secs(3);
        assert_eq!([0; 10].map(|_| seconds(short)), [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!([RESET_AFTER, short, short].map(seconds), [0, 1, 2]);
    }
}
