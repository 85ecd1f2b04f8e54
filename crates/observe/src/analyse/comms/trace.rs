//! The events of all ranks as a Chrome trace, which Perfetto and chrome://tracing show.
//!
//! A process of the trace is a rank, a thread is a communicator. Operations of a communicator that
//! overlap, such as messages, are on several threads, because slices of a thread must be nested. The text
//! is built piece by piece, so that a trace needs no memory.

#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use regatta_events::file::Record;
use regatta_events::operation::{Communicator, Network, Operation};

use super::analysis::Selected;
use super::bandwidth::{bus_factor, gigabytes_per_second};
use super::clocks::{Alignment, HostClock, nanoseconds};
use super::collector::FileSummary;
use super::names::FileNames;
pub use text::TraceText;
use text::{Micros, Slice};

/// Threads for overlapping operations of a communicator, and for its network transfers. Beyond, slices
/// overlap.
const LANES: usize = 32;
/// Thread numbers per communicator.
const TIDS: u64 = 2 * LANES as u64;

/// The part of the time line that is written, in nanoseconds from the first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    /// Operations that end before are left out.
    pub from: i64,
    /// Operations that start later are left out.
    pub to: i64,
}

impl TimeRange {
    /// Everything.
    pub const ALL: Self = Self { from: i64::MIN, to: i64::MAX };
}

/// Process number and first thread number of each file: ranks have their own number, unless several
/// processes have the same rank.
pub fn tracks(selected: &Selected<'_>) -> Vec<(u64, u64)> {
    let mut used: BTreeSet<u64> =
        selected.files.iter().filter_map(|file| file.rank()).map(u64::from).collect();
    let mut known: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    let mut taken: BTreeSet<u64> = BTreeSet::new();
    let mut track = |file: &&FileSummary| {
        let pid = file.process.as_ref().map(|process| process.pid);
        let key = (file.restart(), file.rank(), file.host().to_owned(), pid);
        let next = known.entry(key).or_insert_with(|| {
            let rank = file.rank().map(u64::from).filter(|rank| taken.insert(*rank));
            let number = rank.unwrap_or_else(|| used.last().map_or(0, |last| last + 1));
            used.insert(number);
            (number, 0)
        });
        let track = *next;
        next.1 += TIDS * (file.communicators.len() as u64 + 1);
        track
    };
    selected.files.iter().map(&mut track).collect()
}

/// Writes the events of one file.
#[derive(Debug)]
pub struct FileTrace<'a> {
    file: &'a FileSummary,
    names: FileNames,
    alignment: Alignment,
    origin: i64,
    range: TimeRange,
    pid: u64,
    first_tid: u64,
    clock: HostClock,
    /// Position of each communicator, and the ends of the lanes of its operations and transfers.
    lanes: HashMap<u32, (usize, [Vec<i64>; 2])>,
}

impl<'a> FileTrace<'a> {
    /// A trace of the file at a position of the selected files. Times count from `origin`.
    pub fn new(
        selected: &Selected<'a>,
        position: usize,
        (pid, first_tid): (u64, u64),
        origin: i64,
        range: TimeRange,
    ) -> Self {
        let file = selected.files[position];
        let indices = file.communicators.iter().map(|(communicator, _)| communicator.index);
        let lanes =
            indices.enumerate().map(|(position, index)| (index, (position, Default::default())));
        Self {
            file,
            names: FileNames::new(&file.names),
            alignment: selected.alignments[selected.clocks[position]],
            origin,
            range,
            pid,
            first_tid,
            clock: HostClock::default(),
            lanes: lanes.collect(),
        }
    }

    /// Writes the name of the process.
    pub fn begin(&self, out: &mut TraceText) {
        let rank = self.file.rank().map_or_else(|| "?".to_owned(), |rank| rank.to_string());
        let attempt = match self.file.restart() {
            0 => String::new(),
            restart => format!(", restart {restart}"),
        };
        let name = format!("rank {rank} ({}{attempt})", self.file.host());
        out.name("process", (self.pid, 0), &name, self.pid);
    }

    /// Writes a record, in the order of the file.
    pub fn add(&mut self, record: &Record, out: &mut TraceText) {
        match record {
            Record::Clock(sync) => self.clock.update(sync),
            Record::Operation(operation) => self.operation(operation, out),
            _ => {}
        }
    }

    fn operation(&mut self, operation: &Operation, out: &mut TraceText) {
        // In flight until the end of the file, unless nothing reported its duration.
        let untimed = || {
            let start = nanoseconds(operation.enqueued);
            let last = self.file.span.filter(|_| !operation.completed);
            (start, last.map_or(start, |(_, last)| last.max(start)))
        };
        let measured = self.clock.span(operation);
        let (start, end) = measured.unwrap_or_else(untimed);
        let slice = self.slice(false, start, end);
        if slice.end < self.range.from || slice.start > self.range.to {
            return;
        }
        let name = self.kind(operation).to_owned();
        let name = if operation.completed { name } else { format!("{name} (no end)") };
        let tid = self.tid(operation.communicator, slice, out);
        out.begin_slice(self.pid, tid, slice, &name);
        self.write_args(operation, slice, start, measured.is_some(), out);
        if let Some(network) = operation.network {
            self.network(operation, &network, out);
        }
    }

