//! One rank does something else than the others, at random: nobody hangs, and all name it.

use std::time::{Duration, Instant};

use regatta_comm::worker::Communicator;
use regatta_comm::{Call, CallKind, Comm, CommError, Counts, DType, ReduceOp};

use crate::seeded::{Seeded, cases};
use crate::{joined, settings};

/// What a rank does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    Call { kind: CallKind, dtype: DType, op: ReduceOp, root: u32, count: usize },
    Nothing,
    Leave,
}

fn call(seeded: &mut Seeded, ranks: u32) -> Act {
    Act::Call {
        kind: seeded.one(&CallKind::ALL),
        dtype: seeded.one(&[DType::F32, DType::I64]),
        op: seeded.one(&[ReduceOp::Sum, ReduceOp::Max]),
        root: seeded.below(ranks.into()) as u32,
        count: seeded.one(&[1, 2, 1000, 200_000]),
    }
}

fn run(comm: &Communicator, act: Act) -> Result<(), CommError> {
    let Act::Call { kind, dtype, op, root, count } = act else { return Ok(()) };
    let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
    let counts = Counts::Equal(count);
    let mut call = Call { kind, dtype, op, root, tag: 0, counts, input: None, output: &mut [] };
    let size = dtype.size();
    let input = vec![0; call.lengths(rank, ranks).0 * size];
    if !matches!(kind, CallKind::Broadcast | CallKind::Barrier) {
        call.input = Some(&input);
    }
    let mut output = vec![0; call.lengths(rank, ranks).1 * size];
    call.output = &mut output;
    comm.run(call)
}

/// What the calls of two acts have in common.
fn signature(act: Act, ranks: u32) -> Option<String> {
    let Act::Call { kind, dtype, op, root, count } = act else { return None };
    let counts = Counts::Equal(count);
    let call = Call { kind, dtype, op, root, tag: 0, counts, input: None, output: &mut [] };
    Some(call.signature(ranks as usize).to_string())
}

/// Does it, then what is right, until there is an error. Who leaves has none.
fn until_error(comm: Communicator, act: Act) -> Option<CommError> {
    let right = Act::Call {
        kind: CallKind::AllReduce,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        root: 0,
        count: 10,
    };
    match act {
        Act::Leave => return None,
        // Longer than the others wait for it.
        Act::Nothing => std::thread::sleep(Duration::from_secs(2)),
        Act::Call { .. } => {}
    }
    let first = run(&comm, act);
    Some(first.and_then(|()| (0..50).try_for_each(|_| run(&comm, right))).unwrap_err())
}

#[test]
fn the_odd_one_is_named() {
    for seed in 0..cases(12) {
        let mut seeded = Seeded(seed + 1000);
        let ranks = 2 + seeded.below(4) as u32;
        let odd = seeded.below(ranks.into()) as u32;
        let most = call(&mut seeded, ranks);
        let other = match seeded.below(4) {
            0 => Act::Nothing,
            1 => Act::Leave,
            _ => call(&mut seeded, ranks),
        };
        if signature(most, ranks) == signature(other, ranks) {
            continue;
        }
        let what = format!("seed {seed}: rank {odd} of {ranks}: {other:?}, others {most:?}");
        let start = Instant::now();
        let mut all = settings(ranks);
        all.iter_mut().for_each(|s| s.desync_after = Duration::from_millis(500));
        let errors: Vec<Option<CommError>> = std::thread::scope(|scope| {
            let rank = |comm: Communicator| {
                let act = if comm.rank() == odd { other } else { most };
                scope.spawn(move || until_error(comm, act))
            };
            let threads: Vec<_> = joined(all).into_iter().map(rank).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(start.elapsed() < Duration::from_secs(15), "{what}");
        let others = errors.iter().enumerate().filter(|(rank, _)| *rank as u32 != odd);
        for (rank, error) in others {
            let error = error.as_ref().unwrap();
            let named = match error {
                CommError::CallMismatch { theirs_by, .. } => theirs_by.rank == odd,
                CommError::Timeout { missing, .. } => missing.iter().any(|peer| peer.rank == odd),
                CommError::Aborted { by, .. } => by.rank == odd,
                _ => false,
            };
            assert!(named, "{what}: rank {rank} says: {error}");
        }
    }
}
