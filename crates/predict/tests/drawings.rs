//! The schedule drawings in docs/parallel are up to date.
//!
//! Regenerate them with `REGATTA_BLESS=1 cargo test -p regatta-predict --test drawings`.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use regatta_predict::pipeline::{
    ChunkCosts, Computation, Schedule, ScheduleKind, Timeline, draw, simulate,
};

/// Large enough to show warm-up and cool-down.
const STAGES: usize = 4;
const MICRO_BATCHES: usize = 8;

/// Chunks per stage.
fn chunks(kind: ScheduleKind) -> usize {
    if kind == ScheduleKind::Interleaved { 2 } else { 1 }
}

fn timeline(kind: ScheduleKind) -> Timeline {
    let chunks = chunks(kind);
    let schedule = Schedule::new(kind, STAGES, chunks, MICRO_BATCHES).unwrap();
    // Equal work per stage under every schedule.
    let each = 6.0 / chunks as f64;
    simulate(&schedule, &ChunkCosts::equal_thirds(&vec![each; schedule.num_chunks()])).unwrap()
}

fn file(kind: ScheduleKind) -> PathBuf {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parallel");
    docs.join(format!("{kind}.svg"))
}

#[test]
fn schedule_drawings_are_up_to_date() {
    for kind in ScheduleKind::ALL {
        let chunks = chunks(kind);
        let each = if chunks > 1 { format!(" of {chunks} chunks") } else { String::new() };
        let title = format!("{kind}: {STAGES} stages{each}, {MICRO_BATCHES} micro-batches");
        let (path, drawn) = (file(kind), draw::svg(&timeline(kind), &title));
        if std::env::var_os("REGATTA_BLESS").is_some() {
            std::fs::write(&path, &drawn).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == drawn,
            "{} is out of date; regenerate it with REGATTA_BLESS=1 cargo test -p regatta-predict --test \
             drawings",
            path.display()
        );
    }
}

/// Largest number of micro-batches of a rank whose weight gradients are not complete yet, each counted
/// once per chunk.
fn in_flight(timeline: &Timeline, rank: usize) -> usize {
    let (mut in_flight, mut peak) = (0usize, 0);
    for span in &timeline.ranks[rank] {
        match span.action.computation {
            Computation::Forward => in_flight += 1,
            Computation::Backward | Computation::BackwardWeight => in_flight -= 1,
            Computation::BackwardInput => {}
        }
        peak = peak.max(in_flight);
    }
    peak
}

#[test]
fn pipeline_page_has_the_simulated_bubbles() {
    let page = file(ScheduleKind::GPipe).with_file_name("pipeline.md");
    let page = std::fs::read_to_string(page).unwrap();
    for kind in ScheduleKind::ALL {
        let timeline = timeline(kind);
        let (bubble, first) = (100.0 * timeline.bubble(), in_flight(&timeline, 0));
        let row = format!("| `{kind}` | {bubble:.1} % | {first} |");
        assert!(page.contains(&row), "docs/parallel/pipeline.md has no row starting with {row}");
    }
}
