//! Version 1 control groups: each host gets its own group in every hierarchy that Slurm uses and
//! sees it as the root, so that clusters are isolated and removed as a unit.

use crate::error::{TestbedError, io};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MOUNT: &str = "/sys/fs/cgroup";
/// Controllers used by Slurm's cgroup/v1 plugin.
const CONTROLLERS: [&str; 4] = ["freezer", "cpuset", "devices", "memory"];
/// The controller of CPU time, which Slurm does not use.
const CPU: &str = "cpu";
/// Period of a CPU limit in microseconds.
const CPU_PERIOD: u32 = 20_000;
/// Time for a group to become removable after its last process exited.
const BUSY_TIMEOUT: Duration = Duration::from_secs(3);

/// Controllers that this machine lacks.
pub(crate) fn missing() -> Vec<&'static str> {
    let has = |c: &&str| !Path::new(MOUNT).join(c).join("tasks").exists();
    CONTROLLERS.into_iter().filter(has).collect()
}

/// All controllers if all are mounted, otherwise none.
pub(crate) fn controllers() -> &'static [&'static str] {
    if missing().is_empty() { &CONTROLLERS } else { &[] }
}

/// Creates the groups of one host, `<cluster>/<host>` in each hierarchy.
pub(crate) fn create(cluster: &str, host: &str) -> Result<(), TestbedError> {
    for controller in controllers() {
        let root = Path::new(MOUNT).join(controller);
        let outer = root.join(cluster);
        let inner = outer.join(host);
        fs::create_dir_all(&inner).map_err(io("create", &inner))?;
        if *controller == "cpuset" {
            // A new cpuset is empty, and no process can join an empty one.
            copy_cpuset(&root, &outer)?;
            copy_cpuset(&outer, &inner)?;
        }
    }
    Ok(())
}

fn copy_cpuset(from: &Path, to: &Path) -> Result<(), TestbedError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let content = fs::read(from.join(file)).map_err(io("read", from.join(file)))?;
        fs::write(to.join(file), content).map_err(io("write", to.join(file)))?;
    }
    Ok(())
}

/// Limits the CPU time of processes to this many CPUs.
pub(crate) fn limit_cpu(
    cluster: &str,
    host: &str,
    cpus: f64,
    processes: &[u32],
) -> Result<(), TestbedError> {
    let group = Path::new(MOUNT).join(CPU).join(cluster).join(host);
    fs::create_dir_all(&group).map_err(io("create", &group))?;
    let write = |file: &str, value: u32| {
        fs::write(group.join(file), value.to_string()).map_err(io("write", group.join(file)))
    };
    write("cpu.cfs_period_us", CPU_PERIOD)?;
    write("cpu.cfs_quota_us", (cpus * f64::from(CPU_PERIOD)) as u32)?;
    // A process may have exited.
    processes.iter().for_each(|pid| drop(write("cgroup.procs", *pid)));
    Ok(())
}

/// Removes all groups of a cluster whose processes have exited.
pub(crate) fn remove(cluster: &str) {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    for controller in CONTROLLERS.into_iter().chain([CPU]) {
        let top = Path::new(MOUNT).join(controller).join(cluster);
        while top.exists() {
            let mut dirs = Vec::new();
            collect(&top, &mut dirs);
            // Remove children before their parents.
            let removed = dirs.iter().rev().filter(|f| fs::remove_dir(f).is_ok()).count();
            if removed < dirs.len() {
                if Instant::now() >= deadline {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn collect(dir: &Path, dirs: &mut Vec<PathBuf>) {
    dirs.push(dir.to_owned());
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            collect(&entry.path(), dirs);
        }
    }
}
