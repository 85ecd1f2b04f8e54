//! The buffers that a program reads and writes.

use std::marker::PhantomData;

use super::block_layout::BlockLayout;
use super::dependency_scheduler::{ByteRange, StepOp};
use crate::buffer::Buffer;
use crate::schedule::BufferKind;
use crate::{Call, CommError, Result};

/// Larger scratch buffers are freed after the call, because they use up the caller's memory.
const MAX_CACHED: usize = 64 << 20;

/// Scratch memory of an engine, reused by consecutive calls because fresh pages cost more than a
/// message.
#[derive(Debug, Default)]
pub struct Scratch {
    scratch: Option<Buffer>,
    input: Option<Buffer>,
}

/// A call's buffers as raw pointers, because a program reads one part of a buffer while another
/// part is written.
pub(super) struct ProgramBuffers<'a> {
    /// Not written, unless it aliases the output.
    input: *mut [u8],
    output: *mut [u8],
    scratch: *mut [u8],
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a> ProgramBuffers<'a> {
    pub(super) fn new(call: Call<'a>, layout: &BlockLayout, scratch: &'a mut Scratch) -> Self {
        let mut copy = None;
        if layout.needs_copy() {
            let into = copy.insert(resized(&mut scratch.input, call.output.len()));
            into.copy_from_slice(call.output);
        }
        let output: *mut [u8] = call.output;
        let input = call.input.map(|input| (&raw const *input).cast_mut());
        let input = input.unwrap_or_else(|| copy.map_or(output, |copy| copy));
        let scratch = resized(&mut scratch.scratch, layout.scratch_bytes().len());
        Self { input, output, scratch, borrow: PhantomData }
    }

    /// The bytes of a range, to be read.
    pub(super) fn source(&self, range: &Option<ByteRange>) -> Result<*const [u8]> {
        let Some(range) = range else { return Ok(&[]) };
        let buffer = match range.buffer {
            BufferKind::Input => self.input,
            BufferKind::Output => self.output,
            BufferKind::Scratch => self.scratch,
        };
        if range.bytes.start > range.bytes.end || range.bytes.end > buffer.len() {
            return Err(invalid_range());
        }
        // SAFETY: the range ends within the buffer.
        let start = unsafe { buffer.cast::<u8>().add(range.bytes.start) };
        Ok(std::ptr::slice_from_raw_parts(start, range.bytes.len()))
    }

    /// The bytes of a range, to be written.
    pub(super) fn target(&self, range: &Option<ByteRange>) -> Result<*mut [u8]> {
        match range {
            Some(range) if range.buffer == BufferKind::Input && !range.bytes.is_empty() => {
                Err(invalid_range())
            }
            // Output and scratch pointers are mutable.
            range => self.source(range).map(<*const [u8]>::cast_mut),
        }
    }

    /// Copies the bytes a step reads to the bytes it writes.
    pub(super) fn copy(&self, op: &StepOp) -> Result {
        let (from, to) = (self.source(&op.reads)?, self.target(&op.writes)?);
        let length = from.len().min(to.len());
        // SAFETY: both ranges are in the call's buffers, which are unused otherwise; they may
        // overlap.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), length) };
        Ok(())
    }

    /// Part of the output, after the program has completed.
    pub(super) fn result(&mut self, range: std::ops::Range<usize>) -> &mut [u8] {
        // SAFETY: no operation is pending, and the output is borrowed mutably.
        unsafe { &mut (&mut *self.output)[range] }
    }
}

/// `bytes` bytes of the cached buffer, or of a new one.
fn resized(cached: &mut Option<Buffer>, bytes: usize) -> &mut [u8] {
    let fits = |buffer: &Buffer| {
        let length = buffer.bytes().len();
        length >= bytes && (length <= MAX_CACHED || bytes > MAX_CACHED)
    };
    if !cached.as_ref().is_some_and(fits) {
        *cached = None;
    }
    &mut cached.get_or_insert_with(|| Buffer::zeroed(bytes)).bytes_mut()[..bytes]
}

/// An operation outside its buffers, which is a bug of the program.
pub(super) fn invalid_range() -> CommError {
    CommError::system("the program of a collective", "an operation is outside its buffers")
}
