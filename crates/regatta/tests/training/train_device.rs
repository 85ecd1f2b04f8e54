//! `regatta train` on a machine without a GPU: the default is the CPU, and what needs a GPU is refused.

use crate::support::TempDir;
use crate::support::train::run;

const MODEL: &str = "num_layers=1 num_heads=2 hidden_size=16 seq_len=16 batch=2 steps=2 \
                     eval_interval=0 checkpoint.interval=0 -n 1";

#[test]
fn without_a_gpu_cpus_train_and_what_needs_one_is_refused() {
    if ["/dev/nvidiactl", "/dev/kfd"].iter().any(|path| std::path::Path::new(path).exists()) {
        return eprintln!("skipped: this machine has a GPU");
    }
    let folder = TempDir::new();
    let train = |words: &str| run(&folder, &format!("{MODEL} {words}"));
    // There is no GPU to be noted.
    let default = train("").ok();
    assert!(!default.contains("training on CPUs"), "{default}");
    train("train.device=cpu").ok();
    let fix = "train on CPUs with train.device=cpu";
    train("train.device=gpu").assert_code(1).assert_stderr(["sees no NVIDIA GPU", fix]);
    let fix = "remove it, or set train.device=gpu";
    train("train.residual=bf16").assert_code(1).assert_stderr(["train.residual=bf16", fix]);
    let gradient = "train.residual_gradient=bf16";
    train(gradient).assert_code(1).assert_stderr([gradient, fix]);
    let huge = "train.device=gpu offload.optimizer=host hidden_size=65536 num_layers=50";
    let copied = "train.device=gpu hidden_size=65536 num_layers=50 checkpoint.interval=10";
    train(copied).assert_code(1).assert_stderr(["copy of a background checkpoint", "interval=0"]);
    train(huge).assert_code(1).assert_stderr(["of pinned memory", "offload.optimizer"]);
}
