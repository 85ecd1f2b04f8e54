//! Events and metrics of a training run.
//!
//! [`Recorder`] writes `metrics.jsonl`, one line per step, and TensorBoard event files. I/O errors there
//! never end the training.

mod crc32c;
mod json_lines;
mod recorder;
mod tensorboard;

use json_lines::JsonLines;
pub use recorder::Recorder;
pub use regatta_model::run_folder::{GpuMemory, StepMetrics, StepSeconds};
pub use regatta_model::train_event::{EndReason, Event, RankBytes, RunInfo, Summary};
pub use tensorboard::TensorBoard;

/// Model FLOPs per token, as counted by [`regatta_predict::shape::ModelShape::training_flops_per_token`]: L layers,
/// hidden size h, g key/value heads of a heads, sequence length s, intermediate size f (factor 4, or 6 with
/// a gated MLP), vocabulary size V.
pub const FLOPS_FORMULA: &str = "3[L(4h²(1+g/a)+2sh+(4|6)hf)+2hV] per token";
