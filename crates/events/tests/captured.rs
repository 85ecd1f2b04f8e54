//! The status of a process that captures CUDA graphs.

use regatta_events::assemble::Assembler;
use regatta_events::operation::{Algorithm, DataType, OperationKind, Protocol};
use regatta_events::record::raw::{Enqueue, OpenCommunicator, RawEvent, fixed_name};

#[test]
fn captured_collective_is_not_in_flight() {
    let open = OpenCommunicator {
        communicator: 1,
        id: 7,
        ranks: 2,
        nodes: 1,
        rank: 0,
        name: fixed_name(b""),
    };
    let enqueue = |operation, captured| Enqueue {
        operation,
        communicator: 1,
        time: operation,
        sequence: 0,
        kind: OperationKind::AllReduce,
        dtype: DataType::F32,
        algorithm: Algorithm::Ring,
        protocol: Protocol::Simple,
        channels: 1,
        peer: -1,
        count: 1,
        bytes: 0,
        captured,
    };
    let mut assembler = Assembler::default();
    for event in [RawEvent::Open(open), RawEvent::Enqueue(enqueue(1, true))] {
        assembler.handle(event, |_| ());
    }
    assert_eq!(assembler.status()[0].current, None);
    assembler.handle(RawEvent::Enqueue(enqueue(2, false)), |_| ());
    let status = &assembler.status()[0];
    assert_eq!((status.enqueued, status.current.map(|current| current.index)), (2, Some(1)));
}
