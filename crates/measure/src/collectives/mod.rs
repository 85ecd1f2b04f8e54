//! Benchmarks collectives over a communicator as nccl-tests does: size range, warm-up, timed
//! iterations in place and out of place, checked results.

mod case;
mod eta;
mod event;
mod measure;
pub mod nccl_names;
mod pattern;
mod run;
mod sizes;
mod spread;

pub use case::{CallSpec, MemoryKind, operations};
pub use event::{BenchEvent, BenchProgress};
pub use measure::{IterationCounts, RankAverage};
pub use run::{RunConfig, measure_call, run};
pub use sizes::{SizeRange, parse_size};

#[cfg(test)]
pub(crate) mod testing {
    use regatta_comm::communicator::Communicator;
    use regatta_testbed::in_process;

    /// Calls `work` on each of `ranks` in-process ranks; returns the results by rank.
    pub(crate) fn on_ranks<T: Send>(ranks: u32, work: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let rank = |comm| scope.spawn(move || work(comm));
            let threads: Vec<_> = in_process::world(ranks).into_iter().map(rank).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}
