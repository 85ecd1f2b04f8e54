//! Training with CUDA graphs is bit-identical to training without. The GPU is a fake, which replays the launches
//! of a capture with the arguments of the capture: a host argument that should have changed is a wrong result.

use std::sync::Arc;

use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::precision::Precision;
use regatta_kernels_cuda::fake::{FakeDevice, GraphFault, Probe};
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Stage;
use regatta_predict::shape::{Family, ModelShape};
use regatta_predict::testing;
use regatta_testbed::in_process;
use regatta_train::data::DataSpec;
use regatta_train::metrics::Event;
use regatta_train::model::Model;
use regatta_train::parallel::{ProcessGroups, ZeroStage};
use regatta_train::state::{ParamInit, ShardingConfig};
use regatta_train::step::{DeviceModel, Engine, MicroBatch, OptimizerStep, StepConfig, StepError};
use regatta_train::training;

use crate::common::{self, LossAndNorm, ShortRun, TempDir, run_ranks, step_config, tokens};
use crate::staged_comm::StagedComm;

const SEED: u64 = 11;

/// Steps with dropout and gradient accumulation.
const RUN: ShortRun = ShortRun {
    steps: 4,
    batch: 4,
    seq_len: 8,
    micro_batches: 2,
    dropout: 0.1,
    recompute: |_| false,
};

fn shape(family: Family) -> ModelShape {
    ModelShape { hidden_size: 128, intermediate_size: 256, ..testing::shape(family) }
}

fn fake() -> FakeDevice {
    FakeDevice::new(Precision::Bf16)
}

/// An engine with graphs, or without.
fn engine(fake: FakeDevice, shape: &ModelShape, has_graphs: bool) -> (Engine, Probe) {
    let (device, probe) = fake.open_with_probe().unwrap();
    let device_model = DeviceModel::new(Model::new(shape.clone()), Box::new(device));
    let mut engine = Engine::single_rank(device_model, SEED);
    if has_graphs {
        engine.enable_graphs();
    }
    (engine, probe)
}

fn train(engine: &mut Engine, run: ShortRun) -> Vec<LossAndNorm> {
    run.run(engine, &in_process::world(1)[0], 0, 1)
}

/// All parameters.
fn params(engine: &Engine) -> Vec<Vec<f32>> {
    let device = &engine.device_model.device;
    let read = |view: regatta_device::tensor::View<'_>| {
        let mut values = vec![0.0; view.len()];
        device.copy_to_host(view, &mut values);
        values
    };
    engine.state.all_params().unwrap().into_iter().map(read).collect()
}

/// Losses and parameters with and without graphs.
fn assert_same(shape: &ModelShape, run: impl Fn(&mut Engine) -> Vec<LossAndNorm>) -> usize {
    let (mut eager, eager_probe) = engine(fake(), shape, false);
    let (mut graphs, probe) = engine(fake(), shape, true);
    let (expected, found) = (run(&mut eager), run(&mut graphs));
    assert_eq!(expected, found, "{shape:?}");
    assert_eq!(params(&eager), params(&graphs), "{shape:?}");
    assert_eq!(eager_probe.graph_launches(), 0);
    let launches = probe.graph_launches();
    drop(graphs);
    assert_eq!((probe.graphs(), probe.allocations()), (0, 0), "graphs and memory leak");
    launches
}

#[test]
fn graphs_are_bit_identical_to_eager_passes() {
    for family in [Family::Gpt2, Family::Llama] {
        for run in [
            ShortRun { dropout: 0.0, micro_batches: 1, ..RUN },
            RUN,
            ShortRun { recompute: |_| true, ..RUN },
        ] {
            let launches = assert_same(&shape(family), |engine| train(engine, run));
            // A forward and a backward graph for each but the first two micro-batches, and a graph of the
            // optimizer step in each but the first two steps.
            assert_eq!(launches, 2 * (4 * run.micro_batches - 2) + 4 - 2);
        }
    }
}

/// A loss of an evaluation on other tokens for each `step`.
fn evaluate(engine: &mut Engine, step: u64, batch: usize) -> f64 {
    let [inputs, targets] = [0, 1].map(|shift| tokens(RUN.seq_len, 99 + step, 0..batch, shift));
    let micro_batch = MicroBatch { inputs: &inputs, targets: &targets, batch, first_sequence: 0 };
    engine.loss(&micro_batch).unwrap()
}

