#![doc = include_str!("usage.md")]

mod case;
mod graphs;
mod largest;
mod options;
mod own;
mod peer;
mod report;

use anyhow::{Result, ensure};

use case::Case;
use options::Options;
use report::{Measured, Report, quartiles};

/// What `--help` prints.
const USAGE: &str = include_str!("usage.md");

fn main() -> Result<()> {
    if std::env::args().any(|arg| arg == "--help" || arg == "-h") {
        print!("{USAGE}");
        return Ok(());
    }
    let options = options::parse(std::env::args().skip(1))?;
    options.cases.iter().try_for_each(|case| compare(case, &options))?;
    options.largest.map_or(Ok(()), |batch| largest::run(batch, options.json))
}

/// Measures both in alternating rounds and prints the ratio of each.
fn compare(case: &Case, options: &Options) -> Result<()> {
    if options.graphs {
        return graphs::compare(case, options);
    }
    let mut own = own::Trainer::new(case, options.settings)?;
    if options.kernels {
        println!("{}: {}", case.name, own.describe());
        return own.print_kernels(options.steps);
    }
    let has_same_peer = options.peer.is_none() || case.dropout == 0.0;
    ensure!(has_same_peer, "the peer has no dropout: add --no-peer or --graphs to {}", case.name);
    // Compilation, autotuning and the first allocation.
    own.run(5)?;
    let peer = options.peer.as_ref();
    let mut peer = peer.map(|options| peer::Peer::start(case, options)).transpose()?;
    let (mut ours, mut theirs, mut ratios) = (Measured::default(), Measured::default(), Vec::new());
    for _ in 0..options.rounds {
        let round = own.run(options.steps)?;
        if let Some(peer) = &mut peer {
            let of_peer = peer.run(options.steps)?;
            ratios.push(quartiles(&of_peer.seconds)[1] / quartiles(&round)[1]);
            theirs.seconds.extend(of_peer.seconds);
            (theirs.loss, theirs.memory) = (of_peer.loss, of_peer.memory);
        }
        ours.seconds.extend(round);
    }
    (ours.loss, ours.memory) = (own.last_loss, own.state_and_activation_bytes());
    let mode = options.peer.as_ref().map(|peer| peer.mode.clone());
    let peer = mode.map(|mode| (theirs, mode, ratios));
    let report = Report { case, device: own.describe().to_owned(), own: ours, peer };
    match options.json {
        true => println!("{}", report.json()),
        false => println!("{}", report.text()),
    }
    Ok(())
}
