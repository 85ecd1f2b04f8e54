//! Shared-memory communicator: correct results between threads, and fault reports between
//! processes.

mod scenarios;

use std::time::Duration;

use regatta_comm::shm::CHUNK_BYTES;
use regatta_comm::{
    Buffer, Collectives, Comm, CommError, Communicator, DType, OwnedCall, ReduceOp, Result,
};
use regatta_testbed::one_node;
use rustix::thread::CpuSet;

use crate::suite;

fn world(ranks: u32) -> Vec<Communicator> {
    one_node::world(ranks)
}

/// Minimal slots, so that everything takes many rounds.
fn world_with_small_slots(ranks: u32) -> Vec<Communicator> {
    one_node::world_with(ranks, 1, |_| {})
}

#[test]
fn collectives_match_the_reference() {
    suite::all_collectives(&[1, 2, 3, 5, 8, 17], &[0, 1, 7, 100], world);
    suite::edge_cases(world);
    suite::large_buffers(world);
}

#[test]
fn small_slots_and_debug_mode_match_the_reference() {
    suite::all_collectives(&[1, 2, 3, 5], &[4099, 20_011, 33_333], world_with_small_slots);
    suite::edge_cases(world_with_small_slots);
    let debug = |ranks| one_node::world_with(ranks, CHUNK_BYTES, |config| config.debug = true);
    suite::all_collectives(&[2, 3], &[0, 9, 5000], debug);
    suite::edge_cases(debug);
}

#[test]
fn long_payloads_match_the_reference_with_and_without_reads_of_memory() {
    for cross_memory in [Some(true), Some(false)] {
        let world = |ranks| {
            one_node::world_with(ranks, CHUNK_BYTES, |config| config.cross_memory = cross_memory)
        };
        suite::all_collectives(&[2, 3], &[140_001], world);
        suite::all_collectives(&[9], &[33_001], world);
    }
}

#[test]
fn sampled_combinations_match_the_reference() {
    suite::sampled_combinations(600, world);
}

#[test]
fn random_messages_are_delivered() {
    suite::random_messages(24, 1..9, world);
    suite::random_groups(24, 1..9, world);
}

#[test]
fn random_sessions_match_the_reference() {
    suite::random_sessions(32, 1..18, world);
    suite::random_sessions(32, 1..6, world_with_small_slots);
}

#[test]
fn messages_match_by_tag_and_may_cross() {
    suite::on_all_ranks(world(2), |comm| {
        let (me, other) = (comm.rank(), 1 - comm.rank());
        // More than fits into the slots, in both directions at once.
        let large = vec![me as i64; 300_000];
        comm.send(&large, other, 1).unwrap();
        comm.send(&[me as u8 + 5], other, 2).unwrap();
        comm.send(&[9u8], me, 3).unwrap();
        let (mut got, mut small) = (vec![7i64; 300_000], [0u8]);
        comm.receive(&mut small, other, 2).unwrap();
        assert_eq!(small[0], other as u8 + 5);
        comm.receive(&mut got, other, 1).unwrap();
        assert!(got.iter().all(|v| *v == other as i64));
        comm.receive(&mut small, me, 3).unwrap();
        assert_eq!(small[0], 9);
        comm.send::<f32>(&[], other, 4).unwrap();
        comm.receive::<f32>(&mut [], other, 4).unwrap();
    });
}

#[test]
fn cyclic_sends_before_receives_do_not_deadlock() {
    suite::on_all_ranks(world(4), |comm| {
        let (me, ranks) = (comm.rank(), comm.size());
        comm.send(&vec![me as i32; 300_000], (me + 1) % ranks, 1).unwrap();
        let mut got = vec![-1i32; 300_000];
        let left = (me + ranks - 1) % ranks;
        comm.receive(&mut got, left, 1).unwrap();
        assert!(got.iter().all(|v| *v == left as i32));
    });
}

#[test]
fn sums_are_bit_identical_on_all_ranks_and_reproducible() {
    let sums = |ranks| {
        suite::on_all_ranks(world_with_small_slots(ranks), |comm| {
            let mut data: Vec<f32> =
                (0..50_000).map(|i| 1.0 / (1.0 + (i * (comm.rank() + 3)) as f32)).collect();
            comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            data.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        })
    };
    let first = sums(5);
    assert!(first.iter().all(|bits| *bits == first[0]));
    assert_eq!(first, sums(5));
}

