//! Processes of one and two threads beside PyTorch's, and two data-parallel ranks beside one.

use anyhow::Result;
use regatta_device::precision::Precision;

use crate::answer::Answer;
use crate::crew::{self, Crew};
use crate::preset::{Preset, Split};
use crate::table::{self, Row};
use crate::{Options, PAUSE};

/// Compares all of these.
pub fn compare(preset: Preset, options: &Options, cpus: &[usize; 2]) -> Result<()> {
    println!("{}", preset.describe());
    let mut crews = crews(preset, options, cpus)?;
    let mut turns = vec![Vec::new(); crews.len()];
    for _ in 0..options.turns.max(1) {
        for (crew, turns) in crews.iter_mut().zip(&mut turns) {
            std::thread::sleep(PAUSE);
            turns.push(slowest(&crew.turn(preset.steps)?));
        }
    }
    let rows: Vec<Row> =
        crews.iter().zip(turns).map(|(crew, turns)| Row::new(crew, &preset, turns)).collect();
    table::print(&preset, &rows);
    Ok(())
}

/// The seconds of a step of the slowest process.
fn slowest(answers: &[Answer]) -> f64 {
    answers.iter().map(Answer::seconds).fold(0.0, f64::max)
}

/// All that take turns, ready.
fn crews(preset: Preset, options: &Options, cpus: &[usize; 2]) -> Result<Vec<Crew>> {
    let precisions = [Precision::F32, Precision::Bf16];
    let python = crew::python();
    if python.is_none() {
        println!("not installed: PyTorch");
    }
    let mut crews = Vec::new();
    for threads in 1..=cpus.len() {
        for precision in precisions {
            crews.push(Crew::ours(preset, precision, &cpus[..threads])?);
        }
        for compiled in [false, true] {
            let Some(python) = python.as_ref().filter(|_| options.compiled || !compiled) else {
                continue;
            };
            match Crew::torch(python, preset, compiled, &cpus[..threads]) {
                Ok(crew) => crews.push(crew),
                Err(error) if compiled => println!("torch.compile does not work here: {error:#}"),
                Err(error) => return Err(error.context("PyTorch")),
            }
        }
    }
    // As many sequences as one rank has, shared, and as many for each.
    for precision in precisions {
        for each in [preset.batch / cpus.len(), preset.batch] {
            crews.push(Crew::ranks(preset, precision, Split::Data, cpus, each)?);
        }
    }
    Ok(crews)
}
