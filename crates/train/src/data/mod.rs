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
mod testing;
pub mod token_file;
pub mod tokenizer;

pub use error::{DataError, Result};
pub use loader::{Ahead, Batch, Loader};
pub use order::Order;
pub use source::{Dataset, Places, Prepared, Spec, Tokens, open, prepare};
pub use token_file::{TokenFile, TokenWriter};
pub use tokenizer::{Stream, Tokenizer};
