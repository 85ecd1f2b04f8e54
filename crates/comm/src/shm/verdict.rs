//! Why a communicator is over, as all its ranks read it in the shared memory. The first to say so is
//! right; the others say the same.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::board::{Board, Doing};
use super::home::Waiting;
use super::sign;
use crate::error::Peer;
use crate::{CommError, Signature};

const WORDS: usize = 24;
const MISSING_MAX: usize = 8;
const TEXT_MAX: usize = 512;

// In the header: who says it, whether it is all there, how many have closed, the words, the text.
const READY: usize = 8;
const CLOSED: usize = 16;
const FIRST: usize = 64;
pub const TEXT: usize = FIRST + WORDS * 8;

const LOST: u64 = 1;
const DISAGREE: u64 = 2;
const LATE: u64 = 3;
const ABORTED: u64 = 4;

/// Marks the number of a rank that is none of the communicator's, but of the first one.
const OUTSIDE: u64 = 1 << 32;

/// How long one waits for somebody who began to say why, and may have died over it.
const PATIENCE: Duration = Duration::from_millis(20);

/// A verdict as numbers and a text.
struct Record {
    words: [u64; WORDS],
    text: String,
}

/// Says why it is over; whether it was the first to say so.
pub fn declare(board: &Board, error: &CommError) -> bool {
    let start = board.layout.abort();
    let by = board.rank as u64 + 1;
    let claimed = board.word(start).compare_exchange(0, by, Ordering::SeqCst, Ordering::Relaxed);
    if claimed.is_ok() {
        let record = encode(error);
        for (i, word) in record.words.into_iter().enumerate() {
            board.word(start + FIRST + i * 8).store(word, Ordering::Relaxed);
        }
        let text = &record.text.as_bytes()[..record.text.len().min(TEXT_MAX)];
        // SAFETY: there is room for it, and only the one who claimed the record writes it.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), board.text(TEXT_MAX), text.len()) };
        board.word(start + READY).store(text.len() as u64 + 1, Ordering::Release);
    }
    // Whoever sleeps must hear of it.
    (0..board.layout.ranks).for_each(|rank| board.ring_of(rank));
    claimed.is_ok()
}

/// Counts a rank that closes the communicator; whether it is the last.
pub fn close(board: &Board) -> bool {
    let closed = board.word(board.layout.abort() + CLOSED).fetch_add(1, Ordering::SeqCst) + 1;
    closed == board.layout.ranks as u64
}

/// Whether it is over.
#[inline]
pub fn is_over(board: &Board) -> bool {
    board.word(board.layout.abort()).load(Ordering::Relaxed) != 0
}

/// Why it is over, for this rank, which was at `call`.
pub fn read(board: &Board, peers: &[Peer], waiting: &Waiting, call: &str) -> Option<CommError> {
    let start = board.layout.abort();
    let by = board.word(start).load(Ordering::Acquire).checked_sub(1)?;
    let by = peer(peers, by);
    let began = Instant::now();
    let length = loop {
        match board.word(start + READY).load(Ordering::Acquire) {
            0 if began.elapsed() > PATIENCE => {
                return Some(CommError::Aborted { by, why: "it could not say why".to_owned() });
            }
            0 => std::thread::yield_now(),
            length => break (length as usize - 1).min(TEXT_MAX),
        }
    };
    let words = std::array::from_fn(|i| board.word(start + FIRST + i * 8).load(Ordering::Relaxed));
    // SAFETY: it is there, whole, and nobody writes it any more.
    let text = unsafe { std::slice::from_raw_parts(board.text(TEXT_MAX), length) };
    let record = Record { words, text: String::from_utf8_lossy(text).into_owned() };
    let own = board.announced(board.rank, Doing::Call(words[1]));
    let outside = |rank| waiting.peer(rank);
    Some(decode(record, by, (peers, &outside), (board.rank as u32, own), call))
}

fn peer(peers: &[Peer], rank: u64) -> Peer {
    let unknown = || Peer { rank: rank as u32, host: "?".to_owned() };
    peers.get(rank as usize).cloned().unwrap_or_else(unknown)
}

