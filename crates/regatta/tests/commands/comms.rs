//! `regatta comms`: reports and traces of made-up event files.

use regatta_events::clock::host_now;
use regatta_events::file::{BlockEncoder, Lost, MAGIC, Record};
use regatta_events::operation::{
    Algorithm, ClockSync, Communicator, DataType, Network, Operation, OperationKind, Process,
    Protocol, Source, Timing,
};
use regatta_events::record::Recorder;
use regatta_events::record::raw::{Enqueue, OpenCommunicator, RawEvent, fixed_name};
use regatta_events::record::settings::{Settings, file_stem};
use regatta_events::status::{CommunicatorStatus, CurrentOperation, Status, encode_slot};
use regatta_measure::bus_bandwidth;
use regatta_observe::comms::bandwidth::bus_factor;
use serde_json::Value;

use crate::support::process::run_in;
use crate::support::{TempDir, golden};

const SECOND: u64 = 1_000_000_000;
/// When the job starts, on the clock of the first host.
const START: u64 = 100 * SECOND;

fn process(rank: u32, restart: u32) -> Process {
    let host = format!("node{}", rank / 2);
    Process {
        source: Source::Nccl,
        rank: Some(rank),
        world_size: Some(4),
        restart,
        pid: 1000 + rank + 100 * restart,
        boot_id: format!("boot-{host}"),
        host,
    }
}

fn world(rank: u32) -> Communicator {
    Communicator { index: 1, id: 0x1234, name: String::new(), ranks: 4, nodes: 2, rank }
}

fn operation(kind: OperationKind, index: u64, count: u64, start: u64, end: u64) -> Operation {
    Operation {
        communicator: 1,
        index,
        sequence: index,
        kind,
        dtype: DataType::Bf16,
        algorithm: if kind.is_p2p() { Algorithm::None } else { Algorithm::Ring },
        protocol: if kind.is_p2p() { Protocol::None } else { Protocol::Simple },
        channels: 4,
        peer: kind.is_p2p().then_some(0),
        count,
        bytes: kind.message_bytes(count, 2, 4),
        enqueued: start - 2_000,
        timing: Timing::Host,
        start,
        end,
        network: None,
        captured: false,
        completed: true,
    }
}

/// The records of a rank of two nodes: the clock of the second node is 90 s behind, and its real time is
/// off by 3 ms. Rank 3 is always 40 µs late, and sends messages.
fn records(rank: u32, restart: u32) -> Vec<Record> {
    let (behind, realtime_off) = if rank < 2 { (0, 0) } else { (90 * SECOND, 3_000_000) };
    let late = if rank == 3 { 40_000 } else { u64::from(rank) * 1_000 };
    let mut found = vec![
        Record::Process(process(rank, restart)),
        Record::Communicator(world(rank)),
        Record::Clock(ClockSync {
            host: START - behind,
            realtime: 1_700_000_000 * SECOND + realtime_off,
            device_ahead: None,
        }),
    ];
    for index in 0..40 {
        let start = START + index * 1_000_000 - behind;
        let (kind, count, time) = match index % 4 {
            0 => (OperationKind::AllReduce, 1 << 20, 200_000),
            1 => (OperationKind::AllReduce, 512, 45_000),
            2 => (OperationKind::AllGather, 1 << 16, 90_000),
            _ => (OperationKind::Broadcast, 100, 50_000),
        };
        let mut call = operation(kind, index, count, start + late, start + time);
        if rank >= 2 && index % 4 == 0 {
            let (start, end) = (call.start + 5_000, call.end);
            call.network = Some(Network { start, end, sent: 1 << 20, ..Network::default() });
        }
        found.push(Record::Operation(call));
    }
    if rank == 3 {
        let start = START + 41_000_000 - behind;
        let send =
            |n: u64| operation(OperationKind::Send, n, 1000, start + n * 100, start + 20_000);
        found.extend((0..3).map(|n| Record::Operation(send(n))));
    }
    found
}

fn encode(records: &[Record]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let mut block = BlockEncoder::default();
    for (number, record) in records.iter().enumerate() {
        block.push(record);
        if number % 16 == 15 {
            bytes.extend(block.take_block());
        }
    }
    if !block.is_empty() {
        bytes.extend(block.take_block());
    }
    bytes
}

fn write(folder: &TempDir, records: &[Record], end: bool) -> String {
    let Some(Record::Process(process)) = records.first() else { panic!("no process") };
    let records = if end { [records, &[Record::End]].concat() } else { records.to_vec() };
    let name = format!("run/comms/{}.events", file_stem(process));
    std::fs::create_dir_all(folder.join("run/comms")).unwrap();
    std::fs::write(folder.join(&name), encode(&records)).unwrap();
    name
}

