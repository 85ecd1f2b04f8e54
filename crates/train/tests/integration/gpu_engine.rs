//! Training on a GPU gives the losses of the CPU. The GPU is a fake, whose kernels run on the host.

use std::sync::Arc;

use regatta_comm::Comm;
use regatta_device::DeviceError;
use regatta_device::ops::{Device, Fp8, GPU_MAX_LOGITS};
use regatta_device::precision::Precision;
use regatta_device_conformance::host_copy::copy_to_f64;
use regatta_kernels_cpu::Cpu;
use regatta_kernels_cuda::fake::{self, FakeDevice};
use regatta_predict::axis::Axis;
use regatta_predict::cost::{CostOptions, rank_cost};
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::{PipelineSize, ScheduleKind, Stage};
use regatta_predict::shape::{Family, ModelShape};
use regatta_predict::testing;
use regatta_testbed::in_process;
use regatta_train::model::Model;
use regatta_train::parallel::{ProcessGroups, ZeroStage};
use regatta_train::state::{ParamInit, ShardingConfig};
use regatta_train::step::{DeviceModel, Engine, MicroBatch, StepError};

use crate::common::{self, LossAndNorm, ShortRun, run_ranks, step_config, tokens};
use crate::staged_comm::StagedComm;

const SEED: u64 = 11;
const AXES: usize = Axis::ALL.len();

/// Precisions, and relative errors of their losses.
const PRECISIONS: [(Precision, f64); 2] = [(Precision::F32, 1e-4), (Precision::Bf16, 2e-2)];

/// A few steps with dropout; every second one recomputes activations.
const RUN: ShortRun = ShortRun {
    steps: 3,
    batch: 4,
    seq_len: 8,
    micro_batches: 2,
    dropout: 0.1,
    recompute: |step| step % 2 == 1,
};

/// A model that the vectorised and tensor-core kernels support.
fn aligned_shape(family: Family) -> ModelShape {
    let num_kv_heads = if family == Family::Llama { 1 } else { 2 };
    ModelShape { hidden_size: 128, intermediate_size: 256, num_kv_heads, ..testing::shape(family) }
}

/// A model with odd sizes, for the generic kernels.
fn odd_shape(family: Family) -> ModelShape {
    ModelShape { hidden_size: 12, num_heads: 2, intermediate_size: 18, ..testing::shape(family) }
}

/// All families and shapes.
fn shapes() -> impl Iterator<Item = ModelShape> {
    let families = [Family::Gpt2, Family::Llama].into_iter();
    families.flat_map(|family| [aligned_shape(family), odd_shape(family)])
}

fn train(shape: &ModelShape, device: Box<dyn Device>, run: ShortRun) -> Vec<LossAndNorm> {
    let device_model = DeviceModel::new(Model::new(shape.clone()), device);
    let mut engine = Engine::single_rank(device_model, SEED);
    run.run(&mut engine, &in_process::world(1)[0], 0, 1)
}

fn cpu() -> Box<dyn Device> {
    Box::new(Cpu::new(1, Precision::F32))
}

/// Asserts the losses, and the first gradient norm: AdamW enlarges rounding errors of gradients that are 0.
fn assert_close(expected: &[LossAndNorm], found: &[LossAndNorm], tolerance: f64, what: &str) {
    assert_eq!(expected.len(), found.len());
    let check = |expected: f64, found: f64| {
        let error = (expected - found).abs() / expected;
        assert!(error <= tolerance, "{what}: {expected} is {found}");
    };
    check(expected[0].grad_norm, found[0].grad_norm);
    expected.iter().zip(found).for_each(|(expected, found)| check(expected.loss, found.loss));
}

#[test]
fn gpu_trains_as_the_cpu() {
    for shape in shapes() {
        let expected = train(&shape, cpu(), RUN);
        for (precision, tolerance) in PRECISIONS {
            let found = train(&shape, Box::new(fake::device(precision)), RUN);
            assert_close(&expected, &found, tolerance, &format!("{precision:?}, {shape:?}"));
        }
    }
}

