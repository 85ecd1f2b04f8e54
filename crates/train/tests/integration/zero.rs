//! Training is independent of data parallelism, ZeRO stage, hybrid sharding and offloading; memory and
//! traffic match the formulas.

use std::sync::Arc;

use regatta_comm::Comm;
use regatta_comm::communicator::Communicator;
use regatta_device::reference::Reference;
use regatta_device::tensor::View;
use regatta_predict::axis::Axis;
use regatta_predict::cost::MemoryBytes;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Stage;
use regatta_predict::shape::{Family, ModelShape};
use regatta_predict::testing;
use regatta_testbed::{in_process, one_node};
use regatta_train::checkpoint::StateTensor;
use regatta_train::model::Model;
use regatta_train::offload::{OffloadTiers, Tier};
use regatta_train::parallel::{ProcessGroups, ZeroStage};
use regatta_train::state::{ParamInit, ShardingConfig};
use regatta_train::step::{DeviceModel, Engine, MicroBatch, StepError};

use crate::common::{ShortRun, TempDir, run_ranks, step_config, tokens};

const BATCH: usize = 12;
const SEQ_LEN: usize = 4;
const STEPS: u64 = 20;
const STAGES: [ZeroStage; 3] = [ZeroStage::One, ZeroStage::Two, ZeroStage::Three];
const FAMILIES: [Family; 2] = [Family::Gpt2, Family::Llama];

/// A training to compare with a single rank.
#[derive(Debug, Clone)]
struct Case {
    family: Family,
    layers: usize,
    steps: u64,
    batch: usize,
    ranks: usize,
    /// Size of the shard groups.
    shard: usize,
    micro_batches: usize,
    sharding: ShardingConfig,
}

/// The result of a rank.
struct Trained {
    losses: Vec<f64>,
    memory: MemoryBytes,
    /// Bytes sent in the shard group.
    sent: u64,
}

impl Case {
    /// On a single rank.
    fn new(family: Family) -> Self {
        let (layers, steps, batch, sharding) = (3, STEPS, BATCH, ShardingConfig::default());
        Self { family, layers, steps, batch, ranks: 1, shard: 1, micro_batches: 1, sharding }
    }

    /// On one shard group.
    fn zero(family: Family, zero: ZeroStage, ranks: usize, micro_batches: usize) -> Self {
        let sharding = ShardingConfig::zero(zero);
        Self { ranks, shard: ranks, micro_batches, sharding, ..Self::new(family) }
    }

    fn shape(&self) -> ModelShape {
        let (num_layers, seq_len, num_kv_heads) = (self.layers, SEQ_LEN, 1);
        ModelShape { num_layers, seq_len, num_kv_heads, ..testing::shape(self.family) }
    }

    fn engine(&self, comm: Arc<dyn Comm>, init: ParamInit) -> Result<Engine, StepError> {
        let mesh = Mesh { shard: self.shard, ..Mesh::data_parallel(self.ranks) };
        let (groups, shape) = (ProcessGroups::new(comm, mesh)?, self.shape());
        let stage = Stage::single(&shape);
        let device_model = DeviceModel::new(Model::new(shape), Box::new(Reference));
        Engine::new(device_model, groups, stage, &self.sharding, init)
    }

    /// On a single rank.
    fn single_rank_engine(&self) -> Result<Engine, StepError> {
        let comm = Arc::new(in_process::world(1).remove(0));
        self.engine(comm, ParamInit::Random { seed: 1 })
    }

    fn train(&self, comm: Arc<dyn Comm>) -> Trained {
        let mut engine = self.engine(comm.clone(), ParamInit::Random { seed: 11 }).unwrap();
        let training = ShortRun {
            steps: self.steps,
            batch: self.batch,
            seq_len: SEQ_LEN,
            micro_batches: self.micro_batches,
            dropout: 0.1,
            recompute: |step| step % 2 == 1,
        };
        let metrics = training.run(&mut engine, &*comm, comm.rank() as usize, self.ranks);
        let losses = metrics.iter().map(|step| step.loss).collect();
        let sent = engine.groups.sent(Axis::Shard).total_bytes();
        Trained { losses, memory: engine.state.memory(), sent }
    }

    fn run(&self) -> Trained {
        self.run_world(in_process::world(self.ranks as u32))
    }

    /// The result of rank 0; all ranks have the same losses.
    fn run_world(&self, world: Vec<Communicator>) -> Trained {
        let mut all = run_ranks(world, |comm| self.train(comm));
        assert!(all.iter().all(|rank| rank.losses == all[0].losses), "{self:?}");
        all.swap_remove(0)
    }

