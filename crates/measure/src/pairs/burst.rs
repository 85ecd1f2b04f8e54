//! Bursts of a pair: enough to tell a slow link from noise, within a time limit.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Size of the first message: it opens the connection and is small enough for a slow link.
pub const PROBE_BYTES: u64 = 64 << 10;

/// Minimum bursts, allowed to take [`MIN_BURSTS_TIME_FACTOR`] times the limit: with fewer, a single
/// stalled burst would make a link look slow.
const MIN_BURSTS: usize = 3;
const MIN_BURSTS_TIME_FACTOR: u32 = 4;

/// Amount of measurement per pair; must be equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BurstOptions {
    /// Bytes per message of the bandwidth test.
    pub bytes: u64,
    /// Messages in flight (OSU's window size).
    pub window: u32,
    /// Bursts; the fastest counts.
    pub iterations: u32,
    /// Ping-pongs of the latency test.
    pub ping_pongs: u32,
    /// Time limit of the latency test and of the bandwidth test in each direction. A link on which
    /// three bursts take longer gets up to four times as long; a started burst is completed.
    pub time_limit: Duration,
}

impl Default for BurstOptions {
    fn default() -> Self {
        let time_limit = Duration::from_millis(500);
        Self { bytes: 4 << 20, window: 4, iterations: 8, ping_pongs: 200, time_limit }
    }
}

/// Messages of equal size, sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Bytes per message.
    pub bytes: u64,
    /// Number of messages.
    pub window: u32,
}

impl Burst {
    /// Total bytes.
    pub fn total(self) -> u64 {
        self.bytes.saturating_mul(u64::from(self.window))
    }
}

/// A measured burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentBurst {
    /// What was sent.
    pub burst: Burst,
    /// Time until all of it was received.
    pub took: Duration,
}

impl SentBurst {
    /// Bandwidth in GB/s.
    pub fn bandwidth(self) -> f64 {
        self.burst.total() as f64 / self.took.as_secs_f64().max(1e-9) / 1e9
    }
}

impl BurstOptions {
    /// The next burst, given those sent and the time spent; `None` if it is enough. After the
    /// probe, its size is what the link carries within the remaining time at its best bandwidth so
    /// far, so that a single stall does not shrink the bursts.
    pub fn next_burst(&self, sent: &[SentBurst], spent: Duration) -> Option<Burst> {
        let probe = Burst { bytes: PROBE_BYTES.min(self.bytes).max(1), window: 1 };
        let Some(last) = sent.last() else { return Some(probe) };
        let measured = sent.len() - 1;
        let factor = if measured < MIN_BURSTS { MIN_BURSTS_TIME_FACTOR } else { 1 };
        if measured >= self.iterations as usize || spent + last.took > self.time_limit * factor {
            return None;
        }
        let left = self.time_limit.saturating_sub(spent);
        let still = f64::from(self.iterations) - measured as f64;
        let fastest = sent.iter().map(|sent| sent.bandwidth()).fold(0.0, f64::max);
        let max_bytes = left.as_secs_f64() / still * fastest * 1e9;
        Some(self.largest_burst(max_bytes as u64, probe))
    }

    /// The largest burst within `max_bytes` bytes: a smaller window first, then smaller messages.
    fn largest_burst(&self, max_bytes: u64, min: Burst) -> Burst {
        let bytes = self.bytes.min(max_bytes).max(min.bytes);
        let window = (max_bytes / bytes).clamp(1, u64::from(self.window.max(1)));
        Burst { bytes, window: window as u32 }
    }
}

/// Bandwidth of a link: the fastest burst. The probe counts only if there is no other.
pub fn bandwidth(sent: &[SentBurst]) -> Option<f64> {
    let after_probe = sent.get(1..).filter(|rest| !rest.is_empty());
    let counted = after_probe.unwrap_or(sent);
    counted.iter().map(|sent| sent.bandwidth()).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Simulates a link with a bandwidth in bytes/s and a delay of each burst in seconds.
    fn simulate(rate: f64, delay: impl Fn(usize) -> f64) -> (Vec<SentBurst>, Duration) {
        let (mut sent, mut spent) = (Vec::new(), Duration::ZERO);
        while let Some(burst) = BurstOptions::default().next_burst(&sent, spent) {
            let seconds = burst.total() as f64 / rate + delay(sent.len());
            let took = Duration::from_secs_f64(seconds);
            spent += took;
            sent.push(SentBurst { burst, took });
        }
        (sent, spent)
    }

    #[test]
    fn a_fast_link_gets_all_bursts() {
        let (sent, _) = simulate(10e9, |_| 1e-6);
        assert_eq!(sent.len(), 9);
        assert_eq!(sent[8].burst, Burst { bytes: 4 << 20, window: 4 });
        assert!((bandwidth(&sent).unwrap() - 10.0).abs() < 0.1);
    }

    #[test]
    fn a_very_slow_link_is_measured_by_the_probe_only() {
        let (sent, spent) = simulate(50e3, |_| 0.01);
        assert_eq!(sent.len(), 1);
        assert!(spent < Duration::from_secs(2));
        assert!((bandwidth(&sent).unwrap() - 49.6e-6).abs() < 1e-6);
    }

    #[test]
    fn stalled_bursts_do_not_lower_the_bandwidth() {
        let (sent, _) = simulate(1e9, |burst| if burst < 3 { 0.45 } else { 0.0 });
        assert!((bandwidth(&sent).unwrap() - 1.0).abs() < 0.01, "{sent:?}");
    }

    proptest! {
        #[test]
        fn measuring_time_is_bounded(exponent in 4.0f64..11.0, delay in 0.0f64..0.01) {
            let rate = 10f64.powf(exponent);
            let (sent, spent) = simulate(rate, |_| delay);
            let probe = Duration::from_secs_f64(PROBE_BYTES as f64 / rate + delay);
            let limit = BurstOptions::default().time_limit * MIN_BURSTS_TIME_FACTOR;
            prop_assert!(spent <= limit.max(probe), "{spent:?}");
            let found = bandwidth(&sent).unwrap() * 1e9;
            prop_assert!(found <= rate * 1.001 && found > 0.0);
            if delay == 0.0 {
                prop_assert!(found > rate * 0.99);
            }
        }

        #[test]
        fn bursts_never_exceed_the_configured_size(
            bytes in 0u64..1 << 30, window in 0u32..9, took in 0u64..1_000_000_000,
        ) {
            let options = BurstOptions { bytes, window, ..BurstOptions::default() };
            let first = options.next_burst(&[], Duration::ZERO).unwrap();
            let sent = SentBurst { burst: first, took: Duration::from_nanos(took) };
            if let Some(burst) = options.next_burst(&[sent], sent.took) {
                prop_assert!(burst.bytes <= bytes.max(1) && burst.bytes > 0);
                prop_assert!(burst.window <= window.max(1) && burst.window > 0);
            }
        }
    }
}
