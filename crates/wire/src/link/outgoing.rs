//! Bytes that wait to be written: put in at one end, taken out at the other.

/// An empty buffer that is larger than this is given back.
const KEPT: usize = 256 << 10;

/// A queue of bytes that lie side by side, so that one write can take them all.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// So many of them are written.
    written: usize,
}

impl Outgoing {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn append(&mut self, other: Self) {
        self.push(other.bytes());
    }

    /// Takes bytes out. The rest moves to the front only when it is the smaller part: a byte that
    /// is moved pays with one that was written, so the work is in proportion to what is written.
    pub(super) fn remove(&mut self, count: usize) {
        self.written = (self.written + count).min(self.bytes.len());
        if self.written * 2 < self.bytes.len() {
            return;
        }
        self.bytes.drain(..self.written);
        self.written = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn comes_out_as_it_went_in(
            moves in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..20), 0usize..20), 0..50),
        ) {
            let mut queue = Outgoing::default();
            let (mut went_in, mut came_out) = (Vec::new(), Vec::new());
            for (bytes, count) in moves {
                queue.push(&bytes);
                went_in.extend(bytes);
                let count = count.min(queue.bytes().len());
                came_out.extend_from_slice(&queue.bytes()[..count]);
                queue.remove(count);
            }
            came_out.extend_from_slice(queue.bytes());
            prop_assert_eq!(went_in, came_out);
        }
    }

    #[test]
    fn a_large_buffer_is_given_back() {
        let mut queue = Outgoing::default();
        queue.push(&vec![1; KEPT * 4]);
        queue.remove(KEPT * 4);
        assert_eq!(queue.bytes.capacity(), 0);
    }
}
