//! Whole trainings: the same losses whatever happens on the way.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use regatta_comm::{Comm, fake};
use regatta_device::precision::Precision;
use regatta_kernels_cpu::Cpu;
use regatta_predict::bytes::{MovedBytes, SentBytes};
use regatta_train::checkpoint::Checkpoint;
use regatta_train::config::{self, Config, Resume};
use regatta_train::data::{self, Places, Spec};
use regatta_train::job::{self, Job, TrainError};
use regatta_train::metrics::{Ended, Event};

/// A folder of its own for a test.
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

/// What the runs of these tests are called.
const RUN: &str = "a-test";

fn config(words: &[&str]) -> Config {
    let small = "model.width=32 model.layers=2 model.heads=2 model.context=16 train.batch=24 \
                 train.steps=12 train.eval_every=5 train.eval_batches=1 optimizer.warmup=2 \
                 checkpoint.every=4 model.dropout=0.1 optimizer.rate=0.01";
    let all: Vec<&str> = small.split_whitespace().chain(words.iter().copied()).collect();
    config::resolve(None, &all).unwrap().config
}

/// What a training came to: losses by step, validation losses, notes.
#[derive(Debug, Default, Clone)]
struct Told {
    losses: Vec<(u64, f64)>,
    validations: Vec<(u64, f64)>,
    notes: Vec<String>,
    checkpoints: Vec<u64>,
    sent: Vec<SentBytes>,
    moved: Vec<MovedBytes>,
}

/// Trains on so many ranks until a step after which it is told to stop.
fn train(
    ranks: u32,
    config: &Config,
    folder: &Path,
    stop_after: Option<u64>,
) -> Result<(Ended, Told), TrainError> {
    train_on(ranks, config, folder, stop_after, &[Spec::default()])
}

/// The same on other data, of which ranks may each have their own.
fn train_on(
    ranks: u32,
    config: &Config,
    folder: &Path,
    stop_after: Option<u64>,
    data: &[Spec],
) -> Result<(Ended, Told), TrainError> {
    let one = move |comm: Arc<dyn Comm>, spec: Spec, config: Config, folder: PathBuf| {
        let dataset = data::open(&data::prepare(&spec, &Places::default())?)?;
        let precision = config.train.precision;
        let mut told = Told::default();
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
        // Only the last rank hears of it.
        let stop = || rank == ranks - 1 && stop_after.is_some_and(|after| done.get() + 1 >= after);
        let mut tell = |event| match event {
            Event::Step(step) => {
                done.set(step.step);
                told.losses.push((step.step, step.loss));
            }
            Event::Validation { step, loss } => told.validations.push((step, loss)),
            Event::Note(note) => told.notes.push(note),
            Event::Checkpoint { step, .. } => told.checkpoints.push(step),
            Event::End(summary) => (told.sent, told.moved) = (summary.sent, summary.moved),
            _ => {}
        };
        let ended = job::run(job, &stop, &mut tell)?;
        Ok((ended, told))
    };
    let start = |(comm, spec): (_, &Spec)| {
        let (spec, config, folder) = (spec.clone(), config.clone(), folder.to_owned());
        thread::spawn(move || one(Arc::new(comm), spec, config, folder))
    };
    let all: Vec<_> = fake::world(ranks).into_iter().zip(data.iter().cycle()).map(start).collect();
    let mut all: Vec<_> = all.into_iter().map(|rank| rank.join().unwrap()).collect();
    all.swap_remove(0)
}

fn near(one: &[(u64, f64)], other: &[(u64, f64)]) -> bool {
    let same = |((a, x), (b, y)): (&(u64, f64), &(u64, f64))| a == b && (x - y).abs() < 1e-5 * x;
    one.len() == other.len() && one.iter().zip(other).all(same)
}

