//! Training runs end to end: losses do not depend on ranks, sharding, restarts or resume points.

use std::cell::Cell;
use std::sync::Arc;

use regatta_comm::Comm;
use regatta_device::precision::Precision;
use regatta_kernels_cpu::Cpu;
use regatta_model::rank_bytes::{DiskIoBytes, SentBytes};
use regatta_testbed::in_process;
use regatta_train::checkpoint::Checkpoint;
use regatta_train::config::{Config, Resume};
use regatta_train::data::DataSpec;
use regatta_train::metrics::{EndReason, Event};
use regatta_train::training::{self, TrainError};

use crate::common::{self, RUN, TempDir, run_ranks};

fn config(args: &str) -> Config {
    let small = "model.family=gpt2 model.bias=false model.tie_embeddings=auto model.hidden_size=32 model.num_layers=2 model.num_heads=2 model.seq_len=16 \
                 train.batch=24 train.steps=12 train.eval_interval=5 train.eval_batches=1 optimizer.warmup_steps=2 \
                 checkpoint.interval=4 model.dropout=0.1 optimizer.lr=0.004";
    common::config(&[small, args])
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
    step_seconds: f64,
    /// Tokens and throughput of the summary.
    throughput: (u64, f64),
}

/// Trains on `ranks` ranks, whose data may differ, interrupted after a step if given.
fn train_on(
    ranks: u32,
    config: &Config,
    folder: &TempDir,
    stop_after: Option<u64>,
    data: &[DataSpec],
) -> Result<(EndReason, Recorded), TrainError> {
    let run = |comm: Arc<dyn Comm>| {
        let (rank, done) = (comm.rank(), Cell::new(0));
        let mut recorded = Recorded::default();
        let device = Box::new(Cpu::new(1, config.precision()));
        let data = &data[rank as usize % data.len()];
        let setup = common::training_setup(config, data, comm, device, folder.0.clone())?;
        // Only the last rank is interrupted.
        let stop = || rank == ranks - 1 && stop_after.is_some_and(|after| done.get() + 1 >= after);
        let mut emit = |event| match event {
            Event::Step(step) => {
                done.set(step.step);
                recorded.losses.push((step.step, step.loss));
                recorded.step_seconds += step.seconds.step;
            }
            Event::Validation { step, loss } => recorded.validations.push((step, loss)),
            Event::Note(note) => recorded.notes.push(note),
            Event::Checkpoint { step, .. } => recorded.checkpoints.push(step),
            Event::End(summary) => {
                recorded.throughput = (summary.tokens, summary.tokens_per_second);
                (recorded.sent, recorded.disk_io) = (summary.sent, summary.disk_io);
            }
            _ => {}
        };
        let reason = training::run(setup, &stop, &mut emit)?;
        Ok((reason, recorded))
    };
    run_ranks(in_process::world(ranks), run).swap_remove(0)
}

/// Trains to the end.
fn train(ranks: u32, args: &str, folder: &TempDir) -> Recorded {
    let data = [DataSpec::default()];
    let (reason, recorded) = train_on(ranks, &config(args), folder, None, &data).unwrap();
    assert_eq!(reason, EndReason::Completed);
    recorded
}

/// Trains until interrupted after a step.
fn interrupt(ranks: u32, args: &str, folder: &TempDir, after: u64) -> Recorded {
    let data = [DataSpec::default()];
    let (reason, recorded) = train_on(ranks, &config(args), folder, Some(after), &data).unwrap();
    assert_eq!(reason, EndReason::Interrupted);
    recorded
}

/// The error of a run that fails.
fn error(ranks: u32, args: &str, folder: &TempDir) -> String {
    error_on(ranks, args, folder, &[DataSpec::default()])
}

fn error_on(ranks: u32, args: &str, folder: &TempDir, data: &[DataSpec]) -> String {
    train_on(ranks, &config(args), folder, None, data).unwrap_err().to_string()
}

fn near(one: &[(u64, f64)], other: &[(u64, f64)]) -> bool {
    let same = |((a, x), (b, y)): (&(u64, f64), &(u64, f64))| a == b && (x - y).abs() < 1e-5 * x;
    one.len() == other.len() && one.iter().zip(other).all(same)
}

#[test]
fn throughput_of_the_summary_is_that_of_the_steps() {
    let recorded = train(1, "train.eval_interval=1", &TempDir::new());
    let (tokens, tokens_per_second) = recorded.throughput;
    let expected = tokens as f64 / recorded.step_seconds;
    assert!((tokens_per_second / expected - 1.0).abs() < 1e-9, "{tokens_per_second} {expected}");
}

