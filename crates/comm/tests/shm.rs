//! Ranks of one node, through shared memory: right results, from threads; and from processes, that
//! whatever happens to one of them, the others are told.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod ranks;
mod suite;

use std::time::Duration;

use regatta_comm::background::Background;
use regatta_comm::shm::{self, Settings};
use regatta_comm::{Buffer, Collectives, Comm, CommError, DType, OwnedCall, ReduceOp};

fn world(ranks: u32) -> Vec<Background> {
    shm::world(ranks).unwrap()
}

/// Slots as small as they can be, so that everything takes many rounds.
fn narrow(ranks: u32) -> Vec<Background> {
    shm::world_with(ranks, Settings { chunk_bytes: 1, ..Settings::default() }).unwrap()
}

#[test]
fn every_collective_gives_what_the_reference_gives() {
    suite::every_kind(&[1, 2, 3, 5, 8, 17], &[0, 1, 7, 100], world);
    suite::special(world);
}

#[test]
fn what_does_not_fit_into_a_slot_goes_in_rounds() {
    suite::every_kind(&[1, 2, 3, 5], &[4099, 20_011, 33_333], narrow);
    suite::special(narrow);
}

#[test]
fn all_is_the_same_when_calls_are_compared_first() {
    let debug = Settings { debug: true, ..Settings::default() };
    suite::every_kind(&[2, 3], &[0, 9, 5000], |ranks| shm::world_with(ranks, debug).unwrap());
    suite::special(|ranks| shm::world_with(ranks, debug).unwrap());
}

#[test]
fn any_combination_is_right() {
    suite::product(600, world);
}

#[test]
fn any_messages_arrive() {
    suite::any_messages(24, 1..9, world);
    suite::any_groups(24, 1..9, world);
}

#[test]
fn any_session_is_right() {
    suite::any_session(32, 1..18, world);
    suite::any_session(32, 1..6, narrow);
}

#[test]
fn huge_ones_too() {
    suite::huge(world);
}

