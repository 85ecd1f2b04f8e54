//! Random plans: what a fake host reports, and what the event file must contain then.

use std::collections::BTreeMap;
use std::ffi::CStr;

use regatta_events::operation::{Algorithm, DataType, OperationKind, Protocol, Timing};

/// A random generator with a seed (xorshift*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    pub fn one_in(&mut self, chance: usize) -> bool {
        self.below(chance) == 0
    }
}

/// How an operation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It runs.
    Completes,
    /// The job is aborted before the first channel starts.
    NeverStarts,
    /// The job is aborted while a channel is running.
    NeverEnds,
    /// A copy within the rank, or by the copy engines: NCCL reports no channels.
    NotReported,
}

/// An operation of a plan.
#[derive(Debug, Clone)]
pub struct PlannedOperation {
    pub function: Option<&'static CStr>,
    pub kind: Option<OperationKind>,
    pub copy_engine: bool,
    pub dtype: (&'static CStr, DataType),
    pub count: u64,
    /// The root, or the peer.
    pub peer: i32,
    pub algorithm: (Option<&'static CStr>, Algorithm),
    pub protocol: (Option<&'static CStr>, Protocol),
    pub sequence: u64,
    pub captured: bool,
    pub fate: Fate,
    /// Device times of the start and end of each channel.
    pub channels: Vec<(u64, u64)>,
    /// Network transfers; those of other processes are not recorded.
    pub transfers: Vec<Transfer>,
}

/// A network transfer of a plan.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    pub foreign: bool,
    pub sends: bool,
    /// Bytes of its steps.
    pub steps: [u64; 2],
}

/// A communicator of a plan.
#[derive(Debug, Clone)]
pub struct PlannedCommunicator {
    pub id: u64,
    pub name: Option<&'static CStr>,
    pub ranks: i32,
    pub rank: i32,
    pub operations: Vec<PlannedOperation>,
}

const FUNCTIONS: [(&CStr, OperationKind); 5] = [
    (c"AllReduce", OperationKind::AllReduce),
    (c"AllGather", OperationKind::AllGather),
    (c"ReduceScatter", OperationKind::ReduceScatter),
    (c"Broadcast", OperationKind::Broadcast),
    (c"Reduce", OperationKind::Reduce),
];
const DTYPES: [(&CStr, DataType); 6] = [
    (c"ncclFloat32", DataType::F32),
    (c"ncclBfloat16", DataType::Bf16),
    (c"ncclFloat16", DataType::F16),
    (c"ncclInt64", DataType::I64),
    (c"ncclInt8", DataType::I8),
    (c"ncclFloat8e4m3", DataType::F8E4M3),
];
const ALGORITHMS: [(Option<&CStr>, Algorithm); 5] = [
    (Some(c"RING"), Algorithm::Ring),
    (Some(c"TREE"), Algorithm::Tree),
    (Some(c"NVLS"), Algorithm::Nvls),
    (Some(c"Unknown"), Algorithm::None),
    (None, Algorithm::None),
];
const PROTOCOLS: [(Option<&CStr>, Protocol); 4] = [
    (Some(c"LL"), Protocol::Ll),
    (Some(c"LL128"), Protocol::Ll128),
    (Some(c"SIMPLE"), Protocol::Simple),
    (None, Protocol::None),
];

/// The plan of a seed.
pub fn plan(seed: u64, version: u32, communicators: usize) -> Vec<PlannedCommunicator> {
    let random = &mut Random::new(seed);
    let communicator = |index: usize| {
        let ranks = 2 + random.below(7) as i32;
        let rank = random.below(ranks as usize) as i32;
        let mut timer = 1 << 40;
        let operations = 20 + random.below(40);
        PlannedCommunicator {
            id: 0xc0de_0000 + index as u64,
            name: random.pick(&[
                None,
                Some(c""),
                Some(c"data_parallel"),
                Some(c"nom \xc3\xa9t\xe9"),
            ]),
            ranks,
            rank,
            operations: numbered(
                (0..operations)
                    .map(|_| operation(random, version, rank, ranks, &mut timer))
                    .collect(),
            ),
        }
    };
    (1..=communicators).map(communicator).collect()
}

/// Numbers collectives as NCCL does: by function, those of the copy engines by themselves.
fn numbered(mut operations: Vec<PlannedOperation>) -> Vec<PlannedOperation> {
    let mut next = BTreeMap::new();
    for operation in &mut operations {
        let is_p2p = operation.kind.is_some_and(OperationKind::is_p2p);
        let function = operation.function.filter(|_| !operation.copy_engine);
        let counter: &mut u64 = next.entry((function, operation.copy_engine)).or_default();
        operation.sequence = if is_p2p { 0 } else { *counter };
        *counter += 1;
    }
    operations
}

fn operation(
    random: &mut Random,
    version: u32,
    rank: i32,
    ranks: i32,
    timer: &mut u64,
) -> PlannedOperation {
    let p2p = random.one_in(3);
    let copy_engine = version >= 6 && !p2p && random.one_in(8);
    let (function, kind) = match p2p {
        true => random.pick(&[(c"Send", OperationKind::Send), (c"Recv", OperationKind::Receive)]),
        false => random.pick(&FUNCTIONS),
    };
    // A name that the plug-in does not know, or none.
    let (function, kind) = match random.below(12) {
        0 if !p2p => (Some(c"PutSignal"), None),
        1 if !p2p => (None, None),
        _ => (Some(function), Some(kind)),
    };
    let peer = random.below(ranks as usize) as i32;
    let fate = match random.below(10) {
        _ if copy_engine || (p2p && peer == rank) => Fate::NotReported,
        0 => Fate::NeverStarts,
        1 => Fate::NeverEnds,
        _ => Fate::Completes,
    };
    let channels = if random.one_in(10) { 256 } else { 1 + random.below(8) };
    let reported = fate != Fate::NotReported;
    let transfers = if reported { random.below(4) } else { 0 };
    let none = p2p || copy_engine;
    PlannedOperation {
        function,
        kind,
        copy_engine,
        dtype: random.pick(&DTYPES),
        count: 1 + random.below(1 << 20) as u64,
        peer,
        algorithm: if none { (None, Algorithm::None) } else { random.pick(&ALGORITHMS) },
        protocol: if none { (None, Protocol::None) } else { random.pick(&PROTOCOLS) },
        sequence: 0,
        captured: random.one_in(4),
        fate,
        channels: (0..if reported { channels } else { 0 })
            .map(|_| {
                let start = *timer + random.below(1000) as u64;
                *timer += 500;
                (start, start + 1 + random.below(100_000) as u64)
            })
            .collect(),
        transfers: (0..transfers)
            .map(|_| Transfer {
                foreign: random.one_in(4),
                sends: random.one_in(2),
                steps: [random.below(1 << 20) as u64, 1 + random.below(1 << 20) as u64],
            })
            .collect(),
    }
}

/// What the event file says of an operation. Times of the host cannot be predicted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expected {
    pub communicator: u32,
    pub kind: String,
    pub peer: Option<u32>,
    pub index: u64,
    pub sequence: u64,
    pub dtype: String,
    pub count: u64,
    pub bytes: u64,
    pub algorithm: String,
    pub protocol: String,
    pub channels: u16,
    pub captured: bool,
    /// Its clock, and the device times.
    pub timing: String,
    pub device: Option<(u64, u64)>,
    /// Bytes sent, if there were transfers.
    pub network: Option<u64>,
}

/// What the file of a plan must contain, in the order of [`Expected`].
pub fn expected(plan: &[PlannedCommunicator], version: u32, steps: bool) -> Vec<Expected> {
    let mut all = Vec::new();
    for (communicator, index) in plan.iter().zip(1u32..) {
        let mut counters = BTreeMap::new();
        for operation in &communicator.operations {
            let is_p2p = operation.kind.is_some_and(OperationKind::is_p2p);
            // Collectives are counted together, messages per direction and peer.
            let key = is_p2p.then_some((operation.kind, operation.peer));
            let counter: &mut u64 = counters.entry(key).or_default();
            let mut expected = expect(operation, version, communicator.ranks, steps);
            (expected.communicator, expected.index) = (index, *counter);
            *counter += 1;
            all.push(expected);
        }
    }
    all.sort();
    all
}

fn expect(operation: &PlannedOperation, version: u32, ranks: i32, steps: bool) -> Expected {
    use OperationKind::{AllGather, Broadcast, Reduce};
    let kind = operation.kind;
    let mut dtype = operation.dtype.1;
    let mut count = operation.count;
    let bytes_reported = matches!(kind, Some(AllGather | Broadcast)) && !operation.copy_engine;
    if bytes_reported && version < 5 {
        count *= dtype.bytes().unwrap();
        dtype = DataType::I8;
    }
    // Version 3 does not know the number of ranks.
    let ranks = if version == 3 { 0 } else { ranks as u32 };
    let message = count * dtype.bytes().unwrap();
    let message =
        kind.map_or(message, |kind| kind.message_bytes(count, dtype.bytes().unwrap(), ranks));
    let rooted = kind.is_some_and(|kind| matches!(kind, Broadcast | Reduce) || kind.is_p2p());
    let started = match operation.fate {
        Fate::NeverStarts | Fate::NotReported => 0,
        // The host knows the number only of those that started.
        Fate::NeverEnds | Fate::Completes => operation.channels.len(),
    };
    let (timing, device) = match (operation.fate, version) {
        (Fate::Completes, 3) => (Timing::Host, None),
        (Fate::Completes, _) => {
            let start = operation.channels.iter().map(|channel| channel.0).min().unwrap();
            let end = operation.channels.iter().map(|channel| channel.1).max().unwrap();
            (Timing::Device, Some((start, end)))
        }
        _ => (Timing::None, None),
    };
    let own = operation.transfers.iter().filter(|transfer| !transfer.foreign);
    let has_network = operation.fate == Fate::Completes && own.clone().count() > 0;
    // Version 3 does not report the bytes of steps.
    let sent = own.filter(|transfer| transfer.sends && steps && version > 3);
    let channels = operation.channels.len();
    let known = version > 3 && channels < 256;
    let unknown_name = if operation.function.is_none() { "unknown" } else { "PutSignal" };
    let algorithm = operation.algorithm.1.known_name().unwrap_or_default();
    Expected {
        communicator: 0,
        index: 0,
        kind: kind.and_then(OperationKind::known_name).unwrap_or(unknown_name).to_owned(),
        peer: rooted.then_some(operation.peer as u32),
        sequence: operation.sequence,
        dtype: dtype.known_name().unwrap().to_owned(),
        count,
        bytes: message,
        algorithm: if operation.copy_engine { "ce" } else { algorithm }.to_owned(),
        protocol: operation.protocol.1.known_name().unwrap_or_default().to_owned(),
        channels: if known { channels as u16 } else { started as u16 },
        captured: operation.captured && version >= 5,
        timing: format!("{timing:?}"),
        device,
        network: has_network.then(|| sent.map(|transfer| transfer.steps.iter().sum::<u64>()).sum()),
    }
}
