//! The typed interface: collectives on slices.

use crate::dtype::{bytes_of, bytes_of_mut};
use crate::{Call, CallKind, Comm, Counts, Element, ReduceOp, Result};

/// Collectives on slices, for every [`Comm`].
pub trait Collectives: Comm {
    /// Reduces `data` over all ranks, in place.
    fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result {
        self.run(Call { op, ..in_place(CallKind::AllReduce, data.len(), data) })
    }

    /// Reduces `input` over all ranks into `output`.
    fn all_reduce_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result {
        let counts = Counts::Equal(output.len());
        self.run(Call { op, ..out_of_place(CallKind::AllReduce, counts, input, output) })
    }

    /// Reduces `data` over all ranks in place at the root. Other ranks' `data` is unchanged.
    fn reduce<T: Element>(&self, data: &mut [T], op: ReduceOp, root: u32) -> Result {
        self.run(Call { op, root, ..in_place(CallKind::Reduce, data.len(), data) })
    }

    /// Reduces `input` over all ranks into the root's `output`, which is empty on other ranks.
    fn reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result {
        let counts = Counts::Equal(input.len());
        self.run(Call { op, root, ..out_of_place(CallKind::Reduce, counts, input, output) })
    }

    /// Copies the root's `data` to all ranks.
    fn broadcast<T: Element>(&self, data: &mut [T], root: u32) -> Result {
        self.run(Call { root, ..in_place(CallKind::Broadcast, data.len(), data) })
    }

    /// Concatenates the `part`s of all ranks in rank order.
    fn all_gather<T: Element>(&self, part: &[T], all: &mut [T]) -> Result {
        let counts = Counts::Equal(part.len());
        self.run(out_of_place(CallKind::AllGather, counts, part, all))
    }

    /// The same with an element count per rank.
    fn all_gather_v<T: Element>(&self, part: &[T], all: &mut [T], counts: &[usize]) -> Result {
        self.run(out_of_place(CallKind::AllGather, per_rank(counts), part, all))
    }

    /// An all-gather whose own part is already at its position in `all`.
    fn all_gather_in_place<T: Element>(&self, all: &mut [T]) -> Result {
        let count = all.len() / (self.size() as usize).max(1);
        self.run(in_place(CallKind::AllGather, count, all))
    }

    /// Reduces `all` over all ranks and returns this rank's part.
    fn reduce_scatter<T: Element>(&self, all: &[T], part: &mut [T], op: ReduceOp) -> Result {
        let counts = Counts::Equal(part.len());
        self.run(Call { op, ..out_of_place(CallKind::ReduceScatter, counts, all, part) })
    }

    /// The same with an element count per rank.
    fn reduce_scatter_v<T: Element>(
        &self,
        all: &[T],
        part: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result {
        let counts = per_rank(counts);
        self.run(Call { op, ..out_of_place(CallKind::ReduceScatter, counts, all, part) })
    }

    /// The same with the result at its position in `all`. The other parts are unspecified.
    fn reduce_scatter_in_place<T: Element>(&self, all: &mut [T], op: ReduceOp) -> Result {
        let count = all.len() / (self.size() as usize).max(1);
        self.run(Call { op, ..in_place(CallKind::ReduceScatter, count, all) })
    }

    /// Concatenates the `part`s of all ranks at the root. `all` is empty on other ranks.
    fn gather<T: Element>(&self, part: &[T], all: &mut [T], root: u32) -> Result {
        let counts = Counts::Equal(part.len());
        self.run(Call { root, ..out_of_place(CallKind::Gather, counts, part, all) })
    }

    /// The same with an element count per rank.
    fn gather_v<T: Element>(
        &self,
        part: &[T],
        all: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result {
        self.run(Call { root, ..out_of_place(CallKind::Gather, per_rank(counts), part, all) })
    }

    /// Distributes the parts of the root's `all`, which is empty on other ranks.
    fn scatter<T: Element>(&self, all: &[T], part: &mut [T], root: u32) -> Result {
        let counts = Counts::Equal(part.len());
        self.run(Call { root, ..out_of_place(CallKind::Scatter, counts, all, part) })
    }

    /// The same with an element count per rank.
    fn scatter_v<T: Element>(
        &self,
        all: &[T],
        part: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result {
        self.run(Call { root, ..out_of_place(CallKind::Scatter, per_rank(counts), all, part) })
    }

    /// Sends a part to every rank and receives one from every rank, all of equal size.
    fn all_to_all<T: Element>(&self, to: &[T], from: &mut [T]) -> Result {
        let counts = Counts::Equal(to.len() / (self.size() as usize).max(1));
        self.run(out_of_place(CallKind::AllToAll, counts, to, from))
    }

    /// The same in place: the part sent to a rank is replaced by the one received from it.
    fn all_to_all_in_place<T: Element>(&self, data: &mut [T]) -> Result {
        let count = data.len() / (self.size() as usize).max(1);
        self.run(in_place(CallKind::AllToAll, count, data))
    }

    /// The same with send and receive counts per rank.
    fn all_to_all_v<T: Element>(
        &self,
        to: &[T],
        send: &[usize],
        from: &mut [T],
        receive: &[usize],
    ) -> Result {
        let counts = Counts::PerPair { send: send.into(), receive: receive.into() };
        self.run(out_of_place(CallKind::AllToAll, counts, to, from))
    }

    /// Sends to one rank, which must post a matching receive.
    fn send<T: Element>(&self, data: &[T], to: u32, tag: u32) -> Result {
        let counts = Counts::Equal(data.len());
        self.run(Call { root: to, tag, ..out_of_place(CallKind::Send, counts, data, &mut []) })
    }

    /// Receives from one rank.
    fn receive<T: Element>(&self, data: &mut [T], from: u32, tag: u32) -> Result {
        self.run(Call { root: from, tag, ..in_place(CallKind::Receive, data.len(), data) })
    }

    /// Returns when all ranks have entered the barrier.
    fn barrier(&self) -> Result {
        self.run(in_place::<u8>(CallKind::Barrier, 0, &mut []))
    }
}

impl<C: Comm + ?Sized> Collectives for C {}

fn per_rank(counts: &[usize]) -> Counts<'_> {
    Counts::PerRank(counts.into())
}

fn in_place<T: Element>(kind: CallKind, count: usize, data: &mut [T]) -> Call<'_> {
    Call::new(kind, T::DTYPE, Counts::Equal(count), bytes_of_mut(data))
}

fn out_of_place<'a, T: Element>(
    kind: CallKind,
    counts: Counts<'a>,
    input: &'a [T],
    output: &'a mut [T],
) -> Call<'a> {
    let call = Call::new(kind, T::DTYPE, counts, bytes_of_mut(output));
    Call { input: Some(bytes_of(input)), ..call }
}
