//! Run folders are read while they are written, and as earlier versions wrote them.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use regatta_launch::run_folder::RunFolder;
use regatta_model::result::{RankExit, RunResult};
use regatta_model::run_folder::{
    BENCH_LOCK, CONFIG, EVENTS, METRICS, RESULT, Record, RunEvent, RunKind, StepMetrics, TRAIN_LOCK,
};
use regatta_model::train_event::Event;
use regatta_model::{BenchTable, document};
use regatta_observe::read::{
    Followed, LineFollower, NewLines, ReadError, Run, RunFollower, RunState, Source, Update,
    lock_files, metrics, progress,
};

/// A folder that is removed at the end.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-observe-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn fixture(name: &str) -> Run {
    recorded("tests/runs-v1", name)
}

/// A run that a version recorded.
fn recorded(folder: &str, name: &str) -> Run {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name);
    Run::open(&folder).unwrap()
}

pub fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

pub fn of_rank(rank: u32, event: RunEvent) -> Record {
    Record { time: Some(1e9), seconds: Some(0.5), rank: Some(rank), event }
}

pub fn launched(attempt: u32) -> Record {
    let (command, kind) = (vec!["true".to_owned()], Some(RunKind::Launch));
    let event = RunEvent::Launched { attempt, command, kind };
    Record { time: Some(1e9), seconds: Some(0.0), rank: None, event }
}

pub fn step(step: u64, loss: f64) -> String {
    let metrics = StepMetrics { step, steps: 9, loss, time: loss, ..Default::default() };
    Record::of_metrics(loss, RunEvent::Step(Box::new(metrics))).to_line().unwrap()
}

pub fn result(exit_code: u8) -> String {
    let result = RunResult {
        command: Vec::new(),
        ranks: 2,
        exit_code,
        restarts: 0,
        reason: String::new(),
        failure: None,
        hang: None,
        collectives: Vec::new(),
        notes: Vec::new(),
        rank_exits: Default::default(),
        seconds: 1.0,
    };
    document::to_json(&result).unwrap()
}

/// Exits with the launch, attempt and rank.
fn exits(update: &Update) -> Vec<(usize, u32, u32)> {
    let exit = |followed: &Followed| match followed.source {
        Source::Events { launch, attempt }
            if matches!(followed.record.event, RunEvent::Exited { .. }) =>
        {
            Some((launch, attempt, followed.record.rank.unwrap()))
        }
        _ => None,
    };
    update.records.iter().filter_map(exit).collect()
}

fn steps(update: &Update) -> Vec<u64> {
    let step = |event: &RunEvent| match event {
        RunEvent::Step(step) => Some(step.step),
        _ => None,
    };
    update.records.iter().filter_map(|followed| step(&followed.record.event)).collect()
}

#[test]
fn runs_of_version_1_are_read() {
    for (name, kind, state) in [
        ("good", RunKind::Launch, RunState::Finished),
        ("restarted", RunKind::Launch, RunState::Failed),
        ("killed", RunKind::Launch, RunState::Failed),
        ("bench", RunKind::Bench, RunState::Finished),
        ("train", RunKind::Train, RunState::Finished),
    ] {
        let run = fixture(name);
        assert_eq!((run.kind(), run.state()), (kind, state), "{name}");
        let update = run.follow().poll();
        let problems = (update.skipped, update.errors.len(), update.restarted);
        assert_eq!(problems, (0, 0, false), "{name}: {update:?}");
        assert!(update.ended, "{name}");
        let is_known = |event: &RunEvent| !matches!(event, RunEvent::Other(_));
        assert!(update.records.iter().all(|found| is_known(&found.record.event)), "{update:?}");
    }
}

