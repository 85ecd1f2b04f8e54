//! Offloading on a GPU changes no result. The GPU is a fake, which runs copies of pinned memory as late as
//! possible and detects accesses by two streams without an order.

use std::path::Path;
use std::sync::Arc;

use regatta_comm::Comm;
use regatta_device::DeviceError;
use regatta_device::ops::{Device, GPU_MAX_LOGITS};
use regatta_device::precision::Precision;
use regatta_kernels_cpu::Cpu;
use regatta_kernels_cuda::fake::{FakeDevice, Probe};
use regatta_predict::cost::{CostOptions, rank_cost};
use regatta_predict::layout::{ParallelLayout, StateTiers};
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Stage;
use regatta_predict::shape::{Family, ModelShape};
use regatta_predict::testing;
use regatta_testbed::in_process;
use regatta_train::checkpoint::StateTensor;
use regatta_train::data::DataSpec;
use regatta_train::metrics::Event;
use regatta_train::offload::{OffloadError, OffloadTiers, Tier};
use regatta_train::parallel::{ProcessGroups, ZeroStage};
use regatta_train::state::{ParamInit, ShardingConfig};
use regatta_train::step::{DeviceModel, Engine, MicroBatch, StepError};
use regatta_train::training::{self, TrainError};

use crate::common::{self, LossAndNorm, ShortRun, TempDir, run_ranks, step_config, tokens};
use crate::staged_comm::StagedComm;

const SEED: u64 = 11;

/// Tiers of optimizer state and parameters.
const TIERS: [(Tier, Tier); 7] = [
    (Tier::Host, Tier::Device),
    (Tier::Device, Tier::Host),
    (Tier::Host, Tier::Host),
    (Tier::Disk, Tier::Device),
    (Tier::Device, Tier::Disk),
    (Tier::Disk, Tier::Disk),
    (Tier::Disk, Tier::Host),
];

const RUN: ShortRun = ShortRun {
    steps: 3,
    batch: 4,
    seq_len: 8,
    micro_batches: 2,
    dropout: 0.1,
    recompute: |step| step % 2 == 1,
};

fn shape(family: Family) -> ModelShape {
    let num_kv_heads = if family == Family::Llama { 1 } else { 2 };
    let (hidden_size, intermediate_size) = (32, 48);
    ModelShape {
        hidden_size,
        intermediate_size,
        num_kv_heads,
        num_layers: 5,
        ..testing::shape(family)
    }
}

fn gpu(precision: Precision) -> FakeDevice {
    FakeDevice::new(precision)
}

/// A training with offloaded state.
#[derive(Debug, Clone)]
struct Case {
    shape: ModelShape,
    precision: Precision,
    tiers: (Tier, Tier),
    zero: ZeroStage,
    ranks: usize,
    tiles: usize,
}

impl Case {
    fn new(family: Family, precision: Precision) -> Self {
        let (tiers, zero) = ((Tier::Device, Tier::Device), ZeroStage::Off);
        Self { shape: shape(family), precision, tiers, zero, ranks: 1, tiles: 1 }
    }

    fn sharding(&self, dir: &Path) -> ShardingConfig {
        let (optimizer, parameters) = self.tiers;
        let offload = OffloadTiers { optimizer, parameters, dir: dir.to_owned() };
        ShardingConfig { zero: self.zero, offload }
    }

    fn engine(
        &self,
        fake: FakeDevice,
        comm: Arc<dyn Comm>,
        dir: &Path,
    ) -> (Result<Engine, StepError>, Probe) {
        let groups = ProcessGroups::new(comm, Mesh::data_parallel(self.ranks)).unwrap();
        let (device, probe) = fake.open_with_probe().unwrap();
        let device = Box::new(device.deterministic_results());
        let model = DeviceModel::parallel(self.shape.clone(), &groups, false, self.tiles, device);
        let (stage, init) = (Stage::single(&self.shape), ParamInit::Random { seed: SEED });
        (Engine::new(model, groups, stage, &self.sharding(dir), init), probe)
    }

    fn single_rank(&self, fake: FakeDevice, dir: &Path) -> (Result<Engine, StepError>, Probe) {
        self.engine(fake, Arc::new(in_process::world(1).remove(0)), dir)
    }

