//! The same training whatever the number of ranks.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{Steps, together};
use regatta_comm::{Comm, fake};
use regatta_device::reference::Reference;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Stage;
use regatta_predict::shape::{Family, Shape};
use regatta_train::model::Model;
use regatta_train::parallel::Groups;
use regatta_train::state::Sharing;
use regatta_train::step::{Engine, Net};

const BATCH: usize = 24;
const SEQUENCE: usize = 4;
const STEPS: u64 = 6;

fn shape(family: Family) -> Shape {
    Shape {
        family,
        vocabulary: 13,
        context: SEQUENCE,
        width: 8,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        feed_forward: 16,
        tied: family == Family::Gpt2,
        bias: family == Family::Gpt2,
        norm_epsilon: 1e-5,
        rope_base: 100.0,
    }
}

/// The mean losses of the steps, as a rank of so many sees them.
fn losses(comm: Arc<dyn Comm>, family: Family, passes: usize) -> Vec<f64> {
    let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
    let groups = Groups::new(comm.clone(), Mesh::data(ranks)).unwrap();
    let net = Net::new(Model::new(shape(family)), Box::new(Reference));
    let stage = Stage::whole(&shape(family));
    let mut engine = Engine::new(net, groups, stage, &Sharing::default(), 11).unwrap();
    let recompute = |step| step % 2 == 1;
    let (count, batch, length, dropout) = (STEPS, BATCH, SEQUENCE, 0.1);
    let steps = Steps { count, batch, length, passes, dropout, recompute };
    steps.train(&mut engine, &*comm, rank, ranks).iter().map(|[loss, _]| *loss).collect()
}

fn on(ranks: u32, family: Family, passes: usize) -> Vec<f64> {
    let mut all = together(fake::world(ranks), |comm| losses(comm, family, passes));
    assert!(all.iter().all(|losses| *losses == all[0]), "{all:?}");
    all.swap_remove(0)
}

#[test]
fn any_number_of_ranks_has_the_losses_of_one() {
    for family in [Family::Gpt2, Family::Llama] {
        let alone = on(1, family, 1);
        assert!(alone[STEPS as usize - 1] < alone[0] - 0.05, "nothing was learnt: {alone:?}");
        for (ranks, passes) in [(1, 4), (2, 1), (2, 3), (3, 2), (4, 1), (8, 3)] {
            let shared = on(ranks, family, passes);
            for (one, many) in alone.iter().zip(&shared) {
                let off = (one - many).abs() / one;
                assert!(off < 1e-10, "{family:?} on {ranks}: {alone:?} {shared:?}");
            }
        }
    }
}