/// Evaluations use the same buffers, and free them if they are of another size.
#[test]
fn evaluations_between_steps_do_not_disturb_graphs() {
    let shape = shape(Family::Gpt2);
    for trims in [false, true] {
        let run = |engine: &mut Engine| {
            let mut all = Vec::new();
            for round in 0..3 {
                all.extend(train(engine, RUN));
                if trims {
                    engine.device_model.pool.trim();
                }
                // A larger batch than that of the graphs enlarges the workspace.
                let loss = evaluate(engine, 0, 2 + 7 * round);
                if trims {
                    engine.device_model.pool.trim();
                }
                all.push(LossAndNorm { loss, grad_norm: 0.0 });
            }
            all
        };
        let launches = assert_same(&shape, run);
        let passes = if trims { 3 * 2 * 6 } else { 2 * (3 * 8 - 2) };
        assert_eq!(launches, passes + 3 * 4 - 2);
    }
}

#[test]
fn evaluations_run_as_graphs() {
    let run = |engine: &mut Engine| {
        let mut all = Vec::new();
        for round in 0..2 {
            all.extend(train(engine, RUN));
            let losses = (0..4).map(|step| evaluate(engine, 10 * round + step, 3));
            all.extend(losses.map(|loss| LossAndNorm { loss, grad_norm: 0.0 }));
        }
        all
    };
    let training = 2 * (2 * 8 - 2) + 2 * 4 - 2;
    assert_eq!(assert_same(&shape(Family::Gpt2), run), training + 2 * 4 - 2);
}

/// Shapes alternate: each has its graphs, in the same buffers.
#[test]
fn every_micro_batch_shape_has_its_graphs() {
    let shape = shape(Family::Gpt2);
    let run = |engine: &mut Engine| {
        let sizes = [RUN, ShortRun { batch: 6, ..RUN }, ShortRun { dropout: 0.2, ..RUN }];
        let rounds = (0..3).flat_map(|_| sizes);
        rounds.flat_map(|run| train(engine, ShortRun { steps: 1, ..run })).collect()
    };
    assert_eq!(assert_same(&shape, run), 2 * 3 * (6 - 2) + 9 - 2);
}

/// Steps with these hyperparameters, one micro-batch each.
fn train_with(engine: &mut Engine, optimizers: &[(OptimizerStep, f64)]) -> Vec<LossAndNorm> {
    let step = |(step, (optimizer, grad_clip)): (u64, &(OptimizerStep, f64))| {
        let [inputs, targets] = [0, 1].map(|shift| tokens(RUN.seq_len, step, 0..2, shift));
        let (batch, first_sequence) = (2, 0);
        let micro_batch = MicroBatch { inputs: &inputs, targets: &targets, batch, first_sequence };
        let config = step_config(step, inputs.len(), 0.0, false);
        let config = StepConfig { optimizer: *optimizer, grad_clip: *grad_clip, ..config };
        let result = engine.step(&config, [micro_batch].into_iter()).unwrap();
        LossAndNorm { loss: result.loss_sum, grad_norm: result.grad_norm }
    };
    (0..).zip(optimizers).map(step).collect()
}

/// Learning rate and bias corrections change in every step; other hyperparameters need another capture.
#[test]
fn the_graph_of_the_optimizer_step_has_the_hyperparameters_of_each_step() {
    let adamw = |step: u64| {
        let (lr, weight_decay) = (0.01 / (step as f64), 0.1);
        OptimizerStep::AdamW(AdamW { lr, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay, step })
    };
    let sgd = |step: u64| {
        let lr = 0.1 / (step as f64);
        OptimizerStep::Sgd(Sgd { lr, momentum: 0.9, weight_decay: 0.01 })
    };
    let optimizers: [&dyn Fn(u64) -> OptimizerStep; 2] = [&adamw, &sgd];
    for optimizer in optimizers {
        // The first six steps are clipped.
        let steps: Vec<_> =
            (1..=11).map(|step| (optimizer(step), if step <= 6 { 0.1 } else { 0.0 })).collect();
        let run = |engine: &mut Engine| train_with(engine, &steps);
        let passes = 2 * (11 - 2);
        assert_eq!(assert_same(&shape(Family::Gpt2), run), passes + (6 - 2) + (5 - 2));
    }
    // Another optimizer needs other scalars.
    let steps: Vec<_> = (1..=8).map(|n| (optimizers[n as usize / 5](n), 1.0)).collect();
    let run = |engine: &mut Engine| train_with(engine, &steps);
    assert_eq!(assert_same(&shape(Family::Gpt2), run), 2 * (8 - 2) + (4 - 2) + (4 - 2));
}

