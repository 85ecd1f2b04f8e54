//! Collectives whose channels are not reported.

use std::collections::HashMap;

/// How long a collective that later ones have overtaken is waited for. Those of CUDA graphs may be reported
/// after others that run later, but not for so long.
const PERIOD_NS: u64 = 10_000_000_000;

/// Finds collectives that have been overtaken: those of a communicator run in order, so that a collective
/// that has not started long after a later one ended is never reported. NCCL reports no kernels of
/// symmetric-memory collectives, and the events may have been lost.
#[derive(Debug, Default)]
pub(super) struct Overtaken {
    /// Start of the period.
    since: u64,
    /// Collectives completed at the start of this period and of the previous one, by communicator.
    completed: HashMap<u32, u64>,
    before: HashMap<u32, u64>,
}

impl Overtaken {
    /// Takes the completed collectives of all communicators, once in a period. Returns whether it did.
    pub(super) fn update(&mut self, now: u64, completed: impl Iterator<Item = (u32, u64)>) -> bool {
        if now.saturating_sub(self.since) < PERIOD_NS {
            return false;
        }
        self.since = now;
        self.before = std::mem::replace(&mut self.completed, completed.collect());
        true
    }

    /// Whether a later collective of the communicator ended more than a period ago.
    pub(super) fn contains(&self, communicator: u32, index: u64) -> bool {
        self.before.get(&communicator).is_some_and(|&completed| index + 1 < completed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Assembled, Assembler};
    use super::PERIOD_NS;
    use crate::operation::{Algorithm, DataType, OperationKind, Protocol, Timing};
    use crate::record::raw::{Enqueue, MAX_NAME, OpenCommunicator, RawEvent};

    fn open() -> RawEvent {
        let name = [0; MAX_NAME];
        RawEvent::Open(OpenCommunicator {
            communicator: 1,
            id: 1,
            ranks: 2,
            nodes: 1,
            rank: 0,
            name,
        })
    }

    fn enqueue(operation: u64) -> RawEvent {
        RawEvent::Enqueue(Enqueue {
            operation,
            communicator: 1,
            time: operation,
            sequence: operation,
            kind: OperationKind::AllReduce,
            dtype: DataType::F32,
            algorithm: Algorithm::Ring,
            protocol: Protocol::Ll,
            channels: 1,
            peer: -1,
            count: 1,
            bytes: 0,
            captured: false,
        })
    }

    /// Numbers of the operations that are passed on until `now`.
    fn taken(assembler: &mut Assembler, now: u64) -> Vec<(u64, Timing)> {
        let mut indices = Vec::new();
        assembler.retire_overtaken(now);
        assembler.take(now + PERIOD_NS / 2, |item| match item {
            Assembled::Operation(operation) => indices.push((operation.index, operation.timing)),
            Assembled::Communicator(_) => {}
        });
        indices
    }

    #[test]
    fn a_collective_that_is_never_reported_ends_after_later_ones() {
        let mut assembler = Assembler::default();
        let mut handle = |event| assembler.handle(event, |_| {});
        handle(open());
        for operation in 1..=3 {
            handle(enqueue(operation));
        }
        // The first and the last are not reported.
        handle(RawEvent::Start { operation: 2, time: 5, device_time: 0 });
        handle(RawEvent::End { operation: 2, time: 6, device_time: 0 });
        let start = 10 * PERIOD_NS;
        assert_eq!(taken(&mut assembler, start), [(1, Timing::Host)]);
        // Not before a whole period has passed.
        assert_eq!(taken(&mut assembler, start + PERIOD_NS / 2), []);
        assert_eq!(taken(&mut assembler, start + PERIOD_NS), [(0, Timing::None)]);
        for round in 2..10 {
            assert_eq!(taken(&mut assembler, start + round * PERIOD_NS), [], "the last may start");
        }
    }
}
