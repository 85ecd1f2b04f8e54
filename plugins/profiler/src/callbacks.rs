//! What the callbacks record.

use regatta_events::clock::host_now;
use regatta_events::operation::{Algorithm, DataType, OperationKind, Protocol};
use regatta_events::record::raw::{Enqueue, RawEvent, Step, StepState};

use crate::handle::{Handle, OPERATION_BITS, lane};
use crate::model::{Collective, Descriptor, Message};
use crate::names;
use crate::session::Session;

/// States that NCCL reports, by its numbers.
pub mod state {
    /// A send is in the network.
    pub const SEND_WAIT: i32 = 9;
    /// A receive waits for data.
    pub const RECEIVE_WAIT: i32 = 10;
    /// Data was received, and has to be flushed to the GPU.
    pub const RECEIVE_FLUSH_WAIT: i32 = 11;
    /// Data was received, and the GPU has to take it.
    pub const RECEIVE_GPU_WAIT: i32 = 12;
    /// A transfer is the first of its connection, and starts.
    pub const TRANSFER_IN_PROGRESS: i32 = 19;
    /// A kernel ended on a channel.
    pub const CHANNEL_STOP: i32 = 22;
}

/// The algorithm of collectives that run on the copy engines.
const COPY_ENGINE: &[u8] = b"ce";

impl Session {
    /// An event starts.
    #[inline]
    pub fn start_event(&self, communicator: u32, descriptor: Descriptor<'_>) -> Handle {
        match descriptor {
            Descriptor::Group => Handle::Group,
            Descriptor::Api { dtype, captured } => {
                let dtype = names::dtype(dtype, &self.recorder).code();
                Handle::Api { dtype, captured }
            }
            Descriptor::Collective(collective) => self.start_collective(communicator, &collective),
            Descriptor::CopyEngine(collective) => {
                let collective = Collective { algorithm: Some(COPY_ENGINE), ..collective };
                let handle = self.start_collective(communicator, &collective);
                // NCCL's stop of the event only says that the copies were enqueued.
                self.push_untimed(handle);
                handle
            }
            Descriptor::Message(message) => self.start_message(communicator, &message),
            Descriptor::Channel { parent, device_time, ends_at_stop } => {
                let Handle::Operation(operation) = parent else { return Handle::None };
                let time = host_now();
                self.recorder.push(RawEvent::Start { operation, time, device_time });
                Handle::Channel { operation, ends_at_stop }
            }
            Descriptor::Transfer { parent, pid, channel, peer, sends, starts_at_once } => {
                // A proxy of another process (PXN) passes a handle that has no meaning here.
                let (Handle::Operation(operation), true) = (parent, pid as u32 == self.pid) else {
                    return Handle::None;
                };
                if starts_at_once {
                    let time = host_now();
                    self.recorder.push(RawEvent::NetworkStart { operation, time });
                }
                Handle::Transfer { operation, lane: lane(channel, peer), sends }
            }
            Descriptor::Step { parent, step } => match parent {
                Handle::Transfer { operation, lane, sends } => {
                    Handle::Step { operation, lane, step: step as u8, sends }
                }
                _ => Handle::None,
            },
            Descriptor::Other => Handle::None,
        }
    }

    fn start_collective(&self, communicator: u32, collective: &Collective<'_>) -> Handle {
        if communicator == 0 {
            return Handle::None;
        }
        if let Some(facts) = collective.communicator {
            self.open_late(communicator, facts);
        }
        let kind = names::kind(collective.function, &self.recorder);
        let dtype = names::dtype(collective.dtype, &self.recorder);
        let (dtype, count) = restore_dtype(kind, dtype, collective.count, collective.api);
        let rooted = matches!(
            kind,
            OperationKind::Broadcast
                | OperationKind::Reduce
                | OperationKind::Gather
                | OperationKind::Scatter
        );
        self.enqueue(Enqueue {
            operation: self.next_operation(),
            communicator,
            time: host_now(),
            sequence: collective.sequence,
            kind,
            dtype,
            algorithm: names::algorithm(collective.algorithm, &self.recorder),
            protocol: names::protocol(collective.protocol, &self.recorder),
            channels: u16::from(collective.channels),
            peer: if rooted { collective.root } else { -1 },
            count,
            bytes: 0,
            captured: is_captured(collective.api),
        })
    }

