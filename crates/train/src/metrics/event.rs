//! What happens in a run, as rank 0 tells it.

use serde::{Deserialize, Serialize};

use regatta_predict::bytes::{HeldBytes, MovedBytes, SentBytes};

use super::number;

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The run begins.
    Begin(Box<About>),
    /// A step was done.
    Step(Box<StepMetrics>),
    /// The model was tried on what it is not trained on.
    Validation {
        /// How many steps were done.
        step: u64,
        /// The mean loss.
        #[serde(with = "number")]
        loss: f64,
    },
    /// A checkpoint is complete.
    Checkpoint {
        /// How many steps were done.
        step: u64,
        /// Where it is.
        folder: String,
        /// How long it took, behind the training's back.
        seconds: f64,
    },
    /// Something that the user should know.
    Note(String),
    /// A text that the model made.
    Sample(String),
    /// The run ends.
    End(Box<Summary>),
}

/// What is trained, on what, by whom.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// The model's name: the preset's, or the file's.
    pub model: String,
    /// How many parameters it has.
    pub parameters: u64,
    /// How many ranks.
    pub ranks: usize,
    /// How they are laid out where they share a model, such as `dp=1 cp=1 tp=2 pp=1 shard=1`.
    pub split: String,
    /// On how many hosts.
    pub hosts: usize,
    /// Threads of each rank.
    pub threads: usize,
    /// How numbers are stored and multiplied, such as `bf16`.
    pub precision: String,
    /// What the processor does it with, such as `avx512`.
    pub kernels: String,
    /// The data's name.
    pub data: String,
    /// Tokens of the data.
    pub data_tokens: u64,
    /// Tokens of a step, of all ranks.
    pub step_tokens: u64,
    /// Steps of the run.
    pub steps: u64,
    /// Steps that were done before, when it resumes.
    pub done: u64,
    /// Steps between lines of a log.
    pub log_every: u64,
    /// How floating point operations are counted.
    pub flops_formula: String,
    /// Where everything is kept.
    pub folder: String,
}

/// A step in numbers. This is also a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepMetrics {
    /// How many steps were done, this one included.
    pub step: u64,
    /// Of how many.
    pub steps: u64,
    /// The mean loss of all ranks' tokens.
    #[serde(with = "number")]
    pub loss: f64,
    /// The mean loss on what is not trained on, if that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// The learning rate.
    pub rate: f64,
    /// The norm of all gradients, before it was clipped.
    #[serde(with = "number")]
    pub gradient_norm: f64,
    /// Tokens that were trained on since the run began, of all ranks, before a restart too.
    pub tokens: u64,
    /// Tokens a second in this step, of all ranks.
    pub tokens_per_second: f64,
    /// Floating point operations a second in this step, of all ranks, as the model needs them:
    /// [`super::FLOPS_FORMULA`].
    pub flops_per_second: f64,
    /// Where the step's time went.
    pub seconds: StepSeconds,
    /// When it ended, in seconds since 1970.
    pub time: f64,
}

/// Where a step's time went, in seconds, on rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepSeconds {
    /// The whole step.
    pub step: f64,
    /// Until the tokens were there.
    pub data: f64,
    /// Forward passes.
    pub forward: f64,
    /// Backward passes.
    pub backward: f64,
    /// Communication that nothing else hid.
    pub communication: f64,
    /// The optimizer.
    pub optimizer: f64,
    /// What a checkpoint kept the training from.
    pub checkpoint: f64,
    /// All else.
    pub other: f64,
}

impl StepSeconds {
    /// The parts with their names, in the order of a step.
    pub fn parts(&self) -> [(&'static str, f64); 7] {
        [
            ("data", self.data),
            ("forward", self.forward),
            ("backward", self.backward),
            ("communication", self.communication),
            ("optimizer", self.optimizer),
            ("checkpoint", self.checkpoint),
            ("other", self.other),
        ]
    }
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// All steps are done.
    #[default]
    Done,
    /// It was told to end, and has kept a checkpoint.
    Interrupted,
}

/// A run that ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Why.
    pub ended: Ended,
    /// Steps that are done.
    pub step: u64,
    /// The loss of the last one.
    #[serde(with = "number")]
    pub loss: f64,
    /// The last loss on what is not trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// Tokens since it was started.
    pub tokens: u64,
    /// Seconds since it was started.
    pub seconds: f64,
    /// Tokens a second.
    pub tokens_per_second: f64,
    /// Floating point operations a second.
    pub flops_per_second: f64,
    /// Where everything is kept.
    pub folder: String,
    /// What rank 0 held in memory, by what it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldBytes>,
    /// What rank 0 sent in a step, on each axis on which ranks share the work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<SentBytes>,
    /// What rank 0 read and wrote in a step of state that is on disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MovedBytes>,
    /// The same of every rank, if there are not too many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankBytes>,
}

/// What a rank held, sent, read and wrote.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankBytes {
    /// Which.
    pub rank: usize,
    /// What it held in memory, by what it is.
    pub held: Vec<HeldBytes>,
    /// What it sent in a step, on each axis on which ranks share the work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<SentBytes>,
    /// What it read from disk and wrote there in a step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MovedBytes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_that_is_no_number_comes_through() {
        let step =
            StepMetrics { loss: f64::NAN, gradient_norm: f64::INFINITY, ..Default::default() };
        let text = serde_json::to_string(&Event::Step(Box::new(step))).unwrap();
        assert!(text.contains("\"loss\":null"), "{text}");
        let Event::Step(step) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        assert!(step.loss.is_nan() && step.gradient_norm.is_nan());
    }

    #[test]
    fn events_come_through_as_they_are() {
        let about = About { model: "tiny".to_owned(), steps: 3, ..Default::default() };
        let events = [
            Event::Begin(Box::new(about)),
            Event::Step(Box::new(StepMetrics { step: 1, loss: 0.1, ..Default::default() })),
            Event::Validation { step: 1, loss: 2.5 },
            Event::Checkpoint { step: 1, folder: "x".to_owned(), seconds: 0.5 },
            Event::Note("a\nb".to_owned()),
            Event::Sample("To be\u{1b}".to_owned()),
            Event::End(Box::default()),
        ];
        for event in events {
            let text = serde_json::to_string(&event).unwrap();
            assert!(!text.contains('\n'));
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
        }
    }
}
