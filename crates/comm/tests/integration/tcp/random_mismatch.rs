//! Random call mismatches: no rank hangs, and all name the mismatching one.

use std::time::{Duration, Instant};

use regatta_comm::{
    Call, CallKind, Comm, CommError, Communicator, Counts, DType, ReduceOp, Result,
};

use super::call_mismatch::short_timeout;
use crate::seeded_rng::SeededRng;
use crate::suite::{self, case_count};

/// The action of a rank.
#[derive(Debug, Clone, Copy)]
enum Action {
    Call(CallKind, DType, ReduceOp, u32, usize),
    NoCall,
    Close,
}

impl Action {
    fn random_call(seeded: &mut SeededRng, ranks: u32) -> Self {
        Self::Call(
            seeded.choose(&CallKind::ALL),
            seeded.choose(&[DType::F32, DType::I64]),
            seeded.choose(&[ReduceOp::Sum, ReduceOp::Max]),
            seeded.below(ranks.into()) as u32,
            seeded.choose(&[1, 2, 1000, 200_000]),
        )
    }

    fn call(self) -> Option<Call<'static>> {
        let Self::Call(kind, dtype, op, root, count) = self else { return None };
        Some(Call { op, root, ..Call::new(kind, dtype, Counts::Equal(count), &mut []) })
    }

    fn signature(self, ranks: u32) -> Option<String> {
        Some(self.call()?.signature(ranks as usize).to_string())
    }

    fn run(self, comm: &Communicator) -> Result {
        self.call().map_or(Ok(()), |call| suite::run_zeroed(comm, call))
    }
}

/// Runs the action, then regular calls until one fails. A rank that closes has no error.
fn until_error(comm: Communicator, action: Action) -> Option<CommError> {
    let regular = Action::Call(CallKind::AllReduce, DType::F32, ReduceOp::Sum, 0, 10);
    match action {
        Action::Close => return None,
        Action::NoCall => suite::timeouts::make_no_call(&comm),
        Action::Call(..) => {}
    }
    let first = action.run(&comm);
    Some(first.and_then(|()| (0..50).try_for_each(|_| regular.run(&comm))).unwrap_err())
}

#[test]
fn the_mismatching_rank_is_named_by_all() {
    for seed in 0..u64::from(case_count(12)) {
        let mut seeded = SeededRng(seed + 1000);
        let ranks = 2 + seeded.below(4) as u32;
        let victim = seeded.below(ranks.into()) as u32;
        let majority = Action::random_call(&mut seeded, ranks);
        let minority = match seeded.below(4) {
            0 => Action::NoCall,
            1 => Action::Close,
            _ => Action::random_call(&mut seeded, ranks),
        };
        if majority.signature(ranks) == minority.signature(ranks) {
            continue;
        }
        let what =
            format!("seed {seed}: rank {victim} of {ranks}: {minority:?}, others {majority:?}");
        let start = Instant::now();
        let errors = suite::in_parallel(short_timeout(ranks), |comm| {
            let action = if comm.rank() == victim { minority } else { majority };
            until_error(comm, action)
        });
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
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
