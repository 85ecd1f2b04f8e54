//! One collective call and its expected results.

use std::ops::Range;

use regatta_comm::{Buffer, Call, CallKind, Comm, Counts, DType, OwnedCall, Pending, ReduceOp};
use regatta_testbed::reference::{all_to_all_v, exact_input, expected_outputs, float, hash64};

use super::{in_parallel, on_all_ranks};

/// Element counts.
#[derive(Debug, Clone)]
pub enum Sizes {
    /// The same count for all ranks.
    Equal(usize),
    /// The count of each rank's block.
    PerRank(Vec<usize>),
    /// The send counts of each rank.
    PerPair(Vec<Vec<usize>>),
    /// Random, at most this many per rank, or per pair for an all-to-all; some counts are 0. Only
    /// until the number of ranks is known.
    Uneven(usize),
}

/// Counts per rank.
impl From<Vec<usize>> for Sizes {
    fn from(counts: Vec<usize>) -> Self {
        match counts.iter().all(|count| *count == counts[0]) {
            true => Self::Equal(counts[0]),
            false => Self::PerRank(counts),
        }
    }
}

/// One collective call.
#[derive(Debug, Clone)]
pub struct Case {
    pub kind: CallKind,
    pub dtype: DType,
    pub op: ReduceOp,
    pub root: u32,
    pub sizes: Sizes,
    pub in_place: bool,
    /// Seed of the element values.
    pub seed: u64,
}

/// Allocator of an owned call's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferSource {
    Heap,
    Communicator,
    Device,
}

/// A rank's buffers before a call.
struct InitialBuffers {
    input: Option<Vec<u8>>,
    output: Vec<u8>,
    /// Location of the result in the output.
    result: Range<usize>,
    /// Whether the output must stay unchanged.
    untouched: bool,
}

impl Case {
    /// A sum of `count` f32 per rank, with root 1.
    pub fn sum(kind: CallKind, count: usize) -> Self {
        let (dtype, op, sizes) = (DType::F32, ReduceOp::Sum, Sizes::Equal(count));
        Self { kind, dtype, op, root: 1, sizes, in_place: false, seed: 1 }
    }

    /// The case for a number of ranks.
    pub fn for_ranks(&self, ranks: usize) -> Self {
        let parts = !self.kind.has_uniform_count() && self.kind != CallKind::Barrier;
        let sizes = match self.sizes {
            Sizes::Uneven(most) if !parts => Sizes::Equal(most),
            Sizes::Uneven(most) if self.kind == CallKind::AllToAll => {
                Sizes::PerPair((0..ranks).map(|from| self.send_counts(from, ranks, most)).collect())
            }
            Sizes::Uneven(most) => {
                Sizes::PerRank((0..ranks).map(|rank| self.random_count(rank, 0, most)).collect())
            }
            _ => self.sizes.clone(),
        };
        Self { root: self.root % ranks as u32, sizes, ..*self }
    }

    /// A rank's send counts; symmetric for in-place calls.
    fn send_counts(&self, from: usize, ranks: usize, most: usize) -> Vec<usize> {
        let pair = |to: usize| match self.in_place {
            true => self.random_count(from.min(to), from.max(to), most),
            false => self.random_count(from, to, most),
        };
        (0..ranks).map(pair).collect()
    }

    fn random_count(&self, one: usize, other: usize, most: usize) -> usize {
        let random = hash64(self.seed ^ hash64((one * 64 + other) as u64 + 1));
        if random.is_multiple_of(4) { 0 } else { (random >> 8) as usize % (most + 1) }
    }

