//! Runs a kernel on several threads at once and times them together.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::timing::{Samples, TimingOptions, time};
use super::{Result, RooflineError};

/// Work of one thread.
pub(super) trait ThreadKernel: Send {
    /// Allocates and touches its memory on the thread that uses it (NUMA first touch).
    fn init(&mut self);

    /// Runs the kernel.
    fn run(&mut self);
}

#[derive(Clone, Copy)]
enum Command {
    Init,
    Run(u64),
}

impl Command {
    fn execute(self, kernel: &mut impl ThreadKernel) {
        match self {
            Self::Init => kernel.init(),
            Self::Run(calls) => (0..calls).for_each(|_| kernel.run()),
        }
    }
}

/// A thread that executes commands.
struct WorkerThread {
    commands: Sender<Command>,
    done: Receiver<()>,
}

/// Times all kernels running concurrently, one per thread; the first runs on the calling thread.
pub(super) fn time_threads<W: ThreadKernel>(
    all: &mut [W],
    timing: &TimingOptions,
) -> Result<Samples> {
    let threads = all.len();
    let mut kernels = all.iter_mut();
    let mut own = kernels.next();
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for kernel in kernels {
            let (commands, received) = channel::<Command>();
            let (finished, done) = channel();
            let serve = move || {
                // Ends when the sender or receiver is dropped.
                while let Ok(command) = received.recv() {
                    command.execute(kernel);
                    if finished.send(()).is_err() {
                        return;
                    }
                }
            };
            let started = thread::Builder::new().spawn_scoped(scope, serve);
            started.map_err(|source| RooflineError::Threads { threads, source })?;
            workers.push(WorkerThread { commands, done });
        }
        round(&mut own, &workers, Command::Init);
        time(timing, |calls| Ok(round(&mut own, &workers, Command::Run(calls))))
    })
}

/// Executes a command on all threads; returns the time until the last is done.
fn round<W: ThreadKernel>(
    own: &mut Option<&mut W>,
    workers: &[WorkerThread],
    command: Command,
) -> Duration {
    let begin = Instant::now();
    // A missing worker has panicked; the scope propagates the panic.
    for worker in workers {
        let _ = worker.commands.send(command);
    }
    own.iter_mut().for_each(|kernel| command.execute(*kernel));
    for worker in workers {
        let _ = worker.done.recv();
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

    impl ThreadKernel for Counter {
        fn init(&mut self) {
            self.prepared += 1;
        }

        fn run(&mut self) {
            assert_eq!(self.prepared, 1);
            self.calls += 1;
        }
    }

    #[test]
    fn all_threads_run_the_same_number_of_calls() {
        let mut all: Vec<Counter> = (0..3).map(|_| Counter::default()).collect();
        let [repetition_time, case_time] = [100, 1000].map(Duration::from_micros);
        let timing = TimingOptions { max_repetitions: 4, repetition_time, case_time };
        let timed = |all: &mut [Counter]| time_threads(all, &timing);
        let calls = timed(&mut all).unwrap().calls;
        assert!(all[0].calls > calls);
        assert!(all.iter().all(|counter| counter.calls == all[0].calls));
    }
}
