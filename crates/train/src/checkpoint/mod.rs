//! Sharded checkpoints. Every rank writes its shards in the background to one directory, which is renamed to its
//! final name once all shards are there: a crash at any time leaves the previous checkpoint valid.
//!
//! [`shard`] defines what is stored, [`manifest`] its description, [`writer`] writes and [`reader`] reads slices
//! on any number of ranks. The format is described in `docs/checkpoints.md`.

mod commit;
mod completeness;
mod cover;
mod dir_layout;
pub mod disk;
mod error;
pub mod find;
pub mod header;
pub mod huggingface;
pub mod manifest;
pub mod reader;
pub mod shard;
mod shard_file;
#[cfg(test)]
mod tests;
pub mod writer;

pub use commit::Committed;
pub use dir_layout::MANIFEST;
pub use error::{CheckpointError, Result};
pub use find::{
    Skipped, find, has_checkpoint, has_checkpoint_of_run, is_in_dir, latest_valid, newest_meta,
};
pub use manifest::{CheckpointMeta, SPLIT};
pub use reader::Checkpoint;
pub use shard::{Shard, ShardMeta, StateTensor, TensorSlice};
pub use writer::{State, Writer};
