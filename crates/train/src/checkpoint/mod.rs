//! Checkpoints: each rank writes its pieces of tensors into one folder, in the background; the
//! folder gets its name when all is there, so that a crash at any moment leaves the last good one.
//!
//! Read [`piece`] for what is stored, [`manifest`] for the description beside it, [`writer`] for
//! how it comes onto the disk and [`reader`] for how any part is read back, on any number of ranks.
//! The format is described in `docs/checkpoints.md`.

mod commit;
mod cover;
pub mod disk;
mod error;
mod folder;
pub mod header;
pub mod huggingface;
pub mod manifest;
pub mod newest;
pub mod piece;
pub mod reader;
mod shard;
#[cfg(test)]
mod tests;
pub mod writer;

pub use commit::Committed;
pub use error::CheckpointError;
pub use folder::MANIFEST;
pub use manifest::{About, SPLIT};
pub use newest::{Skipped, any, any_of_run, is_among, newest_good};
pub use piece::{Kind, Outline, Part, Piece};
pub use reader::Checkpoint;
pub use writer::{State, Writer};
