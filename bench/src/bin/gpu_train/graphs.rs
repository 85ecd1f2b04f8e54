//! CUDA graphs compared with launches of single kernels, in alternating rounds.

use anyhow::Result;

use crate::own::Trainer;
use crate::{Case, Options, print_steps, quartiles};

/// Prints the times of steps with and without graphs, and their ratio.
pub fn compare(case: &Case, options: &Options) -> Result<()> {
    let mut graphs = Trainer::new(case, options, true)?;
    let mut eager = Trainer::new(case, options, false)?;
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
    print_steps(case, "graphs", &graph_steps);
    print_steps(case, "eager", &eager_steps);
    println!("  losses {} and {}", graphs.last_loss, eager.last_loss);
    let [low, median, high] = quartiles(&ratios);
    println!("  ratio    {median:.3} ({low:.3} to {high:.3})");
    Ok(())
}
