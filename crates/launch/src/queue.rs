//! What the threads of a node's ranks tell the one that decides. What a rank wrote waits in a
//! queue that may be full, which holds the rank back; news of its end never waits.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pieces of output that may wait.
const MOST: usize = 1024;

/// Called when something was put in, by the thread that did.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// A queue of news and output.
pub struct Queue<N, O> {
    inside: Mutex<Inside<N, O>>,
    filled: Condvar,
    taken: Condvar,
    notify: Option<Notify>,
}

struct Inside<N, O> {
    news: VecDeque<N>,
    output: VecDeque<O>,
}

impl<N, O> Queue<N, O> {
    /// An empty queue.
    pub fn new(notify: Option<Notify>) -> Arc<Self> {
        let inside = Inside { news: VecDeque::new(), output: VecDeque::new() };
        Arc::new(Self {
            inside: Mutex::new(inside),
            filled: Condvar::new(),
            taken: Condvar::new(),
            notify,
        })
    }

    /// Nothing panics while it holds the lock, so a poisoned one is as good.
    fn lock(&self) -> MutexGuard<'_, Inside<N, O>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) {
        self.filled.notify_one();
        if let Some(notify) = &self.notify {
            notify();
        }
    }

    /// Puts news in.
    pub fn tell(&self, news: N) {
        self.lock().news.push_back(news);
        self.told();
    }

    /// Puts output in, when there is room.
    pub fn write(&self, output: O) {
        let mut inside = self.lock();
        while inside.output.len() >= MOST {
            inside = self.taken.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
        inside.output.push_back(output);
        // Whoever takes it knows of what was there already: a call to the kernel for each line
        // would cost more than the line.
        let first = inside.output.len() == 1;
        drop(inside);
        if first {
            self.told();
        }
    }

    /// Waits until there is something to take; while output is `held`, until there are news.
    pub fn wait(&self, timeout: Duration, held: bool) {
        let inside = self.lock();
        if inside.news.is_empty() && (held || inside.output.is_empty()) {
            let _ = self.filled.wait_timeout(inside, timeout);
        }
    }

    /// The oldest news.
    pub fn news(&self) -> Option<N> {
        self.lock().news.pop_front()
    }

    /// The oldest output.
    pub fn output(&self) -> Option<O> {
        let mut inside = self.lock();
        let output = inside.output.pop_front();
        // It was full before it is half full again, so whoever waits is told.
        let room = output.is_some() && inside.output.len() == MOST / 2;
        drop(inside);
        if room {
            self.taken.notify_all();
        }
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_overtake_output_that_nobody_takes() {
        let queue = Queue::new(None);
        let writer = queue.clone();
        let thread = std::thread::spawn(move || (0..2 * MOST).for_each(|i| writer.write(i)));
        queue.tell("over");
        assert_eq!(queue.news(), Some("over"));
        let mut next = 0;
        while next < 2 * MOST {
            queue.wait(Duration::from_secs(10), false);
            while let Some(i) = queue.output() {
                assert_eq!(i, next);
                next += 1;
            }
        }
        thread.join().unwrap();
    }
}
