//! "Did you mean": the known names closest to a misspelt one, by edit distance.

use std::collections::BTreeSet;

/// Longer names are not typing errors, and comparing them would be quadratic in their length.
const MAX_LENGTH: usize = 64;
/// Suggestions that fit in one message.
const MAX_SUGGESTIONS: usize = 3;

/// The known names closest to `name`, best first and equally close; empty if none is similar. A
/// known name that starts with `name` counts as similar. Case is ignored.
pub fn closest_matches<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted: Vec<char> = name.to_lowercase().chars().collect();
    if wanted.len() > MAX_LENGTH {
        return Vec::new();
    }
    let max_distance = (wanted.len() / 3).max(2);
    let score = |candidate: &'a str| {
        let chars: Vec<char> = candidate.to_lowercase().chars().collect();
        let is_prefix = wanted.len() >= 3 && chars.starts_with(&wanted);
        let distance = if is_prefix { 1 } else { edit_distance(&wanted, &chars) };
        let similar = distance <= max_distance && distance < wanted.len().max(2);
        similar.then_some((distance, candidate))
    };
    let scored: BTreeSet<(usize, &str)> = known.into_iter().filter_map(score).collect();
    let best = scored.first().map(|(distance, _)| *distance);
    let closest = scored.into_iter().filter(|(distance, _)| Some(*distance) == best);
    closest.map(|(_, candidate)| candidate).take(MAX_SUGGESTIONS).collect()
}

/// The known name closest to `name`, if one is similar.
pub fn closest_match<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    closest_matches(name, known).first().copied()
}

/// A hint for an error about the unknown name `name`: the closest names, else all of them.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let closest = closest_matches(name, known.iter().copied());
    match (closest.is_empty(), known.is_empty()) {
        (false, _) => format!("did you mean {}?", closest.join(" or ")),
        (true, false) => format!("known: {}", known.join(", ")),
        (true, true) => "none is defined".to_owned(),
    }
}

/// Optimal string alignment distance: insertions, deletions, substitutions and transpositions of
/// adjacent characters.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["lumi-g", "frontier", "perlmutter", "polaris"];

    #[test]
    fn typing_errors_find_the_closest_name() {
        assert_eq!(closest_matches("lumig", NAMES), ["lumi-g"]);
        assert_eq!(closest_matches("Fronteir", NAMES), ["frontier"]);
        assert_eq!(closest_match("perl", NAMES), Some("perlmutter"));
        assert_eq!(closest_match("stpes", ["steps", "batch", "seed"]), Some("steps"));
    }

    #[test]
    fn dissimilar_names_have_no_match() {
        assert_eq!(closest_match("summit", NAMES), None);
        assert_eq!(closest_match("learning_rate", ["steps", "batch", "seed"]), None);
        assert_eq!(closest_match("", NAMES), None);
        assert_eq!(closest_match(&"x".repeat(10_000), NAMES), None);
    }

    #[test]
    fn the_hint_lists_all_names_if_none_is_similar() {
        assert_eq!(did_you_mean("polarsi", NAMES), "did you mean polaris?");
        assert_eq!(did_you_mean("zzz", NAMES), "known: lumi-g, frontier, perlmutter, polaris");
        assert_eq!(did_you_mean("zzz", []), "none is defined");
    }

    #[test]
    fn edit_distance_counts_transpositions_as_one() {
        let distance = |a: &str, b: &str| {
            let chars = |t: &str| t.chars().collect::<Vec<_>>();
            edit_distance(&chars(a), &chars(b))
        };
        assert_eq!(distance("value", "vlaue"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!((distance("", "abc"), distance("abc", ""), distance("same", "same")), (3, 3, 0));
    }
}
