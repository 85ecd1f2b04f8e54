//! What people call: collectives on slices of numbers.

use crate::dtype::{bytes_of, bytes_of_mut};
use crate::{Call, Comm, CommError, Counts, Element, Kind, ReduceOp};

/// Collectives on slices. Every [`Comm`] has them.
pub trait Collectives: Comm {
    /// All get the reduction of all ranks' `data`, in its place.
    fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len());
        self.run(Call { op, counts, output: bytes_of_mut(data), ..call::<T>(Kind::AllReduce) })
    }

    /// All get the reduction of all ranks' `input` in `output`.
    fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        let counts = Counts::Equal(output.len());
        self.run(Call { op, counts, ..filled(Kind::AllReduce, input, output) })
    }

    /// The root gets the reduction of all ranks' `data`, in its place; the others' is not changed.
    fn reduce<T: Element>(&self, data: &mut [T], op: ReduceOp, root: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len());
        self.run(Call { op, root, counts, output: bytes_of_mut(data), ..call::<T>(Kind::Reduce) })
    }

    /// The root gets the reduction of all ranks' `input` in `output`; the others' is empty.
    fn reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<(), CommError> {
        let counts = Counts::Equal(input.len());
        self.run(Call { op, root, counts, ..filled(Kind::Reduce, input, output) })
    }

    /// All get the root's `data`.
    fn broadcast<T: Element>(&self, data: &mut [T], root: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len());
        self.run(Call { root, counts, output: bytes_of_mut(data), ..call::<T>(Kind::Broadcast) })
    }

    /// All get the `part`s of all ranks, one after the other.
    fn all_gather<T: Element>(&self, part: &[T], all: &mut [T]) -> Result<(), CommError> {
        let counts = Counts::Equal(part.len());
        self.run(Call { counts, ..filled(Kind::AllGather, part, all) })
    }

    /// The same with a number of elements for each rank.
    fn all_gather_v<T: Element>(
        &self,
        part: &[T],
        all: &mut [T],
        counts: &[usize],
    ) -> Result<(), CommError> {
        self.run(Call { counts: each(counts), ..filled(Kind::AllGather, part, all) })
    }

    /// All get the parts of all ranks, which are each where they belong in `all` already.
    fn all_gather_in_place<T: Element>(&self, all: &mut [T]) -> Result<(), CommError> {
        let counts = Counts::Equal(all.len() / (self.size() as usize).max(1));
        self.run(Call { counts, output: bytes_of_mut(all), ..call::<T>(Kind::AllGather) })
    }

    /// Each gets its part of the reduction of `all`.
    fn reduce_scatter<T: Element>(
        &self,
        all: &[T],
        part: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        let counts = Counts::Equal(part.len());
        self.run(Call { op, counts, ..filled(Kind::ReduceScatter, all, part) })
    }

    /// The same with a number of elements for each rank.
    fn reduce_scatter_v<T: Element>(
        &self,
        all: &[T],
        part: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        self.run(Call { op, counts: each(counts), ..filled(Kind::ReduceScatter, all, part) })
    }

    /// Each gets its part of the reduction of `all` where that part is; what becomes of the others is
    /// not known.
    fn reduce_scatter_in_place<T: Element>(
        &self,
        all: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CommError> {
        let counts = Counts::Equal(all.len() / (self.size() as usize).max(1));
        self.run(Call { op, counts, output: bytes_of_mut(all), ..call::<T>(Kind::ReduceScatter) })
    }

    /// The root gets the `part`s of all; the others' `all` is empty.
    fn gather<T: Element>(&self, part: &[T], all: &mut [T], root: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(part.len());
        self.run(Call { root, counts, ..filled(Kind::Gather, part, all) })
    }

    /// The same with a number of elements for each rank.
    fn gather_v<T: Element>(
        &self,
        part: &[T],
        all: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<(), CommError> {
        self.run(Call { root, counts: each(counts), ..filled(Kind::Gather, part, all) })
    }

    /// Each gets its part of the root's `all`; the others' `all` is empty.
    fn scatter<T: Element>(&self, all: &[T], part: &mut [T], root: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(part.len());
        self.run(Call { root, counts, ..filled(Kind::Scatter, all, part) })
    }

    /// The same with a number of elements for each rank.
    fn scatter_v<T: Element>(
        &self,
        all: &[T],
        part: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<(), CommError> {
        self.run(Call { root, counts: each(counts), ..filled(Kind::Scatter, all, part) })
    }

    /// Each sends a part to every rank, and gets one from every rank; all are of one length.
    fn all_to_all<T: Element>(&self, to: &[T], from: &mut [T]) -> Result<(), CommError> {
        let counts = Counts::Equal(to.len() / (self.size() as usize).max(1));
        self.run(Call { counts, ..filled(Kind::AllToAll, to, from) })
    }

    /// The same in place: what goes to a rank gives way to what comes from it.
    fn all_to_all_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len() / (self.size() as usize).max(1));
        self.run(Call { counts, output: bytes_of_mut(data), ..call::<T>(Kind::AllToAll) })
    }

    /// The same with numbers of elements: what goes to each rank, and what comes from each.
    fn all_to_all_v<T: Element>(
        &self,
        to: &[T],
        send: &[usize],
        from: &mut [T],
        receive: &[usize],
    ) -> Result<(), CommError> {
        let counts = Counts::Exchange { send: send.into(), receive: receive.into() };
        self.run(Call { counts, ..filled(Kind::AllToAll, to, from) })
    }

    /// Sends to one rank, which must receive.
    fn send<T: Element>(&self, data: &[T], to: u32, tag: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len());
        self.run(Call { root: to, tag, counts, ..filled(Kind::Send, data, &mut []) })
    }

    /// Receives from one rank.
    fn receive<T: Element>(&self, data: &mut [T], from: u32, tag: u32) -> Result<(), CommError> {
        let counts = Counts::Equal(data.len());
        let output = bytes_of_mut(data);
        self.run(Call { root: from, tag, counts, output, ..call::<T>(Kind::Receive) })
    }

    /// Nobody goes on before all are here.
    fn barrier(&self) -> Result<(), CommError> {
        self.run(call::<u8>(Kind::Barrier))
    }
}

impl<C: Comm + ?Sized> Collectives for C {}

fn each(counts: &[usize]) -> Counts<'_> {
    Counts::Each(counts.into())
}

/// A call without buffers.
fn call<'a, T: Element>(kind: Kind) -> Call<'a> {
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

fn filled<'a, T: Element>(kind: Kind, input: &'a [T], output: &'a mut [T]) -> Call<'a> {
    Call { input: Some(bytes_of(input)), output: bytes_of_mut(output), ..call::<T>(kind) }
}
