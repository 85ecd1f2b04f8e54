//! The thread that drains the rings.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Shared;
use super::rings::Merge;
use super::settings::Settings;
use super::writer::{RecordError, Writer};
use crate::assemble::Assembler;
use crate::clock;
use crate::file::{BlockEncoder, Lost, Record};
use crate::operation::{ClockSync, Process};
use crate::status::{CommunicatorStatus, Status};

/// How often the rings are drained while there are events, and while there are none.
const BUSY: Duration = Duration::from_millis(5);
const IDLE: Duration = Duration::from_millis(25);

/// How often the status is written at most, and while operations are in flight and nothing changes: a
/// parallel file system has other work than the status of thousands of ranks.
const STATUS_NS: u64 = 1_000_000_000;
const HEARTBEAT_NS: u64 = 2_000_000_000;

/// The thread's state.
#[derive(Debug)]
pub(super) struct Drain {
    shared: Arc<Shared>,
    process: Process,
    writer: Writer,
    interval: u64,
    merge: Merge,
    assembler: Assembler,
    block: BlockEncoder,
    /// Operations in the block.
    operations: u64,
    /// Names written.
    names: usize,
    lost: Lost,
    /// What was lost by the last record of it.
    reported: Lost,
    next_write: u64,
    /// The status written last, and when.
    status: Option<(Vec<CommunicatorStatus>, bool)>,
    status_time: u64,
}

/// Runs the drain in a thread that receives no signals: those of the program are for its own threads.
pub(super) fn spawn(drain: Drain) -> io::Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name("regatta-events".to_owned());
    let previous = block_signals();
    let thread = builder.spawn(move || drain.run());
    restore_signals(&previous);
    thread
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: a zeroed set is valid, and both sets live on this stack.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut previous: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut previous);
        previous
    }
}

fn restore_signals(previous: &libc::sigset_t) {
    // SAFETY: `previous` was filled by pthread_sigmask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, previous, std::ptr::null_mut()) };
}

impl Drain {
    pub(super) fn new(shared: Arc<Shared>, settings: Settings) -> Result<Self, RecordError> {
        let mut drain = Self {
            shared,
            writer: Writer::create(&settings)?,
            interval: settings.interval.as_nanos().try_into().unwrap_or(u64::MAX),
            process: settings.process,
            merge: Merge::default(),
            assembler: Assembler::default(),
            block: BlockEncoder::default(),
            operations: 0,
            names: 0,
            lost: Lost::default(),
            reported: Lost::default(),
            next_write: 0,
            status: None,
            status_time: 0,
        };
        drain.block.push(&Record::Process(drain.process.clone()));
        Ok(drain)
    }

    fn run(mut self) {
        self.writer.begin();
        loop {
            // Read before the rings are drained: what was pushed before the request is written.
            let requested = self.shared.requested.load(Ordering::Acquire);
            let stop = self.shared.stop.load(Ordering::Acquire);
            let (drained, more) = self.drain_rings(stop);
            let now = clock::host_now();
            let flush = requested > self.shared.flushed.load(Ordering::Relaxed);
            if stop || flush || now >= self.next_write {
                self.write(now, stop, flush);
                self.shared.flushed.store(requested, Ordering::Release);
            }
            if stop {
                return;
            }
            match (drained, more) {
                (_, true) => {}
                (0, false) => std::thread::park_timeout(IDLE),
                (_, false) => std::thread::park_timeout(BUSY),
            }
        }
    }

    /// Returns the number of events, and whether there may be more of them.
    fn drain_rings(&mut self, stop: bool) -> (usize, bool) {
        let until = if stop { u64::MAX } else { clock::host_now() };
        let more = self.merge.fill(&self.shared.rings);
        let mut merge = std::mem::take(&mut self.merge);
        let mut assembled = Vec::new();
        let mut drained = 0;
        for event in merge.take(until) {
            self.assembler.handle(event, |item| assembled.push(item));
            drained += 1;
            assembled.drain(..).for_each(|record| self.push(&record));
        }
        self.merge = merge;
        (drained, more)
    }

    fn push(&mut self, record: &Record) {
        self.operations += u64::from(matches!(record, Record::Operation(_)));
        if self.block.is_full() {
            self.append_block();
        }
        self.block.push(record);
    }

    /// Writes the operations that ended, and the status.
    fn write(&mut self, now: u64, stop: bool, flush: bool) {
        self.next_write = now.saturating_add(self.interval);
        self.push_names();
        let mut assembled = Vec::new();
        self.assembler.retire_overtaken(now);
        // An explicit flush does not wait for late events of operations that have ended.
        self.assembler.take(if flush { u64::MAX } else { now }, |item| assembled.push(item));
        if stop {
            self.assembler.finish(|item| assembled.push(item));
        }
        self.push_clock(now, !assembled.is_empty());
        assembled.into_iter().for_each(|record| self.push(&record));
        self.lost.events = self.shared.lost.load(Ordering::Relaxed);
        self.lost.unfinished = self.assembler.unfinished();
        if self.lost != self.reported {
            self.reported = self.lost;
            self.push(&Record::Lost(self.lost));
        }
        if stop {
            self.push(&Record::End);
        }
        if !self.block.is_empty() {
            self.append_block();
        }
        self.write_status(now, stop, stop || flush);
    }

    /// Writes the names that are new.
    fn push_names(&mut self) {
        let shared = self.shared.clone();
        for (name, text) in shared.names.from(self.names) {
            self.push(&Record::Name(name, text.to_owned()));
            self.names += 1;
        }
    }

    /// The clocks come before the operations whose device times they convert.
    fn push_clock(&mut self, now: u64, operations: bool) {
        let device_ahead = self.assembler.take_device_ahead();
        if operations || device_ahead.is_some() {
            let clock = ClockSync { host: now, realtime: clock::realtime_now(), device_ahead };
            self.push(&Record::Clock(clock));
        }
    }

    fn append_block(&mut self) {
        let block = self.block.take_block();
        let operations = std::mem::take(&mut self.operations);
        if self.writer.append(&block).is_err() {
            self.lost.operations += operations;
            self.restate();
        }
    }

    /// Writes again, in the next block, what later blocks refer to. Of thousands of communicators some may
    /// not fit; the block must keep room for operations.
    fn restate(&mut self) {
        self.names = 0;
        self.reported = Lost::default();
        self.block.push(&Record::Process(self.process.clone()));
        for (name, text) in self.shared.names.from(0) {
            self.block.push(&Record::Name(name, text.to_owned()));
            self.names += 1;
        }
        for communicator in self.assembler.communicators() {
            if self.block.is_half_full() {
                break;
            }
            self.block.push(&Record::Communicator(communicator.clone()));
        }
    }

    /// Writes the status if it changed, and from time to time while operations are in flight.
    fn write_status(&mut self, now: u64, ended: bool, force: bool) {
        let status = (self.assembler.status(), ended);
        let is_busy = |c: &CommunicatorStatus| c.current.is_some() || c.message.is_some();
        let age = now.saturating_sub(self.status_time);
        let due = match self.status.as_ref() == Some(&status) {
            true => age >= HEARTBEAT_NS && status.0.iter().any(is_busy),
            false => force || age >= STATUS_NS,
        };
        if !due {
            return;
        }
        let written = self.writer.write_status(&Status {
            process: (&self.process).into(),
            host_time: now,
            realtime: clock::realtime_now(),
            ended,
            lost: self.lost.events + self.lost.operations,
            communicators: status.0.clone(),
        });
        if written {
            self.status = Some(status);
            self.status_time = now;
        }
    }
}
