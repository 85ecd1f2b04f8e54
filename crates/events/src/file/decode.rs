//! Reads blocks.

use std::io::{self, Read};

use super::{BLOCK_HEADER, Lost, MAGIC, MAX_PAYLOAD, Previous, Record, flag, tag};
use crate::operation::{
    Algorithm, ClockSync, Communicator, DataType, Name, Network, Operation, OperationKind, Process,
    Protocol, Source, Timing,
};
use crate::varint::Decoder;

/// How a file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEnd {
    /// The process exited normally, or ended its file.
    Complete,
    /// After a complete block: the process is running, or was killed.
    Open,
    /// At a damaged block. Everything before `offset` was read.
    Damaged {
        /// Offset of the block in the file.
        offset: u64,
        /// What is wrong with it.
        why: Damage,
    },
}

/// A damage of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Another file type.
    #[error("not an event file")]
    NotAnEventFile,
    /// A newer format.
    #[error("an event file of version {0}; this program reads version {version}", version = MAGIC[7])]
    Version(u8),
    /// The file ends inside of a block.
    #[error("the last block is incomplete")]
    Truncated,
    /// A block has another checksum.
    #[error("wrong checksum")]
    Checksum,
    /// A block cannot be decoded.
    #[error("malformed block")]
    Malformed,
}

/// Reads an event file and passes its records on, up to the first damage.
pub fn read(mut input: impl Read, mut visit: impl FnMut(Record)) -> io::Result<ReadEnd> {
    read_blocks(&mut input, &mut visit)
}

/// Not generic: decoding is compiled in this crate, whatever the optimisation level of the caller's.
fn read_blocks(input: &mut dyn Read, visit: &mut dyn FnMut(Record)) -> io::Result<ReadEnd> {
    let damaged = |offset, why| Ok(ReadEnd::Damaged { offset, why });
    let mut magic = [0; MAGIC.len()];
    let length = read_up_to(input, &mut magic)?;
    match (length, magic) {
        (_, MAGIC) => {}
        (8, [.., version]) if magic[..7] == MAGIC[..7] => {
            return damaged(0, Damage::Version(version));
        }
        // A process that was killed before it wrote the first bytes, or has not written them yet.
        (0, _) => return Ok(ReadEnd::Open),
        _ => return damaged(0, Damage::NotAnEventFile),
    }
    let mut offset = MAGIC.len() as u64;
    let mut payload = Vec::new();
    let mut end = ReadEnd::Open;
    loop {
        let mut header = [0; BLOCK_HEADER];
        match read_up_to(input, &mut header)? {
            0 => return Ok(end),
            BLOCK_HEADER => {}
            _ => return damaged(offset, Damage::Truncated),
        }
        let [a, b, c, d, checksum @ ..] = header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        // The encoder writes no empty block; zeros at the end of a file would decode as such.
        if length == 0 || length > MAX_PAYLOAD {
            return damaged(offset, Damage::Malformed);
        }
        payload.resize(length, 0);
        if read_up_to(input, &mut payload)? < length {
            return damaged(offset, Damage::Truncated);
        }
        if crc32fast::hash(&payload) != u32::from_le_bytes(checksum) {
            return damaged(offset, Damage::Checksum);
        }
        match visit_records(&payload, visit) {
            Some(true) => end = ReadEnd::Complete,
            Some(false) => {}
            None => return damaged(offset, Damage::Malformed),
        }
        offset += (BLOCK_HEADER + length) as u64;
    }
}

