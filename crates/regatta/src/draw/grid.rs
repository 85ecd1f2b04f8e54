//! How many things go side by side: pure arithmetic that both drawings share.

/// How many of `n` cells stand in a row when `most` fit: all of them, else a number that fills
/// every row, multiples of four before others, else a multiple of eight.
pub fn row_length(n: usize, most: usize) -> usize {
    let most = most.max(1);
    if n <= most {
        return n.max(1);
    }
    let even = || (most / 2 + 1..=most).rev().filter(|k| n.is_multiple_of(*k));
    let best = even().find(|k| k.is_multiple_of(4)).or_else(|| even().next());
    best.unwrap_or(if most >= 8 { most / 8 * 8 } else { most })
}

/// How many blocks stand in a row when `fit` fit, so that sockets with `blocks` blocks each are
/// not torn apart: a divisor or a multiple of that number where there is one.
pub fn columns(total: usize, blocks: usize, fit: usize) -> usize {
    let fit = fit.clamp(1, total.max(1));
    let blocks = blocks.max(1);
    let tidy = |k: &usize| {
        blocks.is_multiple_of(*k) || (k.is_multiple_of(blocks) && total.is_multiple_of(*k))
    };
    (fit.div_ceil(2)..=fit).rev().find(tidy).unwrap_or(fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_cells_are_even_where_they_can_be() {
        assert_eq!(row_length(8, 9), 8);
        assert_eq!(row_length(72, 11), 8);
        assert_eq!(row_length(72, 13), 12);
        assert_eq!(row_length(56, 9), 8);
        assert_eq!(row_length(52, 9), 8);
        assert_eq!(row_length(52, 30), 26);
        assert_eq!(row_length(0, 0), 1);
    }

    #[test]
    fn sockets_stay_together() {
        assert_eq!(columns(4, 4, 3), 2);
        assert_eq!(columns(8, 4, 5), 4);
        assert_eq!(columns(4, 1, 2), 2);
        assert_eq!(columns(2, 1, 9), 2);
        assert_eq!(columns(0, 0, 0), 1);
    }
}
