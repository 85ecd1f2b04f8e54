//! Converts a transport's byte-level errors to elements.

use crate::{CommError, DType};

/// The sender, element type and bytes of a message to be received.
pub(super) type ExpectedMessage = (u32, DType, u64);

/// Restates a transport's length mismatch, which is in bytes, in elements.
pub(super) fn bytes_to_elements(error: CommError, all: &[ExpectedMessage]) -> CommError {
    match error {
        CommError::CountMismatch { from, to, dtype, sent, expected } => {
            let same =
                |(rank, _, bytes): &&ExpectedMessage| *rank == from.rank && *bytes == expected;
            let dtypes = all.iter().find(same).map(|(_, dtype, _)| *dtype);
            let dtype = dtypes.filter(|d| sent.is_multiple_of(d.size() as u64)).unwrap_or(dtype);
            let size = dtype.size() as u64;
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
        let all = [(1, DType::F32, 24), (2, DType::F64, 24), (2, DType::F32, 12)];
        let converted = |sent, expected| bytes_to_elements(error(DType::U8, sent, expected), &all);
        assert_eq!(converted(8, 12), error(DType::F32, 2, 3));
        assert_eq!(converted(48, 24), error(DType::F64, 6, 3));
        assert_eq!(converted(47, 24), error(DType::U8, 47, 24));
    }
}
