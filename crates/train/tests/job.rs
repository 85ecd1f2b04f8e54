//! Training runs end to end: losses do not depend on ranks, sharding, restarts or resume points.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use regatta_comm::{Comm, in_process};
use regatta_device::precision::Precision;
use regatta_kernels_cpu::Cpu;
use regatta_predict::rank_bytes::{DiskIoBytes, SentBytes};
use regatta_train::checkpoint::Checkpoint;
use regatta_train::config::{self, Config, Resume};
use regatta_train::data::{self, DataDirs, DataSpec};
use regatta_train::job::{self, Job, TrainError};
use regatta_train::metrics::{EndReason, Event};

/// A temporary run folder.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-job-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Name of the runs.
const RUN: &str = "a-test";

fn config(args: &[&str]) -> Config {
    let small = "model.hidden_size=32 model.num_layers=2 model.num_heads=2 model.seq_len=16 \
                 train.batch=24 train.steps=12 train.eval_interval=5 train.eval_batches=1 optimizer.warmup_steps=2 \
                 checkpoint.interval=4 model.dropout=0.1 optimizer.lr=0.01";
    let all: Vec<&str> = small.split_whitespace().chain(args.iter().copied()).collect();
    config::resolve(None, &all).unwrap().config
}

/// Events of a run.
#[derive(Debug, Default, Clone)]
struct Recorded {
    losses: Vec<(u64, f64)>,
    validations: Vec<(u64, f64)>,
    notes: Vec<String>,
    checkpoints: Vec<u64>,
    sent: Vec<SentBytes>,
    disk_io: Vec<DiskIoBytes>,
}

/// Trains on `ranks` ranks, interrupted after a step if given.
fn train(
    ranks: u32,
    config: &Config,
    folder: &Path,
    stop_after: Option<u64>,
) -> Result<(EndReason, Recorded), TrainError> {
    train_on(ranks, config, folder, stop_after, &[DataSpec::default()])
}

/// The same on other data, possibly different per rank.
fn train_on(
    ranks: u32,
    config: &Config,
    folder: &Path,
    stop_after: Option<u64>,
    data: &[DataSpec],
) -> Result<(EndReason, Recorded), TrainError> {
    let one = move |comm: Arc<dyn Comm>, spec: DataSpec, config: Config, folder: PathBuf| {
        let dataset = data::open(&data::prepare(&spec, &DataDirs::default())?)?;
        let precision = config.train.precision;
        let mut recorded = Recorded::default();
        let rank = comm.rank();
        let done = std::cell::Cell::new(0);
        let job = Job {
            config,
            name: "test".to_owned(),
            comm,
            device: Box::new(Cpu::new(1, precision)),
            threads: 1,
            kernels: String::new(),
            dataset,
            folder,
            run: RUN.to_owned(),
        };
        // Only the last rank is interrupted.
        let stop = || rank == ranks - 1 && stop_after.is_some_and(|after| done.get() + 1 >= after);
        let mut emit = |event| match event {
            Event::Step(step) => {
                done.set(step.step);
                recorded.losses.push((step.step, step.loss));
            }
            Event::Validation { step, loss } => recorded.validations.push((step, loss)),
            Event::Note(note) => recorded.notes.push(note),
            Event::Checkpoint { step, .. } => recorded.checkpoints.push(step),
            Event::End(summary) => {
                (recorded.sent, recorded.disk_io) = (summary.sent, summary.disk_io);
            }
            _ => {}
        };
        let reason = job::run(job, &stop, &mut emit)?;
        Ok((reason, recorded))
    };
    let start = |(comm, spec): (_, &DataSpec)| {
        let (spec, config, folder) = (spec.clone(), config.clone(), folder.to_owned());
        thread::spawn(move || one(Arc::new(comm), spec, config, folder))
    };
    let all: Vec<_> =
        in_process::world(ranks).into_iter().zip(data.iter().cycle()).map(start).collect();
    let mut all: Vec<_> = all.into_iter().map(|rank| rank.join().unwrap()).collect();
    all.swap_remove(0)
}

fn near(one: &[(u64, f64)], other: &[(u64, f64)]) -> bool {
    let same = |((a, x), (b, y)): (&(u64, f64), &(u64, f64))| a == b && (x - y).abs() < 1e-5 * x;
    one.len() == other.len() && one.iter().zip(other).all(same)
}

