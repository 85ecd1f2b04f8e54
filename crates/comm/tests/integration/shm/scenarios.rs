//! Shared memory between ranks as separate processes.

use std::time::Duration;

use regatta_comm::{CallKind, Collectives, Comm, ReduceOp, hierarchical};
use serde::{Deserialize, Serialize};

use crate::rank_process::{
    MAIN, Operation, RankScript, own_config, own_script, report, start_local,
};
use crate::seeded_rng::SeededRng;
use crate::suite;

/// What the ranks do.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Scenario {
    Work,
    /// A rank does not join.
    Absent(u32),
    /// A rank makes no call.
    NoCall(u32),
}

/// Not a test itself: the body of a rank that another test has started.
#[test]
fn scenario_main() {
    let Some(scenario) = own_script::<Scenario>() else { return };
    let mut config = own_config();
    let rank = config.rank;
    if scenario == Scenario::Absent(rank) {
        return;
    }
    config.host = "n1".to_owned();
    match scenario {
        Scenario::Absent(_) => config.join_timeout = Duration::from_secs(1),
        Scenario::NoCall(_) => config.desync_after = Duration::from_secs(1),
        Scenario::Work => {}
    }
    let comm = match hierarchical::join(config) {
        Ok(comm) => comm,
        Err(error) => return report(error),
    };
    match scenario {
        Scenario::Work => {
            let mut sum = [rank as f32 + 1.0; 10_000];
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            let part = comm.split(Some(rank % 2), 0).unwrap().unwrap();
            let mut least = [rank as i32];
            part.all_reduce(&mut least, ReduceOp::Min).unwrap();
            report(format_args!("{} {}", sum[9_999], least[0]));
        }
        Scenario::NoCall(silent) if silent == rank => {
            suite::timeouts::make_no_call(&comm);
            report("no call");
        }
        Scenario::NoCall(_) => report(comm.barrier().unwrap_err()),
        Scenario::Absent(_) => report("joined"),
    }
}

fn outcomes(scenario: Scenario, ranks: u32) -> Vec<Option<String>> {
    start_local(ranks, "shm::scenarios::scenario_main", &scenario, &[]).outcomes()
}

#[test]
fn rank_processes_run_collectives() {
    for (rank, outcome) in outcomes(Scenario::Work, 4).iter().enumerate() {
        assert_eq!(outcome.as_deref(), Some(&*format!("10 {}", rank % 2)));
    }
}

#[test]
fn live_rank_that_makes_no_call_times_out() {
    for (rank, outcome) in outcomes(Scenario::NoCall(2), 3).iter().enumerate() {
        let expected = ["barrier: timed out after 1 s waiting for rank 2 on n1", "no call"];
        assert_eq!(outcome.as_deref(), Some(expected[rank / 2]));
    }
}

#[test]
fn rank_that_never_joins_is_reported() {
    for outcome in outcomes(Scenario::Absent(2), 3).into_iter().take(2) {
        let outcome = outcome.unwrap_or_default();
        assert!(outcome.contains("1 of 3 ranks missing: rank 2"), "{outcome}");
    }
}

#[test]
fn killed_rank_is_reported_by_all_others() {
    let collectives = CallKind::ALL.map(Operation::Collective);
    let operations = [&collectives[..], &[Operation::ZeroCopy, Operation::Ring]].concat();
    // The seed determines the rank, the time and the operation.
    let mut seeded = SeededRng(0x5eed);
    for case in 0..suite::case_count(44) as usize {
        let script = RankScript {
            operation: operations[case % operations.len()],
            victim: seeded.below(3) as u32,
            count: seeded.choose(&[1, 100, 40_000, 300_000]),
            after_us: seeded.below(3000),
            call: 2,
            desync_after_s: 300,
            hierarchical: true,
            ..RankScript::all_reduce(0)
        };
        start_local(3, MAIN, &script, &[]).assert_victim_lost(script, "shared memory");
    }
    // Directories in /dev/shm belong to other tests.
    let is_ours = |entry: &std::fs::DirEntry| {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        is_file && entry.file_name().to_string_lossy().contains("regatta")
    };
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten().find(is_ours);
    assert!(left.is_none(), "{left:?}");
}
