//! Writes blocks.

use super::{BLOCK_HEADER, MAX_PAYLOAD, Previous, Record, flag, tag};
use crate::operation::{ClockSync, Communicator, Operation, Process, Source, Timing};
use crate::varint::{put, put_all, put_optional, put_signed, put_text};

/// Longest record: names are cut, an operation has at most 22 integers.
const MAX_RECORD: usize = 1024;
/// Longest text of a record.
const MAX_TEXT: usize = 256;

/// Encodes records into a block.
#[derive(Debug)]
pub struct BlockEncoder {
    /// Space for the header, then the payload.
    block: Vec<u8>,
    previous: Previous,
}

impl Default for BlockEncoder {
    fn default() -> Self {
        Self { block: vec![0; BLOCK_HEADER], previous: Previous::default() }
    }
}

impl BlockEncoder {
    /// Whether it has no records.
    pub fn is_empty(&self) -> bool {
        self.block.len() == BLOCK_HEADER
    }

    /// Whether no further record fits.
    pub fn is_full(&self) -> bool {
        self.block.len() + MAX_RECORD > BLOCK_HEADER + MAX_PAYLOAD
    }

    /// Whether half of its space is used.
    pub fn is_half_full(&self) -> bool {
        self.block.len() > MAX_PAYLOAD / 2
    }

    /// Appends a record. Records beyond [`Self::is_full`] would make the block unreadable.
    pub fn push(&mut self, record: &Record) {
        let out = &mut self.block;
        match record {
            Record::Process(process) => put_process(out, process),
            Record::Name(name, text) => {
                out.extend([tag::NAME, name.0]);
                put_text(out, text, MAX_TEXT);
            }
            Record::Communicator(communicator) => put_communicator(out, communicator),
            Record::Clock(clock) => put_clock(out, clock),
            Record::Operation(operation) => {
                put_operation(out, operation, self.previous);
                self.previous = Previous::of(operation);
            }
            Record::Lost(lost) => {
                out.push(tag::LOST);
                put_all(out, [lost.events, lost.operations, lost.unfinished]);
            }
            Record::End => out.push(tag::END),
        }
    }

    /// Ends the block and starts another.
    pub fn take_block(&mut self) -> Vec<u8> {
        let Self { mut block, .. } = std::mem::take(self);
        let (header, payload) = block.split_at_mut(BLOCK_HEADER);
        header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[4..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
        block
    }
}

fn put_process(out: &mut Vec<u8>, process: &Process) {
    let Process { source, rank, world_size, restart, pid, host, boot_id } = process;
    out.push(tag::PROCESS);
    out.push(match source {
        Source::Nccl => 1,
        Source::Regatta => 2,
    });
    // 0: unknown.
    put_optional(out, *rank);
    put_optional(out, *world_size);
    put(out, u64::from(*restart));
    put(out, u64::from(*pid));
    put_text(out, host, MAX_TEXT);
    put_text(out, boot_id, MAX_TEXT);
}

fn put_communicator(out: &mut Vec<u8>, communicator: &Communicator) {
    let Communicator { index, id, name, ranks, nodes, rank } = communicator;
    out.push(tag::COMMUNICATOR);
    put(out, u64::from(*index));
    out.extend(id.to_le_bytes());
    put_all(out, [u64::from(*ranks), u64::from(*nodes), u64::from(*rank)]);
    put_text(out, name, MAX_TEXT);
}

fn put_clock(out: &mut Vec<u8>, clock: &ClockSync) {
    out.push(tag::CLOCK);
    put(out, clock.host);
    put(out, clock.realtime);
    out.push(u8::from(clock.device_ahead.is_some()));
    if let Some(ahead) = clock.device_ahead {
        put_signed(out, ahead);
    }
}

fn put_operation(out: &mut Vec<u8>, operation: &Operation, previous: Previous) {
    let timing = match operation.timing {
        Timing::None => 0,
        Timing::Host => 1,
        Timing::Device => 2,
    };
    let set = |condition: bool, flag: u8| if condition { flag } else { 0 };
    let flags = timing
        | set(operation.captured, flag::CAPTURED)
        | set(operation.completed, flag::COMPLETED)
        | set(operation.peer.is_some(), flag::PEER)
        | set(operation.network.is_some(), flag::NETWORK);
    out.extend([
        tag::OPERATION,
        flags,
        operation.kind.code(),
        operation.dtype.code(),
        operation.algorithm.code(),
        operation.protocol.code(),
    ]);
    let difference = |value: u64, before: u64| value.wrapping_sub(before) as i64;
    put(out, u64::from(operation.communicator));
    put_signed(out, difference(operation.index, previous.index));
    put_signed(out, difference(operation.sequence, previous.sequence));
    put(out, u64::from(operation.channels));
    if let Some(peer) = operation.peer {
        put(out, u64::from(peer));
    }
    put(out, operation.count);
    put(out, operation.bytes);
    put_signed(out, difference(operation.enqueued, previous.enqueued));
    put_signed(out, difference(operation.start, previous.start));
    put(out, operation.end.saturating_sub(operation.start));
    if let Some(network) = operation.network {
        put_signed(out, difference(network.start, operation.enqueued));
        put(out, network.end.saturating_sub(network.start));
        put_all(out, [network.sent, network.send_wait, network.receive_wait]);
    }
}
