//! A rank that records collectives like the profiler plug-in, without a GPU. It is a test of the test
//! program, which is thus a program that `regatta launch` can start.

use std::path::Path;
use std::time::Duration;

use regatta_events::clock::host_now;
use regatta_events::operation::{Algorithm, DataType, OperationKind, Protocol, Source};
use regatta_events::record::Recorder;
use regatta_events::record::raw::{Enqueue, OpenCommunicator, RawEvent, fixed_name};
use regatta_events::record::settings::Settings;

/// The variable with the number of seconds by which collectives were enqueued earlier than they are.
pub const AGE: &str = "FAKE_RANK_AGE";
/// Collectives of a job that does not stop.
const COLLECTIVES: u64 = 8;

/// The command of a fake rank. `stopped`: a rank and the number of the collective that it does not enter.
pub fn command(test: &str, stopped: Option<(u32, u64)>) -> Vec<String> {
    let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    let stop = stopped.map_or("none".to_owned(), |(rank, index)| format!("{rank}:{index}"));
    let variable = format!("FAKE_RANK_STOPS={stop}");
    let words = [&program, test, "--exact", "--ignored", "--nocapture"].map(str::to_owned);
    ["env".to_owned(), variable].into_iter().chain(words).collect()
}

/// Runs the rank, if this process is one.
pub fn run() {
    let Some(settings) = Settings::from_env(Source::Nccl) else { return };
    let stops = std::env::var("FAKE_RANK_STOPS").unwrap();
    let stop =
        stops.split_once(':').map(|(rank, index)| (rank.parse().unwrap(), index.parse().unwrap()));
    let age =
        std::env::var(AGE).map_or(0, |seconds| seconds.parse::<u64>().unwrap() * 1_000_000_000);
    let [rank, ranks] = [settings.process.rank, settings.process.world_size].map(Option::unwrap);
    let (folder, recorder) = (settings.folder.clone(), Recorder::start(settings).unwrap());
    let communicator = recorder.next_communicator();
    recorder.push(RawEvent::Open(OpenCommunicator {
        communicator,
        id: 0xfeed,
        ranks,
        nodes: 1,
        rank,
        name: fixed_name(b"default_pg"),
    }));
    for index in 0..COLLECTIVES {
        if stop == Some((rank, index)) {
            wait_until(|| false);
        }
        let operation = recorder.next_operation();
        let mut enqueue = all_reduce(operation, communicator, index);
        enqueue.time -= age;
        recorder.push(RawEvent::Enqueue(enqueue));
        recorder.push(RawEvent::Start { operation, time: host_now(), device_time: 0 });
        let file = |rank: u32| folder.join(format!("arrived-{index}-{rank}"));
        std::fs::write(file(rank), "").unwrap();
        wait_until(|| (0..ranks).all(|rank| Path::exists(&file(rank))));
        recorder.push(RawEvent::End { operation, time: host_now(), device_time: 0 });
    }
}

fn all_reduce(operation: u64, communicator: u32, sequence: u64) -> Enqueue {
    Enqueue {
        operation,
        communicator,
        time: host_now(),
        sequence,
        kind: OperationKind::AllReduce,
        dtype: DataType::Bf16,
        algorithm: Algorithm::Ring,
        protocol: Protocol::Simple,
        channels: 1,
        peer: -1,
        count: 2 << 20,
        bytes: 0,
        captured: false,
    }
}

/// Polls, and writes output, so that the job does not seem to be idle.
fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        println!("waiting");
        std::thread::sleep(Duration::from_millis(50));
    }
}
