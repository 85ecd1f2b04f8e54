//! Collects the facts of all processes from chunks of logs, in bounded memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use memchr::memmem;

use super::fabric_plugin::{self, FabricUse};
use super::message::{self, Message};
use super::record::{self, Header, Level, Record};
use super::transport::Direction;

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
const MAX_LIST: usize = 64;
/// Most processes among which that of a glued record is searched for.
const MAX_SEARCHED: usize = 4096;
/// Most warnings of a process.
const MAX_WARNINGS: usize = 4;

/// A log file, or standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceId(usize);

/// The facts of all processes.
#[derive(Debug)]
pub struct NetLog {
    pub(super) sources: Vec<Source>,
    pub(super) processes: Vec<Process>,
    pub(super) counts: LineCounts,
    /// Versions from lines without a process.
    pub(super) versions: Vec<String>,
    /// Processes by the hash of source, label, host and process ID.
    index: HashMap<u64, Vec<u32>>,
    hasher: RandomState,
    tag: memmem::Finder<'static>,
}

/// Lines read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounts {
    pub bytes: u64,
    pub lines: u64,
    /// Records of NCCL or RCCL.
    pub records: u64,
    /// Records whose end is missing.
    pub truncated: u64,
    /// Records of a process that is unknown because another record precedes its host, or that exceeds the
    /// limits.
    pub unattributed: u64,
}

/// A file and the state of reading it.
#[derive(Debug)]
pub struct Source {
    pub name: String,
    /// The only rank that writes to the file, if that is known.
    pub rank: Option<u32>,
    partial: Vec<u8>,
    /// Whether the rest of a line that is too long is being skipped.
    skipping: bool,
    line: u64,
    last: Option<usize>,
    continuation: Option<Continuation>,
}

/// A record that may continue in the next line: slides and narrow terminals wrap lines.
#[derive(Debug)]
struct Continuation {
    process: usize,
    device: usize,
    kind: ContinuationKind,
    text: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContinuationKind {
    Channel,
    SocketInterfaces,
}

/// A process.
#[derive(Debug, Default)]
pub struct Process {
    pub source: usize,
    pub label: Option<u32>,
    pub host: String,
    pub pid: u32,
    pub devices: Vec<Device>,
    pub network: Option<String>,
    pub plugin: PluginFacts,
    pub sockets: Vec<(u32, String)>,
    pub ib: Vec<(u32, String, String)>,
    pub ib_missing: bool,
    pub out_of_band: Option<String>,
    pub bootstrap: Option<String>,
    pub gdr_far: Option<String>,
    pub variables: Vec<(String, String)>,
    pub version: Option<String>,
    pub warnings: Vec<String>,
}

/// A network plug-in.
#[derive(Debug, Default)]
pub struct PluginFacts {
    pub name: Option<String>,
    pub version: Option<String>,
    pub library: Option<String>,
    pub not_found: Option<String>,
    pub failure: Option<String>,
    pub ofi: Option<String>,
    pub libfabric: Option<String>,
    pub provider: Option<String>,
    /// Names of the NICs, by their number.
    pub nics: Vec<String>,
    /// Why our plug-in leaves the network to NCCL.
    pub not_used: Option<String>,
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
    /// Channels beyond the limit of different transports.
    pub uncounted: u64,
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

impl Default for NetLog {
    fn default() -> Self {
        Self {
            sources: Vec::new(),
            processes: Vec::new(),
            counts: LineCounts::default(),
            versions: Vec::new(),
            index: HashMap::new(),
            hasher: RandomState::new(),
            tag: memmem::Finder::new("NCCL "),
        }
    }
}

impl NetLog {
    /// Adds a file, whose name reports may mention; `rank` is its only writer, if that is known.
    pub fn add_source(&mut self, name: &str, rank: Option<u32>) -> SourceId {
        self.sources.push(Source {
            name: name.to_owned(),
            rank,
            partial: Vec::new(),
            skipping: false,
            line: 0,
            last: None,
            continuation: None,
        });
        SourceId(self.sources.len() - 1)
    }

    /// Reads the next chunk of a file, which may end anywhere in a line.
    pub fn read(&mut self, source: SourceId, chunk: &[u8]) {
        self.counts.bytes += chunk.len() as u64;
        let mut rest = chunk;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            let state = &mut self.sources[source.0];
            if std::mem::take(&mut state.skipping) {
                continue;
            }
            if state.partial.is_empty() {
                self.read_line(source, line, true);
            } else {
                let mut whole = std::mem::take(&mut state.partial);
                whole.extend_from_slice(line);
                self.read_line(source, &whole, true);
                whole.clear();
                self.sources[source.0].partial = whole;
            }
        }
        self.keep_partial(source, rest);
    }

