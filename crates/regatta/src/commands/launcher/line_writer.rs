//! Writes lines to the standard streams in threads, so that the launcher still handles signals and
//! heartbeats when the reader blocks (Ctrl-S, a pager, a slow pipe).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anstream::adapter::strip_str;

use crate::output::{self, Stream};

/// Maximum number of queued bytes.
const MAX_QUEUED: usize = 1024 * 1024;
/// Maximum size of one write, in bytes.
const WRITE_SIZE: usize = 64 * 1024;

/// A bounded queue of lines for a stream.
pub struct LineWriter {
    output: QueuedOutput,
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
    batches: VecDeque<(Stream, String)>,
    /// Size of `batches`.
    bytes: usize,
    /// Whether a write is in progress.
    writing: bool,
    /// Number of completed writes.
    writes: u64,
    error: Option<(Stream, io::Error)>,
}

/// Text for a stream that precedes and follows the lines of its [`LineWriter`] in the order of the calls.
/// Writes never block: a terminal that stays blocked loses text, a pipe or file does not.
#[derive(Clone)]
pub struct QueuedOutput {
    stream: Stream,
    is_terminal: bool,
    has_color: bool,
    queue: Arc<Queue>,
}

/// Both standard streams. If they are the same terminal, pipe or file, they share a queue, which keeps
/// the order of their texts.
#[derive(Clone)]
pub struct QueuedStreams {
    pub stdout: QueuedOutput,
    pub stderr: QueuedOutput,
}

/// The queues of the standard streams. Their threads serve all jobs of this process.
static QUEUES: OnceLock<[Arc<Queue>; 2]> = OnceLock::new();

/// Whether the threads are started.
static IS_STARTED: Mutex<bool> = Mutex::new(false);

impl QueuedStreams {
    /// The streams of this process, which are written from the first [`LineWriter`] on.
    pub fn of_process() -> Self {
        let [stdout, stderr] = QUEUES.get_or_init(|| {
            let stdout: Arc<Queue> = Arc::default();
            let stderr = if output::is_one_file() { stdout.clone() } else { Arc::default() };
            [stdout, stderr]
        });
        let stdout = QueuedOutput::new(Stream::Stdout, stdout.clone());
        Self { stdout, stderr: QueuedOutput::new(Stream::Stderr, stderr.clone()) }
    }
}

impl QueuedOutput {
    fn new(stream: Stream, queue: Arc<Queue>) -> Self {
        let (is_terminal, has_color) = (stream.is_terminal(), stream.has_color());
        Self { stream, is_terminal, has_color, queue }
    }

    /// Queues a text, without colours if the stream does not support them.
    pub fn print(&self, text: &str) {
        self.push(text, self.max_queued());
    }

    fn max_queued(&self) -> usize {
        if self.is_terminal { WRITE_SIZE } else { usize::MAX }
    }

    fn push(&self, text: &str, max: usize) -> bool {
        match self.has_color {
            true => self.queue.push(self.stream, text, max),
            false => self.queue.push(self.stream, &strip_str(text).to_string(), max),
        }
    }
}

/// Text is written as it is.
impl Write for QueuedOutput {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.queue.push(self.stream, &String::from_utf8_lossy(text), self.max_queued());
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LineWriter {
    /// The writers of both streams, whose threads the first call starts.
    pub fn of_process() -> io::Result<[Self; 2]> {
        let QueuedStreams { stdout, stderr } = QueuedStreams::of_process();
        let mut is_started = IS_STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_started {
            stdout.queue.spawn(Stream::write_raw)?;
            if !Arc::ptr_eq(&stdout.queue, &stderr.queue) {
                stderr.queue.spawn(Stream::write_raw)?;
            }
            *is_started = true;
        }
        Ok([stdout, stderr].map(|output| Self { output, busy_since: None }))
    }

    /// Whether the stream is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.output.is_terminal
    }

    /// Queues a line, without colours if the stream does not support them; false if the queue is full.
    pub fn push(&mut self, line: &str) -> bool {
        self.output.push(line, MAX_QUEUED)
    }

    /// Whether all lines are written.
    pub fn is_idle(&self) -> bool {
        let state = self.output.queue.lock();
        state.batches.is_empty() && !state.writing
    }

    /// Whether a write takes longer than `limit`. Only calls while the writer is busy count.
    pub fn is_blocked(&mut self, limit: Duration) -> bool {
        let writes = self.output.queue.lock().writes;
        let (seen, since) = *self.busy_since.get_or_insert((writes, Instant::now()));
        if seen != writes {
            self.busy_since = None;
        }
        seen == writes && since.elapsed() >= limit
    }

