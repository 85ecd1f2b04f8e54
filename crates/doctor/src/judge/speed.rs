//! Speed of cores, memory and GPUs, relative to the other nodes.

use regatta_model::units::format_si_unit;

use super::findings::{by_key, upper_median};
use crate::diagnosis::{Check, CheckResult, Finding, Verdict};
use crate::facts::{JobFacts, NodeFacts, Rate, RateTest};

/// Share of the usual rate below which a node is slow, and far too slow: the slowest node sets the
/// speed of a synchronous job.
const SLOW: f64 = 0.8;
const FAR_TOO_SLOW: f64 = 0.6;
/// Share of the usual mean rate below which something takes the CPUs away. Lower, because short
/// disturbances are normal.
const STARVED: f64 = 0.25;
/// Difference of the CPU quota that is a restriction.
const QUOTA_TOLERANCE: f64 = 0.9;

/// What is compared: a test on CPUs, or on GPUs of one model.
type Key<'a> = (RateTest, Option<&'a str>);

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let groups = by_key(facts, |node| {
        node.rates.iter().map(move |rate| ((rate.test, model(node, rate)), rate))
    });
    if groups.is_empty() {
        return CheckResult::skipped(Check::Speed, "not measured");
    }
    let mut findings = quotas(facts);
    for (key, rates) in &groups {
        findings.extend(slow(*key, rates, |rate| rate.best, "", (SLOW, FAR_TOO_SLOW)));
        let starved = slow(*key, rates, |rate| rate.sustained, " on average", (STARVED, STARVED));
        // A rate that is always low has been reported.
        let is_new = |finding: &Finding| {
            !findings.iter().any(|known| known.hosts.iter().any(|h| finding.hosts.contains(h)))
        };
        let starved: Vec<Finding> = starved.into_iter().filter(is_new).collect();
        findings.extend(starved);
    }
    let usual = |(key, rates): (&Key<'_>, &Vec<(&NodeFacts, &Rate)>)| {
        let usual = usual(rates.iter().map(|(_, rate)| rate.best))?;
        Some(format!("{} {}", name(*key), format_si_unit(usual, unit(key.0))))
    };
    let summary: Vec<String> = groups.iter().filter_map(usual).collect();
    CheckResult::new(Check::Speed, summary.join(", "), findings)
}

/// The model of the GPU, or of the CPU, with which rates can be compared.
fn model<'a>(node: &'a NodeFacts, rate: &Rate) -> Option<&'a str> {
    let index = rate.gpu?;
    let gpu = node.machine.gpus.iter().find(|gpu| gpu.index == index);
    Some(gpu.map_or("GPU", |gpu| gpu.name.as_str()))
}

fn name((test, gpu): Key<'_>) -> String {
    let test = match test {
        RateTest::Gemm => "GEMM",
        RateTest::Copy => "memory copy",
        RateTest::HostToDevice => "host to device",
        RateTest::DeviceToHost => "device to host",
    };
    match gpu {
        Some(gpu) => format!("{test} on {gpu}"),
        None => format!("{test} on the CPUs"),
    }
}

fn unit(test: RateTest) -> &'static str {
    if test == RateTest::Gemm { "FLOP/s" } else { "B/s" }
}

/// The upper median: of two nodes the slower one is at fault.
fn usual(rates: impl Iterator<Item = f64>) -> Option<f64> {
    upper_median(rates.filter(|rate| rate.is_finite())).filter(|rate| *rate > 0.0)
}

fn slow(
    key: Key<'_>,
    rates: &[(&NodeFacts, &Rate)],
    of: impl Fn(&Rate) -> f64,
    how: &str,
    (slow, far_too_slow): (f64, f64),
) -> Vec<Finding> {
    let Some(usual) = usual(rates.iter().map(|(_, rate)| of(rate))) else { return Vec::new() };
    let is_slow = |(_, rate): &&(&NodeFacts, &Rate)| of(rate) < slow * usual;
    let finding = |(node, rate): &(&NodeFacts, &Rate)| {
        let gpu = rate.gpu.map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
        let (found, unit) = (of(rate), unit(key.0));
        let reason = format!(
            "{gpu}{}{how}: {}, {:.0} % of the usual {}",
            name(key),
            format_si_unit(found, unit),
            100.0 * found / usual,
            format_si_unit(usual, unit)
        );
        let verdict = if found < far_too_slow * usual { Verdict::Fail } else { Verdict::Warn };
        Finding { verdict, hosts: vec![node.host.clone()], reason, fix: fix(node, rate) }
    };
    rates.iter().filter(is_slow).map(finding).collect()
}

