//! The text of a trace, built piece by piece.

use std::fmt::Write;

use crate::analyse::comms::names::escaped;

/// The text of a trace.
#[derive(Debug, Default)]
pub struct TraceText {
    pub(super) text: String,
    /// Whether there is an element before the next one.
    has_elements: bool,
    events: u64,
}

impl TraceText {
    /// The start of the trace.
    pub fn new() -> Self {
        let text = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n".to_owned();
        Self { text, ..Self::default() }
    }

    /// The text since the last call.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Bytes since the last [`Self::take`].
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether there is no text since the last [`Self::take`].
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Operations and transfers so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Ends the trace.
    pub fn finish(&mut self) {
        self.text.push_str("\n]}\n");
    }

    pub(super) fn separate(&mut self) {
        if self.has_elements {
            self.text.push_str(",\n");
        }
        self.has_elements = true;
    }

    /// Names a process or thread, and gives it a place among the others.
    pub(super) fn name(&mut self, what: &str, (pid, tid): (u64, u64), name: &str, sort_index: u64) {
        for (key, value) in [("name", quoted(name)), ("sort_index", sort_index.to_string())] {
            self.separate();
            let _ = write!(
                self.text,
                "{{\"ph\":\"M\",\"name\":\"{what}_{key}\",\"pid\":{pid},\"tid\":{tid},\
                 \"args\":{{\"{key}\":{value}}}}}"
            );
        }
    }

    /// Starts a slice; its arguments follow.
    pub(super) fn begin_slice(&mut self, pid: u64, tid: u64, slice: Slice, name: &str) {
        self.separate();
        self.events += 1;
        let duration = slice.end.saturating_sub(slice.start).max(0);
        let category = if slice.network { "network" } else { "communication" };
        let _ = write!(
            self.text,
            "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\
             \"ts\":{},\"dur\":{},\"args\":",
            Micros(slice.start),
            Micros(duration),
        );
    }
}

/// A slice of the trace: which lanes, start and end on the common time line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    pub(super) network: bool,
    pub(super) start: i64,
    pub(super) end: i64,
}

/// Nanoseconds, written as microseconds.
pub(super) struct Micros(pub(super) i64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, value) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        write!(f, "{sign}{}.{:03}", value / 1000, value % 1000)
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}
