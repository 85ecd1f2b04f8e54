//! The options of `regatta data`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Examples of the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta data prepare tinyshakespeare -o shakespeare
                                                a named set, characters as tokens
  regatta data prepare a.txt b.txt -o books --tokenizer gpt2/tokenizer.json
                                                files of any size as BPE tokens
  regatta data show books                       counts, checksums, how it begins
  regatta train data.source=books               train on it";

/// `regatta data`.
#[derive(Debug, Args)]
pub struct DataArgs {
    /// What to do
    #[command(subcommand)]
    pub command: DataCommand,
}

/// What can be done with data.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Make a folder of token files from texts
    Prepare(PrepareArgs),
    /// Show what a folder or a token file holds, and check it
    Show(ShowArgs),
}

/// `regatta data prepare`.
#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// Text files, which are one text together, or the name of a set (tinyshakespeare)
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<String>,
    /// The folder to make
    #[arg(short, long, value_name = "FOLDER")]
    pub output: PathBuf,
    /// A tokenizer.json of Hugging Face (byte-level BPE, as of GPT-2 and Llama 3), or one that an
    /// earlier `data prepare` wrote
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Take the texts' characters as tokens, which is also the default
    #[arg(long, conflicts_with = "tokenizer")]
    pub characters: bool,
    /// The share at the end that is kept for validation
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub validation: f64,
    /// Replace a folder that an earlier `data prepare` made
    #[arg(long)]
    pub force: bool,
    /// Print what was made as JSON
    #[arg(long)]
    pub json: bool,
}

/// `regatta data show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A folder of `regatta data prepare`, or a token file
    #[arg(value_name = "FOLDER|FILE")]
    pub path: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}