/// Fills `buffer` unless the input ends before; returns the bytes read.
fn read_up_to(input: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match input.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(bytes) => length += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// Passes the records of a block on. Returns whether the last one is [`Record::End`]; `None` if the
/// block is malformed.
fn visit_records(payload: &[u8], visit: &mut dyn FnMut(Record)) -> Option<bool> {
    let mut decoder = Decoder(payload);
    let mut previous = Previous::default();
    let mut ended = false;
    while let Some(tag) = decoder.byte() {
        let record = match tag {
            tag::OPERATION => {
                let operation = take_operation(&mut decoder, previous)?;
                previous = Previous::of(&operation);
                Record::Operation(operation)
            }
            tag::PROCESS => Record::Process(take_process(&mut decoder)?),
            tag::NAME => Record::Name(Name(decoder.byte()?), decoder.text()?),
            tag::COMMUNICATOR => Record::Communicator(take_communicator(&mut decoder)?),
            tag::CLOCK => Record::Clock(take_clock(&mut decoder)?),
            tag::LOST => Record::Lost(Lost {
                events: decoder.u64()?,
                operations: decoder.u64()?,
                unfinished: decoder.u64()?,
            }),
            tag::END => Record::End,
            _ => return None,
        };
        ended = record == Record::End;
        visit(record);
    }
    Some(ended)
}

fn take_process(decoder: &mut Decoder<'_>) -> Option<Process> {
    let source = match decoder.byte()? {
        1 => Source::Nccl,
        2 => Source::Regatta,
        _ => return None,
    };
    Some(Process {
        source,
        rank: decoder.optional()?,
        world_size: decoder.optional()?,
        restart: decoder.u32()?,
        pid: decoder.u32()?,
        host: decoder.text()?,
        boot_id: decoder.text()?,
    })
}

fn take_communicator(decoder: &mut Decoder<'_>) -> Option<Communicator> {
    Some(Communicator {
        index: decoder.u32()?,
        id: u64::from_le_bytes(decoder.bytes(8)?.try_into().ok()?),
        ranks: decoder.u32()?,
        nodes: decoder.u32()?,
        rank: decoder.u32()?,
        name: decoder.text()?,
    })
}

fn take_clock(decoder: &mut Decoder<'_>) -> Option<ClockSync> {
    let (host, realtime) = (decoder.u64()?, decoder.u64()?);
    let device_ahead = match decoder.byte()? {
        0 => None,
        1 => Some(decoder.i64()?),
        _ => return None,
    };
    Some(ClockSync { host, realtime, device_ahead })
}

#[inline]
fn take_operation(decoder: &mut Decoder<'_>, previous: Previous) -> Option<Operation> {
    let &[flags, kind, dtype, algorithm, protocol] = decoder.bytes(5)?.first_chunk()?;
    let timing = match flags & flag::TIMING {
        0 => Timing::None,
        1 => Timing::Host,
        2 => Timing::Device,
        _ => return None,
    };
    if flags & !flag::ALL != 0 {
        return None;
    }
    let communicator = decoder.u32()?;
    let index = previous.index.wrapping_add_signed(decoder.i64()?);
    let sequence = previous.sequence.wrapping_add_signed(decoder.i64()?);
    let channels = u16::try_from(decoder.u64()?).ok()?;
    let peer = if flags & flag::PEER != 0 { Some(decoder.u32()?) } else { None };
    let (count, bytes) = (decoder.u64()?, decoder.u64()?);
    let enqueued = previous.enqueued.wrapping_add_signed(decoder.i64()?);
    let start = previous.start.wrapping_add_signed(decoder.i64()?);
    let end = start.saturating_add(decoder.u64()?);
    let network = if flags & flag::NETWORK != 0 {
        let start = enqueued.wrapping_add_signed(decoder.i64()?);
        let end = start.saturating_add(decoder.u64()?);
        let (sent, send_wait, receive_wait) = (decoder.u64()?, decoder.u64()?, decoder.u64()?);
        Some(Network { start, end, sent, send_wait, receive_wait })
    } else {
        None
    };
    Some(Operation {
        communicator,
        index,
        sequence,
        kind: OperationKind::from_code(kind),
        dtype: DataType::from_code(dtype),
        algorithm: Algorithm::from_code(algorithm),
        protocol: Protocol::from_code(protocol),
        channels,
        peer,
        count,
        bytes,
        enqueued,
        timing,
        start,
        end,
        network,
        captured: flags & flag::CAPTURED != 0,
        completed: flags & flag::COMPLETED != 0,
    })
}
