//! The example: a program outside of the binary follows a run and draws it.

#[allow(dead_code, reason = "its main function is not called")]
#[path = "../../examples/follow_run.rs"]
mod example;

use std::path::Path;

use regatta_observe::read::RunState;

#[test]
fn example_draws_the_losses_of_a_run() {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runs-v1/train");
    let name = format!("regatta-follow-run-{}.svg", std::process::id());
    let svg = std::env::temp_dir().join(name);
    assert_eq!(example::follow(&run, &svg).unwrap(), RunState::Finished);
    let drawn = std::fs::read_to_string(&svg).unwrap();
    std::fs::remove_file(svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("step 10: 3.95876"), "{drawn}");
}
