//! The run folder: the names of its files and folders, and the records that are appended to it while a
//! run goes on. `regatta_launch::run_folder` writes it, `regatta_observe::read` reads it.
//!
//! A folder holds one run. A later launch of a training run, `regatta train --resume`, has a folder of
//! its own below [`RELAUNCH`]; metrics and checkpoints stay in the folder of the run. A launch has one
//! attempt, and one more per restart.

mod environment;
mod event;
mod kind;
pub(crate) mod metrics;
mod record;
mod run_id;

pub use environment::{EnvVar, JobEnvironment};
pub use event::RunEvent;
pub use kind::RunKind;
pub use metrics::{GpuMemory, StepMetrics, StepSeconds};
pub use record::{Record, RecordError, VERSION};
pub use run_id::{run_id, run_id_time, unix_seconds, utc_date};

/// Environment variable with the path of the run folder.
pub const VARIABLE: &str = "REGATTA_RUN_DIR";
/// Default folder of run folders.
pub const ROOT: &str = "runs";
/// A run folder in what is shown of a job that is not started.
pub const PLACEHOLDER: &str = "RUN-FOLDER";

/// Name of the tuner's table in [`PLUGINS`].
pub const TUNING_TABLE: &str = "tuning.txt";

/// Declares the names at the top of a run folder.
macro_rules! names {
    ($($(#[doc = $description:literal])+ $NAME:ident = $name:literal;)+) => {
        $($(#[doc = $description])+ pub const $NAME: &str = $name;)+

        /// Everything at the top of a run folder, except for numbered files.
        const NAMES: &[&str] = &[$($NAME),+];
    };
}

names! {
    /// What the launcher did and saw, one [`Record`] per line. The launcher holds a lock on it while it runs.
    EVENTS = "events.jsonl";
    /// Steps and validations of a training, one [`Record`] per line.
    METRICS = "metrics.jsonl";
    /// The outcome: [`crate::result::RunResult`]. Replaced at the end of each attempt.
    RESULT = "result.json";
    /// The hardware of the first node: [`crate::Machine`].
    MACHINE = "machine.json";
    /// [`crate::Placement`].
    PLACEMENT = "placement.json";
    /// Variables of the ranks, with reasons: [`JobEnvironment`].
    ENVIRONMENT = "environment.json";
    /// Folder of the ranks' output.
    LOG = "log";
    /// What agents need to connect, until they have read it. It has the secret of the job.
    BOOTSTRAP = "boot";
    /// Report of `--check-net`.
    NET_REPORT = "net.json";
    /// Folder of NCCL's debug logs of `--check-net`.
    NET_LOGS = "net";
    /// Folder of the event and status files of `--profile`, and the plug-in that writes them.
    COMMS = "comms";
    /// Folder of the plug-ins of `--tuner` and `--net-plugin`, and of the table of the former.
    PLUGINS = "plugins";
    /// Results of `regatta bench`.
    BENCH_RESULT = "bench.json";
    /// Locked during the runs of a sweep or scan of `regatta bench`, whose run folders are below its own.
    BENCH_LOCK = "bench.lock";
    /// What a run of `regatta bench --tune-nccl` prints.
    CASE_OUTPUT = "case-output.txt";
    /// The resolved configuration of a training.
    CONFIG = "config.toml";
    /// Folder of checkpoints, unless `checkpoint.dir` is set.
    CHECKPOINTS = "checkpoints";
    /// Folder of TensorBoard event files.
    TENSORBOARD = "tensorboard";
    /// Folder of offloaded state, unless `offload.dir` is set.
    OFFLOADED = "offloaded";
    /// Locked by rank 0 of a training.
    TRAIN_LOCK = "train.lock";
    /// Folder of the later launches of a training.
    RELAUNCH = "relaunch";
}

/// File with the hardware of node `index`, where nodes differ: `machine-1.json`.
pub fn machine_name(index: usize) -> String {
    numbered(MACHINE, index, 0)
}

/// Result of the benchmark number `number` of the job: `bench-2.json`; the first is [`BENCH_RESULT`].
pub fn bench_result_name(number: usize) -> String {
    numbered(BENCH_RESULT, number, 1)
}

/// `name.json` for the first number, `name-N.json` for others.
fn numbered(name: &str, number: usize, first: usize) -> String {
    match name.strip_suffix(".json") {
        Some(stem) if number > first => format!("{stem}-{number}.json"),
        _ => name.to_owned(),
    }
}

/// Name of a file while it is written, before it is renamed.
pub fn part_name(name: &str) -> String {
    format!("{name}{PART_SUFFIX}")
}

const PART_SUFFIX: &str = ".part";

/// Path of a log within [`LOG`]: `rank-0.out`, `restart-1/rank-0.err`.
pub fn log_name(attempt: u32, rank: u32, stderr: bool) -> String {
    let stream = if stderr { "err" } else { "out" };
    let name = format!("rank-{rank}.{stream}");
    attempt_folder(attempt).map_or(name.clone(), |folder| format!("{folder}/{name}"))
}

/// Name of a file in [`LOG`] by which a node sees whether it shares the run folder.
pub fn marker_name(run: &str) -> String {
    format!(".{run}")
}

/// Name of a rank's debug log of NCCL.
pub fn net_log_name(rank: u32) -> String {
    format!("rank-{rank}.log")
}

/// The rank in the name of a debug log.
pub fn parse_net_log_name(name: &str) -> Option<u32> {
    name.strip_prefix("rank-")?.strip_suffix(".log")?.parse().ok()
}

/// Run folder of a node count in that of a scan.
pub fn scan_case_name(nodes: u32) -> String {
    format!("{nodes}-nodes")
}

/// Run folder of a repeated measurement of `regatta doctor` in that of the first.
pub fn repetition_name(repetition: u32) -> String {
    format!("repetition-{repetition}")
}

/// The rank and the stream, true for standard error, of a log's file name.
pub fn parse_log_name(name: &str) -> Option<(u32, bool)> {
    let (rank, stream) = name.strip_prefix("rank-")?.split_once('.')?;
    let found = (rank.parse().ok()?, stream == "err");
    name.eq(&log_name(0, found.0, found.1)).then_some(found)
}

/// Folder of a restart within [`LOG`], `restart-1`; the first attempt has none.
pub fn attempt_folder(attempt: u32) -> Option<String> {
    (attempt > 0).then(|| format!("restart-{attempt}"))
}

/// The attempt of a folder within [`LOG`].
pub fn parse_attempt_folder(name: &str) -> Option<u32> {
    let attempt = name.strip_prefix("restart-")?.parse().ok()?;
    (attempt_folder(attempt)? == name).then_some(attempt)
}

/// Whether a file or folder at the top of a run folder has a name that regatta gives.
pub fn is_own_name(name: &str) -> bool {
    let name = name.strip_suffix(PART_SUFFIX).unwrap_or(name);
    let is_numbered = |of: &str, name_of: fn(usize) -> String| {
        let number = name.strip_prefix(of.trim_end_matches(".json"));
        let number = number.and_then(|end| end.strip_prefix('-')?.strip_suffix(".json"));
        number.and_then(|text| text.parse().ok()).is_some_and(|number| name_of(number) == name)
    };
    NAMES.contains(&name)
        || is_numbered(MACHINE, machine_name)
        || is_numbered(BENCH_RESULT, bench_result_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_logs_and_attempts_are_parsed() {
        for (attempt, name) in [(0, "rank-3.err"), (2, "restart-2/rank-3.err")] {
            assert_eq!(log_name(attempt, 3, true), name);
        }
        assert_eq!(parse_log_name("rank-3.err"), Some((3, true)));
        assert_eq!(parse_log_name("rank-12.out"), Some((12, false)));
        for other in ["rank-03.out", "rank-3.log", "rank-.out", "rank-3", "3.out"] {
            assert_eq!(parse_log_name(other), None, "{other}");
        }
        assert_eq!(parse_attempt_folder("restart-2"), Some(2));
        for other in ["restart-0", "restart-02", "restart-", "restart-x"] {
            assert_eq!(parse_attempt_folder(other), None, "{other}");
        }
    }

    #[test]
    fn own_names_are_told_from_those_of_users() {
        assert_eq!((machine_name(0), machine_name(2)), (MACHINE.into(), "machine-2.json".into()));
        assert_eq!(bench_result_name(1), BENCH_RESULT);
        assert_eq!(bench_result_name(2), "bench-2.json");
        for own in ["result.json", "result.json.part", "machine-1.json", "bench-9999.json", "comms"]
        {
            assert!(is_own_name(own), "{own}");
        }
        for other in ["thesis.tex", "output.txt", "bench-1.json", "machine-.json", "log.txt"] {
            assert!(!is_own_name(other), "{other}");
        }
    }
}
