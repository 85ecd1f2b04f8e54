//! Random call mismatches: no rank hangs, and all name the mismatching one.

use std::time::{Duration, Instant};

use regatta_comm::{
    Call, CallKind, Comm, CommError, Communicator, Counts, DType, ReduceOp, Result,
};

use crate::seeded_rng::SeededRng;
use crate::suite::case_count;
use crate::{configs, join_all, suite};

/// The action of a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Action {
    Call { kind: CallKind, dtype: DType, op: ReduceOp, root: u32, count: usize },
    Sleep,
    Close,
}

fn call(seeded: &mut SeededRng, ranks: u32) -> Action {
    Action::Call {
        kind: seeded.choose(&CallKind::ALL),
        dtype: seeded.choose(&[DType::F32, DType::I64]),
        op: seeded.choose(&[ReduceOp::Sum, ReduceOp::Max]),
        root: seeded.below(ranks.into()) as u32,
        count: seeded.choose(&[1, 2, 1000, 200_000]),
    }
}

fn run(comm: &Communicator, action: Action) -> Result {
    let Action::Call { kind, dtype, op, root, count } = action else { return Ok(()) };
    let call = Call::new(kind, dtype, Counts::Equal(count), &mut []);
    suite::run_zeroed(comm, Call { op, root, ..call })
}

/// The signature of the action's call.
fn signature(action: Action, ranks: u32) -> Option<String> {
    let Action::Call { kind, dtype, op, root, count } = action else { return None };
    let call = Call::new(kind, dtype, Counts::Equal(count), &mut []);
    let call = Call { op, root, ..call };
    Some(call.signature(ranks as usize).to_string())
}

/// Runs the action, then regular calls until one fails. A rank that closes has no error.
fn until_error(comm: Communicator, action: Action) -> Option<CommError> {
    let (kind, dtype, op) = (CallKind::AllReduce, DType::F32, ReduceOp::Sum);
    let regular = Action::Call { kind, dtype, op, root: 0, count: 10 };
    match action {
        Action::Close => return None,
        // Longer than the timeout.
        Action::Sleep => std::thread::sleep(Duration::from_secs(2)),
        Action::Call { .. } => {}
    }
    let first = run(&comm, action);
    Some(first.and_then(|()| (0..50).try_for_each(|_| run(&comm, regular))).unwrap_err())
}

#[test]
fn the_mismatching_rank_is_named_by_all() {
    for seed in 0..u64::from(case_count(12)) {
        let mut seeded = SeededRng(seed + 1000);
        let ranks = 2 + seeded.below(4) as u32;
        let victim = seeded.below(ranks.into()) as u32;
        let majority = call(&mut seeded, ranks);
        let minority = match seeded.below(4) {
            0 => Action::Sleep,
            1 => Action::Close,
            _ => call(&mut seeded, ranks),
        };
        if signature(majority, ranks) == signature(minority, ranks) {
            continue;
        }
        let what =
            format!("seed {seed}: rank {victim} of {ranks}: {minority:?}, others {majority:?}");
        let start = Instant::now();
        let mut all = configs(ranks);
        all.iter_mut().for_each(|s| s.desync_after = Duration::from_millis(500));
        let errors = suite::in_parallel(join_all(all), |comm| {
            let action = if comm.rank() == victim { minority } else { majority };
            until_error(comm, action)
        });
        assert!(start.elapsed() < Duration::from_secs(15), "{what}");
        let others = errors.iter().enumerate().filter(|(rank, _)| *rank as u32 != victim);
        for (rank, error) in others {
            let error = error.as_ref().unwrap();
            let named = match error {
                CommError::CallMismatch { theirs_by, .. } => theirs_by.rank == victim,
                CommError::Timeout { missing, .. } => missing.iter().any(|p| p.rank == victim),
                CommError::Aborted { by, .. } => by.rank == victim,
                _ => false,
            };
            assert!(named, "{what}: rank {rank}: {error}");
        }
    }
}
