//! What every communicator must do right, whatever it is made of: held against the reference.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]
#![allow(dead_code, reason = "each test uses a part of it")]

use half::{bf16, f16};
use regatta_comm::reference::{exchanged, outputs};
use regatta_comm::{Call, Collectives, Comm, Counts, DType, Kind, OwnedCall, ReduceOp};

/// Runs a function on every rank, each on a thread of its own.
pub fn on_all<C: Comm, R: Send>(world: Vec<C>, work: impl Fn(&C) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            world.into_iter().map(|comm| scope.spawn(move || work(&comm))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// One collective to try.
#[derive(Debug, Clone)]
pub struct Case {
    pub kind: Kind,
    pub dtype: DType,
    pub op: ReduceOp,
    pub root: u32,
    /// Elements of each rank's part; of a whole buffer the first counts.
    pub counts: Vec<usize>,
    pub in_place: bool,
}

impl Case {
    fn counts(&self) -> Counts<'static> {
        match self.counts.iter().all(|c| *c == self.counts[0]) {
            true => Counts::Equal(self.counts[0]),
            false => Counts::Each(self.counts.clone().into()),
        }
    }

    /// What a rank gives, by the table at `Call`; of a broadcast, what the root has.
    pub fn input(&self, rank: usize) -> Vec<u8> {
        let ranks = self.counts.len();
        let all: usize = self.counts.iter().sum();
        let root = self.root as usize == rank;
        let count = match self.kind {
            Kind::AllReduce | Kind::Reduce | Kind::Broadcast => self.counts[0],
            Kind::AllGather | Kind::Gather => self.counts[rank],
            Kind::ReduceScatter => all,
            Kind::AllToAll => self.counts().total(ranks),
            Kind::Scatter if root => all,
            _ => 0,
        };
        (0..count).flat_map(|i| element(self.dtype, value(self.op, rank, i))).collect()
    }

    /// Does it, and gives what the rank got.
    pub fn run(&self, comm: &dyn Comm) -> Vec<u8> {
        let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
        let size = self.dtype.size();
        let input = self.input(rank);
        let part = self.counts().of(rank) * size;
        let own = self.counts().offset(rank) * size;
        let root = self.root as usize == rank;
        let mut call = Call {
            kind: self.kind,
            dtype: self.dtype,
            op: self.op,
            root: self.root,
            tag: 0,
            counts: self.counts(),
            input: (!self.in_place && self.kind != Kind::Broadcast).then_some(&input[..]),
            output: &mut [],
        };
        let length = call.lengths(rank, ranks).1 * size;
        let mut output = vec![0xee; length];
        let mut result = 0..length;
        match self.kind {
            Kind::Broadcast if root => output.copy_from_slice(&input),
            Kind::AllReduce | Kind::Reduce if self.in_place => output.copy_from_slice(&input),
            Kind::AllGather if self.in_place => output[own..own + part].copy_from_slice(&input),
            Kind::Gather if self.in_place && root => {
                output[own..own + part].copy_from_slice(&input);
            }
            Kind::Gather if self.in_place => output.copy_from_slice(&input),
            Kind::ReduceScatter | Kind::AllToAll if self.in_place => output.copy_from_slice(&input),
            Kind::Scatter if self.in_place && root => output.copy_from_slice(&input),
            _ => {}
        }
        let whole = self.kind == Kind::ReduceScatter || (self.kind == Kind::Scatter && root);
        if self.in_place && whole {
            result = own..own + part;
        }
        call.output = &mut output;
        comm.run(call).unwrap();
        let nothing = matches!(self.kind, Kind::Reduce | Kind::Gather) && !root;
        if nothing { Vec::new() } else { output[result].to_vec() }
    }

    /// Runs it on a rank that is a process of its own, and holds what it got against the reference.
    pub fn check_own(&self, comm: &dyn Comm) {
        let inputs: Vec<Vec<u8>> = (0..comm.size() as usize).map(|r| self.input(r)).collect();
        let root = self.root as usize;
        let right = outputs(self.kind, self.dtype, self.op, root, &self.counts(), &inputs);
        let got = self.run(comm);
        let right = &right[comm.rank() as usize];
        assert!(got == *right, "rank {} of {self:?}: {got:?}, not {right:?}", comm.rank());
    }

    /// Runs it in a world and holds what all got against the reference.
    pub fn check<C: Comm>(&self, world: Vec<C>) {
        self.check_on(&world);
    }

    /// The same in a world that is used again.
    pub fn check_on<C: Comm>(&self, world: &[C]) {
        let inputs: Vec<Vec<u8>> = (0..world.len()).map(|r| self.input(r)).collect();
        let root = self.root as usize;
        let right = outputs(self.kind, self.dtype, self.op, root, &self.counts(), &inputs);
        let got: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                world.iter().map(|comm| scope.spawn(move || self.run(comm))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (rank, (got, right)) in got.iter().zip(&right).enumerate() {
            assert!(got == right, "rank {rank} of {self:?}: {got:?}, not {right:?}");
        }
    }
}

/// Small whole numbers, whose sums and products every type holds exactly.
fn value(op: ReduceOp, rank: usize, at: usize) -> i32 {
    match op {
        ReduceOp::Product => 1 + i32::from((rank + at).is_multiple_of(5)),
        _ => ((rank * 7 + at * 3) % 5) as i32,
    }
}

fn element(dtype: DType, value: i32) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f64(value.into()).to_ne_bytes().to_vec(),
        DType::Bf16 => bf16::from_f64(value.into()).to_ne_bytes().to_vec(),
        DType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DType::F64 => f64::from(value).to_ne_bytes().to_vec(),
        DType::I8 => (value as i8).to_ne_bytes().to_vec(),
        DType::I16 => (value as i16).to_ne_bytes().to_vec(),
        DType::I32 => value.to_ne_bytes().to_vec(),
        DType::I64 => i64::from(value).to_ne_bytes().to_vec(),
        DType::U8 => vec![value as u8],
    }
}