#[test]
fn losses_do_not_depend_on_ranks_and_micro_batches() {
    let folder = Folder::new();
    let (reason, single) = train(1, &config(&[]), &folder.0, None).unwrap();
    assert_eq!(reason, EndReason::Completed);
    assert!(single.losses[11].1 < single.losses[0].1 - 0.3, "the loss did not fall: {single:?}");
    assert_eq!(single.validations.iter().map(|v| v.0).collect::<Vec<_>>(), [5, 10, 12]);
    assert_eq!(single.checkpoints, [4, 8, 12]);
    for (ranks, words) in
        [(2, vec![]), (3, vec!["train.micro_batch=4"]), (8, vec!["recompute=true"])]
    {
        let folder = Folder::new();
        let (_, many) = train(ranks, &config(&words), &folder.0, None).unwrap();
        assert!(near(&single.losses, &many.losses), "{ranks}: {single:?} {many:?}");
        assert!(near(&single.validations, &many.validations), "{ranks}");
        let [sent] = &many.sent[..] else { panic!("{:?}", many.sent) };
        assert_eq!((sent.axis.as_str(), sent.measured), ("data", Some(sent.expected)), "{ranks}");
        assert!(sent.expected > 0);
    }
    assert_eq!((single.sent, single.disk_io), (vec![], vec![]));
}

#[test]
fn offload_io_of_steps_matches_the_prediction() {
    let both = "offload.optimizer=disk offload.parameters=disk";
    let cases = [
        (1, "offload.optimizer=disk".to_owned()),
        (1, format!("{both} train.micro_batch=8")),
        (2, format!("{both} parallel.tiles=2 train.micro_batch=4 train.recompute=true")),
    ];
    for (ranks, words) in cases {
        let (folder, words) = (Folder::new(), words.split(' ').collect::<Vec<_>>());
        // Validation and checkpoints read too, and are not counted.
        let (_, recorded) = train(ranks, &config(&words), &folder.0, None).unwrap();
        assert_eq!((recorded.validations.len(), recorded.checkpoints.len()), (3, 3));
        let [read, written] = &recorded.disk_io[..] else { panic!("{:?}", recorded.disk_io) };
        assert_eq!((&*read.what, &*written.what), ("read", "written"));
        assert_eq!(read.measured, Some(read.expected), "{ranks} {words:?}");
        assert_eq!(written.measured, Some(written.expected), "{ranks} {words:?}");
        assert!(read.measured >= written.measured && written.measured > Some(0));
    }
}

#[test]
fn an_interrupted_run_resumes_bit_exactly() {
    let whole = Folder::new();
    let (_, undisturbed) = train(2, &config(&[]), &whole.0, None).unwrap();
    let folder = Folder::new();
    let (reason, first) = train(2, &config(&[]), &folder.0, Some(6)).unwrap();
    assert_eq!((reason, first.losses.len()), (EndReason::Interrupted, 6));
    let (reason, rest) = train(2, &config(&[]), &folder.0, None).unwrap();
    assert_eq!(reason, EndReason::Completed);
    assert!(rest.notes[0].starts_with("resumed after step 6"), "{:?}", rest.notes);
    // Bit-exact.
    let all = [first.losses, rest.losses.clone()].concat();
    assert_eq!(all, undisturbed.losses);
    // On another number of ranks only the order of sums differs.
    let other = Folder::new();
    train(2, &config(&[]), &other.0, Some(6)).unwrap();
    let (_, more) = train(3, &config(&[]), &other.0, None).unwrap();
    assert!(near(&more.losses, &rest.losses), "{more:?} {rest:?}");
}