#[test]
fn ranks_and_passes_train_as_one_rank_does() {
    let folder = Folder::new();
    let (ended, alone) = train(1, &config(&[]), &folder.0, None).unwrap();
    assert_eq!(ended, Ended::Done);
    assert!(alone.losses[11].1 < alone.losses[0].1 - 0.3, "nothing was learnt: {alone:?}");
    assert_eq!(alone.validations.iter().map(|v| v.0).collect::<Vec<_>>(), [5, 10, 12]);
    assert_eq!(alone.checkpoints, [4, 8, 12]);
    for (ranks, words) in
        [(2, vec![]), (3, vec!["train.micro_batch=4"]), (8, vec!["recompute=true"])]
    {
        let folder = Folder::new();
        let (_, many) = train(ranks, &config(&words), &folder.0, None).unwrap();
        assert!(near(&alone.losses, &many.losses), "{ranks}: {alone:?} {many:?}");
        assert!(near(&alone.validations, &many.validations), "{ranks}");
        let [sent] = &many.sent[..] else { panic!("{:?}", many.sent) };
        assert_eq!((sent.axis.as_str(), sent.measured), ("data", Some(sent.expected)), "{ranks}");
        assert!(sent.expected > 0);
    }
    assert_eq!((alone.sent, alone.moved), (vec![], vec![]));
}

#[test]
fn what_steps_read_and_write_is_what_was_expected_whatever_is_between_them() {
    let both = "offload.optimizer=disk offload.parameters=disk";
    let cases = [
        (1, "offload.optimizer=disk".to_owned()),
        (1, format!("{both} train.micro_batch=8")),
        (2, format!("{both} parallel.tiles=2 train.micro_batch=4 train.recompute=true")),
    ];
    for (ranks, words) in cases {
        let (folder, words) = (Folder::new(), words.split(' ').collect::<Vec<_>>());
        // Validations and checkpoints read, too.
        let (_, told) = train(ranks, &config(&words), &folder.0, None).unwrap();
        assert_eq!((told.validations.len(), told.checkpoints.len()), (3, 3));
        let [read, written] = &told.moved[..] else { panic!("{:?}", told.moved) };
        assert_eq!((&*read.what, &*written.what), ("read", "written"));
        assert_eq!(read.measured, Some(read.expected), "{ranks} {words:?}");
        assert_eq!(written.measured, Some(written.expected), "{ranks} {words:?}");
        assert!(read.measured >= written.measured && written.measured > Some(0));
    }
}

#[test]
fn what_is_stopped_goes_on_as_if_nothing_had_been() {
    let whole = Folder::new();
    let (_, undisturbed) = train(2, &config(&[]), &whole.0, None).unwrap();
    let folder = Folder::new();
    let (ended, first) = train(2, &config(&[]), &folder.0, Some(6)).unwrap();
    assert_eq!((ended, first.losses.len()), (Ended::Interrupted, 6));
    let (ended, rest) = train(2, &config(&[]), &folder.0, None).unwrap();
    assert_eq!(ended, Ended::Done);
    assert!(rest.notes[0].starts_with("goes on after step 6"), "{:?}", rest.notes);
    // Bit by bit.
    let all = [first.losses, rest.losses.clone()].concat();
    assert_eq!(all, undisturbed.losses);
    // On another number of ranks the order of sums differs, and nothing else.
    let other = Folder::new();
    train(2, &config(&[]), &other.0, Some(6)).unwrap();
    let (_, more) = train(3, &config(&[]), &other.0, None).unwrap();
    assert!(near(&more.losses, &rest.losses), "{more:?} {rest:?}");
}

