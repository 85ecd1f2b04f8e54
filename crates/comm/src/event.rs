//! Completion of work, on the host or on a device stream.
//!
//! A call may depend on events, and its own completion is an event. Between device events nothing
//! waits on the host: streams wait for them ([`Event::wait_on_stream`]).

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use regatta_wire::clock;

use crate::gpu_runtime::Stream;
use crate::{CommError, Result};

/// Short operations are spun for; after this, polling sleeps in between, for a fraction of the time
/// waited so far.
const SPIN: Duration = Duration::from_millis(1);
const SLEEP_FRACTION: u32 = 50;
const MAX_SLEEP: Duration = Duration::from_micros(500);

/// Polls `done` until it holds or the timeout expires; whether it holds.
pub(crate) fn poll_until(
    timeout: Duration,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    let start = clock::now();
    loop {
        if done()? {
            return Ok(true);
        }
        let waited = clock::elapsed(start);
        if waited >= timeout {
            return Ok(false);
        }
        if waited > SPIN {
            std::thread::sleep((waited / SLEEP_FRACTION).min(MAX_SLEEP));
        }
    }
}

/// Work that completes or fails once.
pub trait Completion: Send + Sync {
    /// Whether the work has completed, without blocking; its error if it failed.
    fn is_complete(&self) -> Result<bool>;

    /// Waits for at most `timeout`; whether the work has completed.
    fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        poll_until(timeout, || self.is_complete())
    }

    /// Lets later work on a device stream wait. Work on the host is waited for here.
    ///
    /// # Safety
    /// `stream` must be a valid stream of the runtime that the event's device belongs to.
    unsafe fn wait_on_stream(&self, stream: Stream) -> Result;

    /// Whether the work runs on a device stream.
    fn is_on_device(&self) -> bool {
        true
    }
}

/// The completion of a call, or of other work on a stream of the caller.
#[derive(Clone)]
pub struct Event {
    work: Arc<dyn Completion>,
    /// The ranks to translate errors to, if any.
    ranks: Option<Arc<[u32]>>,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({:?})", self.is_complete())
    }
}

impl Event {
    /// The completion of some work.
    pub fn new(work: Arc<dyn Completion>) -> Self {
        Self { work, ranks: None }
    }

    /// An event of work that has already ended.
    pub fn ended(result: Result) -> Self {
        let event = HostEvent::default();
        event.complete(result);
        Self::new(Arc::new(event))
    }

    /// Whether the work has completed, without blocking; its error if it failed.
    pub fn is_complete(&self) -> Result<bool> {
        self.translate(self.work.is_complete())
    }

    /// Waits on the host. The wait for a call is bounded by the faults and timeouts of its
    /// communicator.
    pub fn wait(&self) -> Result {
        const SLICE: Duration = Duration::from_secs(1);
        while !self.wait_timeout(SLICE)? {}
        Ok(())
    }

    /// Waits on the host for at most `timeout`; whether the work has completed.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.translate(self.work.wait_timeout(timeout))
    }

    /// Lets later work on a stream wait for this event, without waiting on the host
    /// (`cudaStreamWaitEvent`). Work on host memory is waited for here, because a stream cannot.
    ///
    /// # Safety
    /// `stream` must be a valid stream of the runtime that the event's device belongs to.
    pub unsafe fn wait_on_stream(&self, stream: Stream) -> Result {
        // SAFETY: as required of the caller.
        self.translate(unsafe { self.work.wait_on_stream(stream) })
    }

    /// Whether the work runs on a device stream, so that another stream can wait for it.
    pub fn is_on_device(&self) -> bool {
        self.work.is_on_device()
    }

    /// Translates the ranks of an error.
    pub(crate) fn translate_ranks(self, ranks: Arc<[u32]>) -> Self {
        Self { ranks: Some(ranks), ..self }
    }

    fn translate<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match &self.ranks {
            Some(ranks) => error.translate_ranks(ranks),
            None => error,
        })
    }
}

/// Completed by the host thread that runs the work.
#[derive(Default)]
pub(crate) struct HostEvent {
    result: Mutex<Option<Result>>,
    completed: Condvar,
}

impl HostEvent {
    /// Completes the event. Only the first result counts.
    pub fn complete(&self, result: Result) {
        let mut slot = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert(result);
        drop(slot);
        self.completed.notify_all();
    }
}

impl Completion for HostEvent {
    fn is_complete(&self) -> Result<bool> {
        self.wait_timeout(Duration::ZERO)
    }

    fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.completed.wait_timeout_while(result, timeout, |r| r.is_none());
        let (result, _) = waited.unwrap_or_else(PoisonError::into_inner);
        result.clone().map_or(Ok(false), |result| result.map(|()| true))
    }

    unsafe fn wait_on_stream(&self, _stream: Stream) -> Result {
        while !self.wait_timeout(Duration::from_secs(1))? {}
        Ok(())
    }

    fn is_on_device(&self) -> bool {
        false
    }
}

/// Completes a host event when the work that holds it ends, even by a panic.
pub(crate) struct CompleteOnDrop(Arc<HostEvent>);

impl CompleteOnDrop {
    /// An event and its completion.
    pub fn new() -> (Event, Self) {
        let event = Arc::new(HostEvent::default());
        (Event::new(event.clone()), Self(event))
    }

    /// Completes the event.
    pub fn complete(self, result: Result) {
        self.0.complete(result);
    }
}

impl Drop for CompleteOnDrop {
    fn drop(&mut self) {
        let why = "the worker thread of the communicator panicked";
        self.0.complete(Err(CommError::system("asynchronous call", why)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Peer;

    #[test]
    fn a_host_event_completes_once_and_wakes_its_waiters() {
        let (event, completion) = CompleteOnDrop::new();
        assert_eq!(event.is_complete(), Ok(false));
        assert_eq!(event.wait_timeout(Duration::ZERO), Ok(false));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| event.wait());
            completion.complete(Ok(()));
            assert_eq!(waiter.join().unwrap(), Ok(()));
        });
        assert_eq!(event.is_complete(), Ok(true));
    }

    #[test]
    fn a_dropped_completion_is_an_error() {
        let (event, completion) = CompleteOnDrop::new();
        drop(completion);
        assert!(event.wait().unwrap_err().to_string().contains("panicked"));
    }

    #[test]
    fn errors_name_translated_ranks() {
        let by = Peer::new(1, "host");
        let event = Event::ended(Err(CommError::Aborted { by, why: "x".to_owned() }));
        let event = event.translate_ranks([7, 9].into());
        assert_eq!(event.is_complete().unwrap_err().failed_rank(), Some(9));
    }
}
