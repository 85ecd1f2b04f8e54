//! Measuring collectives over a communicator, as nccl-tests does: sizes, warm-up, timed rounds in
//! place and out of place, checked results.

mod case;
mod event;
mod left;
mod measure;
pub mod names;
mod pattern;
mod sizes;
mod spread;
mod suite;

pub use case::Memory;
pub use event::{Event, Progress};
pub use measure::Rounds;
pub use sizes::{Sizes, parse_size};
pub use suite::{Average, Plan, run};