    /// The losses, which decrease by more than `least`.
    fn decreasing_losses(&self, least: f64) -> Vec<f64> {
        let losses = self.run().losses;
        assert!(losses[losses.len() - 1] < losses[0] - least, "no decrease: {losses:?}");
        losses
    }

    fn check(&self, single: &[f64]) {
        self.assert_losses_match(single, &self.run().losses);
    }

    fn assert_losses_match(&self, single: &[f64], losses: &[f64]) {
        assert_eq!(single.len(), losses.len());
        for (expected, loss) in single.iter().zip(losses) {
            let error = (expected - loss).abs() / expected;
            assert!(error < 1e-10, "{self:?}: {single:?} {losses:?}");
        }
    }
}

/// The losses of a single rank.
fn single_rank(family: Family) -> Vec<f64> {
    Case::new(family).decreasing_losses(0.2)
}

#[test]
fn data_parallel_ranks_have_the_losses_of_one_rank() {
    for family in FAMILIES {
        let single = Case { layers: 2, steps: 6, batch: 24, ..Case::new(family) };
        let losses = single.decreasing_losses(0.05);
        for (ranks, micro_batches) in [(1, 4), (2, 1), (2, 3), (3, 2), (4, 1), (8, 3)] {
            Case { ranks, shard: ranks, micro_batches, ..single.clone() }.check(&losses);
        }
    }
}

#[test]
fn every_zero_stage_has_the_losses_of_one_rank() {
    for family in FAMILIES {
        let single = single_rank(family);
        for zero in STAGES {
            for (ranks, micro_batches) in [(1, 2), (2, 1), (2, 3), (3, 2), (4, 1), (4, 3)] {
                Case::zero(family, zero, ranks, micro_batches).check(&single);
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
                Case { shard, ..Case::zero(family, zero, 4, micro_batches) }.check(&single);
            }
        }
    }
}

#[test]
fn losses_over_shared_memory_match() {
    let single = single_rank(Family::Gpt2);
    for zero in STAGES {
        for (ranks, shard) in [(2, 2), (4, 2)] {
            let case = Case { shard, ..Case::zero(Family::Gpt2, zero, ranks, 1) };
            let trained = case.run_world(one_node::world(ranks as u32));
            case.assert_losses_match(&single, &trained.losses);
        }
    }
}

#[test]
fn shard_group_traffic_matches_the_formulas() {
    for family in FAMILIES {
        for ranks in 2..=4 {
            let (all, _) = padded_lens(family, ranks);
            let len = |block| padded_len(&Case::new(family).shape(), block, ranks);
            // Layers are gathered twice, the head once, the embedding once more for a tied head.
            let tied = if family == Family::Gpt2 { len(0) } else { 0 };
            let gathered = 2 * all - len(0) - len(4) + tied;
            for (zero, sent) in [
                (ZeroStage::One, 2 * all),
                (ZeroStage::Two, 4 * all),
                (ZeroStage::Three, 3 * (all + gathered)),
            ] {
                let trained = Case::zero(family, zero, ranks, 3).run();
                let expected = STEPS as usize * sent / ranks * (ranks - 1) * size_of::<f64>();
                assert_eq!(trained.sent, expected as u64, "{family:?} {zero:?} {ranks}");
            }
        }
    }
}

fn offload(dir: &TempDir, optimizer: Tier, parameters: Tier) -> OffloadTiers {
    OffloadTiers { optimizer, parameters, dir: dir.0.clone() }
}

#[test]
fn offloaded_state_has_the_losses_of_one_rank_and_its_files_are_removed() {
    let dir = TempDir::new();
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
                let offload = offload(&dir, optimizer, parameters);
                let sharding = ShardingConfig { zero, offload };
                Case { ranks, shard, micro_batches, sharding, ..Case::new(family) }.check(&single);
                assert!(dir.0.read_dir().unwrap().next().is_none());
            }
        }
    }
}

/// Elements of a block, padded to equal shards.
fn padded_len(shape: &ModelShape, block: usize, ranks: usize) -> usize {
    shape.blocks()[block].padded_len().next_multiple_of(32 * ranks)
}

/// Elements of all blocks with padding, and of a rank's shards.
fn padded_lens(family: Family, ranks: usize) -> (usize, usize) {
    let shape = Case::new(family).shape();
    let blocks = 0..shape.blocks().len();
    let all: usize = blocks.map(|block| padded_len(&shape, block, ranks)).sum();
    (all, all / ranks)
}

/// Bytes of the largest blocks that are unsharded concurrently: embedding, head and two layers.
fn max_unsharded_bytes(family: Family, ranks: usize) -> usize {
    let len = |block| padded_len(&Case::new(family).shape(), block, ranks);
    (len(0) + len(4) + 2 * len(1)) * size_of::<f64>()
}

