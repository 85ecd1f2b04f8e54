//! The recorder of a process.
//!
//! Calls and callbacks put raw events into the bounded lock-free ring of their thread and return; they
//! never wait. Another thread drains the rings, assembles operations and appends them to the event file. Events that do not
//! fit into the ring or onto the disk are counted, and nothing else happens.

mod drain;
mod exit;
mod names;
pub mod raw;
mod rings;
pub mod settings;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use drain::Drain;
pub use exit::stop_at_exit;
use names::NameTable;
use raw::RawEvent;
use rings::Rings;
use settings::Settings;
pub use writer::RecordError;

use crate::operation::Name;

/// Events that the ring of a thread holds, in 3.4 MB. It is drained every few milliseconds.
const RING: usize = 1 << 15;

/// Records the events of a process. Dropping it ends the file.
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    waker: Thread,
    /// The process that created it: a fork has no thread.
    pid: u32,
}

/// State shared with the thread.
#[derive(Debug)]
struct Shared {
    rings: Rings,
    names: NameTable,
    lost: AtomicU64,
    communicators: AtomicU32,
    /// Flushes requested and done.
    requested: AtomicU64,
    flushed: AtomicU64,
    stop: AtomicBool,
}

impl Recorder {
    /// Creates the event file and starts the thread.
    pub fn start(settings: Settings) -> Result<Self, RecordError> {
        Self::with_capacity(settings, RING)
    }

    fn with_capacity(settings: Settings, capacity: usize) -> Result<Self, RecordError> {
        let shared = Arc::new(Shared {
            rings: Rings::new(capacity),
            names: NameTable::default(),
            lost: AtomicU64::new(0),
            communicators: AtomicU32::new(1),
            requested: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let drain = Drain::new(shared.clone(), settings)?;
        let thread = drain::spawn(drain).map_err(RecordError::Thread)?;
        let waker = thread.thread().clone();
        Ok(Self { shared, thread: Mutex::new(Some(thread)), waker, pid: std::process::id() })
    }

    /// Puts an event into the ring of this thread, or counts it as lost. Never waits.
    #[inline]
    pub fn push(&self, event: RawEvent) {
        if !self.shared.rings.push(event) {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A number for an operation of this thread; never 0.
    #[inline]
    pub fn next_operation(&self) -> u64 {
        self.shared.rings.next_operation()
    }

    /// The index of the next communicator, from 1.
    pub fn next_communicator(&self) -> u32 {
        self.shared.communicators.fetch_add(1, Ordering::Relaxed)
    }

    /// The code of a name that is not built in.
    pub fn name(&self, text: &str) -> Name {
        self.shared.names.intern(text)
    }

    /// Events lost so far because the ring was full.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Writes all events so far to the file, and waits for that at most `timeout`. Returns whether it
    /// was done.
    pub fn flush(&self, timeout: Duration) -> bool {
        if self.is_forked() {
            return false;
        }
        let request = self.shared.requested.fetch_add(1, Ordering::AcqRel) + 1;
        self.waker.unpark();
        wait(timeout, || self.shared.flushed.load(Ordering::Acquire) >= request)
    }

    /// Ends the file and the thread. Waits at most `timeout`, after which the thread is left alone.
    pub fn stop(&self, timeout: Duration) -> bool {
        if self.is_forked() {
            return false;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.waker.unpark();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = wait(timeout, || thread.as_ref().is_none_or(|thread| thread.is_finished()));
        if ended && let Some(thread) = thread.take() {
            let _ = thread.join();
        }
        ended
    }

    fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // A file system that does not respond must not hang the program.
        self.stop(Duration::from_secs(2));
    }
}

fn wait(timeout: Duration, condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() >= timeout {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
