//! Gradients are reduced while the backward pass computes, by the intervals of both on the device.

use serde_json::Value;

use crate::harness::Harness;
use crate::rows::check_rows;
use crate::support::from_json;
use crate::support::process::Process;

/// Layers that take long enough for a reduction to start during the next one.
const MODEL: &str = "family=gpt2 num_layers=8 num_heads=8 hidden_size=512 seq_len=256 batch=16 \
                     precision=bf16 train.steps=4 eval_interval=0 checkpoint.interval=0 \
                     metrics.tensorboard=false";

/// Layouts and the collective that reduces gradients.
const ROWS: &[(&str, &str)] =
    &[("dp=2", "all-reduce"), ("zero=1", "reduce-scatter"), ("zero=2", "reduce-scatter")];

/// A part of the trace of a rank, in microseconds.
#[derive(Debug)]
struct Span {
    name: String,
    stream: String,
    start: f64,
    end: f64,
}

fn read_trace(harness: &Harness, path: &str) -> Vec<Span> {
    let events: Vec<Value> = from_json(&harness.folder.read(path));
    let span = |event: &Value| {
        let text = |key: &str| event[key].as_str().unwrap().to_owned();
        let start = event["ts"].as_f64().unwrap();
        let end = start + event["dur"].as_f64().unwrap();
        Span { name: text("name"), stream: text("tid"), start, end }
    };
    events.iter().map(span).collect()
}

/// Microseconds of the kernels of backward passes that run during a collective of this name, and the
/// number of these collectives.
fn overlap(spans: &[Span], collective: &str) -> (f64, usize) {
    let is_reduction = |span: &&Span| span.stream == "NCCL" && span.name == collective;
    let reductions: Vec<&Span> = spans.iter().filter(is_reduction).collect();
    let is_backward = |span: &&Span| span.stream == "compute" && span.name.contains("backward");
    let during = |kernel: &Span| -> f64 {
        let with = |reduction: &&Span| {
            (kernel.end.min(reduction.end) - kernel.start.max(reduction.start)).max(0.0)
        };
        reductions.iter().map(with).sum()
    };
    (spans.iter().filter(is_backward).map(during).sum(), reductions.len())
}

#[test]
fn gradient_reductions_overlap_with_the_backward_pass() {
    let Some(harness) = Harness::gpu_or_skip() else { return };
    check_rows(
        ROWS,
        |row| row.0.to_owned(),
        |(layout, collective)| {
            let _slots = harness.slots(2);
            let run = layout.replace('=', "-");
            let mut command = harness.train(2, &format!("{MODEL} {layout} --run-dir {run}"));
            command.env("REGATTA_TRACE", format!("{run}-trace"));
            harness.finish(Process::spawn(&harness.folder, &mut command)).ok();
            let mut text = Vec::new();
            for rank in 0..2 {
                let spans = read_trace(&harness, &format!("{run}-trace/rank-{rank}.json"));
                let (microseconds, count) = overlap(&spans, collective);
                if microseconds <= 0.0 {
                    return Err(format!("rank {rank}: no overlap of {count} {collective}s"));
                }
                text.push(format!("rank {rank}: {microseconds:.0} us of {count} {collective}s"));
            }
            Ok(text.join(", "))
        },
    );
}

#[test]
fn overlap_is_the_common_time_of_reductions_and_backward_kernels() {
    let span = |stream: &str, name: &str, start: f64, end: f64| Span {
        name: name.to_owned(),
        stream: stream.to_owned(),
        start,
        end,
    };
    let spans = [
        span("compute", "norm_backward", 0.0, 10.0),
        span("compute", "adamw", 10.0, 40.0),
        span("NCCL", "all-reduce", 8.0, 20.0),
        span("NCCL", "all-gather", 0.0, 40.0),
    ];
    assert_eq!(overlap(&spans, "all-reduce"), (2.0, 1));
    assert_eq!(overlap(&spans[..2], "all-reduce"), (0.0, 0));
}
