//! Control groups of version 1: each host gets a folder of its own in every hierarchy that Slurm
//! uses, and sees it as the hierarchy's root. So clusters do not meet, and one sweep removes all.

use crate::error::{TestbedError, io};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MOUNT: &str = "/sys/fs/cgroup";
/// What Slurm's version 1 plug-in uses.
const CONTROLLERS: [&str; 4] = ["freezer", "cpuset", "devices", "memory"];
/// A group stays busy for a moment after its last process ended.
const BUSY: Duration = Duration::from_secs(3);

/// The hierarchies that this machine lacks.
pub(crate) fn missing() -> Vec<&'static str> {
    let has = |c: &&str| !Path::new(MOUNT).join(c).join("tasks").exists();
    CONTROLLERS.into_iter().filter(has).collect()
}

/// The hierarchies that are here, all of them or none.
pub(crate) fn controllers() -> &'static [&'static str] {
    if missing().is_empty() { &CONTROLLERS } else { &[] }
}

/// Makes the groups of one host, `<cluster>/<host>` in each hierarchy.
pub(crate) fn create(cluster: &str, host: &str) -> Result<(), TestbedError> {
    for controller in controllers() {
        let root = Path::new(MOUNT).join(controller);
        let outer = root.join(cluster);
        let inner = outer.join(host);
        fs::create_dir_all(&inner).map_err(io("make", &inner))?;
        if *controller == "cpuset" {
            // A new cpuset is empty, and no process may enter an empty one.
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

/// Removes all groups of a cluster whose processes have ended.
pub(crate) fn remove(cluster: &str) {
    let deadline = Instant::now() + BUSY;
    for controller in CONTROLLERS {
        let top = Path::new(MOUNT).join(controller).join(cluster);
        while top.exists() {
            let mut folders = Vec::new();
            collect(&top, &mut folders);
            // Children come last, so they are removed first.
            let removed = folders.iter().rev().filter(|f| fs::remove_dir(f).is_ok()).count();
            if removed < folders.len() {
                if Instant::now() >= deadline {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn collect(folder: &Path, folders: &mut Vec<PathBuf>) {
    folders.push(folder.to_owned());
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            collect(&entry.path(), folders);
        }
    }
}