#[test]
fn amd_gpu_trains_as_the_cpu() {
    for shape in shapes() {
        let expected = train(&shape, cpu(), RUN);
        for (precision, tolerance) in PRECISIONS {
            // Not every version of hipBLASLt supports epilogues and f32 gradients of bf16 operands.
            let full = FakeDevice::amd(precision);
            for fake in [full.clone(), full.without_epilogues().without_mixed_gemms()] {
                let found = train(&shape, Box::new(fake.open().unwrap()), RUN);
                assert_close(&expected, &found, tolerance, &format!("{precision:?}, {shape:?}"));
            }
        }
    }
}

/// The sources of the kernels, compiled for the host, in whole training steps.
#[test]
fn kernel_sources_train_as_the_cpu() {
    let Some(fake) = FakeDevice::running_sources(Precision::Bf16) else {
        return eprintln!("skipped: no C++ compiler (set CXX)");
    };
    let shape = aligned_shape(Family::Llama);
    let (device, probe) = fake.open_with_probe().unwrap();
    let found = train(&shape, Box::new(device), RUN);
    assert_close(&train(&shape, cpu(), RUN), &found, 2e-2, "Llama");
    let launched: Vec<String> = probe.launched().into_iter().map(|(_, kernel)| kernel).collect();
    assert!(launched.iter().any(|kernel| kernel == "attention_mfma_backward_kv"), "{launched:?}");
}

/// Precisions of GEMMs, of the residual stream and of its gradient, besides the defaults.
fn residual_precisions() -> [[Precision; 3]; 5] {
    let (f32, bf16) = (Precision::F32, Precision::Bf16);
    [[bf16, f32, f32], [bf16, bf16, f32], [bf16; 3], [f32, bf16, bf16], [f32, f32, bf16]]
}

#[test]
fn every_precision_of_the_residual_stream_and_its_gradient_trains_as_the_cpu() {
    for shape in shapes() {
        let expected = train(&shape, cpu(), RUN);
        for [precision, residual, gradient] in residual_precisions() {
            let device = fake::device(precision).with_residual(residual);
            let device = device.with_residual_gradient(gradient);
            let found = train(&shape, Box::new(device), RUN);
            let what = format!("{precision:?}, {residual:?}, {gradient:?}, {shape:?}");
            assert_close(&expected, &found, 2e-2, &what);
        }
    }
}

/// The gradient is its own operand of GEMMs, and norms write no copy.
#[test]
fn a_bf16_gradient_of_the_residual_stream_saves_its_copy() {
    let bytes = |gradient| {
        let device = fake::device(Precision::Bf16).with_residual_gradient(gradient);
        let device_model =
            DeviceModel::new(Model::new(aligned_shape(Family::Gpt2)), Box::new(device));
        let mut engine = Engine::single_rank(device_model, SEED);
        let run = ShortRun { dropout: 0.0, recompute: |_| false, ..RUN };
        run.run(&mut engine, &in_process::world(1)[0], 0, 1);
        engine.device_model.pool.peak_bytes()
    };
    let elements = RUN.batch / RUN.micro_batches * RUN.seq_len * 128;
    assert_eq!(bytes(Precision::F32) - bytes(Precision::Bf16), (4 + 2 - 2) * elements);
}

/// The rows of zeros behind an output matrix, which its GEMMs include.
#[test]
fn padding_of_the_vocabulary_stays_zero() {
    for (family, fp8) in
        [(Family::Gpt2, Fp8::Off), (Family::Llama, Fp8::Off), (Family::Gpt2, Fp8::All)]
    {
        let device = fake::device(Precision::Bf16).with_fp8(fp8).unwrap();
        let device_model = DeviceModel::new(Model::new(aligned_shape(family)), Box::new(device));
        let mut engine = Engine::single_rank(device_model, SEED);
        RUN.run(&mut engine, &in_process::world(1)[0], 0, 1);
        let Engine { device_model, state, .. } = &mut engine;
        let mut padding = 0;
        for (index, block) in device_model.model.blocks.iter().enumerate() {
            for parameter in block.parameters.iter().filter(|parameter| parameter.padding > 0) {
                let behind = parameter.range().end..parameter.range().end + parameter.padding;
                padding += behind.len();
                let elements = copy_to_f64(&*device_model.device, state.grads.full(index).view());
                assert!(elements[behind.clone()].iter().all(|x| *x == 0.0), "gradients");
                let params = state.param_shard_mut(index);
                let elements = copy_to_f64(&*device_model.device, params.view());
                assert!(elements[behind].iter().all(|x| *x == 0.0), "parameters");
            }
        }
        // 13 tokens.
        assert_eq!(padding, (64 - 13) * 128);
    }
}

