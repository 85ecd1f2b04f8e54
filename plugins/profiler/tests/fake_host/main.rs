//! A fake host drives every exported table as NCCL does, without GPU and NCCL: in processes of their own,
//! with several threads, under random schedules. The event files must contain exactly what it did.

#![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

mod child;
mod files;
mod host;
mod plan;
mod plugin;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use child::{Child, Scenario};
use files::{Content, event_files, read};
use plan::{PlannedCommunicator, expected};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use regatta_events::file::ReadEnd;
use regatta_events::status;

/// A folder that is removed at the end of a test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-fake-host-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The only event file.
    fn content(&self) -> Content {
        let files = event_files(&self.0);
        assert_eq!(files.len(), 1, "{files:?}");
        read(&files[0])
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The command of a child process.
fn command(folder: Option<&Path>, child: &Child) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_process", "--ignored", "--nocapture", "--test-threads=1"]);
    for variable in ["REGATTA_PROFILE", "REGATTA_PROFILE_LEVEL", "RANK", "WORLD_SIZE"] {
        command.env_remove(variable);
    }
    if let Some(folder) = folder {
        command.env("REGATTA_PROFILE", folder).env("RANK", "7").env("WORLD_SIZE", "8");
    }
    if child.steps {
        command.env("REGATTA_PROFILE_LEVEL", "steps");
    }
    command.env(child::VARIABLE, child.to_text()).stdin(Stdio::null());
    command
}

/// Runs a child process to its end.
fn run(folder: Option<&Path>, child: &Child) {
    let output = command(folder, child).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{child:?}: {}\n{text}", output.status);
}

/// Runs as a child process of the other tests.
#[test]
#[ignore = "started by the other tests"]
fn child_process() {
    if let Some(child) = Child::from_env() {
        child.run();
        // As an ordinary program, whose exit handlers run.
        std::process::exit(0);
    }
}

fn check(content: &Content, plan: &[PlannedCommunicator], child: &Child) {
    assert_eq!(content.end, ReadEnd::Complete);
    assert!(content.lost.is_empty(), "{:?}", content.lost);
    let process = content.process.as_ref().unwrap();
    assert_eq!((process.rank, process.world_size), (Some(7), Some(8)));
    check_communicators(content, plan, child.version);
    let (recorded, expected) = (content.recorded(), expected(plan, child.version, child.steps));
    for (recorded, expected) in recorded.iter().zip(&expected) {
        assert_eq!(recorded, expected);
    }
    assert_eq!(recorded.len(), expected.len());
}

fn check_communicators(content: &Content, plan: &[PlannedCommunicator], version: u32) {
    assert_eq!(content.communicators.len(), plan.len());
    for (planned, index) in plan.iter().zip(1..) {
        let communicator = &content.communicators[&index];
        assert_eq!(communicator.id, planned.id);
        assert_eq!(communicator.rank as i32, planned.rank);
        if version > 3 {
            assert_eq!((communicator.ranks as i32, communicator.nodes), (planned.ranks, 1));
            let name = planned.name.unwrap_or_default().to_string_lossy();
            assert_eq!(communicator.name, name);
        }
    }
}