    fn start_message(&self, communicator: u32, message: &Message<'_>) -> Handle {
        if communicator == 0 {
            return Handle::None;
        }
        if let Some(facts) = message.communicator {
            self.open_late(communicator, facts);
        }
        let handle = self.enqueue(Enqueue {
            operation: self.next_operation(),
            communicator,
            time: host_now(),
            sequence: 0,
            kind: names::kind(message.function, &self.recorder),
            dtype: names::dtype(message.dtype, &self.recorder),
            algorithm: Algorithm::None,
            protocol: Protocol::None,
            channels: u16::from(message.channels),
            peer: message.peer,
            count: message.count,
            bytes: 0,
            captured: is_captured(message.api),
        });
        // NCCL reports no kernel of a copy within the rank.
        if message.peer == message.rank {
            self.push_untimed(handle);
        }
        handle
    }

    fn next_operation(&self) -> u64 {
        self.recorder.next_operation() & ((1 << OPERATION_BITS) - 1)
    }

    fn enqueue(&self, enqueue: Enqueue) -> Handle {
        self.recorder.push(RawEvent::Enqueue(enqueue));
        Handle::Operation(enqueue.operation)
    }

    fn push_untimed(&self, handle: Handle) {
        if let Handle::Operation(operation) = handle {
            self.recorder.push(RawEvent::Untimed { operation, time: host_now() });
        }
    }

    /// An event changes its state. `value` is the device time of a channel, or the bytes of a step.
    #[inline]
    pub fn record_state(&self, handle: Handle, state: i32, value: u64) {
        match (handle, state) {
            (Handle::Channel { operation, ends_at_stop: false }, state::CHANNEL_STOP) => {
                let time = host_now();
                self.recorder.push(RawEvent::End { operation, time, device_time: value });
            }
            (Handle::Transfer { operation, .. }, state::TRANSFER_IN_PROGRESS) => {
                let time = host_now();
                self.recorder.push(RawEvent::NetworkStart { operation, time });
            }
            (Handle::Step { .. }, state::SEND_WAIT) => {
                self.push_step(handle, StepState::Sending, value);
            }
            (Handle::Step { .. }, state::RECEIVE_WAIT) => {
                self.push_step(handle, StepState::Receiving, 0);
            }
            (Handle::Step { .. }, state::RECEIVE_FLUSH_WAIT | state::RECEIVE_GPU_WAIT) => {
                self.push_step(handle, StepState::Received, value);
            }
            _ => {}
        }
    }

    /// An event stops.
    #[inline]
    pub fn stop_event(&self, handle: Handle) {
        match handle {
            Handle::Channel { operation, ends_at_stop: true } => {
                let time = host_now();
                self.recorder.push(RawEvent::End { operation, time, device_time: 0 });
            }
            Handle::Transfer { operation, .. } => {
                self.recorder.push(RawEvent::NetworkEnd { operation, time: host_now() });
            }
            Handle::Step { sends, .. } => {
                let state = if sends { StepState::Sent } else { StepState::Received };
                self.push_step(handle, state, 0);
            }
            // An operation's stop only says that it was enqueued.
            _ => {}
        }
    }

    fn push_step(&self, handle: Handle, state: StepState, bytes: u64) {
        let Handle::Step { operation, lane: channel, step, .. } = handle else { return };
        let time = host_now();
        self.recorder.push(RawEvent::Step(Step { operation, channel, step, state, time, bytes }));
    }
}

/// NCCL reports all-gather and broadcast in bytes: the type and count of the call.
fn restore_dtype(kind: OperationKind, dtype: DataType, count: u64, api: Handle) -> (DataType, u64) {
    let converted = matches!(kind, OperationKind::AllGather | OperationKind::Broadcast);
    if let (Handle::Api { dtype: call, .. }, DataType::I8, true) = (api, dtype, converted)
        && let call = DataType::from_code(call)
        && let Some(bytes) = call.bytes()
        && count.is_multiple_of(bytes)
    {
        return (call, count / bytes);
    }
    (dtype, count)
}

fn is_captured(api: Handle) -> bool {
    matches!(api, Handle::Api { captured: true, .. })
}
