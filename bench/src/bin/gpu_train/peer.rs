//! PyTorch in a process of its own.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use regatta_benchmarks::processes::LineProcess;
use regatta_benchmarks::python;
use regatta_predict::shape::Family;
use serde_json::{Value, json};

use crate::case::Case;
use crate::options::PeerOptions;
use crate::report::Measured;

const SCRIPT: &str = include_str!("../../../peers/gpu_train.py");

/// Steps that compile and allocate.
const WARMUP_STEPS: usize = 5;

/// Limit of a round once everything is compiled.
const ROUND_LIMIT: Duration = Duration::from_secs(300);

/// A process that trains the same model.
pub struct Peer(LineProcess);

impl Peer {
    /// Starts it and compiles the model.
    pub fn start(case: &Case, options: &PeerOptions) -> Result<Self> {
        let mut command = Command::new(python());
        command.args(["-c", SCRIPT, &about(case).to_string(), &options.mode]);
        if let Some(dir) = &options.cache_dir {
            let dir = std::path::absolute(dir)?;
            command.env("TORCHINDUCTOR_CACHE_DIR", dir.join("inductor"));
            command.env("TRITON_CACHE_DIR", dir.join("triton"));
            command.env("TORCHINDUCTOR_FX_GRAPH_CACHE", "1");
        }
        let mut peer = Self(LineProcess::spawn(&mut command).context("starting PyTorch")?);
        let limit = options.compile_limit;
        if peer.run_within(WARMUP_STEPS, limit)?.is_none() {
            let kept = match &options.cache_dir {
                Some(dir) => format!("repeat the call: {} keeps what is compiled", dir.display()),
                None => "set --cache-dir to keep what is compiled for the next call".to_owned(),
            };
            bail!(
                "torch.compile, mode {}, did not finish within --compile-limit {} s; {kept}",
                options.mode,
                limit.as_secs()
            );
        }
        Ok(peer)
    }

    /// Runs steps.
    pub fn run(&mut self, steps: usize) -> Result<Measured> {
        let measured = self.run_within(steps, ROUND_LIMIT)?;
        measured.with_context(|| format!("PyTorch: {steps} steps took more than {ROUND_LIMIT:?}"))
    }

    /// Runs steps; `None` if they take longer than the limit.
    fn run_within(&mut self, steps: usize, limit: Duration) -> Result<Option<Measured>> {
        self.0.write_line(&steps.to_string())?;
        let Some(line) = self.0.read_line_within(limit).context("PyTorch")? else {
            return Ok(None);
        };
        let reply: Value = serde_json::from_str(&line).context("reply of PyTorch")?;
        let seconds = reply["seconds"].as_array().context("times of PyTorch")?;
        Ok(Some(Measured {
            seconds: seconds.iter().filter_map(Value::as_f64).collect(),
            loss: reply["loss"].as_f64().context("loss of PyTorch")?,
            memory: reply["memory"].as_u64().context("memory of PyTorch")?,
        }))
    }
}

/// The model for the script.
fn about(case: &Case) -> Value {
    let mut about = json!(case.shape);
    about["gated"] = json!(case.shape.family == Family::Llama);
    about["batch"] = json!(case.batch);
    about
}
