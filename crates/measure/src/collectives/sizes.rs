//! Message sizes: parsing (`8`, `64K`, `4G`) and ranges by factor or step.

use regatta_model::bench::SizeStep;
use serde::{Deserialize, Serialize};

/// Upper bound on the number of sizes; more indicates a step in the wrong unit.
const MAX_SIZES: usize = 100_000;

/// Sizes from `min` to `max`, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeRange {
    /// First size in bytes.
    pub min: u64,
    /// Upper bound.
    pub max: u64,
    /// Step between sizes.
    pub step: SizeStep,
}

impl SizeRange {
    /// All sizes of the range.
    pub fn list(&self) -> Result<Vec<u64>, String> {
        let Self { min, max, .. } = self;
        if min > max {
            return Err(format!("minimum size {min} (-b) exceeds maximum size {max} (-e)"));
        }
        let mut next = self.next_size(*min);
        if min < max && next.is_none() {
            return Err(format!(
                "the size stays at {min} (-b): use -b 1 or more with -f 2 or more, or -i 1 or more"
            ));
        }
        let mut sizes = vec![*min];
        while let Some(size) = next.filter(|size| *size <= self.max) {
            if sizes.len() == MAX_SIZES {
                return Err(format!(
                    "more than {MAX_SIZES} sizes: use a larger step (-i), or a factor (-f 2)"
                ));
            }
            sizes.push(size);
            next = self.next_size(size);
        }
        Ok(sizes)
    }

    /// The next size, if it is larger.
    fn next_size(&self, size: u64) -> Option<u64> {
        let next = match self.step {
            SizeStep::Factor(factor) => size.saturating_mul(factor),
            SizeStep::Bytes(bytes) => size.saturating_add(bytes),
        };
        Some(next).filter(|next| *next > size)
    }
}

/// The sizes of a table after rounding, without consecutive duplicates. Sizes that round to 0 are
/// dropped unless 0 was requested or nothing else remains.
pub fn distinct(requested: &[u64], rounded: impl Fn(u64) -> u64) -> Vec<u64> {
    let mut sizes = requested.to_vec();
    sizes.dedup_by_key(|size| rounded(*size));
    let vanishes = |size: u64| size > 0 && rounded(size) == 0;
    if sizes.len() > 1 {
        sizes.retain(|size| !vanishes(*size));
    }
    sizes
}

/// Parses a size with an optional suffix K, M, G or T (powers of 1024), as nccl-tests does.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let invalid = || format!("invalid size {text}: expected bytes, as in 8, 64K, 1.5M or 4G");
    let text = text.trim();
    let end = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[end.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        "T" | "TB" | "TIB" => 1u64 << 40,
        _ => return Err(invalid()),
    };
    if let Ok(integer) = end.parse::<u64>() {
        return integer.checked_mul(unit).ok_or_else(invalid);
    }
    let digits = end.chars().all(|c| c.is_ascii_digit() || c == '.');
    match end.parse::<f64>() {
        Ok(number) if digits && number * (unit as f64) < 9e18 => Ok((number * unit as f64) as u64),
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_parsed_like_nccl_tests() {
        for (text, bytes) in [("8", 8), ("64K", 65536), ("1.5m", 1_572_864), ("4G", 1 << 32)] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for text in ["", "G", "-1", "8X", "1e9", "nan", "99999999999G", "0x10"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_by_factor_and_by_step() {
        let list = |min, max, step| SizeRange { min, max, step }.list();
        assert_eq!(list(8, 100, SizeStep::Factor(2)), Ok(vec![8, 16, 32, 64]));
        assert_eq!(list(0, 3, SizeStep::Bytes(1)), Ok(vec![0, 1, 2, 3]));
        assert_eq!(list(0, 0, SizeStep::Factor(2)), Ok(vec![0]));
        for (min, factor) in [(7, 1), (0, 2)] {
            assert!(list(min, 9, SizeStep::Factor(factor)).is_err(), "the size stays at {min}");
        }
        assert!(list(9, 8, SizeStep::Factor(2)).is_err());
        assert!(list(0, u64::MAX, SizeStep::Bytes(1)).is_err());
    }

    #[test]
    fn rounded_duplicates_are_dropped() {
        let by_32 = |size: u64| size / 32 * 32;
        assert_eq!(distinct(&[8, 16, 32, 64], by_32), [32, 64]);
        assert_eq!(distinct(&[32, 40, 63, 64, 100], by_32), [32, 64, 100]);
        assert_eq!(distinct(&[0, 8, 16, 32], by_32), [0, 32], "0 was requested");
        assert_eq!(distinct(&[8, 16], by_32), [8], "a table has at least one row");
        assert_eq!(distinct(&[], by_32), [0u64; 0]);
    }

    proptest! {
        #[test]
        fn parse_size_never_panics(text in "\\PC{0,12}") {
            let _ = parse_size(&text);
        }

        #[test]
        fn sizes_increase_within_the_range(min in 0u64..u64::MAX, max in 0u64..u64::MAX, by in 2u64..9) {
            if let Ok(sizes) = (SizeRange { min, max, step: SizeStep::Factor(by) }).list() {
                prop_assert!(sizes.windows(2).all(|w| w[0] < w[1]));
                prop_assert!(sizes[0] == min && sizes.iter().all(|s| *s <= max));
            }
        }
    }
}
