use regatta_events::operation::{Network, OperationKind, Timing};
use serde_json::Value;

use super::*;
use crate::analyse::comms::testing::{all_reduce, file, process, world};
use crate::analyse::comms::{Analysis, Attempts};

/// The events of a trace of these files; each record is taken on its own, as a writer might.
fn trace(files: &[(u32, &str, Vec<Operation>)], range: TimeRange) -> Vec<Value> {
    let records = |(rank, _, operations): &(u32, &str, Vec<Operation>)| {
        let mut records = vec![Record::Communicator(world(*rank, 2))];
        records.extend(operations.iter().copied().map(Record::Operation));
        records
    };
    let mut analysis = Analysis::default();
    for one in files {
        analysis.add(file(process(one.0, one.1), records(one)));
    }
    let selected = analysis.select(Attempts::Last);
    let mut out = TraceText::new();
    let mut text = out.take();
    for (position, track) in tracks(&selected).into_iter().enumerate() {
        let origin = selected.origin().unwrap();
        let mut writer = FileTrace::new(&selected, position, track, origin, range);
        writer.begin(&mut out);
        for record in records(&files[position]) {
            writer.add(&record, &mut out);
            text += &out.take();
        }
    }
    out.finish();
    text += &out.take();
    let json: Value = serde_json::from_str(&text).unwrap();
    json["traceEvents"].as_array().unwrap().clone()
}

fn slices(events: &[Value]) -> Vec<&Value> {
    events.iter().filter(|event| event["ph"] == "X").collect()
}

#[test]
fn ranks_are_processes_and_times_count_from_the_first_event() {
    let files = [
        (0, "a", vec![all_reduce(0, 4000, 5_000, 7_000)]),
        (1, "a\"\n", vec![all_reduce(0, 4000, 6_500, 7_000)]),
    ];
    // Both have the same clock only by name: hosts differ, so the boot does, too.
    let events = trace(&files, TimeRange::ALL);
    let names: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["rank 0 (a)", "rank 1 (a\"\n)"]);
    let thread = events.iter().find(|event| event["name"] == "thread_name").unwrap();
    assert_eq!(thread["args"]["name"], "world (2 ranks)");
    let found = slices(&events);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0]["ts"].as_f64(), found[0]["dur"].as_f64()), (Some(0.0), Some(2.0)));
    assert_eq!((found[1]["ts"].as_f64(), found[1]["pid"].as_u64()), (Some(1.5), Some(1)));
    assert_eq!(found[0]["args"]["busbw_gb_s"].as_f64(), Some(2.0));
    assert_eq!(found[0]["args"]["algo"], "ring");
}

#[test]
fn overlapping_operations_are_on_several_threads() {
    let mut send = all_reduce(0, 8, 1_000, 3_000);
    send.kind = OperationKind::Send;
    send.network = Some(Network { start: 1_200, end: 2_000, ..Network::default() });
    let mut later = send;
    (later.start, later.end, later.network) = (2_000, 4_000, None);
    let mut last = send;
    (last.start, last.end, last.network) = (3_000, 5_000, None);
    let mut hung = send;
    (hung.timing, hung.enqueued, hung.network) = (Timing::None, 4_500, None);
    hung.completed = false;
    let events = trace(&[(0, "a", vec![send, later, last, hung])], TimeRange::ALL);
    let tids: Vec<u64> = slices(&events).iter().map(|e| e["tid"].as_u64().unwrap()).collect();
    assert_eq!(tids, [1, 33, 2, 1, 2]);
    let names: Vec<&str> = slices(&events).iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["send", "network of send", "send", "send", "send (no end)"]);
    assert_eq!(slices(&events)[4]["dur"].as_f64(), Some(0.5));
}

#[test]
fn operations_outside_of_the_range_are_left_out() {
    let calls = (0..10).map(|n| all_reduce(n, 8, n * 1000, n * 1000 + 500)).collect();
    let events = trace(&[(0, "a", calls)], TimeRange { from: 3_000, to: 5_000 });
    assert_eq!(slices(&events).len(), 3);
}

#[test]
fn processes_with_the_same_rank_have_their_own_number() {
    let mut analysis = Analysis::default();
    for pid in [7, 8] {
        let process = regatta_events::operation::Process { pid, ..process(0, "a") };
        analysis.add(file(process, vec![Record::Communicator(world(0, 2))]));
    }
    assert_eq!(tracks(&analysis.select(Attempts::Last)), [(0, 0), (1, 0)]);
}
