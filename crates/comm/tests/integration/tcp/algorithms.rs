//! All algorithms and the tuning, over TCP connections.

use regatta_comm::bootstrap::{BootstrapConfig, engine};
use regatta_comm::engine::Engine;
use regatta_comm::schedule::Algorithm;
use regatta_comm::schedule::algorithm_table::{AlgorithmRow, AlgorithmTable};
use regatta_comm::tune::{TuneConfig, tune};
use regatta_comm::{Call, CallKind, Communicator, Counts, DType, ReduceOp};
use regatta_model::document::to_json;

use super::{configs, join_all};
use crate::suite;

/// The communicators of ranks that run one algorithm wherever the table of rank 0 allows it.
fn with_algorithm(mut all: Vec<BootstrapConfig>, algorithm: Algorithm) -> Vec<Communicator> {
    let kinds = CallKind::ALL.into_iter().filter(|kind| algorithm.does(*kind));
    let (up_to_bytes, up_to_ranks, spread) = (None, None, None);
    let row = |collective| AlgorithmRow { collective, up_to_bytes, up_to_ranks, spread, algorithm };
    let table = AlgorithmTable { rows: kinds.map(row).collect() };
    let name = format!("regatta-table-{}-{}", std::process::id(), all[0].master_port);
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, to_json(&table).unwrap()).unwrap();
    all[0].tuning = Some(file.clone());
    let world = join_all(all);
    std::fs::remove_file(&file).unwrap();
    world
}

/// Measurements differ between ranks; the table must not.
#[test]
fn tuning_gives_all_ranks_the_same_table() {
    let config =
        TuneConfig { bytes: vec![8, 1 << 12, 1 << 18], rounds: 1, round_bytes: 0, max_repeats: 1 };
    let tables = suite::in_parallel(configs(3), |rank| {
        let mut engine = engine(rank).unwrap();
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
    let mut all = configs(5);
    all[3].tuning = Some("/nonexistent".into());
    // Different from the default, whose messages would not match.
    let world = with_algorithm(all, Algorithm::BinomialTree);
    let case = suite::Case::sum(CallKind::AllReduce, 10_000);
    suite::Case { dtype: DType::I64, op: ReduceOp::Max, ..case }.check(world);
}

#[test]
fn all_algorithms_match_the_reference() {
    for (at, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        // Two nodes with two ranks and one with one.
        let nodes = |rank: &mut BootstrapConfig| rank.node = format!("node {}", rank.rank / 2);
        let world = with_algorithm(suite::configs(5, nodes), algorithm);
        // The last count is split into segments.
        for (turn, count) in [1, 1003, 150_003].into_iter().enumerate() {
            for kind in CallKind::ALL.into_iter().filter(|kind| algorithm.does(*kind)) {
                let count = if kind.has_uniform_count() { count } else { count / 5 + 1 };
                let (root, in_place) = (at as u32 % 5, (turn + at) % 2 == 0);
                suite::Case { root, in_place, ..suite::Case::sum(kind, count) }.check_on(&world);
            }
        }
    }
}
