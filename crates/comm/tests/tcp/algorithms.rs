//! All algorithms and the tuning, over TCP connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use regatta_comm::NetworkEngine;
use regatta_comm::bootstrap::{BootstrapConfig, engine};
use regatta_comm::engine::{AbortFn, BoxEngine, Engine};
use regatta_comm::error::Peer;
use regatta_comm::schedule::Algorithm;
use regatta_comm::schedule::algorithm_table::AlgorithmTable;
use regatta_comm::tune::{TuneConfig, tune};
use regatta_comm::{Call, CallKind, Communicator, Counts, DType, ReduceOp, Result};
use regatta_model::document::to_json;

use crate::{configs, suite};

/// Runs calls with a selected algorithm.
struct FixedAlgorithm {
    engine: NetworkEngine,
    selected: Arc<AtomicUsize>,
}

impl Engine for FixedAlgorithm {
    fn rank(&self) -> u32 {
        self.engine.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.engine.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result {
        self.engine.run_with(call, Algorithm::ALL[self.selected.load(Ordering::SeqCst)])
    }

    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>> {
        self.engine.split(colour, key)
    }

    fn abort_fn(&self) -> AbortFn {
        self.engine.abort_fn()
    }
}

/// The engines of all ranks.
fn engines(all: Vec<BootstrapConfig>) -> Vec<NetworkEngine> {
    suite::in_parallel(all, |config| engine(config).unwrap())
}

/// Measurements differ between ranks; the table must not.
#[test]
fn tuning_gives_all_ranks_the_same_table() {
    let config =
        TuneConfig { bytes: vec![8, 1 << 12, 1 << 18], rounds: 1, round_bytes: 0, max_repeats: 1 };
    let tables = suite::in_parallel(engines(configs(3)), |mut engine| {
        let table = tune(&mut engine, &config).unwrap();
        let mut sum = 1f64.to_ne_bytes();
        let call = Call::new(CallKind::AllReduce, DType::F64, Counts::Equal(1), &mut sum);
        engine.run(call).unwrap();
        assert_eq!(f64::from_ne_bytes(sum), 3.0);
        table
    });
    assert!(tables.iter().all(|table| *table == tables[0]));
    let measured = tables[0].rows.len() - AlgorithmTable::default().rows.len();
    assert!((9..=25).contains(&measured), "{tables:?}");
}

/// Ranks with another tuning file, or none, use the table of rank 0.
#[test]
fn all_ranks_use_the_table_of_rank_0() {
    let file = std::env::temp_dir().join(format!("regatta-table-{}", std::process::id()));
    let mut rows = AlgorithmTable::default().rows.into_iter();
    let mut row = rows.find(|row| row.collective == CallKind::AllReduce).unwrap();
    // Different from the default, whose messages would not match.
    (row.algorithm, row.up_to_bytes, row.spread) = (Algorithm::BinomialTree, None, None);
    std::fs::write(&file, to_json(&AlgorithmTable { rows: vec![row] }).unwrap()).unwrap();
    let mut all = configs(5);
    all[0].tuning = Some(file.clone());
    all[3].tuning = Some("/nonexistent".into());
    let world: Vec<Communicator> =
        engines(all).into_iter().map(|engine| Communicator::new(Box::new(engine))).collect();
    let case = suite::Case::sum(CallKind::AllReduce, 10_000);
    suite::Case { dtype: DType::I64, op: ReduceOp::Max, ..case }.check(world);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn all_algorithms_match_the_reference() {
    let selected = Arc::new(AtomicUsize::new(0));
    // Two nodes with two ranks and one with one.
    let mut all = configs(5);
    all.iter_mut().for_each(|rank| rank.node = format!("node {}", rank.rank / 2));
    let fixed = |engine| FixedAlgorithm { engine, selected: selected.clone() };
    let engines = engines(all).into_iter().map(fixed);
    let world: Vec<_> = engines.map(|engine| Communicator::new(Box::new(engine))).collect();
    // The last count is split into segments.
    for (turn, count) in [1, 1003, 150_003].into_iter().enumerate() {
        for kind in CallKind::ALL {
            let count = if kind.has_uniform_count() { count } else { count / 5 + 1 };
            let all = Algorithm::ALL.into_iter().enumerate();
            for (at, _) in all.filter(|(_, algorithm)| algorithm.does(kind)) {
                selected.store(at, Ordering::SeqCst);
                let (root, in_place) = (at as u32 % 5, (turn + at) % 2 == 0);
                suite::Case { root, in_place, ..suite::Case::sum(kind, count) }.check_on(&world);
            }
        }
    }
}
