//! Collects the facts of all processes from chunks of logs, in bounded memory.

use std::collections::HashMap;
use std::hash::BuildHasher;

use memchr::memmem;

use super::fabric_plugin;
use super::message::{self, Message};
use super::record::{self, Header, Level, Record};
use super::report::{LineCounts, RankReport};
use super::transport::Direction;
use crate::line_splitter::LineSplitter;

/// Longest line; the rest of a longer one is skipped.
const MAX_LINE: usize = 64 * 1024;
/// Longest text that is kept, in bytes.
const MAX_TEXT: usize = 240;
/// Most processes; records of others are counted only.
const MAX_PROCESSES: usize = 1 << 17;
/// Most devices of a process.
const MAX_DEVICES: usize = 64;
/// Most different transports of a device.
const MAX_TRANSPORTS: usize = 512;
/// Most elements of a list: interfaces, variables, failures.
pub const MAX_LIST: usize = 64;
/// Most processes among which that of a glued record is searched for.
const MAX_SEARCHED: usize = 4096;
/// Most warnings of a process.
const MAX_WARNINGS: usize = 4;

/// A log file, or standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceId(usize);

/// The facts of all processes.
#[derive(Debug, Default)]
pub struct NetLog {
    pub(super) sources: Vec<Source>,
    pub(super) processes: Vec<Process>,
    pub(super) counts: LineCounts,
    /// Versions from lines without a process.
    pub(super) versions: Vec<String>,
    /// Processes by the hash of source, label, host and process ID.
    index: HashMap<u64, Vec<u32>>,
}

/// A file and the state of reading it.
#[derive(Debug, Default)]
pub struct Source {
    pub name: String,
    /// The only rank that writes to the file, if that is known.
    pub rank: Option<u32>,
    splitter: LineSplitter<MAX_LINE>,
    line: u64,
    last: Option<usize>,
    continuation: Option<Continuation>,
}

/// A record that may continue in the next line: slides and narrow terminals wrap lines.
#[derive(Debug)]
struct Continuation {
    process: usize,
    device: usize,
    text: Vec<u8>,
}

/// A process.
#[derive(Debug, Default)]
pub struct Process {
    pub source: usize,
    pub label: Option<u32>,
    pub devices: Vec<Device>,
    /// Interface of the InfiniBand network for other connections.
    pub out_of_band: Option<String>,
    /// What the log says of all ranks of the process.
    pub facts: RankReport,
}

/// A GPU of a process: usually its only one.
#[derive(Debug, Default)]
pub struct Device {
    pub number: u32,
    /// Rank and size of the largest communicator.
    pub communicator: Option<(u32, u32)>,
    pub nodes: Option<u32>,
    /// Rank in the first channel line.
    pub channel_rank: Option<u32>,
    pub transports: Vec<RawTransport>,
    pub connected: bool,
    last_transport: usize,
}

/// A transport as logged.
#[derive(Debug)]
pub struct RawTransport {
    pub via: Box<[u8]>,
    pub direction: Option<Direction>,
    pub complete: bool,
    pub channels: u64,
    /// Line of the first one.
    pub line: u64,
}

impl NetLog {
    /// Adds a file, whose name reports may mention; `rank` is its only writer, if that is known.
    pub fn add_source(&mut self, name: &str, rank: Option<u32>) -> SourceId {
        self.sources.push(Source { name: name.to_owned(), rank, ..Source::default() });
        SourceId(self.sources.len() - 1)
    }

    /// Reads the next chunk of a file, which may end anywhere in a line.
    pub fn read(&mut self, source: SourceId, chunk: &[u8]) {
        let mut splitter = std::mem::take(&mut self.sources[source.0].splitter);
        splitter.push(chunk, |line, is_complete| self.read_line(source, line, is_complete));
        self.sources[source.0].splitter = splitter;
    }

    /// Reads the end of a file: a line without a line break is cut off.
    pub fn finish(&mut self, source: SourceId) {
        let mut splitter = std::mem::take(&mut self.sources[source.0].splitter);
        splitter.finish(|line, is_complete| self.read_line(source, line, is_complete));
        self.sources[source.0].continuation = None;
    }

    fn read_line(&mut self, source: SourceId, line: &[u8], terminated: bool) {
        self.counts.lines += 1;
        self.sources[source.0].line += 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let continuation = self.sources[source.0].continuation.take();
        let has_record = record::split(line, terminated, |record| self.on_record(source, &record));
        if has_record {
            return;
        }
        if let Some(continuation) = continuation {
            self.on_continuation(source, continuation, line, terminated);
        }
        self.on_plain_line(source, line);
    }

    /// A line without a record may have the version of the library.
    fn on_plain_line(&mut self, source: SourceId, line: &[u8]) {
        let start = match memmem::find(line, b"CCL version ") {
            Some(at) if at > 0 => at - 1,
            _ => return,
        };
        let Some(text) = message::version(&line[start..]) else { return };
        let version = clip(text);
        match self.sources[source.0].last {
            Some(at) if self.processes[at].facts.library.is_none() => {
                self.processes[at].facts.library = Some(version);
            }
            _ if self.versions.len() < MAX_LIST && !self.versions.contains(&version) => {
                self.versions.push(version);
            }
            _ => {}
        }
    }

    fn on_record(&mut self, source: SourceId, record: &Record<'_>) {
        self.counts.records += 1;
        let Some((process, device)) = self.locate(source, record) else {
            self.counts.unattributed_records += 1;
            return;
        };
        self.sources[source.0].last = Some(process);
        match record.level {
            Level::Info => self.on_message(source, process, device, record),
            Level::Warn => self.on_warning(process, record.message),
            Level::Other => {}
        }
    }