    fn counts(&self, rank: usize) -> Counts<'static> {
        match &self.sizes {
            Sizes::Equal(count) | Sizes::Uneven(count) => Counts::Equal(*count),
            Sizes::PerRank(counts) => Counts::PerRank(counts.clone().into()),
            Sizes::PerPair(send) => Counts::PerPair {
                send: send[rank].clone().into(),
                receive: send.iter().map(|to| to[rank]).collect::<Vec<_>>().into(),
            },
        }
    }

    /// A rank's contribution, by the table at `Call`; the root's data for a broadcast.
    fn input(&self, rank: usize, ranks: usize) -> Vec<u8> {
        let (input, output) = self.call(rank, Some(&[]), &mut []).lengths(rank, ranks);
        let count = if self.kind == CallKind::Broadcast { output } else { input };
        exact_input(self.dtype, self.op, self.seed, rank, count)
    }

    /// The results of all ranks.
    pub fn expected(&self, ranks: usize) -> Vec<Vec<u8>> {
        let inputs: Vec<Vec<u8>> = (0..ranks).map(|rank| self.input(rank, ranks)).collect();
        match &self.sizes {
            Sizes::PerPair(send) => all_to_all_v(self.dtype, send, &inputs),
            _ => {
                let root = self.root as usize;
                expected_outputs(self.kind, self.dtype, self.op, root, &self.counts(0), &inputs)
            }
        }
    }

    fn initial_buffers(&self, rank: usize, ranks: usize) -> InitialBuffers {
        let input = self.input(rank, ranks);
        let size = self.dtype.size();
        let counts = self.counts(rank);
        let own = counts.offset(rank) * size..(counts.offset(rank) + counts.of(rank)) * size;
        let root = self.root as usize == rank;
        let given = !self.in_place && self.kind != CallKind::Broadcast;
        let call = self.call(rank, given.then_some(&[]), &mut []);
        let length = call.lengths(rank, ranks).1 * size;
        let mut output = vec![0xee; length];
        let mut result = 0..length;
        match self.kind {
            CallKind::Broadcast if !root => {}
            _ if given => {}
            CallKind::AllGather => output[own].copy_from_slice(&input),
            CallKind::Gather if root => output[own].copy_from_slice(&input),
            CallKind::Scatter if !root => {}
            CallKind::ReduceScatter | CallKind::Scatter => {
                output.copy_from_slice(&input);
                result = own;
            }
            _ => output.copy_from_slice(&input),
        }
        let untouched = matches!(self.kind, CallKind::Reduce | CallKind::Gather) && !root;
        InitialBuffers { input: given.then_some(input), output, result, untouched }
    }

    fn call<'a>(&self, rank: usize, input: Option<&'a [u8]>, output: &'a mut [u8]) -> Call<'a> {
        let call = Call::new(self.kind, self.dtype, self.counts(rank), output);
        Call { op: self.op, root: self.root, input, ..call }
    }

    /// Runs the call and compares the result.
    pub fn run(&self, comm: &dyn Comm, expected: &[u8]) {
        let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
        let initial = self.initial_buffers(rank, ranks);
        let mut output = initial.output.clone();
        comm.run(self.call(rank, initial.input.as_deref(), &mut output)).unwrap();
        self.compare(rank, &initial, &output, expected, false);
    }

    /// Starts the call in the background.
    pub fn start(&self, comm: &dyn Comm, memory: BufferSource) -> StartedCase {
        let initial = self.initial_buffers(comm.rank() as usize, comm.size() as usize);
        let filled = |bytes: &[u8]| {
            let mut buffer = match memory {
                BufferSource::Heap => Buffer::zeroed(bytes.len()),
                BufferSource::Communicator => comm.buffer(bytes.len()),
                BufferSource::Device => comm.device_buffer(bytes.len()).unwrap(),
            };
            buffer.copy_from_host(bytes).unwrap();
            buffer
        };
        let counts = self.counts(comm.rank() as usize);
        let output = filled(&initial.output);
        let call = OwnedCall::new(self.kind, self.dtype, counts, output);
        let input = initial.input.as_deref().map(filled);
        let pending = comm.start(OwnedCall { op: self.op, root: self.root, input, ..call });
        StartedCase { case: self.clone(), rank: comm.rank() as usize, memory, initial, pending }
    }

    /// Compares an output with the expected result.
    fn compare(
        &self,
        rank: usize,
        initial: &InitialBuffers,
        output: &[u8],
        expected: &[u8],
        on_device: bool,
    ) {
        if initial.untouched {
            let why = "the buffer of a rank without a result changed";
            return assert!(output == initial.output, "rank {rank} of {self:?}: {why}");
        }
        let got = &output[initial.result.clone()];
        let rounded = on_device && self.op == ReduceOp::Average && self.kind.reduces();
        let same = got == expected || rounded && approximately_equal(self.dtype, got, expected);
        assert!(same, "rank {rank} of {self:?}: {}", difference(got, expected));
    }

    /// Runs the call on one rank; the other ranks are other processes.
    pub fn check_on_rank(&self, comm: &dyn Comm) {
        self.run(comm, &self.expected(comm.size() as usize)[comm.rank() as usize]);
    }

    /// Runs the call on all ranks of a new world.
    pub fn check<C: Comm>(&self, world: Vec<C>) {
        let expected = self.expected(world.len());
        on_all_ranks(world, |comm| self.run(comm, &expected[comm.rank() as usize]));
    }

    /// Runs the call on all ranks of an existing world.
    pub fn check_on<C: Comm>(&self, world: &[C]) {
        let expected = self.expected(world.len());
        let ranks = world.iter().zip(&expected).collect();
        in_parallel(ranks, |(comm, expected)| self.run(comm, expected));
    }
}

/// A call in progress.
pub struct StartedCase {
    case: Case,
    rank: usize,
    memory: BufferSource,
    initial: InitialBuffers,
    pending: Pending,
}

impl StartedCase {
    /// Waits for the call and compares the result.
    pub fn finish(self, expected: &[u8]) {
        let call = self.pending.wait().unwrap();
        let mut output = vec![0u8; call.output.len()];
        call.output.copy_to_host(&mut output).unwrap();
        let on_device = self.memory == BufferSource::Device;
        self.case.compare(self.rank, &self.initial, &output, expected, on_device);
    }
}

/// Describes the first difference only, because results can be huge.
fn difference(got: &[u8], expected: &[u8]) -> String {
    let at = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let shown = |bytes: &[u8]| format!("{:?}", &bytes[at..(at + 16).min(bytes.len())]);
    let (lengths, bytes) = ((got.len(), expected.len()), (shown(got), shown(expected)));
    format!("{} of {} bytes, from byte {at} {}, not {}", lengths.0, lengths.1, bytes.0, bytes.1)
}

/// Equality up to rounding for floats; exact for integers.
fn approximately_equal(dtype: DType, got: &[u8], expected: &[u8]) -> bool {
    let bits = match dtype {
        DType::F16 => 10,
        DType::Bf16 => 7,
        DType::F32 => 23,
        DType::F64 => 52,
        _ => return got == expected,
    };
    // Rounding error of up to 17 addends of magnitude at most 15.
    let allowed = 17.0 * 15.0 / f64::powi(2.0, bits);
    let mut pairs = got.chunks_exact(dtype.size()).zip(expected.chunks_exact(dtype.size()));
    let close = |(a, b)| Some((float(dtype, a)? - float(dtype, b)?).abs() <= allowed);
    got.len() == expected.len() && pairs.all(|pair| close(pair) == Some(true))
}
