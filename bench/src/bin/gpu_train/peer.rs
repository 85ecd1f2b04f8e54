//! PyTorch in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::Case;
use regatta_predict::shape::Family;

const SCRIPT: &str = include_str!("../../../peers/gpu_train.py");

/// A process that trains the same model.
pub struct Peer {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(case: &Case, mode: &str) -> Result<Self> {
        let python = std::env::var("REGATTA_BENCH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let shape = &case.shape;
        let about = json!({
            "vocab_size": shape.vocab_size,
            "seq_len": shape.seq_len,
            "num_layers": shape.num_layers,
            "num_heads": shape.num_heads,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "gated": shape.family == Family::Llama,
            "batch": case.batch,
        });
        let mut child = Command::new(python)
            .args(["-c", SCRIPT, &about.to_string(), mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting PyTorch")?;
        let requests = child.stdin.take().context("standard input of PyTorch")?;
        let replies = BufReader::new(child.stdout.take().context("standard output of PyTorch")?);
        Ok(Self { child, requests, replies })
    }

    /// Runs steps and returns their times in seconds.
    pub fn run(&mut self, steps: usize) -> Result<Vec<f64>> {
        writeln!(self.requests, "{steps}")?;
        self.requests.flush()?;
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        let reply: Value = serde_json::from_str(&line).context("PyTorch ended")?;
        let seconds = reply["seconds"].as_array().context("times of PyTorch")?;
        Ok(seconds.iter().filter_map(Value::as_f64).collect())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
