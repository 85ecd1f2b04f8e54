//! `regatta train` with less memory than the model needs on one rank: it is rejected, or trains with
//! sharded or offloaded state.

use crate::support::cgroup::MemoryCgroup;
use crate::support::metrics::assert_close;
use crate::support::process::{regatta_in, run_command};
use crate::support::train::{metrics, run};
use crate::support::{CommandOutput, REGATTA, TempDir};

/// 16M parameters at 16 bytes each with gradients and optimizer state, in many layers so that the
/// resident ones are small.
const MODEL: &str = "family=gpt2 bias=false tie_embeddings=auto precision=f32 num_layers=20 num_heads=4 hidden_size=256 seq_len=16 batch=4 recompute=true \
                     threads=1 warmup_steps=2 decay_steps=50 eval_interval=0 checkpoint.interval=0 \
                     train.steps=3";

/// Between half and all of the memory the model needs.
const LIMIT: u64 = 180 << 20;

/// Trains with each rank in its cgroup.
fn train(cgroups: &[MemoryCgroup], folder: &TempDir, words: &str, run_dir: &str) -> CommandOutput {
    let prefix = cgroups[0].0.to_str().unwrap().strip_suffix('0').unwrap();
    let text = format!("echo $$ > {prefix}$RANK/cgroup.procs && exec \"$@\"\n");
    let enter = format!("sh {}", folder.write("enter.sh", text));
    let launch = format!("launch -n {} --oversubscribe --run-dir {run_dir}", cgroups.len());
    let words = format!("{launch} -- {enter} {REGATTA} train {MODEL} {words}");
    run_command(&mut regatta_in(folder, &words))
}

/// An offload folder on disk, because the temporary folder may be in memory. Removed on drop.
struct OffloadFolder(String);

impl OffloadFolder {
    fn new() -> Self {
        let path = format!("{}/offload-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
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

    let cgroup = |rank: &str| MemoryCgroup::or_skip(rank, LIMIT);
    let (Some(first), Some(second)) = (cgroup("0"), cgroup("1")) else { return };
    let cgroups = [first, second];
    let refused = train(&cgroups[..1], &folder, "", "refused");
    refused.assert_code(1).assert_stderr(["1 rank needs 2", "parallel.zero"]);
    let killed = train(&cgroups[..1], &folder, "check_memory=false", "killed");
    killed.assert_stderr(" failed: signal 9 (KILL)");

    let words = format!("offload.parameters=disk offload.optimizer=disk offload.dir={}", disk.0);
    train(&cgroups[..1], &folder, &words, "offload").ok();
    assert_close(&metrics(&folder, "offload"), &unlimited);

    train(&cgroups, &folder, "zero=3", "zero-3").ok();
    assert_close(&metrics(&folder, "zero-3"), &unlimited);
}
