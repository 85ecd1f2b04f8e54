//! Writes lines to a standard stream in a thread, so that the launcher still handles signals and
//! heartbeats when the reader blocks (Ctrl-S, a pager, a slow pipe).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anstream::adapter::strip_str;

use crate::output::Stream;

/// Maximum number of queued bytes.
const MAX_QUEUED: usize = 1024 * 1024;
/// Maximum size of one write, in bytes.
const WRITE_SIZE: usize = 64 * 1024;

/// A bounded queue of lines for a stream, and the thread that writes them.
pub struct LineWriter {
    stream: Stream,
    is_terminal: bool,
    has_color: bool,
    queue: Arc<Queue>,
    /// Number of writes when the writer was first seen busy, and the time.
    busy_since: Option<(u64, Instant)>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    not_empty: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// Complete lines, several in one write: a write per line is slower than the ranks.
    batches: VecDeque<String>,
    /// Size of `batches`.
    bytes: usize,
    /// Whether a write is in progress.
    writing: bool,
    /// Number of completed writes.
    writes: u64,
    error: Option<io::Error>,
}

/// Output that precedes and follows the lines of a [`LineWriter`] in the order of the calls. Writes
/// never block: a terminal that stays blocked loses text, a pipe or file does not.
#[derive(Clone)]
pub struct QueuedOutput {
    is_terminal: bool,
    queue: Arc<Queue>,
}

impl QueuedOutput {
    /// An output that is written once a [`LineWriter`] is spawned with it.
    pub fn new(stream: Stream) -> Self {
        Self { is_terminal: stream.is_terminal(), queue: Arc::default() }
    }
}

impl Write for QueuedOutput {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let max = if self.is_terminal { WRITE_SIZE } else { usize::MAX };
        self.queue.push(&String::from_utf8_lossy(text), max);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LineWriter {
    /// Starts the thread of a stream, which also writes `output`.
    pub fn spawn(stream: Stream, output: QueuedOutput) -> io::Result<Self> {
        Self::with(stream, output.queue, move |text| stream.write_raw(text))
    }

    fn with(
        stream: Stream,
        queue: Arc<Queue>,
        write: impl Fn(&str) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = queue.clone();
        let run = move || shared.run(write);
        std::thread::Builder::new().name(stream.to_string()).spawn(run)?;
        let (is_terminal, has_color) = (stream.is_terminal(), stream.has_color());
        Ok(Self { stream, is_terminal, has_color, queue, busy_since: None })
    }

    /// Whether the stream is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Queues a line, without colours if the stream does not support them; false if the queue is full.
    pub fn push(&mut self, line: &str) -> bool {
        match self.has_color {
            true => self.queue.push(line, MAX_QUEUED),
            false => self.queue.push(&strip_str(line).to_string(), MAX_QUEUED),
        }
    }

    /// Whether all lines are written.
    pub fn is_idle(&self) -> bool {
        let state = self.queue.lock();
        state.batches.is_empty() && !state.writing
    }

    /// Whether a write takes longer than `limit`. Only calls while the writer is busy count.
    pub fn is_blocked(&mut self, limit: Duration) -> bool {
        let writes = self.queue.lock().writes;
        let (seen, since) = *self.busy_since.get_or_insert((writes, Instant::now()));
        if seen != writes {
            self.busy_since = None;
        }
        seen == writes && since.elapsed() >= limit
    }

    /// Discards the queued lines and returns their number. A write in progress is not cancelled.
    pub fn discard(&self) -> usize {
        let mut state = self.queue.lock();
        state.bytes = 0;
        std::mem::take(&mut state.batches).iter().map(|batch| batch.lines().count()).sum()
    }

    /// Takes the error that ended the output. A reader that closed the pipe or the terminal wanted no
    /// more, which is not an error.
    pub fn take_error(&self) -> Option<(Stream, io::Error)> {
        let error = self.queue.lock().error.take()?;
        let closed = self.is_terminal || error.kind() == io::ErrorKind::BrokenPipe;
        (!closed).then_some((self.stream, error))
    }
}

impl Queue {
    /// No code panics while it holds the lock, so a poisoned lock is still consistent.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends text; false if `max` bytes or more are queued.
    fn push(&self, text: &str, max: usize) -> bool {
        let mut state = self.lock();
        if state.bytes >= max {
            return false;
        }
        state.bytes += text.len();
        match state.batches.back_mut() {
            Some(batch) if batch.len() + text.len() <= WRITE_SIZE => batch.push_str(text),
            _ => state.batches.push_back(text.to_owned()),
        }
        drop(state);
        self.not_empty.notify_one();
        true
    }

