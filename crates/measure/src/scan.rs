//! `--scan`: the same on 1, 2, 4 … nodes, and how it scales.

use regatta_model::{BenchResult, units};
use serde::Serialize;

use crate::cases::{self, Case};

/// The numbers of nodes to measure: doubled from one on, and `nodes` itself.
pub fn counts(nodes: u32) -> Vec<u32> {
    let doubled = std::iter::successors(Some(1u32), |count| count.checked_mul(2));
    let mut counts: Vec<u32> = doubled.take_while(|count| *count < nodes).collect();
    counts.extend((nodes > 0).then_some(nodes));
    counts
}

/// One number of nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// How many nodes.
    pub nodes: u32,
    /// The time in microseconds.
    pub time_us: f64,
    /// The bus bandwidth in GB/s.
    pub busbw: Option<f64>,
    /// What is left of the first step's speed: its bus bandwidth over the first one's, for that does
    /// not depend on how many ranks there are; where there is none, the first time over this one. A
    /// first step of one rank has no bus bandwidth, and the next counts as the first.
    pub efficiency: Option<f64>,
}

/// How one operation of one size scales.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scaling {
    /// What was measured.
    pub case: Case,
    /// By ascending numbers of nodes; those without a good result are left out.
    pub steps: Vec<Step>,
}

/// How everything scales that runs on different numbers of nodes measured.
pub fn scaling(runs: &[(u32, BenchResult)]) -> Vec<Scaling> {
    let mut runs: Vec<&(u32, BenchResult)> = runs.iter().collect();
    runs.sort_by_key(|(nodes, _)| *nodes);
    let of = |case: Case| {
        let step = |(nodes, run): &&(u32, BenchResult)| {
            let (time_us, measured) = cases::measured(run, &case)?;
            Some(Step { nodes: *nodes, time_us, busbw: measured.busbw, efficiency: None })
        };
        let mut steps: Vec<Step> = runs.iter().filter_map(step).collect();
        rate(&mut steps);
        (!steps.is_empty()).then_some(Scaling { case, steps })
    };
    cases::cases(runs.iter().map(|(_, run)| run)).into_iter().filter_map(of).collect()
}

/// Says what is left of the first step's speed.
fn rate(steps: &mut [Step]) {
    let bus = |step: &Step| step.busbw.filter(|bus| *bus > 0.0);
    let first_time = steps.first().map(|step| step.time_us);
    let first_bus = steps.iter().find_map(bus);
    for step in steps {
        step.efficiency = match first_bus {
            Some(first) => bus(step).map(|bus| bus / first),
            None => first_time.map(|first| first / step.time_us),
        };
    }
}

/// How everything scales, as a table.
pub fn table(all: &[Scaling]) -> String {
    let mut text = String::new();
    for scaling in all {
        let (case, separator) = (&scaling.case, if text.is_empty() { "" } else { "\n" });
        let size = units::bytes(case.size_bytes);
        let head = format!("{} {size} {}", case.operation, case.kind());
        text.push_str(&format!("{separator}{}\n", head.trim_end()));
        let heads = ["nodes", "time (us)", "busbw (GB/s)", "efficiency"];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        for step in &scaling.steps {
            let percent = step.efficiency.map(|part| format!("{:.0} %", 100.0 * part));
            lines.push(vec![
                step.nodes.to_string(),
                cases::figure(Some(step.time_us)),
                cases::figure(step.busbw),
                percent.unwrap_or_else(|| "-".to_owned()),
            ]);
        }
        text.push_str(&cases::aligned(&lines, &[0]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::testing::run;
    use proptest::prelude::*;

    #[test]
    fn numbers_double_up_to_all() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(8), [1, 2, 4, 8]);
        assert_eq!(counts(11), [1, 2, 4, 8, 11]);
        assert!(counts(0).is_empty());
        assert_eq!(counts(u32::MAX).len(), 33);
    }

    #[test]
    fn efficiency_is_what_is_left_of_the_first_bandwidth() {
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
    fn without_bandwidths_the_times_count() {
        let mut runs = [(1, run(&[(8, 2.0, 0.0)])), (2, run(&[(8, 4.0, 0.0)]))];
        for (_, run) in &mut runs {
            run.tables[0].rows[0].out_of_place.as_mut().unwrap().busbw = None;
        }
        let steps = scaling(&runs).remove(0).steps;
        assert_eq!((steps[0].efficiency, steps[1].efficiency), (Some(1.0), Some(0.5)));
    }

    proptest! {
        #[test]
        fn counts_rise_from_one_to_all_and_never_more_than_double(nodes in 1u32..100_000) {
            let all = counts(nodes);
            prop_assert_eq!((all[0], all[all.len() - 1]), (1, nodes));
            prop_assert!(all.windows(2).all(|two| two[0] < two[1] && two[1] <= 2 * two[0]));
        }
    }
}
