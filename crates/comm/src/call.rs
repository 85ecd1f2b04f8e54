//! A collective or message as data. The part that ranks must agree on is its [`Signature`].

use std::fmt::Display;
use std::ops::Range;

use regatta_model::hash::fnv1a;
use serde::{Deserialize, Serialize};

use crate::counts::Counts;
use crate::enum_names::enum_names;
use crate::{CommError, DType, ReduceOp, Result};

/// The collective or point-to-point operation of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallKind {
    /// All ranks get the reduction of all inputs.
    AllReduce,
    /// The root gets the reduction of all inputs.
    Reduce,
    /// All ranks get the root's data.
    Broadcast,
    /// All ranks get the parts of all ranks, in rank order.
    AllGather,
    /// Each rank gets its part of the reduction of all inputs.
    ReduceScatter,
    /// The root gets the parts of all ranks.
    Gather,
    /// Each rank gets its part of the root's data.
    Scatter,
    /// Each rank sends a part to every rank and gets one from every rank.
    AllToAll,
    /// Returns when all ranks have entered it.
    Barrier,
    /// Sends to one rank.
    Send,
    /// Receives from one rank.
    Receive,
}

enum_names!(CallKind, "All collectives.",
    AllReduce "all-reduce", Reduce "reduce", Broadcast "broadcast", AllGather "all-gather",
    ReduceScatter "reduce-scatter", Gather "gather", Scatter "scatter", AllToAll "all-to-all",
    Barrier "barrier"; Send "send", Receive "receive");

impl CallKind {
    /// The kind with this discriminant.
    pub(crate) fn from_index(index: usize) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Send, Self::Receive]).nth(index)
    }

    /// Whether it reduces elements.
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether all participating ranks have the same element count.
    pub fn has_uniform_count(self) -> bool {
        self.is_p2p() || matches!(self, Self::AllReduce | Self::Reduce | Self::Broadcast)
    }

    /// Whether it has a root.
    pub fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }

    /// Whether it is a point-to-point operation.
    pub fn is_p2p(self) -> bool {
        matches!(self, Self::Send | Self::Receive)
    }
}

/// A call, as one rank issues it.
///
/// | kind | counts | input | output |
/// |---|---|---|---|
/// | all-reduce | of the buffer | count | count |
/// | reduce | of the buffer | count | count at the root, else none |
/// | broadcast | of the buffer | none | count; read at the root |
/// | all-gather | of each rank's part | own part | all parts |
/// | reduce-scatter | of each rank's part | all parts | own part |
/// | gather | of each rank's part | own part | all parts at the root, else none |
/// | scatter | of each rank's part | all parts at the root, else none | own part |
/// | all-to-all | of each part | a part for each rank | a part from each rank |
/// | send | of the buffer | count | none |
/// | receive | of the buffer | none | count |
///
/// In place (`input` is `None`), the input is at its position in the output: the rank's own part for
/// all-gather and gather. For scatter and reduce-scatter the output holds all parts, and the rank's
/// own part is the result. An in-place all-to-all receives from each rank as much as it sends there.
#[derive(Debug)]
pub struct Call<'a> {
    /// The collective.
    pub kind: CallKind,
    /// The element type.
    pub dtype: DType,
    /// The reduction, if there is one.
    pub op: ReduceOp,
    /// The root; for send and receive, the peer.
    pub root: u32,
    /// Distinguishes messages between the same two ranks.
    pub tag: u32,
    /// The element counts.
    pub counts: Counts<'a>,
    /// The input; `None` if it is in the output.
    pub input: Option<&'a [u8]>,
    /// The output.
    pub output: &'a mut [u8],
}

/// The properties of a call that all ranks must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signature {
    /// The collective.
    pub kind: CallKind,
    /// The element type.
    pub dtype: DType,
    /// The reduction; sum if there is none.
    pub op: ReduceOp,
    /// The root; 0 if there is none.
    pub root: u32,
    /// The element count of all ranks together; 0 if it differs between ranks.
    pub count: u64,
    /// A hash of the counts per rank; 0 if they are equal.
    pub shape: u64,
}

