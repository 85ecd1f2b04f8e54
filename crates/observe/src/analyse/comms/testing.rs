//! Records of made-up jobs.

use regatta_events::file::{ReadEnd, Record};
use regatta_events::operation::{
    Algorithm, ClockSync, Communicator, DataType, Operation, OperationKind, Process, Protocol,
    Source, Timing,
};

use super::collector::{Collector, FileSummary};

pub(super) const SECOND: u64 = 1_000_000_000;

pub(super) fn process(rank: u32, host: &str) -> Process {
    Process {
        source: Source::Nccl,
        rank: Some(rank),
        world_size: None,
        restart: 0,
        pid: 1000 + rank,
        host: host.to_owned(),
        boot_id: format!("boot-of-{host}"),
    }
}

pub(super) fn world(rank: u32, ranks: u32) -> Communicator {
    Communicator { index: 1, id: 0xabc, name: "world".to_owned(), ranks, nodes: 1, rank }
}

pub(super) fn all_reduce(index: u64, bytes: u64, start: u64, end: u64) -> Operation {
    Operation {
        communicator: 1,
        index,
        sequence: index,
        kind: OperationKind::AllReduce,
        dtype: DataType::F32,
        algorithm: Algorithm::Ring,
        protocol: Protocol::Simple,
        channels: 2,
        peer: None,
        count: bytes / 4,
        bytes,
        enqueued: start.saturating_sub(10),
        timing: Timing::Host,
        start,
        end,
        network: None,
        captured: false,
        completed: true,
    }
}

pub(super) fn sync(host: u64, realtime: u64) -> Record {
    Record::Clock(ClockSync { host, realtime, device_ahead: None })
}

pub(super) fn file(process: Process, records: Vec<Record>) -> FileSummary {
    file_with(process, records, 1 << 20)
}

pub(super) fn file_with(
    process: Process,
    records: Vec<Record>,
    max_arrivals: usize,
) -> FileSummary {
    let mut collector = Collector::new(format!("{}-{}", process.host, process.pid), max_arrivals);
    collector.add(Record::Process(process));
    records.into_iter().for_each(|record| collector.add(record));
    collector.finish(Ok(ReadEnd::Complete))
}

/// The file of a rank of the world communicator that only runs all-reduces.
pub(super) fn all_reduces(
    process: Process,
    ranks: u32,
    calls: &[(u64, u64, u64, u64)],
) -> FileSummary {
    let rank = process.rank.unwrap();
    let mut records = vec![Record::Communicator(world(rank, ranks))];
    records.extend(calls.iter().map(|&(index, bytes, start, end)| {
        Record::Operation(all_reduce(index, bytes, start, end))
    }));
    file(process, records)
}
