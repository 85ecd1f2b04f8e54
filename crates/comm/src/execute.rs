//! Runs a [`Program`] on a [`Transport`]: posts every operation whose dependencies are met and
//! waits for all posted operations together.

mod block_layout;
mod count_exchange;
mod dependency_scheduler;
mod mismatch_in_elements;
mod planner;
mod program_buffers;

use std::time::Duration;

use crate::schedule::Program;
use crate::transport::{MatchKey, RecvAction, RequestId, Transport};
use crate::{Call, CallKind, CommError, DType, ReduceOp, Result, reduce_kernel};
use block_layout::BlockLayout;
use dependency_scheduler::{DependencyScheduler, SegmentId, StepKind, StepOp};
use mismatch_in_elements::{ExpectedMessage, bytes_to_elements};
pub use planner::Planner;
use program_buffers::ProgramBuffers;
pub use program_buffers::Scratch;

/// Upper bound on one wait in the transport, which has its own timeouts.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(1);

/// Pipelining granularity of long messages, by the number of ranks. Two ranks move 8 MiB over TCP in
/// segments of 1 MiB up to twice as fast as in segments of 256 KiB. Many ranks forward a segment
/// often, and the pipeline takes a segment per hop to fill.
pub fn segment_bytes(ranks: u32) -> usize {
    match ranks {
        0..8 => 1 << 20,
        8..16 => 512 << 10,
        _ => 256 << 10,
    }
}

/// Runs a collective as its program prescribes. The segment length is a multiple of 8 and identical
/// on all ranks, usually [`segment_bytes`].
pub fn run<T: Transport + ?Sized>(
    transport: &mut T,
    call: Call<'_>,
    program: &Program,
    scratch: &mut Scratch,
    segment_bytes: usize,
) -> Result {
    let result = run_program(&mut *transport, call, program, scratch, segment_bytes);
    // The transport propagates its own errors, but not those of a program or its counts.
    if let Err(error @ (CommError::System { .. } | CommError::CountMismatch { .. })) = &result {
        (transport.abort_fn())(&error.to_string());
    }
    result
}

fn run_program<T: Transport + ?Sized>(
    transport: &mut T,
    call: Call<'_>,
    program: &Program,
    scratch: &mut Scratch,
    segment_bytes: usize,
) -> Result {
    transport.begin(call.signature(transport.ranks() as usize))?;
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let (dtype, op) = (call.dtype, call.op);
    // In place, the buffer of a rank that gets no result still holds that rank's contribution and
    // must not be divided.
    let averages = op == ReduceOp::Average
        && call.kind.reduces()
        && (call.kind != CallKind::Reduce || call.root == rank);
    count_exchange::check_counts(&mut *transport, &call)?;
    let layout = BlockLayout::new(&call, program, rank, ranks);
    let scheduler =
        DependencyScheduler::new(program, &layout, segment_bytes).map_err(|blocks| {
            let what = format!("the program of {}", layout.kind);
            CommError::system(what, format!("this rank has no {blocks:?}"))
        })?;
    let mut buffers = ProgramBuffers::new(call, &layout, scratch);
    let posted = PostedOps { transport, pending: 0 };
    Execution { posted, scheduler, requests: Vec::new(), dtype, op }.run(&buffers)?;
    transport.end();
    if averages && let Some(result) = layout.result() {
        reduce_kernel::finalize(dtype, op, ranks, buffers.result(result));
    }
    Ok(())
}

/// Runs a group of sends and receives concurrently.
pub fn run_p2p<T: Transport + ?Sized>(transport: &mut T, calls: Vec<Call<'_>>) -> Result {
    run_p2p_with(transport, calls, &mut || Ok(PROGRESS_TIMEOUT))
}

