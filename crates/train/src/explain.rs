//! What a configuration comes to on so many ranks, before anything is trained: who sits where, what
//! each rank holds and sends, and what a pipeline's stages do when. No I/O.

use std::collections::HashMap;

use serde::Serialize;

use crate::config::{Config, ConfigError, Plan, Resolved};
use crate::metrics::{HeldBytes, MovedBytes, SentBytes};
use crate::parallel::cost::{self, Cost, Form, costs};
use crate::parallel::pipeline::{Costs, Schedule, Timeline, balance, costs_of, simulate};
use crate::parallel::{Axis, Seat};
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
    let is_certain = config.model.vocabulary != 0;
    let vocabulary = if is_certain { config.model.vocabulary } else { CHARACTERS };
    let (plan, shape) = config.planned(ranks, vocabulary)?;
    let form = Form::new(config.train.precision, config.train.recompute);
    let unfit = |error: &dyn std::fmt::Display| ConfigError::Contradiction(error.to_string());
    let (kinds, of) = kinds(costs(&shape, &plan, form).map_err(|error| unfit(&error))?);
    let host = |rank: usize| Some(format!("node {}", rank / per_host.filter(|each| *each > 0)?));
    let hosts: Option<Vec<String>> = (0..ranks).map(host).collect();
    let seated = |(rank, kind): (usize, usize)| {
        let Seat { dp, cp, tp, pp } = plan.mesh.seat(rank);
        Rank { rank, host: host(rank), dp, tp, cp, pp, kind }
    };
    let timeline = timeline(&shape, &plan)?;
    let mut notes = config.notes(&plan);
    notes.extend(hosts.as_deref().and_then(|hosts| plan.mesh.apart(hosts)));
    Ok(Explanation {
        model: resolved.name.clone(),
        parameters: shape.parameters(),
        is_certain,
        split: split(&plan),
        step: step(&plan, &shape),
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

fn split(plan: &Plan) -> Split {
    let Plan { mesh, zero, sequence, tiles, .. } = *plan;
    let (dp, tp, cp, pp, shard) = (mesh.dp, mesh.tp, mesh.cp, mesh.pp, mesh.shard);
    Split { dp, tp, cp, pp, zero, shard, sequence, tiles }
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
        assert!(all.kinds.iter().all(|kind| kind.held.iter().all(|held| held.expected > 0)));
        let first = &all.kinds[all.ranks[0].kind];
        let axes: Vec<_> = first.sent.iter().map(|sent| sent.axis.as_str()).collect();
        assert_eq!(axes, ["tensor", "shard", "forward", "tied", "world"]);
        let bubble = all.bubble.unwrap();
        // Two stages, four micro-batches: about a quarter, for stages are not quite equal.
        assert!(bubble > 0.1 && bubble < 0.4, "{bubble}");
        assert!(all.notes.is_empty() && !all.is_certain);
        let text = serde_json::to_string(&all).unwrap();
        assert!(text.contains("{\"what\":\"optimizer\",\"expected\":"), "{text}");
        assert!(text.contains("{\"axis\":\"tensor\",\"expected\":"), "{text}");
        assert!(explained(words, 8, Some(1)).notes[0].contains("node 0, node 1"));
        let shared = explained("zero=1 offload.parameters=disk", 2, None);
        assert!(shared.notes[0].contains("as by parallel.zero 3"), "{:?}", shared.notes);
    }

    #[test]
    fn kinds_of_tokens_that_do_not_suffice_are_refused_with_splits_that_do() {
        let words = ["heads=128", "width=1024", "tp=128", "batch=128"];
        let error = explain(&resolve(None, &words).unwrap(), 128, None).unwrap_err().to_string();
        let expected = "parallel.tp 128 is more than the kinds of tokens: tp 32 dp 4 or tp 64 dp 2 \
                        would, or start 64 with tp 64";
        assert_eq!(error, expected);
    }

    #[test]
    fn tiles_are_counted_and_told_of_where_they_save_nothing() {
        let words = "layers=4 heads=4 width=64 context=64 batch=16 vocabulary=50257";
        let of = |more: &str| explained(&format!("{words} {more}"), 2, None);
        let (whole, tiled) = (of("zero=3"), of("zero=3 tiles=8"));
        assert_eq!((whole.split.tiles, tiled.split.tiles), (1, 8));
        // Of the table, all beside a half; or a half and two eighths.
        for what in ["parameters", "gradients"] {
            let held = |all: &Explanation| {
                let kind = &all.kinds[all.ranks[0].kind];
                kind.held.iter().find(|held| held.what == what).unwrap().expected
            };
            assert!(held(&tiled) < held(&whole) * 6 / 10, "{what}");
        }
        assert!(tiled.notes.is_empty());
        let notes = of("tiles=8").notes;
        assert!(
            notes.len() == 1 && notes[0].contains("parallel.tiles 8 save nothing"),
            "{notes:?}"
        );
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
