//! Training is independent of the number of data-parallel ranks.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{Training, run_ranks};
use regatta_comm::{Comm, in_process};
use regatta_device::reference::Reference;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Stage;
use regatta_predict::shape::{Family, ModelShape};
use regatta_train::model::Model;
use regatta_train::parallel::ProcessGroups;
use regatta_train::state::{ParamInit, ShardingConfig};
use regatta_train::step::{Engine, Net};

const BATCH: usize = 24;
const SEQ_LEN: usize = 4;
const STEPS: u64 = 6;

fn shape(family: Family) -> ModelShape {
    ModelShape {
        family,
        vocab_size: 13,
        seq_len: SEQ_LEN,
        hidden_size: 8,
        num_layers: 2,
        num_heads: 2,
        num_kv_heads: 1,
        intermediate_size: 16,
        tie_embeddings: family == Family::Gpt2,
        bias: family == Family::Gpt2,
        norm_eps: 1e-5,
        rope_theta: 100.0,
    }
}

/// The losses on one rank.
fn losses(comm: Arc<dyn Comm>, family: Family, micro_batches: usize) -> Vec<f64> {
    let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
    let groups = ProcessGroups::new(comm.clone(), Mesh::data_parallel(ranks)).unwrap();
    let net = Net::new(Model::new(shape(family)), Box::new(Reference));
    let (stage, config) = (Stage::single(&shape(family)), ShardingConfig::default());
    let init = ParamInit::Random { seed: 11 };
    let mut engine = Engine::new(net, groups, stage, &config, init).unwrap();
    let training = Training {
        steps: STEPS,
        batch: BATCH,
        seq_len: SEQ_LEN,
        micro_batches,
        dropout: 0.1,
        recompute: |step| step % 2 == 1,
    };
    training.run(&mut engine, &*comm, rank, ranks).iter().map(|step| step.loss).collect()
}

fn train(ranks: u32, family: Family, micro_batches: usize) -> Vec<f64> {
    let mut all = run_ranks(in_process::world(ranks), |comm| losses(comm, family, micro_batches));
    assert!(all.iter().all(|losses| *losses == all[0]), "{all:?}");
    all.swap_remove(0)
}

#[test]
fn losses_match_one_rank_for_any_number_of_ranks() {
    for family in [Family::Gpt2, Family::Llama] {
        let single = train(1, family, 1);
        assert!(single[STEPS as usize - 1] < single[0] - 0.05, "loss did not decrease: {single:?}");
        for (ranks, micro_batches) in [(1, 4), (2, 1), (2, 3), (3, 2), (4, 1), (8, 3)] {
            let losses = train(ranks, family, micro_batches);
            for (expected, loss) in single.iter().zip(&losses) {
                let error = (expected - loss).abs() / expected;
                assert!(error < 1e-10, "{family:?} on {ranks} ranks: {single:?} {losses:?}");
            }
        }
    }
}