fn fix(node: &NodeFacts, rate: &Rate) -> String {
    let busy = node.os.busy_cpus.filter(|busy| rate.gpu.is_none() && *busy > 0.1);
    match (busy, rate.gpu) {
        (Some(busy), _) => format!(
            "other processes used {:.0} % of the CPU time before the test: end them; exclude the node",
            100.0 * busy
        ),
        (None, Some(gpu)) => format!(
            "check clocks, temperature and power of GPU {gpu} (`nvidia-smi -q -d PERFORMANCE`, \
             `amd-smi metric`); exclude the node"
        ),
        (None, None) => "check frequency, temperature and memory modules of the node \
                         (`cpupower frequency-info`, `dmesg`); exclude the node"
            .to_owned(),
    }
}

/// Nodes whose cgroup allows less CPU time than those of the others.
fn quotas(facts: &JobFacts) -> Vec<Finding> {
    let cpus = |node: &NodeFacts| {
        let all = node.machine.usable.job_cpus().len() as f64;
        node.os.cpu_quota.map_or(all, |quota| quota.min(all))
    };
    let Some(usual) = usual(facts.nodes.iter().map(cpus)) else { return Vec::new() };
    let is_restricted =
        |node: &&NodeFacts| node.os.cpu_quota.is_some() && cpus(node) < QUOTA_TOLERANCE * usual;
    let finding = |node: &NodeFacts| {
        let reason = format!("the cgroup allows {:.1} CPUs; usual are {usual:.1}", cpus(node));
        let fix =
            "request whole nodes (`--exclusive`), or raise the CPU limit of the container or pod";
        Finding::of(Verdict::Fail, &node.host, reason, fix)
    };
    facts.nodes.iter().filter(is_restricted).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(nodes: usize) -> JobFacts {
        let rate = |test, gpu, best| Rate { test, gpu, best, sustained: best * 0.9 };
        let node = |at: usize| NodeFacts {
            host: format!("n{}", at + 1),
            rates: vec![
                rate(RateTest::Gemm, None, 3e12 * (1.0 + 0.02 * (at % 5) as f64)),
                rate(RateTest::Copy, None, 2e11),
                rate(RateTest::Gemm, Some(0), 7e14),
                rate(RateTest::Gemm, Some(1), 6.8e14),
            ],
            ..NodeFacts::default()
        };
        JobFacts { nodes: (0..nodes).map(node).collect(), ..JobFacts::default() }
    }

    #[test]
    fn small_differences_pass() {
        for nodes in [1, 2, 3, 50] {
            let result = judge(&job(nodes));
            assert_eq!(result.verdict, Verdict::Pass, "{result:?}");
        }
        assert_eq!(judge(&JobFacts::default()).verdict, Verdict::Skip);
    }

    #[test]
    fn a_slow_gpu_is_named_with_its_index() {
        for (share, verdict) in [(0.7, Verdict::Warn), (0.3, Verdict::Fail)] {
            let mut facts = job(4);
            facts.nodes[2].rates[3].best *= share;
            let result = judge(&facts);
            assert_eq!((result.verdict, result.findings.len()), (verdict, 1), "{result:?}");
            let finding = &result.findings[0];
            assert_eq!(finding.hosts, ["n3"]);
            assert!(finding.reason.starts_with("GPU 1: GEMM on GPU: "), "{}", finding.reason);
        }
    }

    #[test]
    fn a_node_without_cpu_time_is_found_by_its_mean_rate() {
        let mut facts = job(3);
        facts.nodes[1].rates[0].sustained *= 0.2;
        facts.nodes[1].os.busy_cpus = Some(0.8);
        let result = judge(&facts);
        assert_eq!(result.findings.len(), 1, "{result:?}");
        assert_eq!(result.findings[0].hosts, ["n2"]);
        assert!(result.findings[0].fix.contains("80 %"), "{result:?}");
    }
}
