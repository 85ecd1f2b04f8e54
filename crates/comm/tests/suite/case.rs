//! One collective to try, and what it must give.

use std::ops::Range;

use half::{bf16, f16};
use regatta_comm::reference::{exchanged, outputs};
use regatta_comm::{Buffer, Call, Comm, Counts, DType, Kind, OwnedCall, Pending, ReduceOp};

use super::on_all;

/// How many elements go where.
#[derive(Debug, Clone)]
pub enum Sizes {
    /// The same for all ranks.
    Equal(usize),
    /// For each rank's part.
    Each(Vec<usize>),
    /// What each rank sends to each.
    Exchange(Vec<Vec<usize>>),
}

/// Each rank's part.
impl From<Vec<usize>> for Sizes {
    fn from(counts: Vec<usize>) -> Self {
        match counts.iter().all(|count| *count == counts[0]) {
            true => Self::Equal(counts[0]),
            false => Self::Each(counts),
        }
    }
}

/// One collective to try.
#[derive(Debug, Clone)]
pub struct Case {
    pub kind: Kind,
    pub dtype: DType,
    pub op: ReduceOp,
    pub root: u32,
    pub sizes: Sizes,
    pub in_place: bool,
    /// What the elements are.
    pub seed: u64,
}

/// Where the buffers of a call that owns them come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Heap,
    Communicator,
    Device,
}

/// A rank's bytes before a call.
struct Before {
    input: Option<Vec<u8>>,
    output: Vec<u8>,
    /// Where in the output its result will be.
    result: Range<usize>,
    /// Whether all of the output must be as it was.
    untouched: bool,
}

impl Case {
    pub fn counts(&self, rank: usize) -> Counts<'static> {
        match &self.sizes {
            Sizes::Equal(count) => Counts::Equal(*count),
            Sizes::Each(counts) => Counts::Each(counts.clone().into()),
            Sizes::Exchange(send) => Counts::Exchange {
                send: send[rank].clone().into(),
                receive: send.iter().map(|to| to[rank]).collect::<Vec<_>>().into(),
            },
        }
    }

    /// What a rank gives, by the table at `Call`; of a broadcast, what the root has.
    pub fn input(&self, rank: usize, ranks: usize) -> Vec<u8> {
        let counts = self.counts(rank);
        let count = match self.kind {
            Kind::AllReduce | Kind::Reduce | Kind::Broadcast => counts.of(0),
            Kind::AllGather | Kind::Gather => counts.of(rank),
            Kind::ReduceScatter => counts.total(ranks),
            Kind::AllToAll => (0..ranks).map(|to| counts.sent_to(to).1).sum(),
            Kind::Scatter if self.root as usize == rank => counts.total(ranks),
            _ => 0,
        };
        let mut bytes = Vec::with_capacity(count * self.dtype.size());
        (0..count).for_each(|i| push(&mut bytes, self.dtype, self.value(rank, i)));
        bytes
    }

    /// What every rank must get.
    pub fn right(&self, ranks: usize) -> Vec<Vec<u8>> {
        let inputs: Vec<Vec<u8>> = (0..ranks).map(|rank| self.input(rank, ranks)).collect();
        match &self.sizes {
            Sizes::Exchange(send) => exchanged(self.dtype, send, &inputs),
            _ => {
                let root = self.root as usize;
                outputs(self.kind, self.dtype, self.op, root, &self.counts(0), &inputs)
            }
        }
    }

    /// Small whole numbers, whose sums and products every type holds exactly, so that the order in
    /// which they are reduced does not matter.
    fn value(&self, rank: usize, at: usize) -> i32 {
        let mixed = mix(self.seed ^ mix(rank as u64) ^ (at as u64).wrapping_mul(0x9e37_79b9));
        match self.op {
            ReduceOp::Product => {
                let sign = if mixed & 1 == 0 { 1 } else { -1 };
                sign * (1 + i32::from((rank + at).is_multiple_of(5)))
            }
            _ => (mixed % 31) as i32 - 15,
        }
    }

    fn before(&self, rank: usize, ranks: usize) -> Before {
        let input = self.input(rank, ranks);
        let size = self.dtype.size();
        let counts = self.counts(rank);
        let own = counts.offset(rank) * size..(counts.offset(rank) + counts.of(rank)) * size;
        let root = self.root as usize == rank;
        let given = !self.in_place && self.kind != Kind::Broadcast;
        let call = self.call(rank, given.then_some(&[]), &mut []);
        let length = call.lengths(rank, ranks).1 * size;
        let mut output = vec![0xee; length];
        let mut result = 0..length;
        match self.kind {
            Kind::Broadcast if !root => {}
            _ if given => {}
            Kind::AllGather => output[own].copy_from_slice(&input),
            Kind::Gather if root => output[own].copy_from_slice(&input),
            Kind::Scatter if !root => {}
            Kind::ReduceScatter | Kind::Scatter => {
                output.copy_from_slice(&input);
                result = own;
            }
            _ => output.copy_from_slice(&input),
        }
        let untouched = matches!(self.kind, Kind::Reduce | Kind::Gather) && !root;
        Before { input: given.then_some(input), output, result, untouched }
    }

    fn call<'a>(&self, rank: usize, input: Option<&'a [u8]>, output: &'a mut [u8]) -> Call<'a> {
        Call {
            kind: self.kind,
            dtype: self.dtype,
            op: self.op,
            root: self.root,
            tag: 0,
            counts: self.counts(rank),
            input,
            output,
        }
    }

    /// Does it, and holds what the rank got against what is right.
    pub fn run(&self, comm: &dyn Comm, right: &[u8]) {
        let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
        let before = self.before(rank, ranks);
        let mut output = before.output.clone();
        comm.run(self.call(rank, before.input.as_deref(), &mut output)).unwrap();
        self.hold(rank, &before, &output, right, false);
    }

    /// Begins it.
    pub fn start(&self, comm: &dyn Comm, memory: Memory) -> Started {
        let before = self.before(comm.rank() as usize, comm.size() as usize);
        let filled = |bytes: &[u8]| {
            let mut buffer = match memory {
                Memory::Heap => Buffer::zeroed(bytes.len()),
                Memory::Communicator => comm.buffer(bytes.len()),
                Memory::Device => comm.device_buffer(bytes.len()).unwrap(),
            };
            buffer.put(bytes).unwrap();
            buffer
        };
        let counts = self.counts(comm.rank() as usize);
        let output = filled(&before.output);
        let call = OwnedCall::new(self.kind, self.dtype, counts, output);
        let input = before.input.as_deref().map(filled);
        let pending = comm.start(OwnedCall { op: self.op, root: self.root, input, ..call });
        Started { case: self.clone(), rank: comm.rank() as usize, memory, before, pending }
    }

    /// Holds an output against what is right.
    fn hold(&self, rank: usize, before: &Before, output: &[u8], right: &[u8], on_device: bool) {
        if before.untouched {
            assert!(
                output == before.output,
                "rank {rank} of {self:?}: what was only given changed"
            );
            return;
        }
        let got = &output[before.result.clone()];
        let about = on_device && self.op == ReduceOp::Average && self.kind.reduces();
        let same = if about { close(self.dtype, got, right) } else { got == right };
        assert!(same, "rank {rank} of {self:?}: {}", difference(got, right));
    }

    /// Runs it on a rank of whose fellows nothing is known here.
    pub fn check_own(&self, comm: &dyn Comm) {
        self.run(comm, &self.right(comm.size() as usize)[comm.rank() as usize]);
    }

    /// Runs it in a world and holds what all got against the reference.
    pub fn check<C: Comm>(&self, world: Vec<C>) {
        let right = self.right(world.len());
        on_all(world, |comm| self.run(comm, &right[comm.rank() as usize]));
    }

    /// The same in a world that is used again.
    pub fn check_on<C: Comm>(&self, world: &[C]) {
        let right = self.right(world.len());
        std::thread::scope(|scope| {
            for (comm, right) in world.iter().zip(&right) {
                scope.spawn(move || self.run(comm, right));
            }
        });
    }
}