#[test]
fn messages_overtake_by_tag_and_may_cross() {
    suite::on_all(world(2), |comm| {
        let (me, other) = (comm.rank(), 1 - comm.rank());
        // Far more than there is room for, both ways at once.
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
fn ranks_may_all_send_in_a_circle_before_they_receive() {
    suite::on_all(world(4), |comm| {
        let (me, ranks) = (comm.rank(), comm.size());
        let large = vec![me; 300_000];
        comm.send(&large.iter().map(|v| *v as i32).collect::<Vec<_>>(), (me + 1) % ranks, 1)
            .unwrap();
        let mut got = vec![-1i32; 300_000];
        let left = (me + ranks - 1) % ranks;
        comm.receive(&mut got, left, 1).unwrap();
        assert!(got.iter().all(|v| *v == left as i32));
    });
}

#[test]
fn sums_are_the_same_bits_on_all_ranks_and_every_time() {
    let sums = |ranks| {
        suite::on_all(narrow(ranks), |comm| {
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

/// A sum of buffers of the communicator, or of others.
fn sum_of_buffers(comm: &dyn Comm, shared: bool, in_place: bool) -> Vec<u32> {
    let count = 70_001;
    let value = |i: usize| 1.0 / (1.0 + (i * (comm.rank() as usize + 3)) as f32);
    let values: Vec<f32> = (0..count).map(value).collect();
    let fresh = || if shared { comm.buffer(count * 4) } else { Buffer::zeroed(count * 4) };
    let mut given = fresh();
    given.as_mut_slice::<f32>().copy_from_slice(&values);
    let buffer = if in_place { given.as_slice::<f32>().to_vec() } else { Vec::new() };
    let mut call = OwnedCall::all_reduce(DType::F32, ReduceOp::Average, fresh());
    match in_place {
        true => call.output.as_mut_slice::<f32>().copy_from_slice(&buffer),
        false => call.input = Some(given),
    }
    let call = comm.start(call).wait().unwrap();
    if let Some(input) = &call.input {
        assert_eq!(input.as_slice::<f32>(), values);
    }
    call.output.as_slice::<f32>().iter().map(|v| v.to_bits()).collect()
}

#[test]
fn buffers_of_the_communicator_give_the_same_bits_without_copies() {
    for ranks in [1, 2, 3, 5] {
        let all = suite::on_all(world(ranks), |comm| {
            let plain = sum_of_buffers(comm, false, true);
            for (shared, in_place) in [(true, true), (true, false), (comm.rank() != 1, true)] {
                assert_eq!(sum_of_buffers(comm, shared, in_place), plain);
            }
            // In a part of the world they are reached, too.
            let part = comm.split(Some(comm.rank() / 2), -i64::from(comm.rank())).unwrap().unwrap();
            assert_eq!(sum_of_buffers(&*part, true, true), sum_of_buffers(&*part, false, true));
            plain
        });
        assert!(all.iter().all(|sum| *sum == all[0]));
    }
}

fn errors(
    world: Vec<Background>,
    work: impl Fn(&Background) -> Result<(), CommError> + Sync,
) -> Vec<String> {
    suite::on_all(world, |comm| work(comm).unwrap_err().to_string())
}

#[test]
fn ranks_that_disagree_are_told_by_name() {
    for debug in [false, true] {
        let settings = Settings { debug, ..Settings::default() };
        let world = || shm::world_with(2, settings).unwrap();
        let sizes = errors(world(), |comm| {
            let mut data = vec![1.0f32; 3 + comm.rank() as usize];
            comm.all_reduce(&mut data, ReduceOp::Sum)
        });
        for (rank, error) in sizes.iter().enumerate() {
            let (ours, theirs) = (3 + rank, 4 - rank);
            let both = format!(
                "call 1 of this communicator: rank {rank} on this node called all-reduce of {ours} \
                 f32, sum, rank {} on this node called all-reduce of {theirs} f32, sum",
                1 - rank
            );
            assert!(error.contains(&both), "{error}");
        }
        let kinds = errors(world(), |comm| match comm.rank() {
            0 => comm.barrier(),
            _ => comm.all_gather(&[1u8], &mut [0, 0]),
        });
        assert!(
            kinds.iter().all(|e| e.contains("barrier") && e.contains("all-gather")),
            "{kinds:?}"
        );
    }
}

#[test]
fn a_root_that_goes_on_is_told_later() {
    let errors = errors(world(3), |comm| {
        let root = u32::from(comm.rank() == 2);
        loop {
            comm.broadcast(&mut [0i16; 3], root)?;
        }
    });
    assert!(errors.iter().all(|e| e.contains("root 0") && e.contains("root 1")), "{errors:?}");
}

#[test]
fn a_message_of_another_length_is_a_disagreement() {
    let ends = suite::on_all(world(2), |comm| match comm.rank() {
        0 => comm.send(&[1u8, 2], 1, 0).and_then(|()| comm.barrier()),
        _ => comm.receive(&mut [0u8; 3], 0, 0),
    });
    for end in ends {
        let error = end.unwrap_err().to_string();
        assert!(error.contains("send of 2 u8") && error.contains("receive of 3 u8"), "{error}");
    }
}

fn hasty() -> Settings {
    Settings { desync_after: Duration::from_millis(300), ..Settings::default() }
}

/// Not so hasty that it matters who begins first.
fn patient() -> Settings {
    Settings { desync_after: Duration::from_secs(2), ..Settings::default() }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let barrier = std::sync::Barrier::new(3);
    let ends = suite::on_all(shm::world_with(3, hasty()).unwrap(), |comm| {
        let end = if comm.rank() == 1 { Ok(()) } else { comm.barrier() };
        // It lives all the while, it just does not call.
        barrier.wait();
        end
    });
    for rank in [0, 2] {
        let error = ends[rank].clone().unwrap_err();
        assert!(
            matches!(&error, CommError::Late { missing, .. } if missing.len() == 1 && missing[0].rank == 1),
            "{error:?}"
        );
    }
}

#[test]
fn one_that_waits_for_a_third_is_not_blamed() {
    let barrier = std::sync::Barrier::new(3);
    let ends = suite::on_all(shm::world_with(3, patient()).unwrap(), |comm| {
        let end = match comm.rank() {
            0 => comm.receive(&mut [0u8], 2, 0),
            1 => comm.barrier(),
            _ => Ok(()),
        };
        barrier.wait();
        end
    });
    for end in &ends[..2] {
        let Err(CommError::Late { missing, .. }) = end else { panic!("{end:?}") };
        assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [2], "{end:?}");
    }
}

#[test]
fn a_root_that_waits_for_a_third_is_not_blamed() {
    let barrier = std::sync::Barrier::new(3);
    let ends = suite::on_all(shm::world_with(3, patient()).unwrap(), |comm| {
        let all = vec![1u8; if comm.rank() == 1 { 3000 } else { 0 }];
        let scatter = |_| comm.scatter(&all, &mut [0u8; 1000], 1);
        // The root is some calls ahead before it waits for the last.
        let end = (0..if comm.rank() == 2 { 1 } else { 100 }).try_for_each(scatter);
        barrier.wait();
        end
    });
    for end in &ends[..2] {
        let Err(CommError::Late { missing, .. }) = end else { panic!("{end:?}") };
        assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [2], "{end:?}");
    }
}

#[test]
fn one_that_waits_elsewhere_is_not_blamed() {
    suite::blame::one_that_waits_elsewhere_is_not_blamed(shm::world_with(3, patient()).unwrap());
}

#[test]
fn a_difference_that_nobody_waits_for_is_told_some_calls_later() {
    // All calls that follow are small, or some go through slots, and some do not.
    for sizes in [&[1; 20][..], &[500, 1, 1, 500, 500]] {
        let errors = errors(world(4), |comm| {
            // Rank 0 believes that it is the root, and so waits for nobody.
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

#[test]
fn one_that_waits_for_a_message_disagrees_with_a_collective() {
    let ends = suite::on_all(shm::world_with(2, hasty()).unwrap(), |comm| match comm.rank() {
        0 => comm.barrier(),
        _ => comm.receive(&mut [0u8], 0, 0),
    });
    for end in ends {
        let error = end.unwrap_err().to_string();
        assert!(error.contains("barrier") && error.contains("receive of 1 u8"), "{error}");
    }
}

#[test]
fn a_rank_that_gives_up_or_leaves_is_not_waited_for() {
    let ends = suite::on_all(world(3), |comm| match comm.rank() {
        2 => {
            comm.abort("it has had enough");
            Ok(())
        }
        _ => comm.barrier(),
    });
    for end in &ends[..2] {
        let error = end.clone().unwrap_err().to_string();
        assert!(error.contains("rank 2 on this node gave up: it has had enough"), "{error}");
    }
    let mut world = world(3);
    drop(world.pop());
    let ends = suite::on_all(world, |comm| comm.all_reduce(&mut [1u8; 100_000], ReduceOp::Sum));
    for end in ends {
        assert!(matches!(end.unwrap_err(), CommError::Lost { peer, .. } if peer.rank == 2));
    }
}

#[test]
fn work_in_the_background_ends_with_its_rank() {
    let ends = suite::on_all(world(2), |comm| {
        let buffer = comm.buffer(1 << 20);
        let call = OwnedCall::all_reduce(DType::F32, ReduceOp::Sum, buffer);
        if comm.rank() == 1 {
            comm.abort("not today");
        }
        comm.start(call).wait().map(drop)
    });
    assert!(ends.iter().all(|end| matches!(end, Err(CommError::Aborted { .. }))), "{ends:?}");
}
