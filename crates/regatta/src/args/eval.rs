//! The options of `regatta eval`.

use std::str::FromStr;

use clap::Args;

use super::model::ModelArgs;
use crate::options::{NamedValue, one_of};

/// `regatta eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Data to evaluate on: a text file, a folder of `regatta data prepare`, or a named dataset
    /// [default: the data the model was trained on]
    #[arg(long, value_name = "SOURCE")]
    pub data: Option<String>,
    /// Split of the data [default: val; all of a text file that --data names]
    #[arg(long, value_name = "SPLIT", value_parser = one_of(&SPLITS))]
    pub split: Option<Split>,
    /// Number of batches, or `all` [default: train.eval_batches, as in training; all with --data,
    /// or for a model without a training configuration]
    #[arg(long, value_name = "COUNT|all")]
    pub batches: Option<Batches>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  regatta eval runs/mine                        the validation loss, as in training
  regatta eval runs/mine --batches all          over the whole validation split
  regatta eval runs/mine --split train          on the training split: how far does it overfit?
  regatta eval runs/mine --data book.txt        on another text, with the model's tokenizer
  regatta eval gpt2/ --data book.txt --json     a Hugging Face model

Loss is in nats per token, and perplexity its exponential: both depend on the tokenizer. Bits per
byte of text do not, so compare models with different tokenizers by them.";

/// A split of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    Val,
    Train,
}

const SPLITS: [NamedValue<Split>; 2] =
    [("val", Split::Val, "The validation split"), ("train", Split::Train, "The training split")];

/// Batches to evaluate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batches {
    All,
    Count(u64),
}

impl FromStr for Batches {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            text => match text.parse() {
                Ok(count @ 1..) => Ok(Self::Count(count)),
                _ => Err("expected a number of at least 1, or all"),
            },
        }
    }
}
