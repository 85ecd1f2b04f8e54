//! `regatta launch --profile` with PyTorch and NCCL: what is recorded is what PyTorch's flight recorder
//! saw, a stopped rank is named, and a training step takes as long as without it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use regatta_events::file::{self, ReadEnd, Record};
use regatta_events::operation::Operation;

use crate::harness::Harness;
use crate::rows::check_rows;
use crate::support::from_json;
use crate::support::process::Process;

const PROGRAMS: &[(&str, &str)] = &[
    ("ddp.py", include_str!("programs/ddp.py")),
    ("fsdp2.py", include_str!("programs/fsdp2.py")),
    ("collectives.py", include_str!("programs/collectives.py")),
    ("graph.py", include_str!("programs/graph.py")),
    ("verify.py", include_str!("programs/verify.py")),
    ("stopped_rank.py", include_str!("programs/stopped_rank.py")),
    ("step_time.py", include_str!("programs/step_time.py")),
    ("flight_recorder.py", include_str!("programs/flight_recorder.py")),
];

/// Calls by kind and message size.
type Calls = BTreeMap<String, u64>;

/// Programs and their number of ranks.
const ROWS: &[(&str, usize)] =
    &[("ddp.py", 2), ("fsdp2.py", 2), ("fsdp2.py", 4), ("collectives.py", 3)];

/// A harness with the programs in its folder, and the Python interpreter with PyTorch.
pub fn harness() -> Option<(Harness, String)> {
    let harness = Harness::gpu_or_skip()?;
    let python = std::env::var("REGATTA_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let torch = Command::new(&python).args(["-c", "import torch"]).output();
    if !torch.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {python} has no PyTorch; set REGATTA_TEST_PYTHON");
        return None;
    }
    for (name, text) in PROGRAMS {
        std::fs::write(harness.folder.join(name), text).unwrap();
    }
    Some((harness, python))
}

/// `regatta launch` of ranks that share the GPU.
pub fn launch(harness: &Harness, ranks: usize, options: &str, command: &str) -> Command {
    let share = "--no-gpus --oversubscribe --wrap 'env NCCL_HOSTID={rank}'";
    harness.regatta(&format!("launch -n {ranks} {share} {options} -- {command}"))
}

/// The operations of a rank of a run.
fn operations(harness: &Harness, run: &str, rank: usize) -> Vec<Operation> {
    let folder = harness.folder.join(run).join("comms");
    let is_of_rank = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with(&format!("rank-{rank:05}-")) && name.ends_with("-nccl.events")
    };
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(is_of_rank).unwrap();
    let mut found = Vec::new();
    let end = file::read(&std::fs::read(file).unwrap()[..], |record| match record {
        Record::Operation(operation) => found.push(operation),
        Record::Lost(lost) => panic!("events were lost: {lost:?}"),
        _ => {}
    });
    assert_eq!(end.unwrap(), ReadEnd::Complete);
    found
}

fn calls<'a>(operations: impl IntoIterator<Item = &'a Operation>) -> Calls {
    let mut calls = Calls::new();
    for operation in operations {
        let kind = operation.kind.known_name().unwrap();
        *calls.entry(format!("{kind} {}", operation.bytes)).or_default() += 1;
    }
    calls
}

/// What NCCL runs for the calls of PyTorch: an all-to-all is a group of messages.
fn as_nccl_runs(calls: Calls, ranks: u64) -> Calls {
    let mut expected = Calls::new();
    for (name, count) in calls {
        match name.strip_prefix("all-to-all ") {
            None => *expected.entry(name).or_default() += count,
            Some(bytes) => {
                let part = bytes.parse::<u64>().unwrap() / ranks;
                for kind in ["send", "receive"] {
                    *expected.entry(format!("{kind} {part}")).or_default() += count * ranks;
                }
            }
        }
    }
    expected
}

#[test]
fn recorded_operations_are_those_of_pytorch() {
    let Some((harness, python)) = harness() else { return };
    check_rows(
        ROWS,
        |(program, ranks)| format!("{program} on {ranks} ranks"),
        |&(program, ranks)| {
            let _slots = harness.slots(ranks);
            let run = format!("{program}-{ranks}");
            let command = format!("{python} flight_recorder.py {run}.json {program}");
            let mut command =
                launch(&harness, ranks, &format!("--profile --run-dir {run}"), &command);
            harness.finish(Process::spawn(&harness.folder, &mut command)).ok();
            for rank in 0..ranks {
                let seen: Calls = from_json(&harness.folder.read(format!("{run}.json.{rank}")));
                let operations = operations(&harness, &run, rank);
                let recorded = calls(&operations);
                let expected = as_nccl_runs(seen, ranks as u64);
                if recorded != expected {
                    return Err(format!(
                        "rank {rank}: recorded {recorded:?}, expected {expected:?}"
                    ));
                }
                // NCCL reports no kernel of a message to the rank itself.
                let is_copy = |o: &Operation| o.kind.is_p2p() && o.peer == Some(rank as u32);
                let unmeasured = |o: &&Operation| o.duration().is_none() && !is_copy(o);
                if let Some(unmeasured) = operations.iter().find(unmeasured) {
                    return Err(format!("rank {rank}: no duration of {unmeasured:?}"));
                }
            }
            let total = calls(&operations(&harness, &run, 0)).values().sum::<u64>();
            Ok(format!("{total} operations per rank"))
        },
    );
}

#[test]
fn replayed_graphs_are_recorded() {
    let Some((harness, python)) = harness() else { return };
    let _slots = harness.slots(2);
    let options = "--profile --run-dir graph";
    let mut command = launch(&harness, 2, options, &format!("{python} graph.py"));
    harness.finish(Process::spawn(&harness.folder, &mut command)).ok();
    for rank in 0..2 {
        let operations = operations(&harness, "graph", rank);
        let reduced = operations.iter().filter(|o| o.bytes == 4 * 4096);
        assert_eq!(calls(reduced).values().sum::<u64>(), 11, "rank {rank}");
    }
}

#[test]
fn a_stopped_rank_is_named() {
    let Some((harness, python)) = harness() else { return };
    let _slots = harness.slots(3);
    let options = "--profile --hang-timeout 8 --grace 3 --run-dir stopped";
    let mut command = launch(&harness, 3, options, &format!("{python} stopped_rank.py"));
    let output = harness.finish(Process::spawn(&harness.folder, &mut command));
    assert_eq!(output.code, Some(124), "{}", output.err);
    let line = output.err.lines().find(|line| line.contains("did not arrive"));
    let line = line.unwrap_or_else(|| panic!("{}", output.err));
    assert!(
        line.contains("rank 1") && line.contains("all-reduce") && line.contains("512"),
        "{line}"
    );
    eprintln!("{line}");
}

/// Compares recorded steps with steps of the same run for which the recording is paused. Only reported:
/// tests do not depend on times.
#[test]
fn overhead_of_a_training_step() {
    let Some((harness, python)) = harness() else { return };
    let _slots = harness.all_slots();
    for level in ["network", "steps"] {
        let options = format!("--profile={level} --run-dir step-{level}");
        let mut command = launch(&harness, 2, &options, &format!("{python} step_time.py 60"));
        let output = harness.finish(Process::spawn(&harness.folder, &mut command)).ok();
        let line = output.lines().find(|line| line.contains("recorded")).unwrap();
        eprintln!("--profile={level}: {line}");
        // What was recorded are the operations of the steps that were not paused.
        let count = |rank| operations(&harness, &format!("step-{level}"), rank).len();
        assert_eq!(count(0), count(1));
    }
}