/// An average over buffers from the arena or from the heap.
fn sum_of_buffers(comm: &dyn Comm, shared: bool, in_place: bool) -> Vec<u32> {
    let count = 70_001;
    let value = |i: usize| 1.0 / (1.0 + (i * (comm.rank() as usize + 3)) as f32);
    let values: Vec<f32> = (0..count).map(value).collect();
    let fresh = || if shared { comm.buffer(count * 4) } else { Buffer::zeroed(count * 4) };
    let mut given = fresh();
    given.as_mut_slice::<f32>().copy_from_slice(&values);
    let mut call = OwnedCall::all_reduce(DType::F32, ReduceOp::Average, fresh());
    match in_place {
        true => call.output.as_mut_slice::<f32>().copy_from_slice(&values),
        false => call.input = Some(given),
    }
    let call = comm.start(call).wait().unwrap();
    if let Some(input) = &call.input {
        assert_eq!(input.as_slice::<f32>(), values);
    }
    call.output.as_slice::<f32>().iter().map(|v| v.to_bits()).collect()
}

#[test]
fn zero_copy_reductions_are_bit_identical_to_copied_ones() {
    for ranks in [1, 2, 3, 5] {
        let all = suite::on_all_ranks(world(ranks), |comm| {
            let plain = sum_of_buffers(comm, false, true);
            for (shared, in_place) in [(true, true), (true, false), (comm.rank() != 1, true)] {
                assert_eq!(sum_of_buffers(comm, shared, in_place), plain);
            }
            // A split communicator reaches the arena, too.
            let part = comm.split(Some(comm.rank() / 2), -i64::from(comm.rank())).unwrap().unwrap();
            assert_eq!(sum_of_buffers(&*part, true, true), sum_of_buffers(&*part, false, true));
            plain
        });
        assert!(all.iter().all(|sum| *sum == all[0]));
    }
}

/// A world whose timeout is long enough that the start order does not matter.
fn with_timeout(ranks: u32) -> Vec<Communicator> {
    let desync_after = Duration::from_secs(2);
    one_node::world_with(ranks, CHUNK_BYTES, |config| config.desync_after = desync_after)
}

fn errors(world: Vec<Communicator>, work: impl Fn(&Communicator) -> Result + Sync) -> Vec<String> {
    suite::on_all_ranks(world, |comm| work(comm).unwrap_err().to_string())
}

type CallFn = fn(&Communicator) -> Result;

#[test]
fn mismatches_of_roots_and_messages_are_reported_by_all_ranks() {
    let cases: [(u32, CallFn, [&str; 2]); 3] = [
        // Some ranks run ahead.
        (
            3,
            |comm| loop {
                comm.broadcast(&mut [0i16; 3], u32::from(comm.rank() == 2))?;
            },
            ["root 0", "root 1"],
        ),
        (
            2,
            |comm| match comm.rank() {
                0 => comm.send(&[1u8, 2], 1, 0).and_then(|()| comm.barrier()),
                _ => comm.receive(&mut [0u8; 3], 0, 0),
            },
            ["send of 2 u8", "receive of 3 u8"],
        ),
        (
            2,
            |comm| match comm.rank() {
                0 => comm.barrier(),
                _ => comm.receive(&mut [0u8], 0, 0),
            },
            ["barrier", "receive of 1 u8"],
        ),
    ];
    for (ranks, work, both) in cases {
        for error in errors(with_timeout(ranks), work) {
            assert!(both.iter().all(|call| error.contains(call)), "{both:?}: {error}");
        }
    }
}

#[test]
fn timeouts_name_the_rank_that_makes_no_call() {
    let cases: [CallFn; 3] = [
        |comm| if comm.rank() == 2 { Ok(()) } else { comm.barrier() },
        |comm| match comm.rank() {
            0 => comm.receive(&mut [0u8], 2, 0),
            1 => comm.barrier(),
            _ => Ok(()),
        },
        |comm| {
            let all = vec![1u8; if comm.rank() == 1 { 3000 } else { 0 }];
            let scatter = |_| comm.scatter(&all, &mut [0u8; 1000], 1);
            // The root is some calls ahead before it waits for the last rank.
            (0..if comm.rank() == 2 { 1 } else { 100 }).try_for_each(scatter)
        },
    ];
    for work in cases {
        // All ranks stay alive until all have their result.
        let over = std::sync::Barrier::new(3);
        let ends = suite::on_all_ranks(with_timeout(3), |comm| {
            let end = work(comm);
            over.wait();
            end
        });
        ends[..2].iter().for_each(|end| suite::timeouts::assert_waits_for(end, 2));
    }
    suite::timeouts::rank_waiting_in_another_communicator_is_not_reported(with_timeout(3));
}

