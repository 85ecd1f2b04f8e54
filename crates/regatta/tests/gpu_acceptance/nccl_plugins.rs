//! PyTorch programs, unchanged, with all three plug-ins of NCCL: the results are those of NCCL's own
//! transport and choices, and NCCL's log says that the plug-ins are used.

use std::process::Command;

use crate::harness::Harness;
use crate::profiler::{harness, launch};
use crate::rows::check_rows;
use crate::support::process::Process;

/// A table with a choice that NCCL has on any machine, for the communicators of these tests.
const TABLE: &str = "regatta-nccl-tuning 1
all-reduce ranks=2 nodes=2 bytes=1..1000000000 ring simple
all-reduce ranks=4 nodes=4 bytes=1..1000000000 ring simple
";

/// Programs, ranks and providers.
const ROWS: &[(&str, usize, &str)] = &[
    ("ddp.py", 2, "shm"),
    ("ddp.py", 4, "tcp"),
    ("fsdp2.py", 2, "tcp"),
    ("fsdp2.py", 4, "shm"),
    ("verify.py", 3, "shm"),
    ("verify.py", 2, "net"),
    ("verify.py", 4, "tcp"),
];

/// What NCCL's log must say, of each rank.
const LINES: [&str; 5] = [
    "Using network Regatta",
    "via NET/Regatta/",
    "NET/Regatta: libfabric ",
    "TUNER/Regatta: ",
    "ROFILER/Plugin: ",
];

/// The different losses that the ranks of a program print, lowest first. Equal lines of several ranks may be
/// printed as one.
fn losses(harness: &Harness, mut command: Command) -> (Vec<f64>, String) {
    let output = harness.finish(Process::spawn(&harness.folder, &mut command));
    let text = format!("{}{}", output.out, output.err);
    assert_eq!(output.code, Some(0), "{text}");
    let loss = |line: &str| line.split("loss ").nth(1)?.trim().parse().ok();
    let mut losses: Vec<f64> = text.lines().filter_map(loss).collect();
    losses.sort_by(f64::total_cmp);
    losses.dedup();
    assert!(!losses.is_empty(), "{text}");
    (losses, text)
}

#[test]
fn programs_run_unchanged_with_all_plugins() {
    let Some((harness, python)) = harness() else { return };
    std::fs::write(harness.folder.join("table.txt"), TABLE).unwrap();
    check_rows(
        ROWS,
        |(program, ranks, provider)| format!("{program} on {ranks} ranks over {provider}"),
        |&(program, ranks, provider)| {
            let _slots = harness.slots(ranks);
            let command = format!("{python} {program}");
            let own = launch(&harness, ranks, "", &command);
            let (expected, _) = losses(&harness, own);
            let plugins = "--profile --tuner table.txt --net-plugin regatta";
            let mut all = launch(&harness, ranks, plugins, &command);
            all.env("NCCL_DEBUG", "INFO").env("REGATTA_NET", "require");
            all.env("REGATTA_FABRIC", provider);
            let (losses, log) = losses(&harness, all);
            for line in LINES {
                if !log.contains(line) {
                    return Err(format!("NCCL's log has no {line:?}: {log}"));
                }
            }
            let is_close = |(one, other): (&f64, &f64)| (one - other).abs() <= 1e-3 * other.abs();
            if losses.len() != expected.len() || !losses.iter().zip(&expected).all(is_close) {
                return Err(format!("losses {losses:?}, with NCCL's own transport {expected:?}"));
            }
            Ok(format!("losses {losses:?}"))
        },
    );
}
