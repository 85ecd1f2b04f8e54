//! Models of Hugging Face: GPT-2 and Llama, as `transformers` writes and reads them.
//!
//! Read [`names`] for what our tensors are called there, and [`config`] for what a `config.json`
//! says; [`import()`] and [`export()`] only move numbers.

pub mod config;
mod error;
pub mod export;
pub mod import;
pub mod names;
#[cfg(test)]
mod tests;

pub use error::HuggingFaceError;
pub use export::export;
pub use import::{Imported, import};
