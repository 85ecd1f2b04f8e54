//! A training run: its state, accumulated from events, as a dashboard or as log lines.

pub mod dashboard;
pub mod history;
pub mod log;
mod usage;