/// Two steps: AdamW enlarges differences of gradients.
#[test]
fn fp8_gemms_train_as_the_cpu() {
    let run = ShortRun { steps: 2, ..RUN };
    for shape in [Family::Gpt2, Family::Llama].map(aligned_shape) {
        let expected = train(&shape, cpu(), run);
        for fp8 in [Fp8::Layers, Fp8::All] {
            let (device, probe) = FakeDevice::new(Precision::Bf16).open_with_probe().unwrap();
            let found = train(&shape, Box::new(device.with_fp8(fp8).unwrap()), run);
            assert_close(&expected, &found, 2e-2, &format!("{fp8:?}, {shape:?}"));
            let launched = |name: &str| probe.launched().iter().any(|(_, kernel)| kernel == name);
            assert!(launched("quantize_rows") && launched("quantize_transpose_bf16"));
            assert_eq!(launched("cross_entropy_fp8_bf16"), fp8 == Fp8::All);
        }
    }
}

/// Parameters, gradients and moments exactly, activations within a hundredth, but not more: this memory is
/// reserved.
#[test]
fn memory_is_that_of_the_cost_model() {
    let plan = common::config(&["batch=4 seq_len=8 micro_batch=2"]).validate(1).unwrap();
    let (f32, bf16) = (Precision::F32, Precision::Bf16);
    let cases = [
        (f32, bf16, Fp8::Off),
        (f32, f32, Fp8::Off),
        (bf16, f32, Fp8::Off),
        (bf16, bf16, Fp8::Off),
        (f32, f32, Fp8::Layers),
        (f32, bf16, Fp8::Layers),
        (bf16, bf16, Fp8::All),
    ];
    for (residual, gradient, fp8) in cases {
        // Large activations, so that partial sums and scalars do not matter.
        let shape = ModelShape { num_layers: 6, ..aligned_shape(Family::Gpt2) };
        let device = fake::device(Precision::Bf16).with_residual(residual);
        let device = device.with_residual_gradient(gradient).with_fp8(fp8).unwrap();
        let model = DeviceModel::new(Model::new(shape.clone()), Box::new(device));
        let mut engine = Engine::single_rank(model, SEED);
        ShortRun { dropout: 0.0, recompute: |_| false, ..RUN }.run(
            &mut engine,
            &in_process::world(1)[0],
            0,
            1,
        );
        let options = CostOptions {
            residual_bytes: residual.activation_bytes(),
            residual_grad_bytes: gradient.activation_bytes(),
            fp8_layers: fp8 != Fp8::Off,
            fp8_head: fp8 == Fp8::All,
            ..CostOptions::gpu(2, Some(GPU_MAX_LOGITS), false)
        };
        let expected = rank_cost(&shape, &plan, options, 0).unwrap().memory;
        let found = engine.state.memory();
        let state = [found.params, found.grads, found.optimizer].map(|bytes| bytes.peak());
        let predicted =
            [expected.params, expected.grads, expected.optimizer].map(|bytes| bytes.peak());
        assert_eq!(state, predicted, "{residual:?}, {gradient:?}, {fp8:?}");
        let activations = engine.device_model.pool.peak_bytes() as u64;
        let predicted = expected.activations + expected.workspace;
        let is_near = activations <= predicted && predicted - activations <= predicted / 100;
        assert!(is_near, "{residual:?}, {gradient:?}, {fp8:?}: {activations} {predicted}");
    }
}

#[test]
fn recomputed_activations_are_the_same() {
    for shape in shapes() {
        for precision in [Precision::F32, Precision::Bf16] {
            let device = || Box::new(fake::device(precision).deterministic_results());
            let all = train(&shape, device(), ShortRun { recompute: |_| true, ..RUN });
            let none = train(&shape, device(), ShortRun { recompute: |_| false, ..RUN });
            assert_eq!(all, none, "{precision:?}, {shape:?}");
        }
    }
}

