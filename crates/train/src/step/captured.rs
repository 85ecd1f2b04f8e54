//! When a graph is captured: after a few runs without one, and again after its key has changed.

use std::fmt;

use crate::state::Result;

/// Runs before a capture: they compile kernels, choose GEMM algorithms and allocate buffers.
const WARMUP_RUNS: u32 = 2;

/// A graph `G`, and the key `K` of its capture: the host arguments of its kernels, and their memory.
pub(super) struct Captured<K, G> {
    key: Option<K>,
    /// The graph; `None` before the capture.
    pub graph: Option<G>,
    /// Runs since the key changed.
    warmup_runs: u32,
    has_failed: bool,
    /// Whether a note says that there is a graph.
    is_noted: bool,
}

impl<K, G> Default for Captured<K, G> {
    fn default() -> Self {
        Self { key: None, graph: None, warmup_runs: 0, has_failed: false, is_noted: false }
    }
}

impl<K: PartialEq, G> Captured<K, G> {
    /// Whether the next run with this key is by a graph: not the first ones, and none after an error.
    pub fn is_due(&mut self, key: K) -> bool {
        if self.key.as_ref() != Some(&key) {
            (self.key, self.graph, self.warmup_runs) = (Some(key), None, 0);
        }
        let is_due = !self.has_failed && self.warmup_runs >= WARMUP_RUNS;
        self.warmup_runs = (self.warmup_runs + 1).min(WARMUP_RUNS);
        is_due
    }

    /// Whether a run was by a graph. An error ends that for all later runs. A note says once how `runs`
    /// continue.
    pub fn outcome(
        &mut self,
        result: Result<bool>,
        runs: &dyn fmt::Display,
        by_graph: &str,
        notes: &mut Vec<String>,
    ) -> bool {
        match &result {
            Err(error) => {
                notes.push(format!("{runs} without a CUDA graph: {error}"));
                (self.has_failed, self.graph) = (true, None);
            }
            Ok(_) if self.graph.is_some() && !std::mem::replace(&mut self.is_noted, true) => {
                notes.push(format!("{runs} {by_graph}"));
            }
            Ok(_) => {}
        }
        result.unwrap_or(false)
    }
}
