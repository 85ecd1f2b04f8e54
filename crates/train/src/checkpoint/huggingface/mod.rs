//! Hugging Face models: GPT-2 and Llama in the format of `transformers`.
//!
//! [`names`] maps tensor names, [`config`] maps `config.json`; [`import()`] and [`export()`] copy tensors.

pub mod config;
pub mod export;
pub mod import;
pub mod names;
#[cfg(test)]
mod tests;

pub use export::export;
pub use import::{Imported, import};
