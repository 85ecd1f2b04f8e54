//! hwloc's bitmap notation: 32-bit words, the highest first, each with `0x`. An empty word is zero,
//! and a leading `0xf...f` sets all higher bits. `0x00000001,,0x0` is the set {64}.

use regatta_model::CpuSet;

use super::MAX_CPUS;

const WORDS: usize = MAX_CPUS / 32;

/// Parses a bitmap; an infinite one is truncated at [`MAX_CPUS`]. `None` if it is malformed or
/// exceeds the limit.
pub(super) fn parse(text: &str) -> Option<CpuSet> {
    let (rest, infinite) = match text.strip_prefix("0xf...f") {
        Some("") => return Some(CpuSet::range(0, MAX_CPUS - 1)),
        Some(rest) => (rest.strip_prefix(',')?, true),
        None => (text, false),
    };
    let count = rest.split(',').count();
    // Leading empty words are rejected, because they would hide a typing error.
    if count > WORDS || rest.is_empty() || (!infinite && rest.starts_with(',')) {
        return None;
    }
    let mut set = CpuSet::new();
    for (position, word) in rest.split(',').rev().enumerate() {
        let bits = word_bits(word)?;
        for bit in (0..32).filter(|b| bits & (1 << b) != 0) {
            set.insert(position * 32 + bit);
        }
    }
    if infinite {
        set = set.union(&CpuSet::range(count * 32, MAX_CPUS - 1));
    }
    Some(set)
}

fn word_bits(word: &str) -> Option<u32> {
    if word.is_empty() {
        return Some(0);
    }
    let digits = word.strip_prefix("0x")?;
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(text: &str) -> Option<String> {
        parse(text).map(|set| set.to_string())
    }

    #[test]
    fn hwloc_bitmaps_are_parsed() {
        assert_eq!(list("0x00000003").as_deref(), Some("0-1"));
        assert_eq!(list("0x0").as_deref(), Some(""));
        assert_eq!(list("0x00000001,,0x0").as_deref(), Some("64"));
        assert_eq!(list("0xffff0000,,0x0").as_deref(), Some("80-95"));
        assert_eq!(list("0x00000001,0x80000000").as_deref(), Some("31-32"));
        assert_eq!(list("0xf...f").as_deref(), Some("0-16383"));
        assert_eq!(list("0xf...f,0x00000001").as_deref(), Some("0,32-16383"));
        assert_eq!(list("0xf...f,,0x0").as_deref(), Some("64-16383"));
    }

    #[test]
    fn malformed_bitmaps_are_rejected() {
        for text in ["", "ff", "0x", "0x+1", "0x1ffffffff", "0xf...g", ",0x1", "0x1 ", "0-3", "0xé"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse(&format!("0x1{}", ",".repeat(WORDS))), None);
        assert!(parse(&format!("0x1{}", ",".repeat(WORDS - 1))).is_some());
    }

    proptest! {
        #[test]
        fn bitmaps_round_trip(cpus in proptest::collection::btree_set(0usize..900, 0..50)) {
            let set: CpuSet = cpus.iter().copied().collect();
            let words = cpus.last().map_or(0, |last| last / 32) + 1;
            let word = |w: usize| (0..32).filter(|b| set.contains(w * 32 + b)).fold(0u32, |n, b| n | 1 << b);
            let bitmap = (0..words).rev().map(|w| match (word(w), w) {
                (0, 0) => "0x0".to_owned(),
                (0, _) => String::new(),
                (bits, _) => format!("{bits:#010x}"),
            });
            prop_assert_eq!(parse(&bitmap.collect::<Vec<_>>().join(",")), Some(set));
        }

        #[test]
        fn parsing_never_panics(text in "[0-9a-fx,.é]{0,40}") {
            let _ = parse(&text);
        }
    }
}
