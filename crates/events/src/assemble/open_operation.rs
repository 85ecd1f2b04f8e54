//! An operation in flight.

use std::collections::HashMap;

use super::device_clock::DeviceClock;
use crate::operation::{Network, Operation, Timing};
use crate::record::raw::{Enqueue, Step, StepState};

/// An operation in flight.
#[derive(Debug)]
pub(super) struct OpenOperation {
    pub(super) enqueue: Enqueue,
    pub(super) index: u64,
    /// Ranks of its communicator.
    ranks: u32,
    /// Channels that started and ended.
    started: u32,
    ended: u32,
    /// Nothing reports its channels.
    pub(super) untimed: bool,
    /// Later operations have ended long ago.
    pub(super) overtaken: bool,
    /// Network transfers that started and ended.
    transfers_started: u32,
    transfers_ended: u32,
    host: Span,
    device: Span,
    /// Whether an event lacked a device time.
    host_only: bool,
    network: Option<Network>,
    /// When the steps of each channel began to wait, for sends and for receives, and their bytes if
    /// these were known then.
    steps: HashMap<(u8, u8, bool), (u64, u64)>,
}

/// The earliest start and the latest end.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    start: Option<u64>,
    end: u64,
}

impl Span {
    fn start(&mut self, time: u64) {
        self.start = Some(self.start.map_or(time, |start| start.min(time)));
    }

    fn end(&mut self, time: u64) {
        self.end = self.end.max(time);
    }
}

impl OpenOperation {
    pub(super) fn new(enqueue: Enqueue, index: u64, ranks: u32) -> Self {
        Self {
            enqueue,
            index,
            ranks,
            started: 0,
            ended: 0,
            untimed: false,
            overtaken: false,
            transfers_started: 0,
            transfers_ended: 0,
            host: Span::default(),
            device: Span::default(),
            host_only: false,
            network: None,
            steps: HashMap::new(),
        }
    }

    pub(super) fn start(&mut self, time: u64, device_time: u64) {
        self.started += 1;
        self.host_only |= device_time == 0;
        self.host.start(time);
        self.device.start(device_time);
    }

    pub(super) fn end(&mut self, time: u64, device_time: u64) {
        self.ended += 1;
        self.host_only |= device_time == 0;
        self.host.end(time);
        self.device.end(device_time);
    }

    pub(super) fn network_start(&mut self, time: u64) {
        self.transfers_started += 1;
        let network =
            self.network.get_or_insert(Network { start: time, end: time, ..Network::default() });
        network.start = network.start.min(time);
    }

    pub(super) fn network_end(&mut self, time: u64) {
        self.transfers_ended += 1;
        if let Some(network) = &mut self.network {
            network.end = network.end.max(time);
        }
    }

    pub(super) fn step(&mut self, step: &Step) {
        let sends = matches!(step.state, StepState::Sending | StepState::Sent);
        let key = (step.channel, step.step, sends);
        match step.state {
            StepState::Sending | StepState::Receiving => {
                self.steps.insert(key, (step.time, step.bytes));
            }
            StepState::Sent | StepState::Received => {
                let (Some((since, bytes)), Some(network)) =
                    (self.steps.remove(&key), &mut self.network)
                else {
                    return;
                };
                let waited = step.time.saturating_sub(since);
                match sends {
                    true => {
                        network.send_wait += waited;
                        network.sent += step.bytes.max(bytes);
                    }
                    false => network.receive_wait += waited,
                }
            }
        }
    }

    pub(super) fn has_started(&self) -> bool {
        self.started > 0 || self.untimed
    }

    /// Whether all channels and transfers ended, as far as is known.
    pub(super) fn has_ended(&self) -> bool {
        let channels = u32::from(self.enqueue.channels);
        let channels_ended = self.started > 0 && self.ended >= self.started.max(channels);
        let ended = channels_ended || self.untimed;
        self.overtaken || (ended && self.transfers_ended >= self.transfers_started)
    }

    pub(super) fn bytes(&self) -> u64 {
        match self.enqueue {
            Enqueue { kind, count, dtype, bytes: 0, .. } => {
                kind.message_bytes(count, dtype.bytes().unwrap_or(1), self.ranks)
            }
            Enqueue { bytes, .. } => bytes,
        }
    }

    /// The operation as it is stored. Without an end it has no duration.
    pub(super) fn finish(self, clock: &DeviceClock) -> Operation {
        let bytes = self.bytes();
        let ended = self.started > 0 && self.ended >= self.started;
        let span = match (ended, self.host_only) {
            (false, _) => None,
            // A device clock that jumped is not used.
            (true, false) if self.device.is_ordered() && clock.is_known() => {
                Some((Timing::Device, self.device))
            }
            (true, _) => Some((Timing::Host, self.host)),
        };
        let (timing, start, end) = match span {
            Some((timing, Span { start: Some(start), end })) => (timing, start, end.max(start)),
            _ => (Timing::None, 0, 0),
        };
        let Enqueue {
            communicator,
            time,
            sequence,
            kind,
            dtype,
            algorithm,
            protocol,
            channels,
            ..
        } = self.enqueue;
        Operation {
            communicator,
            index: self.index,
            sequence,
            kind,
            dtype,
            algorithm,
            protocol,
            // NCCL's byte wraps at 256 channels.
            channels: if channels == 0 {
                self.started.try_into().unwrap_or(u16::MAX)
            } else {
                channels
            },
            peer: self.enqueue.peer.try_into().ok(),
            count: self.enqueue.count,
            bytes,
            enqueued: time,
            timing,
            start,
            end,
            network: self.network,
            captured: self.enqueue.captured,
            completed: ended || self.untimed || self.overtaken,
        }
    }
}

impl Span {
    fn is_ordered(&self) -> bool {
        self.start.is_some_and(|start| start <= self.end)
    }
}
