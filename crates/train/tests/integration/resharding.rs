//! A training that resumes under another parallel layout has the losses of an uninterrupted one on a
//! single rank.

use std::sync::Arc;

use regatta_comm::Comm;
use regatta_device::ops::Device;
use regatta_device::precision::Precision;
use regatta_device::reference::Reference;
use regatta_kernels_cpu::Cpu;
use regatta_testbed::in_process;
use regatta_train::checkpoint::Checkpoint;
use regatta_train::config::Config;
use regatta_train::data::DataSpec;
use regatta_train::metrics::Event;
use regatta_train::training::{self, TrainError};

use crate::common::{self, TempDir, run_ranks};

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
struct Recorded {
    losses: Vec<(u64, f64)>,
    validations: Vec<(u64, f64)>,
    samples: usize,
}

impl Trial {
    fn config(&self, layout: Layout, steps: u64) -> Config {
        let small = "model.family=gpt2 model.bias=false model.tie_embeddings=auto \
                     model.hidden_size=16 model.num_layers=3 model.num_heads=4 model.seq_len=16 train.batch=12 \
                     train.eval_interval=5 train.eval_batches=1 optimizer.warmup_steps=2 decay_steps=20 \
                     model.dropout=0.1 optimizer.lr=0.004 checkpoint.interval=100";
        let steps = format!("train.steps={steps}");
        common::config(&[small, self.words, layout.1, &steps])
    }

    /// Trains up to step `steps`, resuming from the checkpoints in `dir`.
    fn train(&self, layout: Layout, steps: u64, dir: &TempDir) -> Recorded {
        let config = self.config(layout, steps);
        let rank = |comm| rank(comm, &config, dir, (self.device)()).unwrap();
        let mut all = run_ranks(in_process::world(layout.0), rank);
        assert!(all.iter().all(|recorded| recorded.losses == all[0].losses), "{layout:?}");
        all.swap_remove(0)
    }

    /// Half of the steps under one layout, the others under another.
    fn train_resharded(&self, one: Layout, other: Layout) -> Recorded {
        let dir = TempDir::new();
        let first = self.train(one, HALF_STEPS, &dir);
        let checkpoint = dir.0.join("checkpoints").join(format!("step-{HALF_STEPS:08}"));
        let bytes = Checkpoint::open(&checkpoint).unwrap().verify().unwrap();
        let elements = 3 * Checkpoint::open(&checkpoint).unwrap().meta().shape.num_params() as u64;
        assert_eq!(bytes, 4 * elements, "{one:?}: each element is saved once");
        let second = self.train(other, 2 * HALF_STEPS, &dir);
        Recorded {
            losses: [first.losses, second.losses].concat(),
            validations: [first.validations, second.validations].concat(),
            samples: second.samples,
        }
    }

    /// Compares with a single rank.
    fn check(&self, single: &Recorded, one: Layout, other: Layout, precision: f64) {
        let recorded = self.train_resharded(one, other);
        for (single, resharded) in
            [(&single.losses, &recorded.losses), (&single.validations, &recorded.validations)]
        {
            assert_eq!(single.len(), resharded.len(), "{one:?} {other:?}");
            for ((step, a), (other_step, b)) in single.iter().zip(resharded) {
                let error = (a - b).abs() / a;
                let case = format!("{} {one:?} {other:?}", self.words);
                assert_eq!(step, other_step, "{case}");
                assert!(error < precision, "{case} in step {step}: {a} on one rank, {b}");
            }
        }
        assert_eq!(recorded.samples, 1, "{other:?} generates a sample");
    }
}

fn rank(
    comm: Arc<dyn Comm>,
    config: &Config,
    dir: &TempDir,
    device: Box<dyn Device>,
) -> Result<Recorded, TrainError> {
    let mut recorded = Recorded::default();
    let setup = common::training_setup(config, &DataSpec::default(), comm, device, dir.0.clone())?;
    let mut emit = |event| match event {
        Event::Step(step) => recorded.losses.push((step.step, step.loss)),
        Event::Validation { step, loss } => recorded.validations.push((step, loss)),
        Event::Sample(text) => recorded.samples += usize::from(!text.is_empty()),
        _ => {}
    };
    training::run(setup, &|| false, &mut emit)?;
    Ok(recorded)
}

/// Layouts before and after the resume.
const PAIRS: [(Layout, Layout); 12] = [
    (Layout(3, ""), Layout(2, "tp=2")),
    (Layout(4, "tp=2"), SINGLE_RANK),
    (SINGLE_RANK, Layout(4, "tp=2 pp=2")),
    (Layout(4, "pp=2"), Layout(2, "cp=2")),
    (Layout(4, "tp=4 sequence_parallel=false"), Layout(6, "dp=3 cp=2")),
    (Layout(4, "cp=2 tp=2"), Layout(3, "pp=3")),
    (Layout(3, "zero=1"), Layout(4, "zero=3")),
    (Layout(4, "zero=2 tp=2"), Layout(4, "zero=3 hsdp_shard=2")),
    (Layout(2, "zero=3 offload.parameters=disk"), Layout(2, "offload.optimizer=disk")),
    (Layout(2, "zero=3 tiles=3"), SINGLE_RANK),
    (Layout(4, "tp=2"), Layout(1, "tiles=4 offload.parameters=disk")),
    (Layout(4, "pp=2 zero=2 tiles=5"), Layout(2, "pp=2")),
];

#[test]
fn any_layout_resumes_as_any_other() {
    for words in ["model.family=gpt2", "model.family=llama"] {
        let trial = Trial { words, device: || Box::new(Cpu::new(1, Precision::F32)) };
        let single = trial.train(SINGLE_RANK, 2 * HALF_STEPS, &TempDir::new());
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
    let pairs = [(Layout(2, "tp=2"), Layout(2, "pp=2")), (Layout(4, "cp=2"), Layout(4, "tp=2"))];
    for (one, other) in pairs {
        trial.check(&single, one, other, 1e-9);
    }
}

#[test]
fn a_rank_without_access_to_the_checkpoint_is_named() {
    let trial = Trial { words: "model.family=mlp", device: || Box::new(Reference) };
    let (first, second) = (TempDir::new(), TempDir::new());
    trial.train(SINGLE_RANK, 1, &first);
    let config = trial.config(Layout(2, ""), 2);
    let mut all = run_ranks(in_process::world(2), |comm| {
        let dir = [&first, &second][comm.rank() as usize];
        rank(comm, &config, dir, Box::new(Reference))
    });
    let error = all.swap_remove(1).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 on "), "{error}");
    let dir = second.0.join("checkpoints/step-00000001").display().to_string();
    assert!(error.contains(&dir) && error.contains("all nodes share"), "{error}");
    assert!(all.swap_remove(0).unwrap_err().to_string().contains("rank 1 on "));
}
