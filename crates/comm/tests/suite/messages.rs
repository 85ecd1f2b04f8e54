//! Messages between ranks, drawn by chance.

use proptest::prelude::*;
use regatta_comm::{Buffer, Call, Comm, Counts, DType, Kind, OwnedCall, Pending, ReduceOp};

use super::case::mix;
use super::on_all;

/// So many messages are in a group.
const GROUP: usize = 12;

/// One message.
#[derive(Debug, Clone)]
pub struct Message {
    from: u32,
    to: u32,
    tag: u32,
    dtype: DType,
    count: usize,
    seed: u64,
}

/// Messages of so many ranks, in the order in which all of them send and receive.
#[derive(Debug, Clone)]
pub struct Mail {
    pub ranks: u32,
    messages: Vec<Message>,
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        let byte = |at: usize| mix(self.seed ^ at as u64) as u8;
        (0..self.count * self.dtype.size()).map(byte).collect()
    }

    /// One side of it, at once, or begun.
    fn run(&self, comm: &dyn Comm, kind: Kind, open: &mut Vec<(Pending, Vec<u8>)>) {
        let (sends, bytes) = (kind == Kind::Send, self.bytes());
        let root = if sends { self.to } else { self.from };
        let (dtype, counts) = (self.dtype, Counts::Equal(self.count));
        let empty = vec![0; bytes.len()];
        if mix(self.seed ^ u64::from(comm.rank())).is_multiple_of(3) {
            let buffer = Buffer::from_slice(if sends { &bytes } else { &empty });
            let call =
                OwnedCall { tag: self.tag, root, ..OwnedCall::new(kind, dtype, counts, buffer) };
            open.push((comm.start(call), bytes));
            return;
        }
        let mut output = if sends { Vec::new() } else { empty };
        let input = sends.then_some(&bytes[..]);
        let (op, tag) = (ReduceOp::Sum, self.tag);
        comm.run(Call { kind, dtype, op, root, tag, counts, input, output: &mut output }).unwrap();
        assert!(sends || output == bytes, "rank {}: {self:?}", comm.rank());
    }
}

impl Mail {
    /// All that a rank sends and receives.
    pub fn play(&self, comm: &dyn Comm) {
        let mut open = Vec::new();
        for message in &self.messages {
            if message.from == comm.rank() {
                message.run(comm, Kind::Send, &mut open);
            }
            if message.to == comm.rank() {
                message.run(comm, Kind::Receive, &mut open);
            }
        }
        for (pending, right) in open {
            assert!(pending.wait().unwrap().output.bytes() == right, "rank {}", comm.rank());
        }
    }

    pub fn check<C: Comm>(&self, world: Vec<C>) {
        on_all(world, |comm| self.play(comm));
    }

    /// The same, some at a time in a group, and then the other way round: what comes first is asked
    /// for last, and only tags tell messages apart.
    pub fn check_groups<C: Comm>(&self, world: Vec<C>) {
        on_all(world, |comm| {
            for (at, messages) in self.messages.chunks(GROUP).enumerate() {
                play_group(comm, messages, at % 2 == 1);
            }
        });
    }
}

/// A rank's part in messages that are one group.
fn play_group(comm: &dyn Comm, messages: &[Message], backwards: bool) {
    let own = |message: &&Message| message.from == comm.rank() || message.to == comm.rank();
    let bytes: Vec<Vec<u8>> = messages.iter().filter(own).map(Message::bytes).collect();
    let mut outputs: Vec<Vec<u8>> = bytes.iter().map(|right| vec![0; right.len()]).collect();
    let mut calls = Vec::new();
    for ((message, right), output) in messages.iter().filter(own).zip(&bytes).zip(&mut outputs) {
        let counts = || Counts::Equal(message.count);
        let (dtype, op, tag) = (message.dtype, ReduceOp::Sum, message.tag);
        let call = |kind, root, input, output| {
            let counts = counts();
            Call { kind, dtype, op, root, tag, counts, input, output }
        };
        if message.from == comm.rank() {
            calls.push(call(Kind::Send, message.to, Some(&right[..]), &mut []));
        }
        if message.to == comm.rank() {
            calls.push(call(Kind::Receive, message.from, None, &mut output[..]));
        }
    }
    if backwards {
        // Receives before sends; messages of one tag keep their order.
        calls.sort_by_key(|call| (call.kind == Kind::Send, std::cmp::Reverse(call.tag)));
    }
    comm.run_group(calls).unwrap();
    let came = messages.iter().filter(own).zip(outputs.iter().zip(&bytes));
    for (message, (output, right)) in came.filter(|(message, _)| message.to == comm.rank()) {
        assert!(output == right, "rank {}: {message:?}", comm.rank());
    }
}

/// Any messages of so many ranks; `to_self`: a rank may send to itself.
pub fn mail(ranks: impl Strategy<Value = u32>, to_self: bool) -> impl Strategy<Value = Mail> {
    let count = prop_oneof![3 => 0usize..100, 1 => 1000usize..100_000];
    let message = (0u32..17, 0u32..17, 0u32..4, 0..DType::ALL.len(), count, any::<u64>());
    (ranks, prop::collection::vec(message, 1..40)).prop_map(move |(ranks, messages)| {
        let messages = messages.into_iter().map(|(from, to, tag, dtype, count, seed)| {
            let (from, to, dtype) = (from % ranks, to % ranks, DType::ALL[dtype]);
            Message { from, to, tag, dtype, count, seed }
        });
        let messages = messages.filter(|message| to_self || message.from != message.to).collect();
        Mail { ranks, messages }
    })
}
