//! A library that an environment variable names but that cannot be loaded is one clear error.

use crate::harness::{Harness, errors};
use crate::rows::check_rows;
use crate::support::process::Process;

const MODEL: &str = "num_layers=1 num_heads=2 hidden_size=32 seq_len=32 batch=4 train.steps=2 \
                     eval_interval=0 checkpoint.interval=0 metrics.tensorboard=false";

/// Variables and the ranks of a run that needs the library.
const REQUIRED: &[(&str, usize)] = &[
    ("REGATTA_CUDA", 1),
    ("REGATTA_CUDART", 1),
    ("REGATTA_NVRTC", 1),
    ("REGATTA_CUBLASLT", 1),
    ("REGATTA_NCCL", 2),
];

const MISSING: &str = "/nonexistent/library.so";

#[test]
fn a_missing_library_is_one_error_that_names_the_variable() {
    let Some(harness) = Harness::gpu_or_skip() else { return };
    check_rows(
        REQUIRED,
        |(variable, _)| (*variable).to_owned(),
        |(variable, ranks)| {
            let _slots = harness.slots(*ranks);
            let mut command = harness.train(*ranks, &format!("{MODEL} --run-dir {variable}"));
            command.env(variable, MISSING);
            let ended =
                harness.finish(Process::spawn(&harness.folder, &mut command)).assert_code(1);
            match errors(&ended)[..] {
                [error] if error.contains(variable) && error.contains(MISSING) => {
                    Ok(error.to_owned())
                }
                _ => Err(ended.err),
            }
        },
    );
}

/// cuDNN is optional: the run trains with other attention kernels and says why.
#[test]
fn training_continues_without_cudnn() {
    let Some(harness) = Harness::gpu_or_skip() else { return };
    let _slots = harness.slots(1);
    let mut command = harness.train(1, &format!("{MODEL} --run-dir run"));
    command.env("REGATTA_CUDNN", MISSING);
    let ended = harness.finish(Process::spawn(&harness.folder, &mut command));
    ended.assert_ok(["attention runs without cuDNN: ", MISSING]);
}
