//! Training steps on a GPU compared with PyTorch's `torch.compile` on the same GPU, in alternating rounds.
//!
//! Arguments: models, `124m` and `355m` (GPT-2, sequence length 1024), `llama-1b` (sequence length 2048) and
//! `char` (nanoGPT's character-level model, with dropout, without PyTorch), each with a batch size, as in
//! `124m:32`. PyTorch is that of `python3`, or of the Python in `REGATTA_BENCH_PYTHON`.
//!
//! | option | meaning |
//! |---|---|
//! | `--rounds N`, `--steps N` | rounds (7), and steps per round (10) |
//! | `--mode MODE` | mode of torch.compile, such as `max-autotune` |
//! | `--cache-dir DIR` | keeps what torch.compile compiled and autotuned, for the next call |
//! | `--compile-limit SECONDS` | limit of PyTorch's first steps, which compile (480) |
//! | `--no-peer` | without PyTorch |
//! | `--vocab-size N` | another vocabulary, of all models |
//! | `--bf16-residual` | `train.residual=bf16` |
//! | `--f32-residual-gradient` | `train.residual_gradient=f32` |
//! | `--fp8 layers`, `--fp8 all` | `train.fp8` |
//! | `--graphs` | compares steps with and without CUDA graphs instead |
//! | `--kernels` | prints the time of each kernel instead |
//! | `--largest BATCH` | trains the largest model that the memory holds, without PyTorch |
//! | `--json` | one JSON object per model |

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

fn main() -> Result<()> {
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
