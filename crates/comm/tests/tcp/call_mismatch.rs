//! Mismatching, late and aborted calls over TCP.

use std::time::{Duration, Instant};

use regatta_comm::{Collectives, Comm, CommError, Communicator, ReduceOp, Result};

use crate::{configs, join_all, suite};

/// Ranks with a short timeout.
fn short_timeout(size: u32) -> Vec<Communicator> {
    with_timeout(size, Duration::from_millis(500))
}

fn with_timeout(size: u32, desync_after: Duration) -> Vec<Communicator> {
    let mut all = configs(size);
    for config in &mut all {
        config.desync_after = desync_after;
        config.lost_after = Duration::from_secs(20);
    }
    join_all(all)
}

/// The error of each rank if rank 1 of three calls `minority` and the others `majority`.
fn run_mismatch(
    minority: impl Fn(&Communicator) -> Result + Sync,
    majority: impl Fn(&Communicator) -> Result + Sync,
) -> Vec<CommError> {
    let start = Instant::now();
    let errors = suite::on_all_ranks(short_timeout(3), |comm| {
        comm.barrier().unwrap();
        let call =
            |comm: &Communicator| if comm.rank() == 1 { minority(comm) } else { majority(comm) };
        // A rank that completes the mismatching call goes on to the next.
        let error = call(comm).and_then(|()| comm.barrier()).unwrap_err();
        // No rank leaves before all have their error.
        std::thread::sleep(Duration::from_millis(100));
        error
    });
    assert!(start.elapsed() < Duration::from_secs(15), "{errors:?}");
    errors
}

/// All errors name both calls, the own one first.
fn check(errors: &[CommError], minority: &str, majority: &str) {
    for (rank, error) in errors.iter().enumerate() {
        let CommError::CallMismatch { sequence, ours_by, ours, theirs_by, theirs } = error else {
            panic!("rank {rank}: {error}");
        };
        assert_eq!((*sequence, ours_by.rank as usize), (2, rank), "{error}");
        let calls = [ours.to_string(), theirs.to_string()];
        let expected = if rank == 1 { [minority, majority] } else { [majority, minority] };
        assert_eq!(calls, expected, "rank {rank}");
        assert_eq!(theirs_by.rank == 1, rank != 1, "{error}");
        assert_eq!(theirs_by.host, format!("node{}", theirs_by.rank));
    }
}

fn sum(comm: &Communicator, count: usize) -> Result {
    comm.all_reduce(&mut vec![1.0f32; count], ReduceOp::Sum)
}

#[test]
fn mismatches_of_count_type_reduction_root_and_operation_name_both_calls() {
    type CallFn = fn(&Communicator) -> Result;
    let sum_of_9: (CallFn, &str) = (|c| sum(c, 9), "all-reduce of 9 f32, sum");
    let cases: [(CallFn, &str, (CallFn, &str)); 6] = [
        (|c| sum(c, 10), "all-reduce of 10 f32, sum", sum_of_9),
        (|c| c.all_reduce(&mut [1i32; 9], ReduceOp::Sum), "all-reduce of 9 i32, sum", sum_of_9),
        (|c| c.all_reduce(&mut [1.0f32; 9], ReduceOp::Max), "all-reduce of 9 f32, max", sum_of_9),
        (
            |c| c.broadcast(&mut [1u8; 5], 2),
            "broadcast of 5 u8, root 2",
            (|c| c.broadcast(&mut [1u8; 5], 0), "broadcast of 5 u8, root 0"),
        ),
        (Collectives::barrier, "barrier", sum_of_9),
        (|c| c.broadcast(&mut [1u8; 5], 1), "broadcast of 5 u8, root 1", sum_of_9),
    ];
    for (minority, minority_call, (majority, majority_call)) in cases {
        check(&run_mismatch(minority, majority), minority_call, majority_call);
    }
}

#[test]
fn a_late_rank_is_named() {
    let start = Instant::now();
    let errors = suite::on_all_ranks(short_timeout(4), |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            std::thread::sleep(Duration::from_secs(3));
            return None;
        }
        let error = sum(comm, 1000).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(8));
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        let CommError::Timeout { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing.len(), 1, "{error}");
        assert_eq!((missing[0].rank, missing[0].host.as_str()), (2, "node2"));
    }
}

