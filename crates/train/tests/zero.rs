//! Training is independent of ZeRO stage, hybrid sharding and offloading; memory and traffic match the
//! formulas.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Training, run_ranks, step_config, tokens};
use regatta_comm::communicator::Communicator;
use regatta_comm::{Comm, in_process, shm};
use regatta_device::reference::Reference;
use regatta_device::tensor::View;
use regatta_predict::axis::Axis;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Stage;
use regatta_predict::shape::{Family, ModelShape};
use regatta_train::checkpoint::StateTensor;
use regatta_train::model::Model;
use regatta_train::offload::{OffloadTiers, Tier};
use regatta_train::parallel::{ProcessGroups, ZeroStage};
use regatta_train::state::{ParamInit, ShardingConfig, StateMemory};
use regatta_train::step::{Engine, MicroBatch, Net, StepError};

const BATCH: usize = 12;
const SEQ_LEN: usize = 4;
const STEPS: u64 = 20;
const STAGES: [ZeroStage; 3] = [ZeroStage::One, ZeroStage::Two, ZeroStage::Three];

fn shape(family: Family) -> ModelShape {
    shape_with_layers(family, 3)
}

fn shape_with_layers(family: Family, layers: usize) -> ModelShape {
    ModelShape {
        family,
        num_layers: layers,
        vocab_size: 13,
        seq_len: SEQ_LEN,
        hidden_size: 8,
        num_heads: 2,
        num_kv_heads: 1,
        intermediate_size: 16,
        tie_embeddings: family == Family::Gpt2,
        bias: family == Family::Gpt2,
        norm_eps: 1e-5,
        rope_theta: 100.0,
    }
}

/// A layout to compare with a single rank.
#[derive(Debug, Clone)]
struct Case {
    family: Family,
    ranks: usize,
    /// Size of the shard groups.
    shard: usize,
    micro_batches: usize,
    sharding: ShardingConfig,
}

/// The result of a rank.
struct Trained {
    losses: Vec<f64>,
    memory: StateMemory,
    /// Bytes sent in the shard group.
    sent: u64,
}

fn train(comm: Arc<dyn Comm>, shape: ModelShape, case: &Case) -> Trained {
    let Case { ranks, shard, micro_batches, .. } = *case;
    let rank = comm.rank() as usize;
    let mesh = Mesh { shard, ..Mesh::data_parallel(ranks) };
    let groups = ProcessGroups::new(comm.clone(), mesh).unwrap();
    let net = Net::new(Model::new(shape), Box::new(Reference));
    let stage = Stage::single(&net.model.shape);
    let init = ParamInit::Random { seed: 11 };
    let mut engine = Engine::new(net, groups, stage, &case.sharding, init).unwrap();
    let training = Training {
        steps: STEPS,
        batch: BATCH,
        seq_len: SEQ_LEN,
        micro_batches,
        dropout: 0.1,
        recompute: |step| step % 2 == 1,
    };
    let metrics = training.run(&mut engine, &*comm, rank, ranks);
    let losses = metrics.iter().map(|step| step.loss).collect();
    let sent = engine.groups.sent(Axis::Shard).total_bytes();
    Trained { losses, memory: engine.state.memory(), sent }
}

fn run(case: &Case) -> Trained {
    run_shape(&shape(case.family), case)
}

fn run_shape(shape: &ModelShape, case: &Case) -> Trained {
    run_world(in_process::world(case.ranks as u32), shape, case)
}

/// The result of rank 0; all ranks have the same losses.
fn run_world(world: Vec<Communicator>, shape: &ModelShape, case: &Case) -> Trained {
    let mut all = run_ranks(world, |comm| train(comm, shape.clone(), case));
    assert!(all.iter().all(|rank| rank.losses == all[0].losses), "{case:?}");
    all.swap_remove(0)
}

fn check(single: &[f64], case: &Case) {
    assert_losses_match(single, &run(case).losses, case);
}

fn assert_losses_match(single: &[f64], losses: &[f64], case: &Case) {
    assert_eq!(single.len(), losses.len());
    for (expected, loss) in single.iter().zip(losses) {
        let error = (expected - loss).abs() / expected;
        assert!(error < 1e-10, "{case:?}: {single:?} {losses:?}");
    }
}

/// The losses of a single rank.
fn single_rank(family: Family) -> Vec<f64> {
    let sharding = ShardingConfig::default();
    let losses = run(&Case { family, ranks: 1, shard: 1, micro_batches: 1, sharding }).losses;
    assert!(losses[STEPS as usize - 1] < losses[0] - 0.2, "loss did not decrease: {losses:?}");
    losses
}

