//! Where and for which process events are recorded.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use crate::operation::{Process, Source};

/// Environment variable with the folder of the event files. Nothing is recorded unless it is set.
pub const FOLDER_VARIABLE: &str = "REGATTA_PROFILE";
/// Environment variable that selects what the NCCL profiler plug-in records: [`Level`].
pub const LEVEL_VARIABLE: &str = "REGATTA_PROFILE_LEVEL";

/// Variables with the rank of a process, the most specific launcher last: Regatta's and torchrun's
/// `RANK` is right also inside of a scheduler's step.
const RANK_VARIABLES: [&str; 6] =
    ["RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "FLUX_TASK_RANK", "SLURM_PROCID"];
const SIZE_VARIABLES: [&str; 5] =
    ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "FLUX_JOB_SIZE", "SLURM_NTASKS"];
/// Variable with the number of restarts before, by `regatta launch` and torchrun.
const RESTART_VARIABLE: &str = "TORCHELASTIC_RESTART_COUNT";

/// What the NCCL profiler plug-in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Operations with their time on the GPU.
    Operations,
    /// Also the time of their network transfers.
    #[default]
    Network,
    /// Also how long each step of a transfer waits. There are many: expect some overhead.
    Steps,
}

impl Level {
    /// The level with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "operations" => Self::Operations,
            "network" => Self::Network,
            "steps" => Self::Steps,
            _ => return None,
        })
    }
}

/// How to record.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder of the event files; created if missing.
    pub folder: PathBuf,
    /// The process.
    pub process: Process,
    /// How often the file and the status are written.
    pub interval: Duration,
}

impl Settings {
    /// Settings from the environment; `None` unless [`FOLDER_VARIABLE`] is set.
    pub fn from_env(source: Source) -> Option<Self> {
        let folder = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty())?;
        Some(Self::new(folder.into(), process(source, |name| std::env::var_os(name))))
    }

    /// Settings with the default interval.
    pub fn new(folder: PathBuf, process: Process) -> Self {
        Self { folder, process, interval: Duration::from_millis(200) }
    }
}

/// The level of the environment. Unknown values count as the default.
pub fn level() -> Level {
    let name = std::env::var_os(LEVEL_VARIABLE);
    name.as_deref().and_then(OsStr::to_str).and_then(Level::from_name).unwrap_or_default()
}

/// This process, from its environment.
pub fn process(source: Source, variable: impl Fn(&str) -> Option<OsString>) -> Process {
    let number = |names: &[&str]| -> Option<u32> {
        names.iter().find_map(|name| variable(name)?.to_str()?.trim().parse().ok())
    };
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    Process {
        source,
        rank: number(&RANK_VARIABLES),
        world_size: number(&SIZE_VARIABLES),
        restart: number(&[RESTART_VARIABLE]).unwrap_or(0),
        pid: std::process::id(),
        host: read("/proc/sys/kernel/hostname"),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
    }
}

/// Name of the files of a process, without extension. Processes of all ranks, hosts and restarts share a
/// folder.
pub fn file_stem(process: &Process) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let host: String = process.host.chars().map(safe).collect();
    let rank = process.rank.map_or_else(|| "unknown".to_owned(), |rank| format!("{rank:05}"));
    // A container may use a process ID again.
    let restart = match process.restart {
        0 => String::new(),
        restart => format!("-restart-{restart}"),
    };
    format!("rank-{rank}{restart}-{host}-{}-{}", process.pid, process.source)
}
