//! `regatta doctor` on the facts of 1,000 simulated nodes: seconds to parse the facts file and to judge
//! it. `doctor NODES` judges another number of nodes.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, ensure};
use regatta_benchmarks::number_argument;
use regatta_discover::systems;
use regatta_doctor::{JobFacts, judge};
use regatta_model::document;

use simulated::healthy_job;

#[path = "../../../crates/doctor/tests/simulated/mod.rs"]
mod simulated;

fn main() -> Result<()> {
    let nodes = number_argument(1, 1000)?;
    for name in ["lumi-g", "dgx-h100"] {
        measure(name, nodes)?;
    }
    Ok(())
}

fn measure(name: &str, nodes: u32) -> Result<()> {
    let mut facts = healthy_job(&systems::system(name)?, nodes, 1);
    let bad = facts.nodes.len() / 2;
    facts.nodes[bad].os.memlock = Some(64 << 10);
    let text = document::to_json_line(&facts)?;
    let start = Instant::now();
    let facts: JobFacts = document::from_json(&text)?;
    let parsed = start.elapsed();
    let diagnosis = judge(&facts, &BTreeSet::new());
    let judged = start.elapsed() - parsed;
    let host = &facts.nodes[bad].host;
    ensure!(diagnosis.bad_nodes == [host.as_str()], "{:?} found", diagnosis.bad_nodes);
    println!(
        "{nodes} nodes of {name}: parsed {:.1} MB in {:.3} s, judged in {:.3} s",
        text.len() as f64 / 1e6,
        parsed.as_secs_f64(),
        judged.as_secs_f64()
    );
    Ok(())
}
