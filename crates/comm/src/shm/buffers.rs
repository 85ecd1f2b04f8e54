//! The caller's buffers as raw addresses, because in place input and output are the same bytes.

use std::marker::PhantomData;
use std::ops::Range;

use super::arena::Arena;
use crate::reduce_kernel::stream;
use crate::{Call, CallKind};

/// Outputs of this size do not stay in the caches and are written with streaming stores.
const STREAM_OUTPUT_BYTES: usize = 8 << 20;

/// Input and output of a call.
pub struct Buffers<'a> {
    input: *const u8,
    input_bytes: usize,
    output: *mut u8,
    output_bytes: usize,
    /// Offset of this rank's result in the output.
    result: usize,
    /// Whether the output is written with streaming stores.
    streaming: bool,
    /// Whether blocks are received where blocks for other ranks are.
    pub overwrites_unsent: bool,
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a> Buffers<'a> {
    pub fn new(call: Call<'a>, rank: usize) -> Self {
        let own = call.counts.offset(rank) * call.dtype.size();
        let root = call.root as usize == rank;
        // In place, contribution and result are at their positions in the full buffer.
        let in_place = call.input.is_none() || call.kind == CallKind::Broadcast;
        let (contribution, result) = match call.kind {
            CallKind::AllGather => (own, 0),
            CallKind::Gather if root => (own, 0),
            CallKind::ReduceScatter if in_place => (0, own),
            CallKind::Scatter if in_place && root => (0, own),
            _ => (0, 0),
        };
        let output = call.output.as_mut_ptr();
        let (input, input_bytes) = match call.input {
            Some(input) if !in_place => (input.as_ptr(), input.len()),
            _ => {
                let contribution = contribution.min(call.output.len());
                (output.wrapping_add(contribution).cast_const(), call.output.len() - contribution)
            }
        };
        let output_bytes = call.output.len();
        // An in-place reduction has just read the output, so it is cached.
        let cached = in_place && call.kind.reduces();
        let streaming = output_bytes >= STREAM_OUTPUT_BYTES && !cached;
        let overwrites_unsent = in_place && call.kind == CallKind::AllToAll;
        let borrow = PhantomData;
        Self {
            input,
            input_bytes,
            output,
            output_bytes,
            result,
            streaming,
            overwrites_unsent,
            borrow,
        }
    }

    /// Arena offsets of input and output, if both are in the arena and the output is a whole
    /// buffer.
    pub fn in_arena(&self, arena: &Arena, bytes: usize) -> Option<(usize, usize)> {
        let full_size = self.output_bytes == bytes && self.input_bytes == bytes;
        let output = full_size.then(|| arena.find_exact(self.output, bytes))??;
        Some((arena.find(self.input, bytes)?, output))
    }

    /// Address and length of the input.
    pub fn whole_input(&self) -> (*const u8, usize) {
        (self.input, self.input_bytes)
    }

    /// Bytes of the input.
    ///
    /// # Safety
    /// The bytes must not be written while they are borrowed.
    pub unsafe fn input(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.input_bytes);
        // SAFETY: in bounds, and as required of the caller.
        unsafe { std::slice::from_raw_parts(self.input.add(range.start), range.len()) }
    }

    /// Bytes of the result.
    ///
    /// # Safety
    /// The bytes must not be accessed otherwise while they are borrowed.
    #[allow(clippy::mut_from_ref, reason = "the caller guarantees disjoint ranges")]
    pub unsafe fn output(&self, range: Range<usize>) -> &mut [u8] {
        let (start, end) = (self.result + range.start, self.result + range.end);
        assert!(start <= end && end <= self.output_bytes);
        // SAFETY: in bounds, and as required of the caller.
        unsafe { std::slice::from_raw_parts_mut(self.output.add(start), range.len()) }
    }

    /// Writes result bytes.
    ///
    /// # Safety
    /// As for [`Buffers::output`].
    pub unsafe fn write(&self, range: Range<usize>, data: &[u8]) {
        // SAFETY: as required of the caller.
        let out = unsafe { self.output(range) };
        if self.streaming { stream::copy(out, data) } else { out.copy_from_slice(data) }
    }

    /// Copies a block of the input to the output, unless they are the same bytes.
    pub fn copy_block(&self, input: usize, output: Range<usize>) {
        if !self.is_aliased(input, output.start) {
            let bytes = output.len();
            // SAFETY: out of place, input and output are disjoint.
            unsafe { self.write(output, self.input(input..input + bytes)) };
        }
    }

    /// Whether these input and output offsets are the same address.
    pub fn is_aliased(&self, input: usize, output: usize) -> bool {
        std::ptr::eq(self.input.wrapping_add(input), self.output.wrapping_add(self.result + output))
    }
}

/// Streaming stores must be visible to other threads of the rank after the call.
impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        if self.streaming {
            stream::sfence();
        }
    }
}
