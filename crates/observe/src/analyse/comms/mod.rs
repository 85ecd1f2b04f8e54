//! What a job communicated: message sizes, bandwidths, communicators, ranks that arrive late, a trace of
//! all ranks on one time line. Built from the records of event files.
//!
//! - [`collector`]: reads the records of one file into totals of bounded size;
//! - [`histogram`]: operations by kind, communicator size and message size, with [`durations`];
//! - [`clocks`]: one time line for the clocks of all hosts;
//! - [`matching`]: the same collective on all of its ranks: transfer time, and who arrived last;
//! - [`analysis`]: combines the files of a job into a [`report`];
//! - [`trace`]: the events as a Chrome trace.

pub mod analysis;
pub mod bandwidth;
pub mod clocks;
pub mod collector;
pub mod durations;
pub mod histogram;
pub mod matching;
mod names;
pub mod report;
#[cfg(test)]
mod testing;
pub mod trace;
mod warnings;

pub use analysis::{Analysis, Attempts};
pub use collector::{Collector, FileSummary};
pub use report::CommsReport;
