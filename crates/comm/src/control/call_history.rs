//! The recent calls of a communicator. Written by the thread that runs them, without locks, and read
//! by the control-plane thread.

use std::sync::atomic::{AtomicU64, Ordering};

use super::signature_codec::{self, SIGNATURE_WORDS};
use crate::Signature;

/// Number of calls that are kept if they complete in order: more than twice as many as a rank can be
/// ahead of another (`POST_RING_OVERSUBSCRIBED` of shared memory), because a mismatching call may be
/// noticed as many calls later.
pub const SYNCHRONOUS_CALLS: usize = 256;

/// One call. The sequence number is 0 while the words change.
#[derive(Debug, Default)]
struct Entry {
    sequence: AtomicU64,
    words: [AtomicU64; SIGNATURE_WORDS],
}

/// A ring of calls. Only one thread at a time begins calls.
#[derive(Debug)]
pub struct CallHistory {
    calls: AtomicU64,
    ring: Box<[Entry]>,
}

impl CallHistory {
    /// Keeps the last `calls` calls, a power of two.
    pub fn new(calls: usize) -> Self {
        let ring = std::iter::repeat_with(Entry::default).take(calls.next_power_of_two()).collect();
        Self { calls: AtomicU64::new(0), ring }
    }

    #[inline]
    fn entry(&self, sequence: u64) -> &Entry {
        &self.ring[sequence as usize & (self.ring.len() - 1)]
    }

    /// Records the start of a collective and returns its sequence number.
    #[inline]
    pub fn begin(&self, signature: &Signature) -> u64 {
        let sequence = self.calls.load(Ordering::Relaxed) + 1;
        let entry = self.entry(sequence);
        entry.sequence.store(0, Ordering::Release);
        for (word, value) in entry.words.iter().zip(signature_codec::encode(signature)) {
            word.store(value, Ordering::Release);
        }
        entry.sequence.store(sequence, Ordering::Release);
        self.calls.store(sequence, Ordering::Release);
        sequence
    }

    /// The number of collectives started.
    #[inline]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Acquire)
    }

    /// The signature of a recent call.
    pub fn signature_of(&self, sequence: u64) -> Option<Signature> {
        let entry = self.entry(sequence);
        let is_current = || entry.sequence.load(Ordering::Acquire) == sequence && sequence > 0;
        let before = is_current();
        let words = std::array::from_fn(|i| entry.words[i].load(Ordering::Acquire));
        if before && is_current() { signature_codec::decode(words) } else { None }
    }

    /// The recent calls with their sequence numbers.
    pub fn recent_calls(&self) -> Vec<(u64, Signature)> {
        let calls = self.calls();
        let recent = calls.saturating_sub(self.ring.len() as u64)..=calls;
        recent.filter_map(|sequence| Some((sequence, self.signature_of(sequence)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallKind, DType, ReduceOp};

    #[test]
    fn the_last_calls_are_kept() {
        let (kind, dtype, op) = (CallKind::AllReduce, DType::F32, ReduceOp::Sum);
        let signature = |count| Signature { kind, dtype, op, root: 0, count, shape: 0 };
        let history = CallHistory::new(SYNCHRONOUS_CALLS);
        assert_eq!((history.calls(), history.recent_calls()), (0, Vec::new()));
        let last = SYNCHRONOUS_CALLS as u64 + 5;
        (1..=last).for_each(|call| assert_eq!(history.begin(&signature(call)), call));
        let expected: Vec<_> = (6..=last).map(|call| (call, signature(call))).collect();
        assert_eq!(history.recent_calls(), expected);
        assert_eq!(history.signature_of(5), None);
    }
}
