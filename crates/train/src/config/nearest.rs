//! The name that a misspelled one was meant to be.

/// The most similar of some names, if one is similar enough to be meant.
pub fn nearest<'a>(name: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A foreign word may be long, and all names are short.
    let most = (name.chars().count() / 3).clamp(1, 3);
    let near = among.map(|other| (distance(name, other), other)).min_by_key(|(far, _)| *far);
    near.filter(|(far, _)| *far <= most).map(|(_, other)| other)
}

/// How many letters must be put in, taken out, replaced, or swapped with the next, to make one word
/// of the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len() > 2 * other.len() + 3 {
        return one.len();
    }
    // Rows of the usual table: how far the first letters of one are from those of the other.
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(a != b);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_must_be_changed() {
        assert_eq!(distance("setps", "steps"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn what_is_too_far_is_not_meant() {
        let names = ["steps", "batch", "seed"];
        assert_eq!(nearest("stpes", names.into_iter()), Some("steps"));
        assert_eq!(nearest("learning_rate", names.into_iter()), None);
        assert_eq!(nearest("", names.into_iter()), None);
        assert_eq!(nearest(&"x".repeat(100_000), names.into_iter()), None);
    }
}
