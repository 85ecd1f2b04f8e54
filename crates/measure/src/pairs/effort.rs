//! How much is measured of a pair: enough for a slow link to be told from noise, and never for long.

use std::time::Duration;

/// The first message over a link: small enough for a slow one, and it opens the connection.
pub const PROBE_BYTES: u64 = 64 << 10;

/// So many bursts are measured even if they take [`PATIENCE`] times the limit: of fewer, one that
/// was held up by something else would make a link slow.
const LEAST: usize = 3;
const PATIENCE: u32 = 4;

/// How much is measured. The same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effort {
    /// The bytes of a message of the bandwidth.
    pub bytes: u64,
    /// Messages that are under way at once.
    pub messages: u32,
    /// How often they are sent; the fastest time counts.
    pub repetitions: u32,
    /// Messages there and back for the latency.
    pub pings: u32,
    /// How long the latency of a pair, and each way of its bandwidth, should take. A link on which
    /// three bursts take longer gets up to four times as long; what is begun is ended.
    pub limit: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        let limit = Duration::from_millis(500);
        Self { bytes: 4 << 20, messages: 4, repetitions: 8, pings: 200, limit }
    }
}

/// Some messages of one size, sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Bytes of each.
    pub bytes: u64,
    /// How many.
    pub messages: u32,
}

impl Burst {
    /// All bytes of it.
    pub fn total(self) -> u64 {
        self.bytes.saturating_mul(u64::from(self.messages))
    }
}

/// A burst that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// What was sent.
    pub burst: Burst,
    /// How long it took until all was there.
    pub took: Duration,
}

impl Sent {
    /// Its bandwidth in GB/s.
    pub fn bandwidth(self) -> f64 {
        self.burst.total() as f64 / self.took.as_secs_f64().max(1e-9) / 1e9
    }
}

impl Effort {
    /// The burst that comes next, by what was sent and how long all of it took; none if it is
    /// enough. After the probe it is as large as the link, as fast as it was at best, can carry
    /// often enough in the time that is left: who was held up once is not measured by less.
    pub fn next(&self, sent: &[Sent], spent: Duration) -> Option<Burst> {
        let probe = Burst { bytes: PROBE_BYTES.min(self.bytes).max(1), messages: 1 };
        let Some(last) = sent.last() else { return Some(probe) };
        let measured = sent.len() - 1;
        let limit = if measured < LEAST { self.limit * PATIENCE } else { self.limit };
        if measured >= self.repetitions as usize || spent + last.took > limit {
            return None;
        }
        let left = self.limit.saturating_sub(spent);
        let still = f64::from(self.repetitions) - measured as f64;
        let fastest = sent.iter().map(|sent| sent.bandwidth()).fold(0.0, f64::max);
        let fits = left.as_secs_f64() / still * fastest * 1e9;
        Some(self.burst_of(fits as u64, probe))
    }

    /// The largest burst of at most so many bytes: fewer messages first, then smaller ones.
    fn burst_of(&self, fits: u64, least: Burst) -> Burst {
        let bytes = self.bytes.min(fits).max(least.bytes);
        let messages = (fits / bytes).clamp(1, u64::from(self.messages.max(1)));
        Burst { bytes, messages: messages as u32 }
    }
}

/// The bandwidth of a link: that of the fastest burst. The probe counts if there is no other.
pub fn bandwidth(sent: &[Sent]) -> Option<f64> {
    let after_probe = sent.get(1..).filter(|rest| !rest.is_empty());
    let counted = after_probe.unwrap_or(sent);
    counted.iter().map(|sent| sent.bandwidth()).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sends over a link of so many bytes a second and a delay, by its own clock.
    fn over(effort: &Effort, rate: f64, delay: f64) -> (Vec<Sent>, Duration) {
        let (mut sent, mut spent) = (Vec::new(), Duration::ZERO);
        while let Some(burst) = effort.next(&sent, spent) {
            let took = Duration::from_secs_f64(burst.total() as f64 / rate + delay);
            spent += took;
            sent.push(Sent { burst, took });
        }
        (sent, spent)
    }

    #[test]
    fn a_fast_link_gets_all_of_it() {
        let effort = Effort::default();
        let (sent, _) = over(&effort, 10e9, 1e-6);
        assert_eq!(sent.len(), 9);
        assert_eq!(sent[8].burst, Burst { bytes: 4 << 20, messages: 4 });
        assert!((bandwidth(&sent).unwrap() - 10.0).abs() < 0.1);
    }

    #[test]
    fn a_crawling_link_is_measured_by_the_probe_alone() {
        let (sent, spent) = over(&Effort::default(), 50e3, 0.01);
        assert_eq!(sent.len(), 1);
        assert!(spent < Duration::from_secs(2));
        assert!((bandwidth(&sent).unwrap() - 49.6e-6).abs() < 1e-6);
    }

    #[test]
    fn a_burst_that_was_held_up_does_not_count() {
        let effort = Effort::default();
        let (mut sent, mut spent) = (Vec::new(), Duration::ZERO);
        while let Some(burst) = effort.next(&sent, spent) {
            let held_up = if sent.len() < 3 { 0.45 } else { 0.0 };
            let took = Duration::from_secs_f64(burst.total() as f64 / 1e9 + held_up);
            spent += took;
            sent.push(Sent { burst, took });
        }
        assert!((bandwidth(&sent).unwrap() - 1.0).abs() < 0.01, "{sent:?}");
    }

    proptest! {
        #[test]
        fn no_link_takes_much_longer_than_the_limit(exponent in 4.0f64..11.0, delay in 0.0f64..0.01) {
            let effort = Effort::default();
            let rate = 10f64.powf(exponent);
            let (sent, spent) = over(&effort, rate, delay);
            let probe = Duration::from_secs_f64(PROBE_BYTES as f64 / rate + delay);
            prop_assert!(spent <= (effort.limit * PATIENCE).max(probe), "{spent:?}");
            let found = bandwidth(&sent).unwrap() * 1e9;
            prop_assert!(found <= rate * 1.001 && found > 0.0);
            if delay == 0.0 {
                prop_assert!(found > rate * 0.99);
            }
        }

        #[test]
        fn no_burst_is_larger_than_asked_for(
            bytes in 0u64..1 << 30, messages in 0u32..9, took in 0u64..1_000_000_000,
        ) {
            let effort = Effort { bytes, messages, ..Effort::default() };
            let first = effort.next(&[], Duration::ZERO).unwrap();
            let sent = Sent { burst: first, took: Duration::from_nanos(took) };
            if let Some(burst) = effort.next(&[sent], sent.took) {
                prop_assert!(burst.bytes <= bytes.max(1) && burst.bytes > 0);
                prop_assert!(burst.messages <= messages.max(1) && burst.messages > 0);
            }
        }
    }
}
