//! What a rank calls, as a few words in shared memory.

use crate::{DType, Kind, ReduceOp, Signature};

/// Words of a signature.
pub const SIGN_WORDS: usize = 3;

const KINDS: [Kind; 11] = [
    Kind::AllReduce,
    Kind::Reduce,
    Kind::Broadcast,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::Gather,
    Kind::Scatter,
    Kind::AllToAll,
    Kind::Barrier,
    Kind::Send,
    Kind::Receive,
];

/// The words.
pub fn encode(signature: &Signature) -> [u64; SIGN_WORDS] {
    let Signature { kind, dtype, op, root, count, shape } = *signature;
    let what = kind as u64 | (dtype as u64) << 8 | (op as u64) << 16 | u64::from(root) << 32;
    [what, count, shape]
}

/// What they say; `None` if nobody wrote them so.
pub fn decode([what, count, shape]: [u64; SIGN_WORDS]) -> Option<Signature> {
    let byte = |at: u32| (what >> at) as usize & 0xff;
    Some(Signature {
        kind: *KINDS.get(byte(0))?,
        dtype: *DType::ALL.get(byte(8))?,
        op: *ReduceOp::ALL.get(byte(16))?,
        root: (what >> 32) as u32,
        count,
        shape,
    })
}

/// One number for all of it: ranks that call different things have different ones.
pub fn digest(words: [u64; SIGN_WORDS]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    words.into_iter().fold(ODD, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(ODD);
        mixed ^ (mixed >> 29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_meant() {
        for (i, kind) in KINDS.into_iter().enumerate() {
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