/// Every collective, type and reduction, in place and not, on a world of each size.
pub fn every_kind<C: Comm>(sizes: &[u32], counts: &[usize], world: impl Fn(u32) -> Vec<C>) {
    for &ranks in sizes {
        cases(ranks, counts).iter().for_each(|case| case.check(world(ranks)));
    }
}

/// The same as cases, for a world that does them one after the other.
pub fn cases(ranks: u32, counts: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        for (j, dtype) in DType::ALL.into_iter().enumerate() {
            let op = ReduceOp::ALL[(i + j) % ReduceOp::ALL.len()];
            let root = (i + j) as u32 % ranks;
            let in_place = (i + j) % 2 == 0 && kind != Kind::AllToAll;
            let count = counts[(i + j + ranks as usize) % counts.len()];
            let counts = vec![count; ranks as usize];
            cases.push(Case { kind, dtype, op, root, counts, in_place });
        }
    }
    cases
}

/// Uneven parts, exchanges, messages, sub-groups and work in the background.
pub fn special<C: Comm>(world: impl Fn(u32) -> Vec<C>) {
    let kinds = [Kind::AllGather, Kind::ReduceScatter, Kind::Gather, Kind::Scatter];
    for kind in kinds {
        for in_place in [false, true] {
            let (dtype, op) = (DType::F32, ReduceOp::Sum);
            let counts = vec![3, 0, 5, 1, 64];
            Case { kind, dtype, op, root: 2, counts, in_place }.check(world(5));
        }
    }
    exchange(world(4));
    messages(world(3));
    splits(world(6));
    background(world(3));
    for ranks in [1, 2, 5] {
        group(world(ranks));
    }
}

fn exchange<C: Comm>(world: Vec<C>) {
    let ranks = world.len();
    let send: Vec<Vec<usize>> =
        (0..ranks).map(|r| (0..ranks).map(|to| (r * 3 + to * 2) % 4).collect()).collect();
    let inputs: Vec<Vec<u8>> =
        send.iter().enumerate().map(|(r, s)| vec![r as u8 + 1; s.iter().sum()]).collect();
    let right = exchanged(DType::U8, &send, &inputs);
    let got = on_all(world, |comm| {
        let me = comm.rank() as usize;
        let receive: Vec<usize> = send.iter().map(|s| s[me]).collect();
        let mut from = vec![0u8; receive.iter().sum()];
        comm.all_to_all_v(&inputs[me], &send[me], &mut from, &receive).unwrap();
        from
    });
    assert_eq!(got, right);
}

