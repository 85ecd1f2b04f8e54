//! The live status of a process: which collectives it has enqueued, started and completed.
//!
//! A status file has two slots that are written in turn, so that a reader always finds a complete one,
//! also while it is written or after the process was killed. Nothing is renamed or locked: thousands of
//! ranks may write to one parallel file system. While operations are in flight the status is written again
//! every few seconds, even if nothing has changed: a reader can tell a hang from a process that cannot
//! write.

use crate::operation::{Communicator, DataType, OperationKind, Process};
use crate::varint::{Decoder, put, put_all, put_optional, put_text};

/// Extension of status files.
pub const EXTENSION: &str = "status";
/// Length of a slot.
pub const SLOT: usize = 16 << 10;
/// Bytes before the payload of a slot: generation (u64), length (u32), checksum (u32), magic (u32).
const SLOT_HEADER: usize = 20;
const MAGIC: u32 = u32::from_le_bytes(*b"rst\x02");
/// Longest name that is kept.
const MAX_NAME: usize = 64;

/// The status of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The process.
    pub process: StatusProcess,
    /// When it was written, on the host clock.
    pub host_time: u64,
    /// When it was written, in nanoseconds since 1970.
    pub realtime: u64,
    /// Whether the process ended its recording: it exited, or closed all communicators.
    pub ended: bool,
    /// Raw events and operations lost so far.
    pub lost: u64,
    /// Its open communicators; those with operations in flight first.
    pub communicators: Vec<CommunicatorStatus>,
}

/// The process of a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusProcess {
    /// Rank of the job.
    pub rank: Option<u32>,
    /// How many times the job had been restarted.
    pub restart: u32,
    /// Process ID.
    pub pid: u32,
    /// Host name.
    pub host: String,
}

impl From<&Process> for StatusProcess {
    fn from(process: &Process) -> Self {
        let Process { rank, restart, pid, host, .. } = process;
        Self { rank: *rank, restart: *restart, pid: *pid, host: host.clone() }
    }
}

/// The status of a communicator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommunicatorStatus {
    /// The communicator.
    pub communicator: Communicator,
    /// The number of collectives enqueued.
    pub enqueued: u64,
    /// The number of collectives that started to run.
    pub started: u64,
    /// The number of collectives that ended.
    pub completed: u64,
    /// The number of messages enqueued.
    pub messages: u64,
    /// The number of messages that ended.
    pub messages_completed: u64,
    /// The oldest collective that has not ended.
    pub current: Option<CurrentOperation>,
    /// The oldest message that has not ended.
    pub message: Option<CurrentOperation>,
}

/// An operation that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurrentOperation {
    /// Its number, as in [`crate::operation::Operation::index`].
    pub index: u64,
    /// The kind.
    pub kind: OperationKind,
    /// The data type.
    pub dtype: DataType,
    /// The peer of a message, or the root.
    pub peer: Option<u32>,
    /// The element count.
    pub count: u64,
    /// The message size.
    pub bytes: u64,
    /// When it was enqueued, on the host clock.
    pub enqueued: u64,
    /// Whether it started to run.
    pub started: bool,
}

/// Encodes a slot. Communicators that do not fit are left out.
pub fn encode_slot(status: &Status, generation: u64) -> Vec<u8> {
    let mut out = vec![0; SLOT_HEADER];
    put_optional(&mut out, status.process.rank);
    put(&mut out, u64::from(status.process.restart));
    put(&mut out, u64::from(status.process.pid));
    put_text(&mut out, &status.process.host, MAX_NAME);
    put_all(&mut out, [status.host_time, status.realtime, status.lost]);
    out.push(u8::from(status.ended));
    for communicator in &status.communicators {
        let length = out.len();
        out.push(1);
        put_communicator(&mut out, communicator);
        if out.len() >= SLOT {
            out.truncate(length);
            break;
        }
    }
    out.push(0);
    let payload = (out.len() - SLOT_HEADER) as u32;
    let checksum = checksum(generation, &out[SLOT_HEADER..]);
    out[..8].copy_from_slice(&generation.to_le_bytes());
    out[8..12].copy_from_slice(&payload.to_le_bytes());
    out[12..16].copy_from_slice(&checksum.to_le_bytes());
    out[16..20].copy_from_slice(&MAGIC.to_le_bytes());
    out
}

