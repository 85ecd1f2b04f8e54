//! Phase times of a step on a device whose operations are asynchronous: the host only queues them.

use std::time::Duration;

use super::StepTimings;
use regatta_device::ops::{Device, TimeMark};

/// A phase of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Forward,
    Backward,
    Optimizer,
}

/// The beginnings of the phases of a step in the device's queue.
#[derive(Default)]
pub(super) struct DeviceTimings(Vec<(Phase, TimeMark)>);

impl DeviceTimings {
    /// Marks the beginning of a phase, unless the device is in it.
    pub fn begin(&mut self, device: &dyn Device, phase: Phase) {
        if self.0.last().is_none_or(|(last, _)| *last != phase) {
            self.0.extend(device.record_time().map(|mark| (phase, mark)));
        }
    }

    /// Marks the end of the step, to be read after a synchronisation.
    pub fn end(&mut self, device: &dyn Device) {
        self.0.extend(device.record_time().map(|mark| (Phase::Optimizer, mark)));
    }

    /// Replaces the times that the host measured, if the device measures its own. Waits for other ranks
    /// are part of the phases.
    pub fn replace(self, device: &dyn Device, timings: &mut StepTimings) {
        if self.0.is_empty() {
            return;
        }
        *timings = StepTimings::default();
        for pair in self.0.windows(2) {
            let [(phase, start), (_, end)] = pair else { continue };
            let seconds = device.seconds_between(start, end);
            *match phase {
                Phase::Forward => &mut timings.forward,
                Phase::Backward => &mut timings.backward,
                Phase::Optimizer => &mut timings.optimizer,
            } += Duration::try_from_secs_f64(seconds).unwrap_or_default();
        }
    }
}