#[test]
fn documents_and_logs_of_version_1_are_typed() {
    let launch = fixture("good").last_launch();
    let machines = launch.machines().unwrap();
    assert_eq!(machines.len(), 1);
    assert_eq!(launch.placement().unwrap().unwrap().nodes.len(), 1);
    let environment = launch.environment().unwrap().unwrap();
    assert!(environment.common.iter().any(|v| v.variable == "WORLD_SIZE"));
    assert_eq!(environment.ranks.len(), 2);
    assert_eq!(launch.result().unwrap().unwrap().rank_exits[&1], RankExit::Exit(0));
    assert_eq!(launch.config().unwrap(), None);
    let logs = fixture("restarted").last_launch().logs();
    let found: Vec<_> = logs.iter().map(|log| (log.attempt, log.rank, log.stderr)).collect();
    let expected = [0, 1].map(|attempt| {
        [(attempt, 0, false), (attempt, 0, true), (attempt, 1, false), (attempt, 1, true)]
    });
    assert_eq!(found, expected.concat());
    assert!(logs.iter().all(|log| log.path.is_file()));
    let killed = fixture("killed").last_launch();
    assert_eq!(killed.result().unwrap(), None);
}

#[test]
fn records_of_version_1_have_attempts_launches_and_metrics() {
    let restarted = fixture("restarted").follow().poll();
    assert_eq!(exits(&restarted), [(0, 0, 1), (0, 0, 0), (0, 1, 1), (0, 1, 0)]);
    assert!(restarted.records.iter().all(|found| found.record.time.is_none()));
    assert!(restarted.records.iter().all(|found| found.record.seconds.is_some()));
    let run = fixture("train");
    let train = run.follow().poll();
    assert_eq!(exits(&train).len(), 4);
    assert_eq!(exits(&train).iter().filter(|(launch, ..)| *launch == 1).count(), 2);
    assert_eq!(steps(&train), (1..=10).collect::<Vec<_>>());
    let metrics = train.records.iter().filter(|found| found.source == Source::Metrics);
    assert!(metrics.map(|found| found.record.time).all(|time| time > Some(1.7e9)));
    let validations = train.records.iter().filter_map(|found| match &found.record.event {
        RunEvent::Validation { step, val_loss } => Some((*step, val_loss.is_finite())),
        _ => None,
    });
    assert_eq!(validations.collect::<Vec<_>>(), [(5, true), (10, true)]);
    let summary = run.summary();
    assert_eq!((summary.last.step, summary.last.steps), (Some(10), Some(10)));
    assert!(summary.last.val_loss.is_some());
    assert_eq!(summary.last.loss, progress(run.path()).unwrap().loss);
    assert!(run.last_launch().path().ends_with("relaunch/20261119-152427-79"));
}

#[test]
fn run_is_followed_while_it_is_written_and_over_restarts() {
    let folder = TempDir::new();
    let mut written = RunFolder::create(&folder.0).unwrap();
    let run = Run::open(&folder.0).unwrap();
    assert_eq!(run.state(), RunState::Running);
    let mut follower = run.follow();
    assert!(follower.poll().records.is_empty());
    let writer = std::thread::spawn(move || {
        for attempt in 0..3 {
            written.append_event(&launched(attempt));
            for rank in 0..2 {
                std::thread::sleep(Duration::from_millis(5));
                written.append_event(&of_rank(rank, RunEvent::Started { pid: 7 }));
                let exit = RankExit::Exit(i32::from(attempt < 2));
                written.append_event(&of_rank(rank, RunEvent::Exited { exit }));
            }
            written.write_durable(RESULT, &result(u8::from(attempt < 2))).unwrap();
        }
    });
    let mut found = Vec::new();
    follow_to_end(&mut follower, |update| found.extend(exits(update)));
    writer.join().unwrap();
    assert_eq!(found, [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1)]);
    assert_eq!(run.state(), RunState::Finished);
    assert!(follower.poll().records.is_empty());
}