#[test]
fn losses_do_not_depend_on_ranks_and_micro_batches() {
    let single = train(1, "", &TempDir::new());
    assert!(single.losses[11].1 < single.losses[0].1 - 0.3, "the loss did not fall: {single:?}");
    assert_eq!(single.validations.iter().map(|v| v.0).collect::<Vec<_>>(), [5, 10, 12]);
    assert_eq!(single.checkpoints, [4, 8, 12]);
    for (ranks, args) in [(2, ""), (3, "train.micro_batch=4"), (8, "recompute=true")] {
        let many = train(ranks, args, &TempDir::new());
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
    for (ranks, args) in cases {
        // Validation and checkpoints read too, and are not counted.
        let recorded = train(ranks, &args, &TempDir::new());
        assert_eq!((recorded.validations.len(), recorded.checkpoints.len()), (3, 3));
        let [read, written] = &recorded.disk_io[..] else { panic!("{:?}", recorded.disk_io) };
        assert_eq!((&*read.what, &*written.what), ("read", "written"));
        assert_eq!(read.measured, Some(read.expected), "{ranks} {args}");
        assert_eq!(written.measured, Some(written.expected), "{ranks} {args}");
        assert!(read.measured >= written.measured && written.measured > Some(0));
    }
}

#[test]
fn an_interrupted_run_resumes_bit_exactly() {
    let undisturbed = train(2, "", &TempDir::new());
    let folder = TempDir::new();
    let first = interrupt(2, "", &folder, 6);
    assert_eq!(first.losses.len(), 6);
    let rest = train(2, "", &folder);
    assert!(rest.notes[0].starts_with("resumed after step 6"), "{:?}", rest.notes);
    // Bit-exact.
    assert_eq!([first.losses, rest.losses.clone()].concat(), undisturbed.losses);
    // On another number of ranks only the order of sums differs.
    let other = TempDir::new();
    interrupt(2, "", &other, 6);
    let more = train(3, "", &other);
    assert!(near(&more.losses, &rest.losses), "{more:?} {rest:?}");
}

#[test]
fn sharded_and_offloaded_runs_resume_from_each_other() {
    let single = train(1, "", &TempDir::new());
    let all = [
        (2, "parallel.zero=1"),
        (3, "parallel.zero=3"),
        (2, "offload.optimizer=disk offload.parameters=disk"),
        (4, "parallel.zero=2 parallel.hsdp_shard=2"),
        (1, "offload.parameters=disk offload.optimizer=host"),
        (2, "parallel.zero=2 offload.optimizer=disk"),
    ];
    // Each resumes from the checkpoint of the previous one.
    for ((first, before), (second, after)) in all.iter().zip(all.iter().cycle().skip(1)) {
        let folder = TempDir::new();
        let one = interrupt(*first, before, &folder, 6);
        let other = train(*second, after, &folder);
        let losses = [one.losses, other.losses].concat();
        assert!(near(&losses, &single.losses), "{before} {after}: {losses:?} {single:?}");
        let validations = [one.validations, other.validations].concat();
        assert!(near(&validations, &single.validations), "{before} {after}: {validations:?}");
        let left = |name: &str| folder.0.join("offloaded").join(name).exists();
        assert!(!left("moments-0") && !left("parameters-0"));
    }
}

/// No sample is repeated or skipped when the global batch changes.
#[test]
fn a_run_resumes_with_a_different_global_batch() {
    let folder = TempDir::new();
    for (ranks, steps) in [(1, "steps=4"), (2, "steps=6")] {
        let mut config = config(&format!("eval_interval=0 decay_steps=12 {steps}"));
        (config.train.batch, config.train.batch_per_replica) = (0, 4);
        train_on(ranks, &config, &folder, None, &[DataSpec::default()]).unwrap();
    }
    let checkpoint = Checkpoint::open(&folder.0.join("checkpoints/step-00000006")).unwrap();
    assert_eq!(checkpoint.meta().tokens, 16 * (4 * 4 + 2 * 8));
}

#[test]
fn a_damaged_checkpoint_is_skipped() {
    let folder = TempDir::new();
    let undamaged = train(1, "", &folder);
    let newest = folder.0.join("checkpoints/step-00000012");
    let file = newest.join("rank-00000.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let again = train(1, "", &folder);
    assert!(again.notes[0].starts_with("skipped damaged checkpoint "), "{:?}", again.notes);
    assert_eq!(again.losses, undamaged.losses[8..]);
}

#[test]
fn a_checkpoint_of_a_different_model_is_refused() {
    let folder = TempDir::new();
    train(1, "steps=4 decay_steps=12", &folder);
    for (ranks, args, expected) in [
        (
            1,
            "model.num_layers=3",
            "in the checkpoint and 3 in the configuration; remove the override",
        ),
        (
            1,
            "vocab_size=900",
            " in the checkpoint and 900 in the configuration; remove the override",
        ),
        (2, "optimizer.name=sgd", "optimizer.name is adamw in the checkpoint and sgd in the"),
        (
            2,
            "resume=/nowhere",
            "no checkpoint in /nowhere. Start a new run, set checkpoint.resume to a checkpoint",
        ),
        (5, "", "train.batch 24 is not divisible by 5 ranks"),
    ] {
        let error = error(ranks, args, &folder);
        assert!(error.contains(expected), "{error}");
    }
    let texts = TempDir::new();
    let error = error_on(1, "", &folder, &verses(&texts)[..1]);
    let expected =
        " tokens, the tokenizer of data.source has 17: use the run's data and tokenizer, or";
    assert!(error.contains(expected), "{error}");
}

/// Two texts with the same length and characters.
fn verses(folder: &TempDir) -> [DataSpec; 2] {
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
    let texts = TempDir::new();
    let [one, other] = &verses(&texts).map(|spec| [spec]);
    let folder = TempDir::new();
    let train_on = |args: &str, data: &[DataSpec]| {
        train_on(1, &config(args), &folder, None, data).unwrap();
    };
    train_on("steps=4 decay_steps=12", one);
    let error = error_on(1, "", &folder, other);
    assert!(error.contains("step-00000004 was trained on different data ("), "{error}");
    let hint = format!("checkpoint.resume={}/checkpoints/step-00000004", folder.0.display());
    assert!(error.ends_with(&hint), "{error}");
    // As suggested; the run then continues on the new data.
    train_on(&format!("steps=8 decay_steps=12 {hint}"), other);
    train_on("", other);
    // All ranks must have the same data.
    let error = error_on(2, "", &TempDir::new(), &verses(&texts));
    assert!(error.starts_with("rank 1 on ") && error.contains("has a different data"), "{error}");
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder.0.join("checkpoints")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}

#[test]
fn a_run_that_resumes_from_another_saves_its_own_checkpoints() {
    let (other_run, folder) = (TempDir::new(), TempDir::new());
    train(1, "decay_steps=12", &other_run);
    let from = format!("decay_steps=12 resume={}", other_run.0.display());
    // No step is left, but the checkpoint is saved.
    train(2, &from, &folder);
    assert_eq!(names(&folder), ["step-00000012"]);
    // Checkpoints of an earlier run in this folder are moved aside.
    let folder = TempDir::new();
    train(1, "steps=8 decay_steps=12", &folder);
    assert_eq!(names(&folder), ["step-00000004", "step-00000008"]);
    let args = format!("steps=14 checkpoint.interval=100 {from}");
    let recorded = interrupt(1, &args, &folder, 1);
    assert!(recorded.notes[0].starts_with("resumed after step 12 from "), "{recorded:?}");
    let aside = ["step-00000004.aside-1", "step-00000008.aside-1", "step-00000013"];
    assert_eq!(names(&folder), aside);
}

#[test]
fn restarted_ranks_resume_only_from_their_own_run() {
    let folder = TempDir::new();
    let args = "steps=4 decay_steps=12 resume=never";
    train(1, args, &folder);
    let mut config = config(args);
    training::resume_own_run(&mut config, &folder.0, "another").unwrap();
    assert_eq!(config.checkpoint.resume, Resume::Never, "checkpoints of another run");
    training::resume_own_run(&mut config, &folder.0, RUN).unwrap();
    assert_eq!(config.checkpoint.resume, Resume::Auto);
}

#[test]
fn non_finite_values_end_the_run() {
    let args = "optimizer.name=sgd lr=1e30 grad_clip=0 warmup_steps=0";
    let error = error(2, args, &TempDir::new());
    // Gradients overflow no later than the loss.
    let is_named = ["loss is", "gradient norm is"].iter().any(|it| error.contains(it));
    assert!(is_named && error.contains("optimizer.lr") && !error.contains("checkpoint"), "{error}");
    // The last update does not affect any loss.
    let args = "steps=1 lr=1e300 warmup_steps=0 decay_steps=12";
    let error = self::error(1, args, &TempDir::new());
    assert!(error.contains("parameter norm is"), "{error}");
    let folder = TempDir::new();
    train(1, "steps=4 decay_steps=12", &folder);
    let error = self::error(1, "lr=1e300", &folder);
    assert!(error.ends_with(". The checkpoint of step 4 is intact"), "{error}");
}

#[test]
fn fewer_steps_than_the_checkpoint_has_are_noted() {
    let folder = TempDir::new();
    train(1, "steps=4 decay_steps=12", &folder);
    let notes = train(1, "steps=2 decay_steps=12", &folder).notes.join("\n");
    assert!(notes.contains("the checkpoint is at step 4, train.steps is 2: nothing"), "{notes}");
}

#[test]
fn an_oversized_vocabulary_is_noted() {
    let folder = TempDir::new();
    let note = |steps| {
        let words = format!("steps={steps} decay_steps=12 model.vocab_size=5000");
        let notes = train(1, &words, &folder).notes;
        notes.into_iter().find(|note| note.contains("vocab_size"))
    };
    let first = note(1).unwrap();
    let fix = "tokens: set model.vocab_size=";
    assert!(first.starts_with("model.vocab_size is 5000, but") && first.contains(fix), "{first}");
    assert_eq!(note(2), None, "a resumed run keeps its vocabulary");
}

#[test]
fn bf16_losses_are_close_to_f32() {
    let single = train(1, "lr=0.002", &TempDir::new());
    let args = "lr=0.002 train.precision=bf16";
    assert_eq!(config(args).precision(), Precision::Bf16);
    let bf16 = train(1, args, &TempDir::new());
    let pairs = single.losses.iter().zip(&bf16.losses);
    let off = pairs.map(|(a, b)| (a.1 - b.1).abs()).fold(0.0, f64::max);
    assert!(off > 0.0 && off < 0.002, "{off}: {single:?} {bf16:?}");
}
