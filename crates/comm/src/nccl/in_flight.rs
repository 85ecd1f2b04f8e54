//! Calls that are enqueued on the communicator's stream. The engine checks them whenever it runs, and
//! the communicator's worker thread lets it run from time to time, so that a fault is noticed even
//! if the host waits for none of them.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use regatta_wire::clock;

use super::NcclEngine;
use super::gpu_event::{CallEvent, GpuEvent};
use crate::comm::SharedCalls;
use crate::event::{Completion, poll_until};
use crate::{CallKind, CommError, DType, Event, ReduceOp, Result, Signature};

/// The runtime blocks when some thousand operations are queued.
pub(super) const MAX_IN_FLIGHT: usize = 256;

/// How often the state of the other ranks is checked.
const FAULT_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The signatures of calls, with their roots or the peers of messages.
pub(super) type Group = Vec<(Signature, u32)>;

/// A call or group, for errors.
#[derive(Clone)]
pub(super) struct Issued {
    /// The signature of the first collective; without one, of the first message.
    pub signature: Signature,
    /// The sequence number of that collective.
    pub sequence: u64,
    /// The ranks of the messages; empty if all ranks take part.
    pub peers: Vec<u32>,
}

impl Issued {
    /// A group whose first collective has a sequence number.
    pub fn new(group: &Group, sequence: u64) -> Self {
        let collective = group.iter().find(|(call, _)| !call.kind.is_p2p());
        let signature = collective.or(group.first()).map_or(EMPTY_GROUP, |(call, _)| *call);
        let messages = group.iter().filter(|_| collective.is_none());
        Self { signature, sequence, peers: messages.map(|(_, peer)| *peer).collect() }
    }
}

/// The signature of a group without calls.
const EMPTY_GROUP: Signature = Signature {
    kind: CallKind::Barrier,
    dtype: DType::U8,
    op: ReduceOp::Sum,
    root: 0,
    count: 0,
    shape: 0,
};

/// A call or group in flight.
pub(super) struct InFlight {
    event: Arc<GpuEvent>,
    result: Arc<OnceLock<Result>>,
    /// Keeps the buffers alive.
    _memory: Option<SharedCalls>,
    /// The events it may still wait for.
    after: Vec<Event>,
    issued: Issued,
    /// When it was first seen to wait for nothing but other ranks.
    active_since: Option<Instant>,
}

impl NcclEngine {
    /// Records the completion of what was enqueued and watches it.
    pub(super) fn track(
        &mut self,
        issued: Issued,
        after: &[Event],
        memory: Option<SharedCalls>,
    ) -> Result<Event> {
        // SAFETY: the stream is valid.
        let event = Arc::new(unsafe { GpuEvent::record(&self.device, self.device.stream) }?);
        let result = Arc::new(OnceLock::new());
        let completion = CallEvent { event: event.clone(), result: result.clone() };
        // Captured work runs when the caller launches the graph, and the caller keeps its memory.
        if !self.device.is_capturing()? {
            let (after, active_since) = (after.to_vec(), None);
            let _memory = memory;
            let call = InFlight { event, result, _memory, after, issued, active_since };
            self.in_flight.push_back(call);
        }
        Ok(Event::new(Arc::new(completion)))
    }

    /// Waits until another call may be enqueued.
    pub(super) fn wait_for_room(&mut self) -> Result {
        match self.in_flight.len() < MAX_IN_FLIGHT {
            true => Ok(()),
            false => self.wait_in_flight(MAX_IN_FLIGHT - 1),
        }
    }

    /// Waits until the device has completed all calls.
    pub(super) fn wait_idle(&mut self) -> Result {
        self.wait_in_flight(0)
    }

    fn wait_in_flight(&mut self, most: usize) -> Result {
        poll_until(Duration::MAX, || {
            self.poll_in_flight()?;
            Ok(self.in_flight.len() <= most)
        })
        .map(drop)
    }

    /// Removes completed calls. Fails if a rank is lost or has aborted, on an error of the library,
    /// and if the other ranks do not take part in time.
    pub(super) fn poll_in_flight(&mut self) -> Result {
        let checked = self.remove_completed().and_then(|()| self.check_first());
        checked.map_err(|error| match self.in_flight.front() {
            Some(call) => {
                let issued = call.issued.clone();
                self.fail_with_diagnosis(error, &issued)
            }
            // The communicator has failed already.
            None => error,
        })
    }

    fn remove_completed(&mut self) -> Result {
        while let Some(call) = self.in_flight.front() {
            if !call.event.is_complete()? {
                break;
            }
            // It is set only here or when the communicator fails.
            let _ = call.result.set(Ok(()));
            self.in_flight.pop_front();
        }
        Ok(())
    }

    /// Checks the call that the stream is at.
    fn check_first(&mut self) -> Result {
        let Some(call) = self.in_flight.front_mut() else { return Ok(()) };
        let now = clock::now();
        if now < self.next_fault_check {
            return Ok(());
        }
        // The time of work that the call depends on is not that of the other ranks.
        let mut failed = None;
        call.after.retain(|event| match event.is_complete() {
            Ok(complete) => !complete,
            Err(error) => {
                failed.get_or_insert(error);
                false
            }
        });
        if call.after.is_empty() {
            call.active_since.get_or_insert(now);
        }
        let (active_since, issued) = (call.active_since, call.issued.clone());
        self.next_fault_check = now + FAULT_CHECK_INTERVAL;
        if let Some(error) = failed {
            return Err(self.fail(error));
        }
        self.check_not_aborted()?;
        self.is_library_idle(issued.signature.kind.name())?;
        let timeout = self.config.desync_after;
        match active_since {
            Some(since) if now.saturating_duration_since(since) >= timeout => {
                Err(self.timeout_error(issued.signature.kind.name(), timeout, &issued.peers))
            }
            _ => Ok(()),
        }
    }

    /// Sets the results of all calls before the communicator is aborted.
    pub(super) fn fail_in_flight(&self, error: &CommError) {
        let mut completed = true;
        for call in &self.in_flight {
            completed = completed && call.event.is_complete() == Ok(true);
            let _ = call.result.set(if completed { Ok(()) } else { Err(error.clone()) });
        }
    }
}