/// A parallel layout.
#[derive(Debug, Clone, Copy)]
struct Layout {
    mesh: Mesh,
    zero: ZeroStage,
    sequence_parallel: bool,
    precision: Precision,
}

impl Layout {
    fn new(mesh: Mesh) -> Self {
        let precision = Precision::F32;
        Self { mesh, zero: ZeroStage::Off, sequence_parallel: false, precision }
    }

    /// Trains on several ranks, each with a GPU of its own.
    fn train(self, shape: &ModelShape) -> Vec<LossAndNorm> {
        let rank = |comm| self.train_rank(shape, Arc::new(StagedComm::new(comm)));
        let mut all = run_ranks(in_process::world(self.mesh.ranks() as u32), rank);
        assert!(all.iter().all(|rank| *rank == all[0]), "{self:?}: {all:?}");
        all.swap_remove(0)
    }

    fn train_rank(self, shape: &ModelShape, comm: Arc<dyn Comm>) -> Vec<LossAndNorm> {
        let (mut engine, mesh) = (self.engine(shape, comm.clone()), self.mesh);
        RUN.run(&mut engine, &*comm, mesh.coord(comm.rank() as usize).dp, mesh.dp)
    }

    fn engine(self, shape: &ModelShape, comm: Arc<dyn Comm>) -> Engine {
        let Self { mesh, zero, sequence_parallel, precision } = self;
        let groups = ProcessGroups::new(comm, mesh).unwrap();
        let device = Box::new(fake::device(precision));
        let model = DeviceModel::parallel(shape.clone(), &groups, sequence_parallel, 1, device);
        let size = PipelineSize {
            kind: ScheduleKind::OneFOneB,
            stages: mesh.pp,
            virtual_stages: 1,
            micro_batches: RUN.micro_batches,
        };
        let stage = match mesh.pp {
            1 => Stage::single(&model.model.shape),
            _ => Stage::new(&model.model.shape, size, groups.coord.pp).unwrap(),
        };
        let (config, init) = (ShardingConfig::zero(zero), ParamInit::Random { seed: SEED });
        Engine::new(model, groups, stage, &config, init).unwrap()
    }

    /// The bytes that a rank sends in a run, by axis.
    fn sent(self, shape: &ModelShape, run: ShortRun, comm: Arc<dyn Comm>) -> [u64; AXES] {
        let mut engine = self.engine(shape, comm.clone());
        let sent = |engine: &Engine| Axis::ALL.map(|axis| engine.groups.sent(axis).total_bytes());
        let before = sent(&engine);
        run.run(&mut engine, &*comm, 0, 1);
        let mut after = sent(&engine);
        after.iter_mut().zip(before).for_each(|(after, before)| *after -= before);
        after
    }
}

/// Numbers of data-, context-, tensor- and pipeline-parallel ranks, fully sharded.
fn mesh(dp: usize, cp: usize, tp: usize, pp: usize) -> Mesh {
    Mesh { dp, cp, tp, pp, shard: dp * cp }
}

#[test]
fn data_parallel_ranks_and_zero_have_the_losses_of_one_rank() {
    for shape in shapes() {
        for (precision, tolerance) in PRECISIONS {
            let expected = train(&shape, Box::new(fake::device(precision)), RUN);
            for zero in [ZeroStage::Off, ZeroStage::One, ZeroStage::Two, ZeroStage::Three] {
                let layout = Layout { zero, precision, ..Layout::new(mesh(2, 1, 1, 1)) };
                let found = layout.train(&shape);
                assert_close(&expected, &found, tolerance, &format!("{layout:?}, {shape:?}"));
            }
        }
    }
}