/// [`run_p2p`], calling `progress_other` before each wait. It drives another transport and returns
/// how long that transport can go without progress.
pub(crate) fn run_p2p_with<T: Transport + ?Sized>(
    transport: &mut T,
    calls: Vec<Call<'_>>,
    progress_other: &mut dyn FnMut() -> Result<Duration>,
) -> Result {
    let (sends, receives): (Vec<_>, Vec<_>) =
        calls.into_iter().partition(|call| call.kind == CallKind::Send);
    let expected = |call: &Call| (call.root, call.dtype, call.output.len() as u64);
    let expected: Vec<ExpectedMessage> = receives.iter().map(expected).collect();
    let mut posted = PostedOps { transport, pending: 0 };
    // Receives first, so that early messages already have a destination buffer.
    for call in receives {
        let (key, into): (_, *mut [u8]) = (MatchKey::Tag(call.tag), call.output);
        // SAFETY: the call's buffers outlive `posted`, which waits for the operation or cancels it.
        unsafe { posted.transport.post_receive(call.root, key, into, RecvAction::Copy) }?;
        posted.pending += 1;
    }
    for call in sends {
        let bytes: *const [u8] = call.input.unwrap_or(call.output);
        // SAFETY: as above.
        unsafe { posted.transport.post_send(call.root, MatchKey::Tag(call.tag), bytes) }?;
        posted.pending += 1;
    }
    let result = posted.wait_with(progress_other);
    drop(posted);
    let result = result.map_err(|error| bytes_to_elements(error, &expected));
    if let Err(error @ CommError::CountMismatch { .. }) = &result {
        (transport.abort_fn())(&error.to_string());
    }
    result
}

/// A running program.
struct Execution<'t, T: Transport + ?Sized> {
    posted: PostedOps<'t, T>,
    scheduler: DependencyScheduler,
    requests: Vec<(RequestId, SegmentId)>,
    dtype: DType,
    op: ReduceOp,
}

impl<T: Transport + ?Sized> Execution<'_, T> {
    fn run(&mut self, buffers: &ProgramBuffers) -> Result {
        let mut completed: Vec<RequestId> = Vec::new();
        while !self.scheduler.is_complete() {
            let mut timeout = PROGRESS_TIMEOUT;
            while let Some((id, step)) = self.scheduler.next_ready() {
                if step.kind == StepKind::Copy {
                    buffers.copy(&step)?;
                    self.scheduler.complete(id);
                    // Let messages progress before the next copy.
                    timeout = Duration::ZERO;
                    break;
                }
                let request = self.post(&step, buffers)?;
                self.posted.pending += 1;
                self.requests.push((request, id));
            }
            if self.posted.pending == 0 {
                continue;
            }
            self.posted.transport.progress(timeout, &mut completed)?;
            self.posted.pending = self.posted.pending.saturating_sub(completed.len());
            for request in completed.drain(..) {
                if let Some(at) = self.requests.iter().position(|(posted, _)| *posted == request) {
                    self.scheduler.complete(self.requests.swap_remove(at).1);
                }
            }
        }
        Ok(())
    }

    fn post(&mut self, step: &StepOp, buffers: &ProgramBuffers) -> Result<RequestId> {
        let (transport, key) = (&mut *self.posted.transport, MatchKey::Collective);
        let (reads, writes) = (buffers.source(&step.reads)?, buffers.target(&step.writes)?);
        // SAFETY: the buffers outlive `posted`, which waits for the operation or cancels it. The
        // scheduler starts no conflicting read or write before the operation completes.
        unsafe {
            match step.kind {
                StepKind::Send(to) => transport.post_send(to, key, reads),
                StepKind::Receive(from) => {
                    let action = match &step.reads {
                        None => RecvAction::Copy,
                        same if *same == step.writes => RecvAction::Reduce(self.dtype, self.op),
                        Some(_) => RecvAction::ReduceInto(self.dtype, self.op, reads),
                    };
                    transport.post_receive(from, key, writes, action)
                }
                StepKind::Copy => Err(program_buffers::invalid_range()),
            }
        }
    }
}

/// Counts pending operations and cancels them when dropped, because their memory is borrowed.
struct PostedOps<'t, T: Transport + ?Sized> {
    transport: &'t mut T,
    pending: usize,
}

impl<T: Transport + ?Sized> PostedOps<'_, T> {
    /// Waits for all pending operations.
    fn wait(&mut self) -> Result {
        self.wait_with(&mut || Ok(PROGRESS_TIMEOUT))
    }

    fn wait_with(&mut self, progress_other: &mut dyn FnMut() -> Result<Duration>) -> Result {
        let mut completed: Vec<RequestId> = Vec::new();
        while self.pending > 0 {
            self.transport.progress(progress_other()?, &mut completed)?;
            self.pending = self.pending.saturating_sub(completed.len());
            completed.clear();
        }
        Ok(())
    }
}

impl<T: Transport + ?Sized> Drop for PostedOps<'_, T> {
    fn drop(&mut self) {
        if self.pending > 0 {
            self.transport.cancel();
        }
    }
}
