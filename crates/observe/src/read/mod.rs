//! Reads run folders, also of runs that go on. Files are opened below a given path only, and never for
//! longer than a call: a run may be removed at any time, and open files are few.

pub mod comms;
mod error;
mod file;
mod follow;
mod lines;
pub mod lock;
mod progress;
mod run;
mod summary;

pub use crate::line_splitter::LineSplitter;
pub use error::ReadError;
pub use file::{open_regular, read_document};
pub use follow::{Followed, RunFollower, Source, Update};
pub use lines::{LineFollower, NewLines};
pub use progress::{LastMetrics, Progress, metrics, progress};
pub use run::{Launch, Log, Run, last_launch};
pub use summary::{RunState, RunSummary, lock_files};
