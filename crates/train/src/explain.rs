//! What a configuration comes to on so many ranks, before anything is trained: who sits where, what
//! each rank holds and sends, and what a pipeline's stages do when. No I/O.

use serde::Serialize;

use crate::config::{Config, ConfigError, Plan, Resolved};
use crate::offload::Moved;
use crate::parallel::Axis;
use crate::parallel::cost::{Cost, Form, Held, costs};
use crate::parallel::pipeline::{Costs, Schedule, Timeline, balance, costs_of, simulate};
use crate::shape::Shape;

/// Characters of a usual text: what is assumed where the data says how many kinds of tokens there are.
const CHARACTERS: usize = 65;

/// Nobody reads of more ranks.
const MOST: usize = 1 << 16;

/// What a configuration comes to.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The model's name.
    pub model: String,
    /// How many parameters it has.
    pub parameters: usize,
    /// Whether that is certain: the data may say how many kinds of tokens there are, and then 65 are
    /// assumed.
    pub is_certain: bool,
    /// Ranks on each axis.
    pub split: Split,
    /// How a step is shared.
    pub step: Step,
    /// What is worth a word.
    pub notes: Vec<String>,
    /// Each rank.
    pub ranks: Vec<Rank>,
    /// What pipeline stages do when, if there are several.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
    /// How much longer a step takes than its work, as a share of that: what stages wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
}

/// Ranks on each axis.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Split {
    /// Copies of the model.
    pub dp: usize,
    /// Ranks that share each matrix.
    pub tp: usize,
    /// Ranks that share each sequence.
    pub cp: usize,
    /// Pipeline stages.
    pub pp: usize,
    /// What ranks with the same parameters share.
    pub zero: usize,
    /// How many of them share it.
    pub shard: usize,
    /// Whether tensor-parallel ranks share the tokens, too.
    pub sequence: bool,
}

/// How a step is shared.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Step {
    /// Sequences of all copies of the model.
    pub batch: usize,
    /// Sequences of each copy.
    pub share: usize,
    /// Sequences that it works on at once.
    pub micro_batch: usize,
    /// How often it does.
    pub micro_batches: usize,
    /// Tokens of a sequence.
    pub context: usize,
}

/// A rank: where it sits, what it holds and what it sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rank {
    /// Which.
    pub rank: usize,
    /// Where, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its copy of the model.
    pub dp: usize,
    /// Its part of each matrix.
    pub tp: usize,
    /// Its part of each sequence.
    pub cp: usize,
    /// Its stage.
    pub pp: usize,
    /// The blocks that it has, or has shares of.
    pub blocks: Vec<String>,
    /// What it is expected to hold, in bytes.
    pub holds: Bytes,
    /// What it is expected to send in a step, in bytes, on each axis on which it sends anything.
    pub sends: Vec<(&'static str, u64)>,
    /// What it is expected to read from disk and write there in a step, in bytes.
    pub moves: Moved,
}

/// What a rank holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Parameters, with those that are gathered for a while.
    pub parameters: u64,
    /// Gradients, with those of blocks that a pass is at.
    pub gradients: u64,
    /// What the optimizer remembers.
    pub optimizer: u64,
    /// What forward passes leave for backward passes.
    pub activations: u64,
    /// What passes work with beside that.
    pub working: u64,
    /// All of it.
    pub total: u64,
}

impl Rank {
    fn new(rank: usize, host: Option<String>, cost: Cost) -> Self {
        let Cost { seat, blocks, holds, sends, moves } = cost;
        let sent = |axis: Axis| (axis.name(), sends.on(axis));
        let most = |held: Held| held.most();
        Self {
            rank,
            host,
            dp: seat.dp,
            tp: seat.tp,
            cp: seat.cp,
            pp: seat.pp,
            blocks,
            holds: Bytes {
                parameters: most(holds.parameters),
                gradients: most(holds.gradients),
                optimizer: most(holds.moments),
                activations: holds.activations,
                working: holds.working,
                total: holds.total(),
            },
            sends: Axis::ALL.map(sent).into_iter().filter(|(_, bytes)| *bytes > 0).collect(),
            moves,
        }
    }
}

/// The ranks that a configuration asks for, if nobody says how many there are.
pub fn ranks_asked(config: &Config) -> usize {
    let parallel = &config.parallel;
    // Those that share state are there, too.
    let copies = match parallel.dp {
        0 => parallel.shard.div_ceil(parallel.cp.max(1)).max(1),
        given => given,
    };
    let others = [parallel.tp, parallel.cp, parallel.pp];
    others.iter().fold(copies, |all, axis| all.saturating_mul(*axis))
}

