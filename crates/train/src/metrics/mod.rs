//! What is told of a run while it goes on: [`Event`]s for whoever watches, files for later.
//!
//! [`Recorder`] writes `metrics.jsonl`, a line a step, and event files for TensorBoard. Nothing
//! that goes wrong there ends the training.

mod crc;
mod event;
mod lines;
mod number;
mod recorder;
mod tensorboard;

pub use event::{About, Ended, Event, RankBytes, StepMetrics, StepSeconds, Summary};
pub use lines::JsonLines;
pub use recorder::Recorder;
pub use tensorboard::TensorBoard;

/// How floating point operations are counted, by [`regatta_predict::shape::Shape::training_flops_per_token`]:
/// L layers, width h, g of a heads for keys, sequence s, feed-forward f (4, or 6 with a gate),
/// vocabulary V.
pub const FLOPS_FORMULA: &str = "3[L(4h²(1+g/a)+2sh+(4|6)hf)+2hV] a token";

/// The file with a line a step, in the run folder.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// The folder with event files, in the run folder.
pub const TENSORBOARD_FOLDER: &str = "tensorboard";
