//! Threads that work at the same time, and how long they take together.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::CeilingError;
use super::timing::{Effort, Timed, time};

/// What one thread does.
pub(super) trait Work: Send {
    /// Gets and touches its memory, in the thread that will use it: it lies near that one then.
    fn prepare(&mut self);

    /// Does it once.
    fn once(&mut self);
}

enum Order {
    Prepare,
    Work(u64),
}

impl Order {
    fn follow(&self, work: &mut impl Work) {
        match self {
            Self::Prepare => work.prepare(),
            Self::Work(calls) => (0..*calls).for_each(|_| work.once()),
        }
    }
}

/// A thread that waits for orders, and tells when it followed one.
struct Helper {
    orders: Sender<Order>,
    done: Receiver<()>,
}

/// Times all of them working at once, each in a thread of its own; the first in this one.
pub(super) fn time_all<W: Work>(
    all: &mut [W],
    effort: &Effort,
    stop: &AtomicBool,
) -> Result<Option<Timed>, CeilingError> {
    let threads = all.len();
    let Some((own, others)) = all.split_first_mut() else { return Ok(None) };
    thread::scope(|scope| {
        let mut helpers = Vec::new();
        for work in others {
            let (orders, ordered) = channel::<Order>();
            let (finished, done) = channel();
            let follow = move || {
                // It ends when nobody gives orders any more, or waits for it.
                while let Ok(order) = ordered.recv() {
                    order.follow(work);
                    if finished.send(()).is_err() {
                        return;
                    }
                }
            };
            let started = thread::Builder::new().spawn_scoped(scope, follow);
            started.map_err(|source| CeilingError::Threads { threads, source })?;
            helpers.push(Helper { orders, done });
        }
        round(own, &helpers, || Order::Prepare);
        time(effort, stop, |calls| Ok(round(own, &helpers, || Order::Work(calls))))
    })
}

/// All follow one order; how long it took until the last had.
fn round(own: &mut impl Work, helpers: &[Helper], order: impl Fn() -> Order) -> Duration {
    let begin = Instant::now();
    // A helper that is gone has panicked, which the end of the scope passes on.
    for helper in helpers {
        let _ = helper.orders.send(order());
    }
    order().follow(own);
    for helper in helpers {
        let _ = helper.done.recv();
    }
    begin.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counter {
        prepared: u32,
        calls: u64,
    }

    impl Work for Counter {
        fn prepare(&mut self) {
            self.prepared += 1;
        }

        fn once(&mut self) {
            assert_eq!(self.prepared, 1);
            self.calls += 1;
        }
    }

    #[test]
    fn all_do_the_same_number_of_calls() {
        let mut all: Vec<Counter> = (0..3).map(|_| Counter::default()).collect();
        let effort = Effort {
            repetitions: 4,
            repetition: Duration::from_micros(100),
            case: Duration::from_millis(1),
        };
        let timed = time_all(&mut all, &effort, &AtomicBool::new(false)).unwrap().unwrap();
        assert!(all[0].calls > timed.calls);
        assert!(all.iter().all(|counter| counter.calls == all[0].calls));
        assert!(time_all::<Counter>(&mut [], &effort, &AtomicBool::new(false)).unwrap().is_none());
    }
}
