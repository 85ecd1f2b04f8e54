//! All algorithms and the tuning, over TCP connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use regatta_comm::bootstrap::{BootstrapConfig, engine};
use regatta_comm::error::Peer;
use regatta_comm::schedule::Algorithm;
use regatta_comm::schedule::selection::AlgorithmTable;
use regatta_comm::tcp::TcpEngine;
use regatta_comm::tune::{Tunable, TuneConfig, tune};
use regatta_comm::worker::{AbortFn, BoxEngine, Communicator, Engine};
use regatta_comm::{Call, CallKind, Counts, DType, ReduceOp, Result};
use regatta_model::document::to_json;

use crate::{configs, suite};

/// Runs calls with a selected algorithm.
struct FixedAlgorithm {
    engine: TcpEngine,
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
fn engines(all: Vec<BootstrapConfig>) -> Vec<TcpEngine> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|rank| scope.spawn(|| engine(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    })
}

/// Measurements differ between ranks; the table must not.
#[test]
fn tuning_gives_all_ranks_the_same_table() {
    let config =
        TuneConfig { bytes: vec![8, 1 << 12, 1 << 18], rounds: 1, round_bytes: 0, max_repeats: 1 };
    let tables: Vec<AlgorithmTable> = std::thread::scope(|scope| {
        let measure = |mut engine: TcpEngine| {
            let config = &config;
            scope.spawn(move || {
                let table = tune(&mut engine, config).unwrap();
                let mut sum = 1f64.to_ne_bytes();
                let call = Call::new(CallKind::AllReduce, DType::F64, Counts::Equal(1), &mut sum);
                engine.run(call).unwrap();
                assert_eq!(f64::from_ne_bytes(sum), 3.0);
                table
            })
        };
        let threads: Vec<_> = engines(configs(3)).into_iter().map(measure).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(tables.iter().all(|table| *table == tables[0]));
    let measured = tables[0].rows.len() - AlgorithmTable::default().rows.len();
    assert!((9..=25).contains(&measured), "{tables:?}");
}

/// Ranks with another tuning file, or none, use the table of rank 0.
#[test]
fn all_ranks_use_the_table_of_rank_0() {
    let file = std::env::temp_dir().join(format!("regatta-table-{}", std::process::id()));
    let mut row = AlgorithmTable::default()
        .rows
        .into_iter()
        .find(|row| row.collective == CallKind::AllReduce);
    let row = row.as_mut().unwrap();
    // Different from the default, whose messages would not match.
    (row.algorithm, row.up_to_bytes, row.spread) = (Algorithm::BinomialTree, None, None);
    std::fs::write(&file, to_json(&AlgorithmTable { rows: vec![row.clone()] }).unwrap()).unwrap();
    let mut all = configs(5);
    all[0].tuning = Some(file.clone());
    all[3].tuning = Some("/nonexistent".into());
    let world: Vec<Communicator> =
        engines(all).into_iter().map(|engine| Communicator::new(Box::new(engine))).collect();
    let (kind, dtype, op) = (CallKind::AllReduce, DType::I64, ReduceOp::Max);
    let sizes = suite::Sizes::Equal(10_000);
    suite::Case { kind, dtype, op, root: 0, sizes, in_place: false, seed: 1 }.check(world);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn all_algorithms_match_the_reference() {
    let selected = Arc::new(AtomicUsize::new(0));
    // Two nodes with two ranks and one with one.
    let mut all = configs(5);
    all.iter_mut().for_each(|rank| rank.node = format!("node {}", rank.rank / 2));
    let world: Vec<Communicator> = engines(all)
        .into_iter()
        .map(|engine| {
            Communicator::new(Box::new(FixedAlgorithm { engine, selected: selected.clone() }))
        })
        .collect();
    // The last count is split into segments.
    for (turn, count) in [1, 1003, 150_003].into_iter().enumerate() {
        for kind in CallKind::ALL {
            let uniform =
                matches!(kind, CallKind::AllReduce | CallKind::Reduce | CallKind::Broadcast);
            let count = if uniform { count } else { count / 5 + 1 };
            for (at, algorithm) in Algorithm::ALL.into_iter().enumerate() {
                if !algorithm.does(kind) {
                    continue;
                }
                selected.store(at, Ordering::SeqCst);
                let (dtype, op, root) = (DType::F32, ReduceOp::Sum, at as u32 % 5);
                let (sizes, in_place) = (suite::Sizes::Equal(count), (turn + at) % 2 == 0);
                let case = suite::Case { kind, dtype, op, root, sizes, in_place, seed: 0 };
                case.check_on(&world);
            }
        }
    }
}
