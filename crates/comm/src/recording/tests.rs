use std::path::Path;
use std::time::Duration;

use regatta_events::file::{self, Record};
use regatta_events::operation::{Communicator as Recorded, Operation, Process};

use super::*;
use crate::{Buffer, Collectives, Comm, Communicator, ReduceOp, in_process};

fn recorder(folder: &Path, rank: u32) -> &'static Recorder {
    let process = Process {
        source: Source::Regatta,
        rank: Some(rank),
        world_size: Some(2),
        restart: 0,
        pid: 1,
        host: "n1".to_owned(),
        boot_id: "b".to_owned(),
    };
    let started = Recorder::start(Settings::new(folder.to_owned(), process)).unwrap();
    Box::leak(Box::new(started))
}

/// What two ranks record while both run `work`.
fn record(name: &str, work: impl Fn(&Communicator) + Sync) -> Vec<(Vec<Recorded>, Vec<Operation>)> {
    let folder =
        std::env::temp_dir().join(format!("regatta-recording-{name}-{}", std::process::id()));
    let all = std::thread::scope(|scope| {
        let run = |engine: BoxEngine| {
            let rank = engine.rank();
            let recorder = recorder(&folder, rank);
            let engine = RecordedEngine::new(engine, recorder, 7, "world");
            work(&Communicator::new(Box::new(engine)));
            assert!(recorder.stop(Duration::from_secs(60)));
            read(&folder.join(format!("rank-{rank:05}-n1-1-regatta.events")))
        };
        let threads =
            in_process::engines(2).into_iter().map(|engine| scope.spawn(move || run(engine)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    std::fs::remove_dir_all(folder).unwrap();
    all
}

fn read(path: &Path) -> (Vec<Recorded>, Vec<Operation>) {
    let (mut communicators, mut operations) = (Vec::new(), Vec::new());
    file::read(&std::fs::read(path).unwrap()[..], |record| match record {
        Record::Communicator(communicator) => communicators.push(communicator),
        Record::Operation(operation) => operations.push(operation),
        _ => {}
    })
    .unwrap();
    operations
        .sort_by_key(|operation| (operation.communicator, operation.enqueued, operation.sequence));
    (communicators, operations)
}

#[test]
fn kinds_of_calls_have_the_same_names_in_events() {
    for call in CallKind::ALL.into_iter().chain([CallKind::Send, CallKind::Receive]) {
        assert_eq!(kind(call).known_name(), Some(call.name()));
    }
}

#[test]
fn calls_of_all_kinds_are_recorded() {
    let all = record("kinds", |comm| {
        comm.all_reduce(&mut [0f32; 8], ReduceOp::Sum).unwrap();
        comm.all_gather(&[0u8; 3], &mut [0; 6]).unwrap();
        comm.broadcast(&mut [0f64; 5], 1).unwrap();
        let (own, counts) = ([4, 1][comm.rank() as usize], [4, 1]);
        comm.all_gather_v(&vec![0i16; own], &mut [0; 5], &counts).unwrap();
        let sum = || OwnedCall::all_reduce(DType::Bf16, ReduceOp::Sum, Buffer::zeroed(8));
        comm.start(sum()).wait().unwrap();
        comm.run_owned(&mut [sum()], 2).unwrap();
        let message = |kind| {
            let call = OwnedCall::new(kind, DType::F32, Counts::Equal(3), Buffer::zeroed(12));
            OwnedCall { root: 1 - comm.rank(), ..call }
        };
        comm.run_owned(&mut [message(CallKind::Send), message(CallKind::Receive)], 1).unwrap();
    });
    for (rank, (communicators, operations)) in all.into_iter().enumerate() {
        assert_eq!(communicators.len(), 1);
        assert_eq!((communicators[0].name.as_str(), communicators[0].ranks), ("world", 2));
        let facts = |o: &Operation| (o.kind, o.dtype, o.count, o.bytes, o.peer, o.index);
        let own = [4, 1][rank];
        let peer = Some(1 - rank as u32);
        let expected = [
            (OperationKind::AllReduce, DataType::F32, 8, 32, None, 0),
            (OperationKind::AllGather, DataType::U8, 3, 6, None, 1),
            (OperationKind::Broadcast, DataType::F64, 5, 40, Some(1), 2),
            (OperationKind::AllGather, DataType::I16, own, 10, None, 3),
            (OperationKind::AllReduce, DataType::Bf16, 4, 8, None, 4),
            (OperationKind::AllReduce, DataType::Bf16, 4, 8, None, 5),
            (OperationKind::AllReduce, DataType::Bf16, 4, 8, None, 6),
            (OperationKind::Send, DataType::F32, 3, 12, peer, 0),
            (OperationKind::Receive, DataType::F32, 3, 12, peer, 0),
        ];
        assert_eq!(operations.iter().map(facts).collect::<Vec<_>>(), expected);
        assert!(operations.iter().all(|operation| operation.duration().is_some()));
    }
}

#[test]
fn sub_communicators_have_the_same_id_on_all_ranks() {
    let all = record("split", |comm| {
        let pair = comm.split(Some(0), 0).unwrap().unwrap();
        let alone = comm.split(Some(comm.rank()), 0).unwrap().unwrap();
        pair.set_name("tensor");
        pair.barrier().unwrap();
        alone.barrier().unwrap();
    });
    let ids = |name: &str| -> Vec<u64> {
        let named = |(communicators, _): &(Vec<Recorded>, _)| {
            communicators.iter().find(|c| c.name == name && c.ranks == 2).map(|c| c.id)
        };
        all.iter().filter_map(named).collect()
    };
    assert!(matches!(ids("tensor")[..], [a, b] if a == b));
    assert_eq!(ids("world"), [7, 7]);
    let alone: Vec<u64> =
        all.iter().flat_map(|(c, _)| c).filter(|c| c.ranks == 1).map(|c| c.id).collect();
    assert!(matches!(alone[..], [a, b] if a != b), "{alone:?}");
    assert!(all.iter().all(|(_, operations)| operations.len() == 2));
}

/// An engine whose calls fail.
struct FailingEngine;

impl Engine for FailingEngine {
    fn rank(&self) -> u32 {
        0
    }

    fn peers(&self) -> Vec<Peer> {
        vec![Peer::new(0, "n1")]
    }

    fn run(&mut self, _call: Call<'_>) -> Result {
        Err(crate::CommError::system("a test", "every call fails"))
    }

    fn split(&mut self, _colour: Option<u32>, _key: i64) -> Result<Option<BoxEngine>> {
        Ok(None)
    }

    fn abort_fn(&self) -> AbortFn {
        Arc::new(|_| {})
    }
}

#[test]
fn a_call_that_fails_has_no_end() {
    let folder =
        std::env::temp_dir().join(format!("regatta-recording-fails-{}", std::process::id()));
    let recorder = recorder(&folder, 0);
    let engine = RecordedEngine::new(Box::new(FailingEngine), recorder, 7, "world");
    Communicator::new(Box::new(engine)).barrier().unwrap_err();
    assert!(recorder.stop(Duration::from_secs(60)));
    let (_, operations) = read(&folder.join("rank-00000-n1-1-regatta.events"));
    assert!(matches!(operations[..], [failed] if failed.duration().is_none()));
    std::fs::remove_dir_all(folder).unwrap();
}