#[test]
fn sharded_and_offloaded_runs_resume_from_each_other() {
    let whole = train(1, &config(&[]), &Folder::new().0, None).unwrap().1;
    let all = [
        (2, vec!["parallel.zero=1"]),
        (3, vec!["parallel.zero=3"]),
        (2, vec!["offload.optimizer=disk", "offload.parameters=disk"]),
        (4, vec!["parallel.zero=2", "parallel.hsdp_shard=2"]),
        (1, vec!["offload.parameters=disk", "offload.optimizer=host"]),
        (2, vec!["parallel.zero=2", "offload.optimizer=disk"]),
    ];
    // Each resumes from the checkpoint of the previous one.
    for ((first, before), (second, after)) in all.iter().zip(all.iter().cycle().skip(1)) {
        let folder = Folder::new();
        let (_, one) = train(*first, &config(before), &folder.0, Some(6)).unwrap();
        let (_, other) = train(*second, &config(after), &folder.0, None).unwrap();
        let losses: Vec<_> = one.losses.iter().chain(&other.losses).copied().collect();
        assert!(near(&losses, &whole.losses), "{before:?} {after:?}: {losses:?} {whole:?}");
        let validations: Vec<_> =
            one.validations.iter().chain(&other.validations).copied().collect();
        assert!(near(&validations, &whole.validations), "{before:?} {after:?}: {validations:?}");
        let left = |name: &str| folder.0.join("offloaded").join(name).exists();
        assert!(!left("moments-0") && !left("parameters-0"));
    }
}

/// No sample is repeated or skipped when the global batch changes.
#[test]
fn a_run_resumes_with_a_different_global_batch() {
    let each_four = |steps: &str| {
        let mut config = config(&["eval_interval=0", "decay_steps=12", steps]);
        (config.train.batch, config.train.batch_per_replica) = (0, 4);
        config
    };
    let folder = Folder::new();
    train(1, &each_four("steps=4"), &folder.0, None).unwrap();
    train(2, &each_four("steps=6"), &folder.0, None).unwrap();
    let checkpoint = Checkpoint::open(&folder.0.join("checkpoints/step-00000006")).unwrap();
    assert_eq!(checkpoint.meta().tokens, 16 * (4 * 4 + 2 * 8));
}

