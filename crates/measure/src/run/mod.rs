//! Benchmarks collectives over a communicator as nccl-tests does: size range, warm-up, timed
//! iterations in place and out of place, checked results.

mod case;
mod eta;
mod event;
mod measure;
pub mod nccl_names;
mod pattern;
mod sizes;
mod spread;
mod suite;

pub use case::MemoryKind;
pub use event::{BenchEvent, BenchProgress};
pub use measure::IterationCounts;
pub use sizes::{SizeRange, parse_size};
pub use suite::{RankAverage, RunConfig, run};
