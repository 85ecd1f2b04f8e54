//! The envelope of what is appended to a run folder: one line of JSON per record, the same in all files.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::RunEvent;

/// Version of the records, in the field `v` of each: a file may have lines of several versions, because
/// runs are resumed. Version 1 had neither `v` nor a common `time`, and metrics had no `event`.
pub const VERSION: u32 = 2;

/// A record of `events.jsonl` or `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Seconds since the Unix epoch, by the clock of the host that wrote it. Aligns ranks, files and
    /// attempts. None in `events.jsonl` of version 1.
    pub time: Option<f64>,
    /// Seconds since the start of the attempt, by a clock that never jumps: in `events.jsonl` only.
    pub seconds: Option<f64>,
    /// The rank that it is about; None: the whole job.
    pub rank: Option<u32>,
    /// What happened.
    pub event: RunEvent,
}

/// A line is not a record.
#[derive(Debug, thiserror::Error)]
#[error("not a record of a run: {0}")]
pub struct RecordError(#[from] serde_json::Error);

/// A line, in the order of its fields.
#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    #[serde(flatten)]
    event: &'a RunEvent,
}

impl Record {
    /// A record of the training metrics, as rank 0 writes it.
    pub fn of_metrics(time: f64, event: RunEvent) -> Self {
        Self { time: Some(time), seconds: None, rank: Some(0), event }
    }

    /// The line, with its line break.
    pub fn to_line(&self) -> Result<String, serde_json::Error> {
        // The time of a step is one of its metrics.
        let time = self.time.filter(|_| !matches!(self.event, RunEvent::Step(_)));
        let Self { seconds, rank, ref event, .. } = *self;
        Ok(serde_json::to_string(&Line { v: VERSION, time, seconds, rank, event })? + "\n")
    }

    /// Parses a line of this version or an earlier one. A record of a later version, or one that is not
    /// known, is [`RunEvent::Other`].
    pub fn parse(line: &[u8]) -> Result<Self, RecordError> {
        let mut fields: Map<String, Value> = serde_json::from_slice(line)?;
        let number = |name: &str| fields.get(name).and_then(Value::as_f64);
        let (time, seconds) = (number("time"), number("seconds"));
        let rank = fields.get("rank").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        let version = fields.get("v").and_then(Value::as_u64).unwrap_or(1);
        if version == 1 && !fields.contains_key("event") {
            let kind = if fields.contains_key("loss") { "step" } else { "validation" };
            fields.insert("event".to_owned(), kind.into());
        }
        let event = match version <= u64::from(VERSION) {
            true => RunEvent::deserialize(Value::Object(fields))?,
            false => RunEvent::Other(fields),
        };
        Ok(Self { time, seconds, rank, event: without_envelope(event) })
    }
}

/// The envelope is not part of an unknown event.
fn without_envelope(event: RunEvent) -> RunEvent {
    let RunEvent::Other(mut fields) = event else { return event };
    ["v", "time", "seconds", "rank"].iter().for_each(|name| drop(fields.remove(*name)));
    RunEvent::Other(fields)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::result::RankExit;
    use crate::run_folder::{RunKind, StepMetrics};
    use crate::train_event::Event;
    use crate::{BenchRow, BenchTable};

    fn events() -> impl Strategy<Value = RunEvent> {
        let text = || ".*".prop_map(|text: String| text);
        prop_oneof![
            (any::<u32>(), prop::collection::vec(text(), 0..3)).prop_map(|(attempt, command)| {
                RunEvent::Launched { attempt, command, kind: Some(RunKind::Bench) }
            }),
            any::<u32>().prop_map(|pid| RunEvent::Started { pid }),
            any::<i32>().prop_map(|code| RunEvent::Exited { exit: RankExit::Exit(code) }),
            Just(RunEvent::Exited { exit: RankExit::NodeLost }),
            any::<u32>().prop_map(|peer| RunEvent::LostPeer { peer }),
            any::<i32>().prop_map(|signal| RunEvent::SignalReceived { signal }),
            Just(RunEvent::Killed),
            prop::collection::vec(any::<u32>(), 0..3)
                .prop_map(|ranks| RunEvent::NodeLost { ranks }),
            text().prop_map(|text| RunEvent::Warning { text }),
            (any::<u64>(), 0.0..1e3)
                .prop_map(|(step, val_loss)| RunEvent::Validation { step, val_loss }),
            Just(RunEvent::Training { training: Event::Start(Box::default()) }),
            (any::<u64>(), text(), 0.0..1e3).prop_map(|(step, dir, seconds)| {
                RunEvent::Training { training: Event::Checkpoint { step, dir, seconds } }
            }),
            Just(RunEvent::Training { training: Event::End(Box::default()) }),
            Just(RunEvent::BenchTable { table: BenchTable::default() }),
            any::<u64>().prop_map(|size_bytes| {
                RunEvent::BenchRow { row: Box::new(BenchRow { size_bytes, ..Default::default() }) }
            }),
        ]
    }

    proptest! {
        #[test]
        fn records_round_trip_in_one_line(
            event in events(),
            time in proptest::option::of(0.0..1e10),
            seconds in proptest::option::of(0.0..1e6),
            rank in any::<Option<u32>>(),
        ) {
            let record = Record { time, seconds, rank, event };
            let line = record.to_line().unwrap();
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert_eq!(Record::parse(line.as_bytes()).unwrap(), record);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(line in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Record::parse(&line);
        }
    }

    #[test]
    fn steps_round_trip_with_their_time_once() {
        let step = StepMetrics { step: 3, loss: 2.5, time: 1e9, ..Default::default() };
        let record = Record::of_metrics(1e9, RunEvent::Step(Box::new(step)));
        let line = record.to_line().unwrap();
        assert!(line.starts_with(r#"{"v":2,"rank":0,"event":"step","step":3,"#), "{line}");
        assert_eq!(line.matches("\"time\"").count(), 1, "{line}");
        assert_eq!(Record::parse(line.as_bytes()).unwrap(), record);
    }

    #[test]
    fn unknown_kinds_and_later_versions_are_preserved() {
        for line in [
            "{\"v\":2,\"time\":1.0,\"event\":\"teleported\",\"where\":[1]}\n",
            "{\"v\":3,\"time\":1.0,\"rank\":1,\"event\":\"started\",\"pid\":\"x\"}\n",
        ] {
            let record = Record::parse(line.as_bytes()).unwrap();
            assert_eq!(record.time, Some(1.0));
            let RunEvent::Other(fields) = &record.event else { panic!("{record:?}") };
            assert_eq!(fields.len(), 2, "{fields:?}");
            let again = Record::parse(record.to_line().unwrap().as_bytes()).unwrap();
            assert_eq!(again, record);
        }
    }

    #[test]
    fn lines_that_are_not_objects_are_refused() {
        for line in ["", "\n", "3", "[1]", "{\"event\":\"kil", "\u{0}"] {
            let error = Record::parse(line.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("not a record of a run: "), "{error}");
        }
    }
}
