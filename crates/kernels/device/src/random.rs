//! Counter-based random numbers: pure functions of a key and an index, so that they do not depend on the
//! number of ranks or threads, nor on restarts.

/// SplitMix64 finaliser.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Derives the key of a random stream from a seed and the identifiers of the stream.
pub fn key(seed: u64, stream: &[u64]) -> u64 {
    stream.iter().fold(mix(seed), |key, id| mix(key ^ mix(*id)))
}

/// Uniform in [0, 1).
pub fn uniform(key: u64, index: u64) -> f64 {
    (mix(key ^ mix(index)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Standard normal (Box-Muller).
pub fn normal(key: u64, index: u64) -> f64 {
    // 1 - uniform is never 0.
    let radius = (-2.0 * (1.0 - uniform(key, 2 * index)).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(key, 2 * index + 1)).cos()
}

/// A dropout mask. Index `i` is element `offset + i` of the stream, so that a shard of a tensor has the mask
/// of the full tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DropoutMask {
    /// Dropout probability, in [0, 1).
    pub p: f32,
    /// Key of the stream.
    pub key: u64,
    /// Index of the first element.
    pub offset: u64,
}

impl DropoutMask {
    /// Number of [`DropoutMask::words`].
    pub const WORDS: usize = 4;

    /// Key and offset, each as its lower and its upper 32 bits.
    pub fn words(&self) -> [u32; Self::WORDS] {
        let [key, offset] = [self.key, self.offset].map(|word| [word as u32, (word >> 32) as u32]);
        [key[0], key[1], offset[0], offset[1]]
    }

    /// Factor of an element: 0, or 1 / (1 - p).
    pub fn factor(&self, index: u64) -> f32 {
        // 24 bits are exact in f32.
        let bits = (random_u32(self.key, self.offset.wrapping_add(index)) >> 8) as f32;
        if bits < self.p * 16_777_216.0 { 0.0 } else { 1.0 / (1.0 - self.p) }
    }
}

/// 32 random bits, from 32-bit operations that vectorise.
pub fn random_u32(key: u64, index: u64) -> u32 {
    let (low, high) = (index as u32, (index >> 32) as u32);
    let mut z = low ^ (key as u32);
    z = (z ^ (z >> 16)).wrapping_mul(0x7feb_352d);
    z = z.wrapping_add(((key >> 32) as u32) ^ high.wrapping_mul(0x9e37_79b9));
    z = (z ^ (z >> 15)).wrapping_mul(0x846c_a68b);
    z ^ (z >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_has_mean_0_and_variance_1() {
        let n = 100_000u64;
        let (mut sum, mut squares) = (0.0, 0.0);
        for index in 0..n {
            let sample = normal(key(1, &[2]), index);
            sum += sample;
            squares += sample * sample;
        }
        assert!((sum / n as f64).abs() < 0.02, "{sum}");
        assert!((squares / n as f64 - 1.0).abs() < 0.02, "{squares}");
        assert_ne!(key(1, &[2, 3]), key(1, &[3, 2]));
    }

    #[test]
    fn dropout_mask_preserves_the_mean_and_is_shift_invariant() {
        let mask = DropoutMask { p: 0.3, key: key(7, &[]), offset: 0 };
        let factors: Vec<f32> = (0..100_000).map(|i| mask.factor(i)).collect();
        let mean = factors.iter().sum::<f32>() / factors.len() as f32;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        let later = DropoutMask { offset: 40, ..mask };
        assert!((0..100).all(|i| later.factor(i) == mask.factor(i + 40)));
        let none = DropoutMask { p: 0.0, ..mask };
        assert!((0..1000).all(|i| none.factor(i) == 1.0));
    }

    #[test]
    fn adjacent_keys_and_indices_are_uncorrelated() {
        let keys = |i| random_u32(5, i) ^ random_u32(6, i);
        let indices = |i| random_u32(5, i) ^ random_u32(5, i + 1);
        for bits in [keys, indices, |i| random_u32(5, i)] {
            let ones: u32 = (0..1000).map(|i| bits(i).count_ones()).sum();
            assert!((15_000..17_000).contains(&ones), "{ones}");
        }
    }
}
