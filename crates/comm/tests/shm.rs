//! Ranks of one node, through shared memory.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod suite;

use regatta_comm::background::Background;
use regatta_comm::shm;

fn world(ranks: u32) -> Vec<Background> {
    shm::world(ranks).unwrap()
}

#[test]
fn every_collective_gives_what_the_reference_gives() {
    suite::every_kind(&[1, 2, 3, 5, 8, 17], &[0, 1, 7, 100], world);
    suite::special(world);
}
