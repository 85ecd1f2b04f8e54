//! `--scan`: the same benchmark on 1, 2, 4, … nodes, and its scaling efficiency.

use regatta_draw::table;
use regatta_model::{BenchResult, units};
use serde::Serialize;

use crate::cases::{self, BenchCase};

/// The node counts to measure: powers of two below `nodes`, and `nodes`.
pub fn node_counts(nodes: u32) -> Vec<u32> {
    let doubled = std::iter::successors(Some(1u32), |count| count.checked_mul(2));
    let mut node_counts: Vec<u32> = doubled.take_while(|count| *count < nodes).collect();
    node_counts.extend((nodes > 0).then_some(nodes));
    node_counts
}

/// One node count.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScalingPoint {
    /// Number of nodes.
    pub nodes: u32,
    /// Time in µs.
    pub time_us: f64,
    /// Bus bandwidth in GB/s.
    pub busbw: Option<f64>,
    /// Scaling efficiency: bus bandwidth relative to the first point that has one (a single rank
    /// has none), because it is independent of the number of ranks; without bus bandwidths, the
    /// first time over this one.
    pub efficiency: Option<f64>,
}

/// Scaling of one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scaling {
    /// The case.
    pub case: BenchCase,
    /// By ascending node count; points without a valid measurement are omitted.
    pub points: Vec<ScalingPoint>,
}

/// The scaling of every case of runs on different node counts.
pub fn scaling(runs: &[(u32, BenchResult)]) -> Vec<Scaling> {
    let mut runs: Vec<&(u32, BenchResult)> = runs.iter().collect();
    runs.sort_by_key(|(nodes, _)| *nodes);
    let of = |case: BenchCase| {
        let point = |(nodes, run): &&(u32, BenchResult)| {
            let (time_us, measured) = cases::measurement(run, &case)?;
            Some(ScalingPoint { nodes: *nodes, time_us, busbw: measured.busbw, efficiency: None })
        };
        let mut points: Vec<ScalingPoint> = runs.iter().filter_map(point).collect();
        set_efficiency(&mut points);
        (!points.is_empty()).then_some(Scaling { case, points })
    };
    cases::cases(runs.iter().map(|(_, run)| run)).into_iter().filter_map(of).collect()
}

fn set_efficiency(points: &mut [ScalingPoint]) {
    let bus = |point: &ScalingPoint| point.busbw.filter(|bus| *bus > 0.0);
    let first_time = points.first().map(|point| point.time_us);
    let first_bus = points.iter().find_map(bus);
    for point in points {
        point.efficiency = match first_bus {
            Some(first) => bus(point).map(|bus| bus / first),
            None => first_time.map(|first| first / point.time_us),
        };
    }
}

/// The scaling of all cases as text tables.
pub fn table(all: &[Scaling]) -> String {
    let tables: Vec<String> = all.iter().map(table_of_case).collect();
    tables.join("\n")
}

fn table_of_case(Scaling { case, points }: &Scaling) -> String {
    let size = units::format_bytes(case.size_bytes);
    let head = format!("{} {size} {}", case.operation, case.variant());
    let row = |point: &ScalingPoint| {
        let percent = point.efficiency.map(|part| format!("{:.0} %", 100.0 * part));
        let [time, busbw] = [Some(point.time_us), point.busbw].map(table::format_value);
        vec![point.nodes.to_string(), time, busbw, percent.unwrap_or_else(|| "-".to_owned())]
    };
    let rows: Vec<Vec<String>> = points.iter().map(row).collect();
    let header = ["nodes", "time (us)", "busbw (GB/s)", "efficiency"];
    format!("{}\n{}", head.trim_end(), table::align(&header, &rows, &[0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::testing::run;
    use proptest::prelude::*;

    #[test]
    fn node_counts_are_powers_of_two_and_the_maximum() {
        assert_eq!(node_counts(1), [1]);
        assert_eq!(node_counts(8), [1, 2, 4, 8]);
        assert_eq!(node_counts(11), [1, 2, 4, 8, 11]);
        assert!(node_counts(0).is_empty());
        assert_eq!(node_counts(u32::MAX).len(), 33);
    }

    #[test]
    fn efficiency_is_relative_to_the_first_bus_bandwidth() {
        let runs = [
            (4, run(&[(1024, 30.0, 5.0)])),
            (1, run(&[(1024, 1.0, 0.0)])),
            (2, run(&[(1024, 20.0, 10.0)])),
        ];
        let wanted = "all-reduce 1 KiB float sum
nodes  time (us)  busbw (GB/s)  efficiency
1           1.00          0.00           -
2          20.00         10.00       100 %
4          30.00          5.00        50 %
";
        assert_eq!(table(&scaling(&runs)), wanted);
    }

    #[test]
    fn efficiency_falls_back_to_times_without_bandwidths() {
        let mut runs = [(1, run(&[(8, 2.0, 0.0)])), (2, run(&[(8, 4.0, 0.0)]))];
        for (_, run) in &mut runs {
            run.tables[0].rows[0].out_of_place.as_mut().unwrap().busbw = None;
        }
        let points = scaling(&runs).remove(0).points;
        assert_eq!((points[0].efficiency, points[1].efficiency), (Some(1.0), Some(0.5)));
    }

    proptest! {
        #[test]
        fn node_counts_grow_by_at_most_a_factor_of_two(nodes in 1u32..100_000) {
            let all = node_counts(nodes);
            prop_assert_eq!((all[0], all[all.len() - 1]), (1, nodes));
            prop_assert!(all.windows(2).all(|two| two[0] < two[1] && two[1] <= 2 * two[0]));
        }
    }
}
