//! Predicted and measured memory, communication and offload I/O of training steps. Validation and
//! checkpoints are not included.

use crate::step::Engine;
use regatta_model::rank_bytes::IoBytes;
use regatta_model::rank_bytes::PINNED;
use regatta_model::rank_bytes::{DiskIoBytes, PeakBytes, SentBytes};
use regatta_predict::axis::Axis;
use regatta_predict::cost::{MemoryBytes, RankCost};

/// Predicted and measured usage of a rank.
#[derive(Debug)]
pub struct Usage {
    /// Predicted memory, and communication and offload I/O per step.
    cost: RankCost,
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
    pub fn new(cost: RankCost) -> Self {
        Self { cost, counted: Counters::default(), steps: 0 }
    }

    /// Predicted and peak memory, by category.
    pub fn memory(&self, engine: &Engine) -> Vec<PeakBytes> {
        let MemoryBytes { params, grads, optimizer, pinned, .. } = engine.state.memory();
        let activations = engine.device_model.pool.peak_bytes() as u64;
        let expected = &self.cost.memory;
        let passes = expected.activations + expected.workspace;
        let all = [
            ("parameters", expected.params.peak(), params.peak()),
            ("gradients", expected.grads.peak(), grads.peak()),
            ("optimizer", expected.optimizer.peak(), optimizer.peak()),
            // They share buffers, so only their sum can be measured.
            ("activations and workspace", passes, activations),
            (PINNED, expected.pinned, pinned),
        ];
        let one = |(what, expected, measured): (&str, u64, u64)| PeakBytes {
            what: what.to_owned(),
            expected,
            measured: Some(measured),
        };
        // Only runs that offload state of a GPU have pinned memory.
        let is_used = |(what, expected, measured): &(&str, u64, u64)| {
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
            let expected = self.cost.traffic.on(axis);
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
        measured.map_or_else(Vec::new, |_| DiskIoBytes::rows(self.cost.disk_io, measured))
    }
}
