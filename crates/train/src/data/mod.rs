//! Data: tokenizers, token files, and which rank reads which sequence at which step.
//!
//! [`sampler`] defines the order of sequences, [`source`] where data comes from, [`token_file`] the format on disk.

mod bpe;
mod builtin;
pub mod data_loader;
mod error;
mod named_dataset;
mod pre_tokenizer;
pub mod prepare;
pub mod sampler;
pub mod source;
mod text_chunks;
pub mod token_file;
pub mod tokenizer;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use bpe::train::MIN_VOCAB as MIN_BPE_VOCAB;
pub use data_loader::{Batch, DataLoader, Prefetcher};
pub use error::{DataError, Result};
pub use sampler::Sampler;
pub use source::{DataDirs, DataSpec, Dataset, Prepared, Tokens, open, prepare};
pub use token_file::{TokenFile, TokenWriter};
pub use tokenizer::{StreamDecoder, Tokenizer};

/// A unique temporary name next to a path: `path.word-...`. Includes a timestamp, because processes on several
/// nodes may have the same id.
fn beside(path: &Path, word: &str) -> PathBuf {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let own = format!("{word}-{}-{:x}", std::process::id(), now.as_nanos());
    // Components, because the path may end in a slash.
    path.components().collect::<PathBuf>().with_added_extension(own)
}
