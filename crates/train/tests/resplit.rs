//! A training that is kept under one split and goes on under another: the losses of one rank that was
//! never disturbed.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use regatta_comm::{Comm, fake};
use regatta_device::device::Device;
use regatta_device::precision::Precision;
use regatta_device::reference::Reference;
use regatta_kernels_cpu::Cpu;
use regatta_train::checkpoint::Checkpoint;
use regatta_train::config::{self, Config};
use regatta_train::data::{self, Places, Spec};
use regatta_train::job::{self, Job, TrainError};
use regatta_train::metrics::Event;

/// A folder of its own for a test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-resplit-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How ranks share a training.
#[derive(Debug, Clone, Copy)]
struct Split(u32, &'static str);

/// What is trained, and on what.
#[derive(Debug, Clone, Copy)]
struct Trial {
    words: &'static str,
    device: fn() -> Box<dyn Device>,
}

const ALONE: Split = Split(1, "");
const HALF: u64 = 10;

/// What a training came to: losses by step, validation losses, and a text.
#[derive(Debug, Default, Clone)]
struct Told {
    losses: Vec<(u64, f64)>,
    validations: Vec<(u64, f64)>,
    samples: usize,
}

impl Trial {
    fn config(&self, split: Split, steps: u64) -> Config {
        let small = "model.width=16 model.layers=3 model.heads=4 model.context=16 train.batch=12 \
                     train.eval_every=5 train.eval_batches=1 optimizer.warmup=2 decay_steps=20 \
                     model.dropout=0.1 optimizer.rate=0.01 checkpoint.every=100";
        let steps = format!("train.steps={steps}");
        let words = [small, self.words, split.1, &steps];
        let words: Vec<&str> = words.iter().flat_map(|some| some.split_whitespace()).collect();
        config::resolve(None, &words).unwrap().config
    }

    /// Trains until so many steps are done, from wherever the folder is.
    fn train(&self, split: Split, steps: u64, folder: &Path) -> Told {
        let config = self.config(split, steps);
        let start = |comm| {
            let (config, folder, device) = (config.clone(), folder.to_owned(), self.device);
            thread::spawn(move || rank(Arc::new(comm), config, folder, device()))
        };
        let all: Vec<_> = fake::world(split.0).into_iter().map(start).collect();
        let join = |rank: thread::JoinHandle<Result<_, _>>| rank.join().unwrap().unwrap();
        let mut all: Vec<Told> = all.into_iter().map(join).collect();
        assert!(all.iter().all(|told| told.losses == all[0].losses), "{split:?}");
        all.swap_remove(0)
    }

    /// Half of the steps under one split, the others under another.
    fn change(&self, one: Split, other: Split) -> Told {
        let folder = Folder::new();
        let first = self.train(one, HALF, &folder.0);
        let kept = folder.0.join("checkpoints").join(format!("step-{HALF:08}"));
        let bytes = Checkpoint::open(&kept).unwrap().verify().unwrap();
        let numbers = 3 * Checkpoint::open(&kept).unwrap().about().shape.parameters() as u64;
        assert_eq!(bytes, 4 * numbers, "{one:?}: each number is kept once");
        let second = self.train(other, 2 * HALF, &folder.0);
        Told {
            losses: [first.losses, second.losses].concat(),
            validations: [first.validations, second.validations].concat(),
            samples: second.samples,
        }
    }

    /// The losses of a split that becomes another are those of one rank.
    fn check(&self, alone: &Told, one: Split, other: Split, precision: f64) {
        let told = self.change(one, other);
        for (alone, told) in
            [(&alone.losses, &told.losses), (&alone.validations, &told.validations)]
        {
            assert_eq!(alone.len(), told.len(), "{one:?} {other:?}");
            for ((step, a), (other_step, b)) in alone.iter().zip(told) {
                let off = (a - b).abs() / a;
                assert!(
                    step == other_step && off < precision,
                    "{} {one:?} {other:?} in step {step}: {a} alone, {b}",
                    self.words
                );
            }
        }
        assert_eq!(told.samples, 1, "{other:?} writes a text");
    }
}

fn rank(
    comm: Arc<dyn Comm>,
    config: Config,
    folder: PathBuf,
    device: Box<dyn Device>,
) -> Result<Told, TrainError> {
    let dataset = data::open(&data::prepare(&Spec::default(), &Places::default()).unwrap());
    let mut told = Told::default();
    let job = Job {
        config,
        name: "test".to_owned(),
        comm,
        device,
        threads: 1,
        kernels: String::new(),
        dataset: dataset.unwrap(),
        folder,
        run: String::new(),
    };
    let mut tell = |event| match event {
        Event::Step(step) => told.losses.push((step.step, step.loss)),
        Event::Validation { step, loss } => told.validations.push((step, loss)),
        Event::Sample(text) => told.samples += usize::from(!text.is_empty()),
        _ => {}
    };
    job::run(job, &|| false, &mut tell)?;
    Ok(told)
}

/// Splits into which and out of which trainings are led.
const PAIRS: [(Split, Split); 12] = [
    (Split(3, ""), Split(2, "parallel.tp=2")),
    (Split(4, "parallel.tp=2"), ALONE),
    (ALONE, Split(4, "parallel.tp=2 parallel.pp=2")),
    (Split(4, "parallel.pp=2"), Split(2, "parallel.cp=2")),
    (Split(4, "parallel.tp=4 parallel.sequence=false"), Split(6, "parallel.dp=3 parallel.cp=2")),
    (Split(4, "parallel.cp=2 parallel.tp=2"), Split(3, "parallel.pp=3")),
    (Split(3, "parallel.zero=1"), Split(4, "parallel.zero=3")),
    (Split(4, "parallel.zero=2 parallel.tp=2"), Split(4, "parallel.zero=3 parallel.shard=2")),
    (Split(2, "parallel.zero=3 offload.parameters=disk"), Split(2, "offload.optimizer=disk")),
    (Split(2, "parallel.zero=3 parallel.tiles=3"), ALONE),
    (Split(4, "parallel.tp=2"), Split(1, "parallel.tiles=4 offload.parameters=disk")),
    (Split(4, "parallel.pp=2 parallel.zero=2 parallel.tiles=5"), Split(2, "parallel.pp=2")),
];

#[test]
fn any_split_goes_on_as_any_other() {
    for words in ["model.family=gpt2", "model.family=llama"] {
        let trial = Trial { words, device: || Box::new(Cpu::new(1, Precision::F32)) };
        let alone = trial.train(ALONE, 2 * HALF, &Folder::new().0);
        let ends = [alone.losses[0].1, alone.losses[19].1];
        assert!(ends[1] < ends[0] - 0.2, "nothing was learnt: {alone:?}");
        for (one, other) in PAIRS {
            trial.check(&alone, one, other, 1e-5);
        }
    }
}

/// Numbers are kept in single precision, so what it is compared with was kept as well.
#[test]
fn nothing_but_rounding_differs() {
    let words = "model.family=gpt2 model.width=8 model.layers=2 train.batch=4 model.context=8";
    let trial = Trial { words, device: || Box::new(Reference) };
    let alone = trial.change(ALONE, ALONE);
    let pairs = [
        (Split(2, "parallel.tp=2"), Split(2, "parallel.pp=2")),
        (Split(4, "parallel.cp=2"), Split(4, "parallel.tp=2")),
    ];
    for (one, other) in pairs {
        trial.check(&alone, one, other, 1e-9);
    }
}

#[test]
fn a_rank_that_does_not_see_the_checkpoint_is_named() {
    let trial = Trial { words: "model.family=mlp", device: || Box::new(Reference) };
    let (here, there) = (Folder::new(), Folder::new());
    trial.train(ALONE, 1, &here.0);
    let config = trial.config(Split(2, ""), 2);
    let start = |(comm, folder): (_, &Folder)| {
        let (config, folder) = (config.clone(), folder.0.clone());
        thread::spawn(move || rank(Arc::new(comm), config, folder, Box::new(Reference)))
    };
    let all: Vec<_> = fake::world(2).into_iter().zip([&here, &there]).map(start).collect();
    let mut all: Vec<_> = all.into_iter().map(|rank| rank.join().unwrap()).collect();
    let error = all.swap_remove(1).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 on "), "{error}");
    let folder = there.0.join("checkpoints/step-00000001").display().to_string();
    assert!(error.contains(&folder) && error.contains("all nodes share"), "{error}");
    assert!(all.swap_remove(0).unwrap_err().to_string().contains("rank 1 on "));
}
