//! Reads the records of one event file into totals whose size does not depend on the number of events.

use std::collections::{BTreeMap, HashMap};
use std::io;

use regatta_events::file::{Lost, ReadEnd, Record};
use regatta_events::operation::{Communicator, Name, Operation, OperationKind, Process};

use super::bandwidth::is_synchronizing;
use super::clocks::{HostClock, nanoseconds};
use super::histogram::{Histogram, Totals};

/// Most unfinished operations that are kept per file: the last ones.
const MAX_IN_FLIGHT: usize = 4;

/// How an event file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileEnd {
    /// As its contents say.
    Read(ReadEnd),
    /// It cannot be read, or not to its end, for this reason.
    Unreadable(String),
}

impl Default for FileEnd {
    fn default() -> Self {
        Self::Read(ReadEnd::Open)
    }
}

/// When a rank took part in a collective that synchronises its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Position of the communicator in [`FileSummary::communicators`].
    pub communicator: u32,
    /// The kind.
    pub kind: OperationKind,
    /// Number of the collective.
    pub index: u64,
    /// Message size.
    pub bytes: u64,
    /// Start, on the host clock.
    pub start: i64,
    /// Duration in nanoseconds.
    pub duration: u64,
}

/// What is known from a file.
#[derive(Debug, Clone, Default)]
pub struct FileSummary {
    /// Its name.
    pub name: String,
    /// The process that wrote it; `None` if it is damaged at its start.
    pub process: Option<Process>,
    /// How it ended.
    pub end: FileEnd,
    /// Events that were lost.
    pub lost: Lost,
    /// Names that the file defines.
    pub names: BTreeMap<Name, String>,
    /// Communicators with their operations.
    pub communicators: Vec<(Communicator, Totals)>,
    /// Operations by kind and size.
    pub histogram: Histogram,
    /// All operations.
    pub totals: Totals,
    /// Time in which at least one operation ran, in nanoseconds.
    pub busy_ns: u64,
    /// Time in which network transfers waited, of all channels together: sends, receives.
    pub network_wait_ns: [u64; 2],
    /// First start or enqueue, and last end, on the host clock.
    pub span: Option<(i64, i64)>,
    /// Operations whose end was not recorded.
    pub unfinished: u64,
    /// The last of them.
    pub in_flight: Vec<Operation>,
    /// Operations captured into CUDA graphs.
    pub captured: u64,
    /// Synchronising collectives whose number is a multiple of `stride`, apart from the first of each
    /// communicator, which waits for connections.
    pub arrivals: Vec<Arrival>,
    /// A power of two.
    pub stride: u64,
    /// How far `CLOCK_REALTIME` is ahead of the host clock.
    pub realtime_ahead: Option<i64>,
}

impl FileSummary {
    /// Rank of the job: that of the process, else its rank in its largest communicator.
    pub fn rank(&self) -> Option<u32> {
        let largest = self.communicators.iter().map(|(communicator, _)| communicator);
        let largest = largest.filter(|communicator| communicator.ranks > 0);
        let guess = || largest.max_by_key(|c| c.ranks).map(|communicator| communicator.rank);
        self.process.as_ref().and_then(|process| process.rank).or_else(guess)
    }

    /// How many times the job had been restarted.
    pub fn restart(&self) -> u32 {
        self.process.as_ref().map_or(0, |process| process.restart)
    }

    /// Name of its host, or empty.
    pub fn host(&self) -> &str {
        self.process.as_ref().map_or("", |process| &process.host)
    }
}

/// Collects the records of a file.
#[derive(Debug)]
pub struct Collector {
    summary: FileSummary,
    /// Most arrivals to keep.
    max_arrivals: usize,
    positions: HashMap<u32, usize>,
    /// The communicator of the operation before, and its position.
    last: Option<(u32, usize)>,
    clock: HostClock,
    /// End of the last operation that counts as busy.
    busy_until: i64,
}

impl Collector {
    /// A collector for a file with this name that keeps at most `max_arrivals` arrivals.
    pub fn new(name: String, max_arrivals: usize) -> Self {
        Self {
            summary: FileSummary { name, stride: 1, ..FileSummary::default() },
            max_arrivals: max_arrivals.max(1),
            positions: HashMap::new(),
            last: None,
            clock: HostClock::default(),
            busy_until: i64::MIN,
        }
    }

