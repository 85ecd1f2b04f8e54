//! The example: a program outside of the binary follows a run and draws it.

#[allow(dead_code, reason = "its main function is not called")]
#[path = "../../examples/follow_run.rs"]
mod example;

use std::path::Path;
use std::time::{Duration, Instant};

use regatta_launch::run_folder::RunFolder;
use regatta_model::result::RankExit;
use regatta_model::run_folder::{METRICS, RESULT, RunEvent};

use crate::read::{TempDir, append, launched, of_rank, result, step};

/// Waits until the drawing of a run has a text.
fn wait_for(svg: &Path, text: &str) {
    let start = Instant::now();
    while !std::fs::read_to_string(svg).is_ok_and(|drawn| drawn.contains(text)) {
        assert!(start.elapsed() < Duration::from_secs(60), "not drawn: {text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn example_draws_the_losses_of_a_run_that_goes_on() {
    let folder = TempDir::new();
    let (run, svg) = (folder.0.join("run"), folder.0.join("losses.svg"));
    let mut written = RunFolder::create(&run).unwrap();
    written.append_event(&launched(0));
    let paths = (run.clone(), svg.clone());
    let example = std::thread::spawn(move || example::follow(&paths.0, &paths.1).unwrap());
    wait_for(&svg, "</svg>");
    for (number, loss) in [(1, 4.5), (2, 4.25)] {
        let ended = of_rank(1, RunEvent::Exited { exit: RankExit::Exit(0) });
        append(&run.join(METRICS), &step(number, loss));
        written.append_event(&ended);
        wait_for(&svg, &format!("step {number}: {loss}"));
    }
    assert!(!example.is_finished(), "the run goes on");
    append(&run.join(METRICS), &step(3, 4.125));
    written.write_durable(RESULT, &result(0)).unwrap();
    // The kernel releases the lock of the launcher, and the run has ended.
    drop(written);
    example.join().unwrap();
    wait_for(&svg, "step 3: 4.125");
}

#[test]
fn example_draws_the_losses_of_a_finished_run() {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runs-v1/train");
    let folder = TempDir::new();
    let svg = folder.0.join("losses.svg");
    example::follow(&run, &svg).unwrap();
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("step 10: 3.95876"), "{drawn}");
}
