//! The model of `regatta generate` and `regatta eval`.

use std::path::PathBuf;

use clap::Args;

/// A trained model, its tokenizer, and the threads to run it.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// A run folder, a checkpoint, or a Hugging Face model folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Tokenizer file [default: the model's]
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Where to run the model: a GPU in bf16 if there is one, or the CPU
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,
    /// Number of threads [default: one per core]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
}

/// Where to run a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceChoice {
    /// The first GPU, or the CPU if there is none
    Auto,
    /// The CPU
    Cpu,
    /// The first GPU
    Gpu,
}