    /// The losses and gradient norms, the same on all ranks. Nothing leaks.
    fn train(&self) -> Vec<LossAndNorm> {
        let dir = TempDir::new();
        let rank = |comm| {
            let comm: Arc<dyn Comm> = Arc::new(StagedComm::new(comm));
            let (engine, probe) = self.engine(gpu(self.precision), comm.clone(), &dir.0);
            let mut engine = engine.unwrap();
            let losses = RUN.run(&mut engine, &*comm, comm.rank() as usize, self.ranks);
            let pinned = engine.state.memory().pinned as usize;
            assert!(probe.peak_pinned_bytes() >= pinned, "{self:?}");
            drop((engine, comm));
            assert_eq!(probe.allocations(), 0, "{self:?}");
            losses
        };
        let mut all = run_ranks(in_process::world(self.ranks as u32), rank);
        assert!(all.iter().all(|rank| *rank == all[0]), "{self:?}: {all:?}");
        all.swap_remove(0)
    }
}

#[test]
fn offloading_changes_no_loss() {
    for (family, precision) in [
        (Family::Gpt2, Precision::F32),
        (Family::Gpt2, Precision::Bf16),
        (Family::Llama, Precision::Bf16),
    ] {
        let resident = Case::new(family, precision);
        let expected = resident.train();
        for tiers in TIERS {
            let offloaded = Case { tiers, ..resident.clone() };
            assert_eq!(offloaded.train(), expected, "{offloaded:?}");
        }
    }
}

#[test]
fn offloading_changes_no_loss_of_data_parallel_ranks() {
    for precision in [Precision::F32, Precision::Bf16] {
        let ranks = Case { ranks: 2, ..Case::new(Family::Gpt2, precision) };
        for zero in [ZeroStage::Off, ZeroStage::One, ZeroStage::Two, ZeroStage::Three] {
            let resident = Case { zero, ..ranks.clone() };
            let expected = resident.train();
            for tiers in [TIERS[0], TIERS[2], TIERS[5]] {
                let offloaded = Case { tiers, ..resident.clone() };
                let found = offloaded.train();
                // Offloaded parameters are sharded: gradients are summed in another order.
                if tiers.1 == Tier::Device || zero >= ZeroStage::Two {
                    assert_eq!(found, expected, "{offloaded:?}");
                    continue;
                }
                for (found, expected) in found.iter().zip(&expected) {
                    let error = (found.loss - expected.loss).abs() / expected.loss;
                    assert!(error < 1e-4, "{offloaded:?}: {found:?} {expected:?}");
                }
            }
        }
    }
}

#[test]
fn offloading_changes_no_loss_with_tiles() {
    for precision in [Precision::F32, Precision::Bf16] {
        let resident = Case { tiles: 3, ..Case::new(Family::Llama, precision) };
        let expected = resident.train();
        for tiers in [TIERS[2], TIERS[5]] {
            let offloaded = Case { tiers, ..resident.clone() };
            assert_eq!(offloaded.train(), expected, "{offloaded:?}");
        }
    }
}

