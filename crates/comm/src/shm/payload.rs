//! The payload of a post: in the post itself or in a slot.

use std::ops::Range;

use super::ShmEngine;
use super::layout::INLINE_BYTES;
use crate::reduce_kernel::stream;

/// Location of a post's payload.
#[derive(Debug, Clone, Copy)]
pub enum SlotKind {
    /// In the post.
    Inline,
    /// In a payload slot.
    Slot,
}

impl SlotKind {
    /// The location for a contiguous payload.
    pub fn of(bytes: usize) -> Self {
        if bytes <= INLINE_BYTES { Self::Inline } else { Self::Slot }
    }
}

impl ShmEngine {
    /// A rank's posted payload.
    #[inline]
    pub(super) fn payload(
        &self,
        slot: SlotKind,
        rank: usize,
        seq: u64,
        range: Range<usize>,
    ) -> &[u8] {
        let (start, length) = self.payload_location(slot, rank, seq);
        assert!(range.start <= range.end && range.end <= length);
        // SAFETY: in bounds; it was posted, and is not overwritten before this rank's next post but
        // one.
        unsafe { std::slice::from_raw_parts(start.add(range.start), range.len()) }
    }

    /// Writes to the payload of the next post.
    #[inline]
    pub(super) fn write_payload(&self, slot: SlotKind, seq: u64, range: Range<usize>, data: &[u8]) {
        self.store(data.len(), self.payload_mut(slot, seq, range), data);
    }

    /// Writes a payload, or part of a payload of `payload_bytes`.
    #[inline]
    pub(super) fn store(&self, payload_bytes: usize, out: &mut [u8], data: &[u8]) {
        match self.policy.streams(payload_bytes) {
            true => stream::copy(out, data),
            false => out.copy_from_slice(data),
        }
    }

    /// The payload of the next post.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the memory belongs to the segment, not to self")]
    pub(super) fn payload_mut(&self, slot: SlotKind, seq: u64, range: Range<usize>) -> &mut [u8] {
        let (start, length) = self.payload_location(slot, self.rank(), seq);
        assert!(range.start <= range.end && range.end <= length);
        // SAFETY: in bounds; only this rank writes it, and it is not read before the post.
        unsafe { std::slice::from_raw_parts_mut(start.add(range.start), range.len()) }
    }

    #[inline]
    fn payload_location(&self, slot: SlotKind, rank: usize, seq: u64) -> (*mut u8, usize) {
        let region = &self.shared.region;
        match slot {
            SlotKind::Inline => (region.inline_payload(rank, seq), INLINE_BYTES),
            SlotKind::Slot => (region.slot(rank, seq), region.layout.slot_bytes()),
        }
    }
}
