//! What a check of all ranks finds, part by part, as data. No I/O.

use regatta_model::CpuSet;
use serde::{Deserialize, Serialize};

use crate::metrics::StepSeconds;

/// The parts, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// Until the ranks ran; only who started them knows.
    #[default]
    Start,
    /// Ranks meet.
    Join,
    /// What each rank has.
    Ranks,
    /// The data is made or found, and opened.
    Data,
    /// All ranks were told the same, and see the same data.
    Agreement,
    /// Sums over all ranks.
    AllReduce,
    /// All get the initial state of rank 0.
    Broadcast,
    /// Steps of a training.
    Steps,
    /// All have the same parameters after them.
    Same,
    /// A checkpoint is written, and read back.
    Checkpoint,
}

impl Name {
    /// As it is written.
    pub fn text(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Join => "join",
            Self::Ranks => "ranks",
            Self::Data => "data",
            Self::Agreement => "agreement",
            Self::AllReduce => "all-reduce",
            Self::Broadcast => "broadcast",
            Self::Steps => "steps",
            Self::Same => "same",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// What is thought of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it should be.
    #[default]
    Ok,
    /// It works, and something is worth a look.
    Note,
    /// It does not work.
    Failed,
}

/// One part.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Part {
    /// Which.
    pub part: Name,
    /// What is thought of it.
    pub verdict: Verdict,
    /// How long it took, as rank 0 saw it.
    pub seconds: f64,
    /// The rank that took longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest: Option<Slowest>,
    /// What was found.
    #[serde(flatten)]
    pub findings: Findings,
}

/// The rank that took longest for a part.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Slowest {
    /// Which.
    pub rank: u32,
    /// Where it is.
    pub host: String,
    /// How long it took.
    pub seconds: f64,
}

/// What was found in a part. All ranks find the same.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Findings {
    /// In numbers.
    #[serde(default, skip_serializing_if = "Figures::is_none")]
    pub figures: Figures,
    /// What is worth a look.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why it does not work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<String>,
}

impl Findings {
    /// Nothing is wrong.
    pub fn of(figures: Figures) -> Self {
        Self { figures, ..Self::default() }
    }

    /// What is thought of them.
    pub fn verdict(&self) -> Verdict {
        match (&self.wrong, self.notes.is_empty()) {
            (Some(_), _) => Verdict::Failed,
            (None, false) => Verdict::Note,
            (None, true) => Verdict::Ok,
        }
    }
}

/// A part in numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figures {
    /// There are none.
    #[default]
    None,
    /// Who met.
    World {
        /// How many ranks.
        ranks: u32,
        /// On how many hosts.
        hosts: u32,
    },
    /// What each rank has.
    Places(Vec<Place>),
    /// What is trained on.
    Data {
        /// Its name.
        source: String,
        /// Its tokens.
        tokens: u64,
    },
    /// Sums over all ranks, of several sizes.
    Reduced(Vec<Reduced>),
    /// What was sent to all.
    State {
        /// Parameters of the model.
        parameters: u64,
        /// Bytes of them, and of what the optimizer remembers.
        bytes: u64,
    },
    /// Steps of a training.
    Trained {
        /// The model's name.
        model: String,
        /// How many steps.
        steps: u64,
        /// The mean loss of the first ones.
        first_loss: f64,
        /// And of the last ones.
        last_loss: f64,
        /// Tokens a second, of all ranks.
        tokens_per_second: f64,
        /// Where the time of a step went, on the mean.
        step_seconds: StepSeconds,
    },
    /// The checksum of the bits of all that was trained.
    Digest(String),
    /// A checkpoint, which is gone again.
    Kept {
        /// Its numbers, in bytes.
        bytes: u64,
        /// Where it was.
        folder: String,
    },
}

impl Figures {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// What a rank has.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Place {
    /// Its number.
    pub rank: u32,
    /// Where it is.
    pub host: String,
    /// The processors that it may use.
    pub cpus: CpuSet,
    /// How many threads it computes with.
    pub threads: usize,
    /// With how many threads it computes, and what the processor does it with.
    pub kernels: String,
}

/// Sums over all ranks, of one size.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Reduced {
    /// How long they are.
    pub bytes: u64,
    /// How long one took, on the mean of some, on the slowest rank.
    pub seconds: f64,
    /// What each link carried, in bytes a second: bytes ÷ time times 2(n−1)/n.
    pub bus_bandwidth: f64,
}

/// What rank 0 tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Told {
    /// A part is over.
    Part(Box<Part>),
    /// A part could not be brought to its end, and no other can.
    Broken {
        /// Which.
        part: Name,
        /// Why.
        why: String,
    },
    /// It was told to end in this part.
    Stopped(Name),
    /// All parts are over.
    Done,
}
