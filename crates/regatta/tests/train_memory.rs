//! `regatta train` with less memory than the model needs on one rank: it is rejected, or trains with
//! sharded or offloaded state.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::io;
use std::path::{Path, PathBuf};

use support::metrics::assert_close;
use support::train::{metrics, regatta_command, run};
use support::{CommandOutput, TempDir};

/// 16M parameters at 16 bytes each with gradients and optimizer state, in many layers so that the
/// resident ones are small.
const MODEL: &str = "num_layers=20 num_heads=4 hidden_size=256 seq_len=16 batch=4 recompute=true \
                     threads=1 warmup_steps=2 decay_steps=50 eval_interval=0 checkpoint.interval=0 \
                     train.steps=3";

/// Between half and all of the memory the model needs.
const LIMIT: u64 = 180 << 20;

/// Memory cgroups (v1 or v2), one per rank. Removed on drop.
struct Cgroups(Vec<PathBuf>);

impl Cgroups {
    /// Creates the cgroups; `None` with a message if that is not permitted.
    fn or_skip(ranks: usize) -> Option<Self> {
        let mut cgroups = Self(Vec::new());
        for rank in 0..ranks {
            if let Err(error) = cgroups.add(rank) {
                eprintln!("skipped: cannot create a memory cgroup: {error}");
                return None;
            }
        }
        Some(cgroups)
    }

    fn add(&mut self, rank: usize) -> io::Result<()> {
        let [v1, v2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
        let is_v1 = v1.join("memory.limit_in_bytes").exists();
        let cgroup = if is_v1 { v1 } else { v2 };
        let cgroup = cgroup.join(format!("regatta-test-{}-{rank}", std::process::id()));
        std::fs::create_dir(&cgroup)?;
        self.0.push(cgroup.clone());
        let set = |name: &str, bytes: u64| std::fs::write(cgroup.join(name), bytes.to_string());
        // Swap would defeat the limit. Without swap accounting these files do not exist.
        if is_v1 {
            set("memory.limit_in_bytes", LIMIT)?;
            let _ = set("memory.memsw.limit_in_bytes", LIMIT);
        } else {
            set("memory.max", LIMIT)?;
            let _ = set("memory.swap.max", 0);
        }
        Ok(())
    }

    /// Trains with each rank in its cgroup.
    fn train(&self, folder: &TempDir, words: &str, run_dir: &str) -> CommandOutput {
        let prefix = self.0[0].to_str().unwrap().strip_suffix('0').unwrap();
        let text = format!("echo $$ > {prefix}$RANK/cgroup.procs && exec \"$@\"\n");
        let enter = format!("sh {}", folder.write("enter.sh", &text));
        let launch = format!("launch -n {} --oversubscribe --run-dir {run_dir}", self.0.len());
        let program = env!("CARGO_BIN_EXE_regatta");
        let words = format!("{launch} -- {enter} {program} train {MODEL} {words}");
        regatta_command(folder, &words).output().unwrap().into()
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for cgroup in &self.0 {
            let _ = std::fs::remove_dir(cgroup);
        }
    }
}

/// An offload folder on disk, because the temporary folder may be in memory.
struct OffloadFolder(PathBuf);

impl OffloadFolder {
    fn new() -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("offload-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for OffloadFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_model_larger_than_the_memory_trains_with_zero_3_or_offload() {
    let (folder, disk) = (TempDir::new(), OffloadFolder::new());
    run(&folder, &format!("{MODEL} -n 1 --run-dir unlimited")).ok();
    let unlimited = metrics(&folder, "unlimited");

    let Some(cgroup) = Cgroups::or_skip(1) else { return };
    let refused = cgroup.train(&folder, "", "refused");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("1 rank needs 2"), "{refused:?}");
    assert!(refused.err.contains("parallel.zero"), "{refused:?}");
    let killed = cgroup.train(&folder, "check_memory=false", "killed");
    assert!(killed.err.contains(" failed: signal 9 (KILL)"), "{killed:?}");

    let dir = disk.0.display();
    let words = format!("offload.parameters=disk offload.optimizer=disk offload.dir={dir}");
    cgroup.train(&folder, &words, "offload").ok();
    assert_close(&metrics(&folder, "offload"), &unlimited);
    drop(cgroup);

    let Some(cgroups) = Cgroups::or_skip(2) else { return };
    cgroups.train(&folder, "zero=3", "zero-3").ok();
    assert_close(&metrics(&folder, "zero-3"), &unlimited);
}