#[test]
fn memory_matches_the_formulas() {
    let size = size_of::<f64>();
    for family in FAMILIES {
        for ranks in 2..=4 {
            let (all, shard) = padded_lens(family, ranks);
            let of = |zero| {
                let MemoryBytes { params, grads, optimizer, .. } =
                    Case::zero(family, zero, ranks, 1).run().memory;
                assert_eq!(optimizer.transient, 0);
                let resident = [params, grads, optimizer].map(|bytes| bytes.resident as usize);
                (resident, [params, grads].map(|bytes| bytes.transient as usize))
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
    let dir = TempDir::new();
    for (ranks, family) in [(1, Family::Gpt2), (2, Family::Llama)] {
        let offload = offload(&dir, Tier::Disk, Tier::Disk);
        let sharding = ShardingConfig { zero: ZeroStage::Off, offload };
        let case = Case { layers: LAYERS, ranks, shard: ranks, sharding, ..Case::new(family) };
        let (shape, memory) = (case.shape(), case.run().memory);
        assert_eq!((memory.params.resident, memory.optimizer.resident), (0, 0));
        let shard = |block| padded_len(&shape, block, ranks) / ranks * size_of::<f64>();
        // One block in use, one read ahead, one written behind; the last write of a step may complete
        // in the next step only.
        let few = shard(0) + 2 * shard(LAYERS + 1) + 3 * shard(1);
        assert!(memory.optimizer.transient as usize <= 2 * few, "{memory:?}");
        // Sharded parameters are unsharded while in use.
        let unsharded = if ranks > 1 { shard(0) + shard(LAYERS + 1) + 2 * shard(1) } else { 0 };
        assert!(memory.params.transient as usize <= few + ranks * unsharded, "{memory:?}");
        let all: usize = (0..LAYERS + 2).map(shard).sum();
        assert!(few < all / 2, "{few} of {all}");
    }
}

/// A GPT-2 on a single rank with offloaded state.
fn offloaded_engine(offload: OffloadTiers) -> Result<Engine, StepError> {
    let sharding = ShardingConfig { zero: ZeroStage::Off, offload };
    Case { sharding, ..Case::new(Family::Gpt2) }.single_rank_engine()
}

#[test]
fn an_unusable_swap_directory_is_named() {
    let dir = TempDir::new();
    std::fs::write(&dir.0, "a file").unwrap();
    let error = offloaded_engine(offload(&dir, Tier::Disk, Tier::Device)).err().unwrap();
    let path = dir.0.join("moments-0").display().to_string();
    assert!(error.to_string().contains(&path), "{error}");
    std::fs::remove_file(&dir.0).unwrap();
}

#[test]
fn a_truncated_swap_file_fails_the_step_and_is_named() {
    let dir = TempDir::new();
    for (optimizer, parameters, name) in
        [(Tier::Disk, Tier::Device, "moments-0"), (Tier::Device, Tier::Disk, "parameters-0")]
    {
        let mut engine = offloaded_engine(offload(&dir, optimizer, parameters)).unwrap();
        let [inputs, targets] = &[0, 1].map(|shift| tokens(SEQ_LEN, 0, 0..BATCH, shift));
        let micro_batch = MicroBatch { inputs, targets, batch: BATCH, first_sequence: 0 };
        let step = |engine: &mut Engine, step| {
            let config = step_config(step, BATCH * SEQ_LEN, 0.1, step > 0);
            engine.step(&config, std::iter::once(micro_batch))
        };
        step(&mut engine, 0).unwrap();
        // Reads complete after pending writes.
        for kind in StateTensor::ALL {
            let head = engine.device_model.model.head_block();
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
            let engine = Case::zero(family, zero, 4, 1).engine(comm, init).unwrap();
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
    let dir = TempDir::new();
    for family in FAMILIES {
        let full = Case::new(family).single_rank_engine().unwrap();
        let full = full.state.all_params().unwrap();
        let full: Vec<Vec<f64>> = full.iter().map(|view| view.as_slice().to_vec()).collect();
        for (zero, tier) in [
            (ZeroStage::One, Tier::Device),
            (ZeroStage::Three, Tier::Device),
            (ZeroStage::Off, Tier::Disk),
        ] {
            let sharding = ShardingConfig { zero, offload: offload(&dir, Tier::Device, tier) };
            let case = Case { sharding, ..Case::zero(family, zero, 3, 1) };
            run_ranks(in_process::world(3), |comm| {
                let mut engine = case.engine(comm, ParamInit::Random { seed: 1 }).unwrap();
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