#[test]
fn phases_of_graphs_are_timed() {
    let (mut engine, probe) = engine(fake(), &shape(Family::Gpt2), true);
    train(&mut engine, RUN);
    let [inputs, targets] = [0, 1].map(|shift| tokens(RUN.seq_len, 0, 0..2, shift));
    let micro_batch =
        MicroBatch { inputs: &inputs, targets: &targets, batch: 2, first_sequence: 0 };
    let config = step_config(4, RUN.batch * RUN.seq_len, RUN.dropout, false);
    let launches = probe.graph_launches();
    let result = engine.step(&config, [micro_batch; 2].into_iter()).unwrap();
    assert_eq!(probe.graph_launches() - launches, 5);
    assert!(!result.timings.forward.is_zero() && !result.timings.backward.is_zero());
}

#[test]
fn timing_of_kernels_suspends_graphs() {
    let (mut engine, probe) = engine(fake(), &shape(Family::Gpt2), true);
    train(&mut engine, RUN);
    let launches = probe.graph_launches();
    engine.device_model.device.start_kernel_times();
    train(&mut engine, RUN);
    assert_eq!(probe.graph_launches(), launches);
    assert!(!engine.device_model.device.take_kernel_times().is_empty());
    train(&mut engine, RUN);
    assert!(probe.graph_launches() > launches);
}

#[test]
fn graphs_that_fail_are_replaced_by_eager_passes() {
    let shape = shape(Family::Gpt2);
    let (mut eager, _) = engine(fake(), &shape, false);
    let expected = train(&mut eager, RUN);
    for fault in [
        GraphFault::BeginCapture,
        GraphFault::EndCapture,
        GraphFault::Instantiate,
        GraphFault::Launch,
    ] {
        let (mut engine, probe) = engine(fake().fail_graph(fault), &shape, true);
        assert_eq!(train(&mut engine, RUN), expected, "{fault:?}");
        assert_eq!(params(&engine), params(&eager), "{fault:?}");
        let notes = engine.take_notes();
        let expected = ["micro-batches of 2 x 8 tokens run", "the optimizer step runs"];
        assert_eq!(notes.len(), expected.len(), "{notes:?}");
        for (note, expected) in notes.iter().zip(expected) {
            assert!(note.starts_with(&format!("{expected} without a CUDA graph: ")), "{note}");
            assert!(note.ends_with("unspecified launch failure"), "{note}");
        }
        assert_eq!((probe.graph_launches(), probe.graphs()), (0, 0));
    }
}

#[test]
fn a_note_says_that_graphs_are_in_use() {
    let (mut engine, _) = engine(fake(), &shape(Family::Gpt2), true);
    train(&mut engine, RUN);
    let expected = [
        "micro-batches of 2 x 8 tokens run as CUDA graphs",
        "the optimizer step runs as a CUDA graph",
    ];
    assert_eq!(engine.take_notes(), expected);
    engine.device_model.pool.trim();
    train(&mut engine, RUN);
    assert!(engine.take_notes().is_empty(), "once");
}

#[test]
fn an_error_in_a_graph_is_attributed_to_it() {
    let (mut engine, probe) = engine(fake(), &shape(Family::Gpt2), true);
    train(&mut engine, RUN);
    assert!(probe.graph_launches() > 0);
    probe.fail_kernel("cross_entropy_bf16");
    let [inputs, targets] = [0, 1].map(|shift| tokens(RUN.seq_len, 0, 0..2, shift));
    let micro_batch =
        MicroBatch { inputs: &inputs, targets: &targets, batch: 2, first_sequence: 0 };
    let config = step_config(4, RUN.batch * RUN.seq_len, RUN.dropout, false);
    let error = engine.step(&config, [micro_batch; 2].into_iter()).unwrap_err();
    let StepError::Device(error) = error else { panic!("{error}") };
    assert!(error.operation.starts_with("a graph of a micro-batch"), "{error}");
    assert!(error.cause.contains("REGATTA_LAUNCH_BLOCKING=1"), "{error}");
}

