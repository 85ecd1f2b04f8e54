//! Row lengths and column counts of both drawings.

/// Cells per row for `n` cells when at most `max` fit: all of them, else a divisor of `n`, preferably
/// a multiple of four, else a multiple of eight.
pub fn row_length(n: usize, max: usize) -> usize {
    let max = max.max(1);
    if n <= max {
        return n.max(1);
    }
    let even = || (max / 2 + 1..=max).rev().filter(|k| n.is_multiple_of(*k));
    let best = even().find(|k| k.is_multiple_of(4)).or_else(|| even().next());
    best.unwrap_or(if max >= 8 { max / 8 * 8 } else { max })
}

/// Blocks per row when `fit` fit: preferably a divisor or a multiple of `blocks`, the number of
/// blocks per socket, so that sockets are not split across rows.
pub fn columns(total: usize, blocks: usize, fit: usize) -> usize {
    let fit = fit.clamp(1, total.max(1));
    let blocks = blocks.max(1);
    let aligned = |k: &usize| {
        blocks.is_multiple_of(*k) || (k.is_multiple_of(blocks) && total.is_multiple_of(*k))
    };
    (fit.div_ceil(2)..=fit).rev().find(aligned).unwrap_or(fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_equal_length_if_possible() {
        assert_eq!(row_length(8, 9), 8);
        assert_eq!(row_length(72, 11), 8);
        assert_eq!(row_length(72, 13), 12);
        assert_eq!(row_length(56, 9), 8);
        assert_eq!(row_length(52, 9), 8);
        assert_eq!(row_length(52, 30), 26);
        assert_eq!(row_length(0, 0), 1);
    }

    #[test]
    fn sockets_are_not_split_across_rows() {
        assert_eq!(columns(4, 4, 3), 2);
        assert_eq!(columns(8, 4, 5), 4);
        assert_eq!(columns(4, 1, 2), 2);
        assert_eq!(columns(2, 1, 9), 2);
        assert_eq!(columns(0, 0, 0), 1);
    }
}
