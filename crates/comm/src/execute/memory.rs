//! The buffers that a program works on.

use super::cut::Cut;
use super::flow::{Span, Work};
use crate::buffer::Buffer;
use crate::schedule::Place;
use crate::{Call, CommError};

/// Room for more than this is not kept: it is the caller's memory that is scarce.
const KEPT: usize = 64 << 20;

/// Scratch room of an engine, which its calls use one after the other: fresh memory costs more than
/// a message.
#[derive(Debug, Default)]
pub struct Room {
    scratch: Option<Buffer>,
    input: Option<Buffer>,
}

/// A call's buffers. Raw, for a program reads one part of a buffer while another is written.
pub(super) struct Memory<'a> {
    input: (*const u8, usize),
    output: (*mut u8, usize),
    scratch: (*mut u8, usize),
    lent: std::marker::PhantomData<&'a mut [u8]>,
}

impl<'a> Memory<'a> {
    pub(super) fn new(call: Call<'a>, cut: &Cut<'_>, room: &'a mut Room) -> Self {
        let output = (call.output.as_mut_ptr(), call.output.len());
        let input = match call.input {
            Some(input) => (input.as_ptr(), input.len()),
            None if cut.needs_copy() => {
                let copy = fitting(&mut room.input, call.output.len());
                copy.copy_from_slice(call.output);
                (copy.as_ptr(), copy.len())
            }
            None => (output.0.cast_const(), output.1),
        };
        let scratch = fitting(&mut room.scratch, cut.room().len());
        let scratch = (scratch.as_mut_ptr(), scratch.len());
        Self { input, output, scratch, lent: std::marker::PhantomData }
    }

    /// Where a span is, to be read.
    pub(super) fn source(&self, span: &Option<Span>) -> Result<*const [u8], CommError> {
        let Some(span) = span else { return Ok(std::ptr::slice_from_raw_parts(self.input.0, 0)) };
        let (start, length) = match span.place {
            Place::Input => self.input,
            Place::Output => (self.output.0.cast_const(), self.output.1),
            Place::Scratch => (self.scratch.0.cast_const(), self.scratch.1),
        };
        if span.bytes.start > span.bytes.end || span.bytes.end > length {
            return Err(nothing());
        }
        // SAFETY: the span ends within the buffer.
        let start = unsafe { start.add(span.bytes.start) };
        Ok(std::ptr::slice_from_raw_parts(start, span.bytes.len()))
    }

    /// Where a span is, to be written.
    pub(super) fn target(&self, span: &Option<Span>) -> Result<*mut [u8], CommError> {
        match span {
            Some(span) if span.place == Place::Input && !span.bytes.is_empty() => Err(nothing()),
            // Output and scratch were made of pointers that may be written through.
            span => self.source(span).map(<*const [u8]>::cast_mut),
        }
    }

    /// Copies what a work reads to what it writes.
    pub(super) fn copy(&self, work: &Work) -> Result<(), CommError> {
        let (from, to) = (self.source(&work.reads)?, self.target(&work.writes)?);
        let length = from.len().min(to.len());
        // SAFETY: both are in buffers of the call, which nobody else uses now; they may overlap.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), length) };
        Ok(())
    }

    /// Some of the output, once all is done.
    pub(super) fn result(&mut self, range: std::ops::Range<usize>) -> &mut [u8] {
        let end = range.end.min(self.output.1);
        let start = range.start.min(end);
        // SAFETY: nothing is posted any more, and the output was lent to be written.
        unsafe { std::slice::from_raw_parts_mut(self.output.0.add(start), end - start) }
    }
}

/// So many bytes of what there is, or of a new one.
fn fitting(kept: &mut Option<Buffer>, bytes: usize) -> &mut [u8] {
    let fits = |buffer: &Buffer| {
        let length = buffer.bytes().len();
        length >= bytes && (length <= KEPT || bytes > KEPT)
    };
    if !kept.as_ref().is_some_and(fits) {
        *kept = None;
    }
    &mut kept.get_or_insert_with(|| Buffer::zeroed(bytes)).bytes_mut()[..bytes]
}

/// What a program asks for that there is not.
pub(super) fn nothing() -> CommError {
    let what = "a program of a collective".to_owned();
    CommError::System { what, why: "it works on bytes that there are not".to_owned() }
}