#[test]
fn shared_state_is_kept_and_goes_on_as_any_other() {
    let whole = train(1, &config(&[]), &Folder::new().0, None).unwrap().1;
    let all = [
        (2, vec!["parallel.zero=1"]),
        (3, vec!["parallel.zero=3"]),
        (2, vec!["offload.optimizer=disk", "offload.parameters=disk"]),
        (4, vec!["parallel.zero=2", "parallel.shard=2"]),
        (1, vec!["offload.parameters=disk", "offload.optimizer=host"]),
        (2, vec!["parallel.zero=2", "offload.optimizer=disk"]),
    ];
    // Each goes on from what the one before has kept.
    for ((first, before), (second, behind)) in all.iter().zip(all.iter().cycle().skip(1)) {
        let folder = Folder::new();
        let (_, one) = train(*first, &config(before), &folder.0, Some(6)).unwrap();
        let (_, other) = train(*second, &config(behind), &folder.0, None).unwrap();
        let losses: Vec<_> = one.losses.iter().chain(&other.losses).copied().collect();
        assert!(near(&losses, &whole.losses), "{before:?} {behind:?}: {losses:?} {whole:?}");
        let validations: Vec<_> =
            one.validations.iter().chain(&other.validations).copied().collect();
        assert!(near(&validations, &whole.validations), "{before:?} {behind:?}: {validations:?}");
        let left = |name: &str| folder.0.join("offloaded").join(name).exists();
        assert!(!left("moments-0") && !left("parameters-0"));
    }
}

