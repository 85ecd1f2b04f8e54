//! Records the calls of an engine as communication events, as the NCCL profiler plug-in records those of
//! NCCL. Nothing is recorded unless `REGATTA_PROFILE` names a folder.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use regatta_events::clock::host_now;
use regatta_events::operation::{Algorithm, DataType, OperationKind, Protocol, Source};
use regatta_events::record::raw::{Enqueue, OpenCommunicator, RawEvent, fixed_name};
use regatta_events::record::settings::Settings;
use regatta_events::record::{Recorder, stop_at_exit};
use regatta_model::hash::fnv1a;
use regatta_model::run_folder;

use crate::comm::SharedCalls;
use crate::control::CommMonitor;
use crate::engine::{
    AbortFn, Allocator, BoxEngine, Engine, HasFailedFn, OnStreamFn, first_device_buffer,
    run_on_host,
};
use crate::error::Peer;
use crate::transports::Transports;
use crate::{Call, CallKind, Counts, DType, Event, OwnedCall, Result};

/// The recorder of this process, or why there is none.
static RECORDER: OnceLock<std::result::Result<Recorder, String>> = OnceLock::new();
/// Communicators created so far that are not sub-communicators.
static WORLDS: AtomicU64 = AtomicU64::new(0);

/// Why calls are not recorded although `REGATTA_PROFILE` is set. That must not end a job, but a program
/// should print it.
pub fn failure() -> Option<&'static str> {
    RECORDER.get()?.as_ref().err().map(String::as_str)
}

/// An engine that records its calls, if the environment asks for it.
pub(crate) fn recorded(engine: BoxEngine) -> BoxEngine {
    let Some(settings) = Settings::from_env(Source::Regatta) else { return engine };
    let started = RECORDER.get_or_init(|| Recorder::start(settings).map_err(|e| e.to_string()));
    let Ok(recorder) = started else { return engine };
    stop_at_exit(recorder);
    // All ranks create their communicators in the same order, and have these variables in common. Runs
    // that record to one folder, and restarts, differ in some of them.
    let variables =
        ["MASTER_ADDR", "MASTER_PORT", run_folder::VARIABLE, "TORCHELASTIC_RESTART_COUNT"];
    let job = variables.iter().flat_map(|name| {
        std::env::var_os(name).unwrap_or_default().into_encoded_bytes().into_iter().chain([0])
    });
    let number = WORLDS.fetch_add(1, Ordering::Relaxed).to_le_bytes();
    let id = fnv1a(job.chain(number));
    Box::new(RecordedEngine::new(engine, recorder, id, "world"))
}

/// An engine that records its calls.
struct RecordedEngine {
    inner: BoxEngine,
    recorder: &'static Recorder,
    /// The same on all ranks.
    id: u64,
    /// The index of the communicator.
    index: u32,
    ranks: u32,
    /// Calls so far, by kind: sequence numbers are those of a kind, as NCCL's are.
    calls: [u64; CallKind::ALL.len() + 2],
    /// Sub-communicators so far.
    splits: u64,
}

impl RecordedEngine {
    fn new(inner: BoxEngine, recorder: &'static Recorder, id: u64, name: &str) -> Self {
        let ranks = inner.peers().len() as u32;
        let index = recorder.next_communicator();
        let engine = Self { inner, recorder, id, index, ranks, calls: [0; _], splits: 0 };
        engine.record_communicator(name);
        engine
    }

    fn record_communicator(&self, name: &str) {
        let hosts: HashSet<String> = self.inner.peers().into_iter().map(|peer| peer.host).collect();
        self.recorder.push(RawEvent::Open(OpenCommunicator {
            communicator: self.index,
            id: self.id,
            ranks: self.ranks,
            nodes: hosts.len() as u32,
            rank: self.inner.rank(),
            name: fixed_name(name.as_bytes()),
        }));
    }

