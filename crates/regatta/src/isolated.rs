//! Runs code that loads vendor libraries in a child process: they start threads, and a launcher must
//! still be able to fork.

use anyhow::{Context, Result};
use regatta_launch::forked;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Runs `work` in a child process, or here if this process has several threads already.
pub fn run<T: Serialize + DeserializeOwned>(what: &str, work: impl FnOnce() -> T) -> Result<T> {
    if forked::thread_count() > 1 {
        return Ok(work());
    }
    // An empty output is no JSON.
    let output = forked::run_in_child(|| serde_json::to_vec(&work()).unwrap_or_default());
    let output = output.with_context(|| format!("{what} failed"))?;
    serde_json::from_slice(&output).with_context(|| format!("{what} failed"))
}
