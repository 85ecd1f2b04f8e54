//! Late, mismatching and aborted calls over TCP.

use std::time::{Duration, Instant};

use regatta_comm::{Collectives, Comm, CommError, Communicator, ReduceOp, Result};
use regatta_testbed::assert_within;

use super::join_all;
use crate::suite;

/// Ranks with a short timeout.
pub fn short_timeout(size: u32) -> Vec<Communicator> {
    with_timeout(size, Duration::from_secs(1))
}

fn with_timeout(size: u32, desync_after: Duration) -> Vec<Communicator> {
    join_all(suite::configs(size, |config| {
        (config.desync_after, config.lost_after) = (desync_after, Duration::from_secs(20));
    }))
}

fn sum(comm: &Communicator, count: usize) -> Result {
    comm.all_reduce(&mut vec![1.0f32; count], ReduceOp::Sum)
}

#[test]
fn a_late_rank_is_named() {
    let errors = suite::on_all_ranks(short_timeout(4), |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            suite::timeouts::make_no_call(comm);
            return None;
        }
        Some(sum(comm, 1000).unwrap_err())
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
            suite::timeouts::make_no_call(comm);
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
                0 => comm.send(&[1.0f32; 10], 1, 0).and_then(|()| comm.send(&[0u8], 1, 1)),
                1 => {
                    let first = if unexpected { comm.receive(&mut [0u8], 0, 1) } else { Ok(()) };
                    first.and_then(|()| comm.receive(&mut [0.0f32; 9], 0, 0))
                }
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
    let world = with_timeout(3, Duration::from_secs(600));
    let start = Instant::now();
    let errors = suite::on_all_ranks(world, |comm| {
        let split = comm.split(Some(0), 0).unwrap().unwrap();
        split.barrier().unwrap();
        let closed = (comm.rank() != 2).then(|| split.barrier().unwrap_err());
        drop(split);
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
    assert_within(start, Duration::from_secs(10));
    for (rank, (closed, aborted)) in errors.iter().enumerate() {
        let by = |error: &CommError| match error {
            CommError::Aborted { by, .. } => by.rank,
            error => panic!("{error}"),
        };
        assert_eq!(closed.as_ref().map(by), (rank != 2).then_some(2));
        assert_eq!(by(aborted), 1);
    }
}
