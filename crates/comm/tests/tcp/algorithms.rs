//! Every algorithm that there is, over real connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use regatta_comm::bootstrap::{BootstrapConfig, engine};
use regatta_comm::error::Peer;
use regatta_comm::schedule::Algorithm;
use regatta_comm::schedule::selection::AlgorithmTable;
use regatta_comm::tcp::TcpEngine;
use regatta_comm::tune::{Effort, Tunable, tune};
use regatta_comm::worker::{AbortFn, Communicator, Engine};
use regatta_comm::{Call, CallKind, CommError, Counts, DType, ReduceOp};
use regatta_model::document::to_json;

use crate::{settings, suite};

/// Does calls by one algorithm after the other.
struct InTurn {
    engine: TcpEngine,
    which: Arc<AtomicUsize>,
}

impl Engine for InTurn {
    fn rank(&self) -> u32 {
        self.engine.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.engine.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result<(), CommError> {
        self.engine.run_with(call, Algorithm::ALL[self.which.load(Ordering::SeqCst)])
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Box<dyn Engine>>, CommError> {
        self.engine.split(colour, key)
    }

    fn abort_fn(&self) -> AbortFn {
        self.engine.abort()
    }
}

/// The engines of a world.
fn engines(all: Vec<BootstrapConfig>) -> Vec<TcpEngine> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|rank| scope.spawn(|| engine(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    })
}

/// What is measured differs from rank to rank; the table must not.
#[test]
fn what_is_measured_becomes_one_table_for_all() {
    let effort = Effort { bytes: vec![8, 1 << 12, 1 << 18], rounds: 1, round_bytes: 0, most: 1 };
    let tables: Vec<Table> = std::thread::scope(|scope| {
        let measure = |mut engine: TcpEngine| {
            let effort = &effort;
            scope.spawn(move || {
                let table = tune(&mut engine, effort).unwrap();
                let mut sum = 1f64.to_ne_bytes();
                let counts = Counts::Equal(1);
                let (kind, dtype, op) = (CallKind::AllReduce, DType::F64, ReduceOp::Sum);
                let output = &mut sum[..];
                let call = Call { kind, dtype, op, root: 0, tag: 0, counts, input: None, output };
                engine.run(call).unwrap();
                assert_eq!(f64::from_ne_bytes(sum), 3.0);
                table
            })
        };
        let threads: Vec<_> = engines(settings(3)).into_iter().map(measure).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(tables.iter().all(|table| *table == tables[0]));
    let measured = tables[0].rows.len() - AlgorithmTable::default().rows.len();
    assert!((9..=25).contains(&measured), "{tables:?}");
}

/// Ranks whose files differ, or that have none, do as rank 0 does.
#[test]
fn rank_0s_table_is_what_all_use() {
    let file = std::env::temp_dir().join(format!("regatta-table-{}", std::process::id()));
    let mut row = AlgorithmTable::default()
        .rows
        .into_iter()
        .find(|row| row.collective == CallKind::AllReduce);
    let row = row.as_mut().unwrap();
    // By itself it is another one, whose messages would not fit.
    (row.algorithm, row.up_to_bytes, row.spread) = (Algorithm::BinomialTree, None, None);
    std::fs::write(&file, to_json(&Table { rows: vec![row.clone()] }).unwrap()).unwrap();
    let mut all = settings(5);
    all[0].tuning = Some(file.clone());
    all[3].tuning = Some("/there/is/none".into());
    let world: Vec<Communicator> =
        engines(all).into_iter().map(|engine| Communicator::new(Box::new(engine))).collect();
    let (kind, dtype, op) = (CallKind::AllReduce, DType::I64, ReduceOp::Max);
    let sizes = suite::Sizes::Equal(10_000);
    suite::Case { kind, dtype, op, root: 0, sizes, in_place: false, seed: 1 }.check(world);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn every_algorithm_gives_what_the_reference_gives() {
    let which = Arc::new(AtomicUsize::new(0));
    // Two ranks on a node, and one alone.
    let mut all = settings(5);
    all.iter_mut().for_each(|rank| rank.node = format!("node {}", rank.rank / 2));
    let world: Vec<Communicator> = engines(all)
        .into_iter()
        .map(|engine| Communicator::new(Box::new(InTurn { engine, which: which.clone() })))
        .collect();
    // The last is cut into segments.
    for (turn, count) in [1, 1003, 150_003].into_iter().enumerate() {
        for kind in CallKind::ALL {
            let whole =
                matches!(kind, CallKind::AllReduce | CallKind::Reduce | CallKind::Broadcast);
            let count = if whole { count } else { count / 5 + 1 };
            for (at, algorithm) in Algorithm::ALL.into_iter().enumerate() {
                if !algorithm.does(kind) {
                    continue;
                }
                which.store(at, Ordering::SeqCst);
                let (dtype, op, root) = (DType::F32, ReduceOp::Sum, at as u32 % 5);
                let (sizes, in_place) = (suite::Sizes::Equal(count), (turn + at) % 2 == 0);
                let case = suite::Case { kind, dtype, op, root, sizes, in_place, seed: 0 };
                case.check_on(&world);
            }
        }
    }
}
