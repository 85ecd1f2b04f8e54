//! Converts a transport's byte-level errors to elements.

use crate::{Call, CommError, DType};

/// A message to be received.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpectedMessage {
    from: u32,
    dtype: DType,
    bytes: u64,
}

impl ExpectedMessage {
    pub fn of(receive: &Call) -> Self {
        let (from, dtype) = (receive.root, receive.dtype);
        Self { from, dtype, bytes: receive.output.len() as u64 }
    }
}

/// Restates a transport's length mismatch, which is in bytes, in elements.
pub(super) fn bytes_to_elements(error: CommError, expected: &[ExpectedMessage]) -> CommError {
    let all = expected;
    match error {
        CommError::CountMismatch { from, to, dtype, sent, expected } => {
            let message = all.iter().find(|one| one.from == from.rank && one.bytes == expected);
            let divisible = message.filter(|one| sent.is_multiple_of(one.dtype.size() as u64));
            let dtype = divisible.map_or(dtype, |one| one.dtype);
            let size = divisible.map_or(1, |one| one.dtype.size() as u64);
            let (sent, expected) = (sent / size, expected / size);
            CommError::CountMismatch { from, to, dtype, sent, expected }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Peer;

    #[test]
    fn byte_counts_become_element_counts_when_divisible() {
        let error = |dtype, sent, expected| CommError::CountMismatch {
            from: Peer::new(2, "a"),
            to: Peer::new(0, "a"),
            dtype,
            sent,
            expected,
        };
        let f32s = |from, bytes| ExpectedMessage { from, dtype: DType::F32, bytes };
        let f64s = ExpectedMessage { from: 2, dtype: DType::F64, bytes: 24 };
        let all = [f32s(1, 24), f64s, f32s(2, 12)];
        let converted = |sent, expected| bytes_to_elements(error(DType::U8, sent, expected), &all);
        assert_eq!(converted(8, 12), error(DType::F32, 2, 3));
        assert_eq!(converted(48, 24), error(DType::F64, 6, 3));
        assert_eq!(converted(47, 24), error(DType::U8, 47, 24));
    }
}
