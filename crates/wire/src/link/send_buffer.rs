//! FIFO buffer of bytes to send.

/// An empty buffer with more capacity than this is deallocated.
const MAX_IDLE_CAPACITY: usize = 256 << 10;

/// A contiguous byte queue, so that one `write` call can take everything.
#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    bytes: Vec<u8>,
    /// Length of the consumed prefix.
    consumed: usize,
}

impl SendBuffer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes bytes from the front. The rest is moved only when it is the smaller half, so the
    /// amortised cost is linear in the bytes sent.
    pub(super) fn consume(&mut self, count: usize) {
        self.consumed = (self.consumed + count).min(self.bytes.len());
        if self.consumed * 2 < self.bytes.len() {
            return;
        }
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > MAX_IDLE_CAPACITY {
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
        fn bytes_leave_in_the_order_they_were_pushed(
            operations in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..20), 0usize..20), 0..50),
        ) {
            let mut buffer = SendBuffer::default();
            let (mut pushed, mut consumed) = (Vec::new(), Vec::new());
            for (bytes, count) in operations {
                buffer.push(&bytes);
                pushed.extend(bytes);
                let count = count.min(buffer.bytes().len());
                consumed.extend_from_slice(&buffer.bytes()[..count]);
                buffer.consume(count);
            }
            consumed.extend_from_slice(buffer.bytes());
            prop_assert_eq!(pushed, consumed);
        }
    }

    #[test]
    fn large_empty_buffer_is_deallocated() {
        let mut buffer = SendBuffer::default();
        buffer.push(&vec![1; MAX_IDLE_CAPACITY * 4]);
        buffer.consume(MAX_IDLE_CAPACITY * 4);
        assert_eq!(buffer.bytes.capacity(), 0);
    }
}
