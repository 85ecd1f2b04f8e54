//! Two ranks beside two of PyTorch's, and beside two processes that do the same without talking.

use anyhow::{Result, bail};
use regatta_device::precision::Precision;

use crate::answer::{Laps, Step};
use crate::crew::{self, Crew, Who};
use crate::figures::{Figures, mean};
use crate::preset::{Preset, Split};
use crate::{Options, PAUSE};

/// How far the losses of the first step may be apart: parameters of the same distribution, but of
/// other random numbers.
const ALIKE: f64 = 0.05;

/// Where the time of a step goes.
const PARTS: [Part; 5] = [
    ("forward", |_, laps| laps.forward),
    ("backward", |_, laps| laps.backward),
    ("communication", |_, laps| laps.communication),
    ("optimizer", |_, laps| laps.optimizer),
    ("other", |step, laps| laps.other(step.seconds)),
];

type Part = (&'static str, fn(&Step, &Laps) -> f64);

/// A crew and what it did.
struct Entry {
    crew: Crew,
    /// `None`: by themselves.
    split: Option<Split>,
    figures: Figures,
}

/// Compares all of these.
pub fn compare(preset: Preset, options: &Options, cpus: &[usize; 2]) -> Result<()> {
    let each = if options.each { preset.batch } else { preset.batch / cpus.len() };
    println!("{}, {} ranks, {each} sequences each", preset.describe(), cpus.len());
    let mut entries = entries(preset, options, cpus, each)?;
    look_alike(&entries)?;
    let before = load();
    for _ in 0..options.turns.max(1) {
        for Entry { crew, figures, .. } in &mut entries {
            std::thread::sleep(PAUSE);
            figures.add(crew.turn(preset.steps)?);
        }
    }
    println!("load average: {before} before, {} after", load());
    print(&entries);
    Ok(())
}

/// All that take turns, ready.
fn entries(
    preset: Preset,
    options: &Options,
    cpus: &[usize; 2],
    each: usize,
) -> Result<Vec<Entry>> {
    let entry = |crew, split| Entry { crew, split, figures: Figures::default() };
    let mut entries = vec![entry(Crew::apart(preset, cpus, each)?, None)];
    let python = crew::python();
    if python.is_none() {
        println!("not installed: PyTorch");
    }
    let kinds = if options.compiled { &[false, true][..] } else { &[false] };
    for split in options.splits.iter().copied() {
        let ours = Crew::ranks(preset, Precision::F32, split, cpus, each)?;
        entries.push(entry(ours, Some(split)));
        let Some(python) = &python else { continue };
        for compiled in kinds.iter().copied() {
            match Crew::torch_ranks(python, preset, compiled, split, cpus, each) {
                Ok(crew) => entries.push(entry(crew, Some(split))),
                Err(error) => {
                    let name = name(Who::Torch { compiled }, Some(split));
                    println!("{name} does not work here: {error:#}");
                }
            }
        }
    }
    Ok(entries)
}

/// Whether all train the same: their losses begin the same.
fn look_alike(entries: &[Entry]) -> Result<()> {
    let first = entries[0].first_loss();
    for entry in entries {
        let loss = entry.first_loss();
        if (loss / first - 1.0).abs() > ALIKE {
            bail!("{} begins with a loss of {loss}, others with {first}", entry.name());
        }
    }
    Ok(())
}

impl Entry {
    fn first_loss(&self) -> f64 {
        mean(self.crew.losses.iter().copied())
    }

    fn name(&self) -> String {
        name(self.crew.who, self.split)
    }

    fn seconds(&self) -> f64 {
        self.figures.times().median.as_secs_f64()
    }

    fn is_ours(&self) -> bool {
        matches!(self.crew.who, Who::Ours(_))
    }

    /// How many times as fast as the better one of PyTorch, and as two that do not talk.
    fn beside(&self, all: &[Entry]) -> String {
        let Some(split) = self.split.filter(|_| self.is_ours()) else { return String::new() };
        let apart = all[0].seconds() / self.seconds() * 100.0;
        let theirs = all.iter().filter(|entry| !entry.is_ours() && entry.split == self.split);
        let Some(best) = theirs.min_by(|a, b| a.seconds().total_cmp(&b.seconds())) else {
            return format!("{apart:.0} % of apart");
        };
        let times = best.seconds() / self.seconds();
        let [least, most] = best.figures.beside(&self.figures);
        let by_turn = format!("{least:.2} to {most:.2} by turn");
        format!("{times:.2} times {} ({by_turn}), {apart:.0} % of apart", split.theirs())
    }
}

fn name(who: Who, split: Option<Split>) -> String {
    match (who, split) {
        (Who::Ours(_), None) => "ours, apart".to_owned(),
        (Who::Ours(_), Some(split)) => format!("ours, {}", split.ours()),
        (Who::Torch { compiled }, split) => {
            let how = if compiled { "compiled" } else { "eager" };
            format!("PyTorch, {}, {how}", split.map_or("apart", Split::theirs))
        }
    }
}

fn print(entries: &[Entry]) {
    println!("{:<28}{:>9}{:>20}{:>9}{:>16}", "", "ms/step", "quartiles", "exposed", "loss");
    for entry in entries {
        let times = entry.figures.times();
        let [low, median, high] =
            [times.low, times.median, times.high].map(|time| time.as_secs_f64() * 1e3);
        let quartiles = format!("{low:.2} to {high:.2}");
        let exposed = entry.figures.exposed();
        let exposed = exposed.map_or_else(String::new, |share| format!("{:.1} %", share * 100.0));
        let loss = format!("{:.3} to {:.3}", entry.first_loss(), entry.figures.loss);
        let beside = entry.beside(entries);
        let name = entry.name();
        println!("{name:<28}{median:>9.2}{quartiles:>20}{exposed:>9}{loss:>16}  {beside}");
    }
    let names = PARTS.map(|(name, _)| format!("{name:>15}")).concat();
    println!("\n{:<28}{names}", "ms of a step");
    for entry in entries.iter().filter(|entry| entry.is_ours()) {
        let parts = PARTS.iter().filter_map(|(_, of)| entry.figures.part(*of));
        let parts: String = parts.map(|seconds| format!("{:>15.2}", seconds * 1e3)).collect();
        println!("{:<28}{parts}", entry.name());
    }
    println!();
}

/// Processes that wanted to run in the last minute, on the average.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