#[test]
fn a_rank_waiting_in_another_communicator_is_not_reported() {
    let world = with_timeout(3, Duration::from_secs(2));
    suite::timeouts::rank_waiting_in_another_communicator_is_not_reported(world);
}

#[test]
fn a_message_that_is_never_sent_times_out() {
    let errors = suite::on_all_ranks(short_timeout(2), |comm| match comm.rank() {
        0 => Some(comm.receive(&mut [0u8; 4], 1, 3).unwrap_err()),
        _ => {
            std::thread::sleep(Duration::from_secs(2));
            None
        }
    });
    let error = errors[0].as_ref().unwrap();
    assert!(matches!(error, CommError::Timeout { missing, .. } if missing[0].rank == 1), "{error}");
}

#[test]
fn a_send_cycle_times_out_with_a_hint() {
    let errors = suite::on_all_ranks(with_timeout(3, Duration::from_secs(2)), |comm| {
        let (to, large) = ((comm.rank() + 1) % comm.size(), vec![1u8; 64 << 20]);
        comm.barrier().unwrap();
        comm.send(&large, to, 3).unwrap_err()
    });
    for error in errors {
        let CommError::Timeout { call, missing, .. } = &error else { panic!("{error}") };
        assert!(call.contains("tag 3 that is not received"), "{error}");
        // All ranks of the cycle, because each waits for the next.
        assert!(call.contains("in one group") && missing.len() == 3, "{error}");
    }
}

#[test]
fn a_message_size_mismatch_is_reported_by_all_ranks() {
    // With the receive posted before and after the message arrives.
    for unexpected in [false, true] {
        let errors = suite::on_all_ranks(short_timeout(3), |comm| {
            let done = match comm.rank() {
                0 => {
                    let wrong = comm.send(&[1.0f32; 10], 1, 0);
                    if unexpected { wrong.and_then(|()| comm.send(&[0u8], 1, 1)) } else { wrong }
                }
                1 if unexpected => {
                    comm.receive(&mut [0u8], 0, 1).unwrap();
                    comm.receive(&mut [0.0f32; 9], 0, 0)
                }
                1 => comm.receive(&mut [0.0f32; 9], 0, 0),
                _ => Ok(()),
            };
            let error = done.and_then(|()| comm.barrier()).unwrap_err();
            let exact = matches!(&error, CommError::CountMismatch { sent: 10, expected: 9, .. });
            assert_eq!(exact, comm.rank() == 1, "{error}");
            error.to_string()
        });
        let expected = "rank 0 on node0 sends 10 f32 to rank 1 on node1, which expects 9";
        assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
    }
}

#[test]
fn closing_or_aborting_a_communicator_fails_the_waiting_ranks() {
    let mut all = configs(3);
    all.iter_mut().for_each(|s| s.desync_after = Duration::from_secs(60));
    let start = Instant::now();
    let errors = suite::on_all_ranks(join_all(all), |comm| {
        let split = comm.split(Some(0), 0).unwrap().unwrap();
        split.barrier().unwrap();
        let closed = match comm.rank() {
            2 => {
                drop(split);
                None
            }
            _ => Some(split.barrier().unwrap_err()),
        };
        // The parent communicator is unaffected.
        let parent = sum(comm, 7);
        if comm.rank() == 1 {
            parent.unwrap();
            comm.abort("test abort");
            return (closed, comm.barrier().unwrap_err());
        }
        // A slower rank gets the abort in the previous call.
        (closed, parent.and_then(|()| comm.barrier()).unwrap_err())
    });
    assert!(start.elapsed() < Duration::from_secs(10));
    for (rank, (closed, aborted)) in errors.iter().enumerate() {
        let by = |error: &CommError| match error {
            CommError::Aborted { by, .. } => by.rank,
            error => panic!("{error}"),
        };
        assert_eq!(closed.as_ref().map(by), (rank != 2).then_some(2));
        assert_eq!(by(aborted), 1);
    }
}
