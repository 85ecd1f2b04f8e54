//! The kinds of schedules: one file a kind, each the list of one rank's actions.

mod gpipe;
mod interleaved;
mod one_f_one_b;
mod zero_bubble;

use std::fmt;
use std::str::FromStr;

use super::{Action, KindError, ScheduleError, Work};

/// A kind of schedule. A bubble is the time that a rank waits, over the time that it works; with *p*
/// stages, *m* micro-batches and *v* chunks a stage:
///
/// | kind | bubble | activations kept by the first stage |
/// |---|---|---|
/// | GPipe | (p-1)/m | those of all micro-batches |
/// | 1F1B | (p-1)/m | of p micro-batches |
/// | interleaved | (p-1)/(v·m) | of p + (p-1)/v |
/// | zero-bubble | (p-1)/(3m), if input and weight gradients take as long as a forward pass each | of p |
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward, one backward: a backward pass as early as possible, so that few activations are
    /// kept.
    #[default]
    OneFOneB,
    /// The same with several chunks a stage: the pipeline fills sooner, for more messages.
    Interleaved,
    /// One forward, one backward, and gradients of weights where a rank would wait.
    ZeroBubble,
}

impl Kind {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::GPipe, Self::OneFOneB, Self::Interleaved, Self::ZeroBubble];

    /// As it is called in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZeroBubble => "zero-bubble",
        }
    }

    /// Whether there is such a schedule of this kind. One stage is no pipeline, and every kind has
    /// it.
    pub(super) fn check(
        self,
        stages: usize,
        chunks: usize,
        micros: usize,
    ) -> Result<(), ScheduleError> {
        match self {
            _ if stages == 1 => Ok(()),
            Self::Interleaved => interleaved::check(stages, chunks, micros),
            kind if chunks > 1 => Err(ScheduleError::ManyChunks { kind, chunks }),
            _ => Ok(()),
        }
    }

    /// What a stage does.
    pub(super) fn actions(
        self,
        stage: usize,
        stages: usize,
        chunks: usize,
        micros: usize,
    ) -> Vec<Action> {
        match self {
            _ if stages == 1 => one_f_one_b::actions(0, 1, micros),
            Self::GPipe => gpipe::actions(stage, micros),
            Self::OneFOneB => one_f_one_b::actions(stage, stages, micros),
            Self::Interleaved => interleaved::actions(stage, stages, chunks, micros),
            Self::ZeroBubble => zero_bubble::actions(stage, stages, micros),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = KindError;

    fn from_str(name: &str) -> Result<Self, KindError> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| KindError { name: name.to_owned() })
    }
}

fn action(work: Work, chunk: usize, micro: usize) -> Action {
    Action { work, chunk, micro }
}

/// A rank's actions as short words, for tests: `F0` in the only chunk of its stage, `F0.2` in
/// chunk 2 of several.
#[cfg(test)]
fn words(actions: &[Action], several: bool) -> String {
    let word = |a: &Action| match several {
        true => format!("{}{}.{}", a.work.letter(), a.micro, a.chunk),
        false => format!("{}{}", a.work.letter(), a.micro),
    };
    actions.iter().map(word).collect::<Vec<_>>().join(" ")
}
