//! Exponential backoff with jitter between attempts to connect to rank 0. Thousands of ranks start at
//! the same time; without it they would all retry at the same time, too.

use std::time::Duration;

use regatta_wire::secret::random_bytes;

/// The first delay, and the longest.
const MIN_DELAY: Duration = Duration::from_millis(10);
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The delay after this many attempts. `random` is uniformly distributed.
pub fn delay(attempts: u32, random: u32) -> Duration {
    let longest = MIN_DELAY.saturating_mul(1 << attempts.min(16)).min(MAX_DELAY);
    longest / 2 + fraction(longest / 2, random)
}

/// A random number; if the system has none, this rank.
pub fn random(rank: u32) -> u32 {
    random_bytes().map_or(rank, |[a, b, c, d, ..]| u32::from_ne_bytes([a, b, c, d]))
}

/// A part of a duration. `random` is uniformly distributed.
pub fn fraction(of: Duration, random: u32) -> Duration {
    of.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_are_spread() {
        let delays: Vec<u128> = (0..9).map(|attempts| delay(attempts, 0).as_millis()).collect();
        assert_eq!(delays, [5, 10, 20, 40, 80, 160, 320, 500, 500]);
        assert_eq!([0, 99].map(|attempts| delay(attempts, u32::MAX)), [MIN_DELAY, MAX_DELAY]);
    }
}
