//! The typed interface: collectives on slices.

use crate::dtype::{bytes_of, bytes_of_mut};
use crate::{Call, CallKind, Comm, CommError, Counts, Element, ReduceOp};

/// Collectives on slices, for every [`Comm`].
pub trait Collectives: Comm {
    /// Reduces `data` over all ranks, in place.
    fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len());
        self.run(Call { op, counts, output: bytes_of_mut(data), ..call::<T>(CallKind::AllReduce) })
    }

    /// Reduces `input` over all ranks into `output`.
    fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        let counts = Counts::Equal(output.len());
        self.run(Call { op, counts, ..with_buffers(CallKind::AllReduce, input, output) })
    }

    /// Reduces `data` over all ranks in place at the root. Other ranks' `data` is unchanged.
    fn reduce<T: Element>(&self, data: &mut [T], op: ReduceOp, root: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len());
        self.run(Call {
            op,
            root,
            counts,
            output: bytes_of_mut(data),
            ..call::<T>(CallKind::Reduce)
        })
    }

    /// Reduces `input` over all ranks into the root's `output`, which is empty on other ranks.
    fn reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<(), CommError> {
        let counts = Counts::Equal(input.len());
        self.run(Call { op, root, counts, ..with_buffers(CallKind::Reduce, input, output) })
    }

    /// Copies the root's `data` to all ranks.
    fn broadcast<T: Element>(&self, data: &mut [T], root: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len());
        self.run(Call {
            root,
            counts,
            output: bytes_of_mut(data),
            ..call::<T>(CallKind::Broadcast)
        })
    }

    /// Concatenates the `part`s of all ranks in rank order.
    fn all_gather<T: Element>(&self, part: &[T], all: &mut [T]) -> Result<(), CommError> {
        let counts = Counts::Equal(part.len());
        self.run(Call { counts, ..with_buffers(CallKind::AllGather, part, all) })
    }

    /// The same with an element count per rank.
    fn all_gather_v<T: Element>(
        &self,
        part: &[T],
        all: &mut [T],
        counts: &[usize],
    ) -> Result<(), CommError> {
        self.run(Call { counts: per_rank(counts), ..with_buffers(CallKind::AllGather, part, all) })
    }

    /// An all-gather whose own part is already at its position in `all`.
    fn all_gather_in_place<T: Element>(&self, all: &mut [T]) -> Result<(), CommError> {
        let counts = Counts::Equal(all.len() / (self.size() as usize).max(1));
        self.run(Call { counts, output: bytes_of_mut(all), ..call::<T>(CallKind::AllGather) })
    }

    /// Reduces `all` over all ranks and returns this rank's part.
    fn reduce_scatter<T: Element>(
        &self,
        all: &[T],
        part: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        let counts = Counts::Equal(part.len());
        self.run(Call { op, counts, ..with_buffers(CallKind::ReduceScatter, all, part) })
    }

    /// The same with an element count per rank.
    fn reduce_scatter_v<T: Element>(
        &self,
        all: &[T],
        part: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        self.run(Call {
            op,
            counts: per_rank(counts),
            ..with_buffers(CallKind::ReduceScatter, all, part)
        })
    }

    /// The same with the result at its position in `all`. The other parts are unspecified.
    fn reduce_scatter_in_place<T: Element>(
        &self,
        all: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        let counts = Counts::Equal(all.len() / (self.size() as usize).max(1));
        self.run(Call {
            op,
            counts,
            output: bytes_of_mut(all),
            ..call::<T>(CallKind::ReduceScatter)
        })
    }

    /// Concatenates the `part`s of all ranks at the root. `all` is empty on other ranks.
    fn gather<T: Element>(&self, part: &[T], all: &mut [T], root: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(part.len());
        self.run(Call { root, counts, ..with_buffers(CallKind::Gather, part, all) })
    }

    /// The same with an element count per rank.
    fn gather_v<T: Element>(
        &self,
        part: &[T],
        all: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<(), CommError> {
        self.run(Call {
            root,
            counts: per_rank(counts),
            ..with_buffers(CallKind::Gather, part, all)
        })
    }

    /// Distributes the parts of the root's `all`, which is empty on other ranks.
    fn scatter<T: Element>(&self, all: &[T], part: &mut [T], root: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(part.len());
        self.run(Call { root, counts, ..with_buffers(CallKind::Scatter, all, part) })
    }

    /// The same with an element count per rank.
    fn scatter_v<T: Element>(
        &self,
        all: &[T],
        part: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<(), CommError> {
        self.run(Call {
            root,
            counts: per_rank(counts),
            ..with_buffers(CallKind::Scatter, all, part)
        })
    }

    /// Sends a part to every rank and receives one from every rank, all of equal size.
    fn all_to_all<T: Element>(&self, to: &[T], from: &mut [T]) -> Result<(), CommError> {
        let counts = Counts::Equal(to.len() / (self.size() as usize).max(1));
        self.run(Call { counts, ..with_buffers(CallKind::AllToAll, to, from) })
    }

    /// The same in place: the part sent to a rank is replaced by the one received from it.
    fn all_to_all_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len() / (self.size() as usize).max(1));
        self.run(Call { counts, output: bytes_of_mut(data), ..call::<T>(CallKind::AllToAll) })
    }

    /// The same with send and receive counts per rank.
    fn all_to_all_v<T: Element>(
        &self,
        to: &[T],
        send: &[usize],
        from: &mut [T],
        receive: &[usize],
    ) -> Result<(), CommError> {
        let counts = Counts::PerPair { send: send.into(), receive: receive.into() };
        self.run(Call { counts, ..with_buffers(CallKind::AllToAll, to, from) })
    }

    /// Sends to one rank, which must post a matching receive.
    fn send<T: Element>(&self, data: &[T], to: u32, tag: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len());
        self.run(Call { root: to, tag, counts, ..with_buffers(CallKind::Send, data, &mut []) })
    }

    /// Receives from one rank.
    fn receive<T: Element>(&self, data: &mut [T], from: u32, tag: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len());
        let output = bytes_of_mut(data);
        self.run(Call { root: from, tag, counts, output, ..call::<T>(CallKind::Receive) })
    }

    /// Returns when all ranks have entered the barrier.
    fn barrier(&self) -> Result<(), CommError> {
        self.run(call::<u8>(CallKind::Barrier))
    }
}

impl<C: Comm + ?Sized> Collectives for C {}

fn per_rank(counts: &[usize]) -> Counts<'_> {
    Counts::PerRank(counts.into())
}

/// A call without buffers.
fn call<'a, T: Element>(kind: CallKind) -> Call<'a> {
    Call {
        kind,
        dtype: T::DTYPE,
        op: ReduceOp::Sum,
        root: 0,
        tag: 0,
        counts: Counts::Equal(0),
        input: None,
        output: &mut [],
    }
}

fn with_buffers<'a, T: Element>(kind: CallKind, input: &'a [T], output: &'a mut [T]) -> Call<'a> {
    Call { input: Some(bytes_of(input)), output: bytes_of_mut(output), ..call::<T>(kind) }
}
