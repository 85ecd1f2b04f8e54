//! Data: text to tokens, token files, and which rank reads which sample at which step.
//!
//! Read [`order`] for the order of samples, [`source`] for where data comes from, [`token_file`]
//! for what is on disk.

mod bpe;
mod builtin;
mod error;
mod fetch;
pub mod loader;
pub mod order;
mod pieces;
pub mod prepare;
pub mod source;
mod split;
#[cfg(test)]
pub(crate) mod testing;
pub mod token_file;
pub mod tokenizer;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use error::{DataError, Result};
pub use loader::{Ahead, Batch, Loader};
pub use order::Order;
pub use source::{Dataset, Places, Prepared, Spec, Tokens, open, prepare};
pub use token_file::{TokenFile, TokenWriter};
pub use tokenizer::{Stream, Tokenizer};

/// A name of this process's own beside a path: `path.word-…`. Processes of several nodes may have
/// the same number, but do not begin at the same nanosecond too.
fn beside(path: &Path, word: &str) -> PathBuf {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let own = format!("{word}-{}-{:x}", std::process::id(), now.as_nanos());
    // Components, for a folder's name may end in a slash.
    path.components().collect::<PathBuf>().with_added_extension(own)
}
