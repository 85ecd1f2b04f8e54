//! Turns raw events into operations. A state machine without I/O; it takes the time as an argument.

mod device_clock;
mod open_operation;
mod open_set;
#[cfg(test)]
mod tests;
mod unreported;

use std::collections::{BTreeMap, HashMap, VecDeque};

use device_clock::DeviceClock;
use open_operation::OpenOperation;
use open_set::OpenSet;
use unreported::{Overtaken, Stream};

use crate::file::Record;
use crate::operation::{Algorithm, Communicator, OperationKind};
use crate::record::raw::{Enqueue, OpenCommunicator, RawEvent};
use crate::status::{CommunicatorStatus, CurrentOperation};

/// How long an operation that seems to have ended is kept for late events: channels and network transfers
/// are reported by another thread than the calls.
const LINGER_NS: u64 = 20_000_000;
/// Operations in flight beyond this number are stored without an end.
const MAX_OPEN: usize = 1 << 16;
/// A larger gap between sequence numbers is another count.
const MAX_MISSED: u64 = 1 << 24;
/// A communicator of which nothing is known.
const UNKNOWN: Communicator =
    Communicator { index: 0, id: 0, name: String::new(), ranks: 0, nodes: 0, rank: 0 };

/// The state of all communicators and operations in flight.
#[derive(Debug, Default)]
pub struct Assembler {
    communicators: BTreeMap<u32, CommunicatorState>,
    open: OpenSet,
    /// Operations that seem to have ended, and since when.
    ended: VecDeque<(u64, u64)>,
    clock: DeviceClock,
    overtaken: Overtaken,
    unfinished: u64,
}

/// The peer of a message, and whether it is sent.
type MessageKey = (i32, bool);

#[derive(Debug)]
struct CommunicatorState {
    communicator: Communicator,
    /// Collectives enqueued, started, ended.
    enqueued: u64,
    started: u64,
    completed: u64,
    /// Messages by peer and direction: enqueued and ended.
    messages: HashMap<MessageKey, [u64; 2]>,
    /// By kind: the sequence number that is expected next.
    sequences: HashMap<u8, u64>,
    closed: bool,
}

impl CommunicatorState {
    fn new(communicator: Communicator) -> Self {
        let (enqueued, started, completed) = (0, 0, 0);
        let (messages, sequences) = (HashMap::new(), HashMap::new());
        Self { communicator, enqueued, started, completed, messages, sequences, closed: false }
    }
}

impl CommunicatorState {
    /// Counts an operation that started or ended.
    fn update(&mut self, open: &OpenOperation) {
        match message_key(&open.enqueue) {
            Some(key) if open.has_ended() => {
                let [_, completed] = self.messages.entry(key).or_default();
                *completed = (*completed).max(open.index + 1);
            }
            Some(_) => {}
            None => {
                if open.has_started() {
                    self.started = self.started.max(open.index + 1);
                }
                if open.has_ended() {
                    self.completed = self.completed.max(open.index + 1);
                }
            }
        }
    }

    /// Collectives before this one that were not recorded, by the sequence numbers of its kind: while the
    /// recording was paused, or because the ring was full.
    fn missed(&mut self, enqueue: &Enqueue) -> u64 {
        let next = enqueue.sequence.wrapping_add(1);
        let kind = enqueue.kind.code();
        if matches!(enqueue.algorithm, Algorithm::Other(_)) {
            // It may be counted by itself, as those of copy engines are.
            self.sequences.entry(kind).and_modify(|n| *n += u64::from(*n == enqueue.sequence));
            return 0;
        }
        let expected = self.sequences.insert(kind, next).unwrap_or(enqueue.sequence);
        let missed = enqueue.sequence.saturating_sub(expected);
        if missed <= MAX_MISSED { missed } else { 0 }
    }

    /// Operations that ended, by what runs in order: the collectives, and the messages of each peer and
    /// direction.
    fn streams(&self, index: u32) -> impl Iterator<Item = (Stream, u64)> {
        let messages = self.messages.iter().map(move |(key, [_, n])| ((index, Some(*key)), *n));
        std::iter::once(((index, None), self.completed)).chain(messages)
    }
}

