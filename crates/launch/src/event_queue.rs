//! Queue between the I/O threads of a node's ranks and the thread that handles their events. Output
//! is bounded and applies backpressure to the ranks; control events are never delayed by it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of queued output items. A long item counts as several.
const OUTPUT_CAPACITY: usize = 1024;
/// Bytes that count as one item.
const ITEM_BYTES: usize = 8 * 1024;

/// Output with a length.
pub trait ByteLen {
    /// The length in bytes.
    fn byte_len(&self) -> usize;
}

/// Called by the pushing thread after a push.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// A queue of control events and output.
pub struct EventQueue<C, O> {
    queues: Mutex<Queues<C, O>>,
    not_empty: Condvar,
    not_full: Condvar,
    notify: Option<Notify>,
}

struct Queues<C, O> {
    control: VecDeque<C>,
    output: VecDeque<O>,
    /// Number of queued output items, each weighted by its length.
    output_size: usize,
}

/// How many items `output` counts as.
fn size(output: &impl ByteLen) -> usize {
    1 + output.byte_len() / ITEM_BYTES
}

impl<C, O: ByteLen> EventQueue<C, O> {
    /// Creates an empty queue.
    pub fn new(notify: Option<Notify>) -> Arc<Self> {
        let queues = Queues { control: VecDeque::new(), output: VecDeque::new(), output_size: 0 };
        Arc::new(Self {
            queues: Mutex::new(queues),
            not_empty: Condvar::new(),
            not_full: Condvar::new(),
            notify,
        })
    }

    /// No code panics while it holds the lock, so a poisoned lock is still consistent.
    fn lock(&self) -> MutexGuard<'_, Queues<C, O>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.not_empty.notify_one();
        if let Some(notify) = &self.notify {
            notify();
        }
    }

    /// Pushes a control event.
    pub fn push_control(&self, event: C) {
        self.lock().control.push_back(event);
        self.notify();
    }

    /// Pushes output, blocking while the queue is full.
    pub fn push_output(&self, output: O) {
        let is_full = |queues: &mut Queues<C, O>| queues.output_size >= OUTPUT_CAPACITY;
        let queues = self.not_full.wait_while(self.lock(), is_full);
        let mut queues = queues.unwrap_or_else(PoisonError::into_inner);
        queues.output_size += size(&output);
        queues.output.push_back(output);
        // The consumer drains the queue once woken: one system call per line would cost more than
        // the line.
        let was_empty = queues.output.len() == 1;
        drop(queues);
        if was_empty {
            self.notify();
        }
    }

    /// Waits for an event; while `output_paused`, for a control event.
    pub fn wait(&self, timeout: Duration, output_paused: bool) {
        let queues = self.lock();
        if queues.control.is_empty() && (output_paused || queues.output.is_empty()) {
            let _ = self.not_empty.wait_timeout(queues, timeout);
        }
    }

    /// Pops the oldest control event.
    pub fn pop_control(&self) -> Option<C> {
        self.lock().control.pop_front()
    }

    /// Pops the oldest output.
    pub fn pop_output(&self) -> Option<O> {
        let mut queues = self.lock();
        let output = queues.output.pop_front()?;
        let half = OUTPUT_CAPACITY / 2;
        let was_above_half = queues.output_size > half;
        queues.output_size -= size(&output);
        // A queue that was full passes through half full, so every blocked writer is woken.
        let wake = was_above_half && queues.output_size <= half;
        drop(queues);
        if wake {
            self.not_full.notify_all();
        }
        Some(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ByteLen for usize {
        fn byte_len(&self) -> usize {
            0
        }
    }

    impl ByteLen for Vec<u8> {
        fn byte_len(&self) -> usize {
            self.len()
        }
    }

    #[test]
    fn long_items_are_bounded_by_their_bytes() {
        let queue = EventQueue::<(), Vec<u8>>::new(None);
        let writer = queue.clone();
        let (count, len) = (10, OUTPUT_CAPACITY * ITEM_BYTES / 2);
        let thread =
            std::thread::spawn(move || (0..count).for_each(|_| writer.push_output(vec![0; len])));
        for _ in 0..count {
            queue.wait(Duration::from_secs(10), false);
            while queue.pop_output().is_none() {
                std::thread::yield_now();
            }
            assert!(queue.lock().output.len() <= 2);
        }
        thread.join().unwrap();
    }

    #[test]
    fn control_events_overtake_a_full_output_queue() {
        let queue = EventQueue::new(None);
        let writer = queue.clone();
        let count = 2 * OUTPUT_CAPACITY;
        let thread = std::thread::spawn(move || (0..count).for_each(|i| writer.push_output(i)));
        queue.push_control("exited");
        assert_eq!(queue.pop_control(), Some("exited"));
        let mut next = 0;
        while next < count {
            queue.wait(Duration::from_secs(10), false);
            while let Some(i) = queue.pop_output() {
                assert_eq!(i, next);
                next += 1;
            }
        }
        thread.join().unwrap();
    }
}
