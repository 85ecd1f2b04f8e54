//! Measures which algorithm is best for what, between the ranks that there are. What comes out is a
//! file that [`crate::join::Settings::tuning`] names in later runs.

use std::sync::Arc;
use std::time::Instant;

use regatta_model::document::{from_json, to_json_line};

use crate::background::Engine;
use crate::schedule::Algorithm;
use crate::schedule::choose::{Spread, Table};
use crate::schedule::decide::{Measured, decide};
use crate::{Call, CommError, Counts, DType, Kind, ReduceOp};

/// An engine that can be told by which algorithm to do a call. All ranks must tell it the same.
pub trait Tunable: Engine {
    /// Does one collective by this algorithm, whatever the table says.
    fn run_by(&mut self, call: Call<'_>, algorithm: Algorithm) -> Result<(), CommError>;

    /// The node of each rank, by numbers from 0 on.
    fn nodes(&self) -> &[u32];

    /// Has another table choose from now on.
    fn set_table(&mut self, table: Arc<Table>);
}

/// How much is measured. The same on all ranks.
#[derive(Debug, Clone)]
pub struct Effort {
    /// The bytes of the largest buffer that a rank has.
    pub bytes: Vec<u64>,
    /// Rounds for each size, of which the fastest counts.
    pub rounds: u32,
    /// Bytes in a round: small collectives are done as often as that takes, at most
    /// [`Effort::most`] times.
    pub round_bytes: u64,
    /// How often at most.
    pub most: u64,
}

impl Default for Effort {
    fn default() -> Self {
        let bytes = (3..=26).step_by(2).map(|bits| 1 << bits).collect();
        Self { bytes, rounds: 5, round_bytes: 64 << 20, most: 200 }
    }
}

/// Measures all algorithms; rank 0 decides, and all use the table that it made of it from then on.
pub fn tune(engine: &mut dyn Tunable, effort: &Effort) -> Result<Table, CommError> {
    let mut measured = Vec::new();
    for collective in Kind::ALL {
        let sizes: &[u64] = if collective == Kind::Barrier { &[0] } else { &effort.bytes };
        for &bytes in sizes {
            for algorithm in Algorithm::ALL.into_iter().filter(|by| by.does(collective)) {
                let seconds = fastest(engine, collective, algorithm, bytes, effort)?;
                measured.push(Measured { collective, algorithm, bytes, seconds });
            }
        }
    }
    let ranks = engine.peers().len() as u32;
    let nodes = engine.nodes().iter().max().map_or(1, |last| last + 1);
    let table = share(engine, &decide(&measured, ranks, Spread::of(ranks, nodes)))?;
    engine.set_table(Arc::new(table.clone()));
    Ok(table)
}

/// The seconds of the fastest round, each the slowest rank's.
fn fastest(
    engine: &mut dyn Tunable,
    kind: Kind,
    by: Algorithm,
    bytes: u64,
    effort: &Effort,
) -> Result<f64, CommError> {
    let mut work = Work::new(engine, kind, bytes);
    let repeats = (effort.round_bytes / bytes.max(1)).clamp(1, effort.most.max(1));
    engine.run_by(work.call(), by)?;
    let mut fastest = f64::INFINITY;
    for _ in 0..effort.rounds {
        engine.run(whole(Kind::Barrier, ReduceOp::Sum, &mut []))?;
        let start = Instant::now();
        (0..repeats).try_for_each(|_| engine.run_by(work.call(), by))?;
        let mut slowest = (start.elapsed().as_secs_f64() / repeats as f64).to_ne_bytes();
        engine.run(whole(Kind::AllReduce, ReduceOp::Max, &mut slowest))?;
        fastest = fastest.min(f64::from_ne_bytes(slowest));
    }
    Ok(fastest)
}

/// Buffers for one collective.
struct Work {
    kind: Kind,
    counts: Counts<'static>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Work {
    fn new(engine: &dyn Tunable, kind: Kind, bytes: u64) -> Self {
        let (rank, ranks) = (engine.rank() as usize, engine.peers().len());
        let whole = matches!(kind, Kind::AllReduce | Kind::Reduce | Kind::Broadcast);
        let elements = bytes as usize / DType::F32.size();
        let count = if whole { elements } else { elements / ranks.max(1) };
        let mut work =
            Self { kind, counts: Counts::Equal(count), input: Vec::new(), output: Vec::new() };
        let (input, output) = work.call().lengths(rank, ranks);
        work.input = vec![0; input * DType::F32.size()];
        work.output = vec![0; output * DType::F32.size()];
        work
    }

    fn call(&mut self) -> Call<'_> {
        Call {
            kind: self.kind,
            dtype: DType::F32,
            op: ReduceOp::Sum,
            root: 0,
            tag: 0,
            counts: self.counts.clone(),
            input: Some(&self.input),
            output: &mut self.output,
        }
    }
}

/// A collective of f64 in place.
fn whole(kind: Kind, op: ReduceOp, output: &mut [u8]) -> Call<'_> {
    let counts = Counts::Equal(output.len() / DType::F64.size());
    Call { kind, dtype: DType::F64, op, root: 0, tag: 0, counts, input: None, output }
}

/// Rank 0's table, on all ranks.
fn share(engine: &mut dyn Tunable, own: &Table) -> Result<Table, CommError> {
    let wrong = |why: String| CommError::System { what: "the table of algorithms".to_owned(), why };
    let mut text = to_json_line(own).map_err(|error| wrong(error.to_string()))?.into_bytes();
    let mut length = (text.len() as f64).to_ne_bytes();
    engine.run(whole(Kind::Broadcast, ReduceOp::Sum, &mut length))?;
    text.resize(f64::from_ne_bytes(length) as usize, b' ');
    engine.run(Call {
        dtype: DType::U8,
        counts: Counts::Equal(text.len()),
        ..whole(Kind::Broadcast, ReduceOp::Sum, &mut text)
    })?;
    let text = String::from_utf8(text).map_err(|error| wrong(error.to_string()))?;
    from_json(&text).map_err(|error| wrong(error.to_string()))
}