fn single_rank_engine(net: Net, sharding: &ShardingConfig) -> Result<Engine, StepError> {
    let (groups, stage) = (ProcessGroups::single_rank(), Stage::single(&net.model.shape));
    Engine::new(net, groups, stage, sharding, ParamInit::Random { seed: 1 })
}

const FAMILIES: [Family; 2] = [Family::Gpt2, Family::Llama];

#[test]
fn every_zero_stage_has_the_losses_of_one_rank() {
    for family in FAMILIES {
        let single = single_rank(family);
        for zero in STAGES {
            for (ranks, micro_batches) in [(1, 2), (2, 1), (2, 3), (3, 2), (4, 1), (4, 3)] {
                let sharding = ShardingConfig::zero(zero);
                check(&single, &Case { family, ranks, shard: ranks, micro_batches, sharding });
            }
        }
    }
}

#[test]
fn hybrid_sharding_has_the_losses_of_one_rank() {
    for family in FAMILIES {
        let single = single_rank(family);
        for zero in STAGES {
            for (shard, micro_batches) in [(2, 1), (2, 3), (1, 1)] {
                let sharding = ShardingConfig::zero(zero);
                check(&single, &Case { family, ranks: 4, shard, micro_batches, sharding });
            }
        }
    }
}

#[test]
fn losses_over_shared_memory_match() {
    let family = Family::Gpt2;
    let single = single_rank(family);
    for zero in STAGES {
        for (ranks, shard) in [(2, 2), (4, 2)] {
            let sharding = ShardingConfig::zero(zero);
            let case = Case { family, ranks, shard, micro_batches: 1, sharding };
            let world = shm::world(ranks as u32).unwrap();
            let trained = run_world(world, &shape(family), &case);
            assert_losses_match(&single, &trained.losses, &case);
        }
    }
}

#[test]
fn shard_group_traffic_matches_the_formulas() {
    for family in FAMILIES {
        for ranks in 2..=4 {
            let (all, _) = padded_lens(family, ranks);
            let size = size_of::<f64>();
            let len = |block: usize| {
                shape(family).blocks()[block].padded_len().next_multiple_of(32 * ranks)
            };
            // Layers are gathered twice, the head once, the embedding once more for a tied head.
            let tied = if family == Family::Gpt2 { len(0) } else { 0 };
            let gathered = 2 * all - len(0) - len(4) + tied;
            for (zero, micro_batches, sent) in [
                (ZeroStage::One, 3, 2 * all),
                (ZeroStage::Two, 3, 4 * all),
                (ZeroStage::Three, 3, 3 * (all + gathered)),
            ] {
                let sharding = ShardingConfig::zero(zero);
                let trained = run(&Case { family, ranks, shard: ranks, micro_batches, sharding });
                let expected = STEPS as usize * sent / ranks * (ranks - 1) * size;
                assert_eq!(trained.sent, expected as u64, "{family:?} {zero:?} {ranks}");
            }
        }
    }
}

