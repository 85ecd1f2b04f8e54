//! A training that resumes under another parallel layout has the losses of an uninterrupted one on a
//! single rank.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use regatta_comm::{Comm, in_process};
use regatta_device::ops::Device;
use regatta_device::precision::Precision;
use regatta_device::reference::Reference;
use regatta_kernels_cpu::Cpu;
use regatta_train::checkpoint::Checkpoint;
use regatta_train::config::{self, Config};
use regatta_train::data::{self, DataDirs, DataSpec};
use regatta_train::job::{self, Job, TrainError};
use regatta_train::metrics::Event;

/// A temporary directory.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-resharding-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A parallel layout: number of ranks and configuration.
#[derive(Debug, Clone, Copy)]
struct Layout(u32, &'static str);

/// A model and its device.
#[derive(Debug, Clone, Copy)]
struct Trial {
    words: &'static str,
    device: fn() -> Box<dyn Device>,
}

const SINGLE_RANK: Layout = Layout(1, "");
const HALF_STEPS: u64 = 10;

/// The events of a training: losses and validation losses by step, and samples.
#[derive(Debug, Default, Clone)]
struct Outcome {
    losses: Vec<(u64, f64)>,
    validations: Vec<(u64, f64)>,
    samples: usize,
}

impl Trial {
    fn config(&self, layout: Layout, steps: u64) -> Config {
        let small = "model.hidden_size=16 model.num_layers=3 model.num_heads=4 model.seq_len=16 train.batch=12 \
                     train.eval_interval=5 train.eval_batches=1 optimizer.warmup_steps=2 decay_steps=20 \
                     model.dropout=0.1 optimizer.lr=0.01 checkpoint.interval=100";
        let steps = format!("train.steps={steps}");
        let words = [small, self.words, layout.1, &steps];
        let words: Vec<&str> = words.iter().flat_map(|some| some.split_whitespace()).collect();
        config::resolve(None, &words).unwrap().config
    }

    /// Trains up to step `steps`, resuming from the checkpoints in `dir`.
    fn train(&self, layout: Layout, steps: u64, dir: &Path) -> Outcome {
        let config = self.config(layout, steps);
        let start = |comm| {
            let (config, dir, device) = (config.clone(), dir.to_owned(), self.device);
            thread::spawn(move || rank(Arc::new(comm), config, dir, device()))
        };
        let all: Vec<_> = in_process::world(layout.0).into_iter().map(start).collect();
        let join = |rank: thread::JoinHandle<Result<_, _>>| rank.join().unwrap().unwrap();
        let mut all: Vec<Outcome> = all.into_iter().map(join).collect();
        assert!(all.iter().all(|outcome| outcome.losses == all[0].losses), "{layout:?}");
        all.swap_remove(0)
    }

    /// Half of the steps under one layout, the others under another.
    fn train_resharded(&self, one: Layout, other: Layout) -> Outcome {
        let dir = TempDir::new();
        let first = self.train(one, HALF_STEPS, &dir.0);
        let checkpoint = dir.0.join("checkpoints").join(format!("step-{HALF_STEPS:08}"));
        let bytes = Checkpoint::open(&checkpoint).unwrap().verify().unwrap();
        let elements = 3 * Checkpoint::open(&checkpoint).unwrap().meta().shape.num_params() as u64;
        assert_eq!(bytes, 4 * elements, "{one:?}: each element is saved once");
        let second = self.train(other, 2 * HALF_STEPS, &dir.0);
        Outcome {
            losses: [first.losses, second.losses].concat(),
            validations: [first.validations, second.validations].concat(),
            samples: second.samples,
        }
    }

    /// Compares with a single rank.
    fn check(&self, single: &Outcome, one: Layout, other: Layout, precision: f64) {
        let outcome = self.train_resharded(one, other);
        for (single, resharded) in
            [(&single.losses, &outcome.losses), (&single.validations, &outcome.validations)]
        {
            assert_eq!(single.len(), resharded.len(), "{one:?} {other:?}");
            for ((step, a), (other_step, b)) in single.iter().zip(resharded) {
                let error = (a - b).abs() / a;
                assert!(
                    step == other_step && error < precision,
                    "{} {one:?} {other:?} in step {step}: {a} on one rank, {b}",
                    self.words
                );
            }
        }
        assert_eq!(outcome.samples, 1, "{other:?} generates a sample");
    }
}

fn rank(
    comm: Arc<dyn Comm>,
    config: Config,
    dir: PathBuf,
    device: Box<dyn Device>,
) -> Result<Outcome, TrainError> {
    let dataset = data::open(&data::prepare(&DataSpec::default(), &DataDirs::default()).unwrap());
    let mut outcome = Outcome::default();
    let job = Job {
        config,
        name: "test".to_owned(),
        comm,
        device,
        threads: 1,
        kernels: String::new(),
        dataset: dataset.unwrap(),
        folder: dir,
        run: String::new(),
    };
    let mut tell = |event| match event {
        Event::Step(step) => outcome.losses.push((step.step, step.loss)),
        Event::Validation { step, loss } => outcome.validations.push((step, loss)),
        Event::Sample(text) => outcome.samples += usize::from(!text.is_empty()),
        _ => {}
    };
    job::run(job, &|| false, &mut tell)?;
    Ok(outcome)
}

/// Layouts before and after the resume.
const PAIRS: [(Layout, Layout); 12] = [
    (Layout(3, ""), Layout(2, "parallel.tp=2")),
    (Layout(4, "parallel.tp=2"), SINGLE_RANK),
    (SINGLE_RANK, Layout(4, "parallel.tp=2 parallel.pp=2")),
    (Layout(4, "parallel.pp=2"), Layout(2, "parallel.cp=2")),
    (
        Layout(4, "parallel.tp=4 parallel.sequence_parallel=false"),
        Layout(6, "parallel.dp=3 parallel.cp=2"),
    ),
    (Layout(4, "parallel.cp=2 parallel.tp=2"), Layout(3, "parallel.pp=3")),
    (Layout(3, "parallel.zero=1"), Layout(4, "parallel.zero=3")),
    (
        Layout(4, "parallel.zero=2 parallel.tp=2"),
        Layout(4, "parallel.zero=3 parallel.hsdp_shard=2"),
    ),
    (Layout(2, "parallel.zero=3 offload.parameters=disk"), Layout(2, "offload.optimizer=disk")),
    (Layout(2, "parallel.zero=3 parallel.tiles=3"), SINGLE_RANK),
    (Layout(4, "parallel.tp=2"), Layout(1, "parallel.tiles=4 offload.parameters=disk")),
    (Layout(4, "parallel.pp=2 parallel.zero=2 parallel.tiles=5"), Layout(2, "parallel.pp=2")),
];

#[test]
fn any_layout_resumes_as_any_other() {
    for words in ["model.family=gpt2", "model.family=llama"] {
        let trial = Trial { words, device: || Box::new(Cpu::new(1, Precision::F32)) };
        let single = trial.train(SINGLE_RANK, 2 * HALF_STEPS, &TempDir::new().0);
        let ends = [single.losses[0].1, single.losses[19].1];
        assert!(ends[1] < ends[0] - 0.2, "loss did not decrease: {single:?}");
        for (one, other) in PAIRS {
            trial.check(&single, one, other, 1e-5);
        }
    }
}

/// Checkpoints are in single precision, so the reference is resumed from one as well.
#[test]
fn resharding_is_exact_up_to_checkpoint_precision() {
    let words =
        "model.family=gpt2 model.hidden_size=8 model.num_layers=2 train.batch=4 model.seq_len=8";
    let trial = Trial { words, device: || Box::new(Reference) };
    let single = trial.train_resharded(SINGLE_RANK, SINGLE_RANK);
    let pairs = [
        (Layout(2, "parallel.tp=2"), Layout(2, "parallel.pp=2")),
        (Layout(4, "parallel.cp=2"), Layout(4, "parallel.tp=2")),
    ];
    for (one, other) in pairs {
        trial.check(&single, one, other, 1e-9);
    }
}

#[test]
fn a_rank_without_access_to_the_checkpoint_is_named() {
    let trial = Trial { words: "model.family=mlp", device: || Box::new(Reference) };
    let (first, second) = (TempDir::new(), TempDir::new());
    trial.train(SINGLE_RANK, 1, &first.0);
    let config = trial.config(Layout(2, ""), 2);
    let start = |(comm, dir): (_, &TempDir)| {
        let (config, dir) = (config.clone(), dir.0.clone());
        thread::spawn(move || rank(Arc::new(comm), config, dir, Box::new(Reference)))
    };
    let all: Vec<_> = in_process::world(2).into_iter().zip([&first, &second]).map(start).collect();
    let mut all: Vec<_> = all.into_iter().map(|rank| rank.join().unwrap()).collect();
    let error = all.swap_remove(1).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 on "), "{error}");
    let dir = second.0.join("checkpoints/step-00000001").display().to_string();
    assert!(error.contains(&dir) && error.contains("all nodes share"), "{error}");
    assert!(all.swap_remove(0).unwrap_err().to_string().contains("rank 1 on "));
}
