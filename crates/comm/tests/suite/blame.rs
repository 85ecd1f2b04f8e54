//! Who is named where ranks wait for each other.

use regatta_comm::{Collectives, Comm, CommError};

use super::on_all;

/// Rank 0 waits for rank 1, and that in another communicator for rank 2, which calls nothing. The
/// ranks must be patient enough that it does not matter who of them begins first.
pub fn one_that_waits_elsewhere_is_not_blamed<C: Comm>(world: Vec<C>) {
    let over = std::sync::Barrier::new(world.len());
    let ends = on_all(world, |comm| {
        let part = comm.split(Some(u32::from(comm.rank() > 0)), 0).unwrap().unwrap();
        let end = match comm.rank() {
            0 => comm.barrier(),
            1 => part.barrier(),
            _ => Ok(()),
        };
        // Nobody has left while others wait.
        over.wait();
        end
    });
    // Rank 2 is the second of the part.
    for (end, last) in ends.iter().zip([2, 1]) {
        let Err(CommError::Late { missing, .. }) = end else { panic!("{end:?}") };
        assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [last], "{end:?}");
    }
}
