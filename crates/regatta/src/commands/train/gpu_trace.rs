//! A timeline of a rank's GPU as a Chrome trace, for chrome://tracing and <https://ui.perfetto.dev>.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use regatta_comm::gpu_runtime::trace::{self, TraceSpan};
use serde_json::{Value, json};

/// The directory that ranks write their traces to.
const VARIABLE: &str = "REGATTA_TRACE";

/// The trace file of a rank, if traces are wanted.
pub fn path(rank: u32) -> Option<PathBuf> {
    let dir = std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty())?;
    Some(Path::new(&dir).join(format!("rank-{rank}.json")))
}

/// Ends the trace and writes it.
pub fn write(path: &Path, rank: u32) -> Result<()> {
    let events: Vec<Value> = trace::finish().iter().map(|span| event(span, rank)).collect();
    let what = || format!("writing the trace {}", path.display());
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).with_context(what)?;
    std::fs::write(path, serde_json::to_vec(&events)?).with_context(what)
}

/// A complete event: the rank is the process, the stream is the thread.
fn event(TraceSpan { stream, name, start, end }: &TraceSpan, rank: u32) -> Value {
    let microseconds = |seconds: f64| 1e6 * seconds;
    let (ts, dur) = (microseconds(*start), microseconds(end - start));
    json!({ "name": name, "ph": "X", "pid": rank, "tid": stream, "ts": ts, "dur": dur })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_complete_events_in_microseconds() {
        let (name, start, end) = ("all-reduce".to_owned(), 0.5, 0.75);
        let event = event(&TraceSpan { stream: "NCCL", name, start, end }, 3);
        assert_eq!(
            (&event["ph"], &event["tid"], &event["pid"]),
            (&json!("X"), &json!("NCCL"), &json!(3))
        );
        assert_eq!((&event["ts"], &event["dur"]), (&json!(5e5), &json!(2.5e5)));
    }
}
