//! Follows a run that goes on: prints what happens to its ranks, and draws its losses.
//!
//! `cargo run -p regatta-observe --example follow_run -- runs/mine losses.svg`

use std::{error::Error, path::Path, thread::sleep, time::Duration};

use regatta_draw::axis::PlotAxis;
use regatta_draw::plot::{LinePlot, Series};
use regatta_draw::svg::{Document, Rect, Svg};
use regatta_model::run_folder::RunEvent;
use regatta_observe::read::{Run, RunState};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, run, svg] = &args[..] else { return Err("usage: follow_run RUN FILE.svg".into()) };
    follow(run.as_ref(), svg.as_ref()).map(|state| println!("{state}"))
}

/// Follows the run in a folder to its end, and keeps the drawing up to date.
pub fn follow(folder: &Path, svg: &Path) -> Result<RunState, Box<dyn Error>> {
    let run = Run::open(folder)?;
    let mut follower = run.follow();
    let mut losses = Series { label: "loss".to_owned(), points: Vec::new() };
    loop {
        let update = follower.poll();
        if update.restarted {
            losses.points.clear();
        }
        for found in update.records {
            let rank = found.record.rank.map_or("job".to_owned(), |rank| format!("rank {rank}"));
            match found.record.event {
                RunEvent::Step(step) => losses.points.push((step.step as f64, step.loss)),
                event => println!("{rank}: {event:?}"),
            }
        }
        std::fs::write(svg, draw(&losses))?;
        if update.ended {
            return Ok(run.state());
        }
        sleep(Duration::from_millis(200));
    }
}

fn draw(losses: &Series) -> String {
    let axis = |of: fn(&(f64, f64)) -> f64| PlotAxis::from_zero(losses.points.iter().map(of));
    let mut svg = Svg::default();
    let plot = LinePlot {
        title: "Loss",
        axes: (axis(|(step, _)| *step), axis(|(_, loss)| *loss)),
        tick_labels: (|step| step.to_string(), |loss| loss.to_string()),
        series: std::slice::from_ref(losses),
        tip: &|step, loss| format!("step {step}: {loss}"),
    };
    plot.draw(&mut svg, Rect { x: 60.0, y: 40.0, w: 560.0, h: 280.0 });
    let (id, title, description) = ("losses", "Losses of a run", "Training loss by step");
    let (size, font_size, background) = ((640.0, 360.0), 13.0, "paper");
    svg.finish(&Document { id, title, description, size, font_size, background })
}