/// Where the slot of a generation is in the file.
pub fn slot_offset(generation: u64) -> u64 {
    generation % 2 * SLOT as u64
}

/// The newest status of a file, if it has one.
pub fn decode(file: &[u8]) -> Option<Status> {
    let slots = file.chunks(SLOT).take(2).filter_map(decode_slot);
    slots.max_by_key(|(generation, _)| *generation).map(|(_, status)| status)
}

fn decode_slot(slot: &[u8]) -> Option<(u64, Status)> {
    let (header, rest) = slot.split_at_checked(SLOT_HEADER)?;
    let word = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let generation = u64::from_le_bytes(header.first_chunk().copied()?);
    let payload = rest.get(..word(8)? as usize)?;
    if word(16)? != MAGIC || word(12)? != checksum(generation, payload) {
        return None;
    }
    Some((generation, take_status(&mut Decoder(payload))?))
}

/// Of the generation, too: a reader may find the generation of a slot that is being written with the
/// rest of the one before.
fn checksum(generation: u64, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&generation.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

fn put_communicator(out: &mut Vec<u8>, status: &CommunicatorStatus) {
    let Communicator { index, id, name, ranks, nodes, rank } = &status.communicator;
    out.extend(id.to_le_bytes());
    put_all(out, [u64::from(*index), u64::from(*ranks), u64::from(*nodes), u64::from(*rank)]);
    put_text(out, name, MAX_NAME);
    put_all(out, [status.enqueued, status.started, status.completed]);
    put_all(out, [status.messages, status.messages_completed]);
    put_current(out, status.current.as_ref());
    put_current(out, status.message.as_ref());
}

fn put_current(out: &mut Vec<u8>, current: Option<&CurrentOperation>) {
    out.push(u8::from(current.is_some()));
    let Some(current) = current else { return };
    out.extend([current.kind.code(), current.dtype.code(), u8::from(current.started)]);
    put_optional(out, current.peer);
    put_all(out, [current.index, current.count, current.bytes, current.enqueued]);
}

fn take_status(decoder: &mut Decoder<'_>) -> Option<Status> {
    let process = StatusProcess {
        rank: decoder.optional()?,
        restart: decoder.u32()?,
        pid: decoder.u32()?,
        host: decoder.text()?,
    };
    let (host_time, realtime, lost) = (decoder.u64()?, decoder.u64()?, decoder.u64()?);
    let ended = decoder.byte()? != 0;
    let mut communicators = Vec::new();
    while decoder.byte()? == 1 {
        communicators.push(take_communicator(decoder)?);
    }
    Some(Status { process, host_time, realtime, ended, lost, communicators })
}

fn take_communicator(decoder: &mut Decoder<'_>) -> Option<CommunicatorStatus> {
    let id = u64::from_le_bytes(decoder.bytes(8)?.try_into().ok()?);
    let (index, ranks) = (decoder.u32()?, decoder.u32()?);
    let (nodes, rank, name) = (decoder.u32()?, decoder.u32()?, decoder.text()?);
    Some(CommunicatorStatus {
        communicator: Communicator { index, id, name, ranks, nodes, rank },
        enqueued: decoder.u64()?,
        started: decoder.u64()?,
        completed: decoder.u64()?,
        messages: decoder.u64()?,
        messages_completed: decoder.u64()?,
        current: take_current(decoder)?,
        message: take_current(decoder)?,
    })
}

fn take_current(decoder: &mut Decoder<'_>) -> Option<Option<CurrentOperation>> {
    if decoder.byte()? == 0 {
        return Some(None);
    }
    let &[kind, dtype, started] = decoder.bytes(3)?.first_chunk()?;
    Some(Some(CurrentOperation {
        kind: OperationKind::from_code(kind),
        dtype: DataType::from_code(dtype),
        started: started != 0,
        peer: decoder.optional()?,
        index: decoder.u64()?,
        count: decoder.u64()?,
        bytes: decoder.u64()?,
        enqueued: decoder.u64()?,
    }))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn current() -> impl Strategy<Value = CurrentOperation> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        (numbers, any::<u8>(), any::<u8>(), option::of(0..u32::MAX), any::<bool>()).prop_map(
            |((index, count, bytes, enqueued), kind, dtype, peer, started)| CurrentOperation {
                index,
                kind: OperationKind::from_code(kind),
                dtype: DataType::from_code(dtype),
                peer,
                count,
                bytes,
                enqueued,
                started,
            },
        )
    }

    fn status() -> impl Strategy<Value = Status> {
        let communicator = (any::<[u32; 4]>(), any::<[u64; 5]>(), "[a-z]{0,20}").prop_flat_map(
            |([index, ranks, nodes, rank], [id, enqueued, started, completed, messages], name)| {
                (option::of(current()), option::of(current())).prop_map(
                    move |(current, message)| CommunicatorStatus {
                        communicator: Communicator {
                            index,
                            id,
                            name: name.clone(),
                            ranks,
                            nodes,
                            rank,
                        },
                        enqueued,
                        started,
                        completed,
                        messages,
                        messages_completed: messages / 2,
                        current,
                        message,
                    },
                )
            },
        );
        let process = (option::of(0..u32::MAX), any::<u32>(), any::<u32>(), "[a-z0-9]{0,20}")
            .prop_map(|(rank, restart, pid, host)| StatusProcess { rank, restart, pid, host });
        (process, any::<[u64; 3]>(), any::<bool>(), vec(communicator, 0..6)).prop_map(
            |(process, [host_time, realtime, lost], ended, communicators)| Status {
                process,
                host_time,
                realtime,
                ended,
                lost,
                communicators,
            },
        )
    }

    /// Writes a slot as the recorder does.
    fn write(file: &mut Vec<u8>, generation: u64, slot: &[u8]) {
        let offset = slot_offset(generation) as usize;
        file.resize(file.len().max(offset + slot.len()), 0);
        file[offset..offset + slot.len()].copy_from_slice(slot);
    }

    proptest! {
        #[test]
        fn the_newest_complete_status_is_read(all in vec(status(), 1..5), torn in any::<prop::sample::Index>()) {
            let mut file = Vec::new();
            for (generation, status) in all.iter().enumerate() {
                let slot = encode_slot(status, generation as u64);
                prop_assert!(slot.len() <= SLOT);
                // A reader in the middle of a write finds the status before.
                let mut half = file.clone();
                write(&mut half, generation as u64, &slot[..torn.index(slot.len() - 1)]);
                let found = decode(&half);
                let before = generation.checked_sub(1).and_then(|before| all.get(before));
                prop_assert!(found.as_ref() == before || found.as_ref() == Some(status));
                write(&mut file, generation as u64, &slot);
                prop_assert_eq!(decode(&file), Some(status.clone()));
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
            decode(&bytes);
            take_status(&mut Decoder(&bytes));
        }
    }

    #[test]
    fn communicators_that_do_not_fit_are_left_out() {
        let communicator = |index| CommunicatorStatus {
            communicator: Communicator {
                index,
                id: 1,
                name: "x".repeat(100),
                ranks: 8,
                nodes: 1,
                rank: 0,
            },
            enqueued: 1,
            started: 1,
            completed: 1,
            messages: 0,
            messages_completed: 0,
            current: None,
            message: None,
        };
        let process = StatusProcess { rank: Some(1), restart: 0, pid: 1, host: "n1".to_owned() };
        let communicators = (0..1000).map(communicator).collect();
        let status =
            Status { process, host_time: 1, realtime: 2, ended: false, lost: 0, communicators };
        let slot = encode_slot(&status, 7);
        assert!(slot.len() <= SLOT);
        let read = decode(&slot).unwrap();
        assert!((100..1000).contains(&read.communicators.len()));
        assert_eq!(read.communicators[3].communicator.name, "x".repeat(MAX_NAME));
    }
}