/// A call in the background.
pub struct Started {
    case: Case,
    rank: usize,
    memory: Memory,
    before: Before,
    pending: Pending,
}

impl Started {
    /// Waits for it, and holds what the rank got against what is right.
    pub fn finish(self, right: &[u8]) {
        let call = self.pending.wait().unwrap();
        let mut output = vec![0u8; call.output.len()];
        call.output.fetch(&mut output).unwrap();
        let on_device = self.memory == Memory::Device;
        self.case.hold(self.rank, &self.before, &output, right, on_device);
    }
}

/// Where two results begin to differ: all of a huge one is not worth reading.
fn difference(got: &[u8], right: &[u8]) -> String {
    let at = got.iter().zip(right).position(|(a, b)| a != b).unwrap_or(got.len().min(right.len()));
    let shown = |bytes: &[u8]| format!("{:?}", &bytes[at..(at + 16).min(bytes.len())]);
    let (lengths, bytes) = ((got.len(), right.len()), (shown(got), shown(right)));
    format!("{} of {} bytes, from byte {at} {}, not {}", lengths.0, lengths.1, bytes.0, bytes.1)
}

/// Whether floats are the same but for their last bits; integers are the same.
fn close(dtype: DType, got: &[u8], right: &[u8]) -> bool {
    let read = |bytes: &[u8]| match dtype {
        DType::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::Bf16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).into(),
        _ => f64::from_ne_bytes(bytes.try_into().unwrap()),
    };
    let bits = match dtype {
        DType::F16 => 10,
        DType::Bf16 => 7,
        DType::F32 => 23,
        DType::F64 => 52,
        _ => return got == right,
    };
    // What each of up to 17 addends, none above 15, may be off by.
    let allowed = 17.0 * 15.0 / f64::powi(2.0, bits);
    let pairs = got.chunks_exact(dtype.size()).zip(right.chunks_exact(dtype.size()));
    got.len() == right.len() && pairs.into_iter().all(|(a, b)| (read(a) - read(b)).abs() <= allowed)
}

/// Numbers that look like chance.
pub fn mix(of: u64) -> u64 {
    let mixed = (of ^ (of >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn push(bytes: &mut Vec<u8>, dtype: DType, value: i32) {
    match dtype {
        DType::F16 => bytes.extend(f16::from_f32(value as f32).to_ne_bytes()),
        DType::Bf16 => bytes.extend(bf16::from_f32(value as f32).to_ne_bytes()),
        DType::F32 => bytes.extend((value as f32).to_ne_bytes()),
        DType::F64 => bytes.extend(f64::from(value).to_ne_bytes()),
        DType::I8 => bytes.extend((value as i8).to_ne_bytes()),
        DType::I16 => bytes.extend((value as i16).to_ne_bytes()),
        DType::I32 => bytes.extend(value.to_ne_bytes()),
        DType::I64 => bytes.extend(i64::from(value).to_ne_bytes()),
        DType::U8 => bytes.push(value as u8),
    }
}