#[test]
fn a_damaged_checkpoint_is_skipped() {
    let folder = Folder::new();
    let (_, whole) = train(1, &config(&[]), &folder.0, None).unwrap();
    let newest = folder.0.join("checkpoints/step-00000012");
    let file = newest.join("rank-00000.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let (_, again) = train(1, &config(&[]), &folder.0, None).unwrap();
    assert!(again.notes[0].starts_with("skipped damaged checkpoint "), "{:?}", again.notes);
    assert_eq!(again.losses, whole.losses[8..]);
}

#[test]
fn a_checkpoint_of_a_different_model_is_refused() {
    let folder = Folder::new();
    train(1, &config(&["steps=4", "decay_steps=12"]), &folder.0, None).unwrap();
    let error =
        train(1, &config(&["model.num_layers=3"]), &folder.0, None).unwrap_err().to_string();
    assert!(error.contains("is 2 in the checkpoint and 3 in the configuration"), "{error}");
    let error = train(2, &config(&["resume=/nowhere"]), &folder.0, None).unwrap_err().to_string();
    assert!(error.contains("no checkpoint to resume from in /nowhere"), "{error}");
    let error = train(5, &config(&[]), &folder.0, None).unwrap_err().to_string();
    assert!(error.contains("train.batch 24 is not divisible by 5 ranks"), "{error}");
}

/// Two texts with the same length and characters.
fn verses(folder: &Folder) -> [DataSpec; 2] {
    let lines = ["The sea is calm tonight\n", "the moon lies fair\n"];
    std::fs::create_dir_all(&folder.0).unwrap();
    [[0, 1], [1, 0]].map(|order| {
        let path = folder.0.join(format!("{order:?}.txt"));
        std::fs::write(&path, order.map(|line: usize| lines[line].repeat(40)).concat()).unwrap();
        DataSpec { data: path.display().to_string(), ..DataSpec::default() }
    })
}

#[test]
fn changed_data_is_refused() {
    let texts = Folder::new();
    let [one, other] = &verses(&texts).map(|spec| [spec]);
    let folder = Folder::new();
    let short = ["steps=4", "decay_steps=12"];
    train_on(1, &config(&short), &folder.0, None, one).unwrap();
    let error = train_on(1, &config(&[]), &folder.0, None, other).unwrap_err().to_string();
    assert!(error.contains("step-00000004 was trained on different data ("), "{error}");
    let hint = format!("checkpoint.resume={}/checkpoints/step-00000004", folder.0.display());
    assert!(error.ends_with(&hint), "{error}");
    // As suggested; the run then continues on the new data.
    let word = hint.split_once('.').unwrap().1;
    let longer = ["steps=8", "decay_steps=12", word];
    train_on(1, &config(&longer), &folder.0, None, other).unwrap();
    train_on(1, &config(&[]), &folder.0, None, other).unwrap();
    // All ranks must have the same data.
    let both = verses(&texts);
    let error = train_on(2, &config(&[]), &Folder::new().0, None, &both).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 on ") && error.contains("has a different data"), "{error}");
}

fn names(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.0.join("checkpoints")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}

#[test]
fn a_run_that_resumes_from_another_saves_its_own_checkpoints() {
    let (other_run, folder) = (Folder::new(), Folder::new());
    train(1, &config(&["decay_steps=12"]), &other_run.0, None).unwrap();
    let from = format!("resume={}", other_run.0.display());
    // No step is left, but the checkpoint is saved.
    train(2, &config(&["decay_steps=12", &from]), &folder.0, None).unwrap();
    assert_eq!(names(&folder), ["step-00000012"]);
    // Checkpoints of an earlier run in this folder are moved aside.
    let folder = Folder::new();
    train(1, &config(&["steps=8", "decay_steps=12"]), &folder.0, None).unwrap();
    assert_eq!(names(&folder), ["step-00000004", "step-00000008"]);
    let args = ["steps=14", "decay_steps=12", "checkpoint.interval=100", &from];
    let (_, recorded) = train(1, &config(&args), &folder.0, Some(1)).unwrap();
    assert!(recorded.notes[0].starts_with("resumed after step 12 from "), "{recorded:?}");
    let aside = ["step-00000004.aside-1", "step-00000008.aside-1", "step-00000013"];
    assert_eq!(names(&folder), aside);
}

#[test]
fn restarted_ranks_resume_only_from_their_own_run() {
    let folder = Folder::new();
    let mut config = config(&["steps=4", "decay_steps=12", "resume=never"]);
    train(1, &config, &folder.0, None).unwrap();
    job::resume_own_run(&mut config, &folder.0, "another").unwrap();
    assert_eq!(config.checkpoint.resume, Resume::Never, "checkpoints of another run");
    job::resume_own_run(&mut config, &folder.0, RUN).unwrap();
    assert_eq!(config.checkpoint.resume, Resume::Auto);
}

#[test]
fn non_finite_values_end_the_run() {
    let folder = Folder::new();
    let args = ["optimizer.name=sgd", "lr=1e30", "grad_clip=0", "warmup_steps=0"];
    let error = train(2, &config(&args), &folder.0, None).unwrap_err().to_string();
    // Gradients overflow no later than the loss.
    let is_named = ["loss is", "gradient norm is"].iter().any(|it| error.contains(it));
    assert!(is_named && error.contains("optimizer.lr"), "{error}");
    // The last update does not affect any loss.
    let args = ["steps=1", "lr=1e300", "warmup_steps=0", "decay_steps=12"];
    let error = train(1, &config(&args), &Folder::new().0, None).unwrap_err().to_string();
    assert!(error.contains("parameter norm is"), "{error}");
}

#[test]
fn an_oversized_vocabulary_is_noted() {
    let folder = Folder::new();
    let args = ["steps=1", "decay_steps=12", "model.vocab_size=5000"];
    let (_, recorded) = train(1, &config(&args), &folder.0, None).unwrap();
    assert!(recorded.notes[0].starts_with("model.vocab_size is 5000, but"), "{:?}", recorded.notes);
}

#[test]
fn bf16_losses_are_close_to_f32() {
    let (one, other) = (Folder::new(), Folder::new());
    let (_, single) = train(1, &config(&["lr=0.002"]), &one.0, None).unwrap();
    let bf16 = config(&["lr=0.002", "train.precision=bf16"]);
    assert_eq!(bf16.train.precision, Precision::Bf16);
    let (_, bf16) = train(1, &bf16, &other.0, None).unwrap();
    let pairs = single.losses.iter().zip(&bf16.losses);
    let off = pairs.map(|(a, b)| (a.1 - b.1).abs()).fold(0.0, f64::max);
    assert!(off > 0.0 && off < 0.002, "{off}: {single:?} {bf16:?}");
}
