//! Write bandwidth of the file systems.

use regatta_model::units::{format_si_unit, format_time};

use super::findings::{Findings, by_key, lower_median, upper_median};
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{FileSystem, JobFacts, NodeFacts};

/// A short test varies widely: only far less than the other nodes, and slow by itself, counts.
const WARN_RATE: (f64, f64) = (1.0 / 8.0, 100e6);
const FAIL_RATE: (f64, f64) = (1.0 / 30.0, 10e6);
/// Bandwidth below which a single node is slow.
const SLOW_RATE: f64 = 2e6;
/// Time for a small file, as a multiple of the other nodes' and in seconds.
const WARN_SYNC: (f64, f64) = (10.0, 2.0);
const FAIL_SYNC: (f64, f64) = (10.0, 10.0);

const FIX: &str = "check the load and health of the file system and its network; use another directory, \
                   or exclude the node";

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let systems = || facts.nodes.iter().flat_map(|node| &node.file_systems);
    if systems().all(|fs| fs.write_rate.is_none() && fs.sync_seconds.is_none()) {
        return CheckResult::skipped(Check::FileSystemSpeed, "not measured");
    }
    let mut findings = Findings::default();
    let by_path = by_key(facts, |node| node.file_systems.iter().map(|fs| (&fs.path, fs)));
    for (path, nodes) in by_path {
        judge_path(path, &nodes, &mut findings);
    }
    let median = upper_median(systems().filter_map(|fs| fs.write_rate));
    let summary = median.map(|rate| format!("{} written per node", format_si_unit(rate, "B/s")));
    let summary = summary.unwrap_or_else(|| "small files only".to_owned());
    CheckResult::new(Check::FileSystemSpeed, summary, findings.into_list())
}

fn judge_path(path: &str, nodes: &[(&NodeFacts, &FileSystem)], findings: &mut Findings) {
    let usual = upper_median(nodes.iter().filter_map(|(_, fs)| fs.write_rate));
    let usual_sync = lower_median(nodes.iter().filter_map(|(_, fs)| fs.sync_seconds));
    for (node, fs) in nodes {
        if let (Some(rate), Some(usual)) = (fs.write_rate, usual) {
            let is_below = |(share, limit): (f64, f64)| rate < share * usual && rate < limit;
            let verdict = match () {
                () if is_below(FAIL_RATE) => Some(Verdict::Fail),
                () if is_below(WARN_RATE) || rate < SLOW_RATE => Some(Verdict::Warn),
                () => None,
            };
            if let Some(verdict) = verdict {
                let usual = format_si_unit(usual, "B/s");
                let what = format!("slow writes to {path} (usual: {usual})");
                findings.add(verdict, &node.host, what, format_si_unit(rate, "B/s"), FIX);
            }
        }
        if let (Some(seconds), Some(usual)) = (fs.sync_seconds, usual_sync) {
            let is_above = |(ratio, limit): (f64, f64)| seconds > ratio * usual && seconds > limit;
            let verdict = match () {
                () if is_above(FAIL_SYNC) => Verdict::Fail,
                () if is_above(WARN_SYNC) => Verdict::Warn,
                () => continue,
            };
            let what = format!("slow small files in {path} (usual: {})", format_time(usual));
            findings.add(verdict, &node.host, what, format_time(seconds), FIX);
        }
    }
}