#[test]
fn unobserved_mismatch_is_reported_some_calls_later() {
    // Subsequent calls are all inline, or partly through slots.
    for sizes in [&[1; 20][..], &[500, 1, 1, 500, 500]] {
        let errors = errors(world(4), |comm| {
            // Rank 0 believes to be the root and therefore waits for no one.
            let root = if comm.rank() == 0 { 0 } else { 3 };
            let all = vec![1u8; if comm.rank() == root { 28 } else { 0 }];
            comm.scatter(&all, &mut [0; 7], root)?;
            let then = |size: &usize| comm.all_reduce(&mut vec![1u8; *size], ReduceOp::Sum);
            sizes.iter().try_for_each(then)
        });
        for error in errors {
            let both = error.contains("scatter of 28 u8, root 0") && error.contains("root 3");
            assert!(both && error.contains("call 1 of"), "{error}");
        }
    }
}

/// A world whose ranks share one CPU.
fn world_on_one_cpu(ranks: u32) -> Vec<Communicator> {
    let create = || {
        let cpus = rustix::thread::sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|cpu| cpus.is_set(*cpu)).unwrap());
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        with_timeout(ranks)
    };
    // The test's own thread keeps its CPUs.
    std::thread::scope(|scope| scope.spawn(create).join().unwrap())
}

#[test]
fn root_of_small_broadcasts_runs_ahead_of_ranks_that_do_not_run() {
    let is_ahead = std::sync::Barrier::new(3);
    let ends = suite::on_all_ranks(world_on_one_cpu(3), |comm| -> Result {
        let broadcast = |call: i64| {
            let mut data = if comm.rank() == 0 { [call; 3] } else { [0; 3] };
            comm.broadcast(&mut data, 0)?;
            assert_eq!(data, [call; 3]);
            Ok(())
        };
        // The second hundred posts are beyond the end of the ring.
        for first in [0, 100] {
            if comm.rank() > 0 {
                is_ahead.wait();
            }
            let end = (first..first + 100).try_for_each(broadcast);
            if comm.rank() == 0 {
                is_ahead.wait();
            }
            end?;
            comm.barrier()?;
        }
        (0..1000).try_for_each(broadcast)
    });
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
}

#[test]
fn mismatch_is_reported_by_a_rank_that_is_far_behind() {
    let is_ahead = std::sync::Barrier::new(2);
    let errors = errors(world_on_one_cpu(2), |comm| {
        // Both believe to be the root and therefore wait for no one.
        comm.scatter(&[1u8; 14], &mut [0; 7], comm.rank())?;
        if comm.rank() == 1 {
            is_ahead.wait();
        }
        let end = (0..100).try_for_each(|_| comm.broadcast(&mut [1u8], 0));
        if comm.rank() == 0 {
            is_ahead.wait();
        }
        end.and_then(|()| comm.barrier())
    });
    for error in errors {
        let both = error.contains("scatter of 14 u8, root 0") && error.contains("root 1");
        assert!(both && error.contains("call 1 of"), "{error}");
    }
}

#[test]
fn aborted_or_closed_rank_fails_the_others() {
    let ends = suite::on_all_ranks(world(3), |comm| match comm.rank() {
        2 => {
            comm.abort("out of data");
            Ok(())
        }
        _ => comm.barrier(),
    });
    for end in &ends[..2] {
        let error = end.clone().unwrap_err().to_string();
        assert!(error.contains("rank 2 on this node aborted: out of data"), "{error}");
    }
    let mut world = world(3);
    drop(world.pop());
    let sum = |comm: &Communicator| comm.all_reduce(&mut [1u8; 100_000], ReduceOp::Sum);
    for end in suite::on_all_ranks(world, sum) {
        assert!(matches!(end.unwrap_err(), CommError::Aborted { by, .. } if by.rank == 2));
    }
}

#[test]
fn background_calls_fail_when_a_rank_aborts() {
    let ends = suite::on_all_ranks(world(2), |comm| {
        let buffer = comm.buffer(1 << 20);
        let call = OwnedCall::all_reduce(DType::F32, ReduceOp::Sum, buffer);
        if comm.rank() == 1 {
            comm.abort("not today");
        }
        comm.start(call).wait().map(drop)
    });
    assert!(ends.iter().all(|end| matches!(end, Err(CommError::Aborted { .. }))), "{ends:?}");
}
