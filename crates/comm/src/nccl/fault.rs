//! What is wrong, as far as the ranks can find out by the communicator through which they met: the
//! library itself knows only that something is.

use std::ptr::null_mut;

use super::Nccl;
use super::sys::RawComm;
use crate::shm::sign;
use crate::{Call, Collectives, CommError, Counts, Kind, ReduceOp, Signature};

/// Bytes in which a rank says what it called: the number of the call, and its signature.
const SAID: usize = 8 + sign::SIGN_WORDS * 8;

impl Nccl {
    /// Ends the communicator, and says why as well as can be known.
    pub(super) fn give_up(&mut self, error: CommError, call: Signature) -> CommError {
        if let CommError::Shape { .. } = error {
            return error;
        }
        let message = matches!(call.kind, Kind::Send | Kind::Receive);
        let known = matches!(
            error,
            CommError::Aborted { .. } | CommError::Unmatched { .. } | CommError::Disagree { .. }
        );
        let error = if message || known { error } else { self.inquire(error, call) };
        self.end(error)
    }

    /// Ends the communicator, and has all others end it for that reason.
    pub(super) fn end(&mut self, error: CommError) -> CommError {
        // They hear it first: to abort may take a while.
        self.meeting.abort(&error.to_string());
        if let Some(raw) = self.given_out() {
            self.break_off(raw);
        }
        self.failed = Some(error.clone());
        error
    }

    /// The communicator of the library, which is used no more but to end it.
    pub(super) fn given_out(&mut self) -> Option<RawComm> {
        let raw = std::mem::replace(&mut self.raw, null_mut());
        (!raw.is_null()).then_some(raw)
    }

    /// All that fail tell each other what they called: whoever is gone or does not come is found by
    /// the communicator they met through, whoever called something else by what he says.
    fn inquire(&self, error: CommError, call: Signature) -> CommError {
        self.compare(call).err().unwrap_or(error)
    }

    /// All ranks tell each other what they call.
    pub(super) fn compare(&self, call: Signature) -> Result<(), CommError> {
        if matches!(call.kind, Kind::Send | Kind::Receive) {
            return Ok(());
        }
        let words = [self.calls].into_iter().chain(sign::encode(&call));
        let said: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let mut all = vec![0u8; SAID * self.peers.len()];
        self.meeting.all_gather(&said, &mut all)?;
        let other = all.chunks_exact(SAID).zip(&self.peers).find(|(other, _)| *other != said);
        match other.and_then(|(other, peer)| Some((called(other)?, peer))) {
            Some((theirs, peer)) => Err(CommError::Disagree {
                sequence: self.calls,
                ours_by: self.peers[self.rank as usize].clone(),
                ours: Box::new(call),
                theirs_by: peer.clone(),
                theirs: Box::new(theirs),
            }),
            None => Ok(()),
        }
    }

    /// Whether what each rank sends is what the others expect. The library would wait for ever, or
    /// write where nothing belongs.
    pub(super) fn agree_on_counts(&self, call: &Call<'_>) -> Result<(), CommError> {
        let Counts::Exchange { send, receive } = &call.counts else { return Ok(()) };
        let said: Vec<i64> = send.iter().map(|count| *count as i64).collect();
        let mut heard = vec![0i64; said.len()];
        self.meeting.all_to_all(&said, &mut heard)?;
        let odd = (0..heard.len()).find(|&rank| heard[rank] != receive[rank] as i64);
        let mut finder = [odd.map_or(-1, |_| i64::from(self.rank))];
        self.meeting.all_reduce(&mut finder, ReduceOp::Max)?;
        let Ok(finder) = u32::try_from(finder[0]) else { return Ok(()) };
        let mut found = odd.map_or([0; 3], |r| [r as i64, heard[r], receive[r] as i64]);
        self.meeting.broadcast(&mut found, finder)?;
        let peer = |rank: u32| self.meeting.peer(rank);
        Err(CommError::Unmatched {
            from: peer(found[0] as u32),
            to: peer(finder),
            dtype: call.dtype,
            sent: found[1] as u64,
            expected: found[2] as u64,
        })
    }
}

/// What a rank says that it called.
fn called(said: &[u8]) -> Option<Signature> {
    let (words, _) = said.as_chunks::<8>();
    let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
    sign::decode([word(1)?, word(2)?, word(3)?])
}
