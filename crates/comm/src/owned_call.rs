//! A call that owns its buffers, for asynchronous execution and device memory.

use crate::buffer::{Buffer, MemorySpace};
use crate::{Call, CallKind, CommError, Counts, DType, ReduceOp, Result};

/// A call that owns its buffers, in host or device memory.
#[derive(Debug)]
pub struct OwnedCall {
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
    pub counts: Counts<'static>,
    /// The input; `None` if it is in the output.
    pub input: Option<Buffer>,
    /// The output.
    pub output: Buffer,
}

impl OwnedCall {
    /// An in-place call with reduction sum, root 0 and tag 0.
    pub fn new(kind: CallKind, dtype: DType, counts: Counts<'static>, output: Buffer) -> Self {
        let op = ReduceOp::Sum;
        Self { kind, dtype, op, root: 0, tag: 0, counts, input: None, output }
    }

    /// An in-place all-reduce.
    pub fn all_reduce(dtype: DType, op: ReduceOp, buffer: Buffer) -> Self {
        let counts = Counts::Equal(buffer.len() / dtype.size());
        Self { op, ..Self::new(CallKind::AllReduce, dtype, counts, buffer) }
    }

    /// The memory its buffers are in, which must be the same.
    pub fn space(&self) -> Result<MemorySpace> {
        let (space, input) = (self.output.space(), self.input.as_ref().map(Buffer::space));
        if let Some(other) = input.filter(|input| *input != space) {
            let what = format!("the input is in {other}, the output in {space}");
            return Err(CommError::invalid_call(self.kind.name(), what));
        }
        Ok(space)
    }

    /// Checks the counts, the sizes of the buffers and the memory they are in.
    pub fn check(&self, rank: u32, ranks: u32) -> Result {
        self.space()?;
        let input_bytes = self.input.as_ref().map(Buffer::len);
        self.without_buffers().check_lengths(rank, ranks, input_bytes, self.output.len())
    }

    /// The call with borrowed buffers, which must be in host memory.
    ///
    /// # Panics
    /// If they are in device memory.
    pub fn as_call(&mut self) -> Call<'_> {
        let call = self.without_buffers();
        let input = self.input.as_ref().map(Buffer::bytes);
        Call { input, output: self.output.bytes_mut(), ..call }
    }

    /// The call with empty buffers.
    pub(crate) fn without_buffers(&self) -> Call<'static> {
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