    /// Records that a call was entered, and returns the number of its operation.
    fn enter(&mut self, call: &Call<'_>) -> u64 {
        let operation = self.recorder.next_operation();
        let time = host_now();
        let (count, bytes) = message_size(call, self.inner.rank(), self.ranks);
        let has_peer = call.kind.has_root() || call.kind.is_p2p();
        self.recorder.push(RawEvent::Enqueue(Enqueue {
            operation,
            communicator: self.index,
            time,
            sequence: self.calls[call.kind as usize],
            kind: kind(call.kind),
            dtype: dtype(call.dtype),
            algorithm: Algorithm::None,
            protocol: Protocol::None,
            channels: 1,
            peer: if has_peer { call.root.try_into().unwrap_or(-1) } else { -1 },
            count,
            bytes,
            captured: false,
        }));
        self.recorder.push(RawEvent::Start { operation, time, device_time: 0 });
        self.calls[call.kind as usize] += 1;
        operation
    }

    /// Records the end of calls. Calls that failed have none.
    fn leave(&self, operations: &[u64], result: Result) -> Result {
        if result.is_ok() {
            let time = host_now();
            let end =
                |&operation| self.recorder.push(RawEvent::End { operation, time, device_time: 0 });
            operations.iter().for_each(end);
        }
        result
    }
}

impl Engine for RecordedEngine {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.inner.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result {
        let operation = self.enter(&call);
        let result = self.inner.run(call);
        self.leave(&[operation], result)
    }

    fn run_owned(&mut self, calls: &mut [OwnedCall], times: u32) -> Result {
        match first_device_buffer(calls)? {
            // NCCL's profiler plug-in records them.
            Some(_) => self.inner.run_owned(calls, times),
            None => run_on_host(self, calls, times),
        }
    }

    fn on_stream_fn(&self) -> Option<OnStreamFn> {
        self.inner.on_stream_fn()
    }

    fn enqueue(&mut self, calls: &SharedCalls, after: &[Event]) -> Result<Event> {
        self.inner.enqueue(calls, after)
    }

    fn poll(&mut self) -> bool {
        self.inner.poll()
    }

    fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result {
        let operations: Vec<u64> = calls.iter().map(|call| self.enter(call)).collect();
        let result = self.inner.run_group(calls);
        self.leave(&operations, result)
    }

    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>> {
        self.splits += 1;
        let numbers = [self.id, self.splits, colour.map_or(u64::MAX, u64::from)];
        let id = fnv1a(numbers.into_iter().flat_map(u64::to_le_bytes));
        let split = self.inner.split(colour, key)?;
        let recorder = self.recorder;
        let record = |inner| Box::new(Self::new(inner, recorder, id, "")) as BoxEngine;
        Ok(split.map(record))
    }

    fn set_name(&mut self, name: &str) {
        self.record_communicator(name);
        self.inner.set_name(name);
    }

    fn allocator(&self) -> Allocator {
        self.inner.allocator()
    }

    fn abort_fn(&self) -> AbortFn {
        self.inner.abort_fn()
    }

    fn has_failed_fn(&self) -> HasFailedFn {
        self.inner.has_failed_fn()
    }

    fn transports(&self) -> Transports {
        self.inner.transports()
    }

    fn monitor(&self) -> Option<Arc<CommMonitor>> {
        self.inner.monitor()
    }
}

impl Drop for RecordedEngine {
    fn drop(&mut self) {
        self.recorder.push(RawEvent::Close { communicator: self.index });
    }
}

/// The element count that the caller passed, and the message size if the parts of the ranks differ, else
/// 0.
fn message_size(call: &Call<'_>, rank: u32, ranks: u32) -> (u64, u64) {
    let count = call.counts.of(rank as usize) as u64;
    let total = match &call.counts {
        Counts::Equal(_) => 0,
        Counts::PerRank(_) => call.counts.total(ranks as usize),
        Counts::PerPair { send, receive } => send.iter().sum::<usize>().max(receive.iter().sum()),
    };
    (count, (total * call.dtype.size()) as u64)
}

/// Both are declared in the same order, from 1 on in files.
fn kind(kind: CallKind) -> OperationKind {
    OperationKind::from_code(kind as u8 + 1)
}

fn dtype(dtype: DType) -> DataType {
    match dtype {
        DType::F16 => DataType::F16,
        DType::Bf16 => DataType::Bf16,
        DType::F32 => DataType::F32,
        DType::F64 => DataType::F64,
        DType::I8 => DataType::I8,
        DType::I16 => DataType::I16,
        DType::I32 => DataType::I32,
        DType::I64 => DataType::I64,
        DType::U8 => DataType::U8,
    }
}