/// Parameters, gradients, moments and pinned memory.
#[test]
fn memory_and_disk_traffic_are_those_of_the_cost_model() {
    let plan = common::config(&["batch=4 seq_len=8 micro_batch=2"]).validate(1).unwrap();
    for precision in [Precision::F32, Precision::Bf16] {
        let bytes = precision.activation_bytes();
        let options = CostOptions::gpu(bytes, Some(GPU_MAX_LOGITS), false);
        let mut peaks = Vec::new();
        for tiers in TIERS.into_iter().chain([(Tier::Device, Tier::Device)]) {
            let case = Case { tiers, ..Case::new(Family::Gpt2, precision) };
            let offload = StateTiers { optimizer: tiers.0, params: tiers.1 };
            let plan = ParallelLayout { offload, ..plan };
            let expected = rank_cost(&case.shape, &plan, options, 0).unwrap();
            let dir = TempDir::new();
            let (engine, probe) = case.single_rank(gpu(precision), &dir.0);
            let mut engine = engine.unwrap();
            let run = |engine: &mut Engine| {
                let run = ShortRun { steps: 1, dropout: 0.0, recompute: |_| false, ..RUN };
                run.run(engine, &in_process::world(1)[0], 0, 1);
            };
            run(&mut engine);
            let before = engine.state.io_bytes();
            run(&mut engine);
            assert_eq!(engine.state.io_bytes() - before, expected.disk_io, "{case:?}");
            let found = engine.state.memory();
            let state = [found.params, found.grads, found.optimizer];
            let memory = expected.memory;
            let predicted = [memory.params, memory.grads, memory.optimizer];
            assert_eq!(
                (state.map(|bytes| bytes.peak()), found.pinned),
                (predicted.map(|bytes| bytes.peak()), memory.pinned),
                "{case:?}"
            );
            peaks.push((memory.state(), probe.peak_bytes()));
        }
        // What the cost model says is saved is saved.
        let (state, peak) = peaks.pop().unwrap();
        for (offloaded_state, offloaded_peak) in peaks {
            let (saved, expected) = (peak - offloaded_peak, state - offloaded_state);
            assert!(saved as u64 >= expected * 9 / 10, "{saved} of {expected} bytes are saved");
        }
    }
}

/// The error of the start or of a step of a training with everything offloaded.
fn failure(fake: FakeDevice, tier: Tier, dir: &Path) -> StepError {
    let case = Case { tiers: (tier, tier), ..Case::new(Family::Gpt2, Precision::Bf16) };
    let mut engine = match case.single_rank(fake, dir).0 {
        Ok(engine) => engine,
        Err(error) => return error,
    };
    let error = step(&mut engine).unwrap_err();
    assert!(step(&mut engine).is_err());
    error
}

fn step(engine: &mut Engine) -> Result<(), StepError> {
    let ShortRun { batch, seq_len, .. } = RUN;
    let [inputs, targets] = [0, 1].map(|shift| tokens(seq_len, 0, 0..batch, shift));
    let micro_batch = MicroBatch { inputs: &inputs, targets: &targets, batch, first_sequence: 0 };
    let config = step_config(0, batch * seq_len, 0.1, false);
    engine.step(&config, std::iter::once(micro_batch)).map(drop)
}

fn device_error(error: StepError) -> DeviceError {
    let StepError::Device(error) = error else { panic!("{error}") };
    error
}

#[test]
fn a_failed_allocation_of_pinned_memory_says_how_to_save_it() {
    let dir = TempDir::new();
    for (tier, bytes) in [(Tier::Host, 1 << 10), (Tier::Host, 1 << 17), (Tier::Disk, 1 << 15)] {
        let fake = gpu(Precision::Bf16).pinned_bytes(bytes);
        let error = device_error(failure(fake, tier, &dir.0));
        assert_eq!(error.operation, "allocating pinned host memory", "{error}");
        assert!(error.cause.contains("out of memory; offload less"), "{error}");
    }
}

#[test]
fn a_copy_that_fails_is_an_error_of_the_step() {
    let dir = TempDir::new();
    for tier in [Tier::Host, Tier::Disk] {
        // A copy of the initial parameters, of a pass, or of the update.
        for number in [1, 20, 30, 50] {
            let fake = gpu(Precision::Bf16).fail_copy(number);
            let error = device_error(failure(fake, tier, &dir.0));
            assert!(error.cause.contains("an illegal memory access"), "{tier} {number}: {error}");
        }
    }
}

#[test]
fn a_swap_file_that_cannot_be_created_is_named() {
    let dir = TempDir::new();
    std::fs::create_dir_all(&dir.0).unwrap();
    let file = dir.0.join("file");
    std::fs::write(&file, "").unwrap();
    let error = failure(gpu(Precision::Bf16), Tier::Disk, &file);
    let StepError::Offload(OffloadError::Create { file, .. }) = &error else { panic!("{error}") };
    assert!(file.ends_with("file/parameters-0"), "{error}");
}

