//! Two ranks compared with two of PyTorch, and with two processes that do not communicate.

use anyhow::{Result, bail};
use regatta_benchmarks::{RunTimes, python_with_torch};
use regatta_device::precision::Precision;

use crate::contender::{Contender, run_rounds};
use crate::measurements::mean;
use crate::preset::{DataParallelism, Preset};
use crate::round_line::{PhaseTimes, StepTime};
use crate::worker_processes::{Framework, Workers};
use crate::{Options, PAUSE};

/// Tolerance of the first losses: parameters have the same distribution, but other random values.
const LOSS_TOLERANCE: f64 = 0.05;

type Phase = (&'static str, fn(&StepTime, &PhaseTimes) -> f64);

const PHASES: [Phase; 5] = [
    ("forward", |_, phases| phases.forward),
    ("backward", |_, phases| phases.backward),
    ("communication", |_, phases| phases.communication),
    ("optimizer", |_, phases| phases.optimizer),
    ("other", |step, phases| phases.other(step.seconds)),
];

pub fn compare(preset: Preset, options: &Options, cpus: &[usize]) -> Result<()> {
    let batch = if options.weak_scaling { preset.batch } else { preset.batch / cpus.len() };
    println!("{}, {} ranks, {batch} sequences per rank", preset.describe(), cpus.len());
    let mut contenders = start(preset, options, cpus, batch)?;
    check_first_losses(&contenders)?;
    let load_before = load_average();
    run_rounds(&mut contenders, preset, options.rounds, PAUSE)?;
    println!("load average: {load_before} before, {} after", load_average());
    print(&contenders);
    Ok(())
}

type Contenders = Vec<Contender>;

fn start(preset: Preset, options: &Options, cpus: &[usize], batch: usize) -> Result<Contenders> {
    let contender =
        |workers: Workers| Contender::new(&name(workers.framework, workers.parallelism), workers);
    let independent = Workers::regatta_independent(preset, cpus, batch)?;
    let mut contenders = vec![contender(independent)];
    let python = python_with_torch();
    if python.is_none() {
        println!("PyTorch is not installed");
    }
    let modes = if options.compile { &[false, true][..] } else { &[false] };
    for parallelism in options.parallelism.iter().copied() {
        let each: Vec<&[usize]> = cpus.chunks(1).collect();
        let ranks = Workers::regatta_ranks(preset, Precision::F32, parallelism, &each, batch)?;
        contenders.push(contender(ranks));
        let Some(python) = &python else { continue };
        for compiled in modes.iter().copied() {
            match Workers::torch_ranks(python, preset, compiled, parallelism, cpus, batch) {
                Ok(workers) => contenders.push(contender(workers)),
                Err(error) => {
                    let framework = Framework::Torch { compiled, precision: Precision::F32 };
                    let name = name(framework, Some(parallelism));
                    println!("{name} fails: {error:#}");
                }
            }
        }
    }
    Ok(contenders)
}

/// Checks that all train the same model: their first losses agree.
fn check_first_losses(contenders: &[Contender]) -> Result<()> {
    let expected = contenders[0].first_loss();
    for contender in contenders {
        let loss = contender.first_loss();
        if (loss / expected - 1.0).abs() > LOSS_TOLERANCE {
            bail!("first loss of {} is {loss}, expected about {expected}", contender.name);
        }
    }
    Ok(())
}

impl Contender {
    fn first_loss(&self) -> f64 {
        mean(self.workers.first_losses.iter().copied())
    }

    fn is_regatta(&self) -> bool {
        matches!(self.workers.framework, Framework::Regatta(_))
    }

    /// Speed relative to the faster mode of PyTorch, and parallel efficiency: the speed relative to processes
    /// that do not communicate.
    fn comparison(&self, all: &[Contender]) -> String {
        let Some(parallelism) = self.workers.parallelism.filter(|_| self.is_regatta()) else {
            return String::new();
        };
        let efficiency = all[0].seconds() / self.seconds() * 100.0;
        let efficiency = format!("{efficiency:.0} % efficiency");
        let comparable =
            |c: &&Self| !c.is_regatta() && c.workers.parallelism == self.workers.parallelism;
        let torch = all.iter().filter(comparable);
        let Some(torch) = torch.min_by(|a, b| a.seconds().total_cmp(&b.seconds())) else {
            return efficiency;
        };
        let ratio = torch.seconds() / self.seconds();
        let [min, max] = torch.measurements.ratio_range(&self.measurements);
        let torch_name = parallelism.torch_name();
        format!("{ratio:.2}x {torch_name} (per round {min:.2} to {max:.2}), {efficiency}")
    }
}

fn name(framework: Framework, parallelism: Option<DataParallelism>) -> String {
    match (framework, parallelism) {
        (Framework::Regatta(_), parallelism) => {
            let name = parallelism.map_or("independent", DataParallelism::regatta_name);
            format!("Regatta, {name}")
        }
        (Framework::Torch { compiled, .. }, parallelism) => {
            let mode = if compiled { "compiled" } else { "eager" };
            let parallelism = parallelism.map_or("independent", DataParallelism::torch_name);
            format!("PyTorch, {parallelism}, {mode}")
        }
    }
}

fn print(contenders: &[Contender]) {
    println!("{:<28}{:>9}{:>20}{:>9}{:>16}", "", "ms/step", "quartiles", "exposed", "loss");
    for contender in contenders {
        let Contender { measurements, .. } = contender;
        let RunTimes { low, median, high } = measurements.step_times();
        let [low, median, high] = [low, median, high].map(|time| time.as_secs_f64() * 1e3);
        let quartiles = format!("{low:.2} to {high:.2}");
        let exposed = measurements.exposed_communication();
        let exposed = exposed.map(|part| format!("{:.1} %", part * 100.0)).unwrap_or_default();
        let loss = format!("{:.3} to {:.3}", contender.first_loss(), measurements.loss);
        let (name, comparison) = (&contender.name, contender.comparison(contenders));
        println!("{name:<28}{median:>9.2}{quartiles:>20}{exposed:>9}{loss:>16}  {comparison}");
    }
    let names = PHASES.map(|(name, _)| format!("{name:>15}")).concat();
    println!("\n{:<28}{names}", "ms per step");
    for contender in contenders.iter().filter(|contender| contender.is_regatta()) {
        let phase = |(_, phase): &Phase| contender.measurements.median_phase(*phase);
        let phases = PHASES.iter().filter_map(phase);
        let phases: String = phases.map(|seconds| format!("{:>15.2}", seconds * 1e3)).collect();
        println!("{:<28}{phases}", contender.name);
    }
    println!();
}

/// Load average of the last minute.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
