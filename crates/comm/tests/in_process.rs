//! The in_process does what every communicator must.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod suite;

use regatta_comm::in_process::world;
use regatta_comm::{Collectives, Comm, CommError, ReduceOp};

#[test]
fn every_collective_gives_what_the_reference_gives() {
    suite::all_collectives(&[1, 2, 3, 5, 8], &[0, 1, 7, 100], world);
    suite::edge_cases(world);
}

#[test]
fn any_combination_is_right() {
    suite::sampled_combinations(600, world);
}

#[test]
fn any_messages_arrive() {
    suite::random_messages(24, 1..9, world);
}

#[test]
fn any_session_is_right() {
    suite::random_sessions(48, 1..18, world);
}

#[test]
fn ranks_that_disagree_are_told_by_name() {
    let errors = suite::on_all_ranks(world(2), |comm| {
        let mut data = vec![1.0f32; 3 + comm.rank() as usize];
        comm.all_reduce(&mut data, ReduceOp::Sum).unwrap_err().to_string()
    });
    for error in errors {
        assert!(
            error.contains("all-reduce of 3 f32, sum") && error.contains("of 4 f32"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_leaves_is_not_waited_for() {
    let ended = suite::on_all_ranks(world(3), |comm| match comm.rank() {
        2 => {
            comm.abort("it has had enough");
            Ok(())
        }
        _ => comm.barrier(),
    });
    for end in &ended[..2] {
        assert!(matches!(end, Err(CommError::Aborted { by, .. }) if by.rank == 2), "{end:?}");
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused_before_anything_is_sent() {
    let world = world(1);
    let error = world[0].all_gather(&[1u8, 2], &mut [0u8; 3]).unwrap_err();
    assert_eq!(error.to_string(), "all-gather: the output has 3 elements, 2 are needed");
    assert!(world[0].broadcast(&mut [0u8], 1).unwrap_err().to_string().contains("rank 1"));
    assert_eq!(world[0].size(), 1);
}
