//! A collective that owns its buffers, so that it can go on while the caller does something else,
//! and that may have them on a device.

use crate::buffer::{Buffer, Space};
use crate::{Call, CommError, Counts, DType, Kind, ReduceOp};

/// A collective that owns its buffers.
#[derive(Debug)]
pub struct OwnedCall {
    /// Which collective.
    pub kind: Kind,
    /// Of what.
    pub dtype: DType,
    /// How elements are reduced, if they are.
    pub op: ReduceOp,
    /// The root; of send and receive, the other rank.
    pub root: u32,
    /// Tells messages between the same two ranks apart.
    pub tag: u32,
    /// How many elements.
    pub counts: Counts<'static>,
    /// What goes in; `None`: it is in the output.
    pub input: Option<Buffer>,
    /// What comes out.
    pub output: Buffer,
}

impl OwnedCall {
    /// A collective in place; what it does not say is sum, root 0 and tag 0.
    pub fn new(kind: Kind, dtype: DType, counts: Counts<'static>, output: Buffer) -> Self {
        let op = ReduceOp::Sum;
        Self { kind, dtype, op, root: 0, tag: 0, counts, input: None, output }
    }

    /// An all-reduce in place.
    pub fn all_reduce(dtype: DType, op: ReduceOp, buffer: Buffer) -> Self {
        let counts = Counts::Equal(buffer.len() / dtype.size());
        Self { op, ..Self::new(Kind::AllReduce, dtype, counts, buffer) }
    }

    /// Where its buffers lie: all together, or it is an error.
    pub fn space(&self) -> Result<Space, CommError> {
        let (space, input) = (self.output.space(), self.input.as_ref().map(Buffer::space));
        match input {
            Some(other) if other != space => Err(CommError::Shape {
                call: self.kind.name(),
                what: format!("the input lies in {other}, the output in {space}"),
            }),
            _ => Ok(space),
        }
    }

    /// Whether its counts make sense, its buffers have the lengths that they ask for, and lie
    /// together.
    pub fn check(&self, rank: u32, ranks: u32) -> Result<(), CommError> {
        self.space()?;
        let given = self.input.as_ref().map(Buffer::len);
        self.described().check_lengths(rank, ranks, given, self.output.len())
    }

    /// The call, with the buffers lent. They must lie in host memory.
    ///
    /// # Panics
    /// If they do not.
    pub fn as_call(&mut self) -> Call<'_> {
        let input = self.input.as_ref().map(Buffer::bytes);
        Call {
            kind: self.kind,
            dtype: self.dtype,
            op: self.op,
            root: self.root,
            tag: self.tag,
            counts: self.counts.clone(),
            input,
            output: self.output.bytes_mut(),
        }
    }

    /// The call without its bytes, wherever they lie.
    pub(crate) fn described(&self) -> Call<'static> {
        Call {
            kind: self.kind,
            dtype: self.dtype,
            op: self.op,
            root: self.root,
            tag: self.tag,
            counts: self.counts.clone(),
            input: self.input.as_ref().map(|_| &[] as &[u8]),
            output: &mut [],
        }
    }
}
