//! Reads run folders, also of runs that go on. Files are opened below a given path only, and never for
//! longer than a call: a run may be removed at any time, and open files are few.

pub mod comms;
mod error;
mod file;
mod follow;
mod line_splitter;
mod lines;
pub mod lock;
mod progress;
mod run;
mod summary;

pub use error::ReadError;
pub use file::open_regular;
pub use follow::{Followed, RunFollower, Source, Update};
pub use line_splitter::LineSplitter;
pub use lines::{LineFollower, NewLines};
pub use progress::{Progress, progress};
pub use run::{Launch, Log, Run, last_launch};
pub use summary::{RunKind, RunState, RunSummary, lock_files};