/// Explains a configuration on so many ranks, so many of them on each host if that is known.
pub fn explain(
    resolved: &Resolved,
    ranks: usize,
    per_host: Option<usize>,
) -> Result<Explanation, ConfigError> {
    let config = &resolved.config;
    if ranks > MOST {
        return Err(ConfigError::Contradiction(format!(
            "{ranks} ranks are more than can be explained: try {MOST} or fewer, such as fewer copies \
             of the model (parallel.dp)"
        )));
    }
    let plan = config.validate(ranks)?;
    let is_certain = config.model.vocabulary != 0;
    let shape = config.shape(if is_certain { config.model.vocabulary } else { CHARACTERS })?;
    shape.check_tensor(plan.mesh.tp).map_err(ConfigError::Contradiction)?;
    let form = Form::new(config.train.precision, config.train.recompute);
    let unfit = |error: &dyn std::fmt::Display| ConfigError::Contradiction(error.to_string());
    let all = costs(&shape, &plan, form).map_err(|error| unfit(&error))?;
    let host = |rank: usize| Some(format!("node {}", rank / per_host.filter(|each| *each > 0)?));
    let hosts: Option<Vec<String>> = (0..ranks).map(host).collect();
    let timeline = timeline(&shape, &plan)?;
    Ok(Explanation {
        model: resolved.name.clone(),
        parameters: shape.parameters(),
        is_certain,
        split: split(&plan),
        step: step(&plan, &shape),
        notes: hosts.as_deref().and_then(|hosts| plan.mesh.apart(hosts)).into_iter().collect(),
        ranks: all
            .into_iter()
            .enumerate()
            .map(|(rank, cost)| Rank::new(rank, host(rank), cost))
            .collect(),
        bubble: timeline.as_ref().map(Timeline::bubble),
        timeline,
    })
}

fn split(plan: &Plan) -> Split {
    let Plan { mesh, zero, sequence, .. } = *plan;
    Split { dp: mesh.dp, tp: mesh.tp, cp: mesh.cp, pp: mesh.pp, zero, shard: mesh.shard, sequence }
}

fn step(plan: &Plan, shape: &Shape) -> Step {
    let Plan { batch, share, micro_batch, accumulation, .. } = *plan;
    Step { batch, share, micro_batch, micro_batches: accumulation, context: shape.context }
}

/// What stages do when, as long as each chunk's operations take relative to the others'.
fn timeline(shape: &Shape, plan: &Plan) -> Result<Option<Timeline>, ConfigError> {
    if plan.mesh.pp == 1 {
        return Ok(None);
    }
    let unfit = |error: &dyn std::fmt::Display| ConfigError::Contradiction(error.to_string());
    let Plan { schedule, chunks, accumulation, .. } = *plan;
    let schedule = Schedule::new(schedule, plan.mesh.pp, chunks, accumulation)
        .map_err(|error| unfit(&error))?;
    let blocks = costs_of(shape, shape.context);
    let parts = balance(&blocks, schedule.parts()).map_err(|error| unfit(&error))?;
    let chunks: Vec<f64> = parts.into_iter().map(|part| blocks[part].iter().sum()).collect();
    let timeline = simulate(&schedule, &Costs::thirds(&chunks)).map_err(|error| unfit(&error))?;
    Ok(Some(timeline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::resolve;

    fn explained(words: &str, ranks: usize, per_host: Option<usize>) -> Explanation {
        let words: Vec<&str> = words.split_whitespace().collect();
        explain(&resolve(None, &words).unwrap(), ranks, per_host).unwrap()
    }

    #[test]
    fn every_rank_has_a_seat_and_figures() {
        let words = "layers=4 heads=4 width=64 context=64 batch=16 tp=2 pp=2 zero=1";
        let all = explained(words, 8, Some(4));
        assert_eq!(all.ranks.len(), 8);
        let last = &all.ranks[7];
        assert_eq!((last.tp, last.dp, last.pp, last.host.as_deref()), (1, 1, 1, Some("node 1")));
        assert!(all.ranks.iter().all(|rank| rank.holds.total > rank.holds.parameters));
        let axes: Vec<_> = all.ranks[0].sends.iter().map(|(axis, _)| *axis).collect();
        assert_eq!(axes, ["tensor", "shard", "forward", "tied", "world"]);
        let bubble = all.bubble.unwrap();
        // Two stages, four micro-batches: about a quarter, for stages are not quite equal.
        assert!(bubble > 0.1 && bubble < 0.4, "{bubble}");
        assert!(all.notes.is_empty() && !all.is_certain);
        let text = serde_json::to_string(&all).unwrap();
        assert!(text.contains("\"optimizer\":"), "{text}");
        assert!(explained(words, 8, Some(1)).notes[0].contains("node 0, node 1"));
    }

    #[test]
    fn the_keys_say_how_many_ranks_there_are() {
        let config = |words: &[&str]| resolve(None, words).unwrap().config;
        assert_eq!(ranks_asked(&config(&[])), 1);
        assert_eq!(ranks_asked(&config(&["dp=3", "tp=2", "pp=4"])), 24);
        assert_eq!(
            ranks_asked(&config(&["tp=1048576", "pp=1048576", "cp=1048576", "dp=1048576"])),
            usize::MAX
        );
    }
}
