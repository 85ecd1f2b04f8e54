//! Too little GPU memory, before and during a run, and killed ranks: one clear error, and the last
//! checkpoint stays intact.

use std::time::{Duration, Instant};

use libc::SIGKILL;
use regatta_comm::Buffer;
use regatta_comm::nccl::{Gpu, Vendor};
use regatta_testbed::assert_contains;
use rustix::process::{Pid, Signal, kill_process};

use crate::checkpoint_bytes::{assert_same_state, shard_digests};
use crate::harness::{Harness, errors};
use crate::support::metrics::assert_identical;
use crate::support::process::{pid_of_rank, run_result};
use crate::support::train::{ENDLESS, checkpoints};

/// Many sequences of a small model: activations of all at once take more memory than the state.
const MODEL: &str = "family=gpt2 num_layers=4 num_heads=4 hidden_size=256 seq_len=128 batch=2048 \
                     precision=bf16 deterministic=true lr=3e-4 warmup_steps=2 decay_steps=50 \
                     eval_interval=0 checkpoint.interval=1 metrics.tensorboard=false";

/// Free memory while the rest is held: enough for the libraries, the state and small micro-batches.
const FREE: u64 = 6 << 30;

/// GPU memory of another process, which is freed on drop.
struct HeldMemory {
    gpu: Gpu,
    buffers: Vec<Buffer>,
}

impl HeldMemory {
    /// Allocates memory until `free` bytes are left.
    fn all_but(free: u64) -> Self {
        const CHUNK: u64 = 1 << 30;
        let mut held = Self { gpu: Gpu::open(Vendor::Nvidia, 0).unwrap(), buffers: Vec::new() };
        while held.gpu.free_bytes().unwrap() >= free + CHUNK {
            held.buffers.push(held.gpu.buffer(CHUNK as usize).unwrap());
        }
        held
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.buffers.clear();
        // Memory of the stream-ordered allocator returns to the device when its stream synchronises,
        // as an allocation does.
        let _ = self.gpu.buffer(1);
    }
}

#[test]
fn a_model_larger_than_the_gpu_is_rejected_before_the_start() {
    let Some(harness) = Harness::gpu_or_skip() else { return };
    // 100 TB: more than any GPU has. Checkpoints would need more host memory than there is.
    let words = "family=gpt2 num_layers=1000 num_heads=128 hidden_size=16384 checkpoint.interval=0 \
                 --run-dir run";
    let start = Instant::now();
    let refused = harness.run(1, words).assert_code(1);
    assert_contains(&refused.err, [" needs about ", " are free", "train.check_memory=false"]);
    assert_eq!(errors(&refused).len(), 1, "{refused:?}");
    assert!(!harness.folder.exists("run/metrics.jsonl"));
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

/// The rank's memory check counts the memory that another process holds.
#[test]
fn memory_of_other_processes_is_not_free() {
    let Some(harness) = Harness::gpu_or_skip() else { return };
    let _alone = harness.all_slots();
    let _held = HeldMemory::all_but(FREE);
    let refused =
        harness.finish(harness.spawn(1, &format!("{MODEL} micro_batch=2048 --run-dir run")));
    let refused = refused.assert_code(1);
    assert_contains(&refused.err, [" needs about ", " are free"]);
}

#[test]
fn a_run_out_of_memory_ends_with_one_error_and_an_intact_checkpoint() {
    let Some(harness) = Harness::gpu_or_skip() else { return };
    let _alone = harness.all_slots();
    let train = |words: &str| harness.finish(harness.spawn(1, words));
    train(&format!("{MODEL} micro_batch=64 train.steps=2 --run-dir run")).ok();
    let before = shard_digests(&harness, "run", 2);
    let held = HeldMemory::all_but(FREE);
    let resume = "--resume run train.steps=4 micro_batch=2048 check_memory=false";
    let failed = train(resume).assert_code(1);
    assert_contains(&failed.err, ["out of memory", "train.micro_batch"]);
    assert_eq!(errors(&failed).len(), 1, "{failed:?}");
    assert_same_state(&shard_digests(&harness, "run", 2), &before);
    // Still without the held memory.
    train("--resume run train.steps=4 micro_batch=64").assert_ok("resumed after step 2 from ");
    drop(held);
    train(&format!("{MODEL} micro_batch=64 train.steps=4 --run-dir full")).ok();
    assert_identical(&harness.metrics("run"), &harness.metrics("full"), 4);
}

/// Small steps, so that a rank is killed in the middle of a run.
const SMALL: &str = "family=gpt2 num_layers=2 num_heads=2 hidden_size=128 seq_len=128 batch=8 \
                     precision=f32 deterministic=true lr=3e-4 warmup_steps=5 decay_steps=50 \
                     eval_interval=0 checkpoint.interval=5 metrics.tensorboard=false";

/// Kills a rank; the others must not hang in a collective.
fn assert_resumes_after_kill(ranks: usize, layout: &str, victim: u32) {
    let Some(harness) = Harness::or_skip() else { return };
    let slots = harness.slots(ranks);
    let words = format!("{SMALL} {layout} {ENDLESS} --run-dir run");
    let mut training = harness.spawn(ranks, &words);
    harness.wait_for_step(&mut training, "run", 12);
    let pid = pid_of_rank(&harness.folder, victim).unwrap().cast_signed();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let killed = Instant::now();
    let ended = harness.finish(training).assert_code(128 + SIGKILL);
    assert!(killed.elapsed() < Duration::from_secs(60), "{:?}", killed.elapsed());
    assert_contains(&ended.err, [&*format!("rank {victim} on "), "signal 9 (KILL)"]);
    assert_eq!(run_result(&harness.folder, "run").failure.unwrap().rank, victim);
    let last = checkpoints(&harness.folder, "run").pop().unwrap();
    let last: u64 = last.strip_prefix("step-").unwrap().parse().unwrap();
    let steps = last + 10;
    let resumed = harness.spawn(ranks, &format!("--resume run train.steps={steps}"));
    harness.finish(resumed).assert_ok(&format!("resumed after step {last} from "));
    drop(slots);
    harness.run(ranks, &format!("{SMALL} {layout} train.steps={steps} --run-dir full")).ok();
    assert_identical(&harness.metrics("run"), &harness.metrics("full"), steps);
}

#[test]
fn a_killed_single_rank_resumes_bit_by_bit() {
    assert_resumes_after_kill(1, "", 0);
}

#[test]
fn a_killed_data_parallel_rank_is_named_and_resumes_bit_by_bit() {
    assert_resumes_after_kill(2, "zero=2", 1);
}

#[test]
fn a_killed_tensor_parallel_rank_is_named_and_resumes_bit_by_bit() {
    assert_resumes_after_kill(2, "tp=2", 0);
}

#[test]
fn a_killed_pipeline_rank_is_named_and_resumes_bit_by_bit() {
    assert_resumes_after_kill(2, "pp=2 micro_batch=2", 1);
}