/// A temporary directory.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("regatta-zero-{name}-{}", std::process::id())))
    }

    fn offload(&self, optimizer: Tier, parameters: Tier) -> OffloadTiers {
        OffloadTiers { optimizer, parameters, dir: self.0.clone() }
    }

    fn is_empty(&self) -> bool {
        Path::new(&self.0).read_dir().unwrap().next().is_none()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn offloaded_state_has_the_losses_of_one_rank_and_its_files_are_removed() {
    let dir = TempDir::new("same");
    for family in FAMILIES {
        let single = single_rank(family);
        for (optimizer, parameters) in
            [(Tier::Disk, Tier::Device), (Tier::Host, Tier::Disk), (Tier::Disk, Tier::Disk)]
        {
            for (zero, ranks, shard, micro_batches) in [
                (ZeroStage::Off, 1, 1, 2),
                (ZeroStage::Off, 2, 2, 1),
                (ZeroStage::One, 3, 3, 1),
                (ZeroStage::Three, 2, 2, 3),
                (ZeroStage::Two, 4, 2, 1),
            ] {
                let offload = dir.offload(optimizer, parameters);
                let sharding = ShardingConfig { zero, offload };
                check(&single, &Case { family, ranks, shard, micro_batches, sharding });
                assert!(dir.is_empty());
            }
        }
    }
}

/// Elements of all blocks with padding, and of a rank's shards.
fn padded_lens(family: Family, ranks: usize) -> (usize, usize) {
    let lens = shape(family).blocks().into_iter().map(|block| block.padded_len());
    let shards: usize = lens.map(|len| len.next_multiple_of(32 * ranks) / ranks).sum();
    (shards * ranks, shards)
}

/// Bytes of the largest blocks that are unsharded concurrently: embedding, head and two layers.
fn max_unsharded_bytes(family: Family, ranks: usize) -> usize {
    let bytes = |block: usize| {
        shape(family).blocks()[block].padded_len().next_multiple_of(32 * ranks) * size_of::<f64>()
    };
    bytes(0) + bytes(4) + 2 * bytes(1)
}

#[test]
fn memory_matches_the_formulas() {
    let size = size_of::<f64>();
    for family in FAMILIES {
        for ranks in 2..=4 {
            let (all, shard) = padded_lens(family, ranks);
            let of = |zero| {
                let (sharding, micro_batches) = (ShardingConfig::zero(zero), 1);
                let case = Case { family, ranks, shard: ranks, micro_batches, sharding };
                let StateMemory { parameters, gradients, moments } = run(&case).memory;
                assert_eq!(moments.transient, 0);
                let resident = [parameters.resident, gradients.resident, moments.resident];
                (resident, [parameters.transient, gradients.transient])
            };
            assert_eq!(of(ZeroStage::One), ([all * size, all * size, 2 * shard * size], [0, 0]));
            let (resident, [none, some]) = of(ZeroStage::Two);
            assert_eq!((resident, none), ([all * size, shard * size, 2 * shard * size], 0));
            let max = max_unsharded_bytes(family, ranks);
            assert!(some > 0 && some <= max, "{some} bytes of gradients, more than {max}");
            let (resident, [params, grads]) = of(ZeroStage::Three);
            assert_eq!(resident, [shard * size, shard * size, 2 * shard * size]);
            assert!(params > 0 && params <= max && grads == some, "{params} {grads}, not {max}");
        }
    }
}

#[test]
fn few_blocks_of_offloaded_state_are_in_memory() {
    const LAYERS: usize = 9;
    let dir = TempDir::new("memory");
    for (ranks, family) in [(1, Family::Gpt2), (2, Family::Llama)] {
        let shape = shape_with_layers(family, LAYERS);
        let offload = dir.offload(Tier::Disk, Tier::Disk);
        let sharding = ShardingConfig { zero: ZeroStage::Off, offload };
        let case = Case { family, ranks, shard: ranks, micro_batches: 1, sharding };
        let memory = run_shape(&shape, &case).memory;
        assert_eq!((memory.parameters.resident, memory.moments.resident), (0, 0));
        let shard = |block: usize| {
            shape.blocks()[block].padded_len().next_multiple_of(32 * ranks) / ranks
                * size_of::<f64>()
        };
        // One block in use, one read ahead, one written behind; the last write of a step may complete
        // in the next step only.
        let few = shard(0) + 2 * shard(LAYERS + 1) + 3 * shard(1);
        assert!(memory.moments.transient <= 2 * few, "{memory:?}");
        // Sharded parameters are unsharded while in use.
        let unsharded = if ranks > 1 { shard(0) + shard(LAYERS + 1) + 2 * shard(1) } else { 0 };
        assert!(memory.parameters.transient <= few + ranks * unsharded, "{memory:?}");
        let all: usize = (0..LAYERS + 2).map(shard).sum();
        assert!(few < all / 2, "{few} of {all}");
    }
}

#[test]
fn an_unusable_swap_directory_is_named() {
    let dir = TempDir::new("refused");
    std::fs::write(&dir.0, "a file").unwrap();
    let net = Net::new(Model::new(shape(Family::Gpt2)), Box::new(Reference));
    let offload = dir.offload(Tier::Disk, Tier::Device);
    let sharding = ShardingConfig { zero: ZeroStage::Off, offload };
    let error = single_rank_engine(net, &sharding).err().unwrap().to_string();
    assert!(error.contains("regatta-zero-refused") && error.contains("moments-0"), "{error}");
    std::fs::remove_file(&dir.0).unwrap();
}

#[test]
fn a_truncated_swap_file_fails_the_step_and_is_named() {
    let dir = TempDir::new("cut");
    for (optimizer, parameters, name) in
        [(Tier::Disk, Tier::Device, "moments-0"), (Tier::Device, Tier::Disk, "parameters-0")]
    {
        let net = Net::new(Model::new(shape(Family::Gpt2)), Box::new(Reference));
        let offload = dir.offload(optimizer, parameters);
        let sharding = ShardingConfig { zero: ZeroStage::Off, offload };
        let mut engine = single_rank_engine(net, &sharding).unwrap();
        let (inputs, targets) = (tokens(SEQ_LEN, 0, 0..BATCH, 0), tokens(SEQ_LEN, 0, 0..BATCH, 1));
        let (inputs, targets, first_sequence) = (&inputs[..], &targets[..], 0);
        let micro_batch = MicroBatch { inputs, targets, batch: BATCH, first_sequence };
        let step = |engine: &mut Engine, step| {
            let config = step_config(step, BATCH * SEQ_LEN, 0.1, step > 0);
            engine.step(&config, std::iter::once(micro_batch))
        };
        step(&mut engine, 0).unwrap();
        // Reads complete after pending writes.
        for kind in StateTensor::ALL {
            let head = engine.net.model.head_block();
            engine.state.read_elements(head, kind, 0, &mut [0.0]).unwrap();
        }
        let file = std::fs::OpenOptions::new().write(true).open(dir.0.join(name)).unwrap();
        file.set_len(64).unwrap();
        let error = step(&mut engine, 1).unwrap_err();
        let StepError::Offload(why) = &error else { panic!("{error}") };
        assert!(why.to_string().contains(&format!("{name}: ")), "{why}");
        assert!(why.to_string().contains("cannot read"), "{why}");
    }
}

#[test]
fn zero_3_ranks_generate_their_shards_only_and_nothing_before_a_restore() {
    let family = Family::Gpt2;
    let generated = |zero, init| -> Vec<usize> {
        run_ranks(in_process::world(4), |comm| {
            let mesh = Mesh { shard: 4, ..Mesh::data_parallel(4) };
            let groups = ProcessGroups::new(comm, mesh).unwrap();
            let net = Net::new(Model::new(shape(family)), Box::new(Reference));
            let stage = Stage::single(&net.model.shape);
            let sharding = ShardingConfig::zero(zero);
            let engine = Engine::new(net, groups, stage, &sharding, init).unwrap();
            engine.state.generated_elements()
        })
    };
    let random = ParamInit::Random { seed: 1 };
    let replicated = generated(ZeroStage::Two, random);
    let full = replicated[0];
    assert!(full > 0 && replicated.iter().all(|elements| *elements == full), "{replicated:?}");
    let sharded = generated(ZeroStage::Three, random);
    assert_eq!(sharded.iter().sum::<usize>(), full, "{sharded:?}");
    let (_, shard_len) = padded_lens(family, 4);
    assert!(sharded.iter().all(|elements| *elements <= shard_len), "{sharded:?} of {shard_len}");
    assert_eq!(generated(ZeroStage::Three, ParamInit::FromCheckpoint), [0; 4]);
    assert_eq!(generated(ZeroStage::Off, ParamInit::FromCheckpoint), [0; 4]);
}

#[test]
fn initial_parameters_are_the_same_for_every_zero_stage_and_tier() {
    let dir = TempDir::new("init");
    for family in FAMILIES {
        let full = single_rank_engine(
            Net::new(Model::new(shape(family)), Box::new(Reference)),
            &ShardingConfig::default(),
        );
        let full = full.unwrap();
        let full: Vec<Vec<f64>> =
            full.state.all_params().unwrap().iter().map(|view| view.as_slice().to_vec()).collect();
        for (zero, tier) in [
            (ZeroStage::One, Tier::Device),
            (ZeroStage::Three, Tier::Device),
            (ZeroStage::Off, Tier::Disk),
        ] {
            let offload = dir.offload(Tier::Device, tier);
            let sharding = ShardingConfig { zero, offload };
            run_ranks(in_process::world(3), |comm| {
                let mesh = Mesh { shard: 3, ..Mesh::data_parallel(3) };
                let groups = ProcessGroups::new(comm, mesh).unwrap();
                let net = Net::new(Model::new(shape(family)), Box::new(Reference));
                let stage = Stage::single(&net.model.shape);
                let init = ParamInit::Random { seed: 1 };
                let mut engine = Engine::new(net, groups, stage, &sharding, init).unwrap();
                for block in engine.state.local_blocks() {
                    let shard = engine.state.shards[block].clone();
                    let own = |view: View<'_>| view.as_slice::<f64>().to_vec();
                    let own = engine.state.with_shard(block, StateTensor::Parameter, own).unwrap();
                    let element = |at: usize| full[block].get(at).copied().unwrap_or(0.0);
                    let expected: Vec<f64> = shard.map(element).collect();
                    assert_eq!(own, expected, "{family:?} {zero:?} {tier:?} block {block}");
                }
            });
        }
    }
}
