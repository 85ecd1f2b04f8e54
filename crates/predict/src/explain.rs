//! What a configuration comes to on so many ranks, before anything is trained: who sits where, what
//! each rank holds and sends, and what a pipeline's stages do when. No I/O.

use std::collections::HashMap;

use serde::Serialize;

use crate::bytes::{HeldBytes, MovedBytes, SentBytes};
use crate::cost::{self, Cost, CostError, Form, costs};
use crate::pipeline::{
    Costs, Schedule, SimulateError, StageError, Timeline, balance, costs_of, simulate,
};
use crate::plan::ParallelPlan;
use crate::shape::Shape;
use crate::{axis::Axis, mesh::Seat};

/// The largest number of ranks that is worth explaining.
pub const MAX_RANKS: usize = 1 << 16;

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
    /// What ranks hold and send, once for all that are alike.
    pub kinds: Vec<Kind>,
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
    /// Pieces in which matrices come and go.
    pub tiles: usize,
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

/// What a rank holds and sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// The blocks that it has, or has shares of.
    pub blocks: Vec<String>,
    /// What it is expected to hold at most.
    pub held: Vec<HeldBytes>,
    /// What it is expected to send in a step, on each axis on which it sends anything.
    pub sent: Vec<SentBytes>,
    /// What it is expected to read from disk and write there in a step, if anything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MovedBytes>,
}

impl Kind {
    fn new(cost: Cost) -> Self {
        let Cost { blocks, holds, sends, moves } = cost;
        let held = [
            ("parameters", holds.parameters.most()),
            ("gradients", holds.gradients.most()),
            ("optimizer", holds.moments.most()),
            ("activations", holds.activations),
            ("working", holds.working),
        ];
        let held = held.map(|(what, expected)| HeldBytes {
            what: what.to_owned(),
            expected,
            measured: None,
        });
        let sent = |axis: Axis| SentBytes {
            axis: axis.name().to_owned(),
            expected: sends.on(axis),
            measured: None,
        };
        let sent = Axis::ALL.map(sent).into_iter().filter(|sent| sent.expected > 0).collect();
        Self { blocks, held: held.to_vec(), sent, moved: MovedBytes::both(moves, None) }
    }
}

/// Where a rank sits, and of which kind it is.
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
    /// What it holds and sends: the place among [`Explanation::kinds`].
    pub kind: usize,
}

/// A training to explain.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Its shape.
    pub shape: &'a Shape,
    /// Whether the vocabulary size is known, not assumed.
    pub is_certain: bool,
    /// How ranks share it.
    pub plan: &'a ParallelPlan,
    /// How elements are stored.
    pub form: Form,
    /// Ranks on each host, if that is known.
    pub per_host: Option<usize>,
    /// Notes on the configuration.
    pub notes: Vec<String>,
}

/// A training that cannot be explained.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExplainError {
    /// The cost model refuses it.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The model cannot be cut into stages so.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The schedule cannot be simulated.
    #[error(transparent)]
    Schedule(#[from] SimulateError),
}

/// Explains a training.
pub fn explain(subject: Subject<'_>) -> Result<Explanation, ExplainError> {
    let Subject { model, shape, is_certain, plan, form, per_host, mut notes } = subject;
    let ranks = plan.mesh.ranks();
    let (kinds, of) = kinds(costs(shape, plan, form)?);
    let host = |rank: usize| Some(format!("node {}", rank / per_host.filter(|each| *each > 0)?));
    let hosts: Option<Vec<String>> = (0..ranks).map(host).collect();
    let seated = |(rank, kind): (usize, usize)| {
        let Seat { dp, cp, tp, pp } = plan.mesh.seat(rank);
        Rank { rank, host: host(rank), dp, tp, cp, pp, kind }
    };
    let timeline = timeline(shape, plan)?;
    notes.extend(hosts.as_deref().and_then(|hosts| plan.mesh.apart(hosts)));
    Ok(Explanation {
        model: model.to_owned(),
        parameters: shape.parameters(),
        is_certain,
        split: split(plan),
        step: step(plan, shape),
        notes,
        kinds,
        ranks: of.into_iter().enumerate().map(seated).collect(),
        bubble: timeline.as_ref().map(Timeline::bubble),
        timeline,
    })
}

/// The kinds of ranks that are told apart by what they cost, and which each rank is of.
fn kinds(costs: cost::Costs) -> (Vec<Kind>, Vec<usize>) {
    let (mut kinds, mut known) = (Vec::new(), HashMap::new());
    let mut place = |cost: Cost| {
        *known.entry(cost.clone()).or_insert_with(|| {
            kinds.push(Kind::new(cost));
            kinds.len() - 1
        })
    };
    let places: Vec<usize> = costs.kinds.into_iter().map(&mut place).collect();
    (kinds, costs.of.into_iter().map(|kind| places[kind]).collect())
}

fn split(plan: &ParallelPlan) -> Split {
    let ParallelPlan { mesh, zero, sequence, tiles, .. } = *plan;
    let (dp, tp, cp, pp, shard) = (mesh.dp, mesh.tp, mesh.cp, mesh.pp, mesh.shard);
    Split { dp, tp, cp, pp, zero, shard, sequence, tiles }
}

fn step(plan: &ParallelPlan, shape: &Shape) -> Step {
    let ParallelPlan { batch, share, micro_batch, accumulation, .. } = *plan;
    Step { batch, share, micro_batch, micro_batches: accumulation, context: shape.context }
}

/// What stages do when, as long as each chunk's operations take relative to the others'.
fn timeline(shape: &Shape, plan: &ParallelPlan) -> Result<Option<Timeline>, ExplainError> {
    if plan.mesh.pp == 1 {
        return Ok(None);
    }
    let ParallelPlan { schedule, chunks, accumulation, .. } = *plan;
    let schedule =
        Schedule::new(schedule, plan.mesh.pp, chunks, accumulation).map_err(StageError::from)?;
    let blocks = costs_of(shape, shape.context);
    let parts = balance(&blocks, schedule.parts()).map_err(StageError::from)?;
    let chunks: Vec<f64> = parts.into_iter().map(|part| blocks[part].iter().sum()).collect();
    let timeline = simulate(&schedule, &Costs::thirds(&chunks))?;
    Ok(Some(timeline))
}
