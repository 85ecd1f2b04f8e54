//! The communicator test suite on the in-process communicator.

use regatta_comm::{Collectives, Comm, CommError, ReduceOp};
use regatta_testbed::in_process::world;

use crate::suite;

#[test]
fn collectives_match_the_reference() {
    suite::all_collectives(&[1, 2, 3, 5, 8], &[0, 1, 7, 100], world);
    suite::edge_cases(world);
}

#[test]
fn sampled_combinations_match_the_reference() {
    suite::sampled_combinations(600, world);
}

#[test]
fn random_messages_are_delivered() {
    suite::random_messages(24, 1..9, world);
}

#[test]
fn random_sessions_match_the_reference() {
    suite::random_sessions(48, 1..18, world);
}

#[test]
fn a_call_mismatch_names_both_calls() {
    let errors = suite::on_all_ranks(world(2), |comm| {
        let mut data = vec![1.0f32; 3 + comm.rank() as usize];
        comm.all_reduce(&mut data, ReduceOp::Sum).unwrap_err().to_string()
    });
    for error in errors {
        let ours = error.contains("all-reduce of 3 f32, sum");
        assert!(ours && error.contains("of 4 f32"), "{error}");
    }
}

#[test]
fn an_abort_fails_the_other_ranks() {
    let ended = suite::on_all_ranks(world(3), |comm| match comm.rank() {
        2 => {
            comm.abort("test abort");
            Ok(())
        }
        _ => comm.barrier(),
    });
    for end in &ended[..2] {
        assert!(matches!(end, Err(CommError::Aborted { by, .. }) if by.rank == 2), "{end:?}");
    }
}

#[test]
fn invalid_buffers_are_rejected() {
    let world = world(1);
    let error = world[0].all_gather(&[1u8, 2], &mut [0u8; 3]).unwrap_err();
    assert_eq!(error.to_string(), "all-gather: the output has 3 elements, 2 are needed");
    assert!(world[0].broadcast(&mut [0u8], 1).unwrap_err().to_string().contains("rank 1"));
    assert_eq!(world[0].size(), 1);
}
