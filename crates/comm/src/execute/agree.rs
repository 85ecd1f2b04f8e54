//! Before an all-to-all with counts of each rank's own, the ranks tell each other how much they send:
//! what nobody expects would come into the wrong place, and what does not come be waited for.

use super::Open;
use crate::transport::{Landing, Lane, Transport};
use crate::{Call, CommError, Counts};

/// Whether what comes from each rank is what this one expects; for calls with other counts, which
/// are all in their signature, there is nothing to do.
pub(super) fn on_counts(transport: &mut dyn Transport, call: &Call<'_>) -> Result<(), CommError> {
    let Counts::Exchange { send, receive } = &call.counts else { return Ok(()) };
    let own = transport.rank() as usize;
    let said: Vec<[u8; 8]> = send.iter().map(|count| (*count as u64).to_le_bytes()).collect();
    let mut heard = vec![[0; 8]; receive.len()];
    let mut open = Open { transport, tickets: 0 };
    let others = || (0..receive.len()).filter(|rank| *rank != own);
    for (from, into) in heard.iter_mut().enumerate().filter(|(rank, _)| *rank != own) {
        let into: *mut [u8] = into;
        // SAFETY: `heard` lives longer than `open`, which waits for the operation or cancels it,
        // and each part of it is lent once.
        unsafe { open.transport.post_receive(from as u32, Lane::Call, into, Landing::Replace) }?;
        open.tickets += 1;
    }
    for to in others() {
        // SAFETY: as above; nobody writes what is said.
        unsafe { open.transport.post_send(to as u32, Lane::Call, &said[to]) }?;
        open.tickets += 1;
    }
    open.wait()?;
    let peers = open.transport.peers();
    let odd = others().find(|&from| u64::from_le_bytes(heard[from]) != receive[from] as u64);
    odd.map_or(Ok(()), |from| {
        Err(CommError::Unmatched {
            from: peers[from].clone(),
            to: peers[own].clone(),
            dtype: call.dtype,
            sent: u64::from_le_bytes(heard[from]),
            expected: receive[from] as u64,
        })
    })
}
