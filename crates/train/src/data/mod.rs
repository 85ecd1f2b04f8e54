//! Data: tokenizers, token files, and which rank reads which sequence at which step.
//!
//! [`sampler`] defines the order of sequences, [`source`] where data comes from, [`token_file`] the format on disk.

mod bpe;
mod builtin;
pub mod data_loader;
mod error;
mod pre_tokenizer;
pub mod prepare;
pub mod sampler;
pub mod source;
mod text_chunks;
pub mod token_file;
pub mod tokenizer;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use regatta_model::text::hex;
use sha2::{Digest, Sha256};

use crate::regular_file;

pub use bpe::train::MIN_VOCAB as MIN_BPE_VOCAB;
pub use data_loader::{Batch, DataLoader, Prefetcher};
pub use error::{DataError, Result};
pub use sampler::Sampler;
pub use source::{DataDirs, DataSpec, Dataset, Tokens, open, open_folder};
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

/// SHA-256 of a file. `read` is called with the size of each chunk, and may abort.
fn sha256(path: &Path, mut read: impl FnMut(u64) -> Result<()>) -> Result<String> {
    let mut file = regular_file::open(path).map_err(DataError::io("open", path))?;
    let (mut sum, mut bytes) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut bytes).map_err(DataError::io("read", path))? {
            0 => return Ok(hex(&sum.finalize())),
            count => {
                sum.update(&bytes[..count]);
                read(count as u64)?;
            }
        }
    }
}
