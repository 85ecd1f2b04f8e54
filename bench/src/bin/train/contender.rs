//! Groups of workers that are compared.

use std::time::Duration;

use anyhow::Result;

use crate::measurements::Measurements;
use crate::preset::Preset;
use crate::worker_processes::Workers;

/// Workers and their measurements.
pub struct Contender {
    pub name: String,
    pub workers: Workers,
    pub measurements: Measurements,
}

impl Contender {
    pub fn new(name: &str, workers: Workers) -> Self {
        Self { name: name.to_owned(), workers, measurements: Measurements::default() }
    }

    /// The median time of a step.
    pub fn seconds(&self) -> f64 {
        self.measurements.step_times().median.as_secs_f64()
    }
}

/// Interleaves rounds of the contenders, each after a pause.
pub fn run_rounds(
    contenders: &mut [Contender],
    preset: Preset,
    rounds: usize,
    pause: Duration,
) -> Result<()> {
    for _ in 0..rounds.max(1) {
        for Contender { workers, measurements, .. } in &mut *contenders {
            std::thread::sleep(pause);
            measurements.add_round(workers.run_round(preset.steps)?);
        }
    }
    Ok(())
}
