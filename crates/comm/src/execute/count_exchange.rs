//! Exchanges counts before an all-to-all with per-pair counts. A mismatch would otherwise overrun a
//! buffer or wait for bytes that are never sent.

use super::PostedOps;
use crate::transport::{MatchKey, RecvAction, Transport};
use crate::{Call, CommError, Counts, Result};

/// Checks that every rank sends what this rank expects. Other collectives carry all their counts in
/// the signature and need no exchange.
pub(super) fn check_counts<T: Transport + ?Sized>(transport: &mut T, call: &Call) -> Result {
    let Counts::PerPair { send, receive } = &call.counts else { return Ok(()) };
    let own = transport.rank() as usize;
    let sent: Vec<[u8; 8]> = send.iter().map(|count| (*count as u64).to_le_bytes()).collect();
    let mut received = vec![[0; 8]; receive.len()];
    let mut posted = PostedOps { transport, pending: 0 };
    let others = || (0..receive.len()).filter(|rank| *rank != own);
    for (from, into) in received.iter_mut().enumerate().filter(|(rank, _)| *rank != own) {
        let (into, key): (*mut [u8], _) = (into, MatchKey::Collective);
        // SAFETY: `received` outlives `posted`, which waits for the operation or cancels it, and
        // each element is borrowed once.
        unsafe { posted.transport.post_receive(from as u32, key, into, RecvAction::Copy) }?;
        posted.pending += 1;
    }
    for to in others() {
        // SAFETY: as above; `sent` is not written.
        unsafe { posted.transport.post_send(to as u32, MatchKey::Collective, &sent[to]) }?;
        posted.pending += 1;
    }
    posted.wait()?;
    let peers = posted.transport.peers();
    for from in others() {
        let (sent, expected) = (u64::from_le_bytes(received[from]), receive[from] as u64);
        if sent != expected {
            let (from, to) = (peers[from].clone(), peers[own].clone());
            return Err(CommError::CountMismatch { from, to, dtype: call.dtype, sent, expected });
        }
    }
    Ok(())
}
