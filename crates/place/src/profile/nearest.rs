//! What somebody may have meant who wrote a name that does not exist.

/// Names longer than this are nobody's typing error, and comparing them would take long.
const MAX_LENGTH: usize = 64;

/// The known names that are most like `name`; none if nothing is much like it.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted: Vec<char> = name.to_lowercase().chars().collect();
    if wanted.len() > MAX_LENGTH {
        return Vec::new();
    }
    let allowed = (wanted.len() / 3).max(2);
    let mut scored: Vec<(usize, &str)> = known
        .into_iter()
        .filter_map(|candidate| {
            let chars: Vec<char> = candidate.to_lowercase().chars().collect();
            let begins = wanted.len() >= 3 && chars.starts_with(&wanted);
            let distance = if begins { 1 } else { edits(&wanted, &chars) };
            (distance <= allowed && distance < wanted.len().max(2)).then_some((distance, candidate))
        })
        .collect();
    scored.sort();
    scored.dedup();
    let best = scored.first().map(|(distance, _)| *distance);
    let as_near = scored.into_iter().filter(|(distance, _)| Some(*distance) == best);
    as_near.map(|(_, candidate)| candidate).take(3).collect()
}

/// A hint to follow the statement that `name` does not exist.
pub(super) fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let near = nearest(name, known.iter().copied());
    match (near.is_empty(), known.is_empty()) {
        (false, _) => format!("did you mean {}?", near.join(" or ")),
        (true, false) => format!("known are {}", known.join(", ")),
        (true, true) => "there is nothing to choose from".to_owned(),
    }
}

/// How many letters must be changed, added, taken away or swapped with their neighbour.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["lumi-g", "frontier", "perlmutter", "polaris"];

    #[test]
    fn typing_errors_are_seen_through() {
        assert_eq!(nearest("lumig", NAMES), ["lumi-g"]);
        assert_eq!(nearest("Fronteir", NAMES), ["frontier"]);
        assert_eq!(nearest("perl", NAMES), ["perlmutter"]);
        assert!(nearest("summit", NAMES).is_empty());
        assert!(nearest("", NAMES).is_empty());
        assert!(nearest(&"x".repeat(10_000), NAMES).is_empty());
    }

    #[test]
    fn a_hint_names_all_when_none_is_near() {
        assert_eq!(hint("polarsi", NAMES), "did you mean polaris?");
        assert_eq!(hint("zzz", NAMES), "known are lumi-g, frontier, perlmutter, polaris");
    }

    #[test]
    fn edits_count_letters() {
        let chars = |t: &str| t.chars().collect::<Vec<_>>();
        assert_eq!(edits(&chars("value"), &chars("vlaue")), 1);
        assert_eq!(edits(&chars(""), &chars("abc")), 3);
        assert_eq!(edits(&chars("kitten"), &chars("sitting")), 3);
    }
}
