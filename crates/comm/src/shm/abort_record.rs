//! The abort record in shared memory: why a communicator failed. The first rank to claim it
//! determines the error that all ranks return.

use std::sync::atomic::Ordering;
use std::time::Duration;

use regatta_wire::clock;

use super::region::{Activity, Region};
use super::signature_codec;
use super::wait_table::WaitRecord;
use crate::error::Peer;
use crate::{CommError, Signature};

const WORDS: usize = 24;
const MISSING_MAX: usize = 8;
const TEXT_MAX: usize = 512;

// Header offsets: claiming rank, ready flag, number of closed ranks, words, text.
const READY: usize = 8;
const CLOSED: usize = 16;
const FIRST: usize = 64;
pub const TEXT: usize = FIRST + WORDS * 8;

const RANK_LOST: u64 = 1;
const CALL_MISMATCH: u64 = 2;
const TIMEOUT: u64 = 3;
const ABORTED: u64 = 4;

/// Marks a root rank that is not in this communicator.
const GLOBAL_RANK: u64 = 1 << 32;

/// How long to wait for a claimed record to be completed; the claiming rank may have died.
const RECORD_TIMEOUT: Duration = Duration::from_millis(20);

/// An encoded error.
struct AbortRecord {
    words: [u64; WORDS],
    text: String,
}

/// Publishes an error; whether it was the first.
pub fn publish(region: &Region, error: &CommError) -> bool {
    let start = region.layout.abort();
    let by = region.rank as u64 + 1;
    let claimed = region.word(start).compare_exchange(0, by, Ordering::SeqCst, Ordering::Relaxed);
    if claimed.is_ok() {
        let record = encode(error);
        for (i, word) in record.words.into_iter().enumerate() {
            region.word(start + FIRST + i * 8).store(word, Ordering::Relaxed);
        }
        let text = &record.text.as_bytes()[..record.text.len().min(TEXT_MAX)];
        // SAFETY: the text fits, and only the claiming rank writes it.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), region.abort_text(TEXT_MAX), text.len())
        };
        region.word(start + READY).store(text.len() as u64 + 1, Ordering::Release);
    }
    // Wake sleeping ranks.
    (0..region.layout.ranks).for_each(|rank| region.ring_doorbell_of(rank));
    claimed.is_ok()
}

/// Counts a rank that closes the communicator; whether it is the last.
pub fn count_close(region: &Region) -> bool {
    let closed = region.word(region.layout.abort() + CLOSED).fetch_add(1, Ordering::SeqCst) + 1;
    closed == region.layout.ranks as u64
}

/// Whether the communicator has failed.
#[inline]
pub fn has_failed(region: &Region) -> bool {
    region.word(region.layout.abort()).load(Ordering::Relaxed) != 0
}

/// The error of this rank, which was in `call`, if the communicator has failed.
pub fn read(region: &Region, peers: &[Peer], waits: &WaitRecord, call: &str) -> Option<CommError> {
    let start = region.layout.abort();
    let by = region.word(start).load(Ordering::Acquire).checked_sub(1)?;
    let by = peer(peers, by);
    let began = clock::now();
    let length = loop {
        match region.word(start + READY).load(Ordering::Acquire) {
            0 if clock::elapsed(began) > RECORD_TIMEOUT => {
                return Some(CommError::Aborted { by, why: "no reason recorded".to_owned() });
            }
            0 => std::thread::yield_now(),
            length => break (length as usize - 1).min(TEXT_MAX),
        }
    };
    let words = std::array::from_fn(|i| region.word(start + FIRST + i * 8).load(Ordering::Relaxed));
    // SAFETY: the text is complete and is not written any more.
    let text = unsafe { std::slice::from_raw_parts(region.abort_text(TEXT_MAX), length) };
    let record = AbortRecord { words, text: String::from_utf8_lossy(text).into_owned() };
    let own = region.published_call(region.rank, Activity::Collective(words[1]));
    let outside = |rank| waits.peer(rank);
    Some(decode(record, by, (peers, &outside), (region.rank as u32, own), call))
}

fn peer(peers: &[Peer], rank: u64) -> Peer {
    let unknown = || Peer::new(rank as u32, "?");
    peers.get(rank as usize).cloned().unwrap_or_else(unknown)
}

fn encode(error: &CommError) -> AbortRecord {
    let mut words = [0; WORDS];
    let text = match error {
        CommError::RankLost { peer, why, .. } => {
            words[..2].copy_from_slice(&[RANK_LOST, peer.rank.into()]);
            why.clone()
        }
        CommError::CallMismatch { sequence, ours_by, ours, theirs_by, theirs } => {
            words[..2].copy_from_slice(&[CALL_MISMATCH, *sequence]);
            words[2] = ours_by.rank.into();
            words[3..6].copy_from_slice(&signature_codec::encode(ours));
            words[6] = theirs_by.rank.into();
            words[7..10].copy_from_slice(&signature_codec::encode(theirs));
            String::new()
        }
        CommError::Timeout { call, seconds, missing } => {
            let shown = missing.len().min(MISSING_MAX);
            words[..3].copy_from_slice(&[TIMEOUT, *seconds, shown as u64]);
            for (word, peer) in words[3..].iter_mut().zip(&missing[..shown]) {
                *word = u64::from(peer.rank) | if peer.global { GLOBAL_RANK } else { 0 };
            }
            call.clone()
        }
        CommError::Aborted { why, .. } => {
            words[0] = ABORTED;
            why.clone()
        }
        other => {
            words[0] = ABORTED;
            other.to_string()
        }
    };
    AbortRecord { words, text }
}

