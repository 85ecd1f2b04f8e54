//! Applies BPE merges. No I/O.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Pairs with their rank and the token they become.
#[derive(Debug, Clone)]
pub struct Merges(HashMap<(u32, u32), (u32, u32)>);

/// No neighbour.
const NONE: usize = usize::MAX;

/// A token in a doubly linked list.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    token: u32,
    prev: usize,
    next: usize,
    /// Whether it was merged into its predecessor.
    merged: bool,
}

impl Merges {
    /// Pairs and the tokens they become, by rank.
    pub fn new(pairs: impl IntoIterator<Item = ((u32, u32), u32)>) -> Self {
        let ranked = (0..).zip(pairs).map(|(rank, (pair, token))| (pair, (rank, token)));
        Self(ranked.collect())
    }

    /// Merges the pair of lowest rank, leftmost first, until none is left. Uses a heap, so that long words take
    /// O(n log n).
    pub fn apply(&self, tokens: Vec<u32>) -> Vec<u32> {
        let last = tokens.len().wrapping_sub(1);
        let symbol = |(at, token): (usize, &u32)| Symbol {
            token: *token,
            prev: if at == 0 { NONE } else { at - 1 },
            next: if at == last { NONE } else { at + 1 },
            merged: false,
        };
        let mut word: Vec<Symbol> = tokens.iter().enumerate().map(symbol).collect();
        let mut pairs = BinaryHeap::new();
        for at in 0..word.len() {
            pairs.extend(self.pair(&word, at));
        }
        while let Some(Reverse((rank, at, token))) = pairs.pop() {
            // Stale entries are skipped.
            if self.pair(&word, at) != Some(Reverse((rank, at, token))) {
                continue;
            }
            merge_pair(&mut word, at, token);
            let prev = word[at].prev;
            pairs.extend(self.pair(&word, at));
            pairs.extend(if prev == NONE { None } else { self.pair(&word, prev) });
        }
        word.iter().filter(|symbol| !symbol.merged).map(|symbol| symbol.token).collect()
    }

    /// The mergeable pair at a position.
    fn pair(&self, word: &[Symbol], at: usize) -> Option<Reverse<(u32, usize, u32)>> {
        let Symbol { token: left, next, merged, .. } = word[at];
        let right = word.get(next).filter(|_| !merged)?;
        let (rank, token) = self.0.get(&(left, right.token))?;
        Some(Reverse((*rank, at, *token)))
    }
}

/// Merges a token and its successor.
fn merge_pair(word: &mut [Symbol], at: usize, token: u32) {
    let right = word[at].next;
    let next = word[right].next;
    word[right].merged = true;
    word[at].token = token;
    word[at].next = next;
    if next != NONE {
        word[next].prev = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pair_of_lowest_rank_is_merged_first() {
        let merges = Merges::new([((2, 3), 10), ((1, 2), 11), ((10, 10), 12)]);
        assert_eq!(merges.apply(vec![1, 2, 3]), [1, 10]);
        assert_eq!(merges.apply(vec![1, 2, 2, 3, 2, 3, 2, 3]), [11, 12, 10]);
        assert_eq!(merges.apply(vec![7]), [7]);
        assert_eq!(merges.apply(Vec::new()), [0u32; 0]);
    }

    #[test]
    fn equal_pairs_are_merged_from_the_left() {
        let merges = Merges::new([((1, 1), 2), ((2, 2), 3)]);
        assert_eq!(merges.apply(vec![1; 7]), [3, 2, 1]);
        let long = merges.apply(vec![1; 1 << 16]);
        assert_eq!(long, vec![3; 1 << 14]);
    }
}
