//! The caller's buffers, by address: in place, input and output are the same bytes.

use std::marker::PhantomData;
use std::ops::Range;

use super::arena::Arena;
use crate::kernel::stream;
use crate::{Call, Kind};

/// An output of this size is not in the caches when it is read, and need not push out what is.
const STREAM_OUTPUT_BYTES: usize = 8 << 20;

/// Input and output of a call.
pub struct Buffers<'a> {
    input: *const u8,
    input_bytes: usize,
    output: *mut u8,
    output_bytes: usize,
    /// Where this rank's result begins in the output.
    result: usize,
    /// Whether it is written past the caches.
    streams: bool,
    lent: PhantomData<&'a mut [u8]>,
}

impl<'a> Buffers<'a> {
    pub fn new(call: Call<'a>, rank: usize) -> Self {
        let own = call.counts.offset(rank) * call.dtype.size();
        let root = call.root as usize == rank;
        // What is given in place, and what is got there, is where it belongs in the whole.
        let placed = call.input.is_none() || call.kind == Kind::Broadcast;
        let (given, result) = match call.kind {
            Kind::AllGather => (own, 0),
            Kind::Gather if root => (own, 0),
            Kind::ReduceScatter if placed => (0, own),
            Kind::Scatter if placed && root => (0, own),
            _ => (0, 0),
        };
        let output = call.output.as_mut_ptr();
        let (input, input_bytes) = match call.input {
            Some(input) if !placed => (input.as_ptr(), input.len()),
            _ => {
                let given = given.min(call.output.len());
                (output.wrapping_add(given).cast_const(), call.output.len() - given)
            }
        };
        let output_bytes = call.output.len();
        // What is reduced in place was just read, and is in the caches.
        let cached = placed && call.kind.reduces();
        let streams = output_bytes >= STREAM_OUTPUT_BYTES && !cached;
        Self { input, input_bytes, output, output_bytes, result, streams, lent: PhantomData }
    }

    /// Where input and output are in the arena, if both are; the output must be all of a buffer.
    pub fn in_arena(&self, arena: &Arena, bytes: usize) -> Option<(usize, usize)> {
        let whole = self.output_bytes == bytes && self.input_bytes == bytes;
        let output = whole.then(|| arena.find_whole(self.output, bytes))??;
        Some((arena.find(self.input, bytes)?, output))
    }

    /// Bytes of the input.
    ///
    /// # Safety
    /// Nothing must write them while they are used.
    pub unsafe fn input(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.input_bytes);
        // SAFETY: inside, and as the caller says.
        unsafe { std::slice::from_raw_parts(self.input.add(range.start), range.len()) }
    }

    /// Bytes of the result.
    ///
    /// # Safety
    /// Nothing else must read or write them while they are used.
    #[allow(clippy::mut_from_ref, reason = "the caller sees to it that they do not overlap")]
    pub unsafe fn output(&self, range: Range<usize>) -> &mut [u8] {
        let (start, end) = (self.result + range.start, self.result + range.end);
        assert!(start <= end && end <= self.output_bytes);
        // SAFETY: inside, and as the caller says.
        unsafe { std::slice::from_raw_parts_mut(self.output.add(start), range.len()) }
    }

    /// Writes to the result.
    ///
    /// # Safety
    /// As for [`Buffers::output`].
    pub unsafe fn write(&self, range: Range<usize>, data: &[u8]) {
        // SAFETY: as the caller says.
        let out = unsafe { self.output(range) };
        match self.streams {
            true => stream::copy(out, data),
            false => out.copy_from_slice(data),
        }
    }

    /// Whether bytes of the input are those of the result.
    pub fn same(&self, input: usize, output: usize) -> bool {
        std::ptr::eq(self.input.wrapping_add(input), self.output.wrapping_add(self.result + output))
    }
}

/// Other threads of the rank must see all of the output once the call is over.
impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        if self.streams {
            stream::settle();
        }
    }
}
