//! Intervals of kernels and collectives on the device of this process, for a timeline of its streams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::timing_event::TimingEvent;

/// Spans of a trace, at most: later ones are dropped, because events take memory of the driver.
const MAX_SPANS: usize = 200_000;

static IS_ENABLED: AtomicBool = AtomicBool::new(false);
static TRACE: Mutex<Option<Trace>> = Mutex::new(None);

struct Trace {
    base: TimingEvent,
    spans: Vec<RecordedSpan>,
}

struct RecordedSpan {
    stream: &'static str,
    name: String,
    start: TimingEvent,
    end: TimingEvent,
}

/// The interval of a kernel or a collective on the device, in seconds since [`start`].
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSpan {
    /// The stream it ran on.
    pub stream: &'static str,
    /// The kernel or the collective.
    pub name: String,
    /// When it started.
    pub start: f64,
    /// When it ended.
    pub end: f64,
}

fn lock() -> MutexGuard<'static, Option<Trace>> {
    TRACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a trace at an event. Launches take longer.
pub fn start(base: TimingEvent) {
    *lock() = Some(Trace { base, spans: Vec::new() });
    IS_ENABLED.store(true, Ordering::Relaxed);
}

/// Whether kernels and collectives record spans.
pub fn is_enabled() -> bool {
    IS_ENABLED.load(Ordering::Relaxed)
}

/// Records what was queued on a stream between two events.
pub fn record(stream: &'static str, name: String, start: TimingEvent, end: TimingEvent) {
    if let Some(trace) = lock().as_mut().filter(|trace| trace.spans.len() < MAX_SPANS) {
        trace.spans.push(RecordedSpan { stream, name, start, end });
    }
}

/// Ends the trace. The device must have completed all recorded work.
pub fn finish() -> Vec<TraceSpan> {
    IS_ENABLED.store(false, Ordering::Relaxed);
    let Some(Trace { base, spans }) = lock().take() else { return Vec::new() };
    let timed = |span: RecordedSpan| {
        let [start, end] = [&span.start, &span.end].map(|event| base.seconds_until(event));
        TraceSpan { stream: span.stream, name: span.name, start, end }
    };
    spans.into_iter().map(timed).collect()
}