fn messages<C: Comm>(world: Vec<C>) {
    on_all(world, |comm| match comm.rank() {
        0 => {
            comm.send(&[1i32, 2], 1, 7).unwrap();
            comm.send(&[3i32], 1, 7).unwrap();
        }
        1 => {
            let (mut two, mut one) = ([0i32; 2], [0i32; 1]);
            comm.receive(&mut two, 0, 7).unwrap();
            comm.receive(&mut one, 0, 7).unwrap();
            assert_eq!((two, one), ([1, 2], [3]));
        }
        _ => {}
    });
}

fn splits<C: Comm>(world: Vec<C>) {
    on_all(world, |comm| {
        for _ in 0..2 {
            let rank = comm.rank();
            let colour = (rank != 5).then_some(rank % 2);
            let part = comm.split(colour, -i64::from(rank)).unwrap();
            assert_eq!(part.is_none(), rank == 5);
            let Some(part) = part else { continue };
            let size = if rank % 2 == 0 { 3 } else { 2 };
            assert_eq!((part.size(), part.rank()), (size, size - 1 - rank / 2));
            let mut sum = [rank as i64];
            part.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [if rank % 2 == 0 { 6 } else { 4 }]);
        }
        comm.barrier().unwrap();
    });
}

fn background<C: Comm>(world: Vec<C>) {
    on_all(world, |comm| {
        let pending: Vec<_> = (0..4)
            .map(|i| {
                let mut buffer = comm.buffer(8 * 100);
                buffer.as_mut_slice::<f64>().fill(f64::from(i));
                comm.start(OwnedCall::all_reduce(DType::F64, ReduceOp::Sum, buffer))
            })
            .collect();
        // In its turn, after the four.
        let mut one = [1.0f32];
        comm.all_reduce(&mut one, ReduceOp::Sum).unwrap();
        assert_eq!(one, [3.0]);
        for (i, pending) in pending.into_iter().enumerate() {
            let call = pending.wait().unwrap();
            assert!(call.output.as_slice::<f64>().iter().all(|v| *v == 3.0 * i as f64));
        }
    });
}

/// A call of a group.
fn part_of_group<'a>(
    kind: Kind,
    root: u32,
    tag: u32,
    input: Option<&'a [u8]>,
    output: &'a mut [u8],
) -> Call<'a> {
    let counts = Counts::Equal(input.map_or(output.len(), <[u8]>::len));
    let (dtype, op) = (DType::U8, ReduceOp::Max);
    Call { kind, dtype, op, root, tag, counts, input, output }
}

/// A ring both ways, of messages that no way holds at once, a message to oneself, two small ones
/// that are asked for in another order than they are sent in, and collectives.
fn group<C: Comm>(world: Vec<C>) {
    const LARGE: usize = (1 << 20) + 7;
    on_all(world, |comm| {
        let (me, ranks) = (comm.rank(), comm.size());
        let (right, left) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let large = vec![me as u8; LARGE];
        let (mut from_left, mut from_right) = (vec![99; LARGE], vec![99; LARGE]);
        let (mut one, mut two, mut own) = ([0], [0], [0; 3]);
        let (mut most, mut first) = ([me as u8; 5], [me as u8 + 1]);
        comm.run_group(vec![
            part_of_group(Kind::AllReduce, 0, 0, None, &mut most),
            part_of_group(Kind::Send, right, 1, Some(&large), &mut []),
            part_of_group(Kind::Send, left, 2, Some(&large), &mut []),
            part_of_group(Kind::Send, right, 3, Some(&[me as u8]), &mut []),
            part_of_group(Kind::Send, right, 4, Some(&[me as u8 + 100]), &mut []),
            part_of_group(Kind::Send, me, 5, Some(&[1, 2, 3]), &mut []),
            part_of_group(Kind::Receive, left, 4, None, &mut two),
            part_of_group(Kind::Receive, left, 3, None, &mut one),
            part_of_group(Kind::Receive, right, 2, None, &mut from_right),
            part_of_group(Kind::Receive, left, 1, None, &mut from_left),
            part_of_group(Kind::Receive, me, 5, None, &mut own),
            part_of_group(Kind::Broadcast, 0, 0, None, &mut first),
        ])
        .unwrap();
        assert!(from_left.iter().all(|byte| *byte == left as u8));
        assert!(from_right.iter().all(|byte| *byte == right as u8));
        assert_eq!((one[0], two[0], own), (left as u8, left as u8 + 100, [1, 2, 3]));
        assert_eq!((most, first), ([ranks as u8 - 1; 5], [1]));
        comm.run_group(Vec::new()).unwrap();
    });
}
