//! Random point-to-point messages.

use proptest::prelude::*;
use regatta_comm::{Buffer, Call, CallKind, Comm, Counts, DType, OwnedCall, Pending};
use regatta_testbed::reference::hash64;

use super::on_all_ranks;

/// Messages per group.
const GROUP: usize = 12;

#[derive(Debug, Clone)]
pub struct TestMessage {
    from: u32,
    to: u32,
    tag: u32,
    dtype: DType,
    count: usize,
    seed: u64,
}

/// Messages in the order in which all ranks send and receive them.
#[derive(Debug, Clone)]
pub struct MessageSequence {
    pub ranks: u32,
    messages: Vec<TestMessage>,
}

impl TestMessage {
    fn bytes(&self) -> Vec<u8> {
        let byte = |at: usize| hash64(self.seed ^ at as u64) as u8;
        (0..self.count * self.dtype.size()).map(byte).collect()
    }

    /// Runs one side, either blocking or in the background.
    fn run(&self, comm: &dyn Comm, kind: CallKind, open: &mut Vec<(Pending, Vec<u8>)>) {
        let (sends, bytes) = (kind == CallKind::Send, self.bytes());
        let root = if sends { self.to } else { self.from };
        let (dtype, counts) = (self.dtype, Counts::Equal(self.count));
        let empty = vec![0; bytes.len()];
        if hash64(self.seed ^ u64::from(comm.rank())).is_multiple_of(3) {
            let buffer = Buffer::from_slice(if sends { &bytes } else { &empty });
            let call = OwnedCall::new(kind, dtype, counts, buffer);
            let pending = comm.start(OwnedCall { tag: self.tag, root, ..call });
            return open.push((pending, bytes));
        }
        let mut output = if sends { Vec::new() } else { empty };
        let input = sends.then_some(&bytes[..]);
        let call = Call::new(kind, dtype, counts, &mut output);
        comm.run(Call { root, tag: self.tag, input, ..call }).unwrap();
        assert!(sends || output == bytes, "rank {}: {self:?}", comm.rank());
    }
}

impl MessageSequence {
    /// Runs this rank's side of all messages.
    pub fn run(&self, comm: &dyn Comm) {
        let mut open = Vec::new();
        for message in &self.messages {
            if message.from == comm.rank() {
                message.run(comm, CallKind::Send, &mut open);
            }
            if message.to == comm.rank() {
                message.run(comm, CallKind::Receive, &mut open);
            }
        }
        for (pending, expected) in open {
            assert!(pending.wait().unwrap().output.bytes() == expected, "rank {}", comm.rank());
        }
    }

    pub fn check<C: Comm>(&self, world: Vec<C>) {
        on_all_ranks(world, |comm| self.run(comm));
    }

    /// Runs the messages in groups, every second group in reverse order, so that only tags identify
    /// messages.
    pub fn check_groups<C: Comm>(&self, world: Vec<C>) {
        on_all_ranks(world, |comm| {
            for (at, messages) in self.messages.chunks(GROUP).enumerate() {
                run_group_on_rank(comm, messages, at % 2 == 1);
            }
        });
    }
}

/// Runs this rank's side of a group.
fn run_group_on_rank(comm: &dyn Comm, messages: &[TestMessage], reversed: bool) {
    let own = |message: &&TestMessage| message.from == comm.rank() || message.to == comm.rank();
    let bytes: Vec<Vec<u8>> = messages.iter().filter(own).map(TestMessage::bytes).collect();
    let mut outputs: Vec<Vec<u8>> = bytes.iter().map(|expected| vec![0; expected.len()]).collect();
    let mut calls = Vec::new();
    for ((message, expected), output) in messages.iter().filter(own).zip(&bytes).zip(&mut outputs) {
        let call = |kind, root, input, output| {
            let call = Call::new(kind, message.dtype, Counts::Equal(message.count), output);
            Call { root, tag: message.tag, input, ..call }
        };
        if message.from == comm.rank() {
            calls.push(call(CallKind::Send, message.to, Some(&expected[..]), &mut []));
        }
        if message.to == comm.rank() {
            calls.push(call(CallKind::Receive, message.from, None, &mut output[..]));
        }
    }
    if reversed {
        // Receives before sends; messages with the same tag keep their order.
        calls.sort_by_key(|call| (call.kind == CallKind::Send, std::cmp::Reverse(call.tag)));
    }
    comm.run_group(calls).unwrap();
    let came = messages.iter().filter(own).zip(outputs.iter().zip(&bytes));
    for (message, (output, expected)) in came.filter(|(message, _)| message.to == comm.rank()) {
        assert!(output == expected, "rank {}: {message:?}", comm.rank());
    }
}

/// Any messages between the ranks; `to_self`: a rank may send to itself.
pub fn sequence(
    ranks: impl Strategy<Value = u32>,
    to_self: bool,
) -> impl Strategy<Value = MessageSequence> {
    let count = prop_oneof![3 => 0usize..100, 1 => 1000usize..100_000];
    let message = (0u32..17, 0u32..17, 0u32..4, 0..DType::ALL.len(), count, any::<u64>());
    (ranks, prop::collection::vec(message, 1..40)).prop_map(move |(ranks, messages)| {
        let messages = messages.into_iter().map(|(from, to, tag, dtype, count, seed)| {
            let (from, to, dtype) = (from % ranks, to % ranks, DType::ALL[dtype]);
            TestMessage { from, to, tag, dtype, count, seed }
        });
        let messages = messages.filter(|message| to_self || message.from != message.to).collect();
        MessageSequence { ranks, messages }
    })
}
