//! Runs the test programs of the workspace, several at once, in namespaces of their own.

mod artifacts;
mod isolation;
mod schedule;
mod unit;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;

pub use artifacts::{Build, build, build_tests};
use isolation::Isolation;
use schedule::{Limits, Load};
pub use unit::Outcome;
use unit::TestUnit;

/// How many of the longest units are listed at the end.
const LISTED: usize = 20;

/// Work that has not begun, and what runs now.
struct Queue {
    waiting: Vec<TestUnit>,
    running: Vec<Load>,
    finished: Vec<Outcome>,
}

/// Runs the test programs and modules whose names contain one of `wanted`, or all if there are none, also
/// after a failure.
pub fn run(build: Build, variables: &[(&str, &str)], wanted: &[String]) -> Result<Vec<Outcome>> {
    let isolation = Isolation::probe(&build.binary);
    if let Err(why) = &isolation {
        println!("xtask: test programs are not isolated, so that some run one at a time: {why}");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let limits = Limits { cores, isolated: isolation.is_ok() };
    let is_wanted = |unit: &TestUnit| {
        wanted.is_empty() || wanted.iter().any(|word| unit.name.contains(word.as_str()))
    };
    let mut units = unit::split(build.programs)?;
    units.retain(is_wanted);
    let pool = Pool {
        limits,
        isolation: isolation.ok(),
        queue: Mutex::new(Queue {
            waiting: unit::in_order(units),
            running: Vec::new(),
            finished: Vec::new(),
        }),
        changed: Condvar::new(),
    };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..limits.units()).map(|_| scope.spawn(|| pool.work(variables))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    let queue = pool.queue.into_inner().unwrap_or_else(PoisonError::into_inner);
    print_longest(&queue.finished);
    Ok(queue.finished)
}

/// Threads that run the units of a queue.
struct Pool {
    limits: Limits,
    isolation: Option<Isolation>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs units until none is left.
    fn work(&self, variables: &[(&str, &str)]) -> Result<()> {
        while let Some(unit) = self.next() {
            println!("xtask: running {}", unit.name);
            let outcome = unit.run(self.isolation.as_ref(), variables);
            let mut queue = self.lock();
            if let Some(at) = queue.running.iter().position(|load| *load == unit.load) {
                queue.running.swap_remove(at);
            }
            self.changed.notify_all();
            let outcome = outcome?;
            println!("xtask: {} ({})\n{}", outcome.name, outcome.times(), outcome.output);
            queue.finished.push(outcome);
        }
        Ok(())
    }

    /// The next unit, once it may run; none if all have begun.
    fn next(&self) -> Option<TestUnit> {
        let mut queue = self.lock();
        loop {
            if queue.waiting.is_empty() {
                return None;
            }
            let loads: Vec<Load> = queue.waiting.iter().map(|unit| unit.load).collect();
            if let Some(at) = schedule::next(&loads, &queue.running, self.limits) {
                let unit = queue.waiting.remove(at);
                queue.running.push(unit.load);
                return Some(unit);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Prints what took longest, from which the table of the longest is made, and the sum.
fn print_longest(finished: &[Outcome]) {
    let mut outcomes: Vec<&Outcome> = finished.iter().collect();
    outcomes.sort_by_key(|outcome| std::cmp::Reverse(outcome.duration));
    let line = |outcome: &&Outcome| format!("{}  {}", outcome.times(), outcome.name);
    let lines: Vec<String> = outcomes.iter().take(LISTED).map(line).collect();
    let cpu_time: Duration = finished.iter().map(|outcome| outcome.cpu_time).sum();
    let seconds = cpu_time.as_secs_f64();
    println!(
        "xtask: the longest of {} test runs, which took {seconds:.0} s of CPU time:\n{}",
        outcomes.len(),
        lines.join("\n")
    );
}