    /// Writes until the process exits. After an error the rest is discarded: the output would have a
    /// gap.
    fn run(&self, write: impl Fn(&str) -> io::Result<()>) {
        let mut failed = false;
        loop {
            let text = self.next_batch();
            let result = if failed { Ok(()) } else { write(&text) };
            failed |= result.is_err();
            let mut state = self.lock();
            state.writing = false;
            state.writes += 1;
            state.error = state.error.take().or(result.err());
        }
    }

    fn next_batch(&self) -> String {
        let mut state = self.lock();
        loop {
            if let Some(batch) = state.batches.pop_front() {
                state.bytes = state.bytes.saturating_sub(batch.len());
                state.writing = true;
                return batch;
            }
            state = self.not_empty.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_testbed::wait_until;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A writer whose writes wait for a permit each, report what they wrote, and fail from the
    /// second one on.
    fn writer_with_permits() -> (LineWriter, Sender<()>, Receiver<String>) {
        let ((permit, permits), (report, written)) = (channel(), channel());
        let write = move |text: &str| {
            let _ = permits.recv();
            let _ = report.send(text.to_owned());
            if text == "b\n" { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        };
        (LineWriter::with(Stream::Stderr, Arc::default(), write).unwrap(), permit, written)
    }

    #[test]
    fn queued_output_never_blocks_and_is_dropped_for_a_terminal_only() {
        for is_terminal in [true, false] {
            let mut output = QueuedOutput { is_terminal, queue: Arc::default() };
            let text = "x".repeat(MAX_QUEUED);
            (0..2).for_each(|_| output.write_all(text.as_bytes()).unwrap());
            let queued = output.queue.lock().bytes / MAX_QUEUED;
            assert_eq!(queued, if is_terminal { 1 } else { 2 });
        }
    }

    #[test]
    fn queue_is_bounded_in_bytes_and_lines_are_written_whole() {
        let (mut writer, permit, written) = writer_with_permits();
        let line = "x".repeat(WRITE_SIZE / 3 * 2) + "\n";
        let mut queued = 0;
        while writer.push(&line) {
            queued += 1;
            assert!(queued * line.len() < MAX_QUEUED + 3 * WRITE_SIZE, "{queued}");
        }
        (0..queued).for_each(|_| permit.send(()).unwrap());
        wait_until("all lines", || writer.is_idle());
        assert!(written.try_iter().all(|text| text == line));
        assert!(writer.push(&line));
    }

    #[test]
    fn after_an_error_the_rest_is_discarded() {
        let (mut writer, permit, written) = writer_with_permits();
        for line in ["a\n", "b\n", "c\n"] {
            assert!(writer.push(line));
            let _ = permit.send(());
            wait_until("the write", || writer.is_idle());
        }
        assert_eq!(written.try_iter().collect::<Vec<_>>(), ["a\n", "b\n"]);
        writer.is_terminal = false;
        let (stream, error) = writer.take_error().unwrap();
        assert_eq!((stream, error.kind()), (Stream::Stderr, io::ErrorKind::StorageFull));
    }

    #[test]
    fn writer_is_blocked_while_a_write_makes_no_progress() {
        let (mut writer, permit, _written) = writer_with_permits();
        writer.push("a\n");
        assert!(!writer.is_blocked(Duration::from_secs(3600)));
        assert!(writer.is_blocked(Duration::ZERO));
        permit.send(()).unwrap();
        wait_until("the write", || writer.is_idle());
        assert!(!writer.is_blocked(Duration::ZERO), "a write has completed since");
    }
}
