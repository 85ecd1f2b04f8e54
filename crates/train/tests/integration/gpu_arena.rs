//! A training run reserves its device memory at the start, by the prediction of the cost model, and allocates
//! no tensor outside of it. The GPU is a fake, which counts allocations.

use std::sync::Arc;

use regatta_comm::Comm;
use regatta_device::DeviceMemory;
use regatta_device::precision::Precision;
use regatta_kernels_cuda::fake::FakeDevice;
use regatta_predict::cost::rank_cost;
use regatta_predict::shape::Family;
use regatta_predict::testing;
use regatta_testbed::{in_process, sample_cases};
use regatta_train::config::Config;
use regatta_train::data::DataSpec;
use regatta_train::metrics::Event;
use regatta_train::model::Model;
use regatta_train::step::{DeviceModel, Engine};
use regatta_train::training::{self, TrainError};

use crate::common::{self, ShortRun, TempDir, run_ranks};
use crate::staged_comm::StagedComm;

/// A small model, with evaluations, checkpoints and graphs.
const SMALL: &str = "model.family=gpt2 model.hidden_size=64 model.num_layers=2 model.num_heads=4 \
    model.seq_len=32 train.batch=8 train.micro_batch=4 train.eval_interval=3 train.eval_batches=1 \
    train.steps=5 checkpoint.interval=4 train.device=gpu train.precision=bf16 train.deterministic=true";

/// Vocabulary size of the built-in data.
const VOCAB_SIZE: usize = 65;

/// Padding of all tensors.
const MAX_PADDING: usize = 192 << 10;

/// Memory of the libraries, which is not part of the arena: workspaces of GEMMs and of kernels.
const WORKSPACES: [usize; 2] = [64 << 20, 32 << 20];

/// What a rank allocated and noted.
#[derive(Debug)]
struct Observed {
    /// Bytes of allocations of device memory up to the last step, evaluation or checkpoint.
    allocations: Vec<usize>,
    notes: Vec<String>,
    result: Result<(), TrainError>,
}

fn config(words: &str) -> Config {
    common::config(&[SMALL, words])
}

fn train_rank(config: &Config, fake: FakeDevice, comm: Arc<dyn Comm>, dir: &TempDir) -> Observed {
    let (device, probe) = fake.open_with_probe().unwrap();
    // GEMMs are not autotuned: that copies outputs to memory of its own.
    let device = device.deterministic_results().with_residual(config.train.residual);
    let device = Box::new(device.with_fp8(config.train.fp8).unwrap());
    let (mut notes, mut allocations) = (Vec::new(), Vec::new());
    let mut emit = |event| match event {
        Event::Note(note) => notes.push(note),
        Event::Step(_) | Event::Validation { .. } | Event::Checkpoint { .. } => {
            allocations = probe.device_allocations();
        }
        _ => {}
    };
    let setup =
        common::training_setup(config, &DataSpec::default(), comm, device, dir.0.clone()).unwrap();
    let result = training::run(setup, &|| false, &mut emit).map(drop);
    assert_eq!(probe.allocations(), 0, "memory leaks");
    Observed { allocations, notes, result }
}

/// All ranks of a run, each with a GPU of its own.
fn train(config: &Config, ranks: u32, fake: &FakeDevice) -> Vec<Observed> {
    let dir = TempDir::new();
    run_ranks(in_process::world(ranks), |comm| {
        train_rank(config, fake.clone(), Arc::new(StagedComm::new(comm)), &dir)
    })
}

/// Asserts that every rank makes one allocation for its tensors, of the predicted size with padding.
fn assert_in_arena(words: &str, ranks: u32, fake: &FakeDevice) {
    let config = config(words);
    let (plan, shape) = config.validate_with_vocab(ranks as usize, VOCAB_SIZE).unwrap();
    for (rank, observed) in train(&config, ranks, fake).into_iter().enumerate() {
        let cost = rank_cost(&shape, &plan, config.cost_options(), rank).unwrap();
        let (predicted, about) = (cost.memory.total() as usize, format!("{words}: {observed:?}"));
        assert!(observed.result.is_ok(), "{about}");
        let (arena, others) = observed.allocations.split_first().unwrap();
        assert!((predicted..predicted + MAX_PADDING).contains(arena), "{predicted}, {about}");
        assert_eq!(others, WORKSPACES, "{about}");
        assert!(!observed.notes.iter().any(|note| note.contains("on demand")), "{about}");
    }
}