#[test]
fn every_operation_of_random_schedules_is_recorded() {
    // A smaller seed is no simpler schedule.
    let config =
        Config { cases: 16, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let cases = (any::<u32>(), 3u32..=6, any::<bool>());
    let result = runner.run(&cases, |(seed, version, steps)| {
        let seed = u64::from(seed);
        let folder = Folder::new();
        let child = Child { scenario: Scenario::Run, seed, version, steps };
        run(Some(&folder.0), &child);
        check(&folder.content(), &child.plan(), &child);
        Ok::<(), TestCaseError>(())
    });
    result.unwrap();
}

#[test]
fn a_killed_process_leaves_a_readable_file() {
    let folder = Folder::new();
    let child = Child { scenario: Scenario::Kill, seed: 3, version: 5, steps: false };
    let status = command(Some(&folder.0), &child).stdout(Stdio::null()).status().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let content = folder.content();
    assert_eq!(content.end, ReadEnd::Open);
    // Everything that ended before the last flush, with nothing else damaged.
    let all = expected(&child.plan(), child.version, child.steps);
    let ended: Vec<_> = all.into_iter().filter(|operation| operation.timing == "Device").collect();
    let recorded = content.recorded();
    assert!(ended.iter().all(|operation| recorded.contains(operation)));
    assert!(recorded.iter().all(|operation| operation.timing != "Host"));
}

#[test]
fn a_library_that_is_closed_and_opened_again_continues_its_file() {
    for version in 3..=6 {
        let folder = Folder::new();
        let child = Child { scenario: Scenario::Reopen, seed: 11, version, steps: false };
        run(Some(&folder.0), &child);
        check(&folder.content(), &child.plan(), &child);
    }
}

#[test]
fn a_fork_does_not_disturb_the_file_and_records_to_its_own() {
    let folder = Folder::new();
    let child = Child { scenario: Scenario::Fork, seed: 5, version: 5, steps: false };
    run(Some(&folder.0), &child);
    let contents: Vec<_> = event_files(&folder.0).iter().map(|path| read(path)).collect();
    assert_eq!(contents.len(), 2);
    let is_fork = |content: &&Content| content.operations.len() == 1;
    check(contents.iter().find(|content| !is_fork(content)).unwrap(), &child.plan(), &child);
    let fork = contents.iter().find(is_fork).unwrap();
    assert_eq!(fork.end, ReadEnd::Complete);
}

#[test]
fn nothing_happens_unless_it_is_enabled() {
    for version in 3..=6 {
        run(None, &Child { scenario: Scenario::Disabled, seed: 1, version, steps: false });
    }
}

#[test]
fn a_folder_that_cannot_be_created_is_reported_once() {
    let folder = Folder::new();
    let file = folder.0.join("file");
    std::fs::write(&file, "").unwrap();
    for version in 3..=6 {
        let child = Child { scenario: Scenario::NoFolder, seed: 1, version, steps: false };
        run(Some(&file.join("below")), &child);
    }
}

#[test]
fn a_missing_folder_is_created() {
    let folder = Folder::new();
    let child = Child { scenario: Scenario::Run, seed: 2, version: 4, steps: false };
    let below = Folder(folder.0.join("several/levels"));
    run(Some(&below.0), &child);
    check(&below.content(), &child.plan(), &child);
}

#[test]
fn a_full_disk_costs_operations_and_is_counted() {
    let folder = Folder::new();
    let child = Child { scenario: Scenario::DiskFull, seed: 8, version: 5, steps: false };
    run(Some(&folder.0), &child);
    let content = folder.content();
    assert_eq!(content.end, ReadEnd::Complete);
    let all = expected(&child.plan(), child.version, child.steps);
    let recorded = content.recorded();
    assert!(content.lost.operations > 0);
    assert_eq!(recorded.len() as u64 + content.lost.operations, all.len() as u64);
    assert!(recorded.iter().all(|operation| all.contains(operation)));
    // The second communicator ran after the disk had space again.
    assert!(all.iter().filter(|o| o.communicator == 2).all(|o| recorded.contains(o)));
}

#[test]
fn events_that_do_not_fit_are_counted_and_never_waited_for() {
    let folder = Folder::new();
    let child = Child { scenario: Scenario::Overflow, seed: 1, version: 5, steps: false };
    run(Some(&folder.0), &child);
    let content = folder.content();
    assert_eq!(content.end, ReadEnd::Complete);
    assert!(content.lost.events > 0);
    let enqueued = content.operations.len() as u64 + content.lost.events;
    assert_eq!(enqueued % child::BURST, 0, "each event is stored or counted");
    let status =
        std::fs::read(event_files(&folder.0)[0].with_extension(status::EXTENSION)).unwrap();
    let status = status::decode(&status).unwrap();
    assert_eq!((status.ended, status.lost), (true, content.lost.events));
}
