use proptest::prelude::*;

use super::*;

fn row(what: &str, device: &str, median: f64) -> RooflineRow {
    let (case, device) = (what.to_owned(), device.to_owned());
    RooflineRow { case, device, median, ..RooflineRow::default() }
}

/// Two ranks per node, one row each.
fn rooflines(rates: &[f64]) -> Vec<RankRoofline> {
    let entry = |(rank, rate): (u32, &f64)| RankRoofline {
        rank,
        host: format!("n{}", rank / 2),
        row: row("f32 1024, 1 thread", "cpu", *rate),
    };
    (0..).zip(rates).map(entry).collect()
}

fn hosts(ranks: usize) -> Vec<(u32, String)> {
    (0..ranks as u32).map(|rank| (rank, format!("n{}", rank / 2))).collect()
}

fn outliers(rates: &[f64]) -> Outliers {
    find(&hosts(rates.len()), &rooflines(rates), 0.1)
}

fn slow(rates: &[f64]) -> Vec<u32> {
    let mut ranks: Vec<u32> = outliers(rates).slow.iter().map(|slow| slow.rank).collect();
    ranks.sort_unstable();
    ranks
}

#[test]
fn a_slow_rank_is_reported_with_host_and_ratio() {
    let outliers = outliers(&[100.0, 101.0, 99.0, 60.0, 100.5]);
    let [found] = outliers.slow.as_slice() else { panic!("{outliers:?}") };
    assert_eq!((found.rank, found.host.as_str()), (3, "n1"));
    assert!((found.ratio - 0.6).abs() < 1e-12);
    let text = "slow: rank 3 on n1: gemm f32 1024, 1 thread: 60.0 GFLOP/s, 60 % of the median";
    assert_eq!(found.to_string(), text);
}

#[test]
fn a_slow_half_of_the_ranks_is_reported() {
    assert_eq!(slow(&[100.0, 99.0, 50.0, 51.0]), [2, 3]);
}

#[test]
fn neither_of_two_ranks_is_slow_and_their_median_is_the_mean() {
    let found = outliers(&[80.0, 100.0]);
    assert_eq!((found.slow.len(), found.groups[0].median), (0, 90.0));
    assert_eq!(slow(&[80.0, 100.0, 100.0]), [0]);
}

#[test]
fn noisy_rates_need_a_larger_deviation() {
    let scattered = [61.0, 70.0, 75.0, 80.0, 86.0, 90.0, 99.0, 5.0];
    assert_eq!(slow(&scattered[..7]), [0u32; 0]);
    assert_eq!(slow(&scattered), [7]);
}

#[test]
fn rates_within_the_tolerance_are_not_outliers() {
    let rates: [&[f64]; 4] = [&[100.0, 91.0, 100.0, 100.0, 100.0], &[100.0], &[], &[0.0; 3]];
    for rates in rates {
        let found = outliers(rates);
        assert!(found.slow.is_empty() && found.missing.is_empty(), "{rates:?}");
    }
}

#[test]
fn rows_are_grouped_by_device_except_for_disks() {
    let of = |rank, row| RankRoofline { rank, host: "n".to_owned(), row };
    let gpu = |rank| {
        let (model, rate) = if rank < 3 { ("big", 100.0) } else { ("small", 30.0) };
        of(rank, row("f16 8192", model, rate))
    };
    let mixed: Vec<RankRoofline> = (0..6).map(gpu).collect();
    assert!(find(&hosts(6), &mixed, 0.1).slow.is_empty());
    let disk = |(rank, folder, rate)| {
        of(rank, RooflineRow { kind: RooflineKind::Disk, ..row("write", folder, rate) })
    };
    let disks = [(0, "/a", 1.0), (1, "/b", 1.0), (2, "/c", 0.2)].map(disk);
    assert_eq!(find(&hosts(3), &disks, 0.1).slow[0].rank, 2);
}

#[test]
fn a_rank_without_a_common_metric_is_reported() {
    let mut rows = rooflines(&[100.0; 5]);
    rows.remove(3);
    // A metric of a single rank is not missing elsewhere.
    rows.push(RankRoofline { rank: 0, host: "n0".to_owned(), row: row("odd", "cpu", 1.0) });
    let outliers = find(&hosts(5), &rows, 0.1);
    let [found] = outliers.missing.as_slice() else { panic!("{outliers:?}") };
    assert_eq!((found.rank, found.host.as_str(), found.keys.len()), (3, "n1", 1));
    assert!(found.to_string().starts_with("rank 3 on n1: no result for gemm f32 1024"), "{found}");
    assert!(outliers.slow.is_empty());
}

proptest! {
    #[test]
    fn slow_ranks_are_below_the_tolerance_and_the_median(
        rates in prop::collection::vec(0.0f64..1e6, 0..40), tolerance in 0.0f64..0.9,
    ) {
        let found = find(&hosts(rates.len()), &rooflines(&rates), tolerance);
        for slow in &found.slow {
            prop_assert!(slow.ratio < 1.0 - tolerance + 1e-9, "{slow:?}");
            let faster = rates.iter().filter(|rate| **rate > slow.rate).count();
            prop_assert!(faster * 2 >= rates.len(), "{slow:?} is above the median");
        }
    }

    #[test]
    fn outliers_do_not_depend_on_order_or_unit(
        rates in prop::collection::vec(1.0f64..1e3, 1..30), shift in 0usize..30,
    ) {
        let expected = slow(&rates);
        // Scaling by a power of two is exact.
        let scaled: Vec<f64> = rates.iter().map(|rate| rate * 1024.0).collect();
        prop_assert_eq!(&slow(&scaled), &expected);
        let shift = shift % rates.len();
        let source = |at: usize| (at + shift) % rates.len();
        let rotated: Vec<f64> = (0..rates.len()).map(|at| rates[source(at)]).collect();
        let mut back: Vec<u32> =
            slow(&rotated).iter().map(|rank| source(*rank as usize) as u32).collect();
        back.sort_unstable();
        prop_assert_eq!(back, expected);
    }

    #[test]
    fn any_equally_slow_minority_is_reported(
        ranks in 3usize..60, share in 0.0f64..=0.5, ratio in 0.0f64..0.89, noise in 0.0f64..0.01,
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
    fn a_slow_rank_stays_slow_when_it_gets_slower(
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