    /// Discards the queued lines and returns their number. A write in progress is not cancelled.
    pub fn discard(&self) -> usize {
        let mut state = self.output.queue.lock();
        state.bytes = 0;
        std::mem::take(&mut state.batches).iter().map(|(_, batch)| batch.lines().count()).sum()
    }

    /// Takes the error that ended the output. A reader that closed the pipe or the terminal wanted no
    /// more, which is not an error.
    pub fn take_error(&self) -> Option<(Stream, io::Error)> {
        let error = self.output.queue.lock().error.take();
        let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        error.filter(|(_, error)| !self.output.is_terminal && !closed(error))
    }
}

impl Queue {
    /// No code panics while it holds the lock, so a poisoned lock is still consistent.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends text; false if `max` bytes or more are queued.
    fn push(&self, stream: Stream, text: &str, max: usize) -> bool {
        let mut state = self.lock();
        if state.bytes >= max {
            return false;
        }
        state.bytes += text.len();
        match state.batches.back_mut() {
            Some((to, batch)) if *to == stream && batch.len() + text.len() <= WRITE_SIZE => {
                batch.push_str(text);
            }
            _ => state.batches.push_back((stream, text.to_owned())),
        }
        drop(state);
        self.not_empty.notify_one();
        true
    }

    fn spawn(
        self: &Arc<Self>,
        write: impl Fn(Stream, &str) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let queue = self.clone();
        let run = move || queue.run(write);
        std::thread::Builder::new().name("console".to_owned()).spawn(run).map(drop)
    }

    /// Writes until the process exits. After an error the rest is discarded: the output would have a
    /// gap.
    fn run(&self, write: impl Fn(Stream, &str) -> io::Result<()>) {
        let mut failed = false;
        loop {
            let (stream, text) = self.next_batch();
            let result = if failed { Ok(()) } else { write(stream, &text) };
            failed |= result.is_err();
            let mut state = self.lock();
            state.writing = false;
            state.writes += 1;
            state.error = state.error.take().or(result.err().map(|error| (stream, error)));
        }
    }

    fn next_batch(&self) -> (Stream, String) {
        let mut state = self.lock();
        loop {
            if let Some((stream, batch)) = state.batches.pop_front() {
                state.bytes = state.bytes.saturating_sub(batch.len());
                state.writing = true;
                return (stream, batch);
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

    fn output(is_terminal: bool, queue: Arc<Queue>) -> QueuedOutput {
        QueuedOutput { stream: Stream::Stderr, is_terminal, has_color: true, queue }
    }

    /// A writer whose writes wait for a permit each, report what they wrote, and fail from the
    /// second one on.
    fn writer_with_permits() -> (LineWriter, Sender<()>, Receiver<String>) {
        let ((permit, permits), (report, written)) = (channel(), channel());
        let write = move |_, text: &str| {
            let _ = permits.recv();
            let _ = report.send(text.to_owned());
            if text == "b\n" { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        };
        let writer = LineWriter { output: output(true, Arc::default()), busy_since: None };
        writer.output.queue.spawn(write).unwrap();
        (writer, permit, written)
    }

    #[test]
    fn queued_output_never_blocks_and_is_dropped_for_a_terminal_only() {
        for is_terminal in [true, false] {
            let mut output = output(is_terminal, Arc::default());
            let text = "x".repeat(MAX_QUEUED);
            (0..2).for_each(|_| output.write_all(text.as_bytes()).unwrap());
            let queued = output.queue.lock().bytes / MAX_QUEUED;
            assert_eq!(queued, if is_terminal { 1 } else { 2 });
        }
    }

    #[test]
    fn texts_of_streams_with_one_queue_are_written_in_order() {
        let queue: Arc<Queue> = Arc::default();
        let stderr = output(false, queue.clone());
        let stdout = QueuedOutput { stream: Stream::Stdout, has_color: false, ..stderr.clone() };
        stdout.print("\x1b[1ma\x1b[0m\n");
        stdout.print("b\n");
        stderr.print("\x1b[1mc\x1b[0m\n");
        stdout.print("d\n");
        let (report, written) = channel();
        let write = move |stream, text: &str| {
            let _ = report.send((stream, text.to_owned()));
            Ok(())
        };
        queue.spawn(write).unwrap();
        let expected = [
            (Stream::Stdout, "a\nb\n"),
            (Stream::Stderr, "\x1b[1mc\x1b[0m\n"),
            (Stream::Stdout, "d\n"),
        ];
        let written = written.iter().take(expected.len());
        assert!(written.eq(expected.map(|(stream, text)| (stream, text.to_owned()))));
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
        writer.output.is_terminal = false;
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