    fn network(&mut self, operation: &Operation, network: &Network, out: &mut TraceText) {
        let slice = self.slice(true, nanoseconds(network.start), nanoseconds(network.end));
        let name = format!("network of {}", self.kind(operation));
        let tid = self.tid(operation.communicator, slice, out);
        out.begin_slice(self.pid, tid, slice, &name);
        let _ = write!(
            out.text,
            "{{\"index\":{},\"sent\":{},\"send_wait_us\":{},\"receive_wait_us\":{}}}}}",
            operation.index,
            network.sent,
            Micros(nanoseconds(network.send_wait)),
            Micros(nanoseconds(network.receive_wait)),
        );
    }

    fn kind(&self, operation: &Operation) -> &str {
        self.names.name(operation.kind.code(), operation.kind.known_name())
    }

    /// A slice on the time line.
    fn slice(&self, network: bool, start: i64, end: i64) -> Slice {
        let time = |time: i64| self.alignment.convert(time).saturating_sub(self.origin);
        Slice { network, start: time(start), end: time(end) }
    }

    /// The thread of a slice: the first one that is free at its start.
    fn tid(&mut self, communicator: u32, slice: Slice, out: &mut TraceText) -> u64 {
        let unknown = self.file.communicators.len();
        let entry = self.lanes.entry(communicator).or_insert((unknown, Default::default()));
        let position = entry.0;
        let lanes = &mut entry.1[usize::from(slice.network)];
        let free = lanes.iter().position(|end| *end <= slice.start);
        let lane = free.unwrap_or(lanes.len()).min(LANES - 1);
        let is_new = lane == lanes.len();
        match lanes.get_mut(lane) {
            Some(end) => *end = (*end).max(slice.end),
            None => lanes.push(slice.end),
        }
        let offset = if slice.network { LANES } else { 0 } + lane;
        let tid = self.first_tid + position as u64 * TIDS + offset as u64 + 1;
        if is_new {
            let found = self.file.communicators.get(position).map(|(communicator, _)| communicator);
            let name = thread_name(found, slice.network, lane);
            out.name("thread", (self.pid, tid), &name, tid);
        }
        tid
    }

    fn write_args(
        &self,
        operation: &Operation,
        slice: Slice,
        start: i64,
        measured: bool,
        out: &mut TraceText,
    ) {
        let Operation { dtype, algorithm, protocol, .. } = *operation;
        let text = &mut out.text;
        let _ = write!(
            text,
            "{{\"bytes\":{},\"count\":{},\"dtype\":\"{}\",\"index\":{},\"seq\":{}",
            operation.bytes,
            operation.count,
            self.names.name(dtype.code(), dtype.known_name()),
            operation.index,
            operation.sequence,
        );
        for (key, value) in [
            ("algo", self.names.name(algorithm.code(), algorithm.known_name())),
            ("proto", self.names.name(protocol.code(), protocol.known_name())),
        ] {
            if !value.is_empty() {
                let _ = write!(text, ",\"{key}\":\"{value}\"");
            }
        }
        if operation.channels > 0 {
            let _ = write!(text, ",\"channels\":{}", operation.channels);
        }
        if let Some(peer) = operation.peer {
            let key = if operation.kind.is_p2p() { "peer" } else { "root" };
            let _ = write!(text, ",\"{key}\":{peer}");
        }
        let queued = start.saturating_sub(nanoseconds(operation.enqueued));
        if measured && queued >= 0 {
            let _ = write!(text, ",\"queued_us\":{}", Micros(queued));
        }
        let duration = slice.end.saturating_sub(slice.start).max(0) as u64;
        let factor = measured.then(|| self.bus_factor(operation)).flatten();
        if let Some((algbw, factor)) = gigabytes_per_second(operation.bytes, duration).zip(factor) {
            let _ = write!(text, ",\"busbw_gb_s\":{:.3}", algbw * factor);
        }
        text.push_str("}}");
    }

    fn bus_factor(&self, operation: &Operation) -> Option<f64> {
        let (position, _) = self.lanes.get(&operation.communicator)?;
        let ranks = self.file.communicators.get(*position).map_or(0, |(c, _)| c.ranks);
        bus_factor(operation.kind, ranks)
    }
}

fn thread_name(communicator: Option<&Communicator>, network: bool, lane: usize) -> String {
    let mut name = match communicator {
        Some(communicator) => format!("{} ({} ranks)", communicator.label(), communicator.ranks),
        None => "unknown".to_owned(),
    };
    if network {
        name += ", network";
    }
    if lane > 0 {
        let _ = write!(name, " #{}", lane + 1);
    }
    name
}
