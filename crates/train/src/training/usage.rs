//! Predicted and measured memory, communication and offload I/O of training steps. Validation and
//! checkpoints are not included.

use crate::state::StateMemory;
use crate::step::Engine;
use regatta_model::rank_bytes::IoBytes;
use regatta_model::rank_bytes::PINNED;
use regatta_model::rank_bytes::{DiskIoBytes, PeakBytes, SentBytes};
use regatta_predict::axis::Axis;
use regatta_predict::cost::{MemoryBytes, RankCost, TrafficBytes};

/// Predicted and measured usage of a rank.
#[derive(Debug)]
pub struct Usage {
    /// Predicted memory.
    memory: MemoryBytes,
    /// Predicted communication per step.
    traffic: TrafficBytes,
    /// Predicted offload I/O per step.
    disk_io: IoBytes,
    /// Measured, summed over all steps.
    counted: Counters,
    steps: u64,
}

/// Communication and I/O counters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    sent: [u64; Axis::ALL.len()],
    disk_io: IoBytes,
}

impl Counters {
    /// The counters of an engine.
    pub fn of(engine: &Engine) -> Self {
        let sent = Axis::ALL.map(|axis| engine.groups.sent(axis).total_bytes());
        Self { sent, disk_io: engine.state.io_bytes() }
    }
}

impl Usage {
    /// Without steps.
    pub fn new(RankCost { memory, traffic, disk_io, .. }: RankCost) -> Self {
        Self { memory, traffic, disk_io, counted: Counters::default(), steps: 0 }
    }

    /// Predicted and peak memory, by category.
    pub fn memory(&self, engine: &Engine) -> Vec<PeakBytes> {
        let StateMemory { parameters, gradients, moments, pinned } = engine.state.memory();
        let expected = &self.memory;
        let passes = expected.activations + expected.workspace;
        let all = [
            ("parameters", expected.params.peak(), parameters.peak()),
            ("gradients", expected.grads.peak(), gradients.peak()),
            ("optimizer", expected.optimizer.peak(), moments.peak()),
            // They share buffers, so only their sum can be measured.
            ("activations and workspace", passes, engine.device_model.activation_bytes()),
            (PINNED, expected.pinned, pinned),
        ];
        let one = |(what, expected, measured): (&str, u64, usize)| {
            let (what, measured) = (what.to_owned(), Some(measured as u64));
            PeakBytes { what, expected, measured }
        };
        // Only runs that offload state of a GPU have pinned memory.
        let is_used = |(what, expected, measured): &(&str, u64, usize)| {
            *what != PINNED || *expected > 0 || *measured > 0
        };
        all.into_iter().filter(is_used).map(one).collect()
    }

    /// Adds a step, given the counters before it.
    pub fn add_step(&mut self, before: Counters, engine: &Engine) {
        let now = Counters::of(engine);
        let new = now.sent.into_iter().zip(before.sent).map(|(now, before)| now - before);
        self.counted.sent.iter_mut().zip(new).for_each(|(counted, new)| *counted += new);
        self.counted.disk_io += now.disk_io - before.disk_io;
        self.steps += 1;
    }

    /// Bytes sent per step, by axis, if any.
    pub fn sent(&self) -> Vec<SentBytes> {
        let one = |(axis, counted): (Axis, u64)| {
            let expected = self.traffic.on(axis);
            let measured = counted.checked_div(self.steps)?;
            let (axis, is_used) = (axis.name().to_owned(), expected > 0 || measured > 0);
            is_used.then_some(SentBytes { axis, expected, measured: Some(measured) })
        };
        Axis::ALL.into_iter().zip(self.counted.sent).filter_map(one).collect()
    }

    /// Offload I/O per step, if any.
    pub fn disk_io(&self) -> Vec<DiskIoBytes> {
        let IoBytes { read, written } = self.counted.disk_io;
        let mean = |bytes: u64| bytes.checked_div(self.steps);
        let measured =
            mean(read).zip(mean(written)).map(|(read, written)| IoBytes { read, written });
        measured.map_or_else(Vec::new, |_| DiskIoBytes::rows(self.disk_io, measured))
    }
}
