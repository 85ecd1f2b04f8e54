//! Faults: NCCL itself only reports that something failed; rank 0 decides what.

use std::ptr::null_mut;
use std::time::Duration;

use regatta_wire::clock;

use super::NcclEngine;
use super::in_flight::Issued;
use super::sys::RawComm;
use crate::control::{CallWatch, StallAction, Wait, signature_codec};
use crate::{Call, Collectives, CommError, Counts, ReduceOp, Result, Signature};

/// The time in which the control plane learns that the process of a rank has exited.
const LOSS_TIMEOUT: Duration = Duration::from_secs(1);

impl NcclEngine {
    /// Aborts the communicator with the error that rank 0 decides on.
    pub(super) fn fail_with_diagnosis(&mut self, error: CommError, call: &Issued) -> CommError {
        if let CommError::InvalidCall { .. } = error {
            return error;
        }
        let now = clock::now();
        let timeout = self.config.desync_after;
        let began = now.checked_sub(timeout).unwrap_or(now);
        let mut watch = CallWatch::new(self.monitor.clone(), timeout, began);
        let call_number = (!call.signature.kind.is_p2p()).then_some(call.sequence);
        let what = call.signature.to_string();
        let error = match error {
            // Rank 0 finds out which rank is late or called something else.
            CommError::Timeout { .. } => {
                let is_awaited = |rank: &u32| call.peers.is_empty() || call.peers.contains(rank);
                let others = (0..self.peers.len() as u32).filter(|rank| *rank != self.rank);
                let global = |rank: u32| self.monitor.members[rank as usize];
                let awaited = others.filter(is_awaited).map(global).collect();
                let wait = Wait { call_number, awaited, call: what.clone() };
                watch.report(StallAction::Timeout, wait, now);
                watch.await_announced_error(&what, call_number)
            }
            // The library may notice the loss of a rank before the control plane.
            CommError::System { .. } => {
                watch.suspect_until(error, now + LOSS_TIMEOUT);
                watch.await_announced_error(&what, call_number)
            }
            error => error,
        };
        self.fail(error)
    }

    /// Aborts the communicator on all ranks.
    pub(super) fn fail(&mut self, error: CommError) -> CommError {
        let error = self.monitor.report_and_fail(error);
        self.fail_in_flight(&error);
        // Notify the others first, because aborting may take a while.
        self.bootstrap.abort(&error.to_string());
        let raw = self.take_raw();
        let stopped = raw.is_null() || self.abort_raw(raw);
        let in_flight = std::mem::take(&mut self.in_flight);
        if !stopped {
            // The device may still access the buffers.
            std::mem::forget(in_flight);
        }
        error
    }

    /// Takes the library's communicator, which is then only destroyed or aborted.
    pub(super) fn take_raw(&mut self) -> RawComm {
        std::mem::replace(&mut self.raw, null_mut())
    }

    /// Checks that all ranks make the same collective call.
    pub(super) fn compare_signatures(&self, call: Signature, sequence: u64) -> Result {
        let [what, count, shape] = signature_codec::encode(&call);
        let own = [sequence, what, count, shape].map(u64::cast_signed);
        let mut all = vec![0i64; own.len() * self.peers.len()];
        self.bootstrap.all_gather(&own, &mut all)?;
        let members = &self.monitor.members;
        let mut others = all.as_chunks().0.iter().zip(members).filter(|(words, _)| **words != own);
        let Some(([_, words @ ..], rank)) = others.next() else { return Ok(()) };
        let theirs = signature_codec::decode(words.map(i64::cast_unsigned));
        theirs.map_or(Ok(()), |theirs| {
            let ours = (members[self.rank as usize], call);
            Err(self.monitor.mismatch(sequence, ours, (*rank, theirs)))
        })
    }

    /// Checks that send and receive counts match. NCCL would hang or overrun a buffer.
    pub(super) fn check_counts(&self, call: &Call) -> Result {
        let Counts::PerPair { send, receive } = &call.counts else { return Ok(()) };
        let sent: Vec<i64> = send.iter().map(|count| *count as i64).collect();
        let mut received = vec![0i64; sent.len()];
        self.bootstrap.all_to_all(&sent, &mut received)?;
        let mismatch = (0..received.len()).find(|&rank| received[rank] != receive[rank] as i64);
        // The highest rank with a mismatch reports it to all ranks.
        let mut reporter = [mismatch.map_or(-1, |_| i64::from(self.rank))];
        self.bootstrap.all_reduce(&mut reporter, ReduceOp::Max)?;
        let Ok(reporter) = u32::try_from(reporter[0]) else { return Ok(()) };
        let mut found = mismatch.map_or([0; 3], |r| [r as i64, received[r], receive[r] as i64]);
        self.bootstrap.broadcast(&mut found, reporter)?;
        Err(CommError::CountMismatch {
            from: self.bootstrap.peer(found[0] as u32),
            to: self.bootstrap.peer(reporter),
            dtype: call.dtype,
            sent: found[1] as u64,
            expected: found[2] as u64,
        })
    }
}