    fn on_warning(&mut self, process: usize, text: &[u8]) {
        let facts = &mut self.processes[process].facts;
        if let Some(reason) = fabric_plugin::not_used(text) {
            facts.plugin.not_used = Some(clip(reason));
            return;
        }
        let warnings = &mut facts.warnings;
        let text = clip(text);
        if warnings.len() < MAX_WARNINGS && !text.is_empty() && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    fn on_message(&mut self, source: SourceId, process: usize, device: usize, record: &Record<'_>) {
        let line = self.sources[source.0].line;
        let parsed = message::parse(record.message);
        let may_continue =
            parsed == Message::ChannelStart || message::socket_interfaces(record.message).is_some();
        if may_continue && record.complete {
            let text = record.message.to_vec();
            self.sources[source.0].continuation = Some(Continuation { process, device, text });
        }
        if !record.complete {
            self.counts.truncated_records += 1;
        }
        let process = &mut self.processes[process];
        match parsed {
            Message::Channel { rank, direction, via } => {
                process.devices[device].add_channel(rank, direction, via, record.complete, line);
            }
            // What is cut off may be wrong: a network `AWS` of `AWS Libfabric`.
            Message::Other if record.complete => {
                message::read_facts(record.message, process, device);
            }
            _ => {}
        }
    }

    /// Joins a record with the line that follows it.
    fn on_continuation(
        &mut self,
        source: SourceId,
        mut continuation: Continuation,
        line: &[u8],
        terminated: bool,
    ) {
        let next = line.trim_ascii();
        let Continuation { process, device, .. } = continuation;
        let text = &mut continuation.text;
        text.push(b' ');
        text.extend_from_slice(next);
        let at = self.sources[source.0].line;
        match message::parse(text) {
            Message::Channel { rank, direction, via } => {
                let device = &mut self.processes[process].devices[device];
                device.add_channel(rank, direction, via, terminated, at);
            }
            Message::Other
                if next.starts_with(b"[")
                    && terminated
                    && message::socket_interfaces(text).is_some() =>
            {
                message::read_facts(text, &mut self.processes[process], device);
            }
            _ => {}
        }
    }

    /// The process and device of a record.
    fn locate(&mut self, source: SourceId, record: &Record<'_>) -> Option<(usize, usize)> {
        let process = match self.sources[source.0].last {
            Some(last) if self.is_process(last, source, record) => last,
            _ => self.find_process(source, record)?,
        };
        let number = record.header.device.unwrap_or(0);
        let devices = &mut self.processes[process].devices;
        match devices.iter().position(|device| device.number == number) {
            Some(at) => Some((process, at)),
            None if devices.len() < MAX_DEVICES => {
                devices.push(Device { number, ..Device::default() });
                Some((process, devices.len() - 1))
            }
            None => None,
        }
    }

    fn is_process(&self, at: usize, source: SourceId, record: &Record<'_>) -> bool {
        let process = &self.processes[at];
        process.facts.pid == record.header.pid
            && process.source == source.0
            && process.label == record.label
            && process.facts.host.as_bytes() == clip_host(record.header.host)
    }

    fn find_process(&mut self, source: SourceId, record: &Record<'_>) -> Option<usize> {
        let Header { host, pid, .. } = record.header;
        if record.glued {
            return self.find_glued(source, host, pid);
        }
        let host = clip_host(host);
        let key = self.index.hasher().hash_one((source.0, record.label, host, pid));
        let found = self.index.get(&key).into_iter().flatten().map(|&at| at as usize);
        let found = found.into_iter().find(|&at| self.is_process(at, source, record));
        if found.is_some() || self.processes.len() >= MAX_PROCESSES {
            return found;
        }
        // A host name that is not UTF-8 is none.
        let name = std::str::from_utf8(host).ok()?.to_owned();
        self.index.entry(key).or_default().push(self.processes.len() as u32);
        self.processes.push(Process {
            source: source.0,
            label: record.label,
            facts: RankReport { host: name, pid, ..RankReport::default() },
            ..Process::default()
        });
        Some(self.processes.len() - 1)
    }

    /// A known process whose host is the end of `host`, which begins with the end of another record.
    fn find_glued(&self, source: SourceId, host: &[u8], pid: u32) -> Option<usize> {
        let is_match = |process: &Process| {
            process.source == source.0
                && process.facts.pid == pid
                && !process.facts.host.is_empty()
                && host.ends_with(process.facts.host.as_bytes())
        };
        let searched = self.processes.len().min(MAX_SEARCHED);
        let mut found = (0..searched).filter(|&at| is_match(&self.processes[at]));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }
}

impl Device {
    fn add_channel(
        &mut self,
        rank: u32,
        direction: Option<Direction>,
        via: &[u8],
        complete: bool,
        line: u64,
    ) {
        self.channel_rank.get_or_insert(rank);
        let via = &via[..via.len().min(MAX_TEXT)];
        let is_same = |known: &RawTransport| {
            known.direction == direction && known.complete == complete && *known.via == *via
        };
        let last = Some(self.last_transport);
        let last = last.filter(|at| self.transports.get(*at).is_some_and(is_same));
        match last.or_else(|| self.transports.iter().position(is_same)) {
            Some(at) => {
                self.transports[at].channels += 1;
                self.last_transport = at;
            }
            None if self.transports.len() < MAX_TRANSPORTS => {
                let via = via.into();
                self.last_transport = self.transports.len();
                self.transports.push(RawTransport { via, direction, complete, channels: 1, line });
            }
            None => {}
        }
    }
}

fn clip_host(host: &[u8]) -> &[u8] {
    &host[..host.len().min(MAX_TEXT)]
}

/// A text for reports: one line, of limited length.
pub fn clip(text: &[u8]) -> String {
    let text = text.trim_ascii();
    String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]).into_owned()
}
