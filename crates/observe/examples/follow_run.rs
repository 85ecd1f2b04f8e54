//! Follows a run that goes on: prints what happens to its ranks, and draws its losses.
//!
//! `cargo run -p regatta-observe --example follow_run -- runs/mine losses.svg`

use std::{error::Error, path::Path, thread::sleep, time::Duration};

use regatta_draw::plot::{Bar, bars};
use regatta_draw::svg::{Document, Rect, Svg};
use regatta_model::run_folder::RunEvent;
use regatta_observe::read::Run;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, run, svg] = &args[..] else { return Err("usage: follow_run RUN FILE.svg".into()) };
    follow(run.as_ref(), svg.as_ref())
}

/// Follows the run in a folder to its end, and keeps the drawing up to date.
pub fn follow(run: &Path, svg: &Path) -> Result<(), Box<dyn Error>> {
    let (mut follower, mut losses) = (Run::open(run)?.follow(), Vec::new());
    loop {
        let update = follower.poll();
        if update.restarted {
            losses.clear();
        }
        for record in update.records.into_iter().map(|found| found.record) {
            println!("{record:?}");
            if let RunEvent::Step(step) = record.event {
                let (label, value) = (format!("step {}", step.step), step.loss);
                losses.push(Bar { label, value, text: value.to_string() });
            }
        }
        std::fs::write(svg, draw(&losses))?;
        if update.ended {
            return Ok(());
        }
        sleep(Duration::from_millis(200));
    }
}

fn draw(losses: &[Bar]) -> String {
    let mut svg = Svg::default();
    bars(&mut svg, Rect { x: 20.0, y: 20.0, w: 600.0, h: 280.0 }, 0, losses);
    let (id, title, description) = ("losses", "Losses of a run", "Training loss by step");
    let (size, font_size, background) = ((640.0, 360.0), 13.0, "paper");
    svg.finish(&Document { id, title, description, size, font_size, background })
}
