//! `train.micro_batch=auto` on GPUs: the size follows from the memory, is the same on all ranks, does not
//! change the losses, and is kept by a resumed run. The GPU is a fake.

use std::path::Path;
use std::sync::Arc;

use regatta_comm::Comm;
use regatta_device::precision::Precision;
use regatta_kernels_cuda::fake::FakeDevice;
use regatta_predict::cost::rank_cost;
use regatta_testbed::in_process;
use regatta_train::config::{Config, MicroBatchSize};
use regatta_train::data::DataSpec;
use regatta_train::metrics::{Event, RunInfo};
use regatta_train::training::gpu_micro_batch::{self, RankGpu};
use regatta_train::training::{self, TrainingSetup};

use crate::common::{self, TempDir, run_ranks};

/// Memory that is set aside for libraries.
const LIBRARIES: u64 = 2 << 30;

const VOCAB_SIZE: usize = 65;

fn config(args: &str) -> Config {
    let small = "family=gpt2 hidden_size=32 num_layers=2 num_heads=2 seq_len=16 model.dropout=0.1 \
                 batch=16 eval_interval=0 lr=0.004 warmup_steps=2 decay_steps=20 checkpoint.interval=2 \
                 train.device=gpu train.precision=f32 train.deterministic=true";
    common::config(&[small, args])
}

/// Predicted memory of a rank with this micro-batch size.
fn predicted_memory(size: usize, config: &Config, ranks: usize) -> u64 {
    let mut config = config.clone();
    config.train.micro_batch = MicroBatchSize::Fixed(size);
    let (plan, shape) = config.validate_with_vocab(ranks, VOCAB_SIZE).unwrap();
    let memory = rank_cost(&shape, &plan, config.cost_options(), 0).unwrap().memory;
    memory.total() + LIBRARIES
}

/// Free memory of a GPU in which a rank with this micro-batch size fits, with the margin.
fn memory_for(size: usize, config: &Config, ranks: usize) -> u64 {
    predicted_memory(size, config, ranks).div_ceil(9) * 10 + 10
}

fn size(config: &Config) -> usize {
    match config.train.micro_batch {
        MicroBatchSize::Chosen(size) => size,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_ranks_have_the_size_of_the_smallest_gpu() {
    let config = config("");
    let folder = TempDir::new();
    let run = |memory: [u64; 2], shared: bool| {
        run_ranks(in_process::world(2), |comm| {
            let (mut config, rank) = (config.clone(), comm.rank());
            let ranks = if shared { vec![0, 1] } else { vec![rank] };
            let gpu = RankGpu { free: memory[rank as usize], ranks };
            gpu_micro_batch::resolve(&mut config, VOCAB_SIZE, &gpu, &folder.0, &*comm).unwrap();
            size(&config)
        })
    };
    let [one, two, four] = [1, 2, 4].map(|size| memory_for(size, &config, 2));
    assert_eq!(run([four, four], false), [4, 4]);
    assert_eq!(run([four, two], false), [2, 2]);
    assert_eq!(run([one - 1000, four], false), [1, 1]);
    // Ranks that share a GPU need twice the memory.
    assert_eq!(run([2 * two; 2], true), [2, 2]);
    assert_eq!(run([1 << 40; 2], false), [8, 8]);
}

/// A run on a GPU with this much memory, up to step `steps`: what it says of itself, its losses and notes.
fn train(memory: u64, steps: u64, folder: &Path) -> (RunInfo, Vec<f64>, Vec<String>) {
    let mut config = config(&format!("train.steps={steps}"));
    let fake = FakeDevice::new(Precision::F32).memory_bytes(usize::try_from(memory).unwrap());
    let device = fake.open().unwrap().deterministic_results();
    let comm: Arc<dyn Comm> = Arc::new(in_process::world(1).swap_remove(0));
    let gpu = RankGpu { free: device.free_bytes().unwrap(), ranks: vec![0] };
    let note = gpu_micro_batch::resolve(&mut config, VOCAB_SIZE, &gpu, folder, &*comm).unwrap();
    let device = Box::new(device);
    let setup: TrainingSetup =
        common::training_setup(&config, &DataSpec::default(), comm, device, folder.to_owned())
            .unwrap();
    let (mut info, mut losses, mut notes) = (RunInfo::default(), Vec::new(), Vec::from_iter(note));
    let mut emit = |event| match event {
        Event::Start(about) => info = *about,
        Event::Step(step) => losses.push(step.loss),
        Event::Note(note) => notes.push(note),
        _ => {}
    };
    training::run(setup, &|| false, &mut emit).unwrap();
    (info, losses, notes)
}

#[test]
fn a_resumed_run_keeps_its_size_where_it_fits() {
    let [small, large] = [2, 16].map(|size| memory_for(size, &config(""), 1));
    let folders = [(); 4].map(|()| TempDir::new());
    let [whole, resumed, moved, large_run] = &folders;
    let (info, expected, _) = train(small, 6, &whole.0);
    assert_eq!((info.micro_batch, info.micro_batch_auto), (2, true));
    let (_, first, _) = train(small, 3, &resumed.0);
    // A larger GPU.
    let (info, second, notes) = train(large, 6, &resumed.0);
    assert_eq!((info.micro_batch, info.start_step), (2, 3));
    assert_eq!([first, second].concat(), expected);
    assert!(!notes.iter().any(|note| note.contains("instead of")), "{notes:?}");
    // Another size has the same losses up to rounding.
    let (info, losses, _) = train(large, 6, &large_run.0);
    assert_eq!(info.micro_batch, 16);
    let is_close = |(one, other): (&f64, &f64)| (one - other).abs() < 1e-4 * other;
    assert!(losses.iter().zip(&expected).all(is_close), "{losses:?} {expected:?}");
    // A GPU in which no size has the margin, and the run's does not fit.
    train(large, 3, &moved.0);
    let smallest = predicted_memory(16, &config(""), 1) - 1;
    let (info, second, notes) = train(smallest, 6, &moved.0);
    assert_eq!(info.micro_batch, 1);
    assert!(second.iter().zip(&expected[3..]).all(is_close), "{second:?} {expected:?}");
    assert!(notes.iter().any(|note| note.contains("micro-batch 1 instead of 16")), "{notes:?}");
}