/// The error for a rank, whose own call is `own` in a mismatch.
fn decode(
    record: AbortRecord,
    by: Peer,
    (peers, outside): (&[Peer], &dyn Fn(u32) -> Peer),
    (rank, own): (u32, Option<Signature>),
    call: &str,
) -> CommError {
    let AbortRecord { words, text } = record;
    let aborted = |by: Peer, why: String| CommError::Aborted { by, why };
    match words[0] {
        RANK_LOST => {
            CommError::RankLost { peer: peer(peers, words[1]), why: text, call: call.to_owned() }
        }
        CALL_MISMATCH => {
            let signature =
                |i: usize| signature_codec::decode([words[i], words[i + 1], words[i + 2]]);
            let (Some(ours), Some(theirs)) = (signature(3), signature(7)) else {
                return aborted(by, "ranks mismatch".to_owned());
            };
            let mut ours = (peer(peers, words[2]), Box::new(ours));
            let mut theirs = (peer(peers, words[6]), Box::new(theirs));
            let swapped = match rank {
                _ if theirs.0.rank == rank => true,
                _ if ours.0.rank == rank => false,
                _ => own == Some(*theirs.1),
            };
            if swapped {
                std::mem::swap(&mut ours, &mut theirs);
            }
            // A rank that made one of the two calls is reported with its own call.
            if own == Some(*ours.1) {
                ours.0 = peer(peers, rank.into());
            }
            CommError::CallMismatch {
                sequence: words[1],
                ours_by: ours.0,
                ours: ours.1,
                theirs_by: theirs.0,
                theirs: theirs.1,
            }
        }
        TIMEOUT => {
            let shown = (words[2] as usize).min(MISSING_MAX);
            let name = |word: &u64| match word & GLOBAL_RANK {
                0 => peer(peers, *word),
                _ => outside(*word as u32),
            };
            let accused = words[3..3 + shown].contains(&u64::from(rank));
            let missing = words[3..3 + shown].iter().map(name).collect();
            let late = CommError::Timeout { call: text, seconds: words[1], missing };
            if accused { aborted(by, late.to_string()) } else { late }
        }
        _ => aborted(by, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallKind, DType, ReduceOp};

    fn peers() -> Vec<Peer> {
        (0..3).map(|rank| Peer::new(rank, format!("n{rank}"))).collect()
    }

    fn other_rank(rank: u32) -> Peer {
        Peer::global(rank, "n9")
    }

    /// The error that `rank` reads after rank 0 published `error`.
    fn read_by(error: &CommError, rank: u32) -> CommError {
        decode(encode(error), peers()[0].clone(), (&peers(), &other_rank), (rank, None), "barrier")
    }

    #[test]
    fn all_ranks_read_the_same_error() {
        let lost = CommError::RankLost {
            peer: peers()[2].clone(),
            why: "killed".to_owned(),
            call: "barrier".to_owned(),
        };
        assert_eq!(read_by(&lost, 1), lost);
        let late = CommError::Timeout {
            call: "barrier".to_owned(),
            seconds: 3,
            missing: vec![peers()[2].clone()],
        };
        assert_eq!(read_by(&late, 1), late);
        assert!(matches!(read_by(&late, 2), CommError::Aborted { by, .. } if by.rank == 0));
        let missing = vec![other_rank(1)];
        let global = CommError::Timeout { call: "barrier".to_owned(), seconds: 3, missing };
        assert_eq!(read_by(&global, 1), global);
    }

    #[test]
    fn each_side_of_a_mismatch_reads_its_own_call_first() {
        let signature = |count| Signature {
            kind: CallKind::AllReduce,
            dtype: DType::F32,
            op: ReduceOp::Sum,
            root: 0,
            count,
            shape: 0,
        };
        let mismatch = |ours: (usize, u64), theirs: (usize, u64)| CommError::CallMismatch {
            sequence: 9,
            ours_by: peers()[ours.0].clone(),
            ours: Box::new(signature(ours.1)),
            theirs_by: peers()[theirs.0].clone(),
            theirs: Box::new(signature(theirs.1)),
        };
        let error = mismatch((0, 3), (2, 4));
        assert_eq!(read_by(&error, 1), error);
        assert_eq!(read_by(&error, 2), mismatch((2, 4), (0, 3)));
        // A rank that made one of the two calls reads its own call and the other one.
        for (count, theirs) in [(3, (2, 4)), (4, (0, 3))] {
            let own = (1, Some(signature(count)));
            let names: (&[Peer], &dyn Fn(u32) -> Peer) = (&peers(), &other_rank);
            let read = decode(encode(&error), peers()[0].clone(), names, own, "barrier");
            assert_eq!(read, mismatch((1, count), theirs));
        }
    }
}
