//! Operations whose end is not reported.

use std::collections::HashMap;

/// What runs in order: the collectives of a communicator, or its messages of a peer and direction.
pub(super) type Stream = (u32, Option<(i32, bool)>);

/// How long an operation that later ones have overtaken is waited for. Those of CUDA graphs may be reported
/// after others that run later, but not for so long.
const PERIOD_NS: u64 = 10_000_000_000;

/// Finds operations that have been overtaken: those of a stream run in order, so that the end of one is
/// never reported if a later one ended long ago. NCCL reports no kernels of symmetric-memory collectives,
/// and the events may have been lost.
#[derive(Debug, Default)]
pub(super) struct Overtaken {
    /// Start of the period.
    since: u64,
    /// Operations completed at the start of this period and of the previous one.
    completed: HashMap<Stream, u64>,
    before: HashMap<Stream, u64>,
}

impl Overtaken {
    /// Takes the completed operations of all streams, once in a period. Returns whether it did.
    pub(super) fn update(
        &mut self,
        now: u64,
        completed: impl Iterator<Item = (Stream, u64)>,
    ) -> bool {
        if now.saturating_sub(self.since) < PERIOD_NS {
            return false;
        }
        self.since = now;
        self.before = std::mem::replace(&mut self.completed, completed.collect());
        true
    }

    /// Whether a later operation of the stream ended more than a period ago.
    pub(super) fn contains(&self, stream: Stream, index: u64) -> bool {
        self.before.get(&stream).is_some_and(|&completed| index + 1 < completed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Assembler, Record};
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
        assembler.take(now + PERIOD_NS / 2, |item| {
            if let Record::Operation(operation) = item {
                indices.push((operation.index, operation.timing));
            }
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

    /// The event of an end may have been lost, of a collective or of a message.
    #[test]
    fn an_operation_without_an_end_ends_after_later_ones() {
        for kind in [OperationKind::AllReduce, OperationKind::Send] {
            let mut assembler = Assembler::default();
            assembler.handle(open(), |_| {});
            for operation in 1..=3 {
                let RawEvent::Enqueue(call) = enqueue(operation) else { panic!() };
                let events = [
                    RawEvent::Enqueue(Enqueue { kind, peer: 1, ..call }),
                    RawEvent::Start { operation, time: 5, device_time: 0 },
                ];
                events.into_iter().for_each(|event| assembler.handle(event, |_| {}));
            }
            assembler.handle(RawEvent::End { operation: 2, time: 6, device_time: 0 }, |_| {});
            let start = 10 * PERIOD_NS;
            assert_eq!(taken(&mut assembler, start), [(1, Timing::Host)]);
            assert_eq!(taken(&mut assembler, start + PERIOD_NS), [(0, Timing::None)]);
            assert_eq!(taken(&mut assembler, start + 5 * PERIOD_NS), [], "the last may end");
        }
    }
}
