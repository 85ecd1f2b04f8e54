//! What ranks held, sent, read and wrote, beside what was expected of them. No I/O.

use regatta_model::CpuSet;
use regatta_train::metrics::{RankBytes, Summary};

use super::figures::with_unit;
use crate::cli::FAINT;
use crate::table;

/// Kinds of ranks that are told of, at most.
const MOST: usize = 8;

/// Ranks that have the same figures, and these.
type Alike<'a> = (Vec<usize>, &'a RankBytes);

/// What is said at the end of a training where ranks share the work or state is on disk.
pub fn told(summary: &Summary) -> String {
    let first = RankBytes {
        rank: 0,
        held: summary.held.clone(),
        sent: summary.sent.clone(),
        moved: summary.moved.clone(),
    };
    let ranks =
        if summary.ranks.is_empty() { std::slice::from_ref(&first) } else { &summary.ranks };
    if ranks.iter().all(|rank| rank.sent.is_empty() && rank.moved.is_empty()) {
        return String::new();
    }
    let kinds = alike(ranks);
    let mut lines: Vec<String> = kinds.iter().take(MOST).flat_map(of_kind).collect();
    if let Some(more) = kinds.len().checked_sub(MOST).filter(|more| *more > 0) {
        lines.push(format!("and {more} more kinds of ranks: --json has all"));
    }
    format!("{FAINT}{}{FAINT:#}\n", lines.join("\n"))
}

fn alike(ranks: &[RankBytes]) -> Vec<Alike<'_>> {
    let mut kinds: Vec<Alike<'_>> = Vec::new();
    let same =
        |a: &RankBytes, b: &RankBytes| (&a.held, &a.sent, &a.moved) == (&b.held, &b.sent, &b.moved);
    for rank in ranks {
        match kinds.iter_mut().find(|(_, kind)| same(kind, rank)) {
            Some((numbers, _)) => numbers.push(rank.rank),
            None => kinds.push((vec![rank.rank], rank)),
        }
    }
    kinds
}

fn of_kind((numbers, kind): &Alike<'_>) -> Vec<String> {
    let row = |what: String, expected: u64, measured: Option<u64>| {
        let measured = measured.map_or("-".to_owned(), |bytes| with_unit(bytes as f64, "B"));
        vec![what, with_unit(expected as f64, "B"), measured]
    };
    let held = kind.held.iter().map(|of| row(of.what.clone(), of.expected, of.measured));
    let sent = kind.sent.iter();
    let sent = sent.map(|on| row(format!("sent a step, {}", on.axis), on.expected, on.measured));
    let moved = kind.moved.iter();
    let moved = moved.map(|of| row(format!("{} a step", of.what), of.expected, of.measured));
    let who = if numbers.len() == 1 { "rank" } else { "ranks" };
    let who = format!("{who} {} held", numbers.iter().copied().collect::<CpuSet>());
    table::table(
        &[&who, "expected", "measured"],
        &held.chain(sent).chain(moved).collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use regatta_predict::bytes::{HeldBytes, SentBytes};

    use super::*;

    fn rank(rank: usize, bytes: u64) -> RankBytes {
        let measured = Some(bytes);
        let held = HeldBytes { what: "gradients".to_owned(), expected: bytes, measured };
        let sent = SentBytes { axis: "data".to_owned(), expected: bytes, measured };
        RankBytes { rank, held: vec![held], sent: vec![sent], moved: Vec::new() }
    }

    fn text(ranks: Vec<RankBytes>) -> String {
        let text = told(&Summary { ranks, ..Default::default() });
        strip_str(&text).to_string()
    }

    #[test]
    fn ranks_that_are_alike_are_told_of_once() {
        let said = text(vec![rank(0, 1000), rank(1, 1000), rank(2, 2000), rank(3, 1000)]);
        let found: Vec<&str> = said.lines().filter(|line| line.contains("held")).collect();
        assert!(found[0].starts_with("ranks 0-1,3 held"), "{said}");
        assert!(found[1].starts_with("rank 2 held") && found.len() == 2, "{said}");
        assert!(said.contains("sent a step, data"), "{said}");
    }

    #[test]
    fn many_kinds_are_cut_and_nothing_shared_is_nothing_said() {
        let said = text((0..20).map(|number| rank(number, number as u64)).collect());
        assert!(said.ends_with("and 12 more kinds of ranks: --json has all\n"), "{said}");
        assert_eq!(text(Vec::new()), "");
    }
}
