//! Which ranks a timeout reports.

use std::time::{Duration, Instant};

use regatta_comm::{Collectives, Comm, CommError, Communicator, Result};

use super::on_all_ranks;

/// Rank 0 waits for rank 1, which waits in another communicator for rank 2, which makes no call.
/// The timeout must be long enough that the start order does not matter.
pub fn rank_waiting_in_another_communicator_is_not_reported<C: Comm>(world: Vec<C>) {
    let over = std::sync::Barrier::new(world.len());
    let ends = on_all_ranks(world, |comm| {
        let part = comm.split(Some(u32::from(comm.rank() > 0)), 0).unwrap().unwrap();
        let end = match comm.rank() {
            0 => comm.barrier(),
            1 => part.barrier(),
            _ => Ok(()),
        };
        // Keep all ranks alive while others wait.
        over.wait();
        end
    });
    // Rank 2 has rank 1 in the split communicator.
    for (end, last) in ends.iter().zip([2, 1]) {
        assert_waits_for(end, last);
    }
}

/// Stays alive without a call until the communicator has failed because of it. Timeouts exclude pauses of
/// the machine, so that a fixed delay might be over before.
pub fn make_no_call(comm: &Communicator) {
    let start = Instant::now();
    while !comm.has_failed() {
        assert!(start.elapsed() < Duration::from_secs(60), "the other ranks did not time out");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that a call timed out waiting for this rank only.
pub fn assert_waits_for(end: &Result, rank: u32) {
    let Err(CommError::Timeout { missing, .. }) = end else { panic!("{end:?}") };
    assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [rank], "{end:?}");
}