    /// Adds a record, in the order of the file.
    pub fn add(&mut self, record: Record) {
        match record {
            Record::Operation(operation) => self.operation(&operation),
            Record::Process(process) => self.summary.process = Some(process),
            Record::Name(name, text) => {
                self.summary.names.insert(name, text);
            }
            Record::Communicator(communicator) => self.communicator(communicator),
            Record::Clock(sync) => {
                self.clock.update(&sync);
                let ahead = nanoseconds(sync.realtime).saturating_sub(nanoseconds(sync.host));
                // The real time is read after the host time: the smallest difference is the closest.
                let known = self.summary.realtime_ahead.get_or_insert(ahead);
                *known = (*known).min(ahead);
            }
            Record::Lost(lost) => self.summary.lost = lost,
            Record::End => {}
        }
    }

    fn communicator(&mut self, communicator: Communicator) {
        let all = &mut self.summary.communicators;
        match self.positions.get(&communicator.index) {
            // Stated again after a failed write, or after operations that came first.
            Some(&position) => all[position].0 = communicator,
            None => {
                self.positions.insert(communicator.index, all.len());
                all.push((communicator, Totals::default()));
            }
        }
    }

    fn position(&mut self, index: u32) -> usize {
        if let Some((known, position)) = self.last
            && known == index
        {
            return position;
        }
        if !self.positions.contains_key(&index) {
            // The record of its creation was lost.
            let name = String::new();
            self.communicator(Communicator { index, id: 0, name, ranks: 0, nodes: 0, rank: 0 });
        }
        let position = self.positions.get(&index).copied().unwrap_or_default();
        self.last = Some((index, position));
        position
    }

    fn operation(&mut self, operation: &Operation) {
        let position = self.position(operation.communicator);
        let summary = &mut self.summary;
        let (communicator, totals) = &mut summary.communicators[position];
        totals.add(operation);
        summary.totals.add(operation);
        let is_root = communicator.rank == 0 && !operation.kind.is_p2p();
        summary.histogram.add(operation, communicator.ranks, is_root);
        let is_matched = communicator.id != 0 && communicator.ranks > 1;
        summary.captured += u64::from(operation.captured);
        if let Some(network) = operation.network {
            let [send, receive] = &mut summary.network_wait_ns;
            *send = send.saturating_add(network.send_wait);
            *receive = receive.saturating_add(network.receive_wait);
        }
        match self.clock.span(operation) {
            Some((start, end)) => {
                self.extend_span(start, end);
                if is_matched && operation.index > 0 && is_synchronizing(operation.kind) {
                    self.arrival(operation, position, start);
                }
            }
            None => self.untimed(operation),
        }
    }

    fn extend_span(&mut self, start: i64, end: i64) {
        let (first, last) = self.summary.span.unwrap_or((start, end));
        self.summary.span = Some((first.min(start), last.max(end)));
        let new = end.saturating_sub(start.max(self.busy_until)).max(0);
        self.summary.busy_ns = self.summary.busy_ns.saturating_add(new as u64);
        self.busy_until = self.busy_until.max(end);
    }

    /// Counts an operation without a duration.
    fn untimed(&mut self, operation: &Operation) {
        let time = nanoseconds(operation.enqueued);
        let (first, last) = self.summary.span.unwrap_or((time, time));
        self.summary.span = Some((first.min(time), last.max(time)));
        if operation.completed {
            return;
        }
        self.summary.unfinished += 1;
        if self.summary.in_flight.len() >= MAX_IN_FLIGHT {
            self.summary.in_flight.remove(0);
        }
        self.summary.in_flight.push(*operation);
    }

    fn arrival(&mut self, operation: &Operation, position: usize, start: i64) {
        let summary = &mut self.summary;
        if operation.index & (summary.stride - 1) != 0 {
            return;
        }
        let Operation { kind, index, bytes, .. } = *operation;
        let duration = operation.duration().unwrap_or(0);
        let communicator = position as u32;
        summary.arrivals.push(Arrival { communicator, kind, index, bytes, start, duration });
        // Collectives with the same number are kept on all ranks: the stride depends on nothing else.
        while summary.arrivals.len() > self.max_arrivals && summary.stride < 1 << 62 {
            summary.stride *= 2;
            let mask = summary.stride - 1;
            summary.arrivals.retain(|arrival| arrival.index & mask == 0);
        }
    }

    /// Ends the file.
    pub fn finish(mut self, end: io::Result<ReadEnd>) -> FileSummary {
        let unreadable = |error: io::Error| FileEnd::Unreadable(error.to_string());
        self.summary.end = end.map_or_else(unreadable, FileEnd::Read);
        self.summary
    }
}
