//! Finds the name most similar to a misspelled one.

/// The candidate with the smallest edit distance, if it is close enough to be a misspelling.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let max_distance = (name.chars().count() / 3).clamp(1, 3);
    let near = candidates.map(|other| (distance(name, other), other)).min_by_key(|(d, _)| *d);
    near.filter(|(d, _)| *d <= max_distance).map(|(_, other)| other)
}

/// Damerau-Levenshtein distance (insertions, deletions, substitutions, adjacent transpositions).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    // Bounds the work for long input.
    if one.len() > 2 * other.len() + 3 {
        return one.len();
    }
    // rows[i][j]: distance between the prefixes of length i and j.
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let substituted = rows[i][j] + usize::from(a != b);
            let mut best = substituted.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_transpositions() {
        assert_eq!(distance("setps", "steps"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn distant_names_are_not_suggested() {
        let names = ["steps", "batch", "seed"];
        assert_eq!(nearest("stpes", names.into_iter()), Some("steps"));
        assert_eq!(nearest("nonsense_word", names.into_iter()), None);
        assert_eq!(nearest("", names.into_iter()), None);
        assert_eq!(nearest(&"x".repeat(100_000), names.into_iter()), None);
    }
}