fn encode(error: &CommError) -> Record {
    let mut words = [0; WORDS];
    let text = match error {
        CommError::Lost { peer, why, .. } => {
            words[..2].copy_from_slice(&[LOST, peer.rank.into()]);
            why.clone()
        }
        CommError::Disagree { sequence, ours_by, ours, theirs_by, theirs } => {
            words[..2].copy_from_slice(&[DISAGREE, *sequence]);
            words[2] = ours_by.rank.into();
            words[3..6].copy_from_slice(&sign::encode(ours));
            words[6] = theirs_by.rank.into();
            words[7..10].copy_from_slice(&sign::encode(theirs));
            String::new()
        }
        CommError::Late { call, seconds, missing } => {
            let shown = missing.len().min(MISSING_MAX);
            words[..3].copy_from_slice(&[LATE, *seconds, shown as u64]);
            for (word, peer) in words[3..].iter_mut().zip(&missing[..shown]) {
                *word = u64::from(peer.rank) | if peer.is_outside() { OUTSIDE } else { 0 };
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
    Record { words, text }
}

/// What a record says to a rank, which called `own` where ranks disagree.
fn decode(
    record: Record,
    by: Peer,
    (peers, outside): (&[Peer], &dyn Fn(u32) -> Peer),
    (rank, own): (u32, Option<Signature>),
    call: &str,
) -> CommError {
    let Record { words, text } = record;
    let aborted = |by: Peer, why: String| CommError::Aborted { by, why };
    match words[0] {
        LOST => CommError::Lost { peer: peer(peers, words[1]), why: text, call: call.to_owned() },
        DISAGREE => {
            let signature = |at: usize| sign::decode([words[at], words[at + 1], words[at + 2]]);
            let (Some(ours), Some(theirs)) = (signature(3), signature(7)) else {
                return aborted(by, "ranks disagree".to_owned());
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
            // Whoever called the same as one of them is told of the other.
            if own == Some(*ours.1) {
                ours.0 = peer(peers, rank.into());
            }
            CommError::Disagree {
                sequence: words[1],
                ours_by: ours.0,
                ours: ours.1,
                theirs_by: theirs.0,
                theirs: theirs.1,
            }
        }
        LATE => {
            let shown = (words[2] as usize).min(MISSING_MAX);
            let name = |word: &u64| match word & OUTSIDE {
                0 => peer(peers, *word),
                _ => outside(*word as u32),
            };
            let accused = words[3..3 + shown].contains(&u64::from(rank));
            let missing = words[3..3 + shown].iter().map(name).collect();
            let late = CommError::Late { call: text, seconds: words[1], missing };
            if accused { aborted(by, late.to_string()) } else { late }
        }
        _ => aborted(by, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Kind, ReduceOp};

    fn peers() -> Vec<Peer> {
        (0..3).map(|rank| Peer { rank, host: format!("n{rank}") }).collect()
    }

    fn stranger(rank: u32) -> Peer {
        Peer::outside(rank, "elsewhere")
    }

    /// What a rank reads of what rank 0 said.
    fn told(error: &CommError, rank: u32) -> CommError {
        decode(encode(error), peers()[0].clone(), (&peers(), &stranger), (rank, None), "barrier")
    }

    #[test]
    fn all_are_told_the_same() {
        let lost = CommError::Lost {
            peer: peers()[2].clone(),
            why: "killed".to_owned(),
            call: "barrier".to_owned(),
        };
        assert_eq!(told(&lost, 1), lost);
        let late = CommError::Late {
            call: "barrier".to_owned(),
            seconds: 3,
            missing: vec![peers()[2].clone()],
        };
        assert_eq!(told(&late, 1), late);
        assert!(matches!(told(&late, 2), CommError::Aborted { by, .. } if by.rank == 0));
        let missing = vec![stranger(1)];
        let of_another = CommError::Late { call: "barrier".to_owned(), seconds: 3, missing };
        assert_eq!(told(&of_another, 1), of_another);
    }

    #[test]
    fn each_side_of_a_disagreement_is_told_what_it_called_itself() {
        let signature = |count| Signature {
            kind: Kind::AllReduce,
            dtype: DType::F32,
            op: ReduceOp::Sum,
            root: 0,
            count,
            shape: 0,
        };
        let disagree = |ours: (usize, u64), theirs: (usize, u64)| CommError::Disagree {
            sequence: 9,
            ours_by: peers()[ours.0].clone(),
            ours: Box::new(signature(ours.1)),
            theirs_by: peers()[theirs.0].clone(),
            theirs: Box::new(signature(theirs.1)),
        };
        let error = disagree((0, 3), (2, 4));
        assert_eq!(told(&error, 1), error);
        assert_eq!(told(&error, 2), disagree((2, 4), (0, 3)));
        // One that called the same as one of them is told what itself and the other called.
        for (count, theirs) in [(3, (2, 4)), (4, (0, 3))] {
            let own = (1, Some(signature(count)));
            let names: (&[Peer], &dyn Fn(u32) -> Peer) = (&peers(), &stranger);
            let told = decode(encode(&error), peers()[0].clone(), names, own, "barrier");
            assert_eq!(told, disagree((1, count), theirs));
        }
    }
}