/// Polls until the run ends; panics after a while.
fn follow_to_end(follower: &mut RunFollower, mut found: impl FnMut(&Update)) {
    let start = Instant::now();
    loop {
        let update = follower.poll();
        assert!(update.errors.is_empty() && !update.restarted, "{update:?}");
        found(&update);
        if update.ended {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the run did not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn killed_launcher_leaves_a_run_that_failed() {
    let folder = TempDir::new();
    let mut written = RunFolder::create(&folder.0).unwrap();
    written.append_event(&launched(0));
    let mut follower = Run::open(&folder.0).unwrap().follow();
    let update = follower.poll();
    assert_eq!((update.records.len(), update.ended), (1, false));
    // The kernel releases the lock, however the process ends.
    drop(written);
    assert!(follower.poll().ended);
    assert_eq!(Run::open(&folder.0).unwrap().state(), RunState::Failed);
}

#[test]
fn metrics_and_launches_that_appear_later_are_found() {
    let folder = TempDir::new();
    folder.write("log/rank-0.out", "");
    folder.write(EVENTS, launched(0).to_line().unwrap());
    let run = Run::open(&folder.0).unwrap();
    let mut follower = run.follow();
    assert_eq!(follower.poll().records.len(), 1);
    folder.write(METRICS, step(1, 3.0));
    assert_eq!(steps(&follower.poll()), [1]);
    let relaunch = of_rank(1, RunEvent::Exited { exit: RankExit::NodeLost }).to_line().unwrap();
    folder.write("relaunch/20261119-152427-79/events.jsonl", relaunch);
    assert_eq!(exits(&follower.poll()), [(1, 0, 1)]);
}

#[test]
fn incomplete_last_line_is_read_when_it_is_complete() {
    let folder = TempDir::new();
    let line = step(1, 2.5);
    let path = folder.0.join(METRICS);
    let mut follower = LineFollower::new(path.clone());
    assert_eq!(follower.poll().unwrap(), NewLines::default());
    for (at, byte) in line.bytes().enumerate() {
        append(&path, std::str::from_utf8(&[byte]).unwrap());
        let new = follower.poll().unwrap();
        assert_eq!(new.lines.len(), usize::from(at + 1 == line.len()), "{at}");
    }
}

#[test]
fn resumed_training_voids_the_metrics_that_it_repeats() {
    let folder = TempDir::new();
    folder.write("log/rank-0.out", "");
    folder.write(EVENTS, launched(0).to_line().unwrap());
    let text: String = (1..=4).map(|n| step(n, n as f64)).collect();
    let path = folder.write(METRICS, text);
    let mut follower = Run::open(&folder.0).unwrap().follow();
    assert_eq!(steps(&follower.poll()), [1, 2, 3, 4]);
    // Truncated after step 2, and already longer than before.
    let end = (step(1, 1.0) + &step(2, 2.0)).len() as u64;
    File::options().write(true).open(&path).unwrap().set_len(end).unwrap();
    append(&path, &(3..=6).map(|n| step(n, n as f64 + 0.5)).collect::<String>());
    let update = follower.poll();
    assert!(update.restarted);
    assert_eq!(steps(&update), [1, 2, 3, 4, 5, 6]);
    assert_eq!(update.records.len(), 7, "the events follow again, too");
    append(&path, &step(7, 0.1));
    let update = follower.poll();
    assert_eq!((steps(&update), update.restarted), (vec![7], false));
    // Replaced.
    std::fs::remove_file(&path).unwrap();
    assert!(steps(&follower.poll()).is_empty());
    folder.write(METRICS, step(1, 9.0));
    let update = follower.poll();
    assert_eq!((steps(&update), update.restarted), (vec![1], true));
}

#[test]
fn lines_without_an_end_and_lines_that_are_no_records_are_skipped() {
    let folder = TempDir::new();
    let path = folder.write(METRICS, "x".repeat(20 << 20));
    let mut follower = LineFollower::new(path.clone());
    let mut skipped = 0;
    loop {
        let new = follower.poll().unwrap();
        assert!(new.lines.is_empty());
        skipped += new.skipped;
        if !new.has_more {
            break;
        }
    }
    assert_eq!(skipped, 1);
    append(&path, "rest of it\nwhole\n");
    assert_eq!(follower.poll().unwrap().lines, [b"whole"]);
    folder.write("log/rank-0.out", "");
    let lines = format!("{}garbage\n\u{0}\n[1]\n\n", launched(0).to_line().unwrap());
    folder.write(EVENTS, lines + &launched(1).to_line().unwrap());
    std::fs::remove_file(&path).unwrap();
    let update = Run::open(&folder.0).unwrap().follow().poll();
    assert_eq!((update.records.len(), update.skipped), (2, 4));
}

#[test]
fn unreadable_files_are_errors_that_name_them() {
    let folder = TempDir::new();
    folder.write("log/rank-0.out", "");
    folder.write(EVENTS, launched(0).to_line().unwrap());
    let fifos = [METRICS, RESULT].map(|name| folder.0.join(name));
    assert!(Command::new("mkfifo").args(&fifos).status().unwrap().success());
    folder.write("placement.json", "{\"format\": \"regatta-machine/1\"}");
    folder.write("environment.json", "[]");
    std::fs::create_dir(folder.0.join("machine.json")).unwrap();
    folder.write(CONFIG, [0xff, 0xfe]);
    let run = Run::open(&folder.0).unwrap();
    let update = run.follow().poll();
    assert_eq!(update.records.len(), 1);
    let [ReadError::NotRegular(path)] = &update.errors[..] else { panic!("{update:?}") };
    assert_eq!(path, &fifos[0]);
    let launch = run.last_launch();
    let errors = [
        launch.result().unwrap_err(),
        launch.placement().unwrap_err(),
        launch.environment().unwrap_err(),
        launch.machines().unwrap_err(),
        launch.config().unwrap_err(),
    ];
    let names = [RESULT, "placement.json", "environment.json", "machine.json", CONFIG];
    for (error, name) in errors.iter().zip(names) {
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(progress(run.path()).is_none() && run.summary().state == RunState::Failed);
    let error = Run::open(&folder.0.join("log")).unwrap_err().to_string();
    assert!(error.contains("log is not a run folder"), "{error}");
    assert!(matches!(Run::find(&folder.0.join("none")), Err(ReadError::Io { .. })));
}

#[test]
fn training_that_a_scheduler_started_runs_while_rank_0_holds_its_lock() {
    let folder = TempDir::new();
    folder.write(CONFIG, "");
    let lock = File::create(folder.0.join(TRAIN_LOCK)).unwrap();
    lock.lock().unwrap();
    folder.write(METRICS, step(3, 1.0));
    let run = Run::open(&folder.0).unwrap();
    assert_eq!((run.kind(), run.state()), (RunKind::Train, RunState::Running));
    let mut follower = run.follow();
    let update = follower.poll();
    assert_eq!((steps(&update), update.ended), (vec![3], false));
    drop(lock);
    assert!(follower.poll().ended);
    assert_eq!(run.state(), RunState::Failed);
}

/// A training of version 1, resumed by version 2.
#[test]
fn run_with_records_of_both_versions_is_read() {
    let run = recorded("tests/runs-v2", "mixed");
    assert_eq!((run.kind(), run.state()), (RunKind::Train, RunState::Finished));
    let update = run.follow().poll();
    assert_eq!((update.skipped, update.errors.len(), update.ended), (0, 0, true));
    assert_eq!(steps(&update), (1..=12).collect::<Vec<_>>());
    let name = |found: &Followed| match (&found.record.event, found.source) {
        (RunEvent::Launched { kind, .. }, Source::Events { launch, .. }) => {
            Some(format!("{launch}: {kind:?} {}", found.record.time.is_some()))
        }
        (RunEvent::Training { training }, Source::Events { launch, .. }) => match training {
            Event::Start(info) => Some(format!("{launch}: starts after step {}", info.start_step)),
            Event::Checkpoint { step, dir, .. } => Some(format!("{launch}: {dir} of {step}")),
            Event::End(summary) => Some(format!("{launch}: ends at {}", summary.step)),
            _ => None,
        },
        _ => None,
    };
    let found: Vec<String> = update.records.iter().filter_map(name).collect();
    let expected = [
        "0: None false",
        "1: None false",
        "2: Some(Train) true",
        "2: starts after step 10",
        "2: train/checkpoints/step-00000012 of 12",
        "2: ends at 12",
    ];
    assert_eq!(found, expected);
    assert_eq!(metrics(run.path()).len(), 15, "12 steps and 3 validations");
}

#[test]
fn runs_of_a_sweep_have_their_tables_and_rows() {
    let run = recorded("tests/runs-v2", "sweep");
    assert_eq!((run.kind(), run.state()), (RunKind::Bench, RunState::Finished));
    let update = run.follow().poll();
    assert_eq!((update.skipped, update.errors.len(), update.ended), (0, 0, true));
    let is_known = |event: &RunEvent| !matches!(event, RunEvent::Other(_));
    assert!(update.records.iter().all(|found| is_known(&found.record.event)), "{update:?}");
    let row = |found: &Followed| match (&found.record.event, found.source) {
        (RunEvent::BenchTable { table }, Source::Events { launch, .. }) => {
            Some((launch, table.operation.to_string()))
        }
        (RunEvent::BenchRow { row }, Source::Events { launch, .. }) => {
            Some((launch, format!("{} bytes", row.size_bytes)))
        }
        _ => None,
    };
    let found: Vec<_> = update.records.iter().filter_map(row).collect();
    let expected = [0, 1].map(|launch| [(launch, "all-reduce"), (launch, "8 bytes")]).concat();
    let expected: Vec<_> = expected.into_iter().map(|(at, text)| (at, text.to_owned())).collect();
    assert_eq!(found, expected);
}

#[test]
fn kind_is_that_of_the_first_event_or_guessed_from_the_command_of_earlier_versions() {
    let folder = TempDir::new();
    folder.write("log/rank-0.out", "");
    let kind_of = |command: &[&str], kind| {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let event = RunEvent::Launched { attempt: 0, command, kind };
        let record = Record { time: Some(1e9), seconds: Some(0.0), rank: None, event };
        folder.write(EVENTS, record.to_line().unwrap());
        Run::open(&folder.0).unwrap().kind()
    };
    let train = ["/opt/bin/regatta", "train", "tiny"];
    assert_eq!(kind_of(&train, None), RunKind::Train);
    assert_eq!(kind_of(&["regatta", "bench"], None), RunKind::Bench);
    assert_eq!(kind_of(&["regatta"], None), RunKind::Launch);
    assert_eq!(kind_of(&["my-regatta", "train"], None), RunKind::Launch);
    assert_eq!(kind_of(&train, Some(RunKind::Bench)), RunKind::Bench);
    assert_eq!(kind_of(&["python", "train.py"], Some(RunKind::Train)), RunKind::Train);
}

#[test]
fn runs_of_a_sweep_are_followed_while_they_start_one_after_the_other() {
    let folder = TempDir::new();
    let lock = File::create(folder.0.join(BENCH_LOCK)).unwrap();
    lock.lock().unwrap();
    let run = Run::open(&folder.0).unwrap();
    assert_eq!((run.kind(), run.state()), (RunKind::Bench, RunState::Running));
    let mut follower = run.follow();
    assert!(follower.poll().records.is_empty());
    for (launch, number) in (1..=10).enumerate() {
        let mut written = RunFolder::create(&folder.0.join(number.to_string())).unwrap();
        written.append_event(&launched(0));
        written.append_event(&of_rank(0, RunEvent::BenchTable { table: BenchTable::default() }));
        written.append_event(&of_rank(0, RunEvent::Exited { exit: RankExit::Exit(0) }));
        let update = follower.poll();
        assert_eq!((exits(&update), update.ended), (vec![(launch, 0, 0)], false), "{number}");
        written.write_durable(RESULT, &result(0)).unwrap();
    }
    let names: Vec<_> = run.launches().iter().map(|launch| launch.path().to_owned()).collect();
    assert!(names[1].ends_with("2") && names[9].ends_with("10"), "{names:?}");
    drop(lock);
    assert!(follower.poll().ended);
    assert_eq!(run.state(), RunState::Finished);
    // Another launch in the folder of the sweep.
    let mut written = RunFolder::create(&folder.0).unwrap();
    written.append_event(&launched(0));
    written.append_event(&of_rank(0, RunEvent::Exited { exit: RankExit::Exit(0) }));
    assert_eq!((exits(&follower.poll()), run.state()), (vec![(10, 0, 0)], RunState::Running));
    assert!(lock_files(&folder.0).contains(&folder.0.join(EVENTS)));
}
