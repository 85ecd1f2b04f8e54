//! Encodes call signatures as words.

use crate::{CallKind, DType, ReduceOp, Signature};

/// Words of a signature.
pub const SIGNATURE_WORDS: usize = 3;

/// Encodes a signature.
pub fn encode(signature: &Signature) -> [u64; SIGNATURE_WORDS] {
    let Signature { kind, dtype, op, root, count, shape } = *signature;
    let what = kind as u64 | (dtype as u64) << 8 | (op as u64) << 16 | u64::from(root) << 32;
    [what, count, shape]
}

/// Decodes a signature; `None` if the words are invalid.
pub fn decode([what, count, shape]: [u64; SIGNATURE_WORDS]) -> Option<Signature> {
    let byte = |at: u32| (what >> at) as usize & 0xff;
    Some(Signature {
        kind: CallKind::from_index(byte(0))?,
        dtype: *DType::ALL.get(byte(8))?,
        op: *ReduceOp::ALL.get(byte(16))?,
        root: (what >> 32) as u32,
        count,
        shape,
    })
}

/// Hash of a signature; different calls have different digests with high probability.
pub fn digest(words: [u64; SIGNATURE_WORDS]) -> u64 {
    words.into_iter().fold(ODD, mix)
}

/// Adds a word to a hash.
#[inline]
pub fn mix(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(ODD);
    mixed ^ (mixed >> 29)
}

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_round_trip() {
        for (i, kind) in (0..).map_while(CallKind::from_index).enumerate() {
            let dtype = DType::ALL[i % DType::ALL.len()];
            let op = ReduceOp::ALL[i % ReduceOp::ALL.len()];
            let signature = Signature { kind, dtype, op, root: 7, count: 1 << 40, shape: 5 };
            let words = encode(&signature);
            assert_eq!(decode(words), Some(signature));
            let other = encode(&Signature { count: 3, ..signature });
            assert_ne!(digest(words), digest(other));
        }
        assert_eq!(decode([0xff, 0, 0]), None);
    }
}