#[test]
fn parallel_layouts_have_the_losses_of_one_rank() {
    for family in [Family::Gpt2, Family::Llama] {
        let shape = ModelShape { num_heads: 4, num_kv_heads: 2, ..aligned_shape(family) };
        let tensor = Layout::new(mesh(1, 1, 2, 1));
        let layouts = [
            tensor,
            Layout { sequence_parallel: true, ..tensor },
            Layout::new(mesh(1, 2, 1, 1)),
            Layout::new(mesh(1, 1, 1, 2)),
        ];
        for (precision, tolerance) in PRECISIONS {
            let expected = train(&shape, Box::new(fake::device(precision)), RUN);
            for layout in layouts.map(|layout| Layout { precision, ..layout }) {
                let found = layout.train(&shape);
                assert_close(&expected, &found, tolerance, &format!("{layout:?}, {shape:?}"));
            }
        }
    }
}

/// In bf16, pipelines send 4 bytes per element forward and 2 backward.
#[test]
fn traffic_is_that_of_the_cost_model() {
    let run = ShortRun { steps: 1, dropout: 0.0, recompute: |_| false, ..RUN };
    let shape = aligned_shape(Family::Gpt2);
    for words in ["tp=2 sequence_parallel=true", "tp=2 sequence_parallel=false", "cp=2", "pp=2"] {
        let words = format!("batch=4 seq_len=8 micro_batch=2 {words}");
        let plan = common::config(&[&words]).validate(2).unwrap();
        let layout = Layout {
            sequence_parallel: plan.sequence_parallel,
            precision: Precision::Bf16,
            ..Layout::new(plan.mesh)
        };
        let rank = |comm| layout.sent(&shape, run, Arc::new(StagedComm::new(comm)));
        let options = CostOptions::gpu(2, Some(GPU_MAX_LOGITS), false);
        for (rank, sent) in run_ranks(in_process::world(2), rank).into_iter().enumerate() {
            let predicted = rank_cost(&shape, &plan, options, rank).unwrap().traffic;
            assert_eq!(sent, Axis::ALL.map(|axis| predicted.on(axis)), "{words}, rank {rank}");
        }
    }
}

/// The error of a step on a device.
fn step_error(fake: FakeDevice) -> DeviceError {
    let shape = aligned_shape(Family::Gpt2);
    let device_model = DeviceModel::new(Model::new(shape), Box::new(fake.open().unwrap()));
    let mut engine = Engine::single_rank(device_model, SEED);
    let ShortRun { batch, seq_len, .. } = RUN;
    let [inputs, targets] = [0, 1].map(|shift| tokens(seq_len, 0, 0..batch, shift));
    let micro_batch = MicroBatch { inputs: &inputs, targets: &targets, batch, first_sequence: 0 };
    let config = step_config(0, batch * seq_len, 0.1, false);
    let error = engine.step(&config, std::iter::once(micro_batch)).unwrap_err();
    let StepError::Device(error) = error else { panic!("{error}") };
    assert_eq!(engine.loss(&micro_batch), Err(StepError::Device(error.clone())));
    error
}

#[test]
fn a_step_that_runs_out_of_memory_says_how_to_save_it() {
    // Enough for no parameters, and for no temporary results besides those of GEMMs.
    for bytes in [1 << 20, 80 << 20] {
        let error = step_error(FakeDevice::new(Precision::F32).memory_bytes(bytes));
        assert_eq!(error.operation, "allocating device memory");
        assert!(error.cause.starts_with("out of memory: "), "{error}");
        assert!(error.cause.contains("reduce train.micro_batch"), "{error}");
    }
    let error = step_error(FakeDevice::new(Precision::F32).memory_bytes(8 << 20));
    assert_eq!(error.cause, "allocating 64 MiB of GEMM workspace: out of memory");
}

#[test]
fn a_kernel_that_fails_is_an_error_of_the_step() {
    let kernel = "attention_generic_backward_kv";
    let error = step_error(FakeDevice::new(Precision::F32).fail_kernel(kernel));
    assert_eq!(error.operation, "an operation that was queued before this point");
    assert!(error.cause.contains("an illegal memory access was encountered"), "{error}");
    assert!(error.cause.contains("REGATTA_LAUNCH_BLOCKING=1"), "{error}");
    let error = step_error(FakeDevice::new(Precision::F32).fail_launch(kernel));
    assert_eq!((&*error.operation, &*error.cause), (kernel, "unspecified launch failure"));
}