/// A run folder with the event files of four ranks on two nodes.
fn job() -> TempDir {
    let folder = TempDir::new();
    for rank in 0..4 {
        write(&folder, &records(rank, 0), true);
    }
    folder
}

#[test]
fn the_report_has_sizes_communicators_and_late_ranks() {
    let folder = job();
    let report = run_in(&folder, "comms run").ok();
    golden("comms.txt", &report);
    assert_eq!(run_in(&folder, "comms run/comms").ok(), report);
    let one = run_in(&folder, "comms run --ranks 1").assert_ok("... and 3 more");
    assert!(one.len() < report.len());
}

#[test]
fn json_has_every_row_and_csv_the_histogram() {
    let folder = job();
    let json: Value = run_in(&folder, "comms run --json").json();
    assert_eq!(json["format"], "regatta-comms/1");
    let rows = json["histogram"].as_array().unwrap();
    let large = rows.iter().find(|row| row["size_bytes"] == 2 << 20).unwrap();
    assert_eq!((large["calls"].as_u64(), large["collectives"].as_u64()), (Some(40), Some(10)));
    // The last rank waits 0 µs for others: 2 MiB in 160 µs, times 2 · 3 / 4.
    let transfer = large["transfer"]["busbw_gb_s"].as_f64().unwrap();
    assert!((transfer - 1.5 * (2 << 20) as f64 / 160e3).abs() < 1e-9, "{transfer}");
    let first = &json["ranks"][0];
    assert_eq!((first["rank"].as_u64(), first["host"].as_str()), (Some(3), Some("node1")));
    // The first of the collectives is left out; broadcasts do not wait for all ranks.
    assert_eq!(first["matched"], 29);
    assert_eq!(json["warnings"].as_array().unwrap().len(), 0);

    let csv = run_in(&folder, "comms run --csv").ok();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + rows.len());
    assert!(lines[0].starts_with("operation,ranks,size_bytes,"));
    assert!(lines[1].starts_with("all-reduce,4,1024,false,1024,40,10,40960,"), "{}", lines[1]);
    let width = lines[0].split(',').count();
    assert!(lines.iter().all(|line| line.split(',').count() == width));
    run_in(&folder, "comms run --csv --json").assert_usage_error("cannot be used with");
}