#[test]
fn a_swap_file_that_was_truncated_ends_the_step() {
    for name in ["parameters-0", "moments-0"] {
        let dir = TempDir::new();
        let case =
            Case { tiers: (Tier::Disk, Tier::Disk), ..Case::new(Family::Gpt2, Precision::Bf16) };
        let mut engine = case.single_rank(gpu(Precision::Bf16), &dir.0).0.unwrap();
        // Waits for writes of the initial parameters.
        engine.state.read_elements(0, StateTensor::Parameter, 0, &mut [0.0]).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(dir.0.join(name)).unwrap();
        file.set_len(0).unwrap();
        let error = step(&mut engine).unwrap_err();
        let StepError::Offload(OffloadError::Io { file, operation: "read", .. }) = &error else {
            panic!("{error}")
        };
        assert!(file.ends_with(name), "{error}");
        drop(engine);
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0);
    }
}

/// Trains up to a step, from the checkpoint in `dir` if there is one; losses by step, also of a run that
/// fails.
fn train_to(
    step: u64,
    words: &str,
    device: Box<dyn Device>,
    dir: &TempDir,
) -> (Result<(), TrainError>, Vec<(u64, f64)>) {
    let small = "family=gpt2 hidden_size=16 num_layers=2 num_heads=2 seq_len=16 batch=4 \
                 micro_batch=2 eval_interval=0 warmup_steps=2 decay_steps=20 checkpoint.interval=2";
    let config = common::config(&[small, words, &format!("train.steps={step}")]);
    let mut losses = Vec::new();
    let mut emit = |event| {
        if let Event::Step(step) = event {
            losses.push((step.step, step.loss));
        }
    };
    let (comm, data) = (Arc::new(in_process::world(1).remove(0)), DataSpec::default());
    let setup = common::training_setup(&config, &data, comm, device, dir.0.clone()).unwrap();
    let result = training::run(setup, &|| false, &mut emit).map(drop);
    (result, losses)
}

fn losses_to(step: u64, words: &str, device: Box<dyn Device>, dir: &TempDir) -> Vec<(u64, f64)> {
    let (result, losses) = train_to(step, words, device, dir);
    result.unwrap();
    losses
}

const ON_GPU: &str = "train.device=gpu";
const ON_HOST: &str = "train.device=gpu offload.optimizer=host offload.parameters=host";
const ON_DISK: &str = "train.device=gpu offload.optimizer=disk offload.parameters=disk";

fn f32_gpu() -> Box<dyn Device> {
    Box::new(gpu(Precision::F32).open().unwrap().deterministic_results())
}

#[test]
fn checkpoints_resume_with_and_without_offloading_and_on_the_cpu() {
    let expected = losses_to(6, ON_GPU, f32_gpu(), &TempDir::new());
    let layouts = [ON_HOST, ON_GPU, ON_DISK, ON_HOST];
    for (first, second) in layouts.iter().zip(&layouts[1..]) {
        let dir = TempDir::new();
        let one = losses_to(3, first, f32_gpu(), &dir);
        let other = losses_to(6, second, f32_gpu(), &dir);
        assert_eq!([one, other].concat(), expected, "{first}, {second}");
    }
    let dir = TempDir::new();
    losses_to(3, ON_HOST, f32_gpu(), &dir);
    let on_cpu = losses_to(6, "", Box::new(Cpu::new(1, Precision::F32)), &dir);
    assert_eq!(on_cpu.len(), 3);
    for ((_, found), (_, expected)) in on_cpu.iter().zip(&expected[3..]) {
        assert!((found - expected).abs() < 1e-4 * expected, "{found} {expected}");
    }
}

#[test]
fn the_last_checkpoint_survives_a_failed_copy() {
    let expected = losses_to(8, ON_GPU, f32_gpu(), &TempDir::new());
    for words in [ON_HOST, ON_DISK] {
        let dir = TempDir::new();
        let fake = gpu(Precision::F32).fail_copy(150).open().unwrap().deterministic_results();
        let (result, losses) = train_to(8, words, Box::new(fake), &dir);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("an illegal memory access was encountered"), "{error}");
        let done = losses.len() as u64;
        assert!((3..8).contains(&done), "{done} steps of {words}");
        let rest = losses_to(8, words, f32_gpu(), &dir);
        let first = rest[0].0 as usize;
        assert!(first > 1, "{words} did not resume");
        assert_eq!(rest, expected[first - 1..], "{words}");
    }
}
