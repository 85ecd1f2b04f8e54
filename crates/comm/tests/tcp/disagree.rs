//! Ranks that call different things, or nothing, are told so by name.

use std::time::{Duration, Instant};

use regatta_comm::worker::Communicator;
use regatta_comm::{Collectives, Comm, CommError, ReduceOp};

use crate::{joined, settings, suite};

/// A world that does not wait long.
fn hasty(size: u32) -> Vec<Communicator> {
    late_after(size, Duration::from_millis(500))
}

fn late_after(size: u32, desync_after: Duration) -> Vec<Communicator> {
    let mut all = settings(size);
    for settings in &mut all {
        settings.desync_after = desync_after;
        settings.lost_after = Duration::from_secs(20);
    }
    joined(all)
}

/// What each rank is told when rank 1 of three does the one and the others do the other.
fn told(
    one: impl Fn(&Communicator) -> Result<(), CommError> + Sync,
    other: impl Fn(&Communicator) -> Result<(), CommError> + Sync,
) -> Vec<CommError> {
    let start = Instant::now();
    let errors = suite::on_all_ranks(hasty(3), |comm| {
        comm.barrier().unwrap();
        let does = |comm: &Communicator| if comm.rank() == 1 { one(comm) } else { other(comm) };
        // Whoever is through with the wrong thing goes on to the next.
        let error = does(comm).and_then(|()| comm.barrier()).unwrap_err();
        // Nobody leaves before all have heard.
        std::thread::sleep(Duration::from_millis(100));
        error
    });
    assert!(start.elapsed() < Duration::from_secs(15), "{errors:?}");
    errors
}

/// All name both calls, each its own first.
fn check(errors: &[CommError], odd: &str, most: &str) {
    for (rank, error) in errors.iter().enumerate() {
        let CommError::CallMismatch { sequence, ours_by, ours, theirs_by, theirs } = error else {
            panic!("rank {rank}: {error}");
        };
        assert_eq!((*sequence, ours_by.rank as usize), (2, rank), "{error}");
        let said = [ours.to_string(), theirs.to_string()];
        let right = if rank == 1 { [odd, most] } else { [most, odd] };
        assert_eq!(said, right, "rank {rank}");
        assert_eq!(theirs_by.rank == 1, rank != 1, "{error}");
        assert_eq!(theirs_by.host, format!("node{}", theirs_by.rank));
    }
}

fn sum(comm: &Communicator, count: usize) -> Result<(), CommError> {
    comm.all_reduce(&mut vec![1.0f32; count], ReduceOp::Sum)
}

#[test]
fn in_size() {
    let most = "all-reduce of 9 f32, sum";
    check(&told(|c| sum(c, 10), |c| sum(c, 9)), "all-reduce of 10 f32, sum", most);
}

#[test]
fn in_type_and_reduction() {
    let errors = told(|c| c.all_reduce(&mut [1i32; 9], ReduceOp::Sum), |c| sum(c, 9));
    check(&errors, "all-reduce of 9 i32, sum", "all-reduce of 9 f32, sum");
    let errors = told(|c| c.all_reduce(&mut [1.0f32; 9], ReduceOp::Max), |c| sum(c, 9));
    check(&errors, "all-reduce of 9 f32, max", "all-reduce of 9 f32, sum");
}

#[test]
fn in_the_root() {
    let errors = told(|c| c.broadcast(&mut [1u8; 5], 2), |c| c.broadcast(&mut [1u8; 5], 0));
    check(&errors, "broadcast of 5 u8, root 2", "broadcast of 5 u8, root 0");
}

#[test]
fn in_the_operation() {
    let errors = told(Collectives::barrier, |c| sum(c, 3));
    check(&errors, "barrier", "all-reduce of 3 f32, sum");
    let errors = told(|c| c.broadcast(&mut [1u8; 5], 1), |c| sum(c, 3));
    check(&errors, "broadcast of 5 u8, root 1", "all-reduce of 3 f32, sum");
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let start = Instant::now();
    let errors = suite::on_all_ranks(hasty(4), |comm| {
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
fn rank_waiting_in_another_communicator_is_not_reported() {
    let world = late_after(3, Duration::from_secs(2));
    suite::timeouts::rank_waiting_in_another_communicator_is_not_reported(world);
}

#[test]
fn a_message_that_never_comes_is_late() {
    let errors = suite::on_all_ranks(hasty(2), |comm| match comm.rank() {
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
fn large_messages_in_a_circle_are_late_and_it_is_said_what_to_do() {
    let errors = suite::on_all_ranks(late_after(3, Duration::from_secs(2)), |comm| {
        let (to, large) = ((comm.rank() + 1) % comm.size(), vec![1u8; 64 << 20]);
        comm.barrier().unwrap();
        comm.send(&large, to, 3).unwrap_err()
    });
    for error in errors {
        let CommError::Timeout { call, missing, .. } = &error else { panic!("{error}") };
        assert!(call.contains("tag 3 that is not received"), "{error}");
        // All of the circle, for each waits for the next.
        assert!(call.contains("put messages in a group") && missing.len() == 3, "{error}");
    }
}

#[test]
fn a_message_of_another_size_is_told_to_all() {
    // One for which somebody waits already, and one that nobody has asked for when it comes.
    for early in [false, true] {
        let errors = suite::on_all_ranks(hasty(3), |comm| {
            let done = match comm.rank() {
                0 => {
                    let wrong = comm.send(&[1.0f32; 10], 1, 0);
                    if early { wrong.and_then(|()| comm.send(&[0u8], 1, 1)) } else { wrong }
                }
                1 if early => {
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
        let right = "rank 0 on node0 sends 10 f32 to rank 1 on node1, which expects 9";
        assert!(errors.iter().all(|error| error.contains(right)), "{errors:?}");
    }
}

#[test]
fn a_rank_that_leaves_or_gives_up_is_not_waited_for() {
    let mut all = settings(3);
    all.iter_mut().for_each(|s| s.desync_after = Duration::from_secs(60));
    let start = Instant::now();
    let errors = suite::on_all_ranks(joined(all), |comm| {
        let part = comm.split(Some(0), 0).unwrap().unwrap();
        part.barrier().unwrap();
        let left = match comm.rank() {
            2 => {
                drop(part);
                None
            }
            _ => Some(part.barrier().unwrap_err()),
        };
        // The other communicator is not harmed by what became of that one.
        let whole = sum(comm, 7);
        if comm.rank() == 1 {
            whole.unwrap();
            comm.abort("it has had enough");
            return (left, comm.barrier().unwrap_err());
        }
        // Whoever is slower hears of it in the call before.
        (left, whole.and_then(|()| comm.barrier()).unwrap_err())
    });
    assert!(start.elapsed() < Duration::from_secs(10));
    for (rank, (left, gave_up)) in errors.iter().enumerate() {
        let by = |error: &CommError| match error {
            CommError::Aborted { by, .. } => by.rank,
            error => panic!("{error}"),
        };
        assert_eq!(left.as_ref().map(by), (rank != 2).then_some(2));
        assert_eq!(by(gave_up), 1);
    }
}