#[test]
fn traces_have_all_ranks_on_one_time_line() {
    let folder = job();
    let output = run_in(&folder, "comms run --trace trace.json").assert_code(0);
    assert!(output.err.contains("trace: trace.json: 183 events"), "{}", output.err);
    let trace: Value = serde_json::from_str(&folder.read("trace.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let starts: Vec<f64> = events
        .iter()
        .filter(|event| event["ph"] == "X" && event["cat"] == "communication")
        .filter(|event| event["args"]["index"] == 4 && event["name"] == "all-reduce")
        .map(|event| event["ts"].as_f64().unwrap())
        .collect();
    assert_eq!(starts.len(), 4);
    // Within the uncertainty of the clocks, which were 90 s apart.
    assert!(starts.iter().all(|start| (start - 4000.0).abs() < 100.0), "{starts:?}");
    let names: Vec<&str> =
        events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    assert!(names.contains(&"rank 3 (node1)") && names.contains(&"0x1234 (4 ranks), network"));
    // Messages overlap: each is on a thread of its own.
    let sends = events.iter().filter(|event| event["name"] == "send");
    let tids: std::collections::BTreeSet<u64> = sends.map(|e| e["tid"].as_u64().unwrap()).collect();
    assert_eq!(tids.len(), 3);

    let part = run_in(&folder, "comms run --trace - --from 0.005 --to 0.0055").ok();
    let part: Value = serde_json::from_str(&part).unwrap();
    let slices = part["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X");
    assert_eq!(slices.count(), 4);
}

#[test]
fn plots_are_self_contained() {
    let folder = job();
    run_in(&folder, "comms run --plot sizes.svg").assert_code(0);
    let svg = folder.read("sizes.svg");
    let document = roxmltree::Document::parse(&svg).unwrap();
    let bars = document
        .descendants()
        .filter(|node| node.attribute("class").is_some_and(|class| class.starts_with('b')));
    assert_eq!(bars.count(), 3 * 5);
    run_in(&folder, "comms run --plot sizes.html").assert_code(0);
    assert!(folder.read("sizes.html").contains("<title>2 MiB: 40</title>"));
    run_in(&folder, "comms run --plot sizes.png").assert_error("must be .svg or .html");
}

#[test]
fn damaged_and_open_files_are_read_up_to_their_end() {
    let folder = job();
    let name = write(&folder, &records(1, 0), true);
    let mut bytes = std::fs::read(folder.join(&name)).unwrap();
    let length = bytes.len();
    bytes[length - 10] ^= 1;
    std::fs::write(folder.join(&name), bytes).unwrap();
    let mut lossy = records(2, 0);
    lossy.push(Record::Lost(Lost { events: 7, operations: 0, unfinished: 0 }));
    write(&folder, &lossy, false);
    let report = run_in(&folder, "comms run").ok();
    let stated = report.replace('\n', " ");
    assert!(
        stated.contains("comms/rank-00001-node0-1001-nccl.events is damaged at byte"),
        "{report}"
    );
    assert!(stated.contains("wrong checksum") && stated.contains("operations before are included"));
    assert!(stated.contains("the files of rank 2 have no end"), "{report}");
    assert!(stated.contains("rank 2 lost 7 raw events"), "{report}");
    let json: Value = run_in(&folder, "comms run --json").json();
    let ends: Vec<&str> =
        json["files"].as_array().unwrap().iter().map(|f| f["end"].as_str().unwrap()).collect();
    assert_eq!(ends, ["complete", "damaged", "open", "complete"]);
    let csv = run_in(&folder, "comms run --csv").assert_code(0);
    assert!(csv.err.contains("wrong checksum"), "{}", csv.err);
}

#[test]
fn the_last_attempt_is_reported() {
    let folder = job();
    for rank in 0..4 {
        write(&folder, &records(rank, 1)[..13], true);
    }
    let report = run_in(&folder, "comms run").ok();
    assert!(report.contains(": 40 calls"), "{report}");
    assert!(report.contains("event files of attempts 0-1; this is attempt 1"), "{report}");
    run_in(&folder, "comms run --attempt 0").assert_ok(": 163 calls");
    run_in(&folder, "comms run --attempt all").assert_ok([": 203 calls", "3 (attempt 1)"]);
    run_in(&folder, "comms run --attempt 2").assert_error("the event files are of attempt 0, 1");
    run_in(&folder, "comms run --attempt x").assert_usage_error("expected a number");
}

#[test]
fn files_of_several_runs_are_noted() {
    let folder = job();
    let mut again = records(2, 0);
    let Some(Record::Process(process)) = again.first_mut() else { panic!() };
    process.pid += 1;
    write(&folder, &again, true);
    let json: Value = run_in(&folder, "comms run --json").json();
    let codes: Vec<_> = json["warnings"].as_array().unwrap().iter().map(|w| &w["code"]).collect();
    assert!(codes.contains(&&Value::from("repeated")), "{codes:?}");
    run_in(&folder, "comms run").assert_ok("rank 2 has several files");
    run_in(&folder, "comms run --trace t.json --from 2 --to 1").assert_error("is not before --to");
}

#[test]
fn many_sizes_are_combined_and_unfinished_operations_listed() {
    let folder = TempDir::new();
    let mut records = records(0, 0)[..3].to_vec();
    let call =
        |n: u64| operation(OperationKind::Reduce, n, 500 + n, START + n * 10, START + n * 10 + 5);
    records.extend((0..70).map(|n| Record::Operation(call(n))));
    let hung = Operation { timing: Timing::None, completed: false, start: 0, end: 0, ..call(70) };
    records.push(Record::Operation(hung));
    write(&folder, &records, true);
    let report = run_in(&folder, "comms run").ok();
    // 1,000 to 1,138 bytes.
    for part in ["  512 B+ ", "  1 KiB+ ", "reduce: more than 64 sizes", "without an end"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(report.contains("0  node0  0x1234        reduce        70  1140 B"), "{report}");
    let json: Value = run_in(&folder, "comms run --json").json();
    let calls: Vec<u64> = json["histogram"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["calls"].as_u64().unwrap())
        .collect();
    assert_eq!(calls, [12, 59]);
    assert_eq!(json["in_flight"][0]["index"], 70);
}

#[test]
fn folders_without_event_files_are_errors_with_a_fix() {
    let folder = TempDir::new();
    std::fs::create_dir_all(folder.join("run/comms")).unwrap();
    let parts = ["run/comms has no files *.events", "NCCL_PROFILER_PLUGIN", "REGATTA_PROFILE"];
    run_in(&folder, "comms run").assert_error(parts);
    run_in(&folder, "comms missing").assert_error("cannot read missing");
    folder.write("job.out", "step 1\n");
    let output = run_in(&folder, "comms job.out").assert_code(1);
    assert!(
        output.out.contains("job.out is damaged at byte 0: not an event file"),
        "{}",
        output.out
    );
    assert!(output.out.contains("no operations"), "{}", output.out);
}

#[test]
fn status_shows_the_collective_in_flight() {
    let folder = TempDir::new();
    std::fs::create_dir_all(folder.join("run/comms")).unwrap();
    let current = CurrentOperation {
        index: 7,
        kind: OperationKind::AllReduce,
        dtype: DataType::F32,
        peer: None,
        count: 2,
        bytes: 8,
        enqueued: 5 * SECOND,
        started: true,
    };
    let communicator = CommunicatorStatus {
        communicator: world(3),
        enqueued: 9,
        started: 8,
        completed: 7,
        messages: 0,
        messages_completed: 0,
        current: Some(current),
        message: None,
    };
    let status = Status {
        process: (&process(3, 0)).into(),
        host_time: 6 * SECOND,
        realtime: 0,
        ended: false,
        lost: 0,
        communicators: vec![communicator],
    };
    std::fs::write(folder.join("run/comms/rank-3.status"), encode_slot(&status, 0)).unwrap();
    folder.write("run/comms/rank-4.status", "damaged");
    let parts =
        ["node1", "0x1234", "3/4", "all-reduce #7 running", "1 file without a complete status"];
    run_in(&folder, "comms run --status").assert_ok(parts);
    let json: Value = run_in(&folder, "comms run --status --json").json();
    assert_eq!(json["rows"][0]["completed"], 7);
    assert_eq!(json["rows"][0]["current"]["index"], 7);
}

/// Records three all-reduces as the plug-in does: the GPU's clock is an hour ahead.
fn record(folder: &TempDir, rank: u32, first: u64, late: u64) {
    const AHEAD: u64 = 3600 * SECOND;
    let process = Process { world_size: Some(2), ..process(rank, 0) };
    let process = Process { host: "node0".to_owned(), boot_id: "boot".to_owned(), ..process };
    let recorder = Recorder::start(Settings::new(folder.join("run/comms"), process)).unwrap();
    let communicator = recorder.next_communicator();
    let name = fixed_name(b"world");
    let open = OpenCommunicator { communicator, id: 9, ranks: 2, nodes: 1, rank, name };
    recorder.push(RawEvent::Open(open));
    for index in 0..3 {
        let operation = recorder.next_operation();
        let enqueued = first + index * 1_000_000;
        recorder.push(RawEvent::Enqueue(Enqueue {
            operation,
            communicator,
            time: enqueued,
            sequence: index,
            kind: OperationKind::AllReduce,
            dtype: DataType::F32,
            algorithm: Algorithm::Other(recorder.name("NEW_ALGORITHM")),
            protocol: Protocol::Ll,
            channels: 1,
            peer: -1,
            count: 1000,
            bytes: 0,
            captured: false,
        }));
        let (start, end) = (enqueued + 10_000 + late, enqueued + 100_000);
        recorder.push(RawEvent::Start { operation, time: start, device_time: start + AHEAD });
        recorder.push(RawEvent::End { operation, time: end + 500, device_time: end + AHEAD });
    }
    assert!(recorder.stop(std::time::Duration::from_secs(60)));
}

#[test]
fn files_of_the_recorder_are_read() {
    let folder = TempDir::new();
    let first = host_now() + SECOND;
    record(&folder, 0, first, 0);
    record(&folder, 1, first, 20_000);
    let json: Value = run_in(&folder, "comms run --json").json();
    assert_eq!(json["warnings"].as_array().unwrap().len(), 0, "{}", json["warnings"]);
    let row = &json["histogram"][0];
    assert_eq!((row["size_bytes"].as_u64(), row["collectives"].as_u64()), (Some(4000), Some(3)));
    assert_eq!(
        (row["mean_us"].as_f64(), row["transfer"]["mean_us"].as_f64()),
        (Some(80.0), Some(70.0))
    );
    assert_eq!(row["variants"][0]["algorithm"], "NEW_ALGORITHM");
    let late = &json["ranks"][0];
    assert_eq!((late["rank"].as_u64(), late["last"].as_u64()), (Some(1), Some(2)));
    assert_eq!(late["mean_delay_us"].as_f64(), Some(20.0));
    run_in(&folder, "comms run --status").assert_ok(["world", "ended"]);
}

#[test]
fn bus_factors_are_those_of_the_benchmarks() {
    let benchmark = |kind: OperationKind, ranks: u32| {
        let name = match kind.known_name().unwrap() {
            "send" | "receive" => "send-recv",
            name => name,
        };
        bus_bandwidth::bus_factor(&name.to_owned().into(), ranks)
    };
    for &kind in OperationKind::ALL {
        for ranks in [1, 2, 8, 1000] {
            assert_eq!(bus_factor(kind, ranks), benchmark(kind, ranks), "{kind:?}, {ranks} ranks");
        }
    }
}
