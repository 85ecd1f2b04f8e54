//! Trainings that are harmed again and again, as a seed says: whatever befalls them, in the end every
//! step is as in a run that nothing befell, bit by bit. Ranks share the model in any way; where they
//! go on in another way, numbers are added in another order, and it is the same to rounding.
//!
//! `REGATTA_CHAOS_CASES` says how many trainings, `REGATTA_CHAOS_SEED` where they begin;
//! `cargo xtask chaos --train` sets them.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

#[path = "chaos/random.rs"]
mod random;
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use random::Random;
use support::TempDir;
use support::job::wait_until;
use support::metrics::{Metrics, assert_near, assert_same};
use support::train::{Started, TINY, checkpoints, done, flip, metrics, processes, send, tiny};

/// Cases of a plain test.
const FEW: u64 = 6;

/// Ranks, and how they share the model. All keys are given, for each goes on with any other.
const SPLITS: [Split; 14] = [
    (1, "tp=1 cp=1 pp=1 zero=0"),
    (2, "tp=1 cp=1 pp=1 zero=0"),
    (3, "tp=1 cp=1 pp=1 zero=0"),
    (6, "tp=1 cp=1 pp=1 zero=0"),
    (2, "tp=2 cp=1 pp=1 zero=0"),
    (2, "tp=1 cp=2 pp=1 zero=0"),
    (2, "tp=1 cp=1 pp=2 zero=0"),
    (2, "tp=1 cp=1 pp=1 zero=1"),
    (3, "tp=1 cp=1 pp=1 zero=2"),
    (4, "tp=1 cp=1 pp=1 zero=3"),
    (4, "tp=2 cp=1 pp=2 zero=0"),
    (4, "tp=2 cp=2 pp=1 zero=0"),
    (4, "tp=1 cp=2 pp=1 zero=3"),
    (8, "tp=2 cp=1 pp=2 zero=1"),
];

type Split = (u32, &'static str);

/// Steps of a training: it lasts about as long as the longest pause before it is harmed.
const STEPS: u64 = 300;

/// Layers for two stages, at a rate at which what was added in another order stays a matter of rounding:
/// at twice that, 300 steps make 1e-5 of 1e-9.
const MODEL: &str = "layers=2 optimizer.rate=5e-4";

const INT: i32 = 2;
const KILL: i32 = 9;
const TERM: i32 = 15;

/// What befalls a training.
#[derive(Debug, Clone, Copy)]
enum Harm {
    /// Any process of it is killed: the one that was started, the one below it, a rank.
    Kill,
    /// Two of them at once.
    KillTwo,
    /// Whoever watches has had enough.
    Signal(i32),
}

#[test]
fn whatever_befalls_a_training_every_step_is_the_same() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("REGATTA_CHAOS_SEED").unwrap_or(1);
    let cases = number("REGATTA_CHAOS_CASES").unwrap_or(FEW);
    let folder = TempDir::new();
    let mut undisturbed = BTreeMap::new();
    for seed in first..first + cases {
        println!("again: cargo xtask chaos --train --cases 1 --seed {seed}");
        let mut random = Random::new(seed);
        let split = random.pick(&SPLITS);
        let whole = undisturbed.entry(split).or_insert_with(|| whole(&folder, split));
        // A third of the trainings go on in any other way each time.
        let moves = random.within(0, 2) == 0;
        play(&folder, &mut random, |random| if moves { random.pick(&SPLITS) } else { split });
        let found = metrics(&folder, "run");
        if moves {
            let missed = |step: &u64| !found.validations.contains_key(step);
            assert_near(&found, &without_validations(whole, missed));
        } else {
            assert_same(&found, whole, STEPS);
        }
        std::fs::remove_dir_all(folder.path().join("run")).unwrap();
    }
}

/// The metrics of a run that nothing befalls.
fn whole(folder: &TempDir, (ranks, split): Split) -> Metrics {
    let run = format!("whole-{ranks}-{}", split.replace([' ', '='], "-"));
    let words = format!("{MODEL} train.steps={STEPS} {split} -n {ranks}");
    tiny(folder, &format!("{words} --run-dir {run}")).ok();
    metrics(folder, &run)
}

/// A validation is missing where a run was killed in it that had kept the step already.
fn without_validations(whole: &Metrics, missed: impl Fn(&u64) -> bool) -> Metrics {
    let validations = whole.validations.iter().map(|(step, loss)| (*step, *loss));
    let validations = validations.filter(|(step, _)| !missed(step)).collect();
    Metrics { steps: whole.steps.clone(), validations }
}

/// Harms a run a few times, and then lets it come to its end.
fn play(folder: &TempDir, random: &mut Random, next: impl Fn(&mut Random) -> Split) {
    for _ in 0..random.within(1, 4) {
        let split = next(random);
        let training = started(folder, split);
        let pause = random.within(0, 800);
        let harms = [Harm::Kill, Harm::Kill, Harm::KillTwo, Harm::Signal(INT), Harm::Signal(TERM)];
        let harm = random.pick(&harms);
        std::thread::sleep(Duration::from_millis(pause.into()));
        let after = done(folder, "run");
        println!("  {} ranks, {}, {harm:?} after {pause} ms and {after} steps", split.0, split.1);
        match harm {
            Harm::Kill => kill_one(folder, random),
            Harm::KillTwo => (0..2).for_each(|_| kill_one(folder, random)),
            Harm::Signal(signal) => send(training.child.id(), signal),
        }
        training.over();
        wait_until("the end of all processes", || processes(folder).is_empty());
        damage(folder, random);
    }
    let ended = started(folder, next(random)).over();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Goes on with the run, or begins it if nothing of it is there.
fn started(folder: &TempDir, (ranks, split): Split) -> Started {
    let run = folder.path().join("run");
    if run.join("config.toml").exists() {
        return Started::new(folder, &format!("--resume run {split} -n {ranks}"));
    }
    let _ = std::fs::remove_dir_all(run);
    let words = format!("{TINY} {MODEL} train.steps={STEPS} {split} -n {ranks} --run-dir run");
    Started::new(folder, &words)
}

fn kill_one(folder: &TempDir, random: &mut Random) {
    let all = processes(folder);
    if !all.is_empty() {
        send(random.pick(&all).0, KILL);
    }
}

/// A third of the times a bit of the newest checkpoint changes, where there is one before it.
fn damage(folder: &TempDir, random: &mut Random) {
    let all = checkpoints(folder, "run");
    let complete: Vec<&String> = all.iter().filter(|name| !name.contains('.')).collect();
    if complete.len() < 2 || random.within(0, 2) > 0 {
        return;
    }
    let file = folder.path().join("run/checkpoints").join(complete[complete.len() - 1]);
    println!("  {} is damaged", file.display());
    flip(&file.join("rank-00000.safetensors"));
}
