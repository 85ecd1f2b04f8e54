use proptest::prelude::*;

use super::*;

fn row(what: &str, device: &str, median: f64) -> Row {
    Row { what: what.to_owned(), device: device.to_owned(), median, ..Row::default() }
}

/// Ranks two a node, each with one row.
fn ceilings(rates: &[f64]) -> Vec<Ceiling> {
    let ceiling = |(rank, rate): (u32, &f64)| Ceiling {
        rank,
        host: format!("n{}", rank / 2),
        row: row("f32 1024, 1 thread", "cpu", *rate),
    };
    (0..).zip(rates).map(ceiling).collect()
}

fn names(ranks: usize) -> Vec<(u32, String)> {
    (0..ranks as u32).map(|rank| (rank, format!("n{}", rank / 2))).collect()
}

fn verdict(rates: &[f64]) -> Verdict {
    judge(&names(rates.len()), &ceilings(rates), TOLERANCE)
}

fn slow(rates: &[f64]) -> Vec<u32> {
    let mut ranks: Vec<u32> = verdict(rates).slow.iter().map(|slow| slow.rank).collect();
    ranks.sort_unstable();
    ranks
}

#[test]
fn a_slow_rank_is_named_with_its_host_and_ratio() {
    let verdict = verdict(&[100.0, 101.0, 99.0, 60.0, 100.5]);
    let [found] = verdict.slow.as_slice() else { panic!("{verdict:?}") };
    assert_eq!((found.rank, found.host.as_str()), (3, "n1"));
    assert!((found.ratio - 0.6).abs() < 1e-12);
    let text = found.to_string();
    assert_eq!(text, "rank 3 on n1: gemm f32 1024, 1 thread: 60.0 GFLOP/s, 60 % of the median");
    assert_eq!(verdict.groups[0].ranks, 5);
    assert!(!verdict.is_even());
}

#[test]
fn a_node_that_is_half_of_the_job_is_named() {
    assert_eq!(slow(&[100.0, 99.0, 50.0, 51.0]), [2, 3]);
    assert_eq!(slow(&[80.0, 100.0]), [0]);
}

#[test]
fn scattered_rates_name_nobody_but_a_far_one_is_named() {
    let scattered = [61.0, 70.0, 75.0, 80.0, 86.0, 90.0, 99.0];
    assert_eq!(slow(&scattered), [0u32; 0]);
    assert_eq!(slow(&[61.0, 70.0, 75.0, 80.0, 86.0, 90.0, 99.0, 5.0]), [7]);
}

#[test]
fn within_the_tolerance_all_are_even() {
    assert!(verdict(&[100.0, 91.0, 100.0, 100.0, 100.0]).is_even());
    assert!(verdict(&[100.0]).is_even());
    assert!(verdict(&[]).is_even());
    assert!(verdict(&[0.0, 0.0, 0.0]).is_even());
}

#[test]
fn different_devices_are_not_compared_but_folders_are() {
    let of = |rank, row| Ceiling { rank, host: "n".to_owned(), row };
    let mixed: Vec<Ceiling> = (0..6)
        .map(|rank| {
            let (model, rate) = if rank < 3 { ("big", 100.0) } else { ("small", 30.0) };
            of(rank, row("f16 8192", model, rate))
        })
        .collect();
    assert!(judge(&names(6), &mixed, TOLERANCE).is_even());
    let disk = |folder: &str, rate| Row { kind: CeilingKind::Disk, ..row("write", folder, rate) };
    let disks: Vec<Ceiling> = [("/a", 1.0), ("/b", 1.0), ("/c", 0.2)]
        .into_iter()
        .enumerate()
        .map(|(rank, (folder, rate))| of(rank as u32, disk(folder, rate)))
        .collect();
    assert_eq!(judge(&names(3), &disks, TOLERANCE).slow[0].rank, 2);
}

#[test]
fn a_rank_without_what_most_have_is_named() {
    let mut rows = ceilings(&[100.0; 5]);
    rows.remove(3);
    // What one rank has alone is no reason to name the others.
    rows.push(Ceiling { rank: 0, host: "n0".to_owned(), row: row("odd", "cpu", 1.0) });
    let verdict = judge(&names(5), &rows, TOLERANCE);
    let [found] = verdict.missing.as_slice() else { panic!("{verdict:?}") };
    assert_eq!((found.rank, found.host.as_str(), found.keys.len()), (3, "n1", 1));
    assert!(found.to_string().starts_with("rank 3 on n1: no gemm f32 1024"), "{found}");
    assert!(verdict.slow.is_empty());
}

proptest! {
    #[test]
    fn whoever_is_named_is_slow(
        rates in prop::collection::vec(0.0f64..1e6, 0..40), tolerance in 0.0f64..0.9,
    ) {
        let found = judge(&names(rates.len()), &ceilings(&rates), tolerance);
        for slow in &found.slow {
            prop_assert!(slow.ratio < 1.0 - tolerance + 1e-9, "{slow:?}");
            let faster = rates.iter().filter(|rate| **rate > slow.rate).count();
            prop_assert!(faster * 2 >= rates.len(), "{slow:?} is above the median");
        }
    }

    #[test]
    fn order_and_unit_do_not_matter(
        rates in prop::collection::vec(1.0f64..1e3, 1..30), shift in 0usize..30,
    ) {
        let here = slow(&rates);
        // A power of two scales without rounding.
        let scaled: Vec<f64> = rates.iter().map(|rate| rate * 1024.0).collect();
        prop_assert_eq!(&slow(&scaled), &here);
        let shift = shift % rates.len();
        let place = |at: usize| (at + shift) % rates.len();
        let turned: Vec<f64> = (0..rates.len()).map(|at| rates[place(at)]).collect();
        let mut back: Vec<u32> =
            slow(&turned).iter().map(|rank| place(*rank as usize) as u32).collect();
        back.sort_unstable();
        prop_assert_eq!(back, here);
    }

    #[test]
    fn any_minority_of_equally_slow_ranks_is_named(
        ranks in 2usize..60, share in 0.0f64..=0.5, ratio in 0.0f64..0.89, noise in 0.0f64..0.01,
    ) {
        let few = ((ranks as f64 * share) as usize).max(1);
        let rate = |rank: usize| {
            let wobble = 1.0 - noise * (rank % 3) as f64 / 2.0;
            if rank < few { 500.0 * ratio } else { 500.0 * wobble }
        };
        let rates: Vec<f64> = (0..ranks).map(rate).collect();
        prop_assert_eq!(slow(&rates), (0..few as u32).collect::<Vec<_>>());
    }

    #[test]
    fn whoever_is_named_stays_so_when_still_slower(
        rates in prop::collection::vec(1.0f64..1e3, 2..30), factor in 0.0f64..1.0,
    ) {
        let named = slow(&rates);
        for rank in &named {
            let mut slower = rates.clone();
            slower[*rank as usize] *= factor;
            prop_assert!(slow(&slower).contains(rank));
        }
    }
}