    /// Keeps the beginning of a line, or reads it as cut off if it is too long.
    fn keep_partial(&mut self, source: SourceId, rest: &[u8]) {
        let state = &mut self.sources[source.0];
        if rest.is_empty() || state.skipping {
            return;
        }
        let room = MAX_LINE.saturating_sub(state.partial.len());
        state.partial.extend_from_slice(&rest[..rest.len().min(room)]);
        if rest.len() > room {
            state.skipping = true;
            let line = std::mem::take(&mut state.partial);
            self.read_line(source, &line, false);
        }
    }

    /// Reads the end of a file: a line without a line break is cut off.
    pub fn finish(&mut self, source: SourceId) {
        let state = &mut self.sources[source.0];
        state.skipping = false;
        let line = std::mem::take(&mut state.partial);
        if !line.is_empty() {
            self.read_line(source, &line, false);
        }
        self.sources[source.0].continuation = None;
    }

    fn read_line(&mut self, source: SourceId, line: &[u8], terminated: bool) {
        self.counts.lines += 1;
        self.sources[source.0].line += 1;
        let (line, terminated) = match line.len() > MAX_LINE {
            true => (&line[..MAX_LINE], false),
            false => (line.strip_suffix(b"\r").unwrap_or(line), terminated),
        };
        let tag = self.tag.clone();
        let continuation = self.sources[source.0].continuation.take();
        let has_record =
            record::split(line, terminated, &tag, |record| self.on_record(source, &record));
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
        let Some(Message::Version(text)) = message::version(&line[start..]) else { return };
        let version = clip(text);
        match self.sources[source.0].last {
            Some(at) if self.processes[at].version.is_none() => {
                self.processes[at].version = Some(version);
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
            self.counts.unattributed += 1;
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
        if let Some(reason) = fabric_plugin::not_used(text) {
            self.processes[process].plugin.not_used = Some(clip(reason));
            return;
        }
        let warnings = &mut self.processes[process].warnings;
        let text = clip(text);
        if warnings.len() < MAX_WARNINGS && !text.is_empty() && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    fn on_message(&mut self, source: SourceId, process: usize, device: usize, record: &Record<'_>) {
        let line = self.sources[source.0].line;
        let parsed = message::parse(record.message);
        let continues = match parsed {
            Message::ChannelStart => Some(ContinuationKind::Channel),
            Message::SocketInterfaces(_) => Some(ContinuationKind::SocketInterfaces),
            _ => None,
        };
        if let Some(kind) = continues.filter(|_| record.complete) {
            let text = record.message.to_vec();
            let next = Continuation { process, device, kind, text };
            self.sources[source.0].continuation = Some(next);
        }
        if !record.complete {
            self.counts.truncated += 1;
        }
        let process = &mut self.processes[process];
        match parsed {
            Message::Channel { rank, direction, via } => {
                process.devices[device].add_channel(rank, direction, via, record.complete, line);
            }
            // What is cut off may be wrong: a network `AWS` of `AWS Libfabric`.
            _ if record.complete => process.apply(device, &parsed),
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
        let Continuation { process, device, kind, .. } = continuation;
        let text = &mut continuation.text;
        text.push(b' ');
        text.extend_from_slice(next);
        let at = self.sources[source.0].line;
        match (kind, message::parse(text)) {
            (ContinuationKind::Channel, Message::Channel { rank, direction, via }) => {
                let device = &mut self.processes[process].devices[device];
                device.add_channel(rank, direction, via, terminated, at);
            }
            (ContinuationKind::SocketInterfaces, parsed @ Message::SocketInterfaces(_))
                if next.starts_with(b"[") && terminated =>
            {
                self.processes[process].apply(device, &parsed);
            }
            _ => {}
        }
    }

    /// The process and device of a record.
    fn locate(&mut self, source: SourceId, record: &Record<'_>) -> Option<(usize, usize)> {
        let Header { host, pid, device } = record.header;
        let process = match self.sources[source.0].last {
            Some(last) if self.is_process(last, source, record.label, host, pid) => last,
            _ => self.find_process(source, record)?,
        };
        let number = device.unwrap_or(0);
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

    fn is_process(
        &self,
        at: usize,
        source: SourceId,
        label: Option<u32>,
        host: &[u8],
        pid: u32,
    ) -> bool {
        let process = &self.processes[at];
        process.pid == pid
            && process.source == source.0
            && process.label == label
            && process.host.as_bytes() == host
    }

    fn find_process(&mut self, source: SourceId, record: &Record<'_>) -> Option<usize> {
        let Header { host, pid, .. } = record.header;
        if record.glued {
            return self.find_glued(source, host, pid);
        }
        let host = &host[..host.len().min(MAX_TEXT)];
        let key = self.hasher.hash_one((source.0, record.label, host, pid));
        let found = self.index.get(&key).into_iter().flatten().map(|&at| at as usize);
        let found =
            found.into_iter().find(|&at| self.is_process(at, source, record.label, host, pid));
        if found.is_some() || self.processes.len() >= MAX_PROCESSES {
            return found;
        }
        // A host name that is not UTF-8 is none.
        let name = std::str::from_utf8(host).ok()?.to_owned();
        self.index.entry(key).or_default().push(self.processes.len() as u32);
        self.processes.push(Process {
            source: source.0,
            label: record.label,
            host: name,
            pid,
            ..Process::default()
        });
        Some(self.processes.len() - 1)
    }

    /// A known process whose host is the end of `host`, which begins with the end of another record.
    fn find_glued(&self, source: SourceId, host: &[u8], pid: u32) -> Option<usize> {
        let is_match = |process: &Process| {
            process.source == source.0
                && process.pid == pid
                && !process.host.is_empty()
                && host.ends_with(process.host.as_bytes())
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
        let hint = self.last_transport;
        if self.transports.get(hint).is_some_and(is_same) {
            self.transports[hint].channels += 1;
            return;
        }
        match self.transports.iter().position(is_same) {
            Some(at) => {
                self.transports[at].channels += 1;
                self.last_transport = at;
            }
            None if self.transports.len() < MAX_TRANSPORTS => {
                self.transports.push(RawTransport {
                    via: via.into(),
                    direction,
                    complete,
                    channels: 1,
                    line,
                });
                self.last_transport = self.transports.len() - 1;
            }
            None => self.uncounted += 1,
        }
    }
}

impl Process {
    fn apply(&mut self, device: usize, message: &Message<'_>) {
        match *message {
            Message::Communicator { rank, ranks, nodes } => {
                let device = &mut self.devices[device];
                if device.communicator.is_none_or(|(_, known)| ranks >= known) {
                    device.communicator = Some((rank, ranks));
                    device.nodes = nodes.or(device.nodes);
                }
            }
            Message::Connected => self.devices[device].connected = true,
            Message::Network(name) => self.network = Some(clip(name)),
            Message::SocketInterfaces(list) => {
                let found = message::devices(list).take(MAX_LIST);
                self.sockets = found.map(|(at, name, _)| (at, clip(name))).collect();
            }
            Message::IbDevices(list) => {
                let found = message::devices(list).take(MAX_LIST);
                self.ib = found.map(|(at, name, link)| (at, clip(name), clip(link))).collect();
                self.out_of_band = message::out_of_band(list).map(clip);
            }
            Message::NoIbDevice => self.ib_missing = true,
            Message::Bootstrap(text) => {
                self.bootstrap = Some(clip(message::until(text, b":")));
            }
            Message::PluginLoaded { name, version } => {
                self.plugin.name = Some(clip(name));
                self.plugin.version = version.map(clip).or(self.plugin.version.take());
            }
            Message::PluginLibrary(name) => self.plugin.library = Some(clip(name)),
            Message::PluginNotFound(text) => {
                // The first one is the library that was asked for.
                self.plugin.not_found.get_or_insert_with(|| clip(text));
            }
            Message::PluginFailed(text) => {
                self.plugin.failure.get_or_insert_with(|| clip(text));
            }
            Message::OfiVersion(text) => self.plugin.ofi = Some(clip(text)),
            Message::LibfabricVersion(text) => self.plugin.libfabric = Some(clip(text)),
            Message::Provider(text) => self.plugin.provider = Some(clip(text)),
            Message::Fabric(fabric) => self.set_fabric(&fabric),
            Message::FabricNotUsed(reason) => self.plugin.not_used = Some(clip(reason)),
            Message::GdrDistance { enabled: false, text } => {
                self.gdr_far.get_or_insert_with(|| clip(text));
            }
            Message::Variable { name, value } => self.set_variable(clip(name), clip(value)),
            Message::Version(text) => self.version = Some(clip(text)),
            Message::GdrDistance { .. }
            | Message::Channel { .. }
            | Message::ChannelStart
            | Message::Nothing => {}
        }
    }

    fn set_fabric(&mut self, fabric: &FabricUse<'_>) {
        self.plugin.libfabric = fabric.libfabric.map(clip);
        self.plugin.provider = Some(clip(fabric.provider));
        self.plugin.nics = fabric.nics().take(MAX_LIST).map(clip).collect();
        if let Some(gdr) = fabric.gdr.filter(|gdr| !gdr.starts_with(b"yes")) {
            self.gdr_far.get_or_insert_with(|| format!("GPUDirect RDMA: {}", clip(gdr)));
        }
    }

    fn set_variable(&mut self, name: String, value: String) {
        let known = self.variables.iter().any(|(known, _)| *known == name);
        if !known && self.variables.len() < MAX_LIST {
            self.variables.push((name, value));
        }
    }
}

/// A text for reports: one line, of limited length.
fn clip(text: &[u8]) -> String {
    let text = text.trim_ascii();
    String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]).into_owned()
}
