//! CUDA graphs compared with launches of single kernels, in alternating rounds.

use anyhow::Result;

use crate::case::Case;
use crate::options::{Options, Settings};
use crate::own::Trainer;
use crate::report::{Measured, quartiles};

/// Prints the times of steps with and without graphs, and their ratio.
pub fn compare(case: &Case, options: &Options) -> Result<()> {
    let settings = options.settings;
    let mut graphs = Trainer::new(case, Settings { graphs: true, ..settings })?;
    let mut eager = Trainer::new(case, Settings { graphs: false, ..settings })?;
    println!("{}: {}", case.name, graphs.describe());
    graphs.run(5)?;
    eager.run(5)?;
    graphs.take_notes().iter().for_each(|note| println!("  {note}"));
    let (mut graph_steps, mut eager_steps, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let [with, without] = [graphs.run(options.steps)?, eager.run(options.steps)?];
        ratios.push(quartiles(&without)[1] / quartiles(&with)[1]);
        graph_steps.extend(with);
        eager_steps.extend(without);
    }
    let contenders = [("graphs", graph_steps, &graphs), ("eager", eager_steps, &eager)];
    for (name, seconds, trainer) in contenders {
        let (loss, memory) = (trainer.last_loss, trainer.state_and_activation_bytes());
        println!("{}", Measured { seconds, loss, memory }.text(name, case));
    }
    let [low, median, high] = quartiles(&ratios);
    println!("  ratio    {median:.3} ({low:.3} to {high:.3})");
    Ok(())
}
