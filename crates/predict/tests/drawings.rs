//! The drawings of schedules in docs/parallel are those that the code makes.
//!
//! They are written anew with `REGATTA_BLESS=1 cargo test -p regatta-predict --test drawings`.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use regatta_predict::pipeline::{Costs, Kind, Schedule, Timeline, draw, simulate};

/// Stages and micro-batches of the drawings: enough to see how a pipeline fills and runs empty.
const STAGES: usize = 4;
const MICROS: usize = 8;

/// Chunks of a stage.
fn chunks(kind: Kind) -> usize {
    if kind == Kind::Interleaved { 2 } else { 1 }
}

fn timeline(kind: Kind) -> Timeline {
    let chunks = chunks(kind);
    let schedule = Schedule::new(kind, STAGES, chunks, MICROS).unwrap();
    // A stage has as much to do under every kind.
    let each = 6.0 / chunks as f64;
    simulate(&schedule, &Costs::thirds(&vec![each; schedule.parts()])).unwrap()
}

fn file(kind: Kind) -> PathBuf {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parallel");
    docs.join(format!("{kind}.svg"))
}

#[test]
fn the_documentation_shows_the_schedules() {
    for kind in Kind::ALL {
        let chunks = chunks(kind);
        let each = if chunks > 1 { format!(" of {chunks} chunks") } else { String::new() };
        let title = format!("{kind}: {STAGES} stages{each}, {MICROS} micro-batches");
        let (path, drawn) = (file(kind), draw::svg(&timeline(kind), &title));
        if std::env::var_os("REGATTA_BLESS").is_some() {
            std::fs::write(&path, &drawn).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == drawn,
            "{} is old: write it anew with REGATTA_BLESS=1 cargo test -p regatta-predict --test \
             drawings",
            path.display()
        );
    }
}

#[test]
fn the_documentation_tells_how_long_stages_wait() {
    let page = file(Kind::GPipe).with_file_name("pipeline.md");
    let page = std::fs::read_to_string(page).unwrap();
    for kind in Kind::ALL {
        let timeline = timeline(kind);
        let (bubble, first) = (100.0 * timeline.bubble(), timeline.alive[0]);
        let row = format!("| `{kind}` | {bubble:.1} % | {first} |");
        assert!(page.contains(&row), "docs/parallel/pipeline.md has no row that begins {row}");
    }
}
