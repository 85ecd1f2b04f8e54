//! State that is not in the memory where it is computed with, but on disk, read ahead and written
//! behind.

mod error;
mod shelf;
mod store;

use std::path::PathBuf;

pub use error::StoreError;
pub use shelf::Shelf;
pub use store::{Store, Ticket};

/// Where state is kept while nobody computes with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Where {
    /// In the memory of the device.
    #[default]
    Device,
    /// In the memory of the host, which devices so far have in common with it.
    Host,
    /// In a file.
    Disk,
}

/// Which state is kept elsewhere than in the memory of the device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offload {
    /// The moments of the optimizer.
    pub optimizer: Where,
    /// Parameters.
    pub parameters: Where,
    /// Where files are made; each rank has its own, which are gone when the training is.
    pub folder: PathBuf,
}