/// The shape of calls whose counts are private to each rank.
const PER_PAIR: u64 = 1;

impl Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.kind.fmt(f)?;
        match self.kind {
            CallKind::Barrier => {}
            CallKind::AllToAll if self.shape == PER_PAIR => {
                write!(f, " of {}, with per-pair counts", self.dtype)?;
            }
            _ => write!(f, " of {} {}", self.count, self.dtype)?,
        }
        if self.kind.reduces() {
            write!(f, ", {}", self.op)?;
        }
        if self.kind.has_root() {
            write!(f, ", root {}", self.root)?;
        }
        Ok(())
    }
}

impl<'a> Call<'a> {
    /// An in-place call with reduction sum, root 0 and tag 0.
    pub fn new(kind: CallKind, dtype: DType, counts: Counts<'a>, output: &'a mut [u8]) -> Self {
        Self { kind, dtype, op: ReduceOp::Sum, root: 0, tag: 0, counts, input: None, output }
    }
}

impl Call<'_> {
    /// The signature, which must be the same on all ranks.
    #[inline]
    pub fn signature(&self, ranks: usize) -> Signature {
        let count = match &self.counts {
            Counts::PerPair { .. } => 0,
            counts if self.kind.has_uniform_count() => counts.of(0) as u64,
            counts => counts.total(ranks) as u64,
        };
        let shape = match &self.counts {
            Counts::Equal(_) => 0,
            Counts::PerRank(counts) => fnv1a(counts.iter().flat_map(|c| (*c as u64).to_le_bytes())),
            Counts::PerPair { .. } => PER_PAIR,
        };
        Signature {
            kind: self.kind,
            dtype: self.dtype,
            op: if self.kind.reduces() { self.op } else { ReduceOp::Sum },
            root: if self.kind.has_root() { self.root } else { 0 },
            count,
            shape,
        }
    }

    /// Checks the counts and the sizes of the buffers.
    pub fn check(&self, rank: u32, ranks: u32) -> Result {
        self.check_lengths(rank, ranks, self.input.map(<[u8]>::len), self.output.len())
    }

    /// The same for buffers of these sizes in bytes.
    #[inline]
    pub(crate) fn check_lengths(
        &self,
        rank: u32,
        ranks: u32,
        input_bytes: Option<usize>,
        output_bytes: usize,
    ) -> Result {
        let invalid = |what: String| Err(CommError::invalid_call(self.kind.name(), what));
        let root = self.root;
        if (self.kind.is_p2p() || self.kind.has_root()) && root >= ranks {
            let what = format!("rank {root} is out of range: the communicator has {ranks} ranks");
            return invalid(what);
        }
        let size = self.dtype.size();
        let in_place = input_bytes.is_none();
        let valid = self.counts.validate(self.kind, rank as usize, ranks as usize, in_place);
        if let Err(what) = valid.and_then(|()| self.counts.check_size(ranks as usize, size)) {
            return invalid(what);
        }
        let (input, output) = self.lengths(rank as usize, ranks as usize);
        match input_bytes {
            Some(bytes) if bytes != input * size => {
                invalid(format!("the input has {} elements, {input} are needed", bytes / size))
            }
            _ if output_bytes != output * size => {
                let have = output_bytes / size;
                invalid(format!("the output has {have} elements, {output} are needed"))
            }
            _ => Ok(()),
        }
    }

    /// The bytes of a rank's block in a buffer with all blocks.
    pub(crate) fn own_block(&self, rank: usize) -> Range<usize> {
        let (size, start) = (self.dtype.size(), self.counts.offset(rank));
        start * size..(start + self.counts.of(rank)) * size
    }

    /// The bytes that a rank contributes.
    #[inline]
    pub fn contribution(&self, rank: usize) -> &[u8] {
        let root = self.root as usize == rank;
        match (self.input, self.kind) {
            (_, CallKind::Broadcast) if root => self.output,
            (_, CallKind::Broadcast | CallKind::Receive | CallKind::Barrier) => &[],
            (Some(input), _) => input,
            (None, CallKind::Scatter) if !root => &[],
            (None, CallKind::AllGather) => &self.output[self.own_block(rank)],
            (None, CallKind::Gather) if root => &self.output[self.own_block(rank)],
            (None, _) => self.output,
        }
    }

    /// The output bytes of a rank's result.
    #[inline]
    pub fn result_range(&self, rank: usize) -> Range<usize> {
        let (root, in_place) = (self.root as usize == rank, self.input.is_none());
        match self.kind {
            CallKind::Send => 0..0,
            CallKind::Reduce | CallKind::Gather if !root => 0..0,
            CallKind::ReduceScatter if in_place => self.own_block(rank),
            CallKind::Scatter if in_place && root => self.own_block(rank),
            _ => 0..self.output.len(),
        }
    }

    /// The element counts of this rank's input and output.
    #[inline]
    pub fn lengths(&self, rank: usize, ranks: usize) -> (usize, usize) {
        let (part, all) = (self.counts.of(rank), self.counts.total(ranks));
        let root = self.root as usize == rank;
        let in_place = self.input.is_none();
        match self.kind {
            CallKind::Barrier => (0, 0),
            CallKind::AllReduce => (part, part),
            // In place, ranks other than the root provide their data in the output.
            CallKind::Reduce => (part, if root || in_place { part } else { 0 }),
            CallKind::Broadcast | CallKind::Receive => (0, part),
            CallKind::Send => (part, if in_place { part } else { 0 }),
            CallKind::AllGather => (part, all),
            CallKind::ReduceScatter => (all, if in_place { all } else { part }),
            CallKind::Gather if root => (part, all),
            CallKind::Gather => (part, if in_place { part } else { 0 }),
            CallKind::Scatter if root => (all, if in_place { all } else { part }),
            CallKind::Scatter => (0, part),
            CallKind::AllToAll => (self.counts.send_block(ranks).0, all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: CallKind, counts: Counts<'static>) -> Call<'static> {
        Call { root: 1, input: Some(&[]), ..Call::new(kind, DType::F32, counts, &mut []) }
    }

    #[test]
    fn signatures_ignore_private_counts() {
        let exchange = |send: &[usize]| {
            let counts = Counts::PerPair { send: send.to_vec().into(), receive: vec![].into() };
            call(CallKind::AllToAll, counts).signature(2)
        };
        assert_eq!(exchange(&[1, 2]), exchange(&[0, 7]));
        assert_eq!(exchange(&[]).to_string(), "all-to-all of f32, with per-pair counts");
        let even = call(CallKind::AllToAll, Counts::Equal(0)).signature(2);
        assert_ne!(exchange(&[]), even);
        // The count of a message does not depend on the number of ranks.
        let message = call(CallKind::Send, Counts::Equal(3)).signature(5);
        assert_eq!(message.to_string(), "send of 3 f32");
    }

    #[test]
    fn invalid_counts_are_rejected() {
        let error = |kind, counts| call(kind, counts).check(0, 2).unwrap_err().to_string();
        let per_rank = || Counts::PerRank(vec![0, 0].into());
        let exchange = |send: &[usize], receive: &[usize]| Counts::PerPair {
            send: send.to_vec().into(),
            receive: receive.to_vec().into(),
        };
        assert!(error(CallKind::AllToAll, per_rank()).contains("Counts::PerPair"));
        assert!(error(CallKind::AllReduce, per_rank()).contains("Counts::Equal"));
        assert!(error(CallKind::AllGather, exchange(&[], &[])).contains("only an all-to-all"));
        assert!(error(CallKind::AllToAll, exchange(&[1, 0], &[2, 0])).contains("itself"));
        assert!(error(CallKind::AllToAll, exchange(&[1], &[1, 0])).contains("2 ranks"));
        assert!(error(CallKind::AllGather, Counts::PerRank(vec![1].into())).contains("1 counts"));
        let huge = Counts::PerRank(vec![usize::MAX, 5].into());
        assert!(error(CallKind::AllGather, huge).contains("address space"));
        let in_place = Call { input: None, ..call(CallKind::AllToAll, exchange(&[0, 1], &[0, 2])) };
        assert!(in_place.check(0, 2).unwrap_err().to_string().contains("in-place"));
    }
}
