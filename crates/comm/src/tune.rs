//! Measures all algorithms between the ranks of an engine and selects the fastest. The result is the
//! algorithm table for [`crate::bootstrap::BootstrapConfig::tuning`].

use std::sync::Arc;
use std::time::Instant;

use regatta_model::document::{from_json, to_json_line};
use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::network::NetworkEngine;
use crate::schedule::Algorithm;
use crate::schedule::algorithm_table::{AlgorithmTable, RankDistribution};
use crate::schedule::fit_table::{AlgorithmTiming, fit_table};
use crate::{Buffer, Call, CallKind, CommError, Counts, DType, OwnedCall, ReduceOp, Result};

/// The extent of the measurement. Must be the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuneConfig {
    /// The message sizes, in bytes of a rank's largest buffer.
    pub bytes: Vec<u64>,
    /// Rounds per size; the fastest one counts.
    pub rounds: u32,
    /// Bytes per round. Small collectives are repeated accordingly, at most
    /// [`TuneConfig::max_repeats`] times.
    pub round_bytes: u64,
    /// The maximum number of repetitions per round.
    pub max_repeats: u64,
}

impl Default for TuneConfig {
    fn default() -> Self {
        let bytes = (3..=26).step_by(2).map(|bits| 1 << bits).collect();
        Self { bytes, rounds: 5, round_bytes: 64 << 20, max_repeats: 200 }
    }
}

/// Measures all algorithms. Rank 0 selects the fastest, and all ranks use its table from then on.
pub fn tune(engine: &mut NetworkEngine, config: &TuneConfig) -> Result<AlgorithmTable> {
    let mut measured = Vec::new();
    for collective in CallKind::ALL {
        let sizes: &[u64] = if collective == CallKind::Barrier { &[0] } else { &config.bytes };
        for &bytes in sizes {
            for algorithm in Algorithm::ALL.into_iter().filter(|by| by.does(collective)) {
                let seconds = fastest(engine, collective, algorithm, bytes, config)?;
                measured.push(AlgorithmTiming { collective, algorithm, bytes, seconds });
            }
        }
    }
    let ranks = engine.peers().len() as u32;
    let nodes = engine.planner.nodes.iter().max().map_or(1, |last| last + 1);
    let table = fit_table(&measured, ranks, RankDistribution::of(ranks, nodes));
    let table = broadcast_table(engine, &table)?;
    engine.planner.table = Arc::new(table.clone());
    Ok(table)
}

/// The time of the fastest round; the time of a round is that of the slowest rank.
fn fastest(
    engine: &mut NetworkEngine,
    kind: CallKind,
    algorithm: Algorithm,
    bytes: u64,
    config: &TuneConfig,
) -> Result<f64> {
    let mut work = workload(engine, kind, bytes);
    let repeats = (config.round_bytes / bytes.max(1)).clamp(1, config.max_repeats.max(1));
    engine.run_with(work.as_call(), algorithm)?;
    let mut fastest = f64::INFINITY;
    for _ in 0..config.rounds {
        engine.run(in_place(CallKind::Barrier, DType::U8, &mut []))?;
        let start = Instant::now();
        (0..repeats).try_for_each(|_| engine.run_with(work.as_call(), algorithm))?;
        let mut slowest = (start.elapsed().as_secs_f64() / repeats as f64).to_ne_bytes();
        let max = in_place(CallKind::AllReduce, DType::F64, &mut slowest);
        engine.run(Call { op: ReduceOp::Max, ..max })?;
        fastest = fastest.min(f64::from_ne_bytes(slowest));
    }
    Ok(fastest)
}

/// A collective on buffers of this size.
fn workload(engine: &NetworkEngine, kind: CallKind, bytes: u64) -> OwnedCall {
    let (rank, ranks) = (engine.rank() as usize, engine.peers().len());
    let (dtype, elements) = (DType::F32, bytes as usize / DType::F32.size());
    let counts =
        Counts::Equal(if kind.has_uniform_count() { elements } else { elements / ranks.max(1) });
    let empty = Call::new(kind, dtype, counts.clone(), &mut []);
    let (input, output) = Call { input: Some(&[]), ..empty }.lengths(rank, ranks);
    let [input, output] = [input, output].map(|count| Buffer::zeroed(count * dtype.size()));
    OwnedCall { input: Some(input), ..OwnedCall::new(kind, dtype, counts, output) }
}

/// An in-place collective.
fn in_place(kind: CallKind, dtype: DType, output: &mut [u8]) -> Call<'_> {
    Call::new(kind, dtype, Counts::Equal(output.len() / dtype.size()), output)
}

/// Broadcasts the table of rank 0.
fn broadcast_table(engine: &mut NetworkEngine, own: &AlgorithmTable) -> Result<AlgorithmTable> {
    let failed = |why: String| CommError::system("cannot broadcast the algorithm table", why);
    let mut text = to_json_line(own).map_err(|error| failed(error.to_string()))?.into_bytes();
    let mut length = (text.len() as f64).to_ne_bytes();
    engine.run(in_place(CallKind::Broadcast, DType::F64, &mut length))?;
    text.resize(f64::from_ne_bytes(length) as usize, b' ');
    engine.run(in_place(CallKind::Broadcast, DType::U8, &mut text))?;
    let text = String::from_utf8(text).map_err(|error| failed(error.to_string()))?;
    from_json(&text).map_err(|error| failed(error.to_string()))
}
