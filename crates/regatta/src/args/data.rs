//! The options of `regatta data`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use regatta_train::data::MIN_BPE_VOCAB;

use crate::options::{at_least, number};

/// Largest vocabulary of `--bpe`, to catch typing errors.
const MAX_BPE_VOCAB: i64 = 1 << 20;

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta data prepare tinyshakespeare -o shakespeare
                                                a named dataset, one token per character
  regatta data prepare a.txt b.txt -o books --tokenizer gpt2/tokenizer.json
                                                text files of any size, with a BPE tokenizer
  regatta data prepare a.txt b.txt -o books --bpe 4096
                                                train a BPE tokenizer of 4096 tokens on them
  regatta data show books                       token counts, checksums and a preview
  regatta train data.source=books               train on the prepared dataset";

/// `regatta data`.
#[derive(Debug, Args)]
pub struct DataArgs {
    /// Action
    #[command(subcommand)]
    pub command: DataCommand,
}

/// The subcommands of `regatta data`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Tokenize text into a dataset folder
    Prepare(PrepareArgs),
    /// Show and verify a dataset folder or a token file
    Show(ShowArgs),
}

/// `regatta data prepare`.
#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// Text files, which are concatenated, or the name of a dataset (tinyshakespeare)
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<String>,
    /// Dataset folder to create
    #[arg(short, long, value_name = "FOLDER")]
    pub output: PathBuf,
    /// Hugging Face tokenizer.json (byte-level BPE, like those of GPT-2 and Llama 3), or one written
    /// by an earlier `data prepare` [default: one token per character]
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Train a byte-level BPE tokenizer of VOCAB_SIZE tokens on the training split, at least 257: all
    /// bytes and <|endoftext|>. Written as tokenizer.json, which Hugging Face's tokenizers reads
    #[arg(long, value_name = "VOCAB_SIZE", conflicts_with = "tokenizer", value_parser = at_least::<u32>(MIN_BPE_VOCAB as i64).range(..=MAX_BPE_VOCAB))]
    pub bpe: Option<u32>,
    /// Use one token per character (the default)
    #[arg(long, conflicts_with_all = ["tokenizer", "bpe"])]
    pub characters: bool,
    /// Fraction of the text, at its end, to use as the validation split
    #[arg(long, value_name = "FRACTION", default_value_t = 0.1, allow_negative_numbers = true, value_parser = number(|f| (0.0..1.0).contains(f), "expected a number in [0, 1)"))]
    pub validation: f64,
    /// Overwrite a dataset folder of an earlier `data prepare`
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// `regatta data show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Dataset folder of `regatta data prepare`, or a token file
    #[arg(value_name = "FOLDER|FILE")]
    pub path: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}
