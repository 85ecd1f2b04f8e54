//! `regatta train` in less memory than a model needs: refused or killed alone, it trains where ranks
//! share its state, and alone where that is on disk.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::io;
use std::path::{Path, PathBuf};

use support::metrics::assert_near;
use support::train::{metrics, regatta, run};
use support::{CommandOutput, TempDir};

/// Sixteen million parameters, which take 16 bytes each with gradients and moments; in many layers, so
/// that those that come and go are small.
const MODEL: &str = "layers=20 heads=4 width=256 context=16 batch=4 recompute=true threads=1 warmup=2 \
                     decay_steps=50 eval_every=0 checkpoint.every=0 train.steps=3";

/// More than half of what the model needs, and less than all.
const LIMIT: u64 = 180 << 20;

/// Control groups with a limit on memory, of either version, one for each rank. They go when this
/// does.
struct Groups(Vec<PathBuf>);

impl Groups {
    /// Where the system lets us make them; else a word.
    fn or_skip(ranks: usize) -> Option<Self> {
        let mut groups = Self(Vec::new());
        for rank in 0..ranks {
            if let Err(error) = groups.add(rank) {
                eprintln!("skipped: no control group with a limit on memory: {error}");
                return None;
            }
        }
        Some(groups)
    }

    fn add(&mut self, rank: usize) -> io::Result<()> {
        let [old, new] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
        let is_old = old.join("memory.limit_in_bytes").exists();
        let group = if is_old { old } else { new };
        let group = group.join(format!("regatta-test-{}-{rank}", std::process::id()));
        std::fs::create_dir(&group)?;
        self.0.push(group.clone());
        let set = |name: &str, bytes: u64| std::fs::write(group.join(name), bytes.to_string());
        // What could be swapped out would be no limit. Where nothing can, there is no such file.
        if is_old {
            set("memory.limit_in_bytes", LIMIT)?;
            let _ = set("memory.memsw.limit_in_bytes", LIMIT);
        } else {
            set("memory.max", LIMIT)?;
            let _ = set("memory.swap.max", 0);
        }
        Ok(())
    }

    /// Trains with each rank in its group.
    fn train(&self, folder: &TempDir, words: &str, run_dir: &str) -> CommandOutput {
        let groups = self.0[0].to_str().unwrap().strip_suffix('0').unwrap();
        let text = format!("echo $$ > {groups}$RANK/cgroup.procs && exec \"$@\"\n");
        let enter = format!("sh {}", folder.write("enter.sh", &text));
        let launch = format!("launch -n {} --oversubscribe --run-dir {run_dir}", self.0.len());
        let program = env!("CARGO_BIN_EXE_regatta");
        let words = format!("{launch} -- {enter} {program} train {MODEL} {words}");
        regatta(folder, &words).output().unwrap().into()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.0 {
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// On a disk, not in memory.
struct Disk(PathBuf);

impl Disk {
    fn new() -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("offload-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_does_not_fit_alone_trains_where_state_is_shared_or_on_disk() {
    let (folder, disk) = (TempDir::new(), Disk::new());
    run(&folder, &format!("{MODEL} -n 1 --run-dir plenty")).ok();
    let plenty = metrics(&folder, "plenty");

    let Some(group) = Groups::or_skip(1) else { return };
    let refused = group.train(&folder, "", "refused");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("1 of this node's ranks need 2"), "{refused:?}");
    assert!(refused.err.contains("parallel.zero"), "{refused:?}");
    let killed = group.train(&folder, "check_memory=false", "killed");
    assert!(killed.err.contains(" failed first: signal 9 (KILL)"), "{killed:?}");

    let kept = disk.0.display();
    let words = format!("offload.parameters=disk offload.optimizer=disk offload.folder={kept}");
    group.train(&folder, &words, "on-disk").ok();
    assert_near(&metrics(&folder, "on-disk"), &plenty);
    drop(group);

    // Each rank has a group of its own, where there is room for one.
    let Some(groups) = Groups::or_skip(2) else { return };
    groups.train(&folder, "zero=3", "shared").ok();
    assert_near(&metrics(&folder, "shared"), &plenty);
}