/// Other ranks, other batches: no sample twice, none left out, all counted.
#[test]
fn a_batch_that_grows_with_the_ranks_goes_on_where_it_was() {
    let each_four = |steps: &str| {
        let mut config = config(&["eval_every=0", "decay_steps=12", steps]);
        (config.train.batch, config.train.batch_per_rank) = (0, 4);
        config
    };
    let folder = Folder::new();
    train(1, &each_four("steps=4"), &folder.0, None).unwrap();
    train(2, &each_four("steps=6"), &folder.0, None).unwrap();
    let checkpoint = Checkpoint::open(&folder.0.join("checkpoints/step-00000006")).unwrap();
    assert_eq!(checkpoint.about().tokens, 16 * (4 * 4 + 2 * 8));
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let folder = Folder::new();
    let (_, whole) = train(1, &config(&[]), &folder.0, None).unwrap();
    let newest = folder.0.join("checkpoints/step-00000012");
    let file = newest.join("rank-00000.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let (_, again) = train(1, &config(&[]), &folder.0, None).unwrap();
    assert!(again.notes[0].contains("step-00000012 is damaged"), "{:?}", again.notes);
    assert_eq!(again.losses, whole.losses[8..]);
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let folder = Folder::new();
    train(1, &config(&["steps=4", "decay_steps=12"]), &folder.0, None).unwrap();
    let error = train(1, &config(&["model.layers=3"]), &folder.0, None).unwrap_err().to_string();
    assert!(error.contains("model.layers is 2 there, 3 here"), "{error}");
    let error = train(2, &config(&["resume=/nowhere"]), &folder.0, None).unwrap_err().to_string();
    assert!(error.contains("/nowhere has no checkpoint"), "{error}");
    let error = train(5, &config(&[]), &folder.0, None).unwrap_err().to_string();
    assert!(error.contains("train.batch 24 does not divide among 5 ranks"), "{error}");
}

/// Two texts that differ, but not in length or characters.
fn verses(folder: &Folder) -> [Spec; 2] {
    let lines = ["The sea is calm tonight\n", "the moon lies fair\n"];
    std::fs::create_dir_all(&folder.0).unwrap();
    [[0, 1], [1, 0]].map(|order| {
        let path = folder.0.join(format!("{order:?}.txt"));
        std::fs::write(&path, order.map(|line: usize| lines[line].repeat(40)).concat()).unwrap();
        Spec { data: path.display().to_string(), ..Spec::default() }
    })
}

#[test]
fn other_data_is_noticed() {
    let texts = Folder::new();
    let [one, other] = &verses(&texts).map(|spec| [spec]);
    let folder = Folder::new();
    let short = ["steps=4", "decay_steps=12"];
    train_on(1, &config(&short), &folder.0, None, one).unwrap();
    let error = train_on(1, &config(&[]), &folder.0, None, other).unwrap_err().to_string();
    assert!(error.contains("step-00000004 was trained on other data ("), "{error}");
    let hint = format!("checkpoint.resume={}/checkpoints/step-00000004", folder.0.display());
    assert!(error.ends_with(&hint), "{error}");
    // As it says; and then the run is one on the other data.
    let word = hint.split_once('.').unwrap().1;
    let longer = ["steps=8", "decay_steps=12", word];
    train_on(1, &config(&longer), &folder.0, None, other).unwrap();
    train_on(1, &config(&[]), &folder.0, None, other).unwrap();
    // All ranks must have the same.
    let both = verses(&texts);
    let error = train_on(2, &config(&[]), &Folder::new().0, None, &both).unwrap_err().to_string();
    assert!(error.starts_with("rank 1 on ") && error.contains("has another data"), "{error}");
}

fn names(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.0.join("checkpoints")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}

#[test]
fn what_begins_elsewhere_keeps_it_and_leaves_nothing_of_others() {
    let (elsewhere, folder) = (Folder::new(), Folder::new());
    train(1, &config(&["decay_steps=12"]), &elsewhere.0, None).unwrap();
    let from = format!("resume={}", elsewhere.0.display());
    // There is nothing left to train, but something to keep.
    train(2, &config(&["decay_steps=12", &from]), &folder.0, None).unwrap();
    assert_eq!(names(&folder), ["step-00000012"]);
    // What another run has left here is out of the way, however old it is.
    let folder = Folder::new();
    train(1, &config(&["steps=8", "decay_steps=12"]), &folder.0, None).unwrap();
    assert_eq!(names(&folder), ["step-00000004", "step-00000008"]);
    let words = ["steps=14", "decay_steps=12", "checkpoint.every=100", &from];
    let (_, told) = train(1, &config(&words), &folder.0, Some(1)).unwrap();
    assert!(told.notes[0].starts_with("goes on after step 12 of "), "{told:?}");
    let aside = ["step-00000004.aside-1", "step-00000008.aside-1", "step-00000013"];
    assert_eq!(names(&folder), aside);
}

#[test]
fn ranks_that_are_started_anew_go_on_only_from_their_own() {
    let folder = Folder::new();
    let mut config = config(&["steps=4", "decay_steps=12", "resume=never"]);
    train(1, &config, &folder.0, None).unwrap();
    job::go_on(&mut config, &folder.0, "another").unwrap();
    assert_eq!(config.checkpoint.resume, Resume::Never, "these are of the run before");
    job::go_on(&mut config, &folder.0, RUN).unwrap();
    assert_eq!(config.checkpoint.resume, Resume::Auto);
}

#[test]
fn a_loss_that_is_no_number_ends_it() {
    let folder = Folder::new();
    let words = ["optimizer.kind=sgd", "rate=1e30", "clip=0", "warmup=0"];
    let error = train(2, &config(&words), &folder.0, None).unwrap_err().to_string();
    // Gradients overflow no later than the loss.
    let said = ["the loss is", "the norm of the gradients is"].iter().any(|it| error.contains(it));
    assert!(said && error.contains("optimizer.rate"), "{error}");
    // The last update is not seen by any loss.
    let words = ["steps=1", "rate=1e300", "warmup=0", "decay_steps=12"];
    let error = train(1, &config(&words), &Folder::new().0, None).unwrap_err().to_string();
    assert!(error.contains("the norm of the parameters is"), "{error}");
}

#[test]
fn a_model_for_other_data_is_said() {
    let folder = Folder::new();
    let words = ["steps=1", "decay_steps=12", "model.vocabulary=5000"];
    let (_, told) = train(1, &config(&words), &folder.0, None).unwrap();
    assert!(told.notes[0].contains("room for 5000 kinds of tokens"), "{:?}", told.notes);
}

#[test]
fn brain_floats_learn_as_well() {
    let (one, other) = (Folder::new(), Folder::new());
    let (_, single) = train(1, &config(&["rate=0.002"]), &one.0, None).unwrap();
    let brain = config(&["rate=0.002", "train.precision=bf16"]);
    assert_eq!(brain.train.precision, Precision::Bf16);
    let (_, brain) = train(1, &brain, &other.0, None).unwrap();
    let pairs = single.losses.iter().zip(&brain.losses);
    let off = pairs.map(|(a, b)| (a.1 - b.1).abs()).fold(0.0, f64::max);
    assert!(off > 0.0 && off < 0.002, "{off}: {single:?} {brain:?}");
}