/// The peer and direction of a message; `None` for a collective.
fn message_key(enqueue: &Enqueue) -> Option<MessageKey> {
    let sends = enqueue.kind == OperationKind::Send;
    enqueue.kind.is_p2p().then_some((enqueue.peer, sends))
}

impl Assembler {
    /// Applies an event, and passes on a new communicator or an operation that has to make room.
    pub fn handle(&mut self, event: RawEvent, mut emit: impl FnMut(Record)) {
        match event {
            RawEvent::Open(open) => emit(Record::Communicator(self.open_communicator(&open))),
            RawEvent::Close { communicator } => {
                if let Some(state) = self.communicators.get_mut(&communicator) {
                    state.closed = true;
                }
            }
            RawEvent::Enqueue(enqueue) => {
                self.enqueue(enqueue, &mut emit);
                self.make_room(emit);
            }
            RawEvent::Start { operation, time, device_time } => {
                self.clock.add(time, device_time);
                self.update(operation, time, |open| open.start(time, device_time));
            }
            RawEvent::End { operation, time, device_time } => {
                self.clock.add(time, device_time);
                self.update(operation, time, |open| open.end(time, device_time));
            }
            RawEvent::Untimed { operation, time } => {
                self.update(operation, time, |open| open.untimed = true);
            }
            RawEvent::NetworkStart { operation, time } => {
                self.update(operation, time, |open| open.network_start(time));
            }
            RawEvent::NetworkEnd { operation, time } => {
                self.update(operation, time, |open| open.network_end(time));
            }
            RawEvent::Step(step) => {
                self.update(step.operation, step.time, |open| open.step(&step));
            }
        }
    }

    fn open_communicator(&mut self, open: &OpenCommunicator) -> Communicator {
        let name = open.name.split(|&byte| byte == 0).next().unwrap_or_default();
        let communicator = Communicator {
            index: open.communicator,
            id: open.id,
            name: String::from_utf8_lossy(name).into_owned(),
            ranks: open.ranks,
            nodes: open.nodes,
            rank: open.rank,
        };
        // Its name, or what else was unknown, may follow later.
        let state = self.communicators.entry(open.communicator);
        let state = state.or_insert_with(|| CommunicatorState::new(communicator.clone()));
        state.communicator = communicator.clone();
        communicator
    }

    fn enqueue(&mut self, enqueue: Enqueue, emit: &mut impl FnMut(Record)) {
        let state = self.communicators.entry(enqueue.communicator).or_insert_with(|| {
            // The ring was full when it was created: nothing else is known of it.
            let communicator = Communicator { index: enqueue.communicator, ..UNKNOWN };
            emit(Record::Communicator(communicator.clone()));
            CommunicatorState::new(communicator)
        });
        let index = match message_key(&enqueue) {
            Some(key) => {
                let [enqueued, _] = state.messages.entry(key).or_default();
                *enqueued += 1;
                *enqueued - 1
            }
            None => {
                state.enqueued += state.missed(&enqueue) + 1;
                state.enqueued - 1
            }
        };
        self.open.insert(OpenOperation::new(enqueue, index, state.communicator.ranks));
    }

    /// Passes on an operation if too many are in flight: one that has ended, else the oldest.
    fn make_room(&mut self, mut emit: impl FnMut(Record)) {
        if self.open.len() <= MAX_OPEN {
            return;
        }
        while let Some((_, operation)) = self.ended.pop_front() {
            if let Some(open) = self.take_ended(operation) {
                return emit(Record::Operation(open.finish(&self.clock)));
            }
        }
        if let Some(oldest) = self.open.pop_first() {
            self.unfinished += 1;
            emit(Record::Operation(oldest.finish(&self.clock)));
        }
    }

    /// Removes an operation that has ended.
    fn take_ended(&mut self, operation: u64) -> Option<OpenOperation> {
        let has_ended = self.open.get_mut(operation)?.has_ended();
        has_ended.then(|| self.open.remove(operation))?
    }

    /// Applies an event to an operation in flight. Events of operations that were lost or stored already
    /// are ignored.
    fn update(&mut self, operation: u64, now: u64, apply: impl FnOnce(&mut OpenOperation)) {
        let Some(open) = self.open.get_mut(operation) else { return };
        apply(open);
        if let Some(state) = self.communicators.get_mut(&open.enqueue.communicator) {
            state.update(open);
        }
        if open.has_ended() {
            self.ended.push_back((now, operation));
        }
    }