/// Data-parallel ranks, each with a GPU of its own: losses of all, and graph launches of the first.
fn train_ranks(zero: ZeroStage, has_graphs: bool) -> (Vec<LossAndNorm>, usize) {
    let mesh = Mesh { dp: 2, cp: 1, tp: 1, pp: 1, shard: 2 };
    let run = ShortRun { batch: 12, micro_batches: 3, ..RUN };
    let rank = |comm: Arc<dyn regatta_comm::Comm>| {
        let comm: Arc<dyn regatta_comm::Comm> = Arc::new(StagedComm::new(comm));
        let groups = ProcessGroups::new(comm.clone(), mesh).unwrap();
        let (device, probe) = fake().open_with_probe().unwrap();
        let shape = shape(Family::Gpt2);
        let model = DeviceModel::parallel(shape, &groups, false, 1, Box::new(device));
        let stage = Stage::single(&model.model.shape);
        let (config, init) = (ShardingConfig::zero(zero), ParamInit::Random { seed: SEED });
        let mut engine = Engine::new(model, groups, stage, &config, init).unwrap();
        if has_graphs {
            engine.enable_graphs();
        }
        let losses = run.run(&mut engine, &*comm, mesh.coord(comm.rank() as usize).dp, mesh.dp);
        (losses, probe.graph_launches())
    };
    let mut all = run_ranks(in_process::world(2), rank);
    assert_eq!(all[0], all[1]);
    all.swap_remove(0)
}

/// The first micro-batch of a step may wait for parameters, the last one reduces gradients.
#[test]
fn micro_batches_that_communicate_run_without_graphs() {
    // Of the three micro-batches of a step, the last one runs without; of optimizer steps, only those of
    // replicas have no collective.
    let replicas = 2 * (4 * 2 - 2) + 2;
    for (zero, expected) in [
        (ZeroStage::Off, replicas..replicas + 1),
        (ZeroStage::One, 1..replicas),
        (ZeroStage::Two, 0..1),
        (ZeroStage::Three, 0..1),
    ] {
        let (losses, _) = train_ranks(zero, false);
        let (found, launches) = train_ranks(zero, true);
        assert_eq!(losses, found, "{zero:?}");
        assert!(expected.contains(&launches), "{zero:?}: {launches}");
    }
}

/// Losses of steps and evaluations, and notes.
#[derive(Debug, Default)]
struct Recorded {
    losses: Vec<(u64, f64)>,
    validations: Vec<(u64, f64)>,
    notes: Vec<String>,
}

/// A training run with evaluations and checkpoints in `folder`, up to step `steps`.
fn training_run(args: &str, steps: u64, folder: &TempDir) -> (Recorded, usize) {
    let small = "model.family=gpt2 model.hidden_size=32 model.num_layers=2 model.num_heads=2 \
                 model.seq_len=16 model.dropout=0.1 train.batch=4 train.micro_batch=2 \
                 train.eval_interval=5 train.eval_batches=3 optimizer.lr=0.004 \
                 optimizer.warmup_steps=2 optimizer.decay_steps=20 checkpoint.interval=4 \
                 train.device=gpu train.precision=bf16";
    let config = common::config(&[small, args, &format!("train.steps={steps}")]);
    let (device, probe) = fake().open_with_probe().unwrap();
    let comm = Arc::new(in_process::world(1).swap_remove(0));
    let setup = common::training_setup(
        &config,
        &DataSpec::default(),
        comm,
        Box::new(device),
        folder.0.clone(),
    );
    let mut recorded = Recorded::default();
    let mut emit = |event| match event {
        Event::Step(step) => recorded.losses.push((step.step, step.loss)),
        Event::Validation { step, loss } => recorded.validations.push((step, loss)),
        Event::Note(note) => recorded.notes.push(note),
        _ => {}
    };
    training::run(setup.unwrap(), &|| false, &mut emit).unwrap();
    (recorded, probe.graph_launches())
}

#[test]
fn runs_with_graphs_can_be_evaluated_and_resumed() {
    let (eager_dir, dir) = (TempDir::new(), TempDir::new());
    let (eager, launches) = training_run("train.cuda_graph=false", 12, &eager_dir);
    assert_eq!(launches, 0);
    // Interrupted at a step that is no multiple of the other intervals.
    let (first, first_launches) = training_run("", 7, &dir);
    let (second, launches) = training_run("train.cuda_graph=true", 12, &dir);
    assert!(first_launches > 0 && launches > 0);
    assert_eq!(eager.losses, [first.losses, second.losses].concat());
    let is_common = |(step, _): &&(u64, f64)| *step != 7;
    let validations = first.validations.iter().chain(&second.validations);
    let validations: Vec<_> = validations.filter(is_common).copied().collect();
    assert_eq!(eager.validations, validations);
    let note = "micro-batches of 2 x 16 tokens run as CUDA graphs".to_owned();
    assert!(first.notes.contains(&note) && second.notes.contains(&note), "{:?}", first.notes);
    assert!(!eager.notes.contains(&note));
}
