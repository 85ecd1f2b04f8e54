//! What messages were expected to be: a transport knows only their bytes.

use crate::{Call, CommError, DType};

/// A message that is to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    from: u32,
    dtype: DType,
    bytes: u64,
}

impl Expected {
    pub fn of(receive: &Call<'_>) -> Self {
        let (from, dtype) = (receive.root, receive.dtype);
        Self { from, dtype, bytes: receive.output.len() as u64 }
    }
}

/// An error of a transport, which counts bytes, as those who call count.
pub(super) fn in_elements(error: CommError, all: &[Expected]) -> CommError {
    match error {
        CommError::Unmatched { from, to, dtype, sent, expected } => {
            let it = all.iter().find(|one| one.from == from.rank && one.bytes == expected);
            let whole = it.filter(|one| sent.is_multiple_of(one.dtype.size() as u64));
            let dtype = whole.map_or(dtype, |one| one.dtype);
            let size = whole.map_or(1, |one| one.dtype.size() as u64);
            let (sent, expected) = (sent / size, expected / size);
            CommError::Unmatched { from, to, dtype, sent, expected }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Peer;

    #[test]
    fn bytes_become_elements_if_they_are_whole() {
        let peer = |rank| Peer { rank, host: "a".to_owned() };
        let error = |dtype, sent, expected| CommError::Unmatched {
            from: peer(2),
            to: peer(0),
            dtype,
            sent,
            expected,
        };
        let f32s = |from, bytes| Expected { from, dtype: DType::F32, bytes };
        let f64s = Expected { from: 2, dtype: DType::F64, bytes: 24 };
        let all = [f32s(1, 24), f64s, f32s(2, 12)];
        let told = |sent, expected| in_elements(error(DType::U8, sent, expected), &all);
        assert_eq!(told(8, 12), error(DType::F32, 2, 3));
        assert_eq!(told(48, 24), error(DType::F64, 6, 3));
        assert_eq!(told(47, 24), error(DType::U8, 47, 24));
    }
}
