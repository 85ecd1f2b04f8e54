//! The order of work on streams.
//!
//! Copies of pinned memory run as late as a GPU may run them: when another operation of the stream, another
//! stream or the host waits for them. A missing wait on the host then reads old values. Every operation
//! knows what happened before it, by a vector clock; accesses of the same bytes by two streams without an
//! order are an error.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use regatta_comm::gpu_runtime::Stream;

use super::error::{ILLEGAL_ADDRESS, INVALID_HANDLE};
use super::gpu::{FakeGpu, World};

/// By stream, the number of its last operation that happened before.
#[derive(Debug, Clone, Default)]
pub struct Clock(BTreeMap<usize, u64>);

impl Clock {
    /// Adds what happened before another point.
    pub fn join(&mut self, other: &Self) {
        for (stream, number) in &other.0 {
            let own = self.0.entry(*stream).or_default();
            *own = (*own).max(*number);
        }
    }

    /// Whether all of these accesses happened before.
    pub fn includes(&self, accesses: &Self) -> bool {
        let includes =
            |(stream, number): (&usize, &u64)| self.0.get(stream).is_some_and(|own| own >= number);
        accesses.0.iter().all(includes)
    }

    /// The last operation of a stream.
    pub fn number(&self, stream: usize) -> u64 {
        self.0.get(&stream).copied().unwrap_or(0)
    }

    /// Sets the last operation of a stream.
    pub fn set(&mut self, stream: usize, number: u64) {
        self.0.insert(stream, number);
    }
}

/// A stream.
pub struct FakeStream {
    pub gpu: Arc<FakeGpu>,
    pub clock: Clock,
    deferred: VecDeque<DeferredCopy>,
}

impl FakeStream {
    pub fn new(gpu: Arc<FakeGpu>) -> Self {
        Self { gpu, clock: Clock::default(), deferred: VecDeque::new() }
    }
}

/// A copy of pinned memory.
struct DeferredCopy {
    /// Its number on the stream.
    number: u64,
    to: *mut u8,
    from: *const u8,
    bytes: usize,
}

// SAFETY: the memory is not bound to a thread.
unsafe impl Send for DeferredCopy {}

impl DeferredCopy {
    /// Runs the copy, unless the GPU has failed or this copy is to fail.
    fn run(&self, gpu: &FakeGpu) {
        let mut state = gpu.lock();
        state.pinned_copies += 1;
        if gpu.config.failing_copy == Some(state.pinned_copies) {
            state.queued_error.get_or_insert(ILLEGAL_ADDRESS);
        }
        if state.queued_error.is_none() {
            // SAFETY: both sides were checked when the copy was queued, and no memory is freed before its
            // accesses.
            unsafe { std::ptr::copy(self.from, self.to, self.bytes) };
        }
    }
}

/// A point in the work of a stream.
#[derive(Clone)]
pub struct RecordedPoint {
    stream: usize,
    clock: Clock,
}

thread_local! {
    /// The stream of the operation that this thread queues; 0 for none.
    static OPERATION: Cell<usize> = const { Cell::new(0) };
}

/// The stream of the operation that this thread queues.
pub fn operation() -> usize {
    OPERATION.get()
}

impl World {
    fn fake_stream(&mut self, stream: Stream) -> Result<&mut FakeStream, c_int> {
        self.streams.get_mut(&(stream as usize)).ok_or(INVALID_HANDLE)
    }

    /// What happened before the last operation of a stream.
    pub fn clock(&self, stream: Stream) -> Result<&Clock, c_int> {
        self.streams.get(&(stream as usize)).map(|s| &s.clock).ok_or(INVALID_HANDLE)
    }

    /// Starts an operation of this thread on a stream, after the earlier ones.
    pub fn start_operation(&mut self, stream: Stream) -> Result<(), c_int> {
        self.run_all(stream);
        self.next_operation(stream).map(drop)
    }

    fn next_operation(&mut self, stream: Stream) -> Result<u64, c_int> {
        let handle = stream as usize;
        let state = self.fake_stream(stream)?;
        // What the host has waited for happened before everything it queues now.
        state.clock.join(&state.gpu.lock().host_clock);
        let number = state.clock.number(handle) + 1;
        state.clock.set(handle, number);
        OPERATION.set(handle);
        Ok(number)
    }

    /// Queues a copy of pinned memory, whose memory the caller has checked.
    pub fn defer_copy(
        &mut self,
        stream: Stream,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
    ) -> Result<(), c_int> {
        let state = self.fake_stream(stream)?;
        let number = state.clock.number(stream as usize);
        state.deferred.push_back(DeferredCopy { number, to: to.cast(), from: from.cast(), bytes });
        Ok(())
    }

    /// Starts an operation that may run later.
    pub fn queue_operation(&mut self, stream: Stream) -> Result<(), c_int> {
        self.next_operation(stream).map(drop)
    }

    /// Runs all deferred copies of a stream.
    pub fn run_all(&mut self, stream: Stream) {
        self.run_deferred(stream as usize, u64::MAX);
    }

    /// Runs the deferred copies of a stream up to an operation.
    fn run_deferred(&mut self, stream: usize, last: u64) {
        let Some(FakeStream { gpu, deferred, .. }) = self.streams.get_mut(&stream) else { return };
        while let Some(copy) = deferred.pop_front_if(|copy| copy.number <= last) {
            copy.run(gpu);
        }
    }

    /// The work that is now on a stream.
    pub fn record(&mut self, stream: Stream) -> Result<RecordedPoint, c_int> {
        let state = self.fake_stream(stream)?;
        state.clock.join(&state.gpu.lock().host_clock);
        Ok(RecordedPoint { stream: stream as usize, clock: state.clock.clone() })
    }

    /// Lets later operations of a stream wait for a point.
    pub fn wait_on_stream(&mut self, stream: Stream, point: &RecordedPoint) -> Result<(), c_int> {
        self.run_deferred(point.stream, point.clock.number(point.stream));
        self.fake_stream(stream)?.clock.join(&point.clock);
        Ok(())
    }

    /// Lets the host wait for a point.
    pub fn wait_on_host(&mut self, gpu: &FakeGpu, point: &RecordedPoint) {
        self.run_deferred(point.stream, point.clock.number(point.stream));
        gpu.lock().host_clock.join(&point.clock);
    }

    /// Lets the host wait for all work of a GPU.
    pub fn wait_for_all(&mut self, gpu: &FakeGpu) {
        for FakeStream { clock, deferred, .. } in
            self.streams.values_mut().filter(|stream| stream.gpu.index == gpu.index)
        {
            deferred.drain(..).for_each(|copy| copy.run(gpu));
            gpu.lock().host_clock.join(clock);
        }
    }

    /// Removes a stream, whose work completes.
    pub fn remove_stream(&mut self, stream: Stream) -> Result<(), c_int> {
        self.run_all(stream);
        self.streams.remove(&(stream as usize)).map(drop).ok_or(INVALID_HANDLE)
    }
}