#[test]
fn a_rank_allocates_its_tensors_at_once() {
    let layouts = [
        "",
        "model.dropout=0.1",
        "train.recompute=true",
        "train.precision=f32",
        "train.residual=bf16",
        "train.fp8=all model.vocab_size=80",
        "model.family=llama model.num_kv_heads=2",
        "model.family=llama train.fp8=layers train.residual=bf16",
        "optimizer.name=sgd train.cuda_graph=false",
        "parallel.tiles=2",
        "offload.optimizer=host",
        "offload.optimizer=host offload.parameters=host",
        "offload.optimizer=disk offload.parameters=disk",
    ];
    for words in sample_cases(layouts, 2) {
        assert_in_arena(words, 1, &FakeDevice::new(config(words).precision()));
    }
    assert_in_arena("train.precision=bf16", 1, &FakeDevice::amd(Precision::Bf16));
}

#[test]
fn ranks_of_all_axes_allocate_their_tensors_at_once() {
    let layouts = [
        "parallel.dp=2",
        "parallel.zero=1",
        "parallel.zero=2",
        "parallel.zero=3",
        "parallel.zero=3 offload.parameters=host",
        "parallel.tp=2",
        "parallel.tp=2 parallel.sequence_parallel=false",
        "parallel.cp=2",
        "parallel.pp=2 parallel.schedule=gpipe train.micro_batch=2",
        "parallel.pp=2 parallel.schedule=zero-bubble train.micro_batch=2",
        "parallel.pp=2 parallel.schedule=interleaved parallel.virtual_stages=2 model.num_layers=4",
    ];
    for words in sample_cases(layouts, 2) {
        assert_in_arena(words, 2, &FakeDevice::new(Precision::Bf16));
    }
}

/// A GPU with less memory than predicted: another process may have taken it since the check.
#[test]
fn a_failed_reservation_ends_the_run_before_its_state_is_built() {
    let (fake, dir) = (FakeDevice::new(Precision::Bf16).memory_bytes(1 << 20), TempDir::new());
    let comm = || Arc::new(in_process::world(1).remove(0));
    let observed = train_rank(&config(""), fake.clone(), comm(), &dir);
    assert_eq!(observed.allocations, [0; 0]);
    let error = observed.result.unwrap_err();
    let TrainError::Device(error) = error else { panic!("{error}") };
    assert_eq!(error.operation, "allocating device memory");
    assert!(error.cause.starts_with("out of memory: 3 MiB requested, 1 MiB free"), "{error}");
    assert!(error.cause.contains("reduce train.micro_batch"), "{error}");
    // The run is tried anyway.
    let observed = train_rank(&config("train.check_memory=false"), fake, comm(), &dir);
    let expected = "of device memory are not free: tensors are allocated on demand";
    assert!(observed.notes.iter().any(|note| note.ends_with(expected)), "{observed:?}");
    assert!(observed.result.is_err());
}

/// An arena that is too small changes no result, and a note says so once.
#[test]
fn tensors_that_do_not_fit_are_allocated_on_demand() {
    let run = ShortRun {
        steps: 4,
        batch: 4,
        seq_len: 8,
        micro_batches: 2,
        dropout: 0.1,
        recompute: |_| false,
    };
    let train = |reserved: Option<u64>| {
        let (device, probe) = FakeDevice::new(Precision::Bf16).open_with_probe().unwrap();
        let device = device.deterministic_results();
        reserved.iter().for_each(|bytes| device.reserve(*bytes, 0).unwrap());
        let model = DeviceModel::new(Model::new(testing::shape(Family::Gpt2)), Box::new(device));
        let mut engine = Engine::single_rank(model, 11);
        engine.enable_graphs();
        let losses = run.run(&mut engine, &in_process::world(1)[0], 0, 1);
        let mut notes = engine.take_notes();
        notes.retain(|note| note.contains("on demand"));
        assert!(engine.take_notes().is_empty());
        drop(engine);
        assert_eq!(probe.allocations(), 0);
        (losses, notes)
    };
    let (expected, notes) = train(None);
    assert_eq!(notes, [""; 0]);
    for bytes in [0, 10 << 10, 50 << 10] {
        let (found, notes) = train(Some(bytes));
        assert_eq!(found, expected);
        assert!(notes.len() == 1 && notes[0].contains("of the reserved"), "{notes:?}");
    }
    assert_eq!(train(Some(8 << 20)), (expected, Vec::new()));
}
