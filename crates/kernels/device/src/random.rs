//! Random numbers that are functions of what they are for: the same whatever the number of ranks
//! or threads, and after a restart. No state.

/// Mixes a number until nothing of its order is left.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A key for one purpose, from a seed and what tells the purpose from others.
pub fn key(seed: u64, purpose: &[u64]) -> u64 {
    purpose.iter().fold(mix(seed), |key, part| mix(key ^ mix(*part)))
}

/// A number from 0 to 1, without 1, for the index under the key.
pub fn uniform(key: u64, index: u64) -> f64 {
    (mix(key ^ mix(index)) >> 11) as f64 / (1u64 << 53) as f64
}

/// A number of the normal distribution.
pub fn normal(key: u64, index: u64) -> f64 {
    // Never the logarithm of 0.
    let radius = (-2.0 * (1.0 - uniform(key, 2 * index)).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(key, 2 * index + 1)).cos()
}

/// Which numbers are left out. Index `i` here is number `first + i` under the key, so that a part
/// of a tensor has the same mask as in the whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mask {
    /// What share is left out, from 0 to 1, without 1.
    pub share: f32,
    /// What the mask is for.
    pub key: u64,
    /// The number of the first index.
    pub first: u64,
}

impl Mask {
    /// What the number at an index is multiplied by: 0, or what makes up for the others.
    pub fn factor(&self, index: u64) -> f32 {
        // 24 bits are enough for a share, and exact in single precision.
        let bits = (word(self.key, self.first.wrapping_add(index)) >> 8) as f32;
        if bits < self.share * 16_777_216.0 { 0.0 } else { 1.0 / (1.0 - self.share) }
    }
}

/// 32 random bits: cheap, for there are many, and made of 32-bit operations that vectors have.
pub fn word(key: u64, index: u64) -> u32 {
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
    fn numbers_are_spread_as_they_should() {
        let n = 100_000u64;
        let (mut sum, mut squares) = (0.0, 0.0);
        for index in 0..n {
            let number = normal(key(1, &[2]), index);
            sum += number;
            squares += number * number;
        }
        assert!((sum / n as f64).abs() < 0.02, "{sum}");
        assert!((squares / n as f64 - 1.0).abs() < 0.02, "{squares}");
        assert_ne!(key(1, &[2, 3]), key(1, &[3, 2]));
    }

    #[test]
    fn a_mask_leaves_out_its_share_and_keeps_the_mean() {
        let mask = Mask { share: 0.3, key: key(7, &[]), first: 0 };
        let kept: Vec<f32> = (0..100_000).map(|i| mask.factor(i)).collect();
        let mean = kept.iter().sum::<f32>() / kept.len() as f32;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        let later = Mask { first: 40, ..mask };
        assert!((0..100).all(|i| later.factor(i) == mask.factor(i + 40)));
        let none = Mask { share: 0.0, ..mask };
        assert!((0..1000).all(|i| none.factor(i) == 1.0));
    }

    #[test]
    fn words_of_near_keys_and_indices_have_nothing_in_common() {
        let ones = |key: u64, index: u64| word(key, index).count_ones();
        let differing: u32 = (0..1000).map(|i| (word(5, i) ^ word(6, i)).count_ones()).sum();
        let following: u32 = (0..1000).map(|i| (word(5, i) ^ word(5, i + 1)).count_ones()).sum();
        let all: u32 = (0..1000).map(|i| ones(5, i)).sum();
        for bits in [differing, following, all] {
            assert!((15_000..17_000).contains(&bits), "{bits}");
        }
    }
}
