//! Where the bytes of a message go.

use crate::kernel::{reduce, reduce_two};
use crate::tcp::frame::Key;
use crate::transport::{Landing, Ticket};

/// A receive that was asked for.
#[derive(Clone, Copy)]
pub struct Posted {
    pub key: Key,
    /// What collective it is of.
    pub what: u32,
    pub ticket: Ticket,
    pub start: *mut u8,
    pub length: usize,
    pub landing: Landing,
    /// With what it is reduced, if not with what is there: as much as is written.
    pub with: Option<*const u8>,
}

// SAFETY: the memory is only touched by whoever holds the lock of the mesh; that it is valid is
// promised where it was posted.
unsafe impl Send for Posted {}

impl Posted {
    pub fn target(&self) -> Target {
        let Self { start, length, landing, with, .. } = *self;
        Target::Lent(Lent { start, length, landing, with })
    }
}

/// Memory of a receive.
pub struct Lent {
    start: *mut u8,
    length: usize,
    landing: Landing,
    with: Option<*const u8>,
}

// SAFETY: as for `Posted`.
unsafe impl Send for Lent {}

/// Where the bytes of a message go.
pub enum Target {
    Lent(Lent),
    /// Nobody has asked for it yet.
    Kept(Vec<u8>),
    Nowhere,
}

impl Target {
    /// The memory, if bytes may be read right into it.
    pub fn straight(&mut self, at: usize, left: usize) -> Option<&mut [u8]> {
        match self {
            Self::Lent(lent) if lent.landing == Landing::Replace => Some(lent.part(at, left)),
            Self::Kept(bytes) => bytes.get_mut(at..at + left),
            _ => None,
        }
    }

    /// Takes bytes that are to be at this place.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Self::Lent(lent) => {
                let (landing, with) = (lent.landing, lent.with(at, bytes.len()));
                let into = lent.part(at, bytes.len());
                match (landing, with) {
                    (Landing::Replace, _) => into.copy_from_slice(&bytes[..into.len()]),
                    (Landing::Reduce(dtype, op), None) => reduce(dtype, op, into, bytes),
                    (Landing::Reduce(dtype, op), Some(with)) => {
                        reduce_two(dtype, op, into, with, bytes);
                    }
                }
            }
            Self::Kept(kept) => {
                if let Some(into) = kept.get_mut(at..at + bytes.len()) {
                    into.copy_from_slice(bytes);
                }
            }
            Self::Nowhere => {}
        }
    }
}

impl Lent {
    /// What is reduced with the bytes at this place, if it is not what is there.
    fn with<'a>(&self, at: usize, length: usize) -> Option<&'a [u8]> {
        let at = at.min(self.length);
        let length = length.min(self.length - at);
        // SAFETY: it is within what was lent, as long as what is written, and nobody writes it.
        self.with.map(|start| unsafe { std::slice::from_raw_parts(start.add(at), length) })
    }

    fn part(&mut self, at: usize, length: usize) -> &mut [u8] {
        let at = at.min(self.length);
        let length = length.min(self.length - at);
        // SAFETY: it is within what was lent, which nobody else touches.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), length) }
    }
}
