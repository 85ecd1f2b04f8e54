//! Writes lines to a standard stream in a thread, so that the launcher still handles signals and
//! heartbeats when the reader blocks (Ctrl-S, a pager, a slow pipe).

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::output::Stream;

/// Maximum number of queued bytes.
const MAX_QUEUED: usize = 1024 * 1024;
/// Maximum size of one write, in bytes.
const WRITE_SIZE: usize = 64 * 1024;

/// A bounded queue of lines for a stream, and the thread that writes them.
pub struct LineWriter {
    stream: Stream,
    is_terminal: bool,
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

impl LineWriter {
    /// Starts the thread of a stream.
    pub fn spawn(stream: Stream) -> io::Result<Self> {
        Self::with(stream, move |text| stream.write(text))
    }

    fn with(
        stream: Stream,
        write: impl Fn(&str) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let shared = queue.clone();
        let run = move || shared.run(write);
        std::thread::Builder::new().name(stream.to_string()).spawn(run)?;
        Ok(Self { stream, is_terminal: stream.is_terminal(), queue, busy_since: None })
    }

    /// Whether the stream is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Queues a line; false if the queue is full.
    pub fn push(&mut self, line: &str) -> bool {
        let mut state = self.queue.lock();
        if state.bytes >= MAX_QUEUED {
            return false;
        }
        state.bytes += line.len();
        match state.batches.back_mut() {
            Some(batch) if batch.len() + line.len() <= WRITE_SIZE => batch.push_str(line),
            _ => state.batches.push_back(line.to_owned()),
        }
        drop(state);
        self.queue.not_empty.notify_one();
        true
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
        (LineWriter::with(Stream::Stderr, write).unwrap(), permit, written)
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