    /// Ends operations that later ones have overtaken: nothing reports them, or the event of their end was
    /// lost.
    pub fn retire_overtaken(&mut self, now: u64) {
        let completed = self.communicators.iter().flat_map(|(index, state)| state.streams(*index));
        if !self.overtaken.update(now, completed) {
            return;
        }
        let is_overtaken = |open: &OpenOperation| {
            let stream = (open.enqueue.communicator, message_key(&open.enqueue));
            !open.has_ended() && self.overtaken.contains(stream, open.index)
        };
        let open = self.open.iter().filter(|open| is_overtaken(open));
        let operations: Vec<u64> = open.map(|open| open.enqueue.operation).collect();
        for operation in operations {
            self.update(operation, now, |open| open.overtaken = true);
        }
    }

    /// Passes on the operations that ended by `now`.
    pub fn take(&mut self, now: u64, mut emit: impl FnMut(Record)) {
        while let Some(&(since, operation)) = self.ended.front()
            && now.saturating_sub(since) >= LINGER_NS
        {
            self.ended.pop_front();
            if let Some(open) = self.take_ended(operation) {
                emit(Record::Operation(open.finish(&self.clock)));
            }
        }
        let in_flight = |index: &u32| self.open.iter().any(|o| o.enqueue.communicator == *index);
        if self.communicators.values().any(|state| state.closed) {
            let done: Vec<u32> = self.closed().filter(|index| !in_flight(index)).collect();
            done.iter().for_each(|index| drop(self.communicators.remove(index)));
        }
    }

    fn closed(&self) -> impl Iterator<Item = u32> {
        self.communicators.iter().filter(|(_, state)| state.closed).map(|(index, _)| *index)
    }

    /// Passes on all operations, also those that have not ended, which then have no duration.
    pub fn finish(&mut self, mut emit: impl FnMut(Record)) {
        for open in self.open.take_all() {
            emit(Record::Operation(open.finish(&self.clock)));
        }
        self.ended.clear();
    }

    /// How far the device clock is ahead of the host clock, by the events since the last call.
    pub fn take_device_ahead(&mut self) -> Option<i64> {
        self.clock.take_ahead()
    }

    /// Operations stored without an end because too many were in flight.
    pub fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// The communicators that operations may refer to: also closed ones with operations in flight.
    pub fn communicators(&self) -> impl Iterator<Item = &Communicator> {
        self.communicators.values().map(|state| &state.communicator)
    }

    /// The status of the open communicators; those with operations in flight first.
    pub fn status(&self) -> Vec<CommunicatorStatus> {
        let open = self.communicators.values().filter(|state| !state.closed);
        let mut all: Vec<_> = open.map(|state| self.communicator_status(state)).collect();
        all.sort_by_key(|status| {
            (status.current.is_none() && status.message.is_none(), status.communicator.index)
        });
        all
    }

    fn communicator_status(&self, state: &CommunicatorState) -> CommunicatorStatus {
        let index = state.communicator.index;
        let oldest = |p2p: bool| {
            // What was captured into a CUDA graph runs when the graph is launched, if ever.
            let mut open = self.open.iter().filter(|open| {
                let Enqueue { communicator, kind, captured, .. } = open.enqueue;
                communicator == index && kind.is_p2p() == p2p && !captured
            });
            open.find(|open| !open.has_ended()).map(OpenOperation::current)
        };
        let [messages, messages_completed] = state
            .messages
            .values()
            .fold([0; 2], |sum, counts| std::array::from_fn(|i| sum[i] + counts[i]));
        CommunicatorStatus {
            messages,
            messages_completed,
            communicator: state.communicator.clone(),
            enqueued: state.enqueued,
            started: state.started,
            completed: state.completed,
            current: oldest(false),
            message: oldest(true),
        }
    }
}

impl OpenOperation {
    fn current(&self) -> CurrentOperation {
        CurrentOperation {
            index: self.index,
            kind: self.enqueue.kind,
            dtype: self.enqueue.dtype,
            peer: self.enqueue.peer.try_into().ok(),
            count: self.enqueue.count,
            bytes: self.bytes(),
            enqueued: self.enqueue.time,
            started: self.has_started(),
        }
    }
}
