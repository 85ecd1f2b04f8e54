//! Health of the GPUs: memory errors, throttling, power, PCIe links, memory in use.

use std::collections::BTreeMap;

use regatta_model::units::format_bytes;

use super::findings::{Findings, by_key, lower_median, upper_median, upper_medians};
use super::majority::Groups;
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{GpuHealth, JobFacts, NodeFacts};

/// °C from which a GPU that is not loaded is too hot.
const MAX_TEMPERATURE: u32 = 90;
/// Memory in use before the job starts, as a share of the GPU's memory.
const WARN_MEMORY_USED: f64 = 0.05;
const FAIL_MEMORY_USED: f64 = 0.25;
/// Power limits and clocks relative to the other nodes' GPUs.
const WARN_POWER: f64 = 0.95;
const FAIL_POWER: f64 = 0.7;

const REPORT: &str = "exclude the node and report the GPU to the site";

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let count: usize = facts.nodes.iter().map(|node| node.gpus.len()).sum();
    if count == 0 {
        return CheckResult::skipped(Check::GpuHealth, "no GPUs");
    }
    let mut findings = Findings::default();
    let usual = Usual::new(facts);
    for node in &facts.nodes {
        let visible = node.machine.visible_gpus();
        for gpu in node.gpus.iter().filter(|gpu| visible.contains(&gpu.index)) {
            judge_memory(node, gpu, &mut findings);
            judge_state(node, gpu, &mut findings);
            usual.compare(node, gpu, &mut findings);
        }
    }
    let ecc = |node: &NodeFacts| {
        let modes = node.gpus.iter().filter_map(|gpu| gpu.ecc_enabled);
        modes.min().map(|enabled| if enabled { "enabled" } else { "disabled" })
    };
    let ecc = Groups::new(facts.nodes.iter().map(|node| (node.host.as_str(), ecc(node))));
    let fix = "`nvidia-smi -e 1` as root and a reset of the GPU, or exclude the node";
    findings.add_differing(Verdict::Warn, "ECC mode", &ecc, fix);
    CheckResult::new(Check::GpuHealth, "no memory errors, no throttling", findings.into_list())
}

fn reset(gpu: &GpuHealth) -> String {
    format!("reset the GPU (`nvidia-smi -r -i {}` as root), or exclude the node", gpu.index)
}

fn judge_memory(node: &NodeFacts, gpu: &GpuHealth, findings: &mut Findings) {
    let name = format!("GPU {}", gpu.index);
    if gpu.remap_failed == Some(true) {
        let what = "defective GPU memory cannot be remapped, the spare rows are used up";
        findings.add(Verdict::Fail, &node.host, what, &name, REPORT);
    }
    if gpu.remap_pending == Some(true) {
        let what = "defective GPU memory is remapped only after a reset";
        findings.add(Verdict::Fail, &node.host, what, &name, reset(gpu));
    }
    if let Some(errors @ 1..) = gpu.uncorrectable_errors {
        let what = format!("uncorrectable memory errors since the driver was loaded on {name}");
        findings.add(Verdict::Fail, &node.host, what, errors, reset(gpu));
    }
    let memory = node.machine.gpus.iter().find(|g| g.index == gpu.index);
    let Some((used, total)) = gpu.memory_used.zip(memory.and_then(|g| g.memory_bytes)) else {
        return;
    };
    let share = used as f64 / total as f64;
    if share > WARN_MEMORY_USED {
        let verdict = if share > FAIL_MEMORY_USED { Verdict::Fail } else { Verdict::Warn };
        let what = format!("memory of {name} is in use before the job starts");
        let fix = match gpu.processes.first() {
            Some(p) => format!("end process {} (`kill {}`), or exclude the node", p.pid, p.pid),
            None => reset(gpu),
        };
        findings.add(verdict, &node.host, what, format_bytes(used), fix);
    }
}

fn judge_state(node: &NodeFacts, gpu: &GpuHealth, findings: &mut Findings) {
    let name = format!("GPU {}", gpu.index);
    if let Some(error) = &gpu.error {
        let what = format!("the driver cannot read {name}");
        findings.add(Verdict::Fail, &node.host, what, error, REPORT);
    }
    for reason in &gpu.throttle_reasons {
        let is_thermal = reason == "sw-thermal-slowdown";
        let verdict = if is_thermal { Verdict::Warn } else { Verdict::Fail };
        let what = format!("reduced clocks ({reason})");
        let fix = "report cooling and power of the node to the site; exclude the node";
        findings.add(verdict, &node.host, what, &name, fix);
    }
    if let Some(temperature) = gpu.temperature.filter(|t| *t >= MAX_TEMPERATURE) {
        let what = format!("{name} is hotter than {MAX_TEMPERATURE} °C without load");
        let fix = "report the cooling of the node to the site";
        findings.add(Verdict::Warn, &node.host, what, format!("{temperature} °C"), fix);
    }
    if gpu.compute_mode.as_deref() == Some("prohibited") {
        let fix = format!("`nvidia-smi -c 0 -i {}` as root, or exclude the node", gpu.index);
        findings.add(Verdict::Fail, &node.host, "compute mode is prohibited", &name, fix);
    }
}

/// Values of the same GPU on most nodes.
struct Usual {
    power_limit: Option<f64>,
    links: Option<f64>,
    clock: Option<f64>,
    lanes: Option<f64>,
    /// By GPU index.
    pcie: BTreeMap<u32, f64>,
}

impl Usual {
    fn new(facts: &JobFacts) -> Self {
        let gpus = || facts.nodes.iter().flat_map(|node| &node.gpus);
        let pcie = by_key(facts, |node| {
            node.gpus.iter().filter_map(|gpu| Some((gpu.index, pcie_bandwidth(gpu)?)))
        });
        // A clock below the default is an exception if most GPUs have none.
        let unlocked = gpus().filter(|gpu| gpu.max_clock.is_none()).count();
        let clocks = || gpus().filter_map(|gpu| gpu.max_clock.map(f64::from));
        let locked = clocks().count();
        Self {
            power_limit: upper_median(gpus().filter_map(|gpu| gpu.power_limit.map(f64::from))),
            links: upper_median(gpus().filter_map(|gpu| gpu.active_links.map(f64::from))),
            clock: if unlocked >= locked { None } else { lower_median(clocks()) },
            lanes: upper_median(gpus().filter_map(|gpu| gpu.pcie_width.map(|(now, _)| now.into()))),
            pcie: upper_medians(pcie),
        }
    }

    fn compare(&self, node: &NodeFacts, gpu: &GpuHealth, findings: &mut Findings) {
        let name = format!("GPU {}", gpu.index);
        if let (Some(limit), Some(usual)) = (gpu.power_limit, self.power_limit)
            && f64::from(limit) < WARN_POWER * usual
        {
            let is_low = f64::from(limit) < FAIL_POWER * usual;
            let verdict = if is_low { Verdict::Fail } else { Verdict::Warn };
            let what = format!("power limit of {name} is below the other GPUs' {usual} W");
            let fix = format!("`nvidia-smi -pl {usual} -i {}` as root", gpu.index);
            findings.add(verdict, &node.host, what, format!("{limit} W"), fix);
        }
        if let (Some(links), Some(usual)) = (gpu.active_links, self.links)
            && f64::from(links) < usual
        {
            let what =
                format!("{name} has fewer active links to other GPUs than the usual {usual}");
            findings.add(Verdict::Fail, &node.host, what, links, reset(gpu));
        }
        if let Some(clock) = gpu.max_clock
            && self.clock.is_none_or(|usual| f64::from(clock) < WARN_POWER * usual)
        {
            let what = format!("application clock of {name} is set below the default");
            let fix = format!("`nvidia-smi -rac -i {}`", gpu.index);
            findings.add(Verdict::Warn, &node.host, what, format!("{clock} MHz"), fix);
        }
        self.compare_pcie(node, gpu, findings);
    }

    fn compare_pcie(&self, node: &NodeFacts, gpu: &GpuHealth, findings: &mut Findings) {
        let (index, Some((lanes, max))) = (gpu.index, gpu.pcie_width) else { return };
        if let (Some(bandwidth), Some(usual)) = (pcie_bandwidth(gpu), self.pcie.get(&index))
            && bandwidth < *usual
        {
            let what = format!("PCIe link of GPU {index} is slower than on the other nodes");
            let generation = gpu.pcie_generation.map_or(0, |(_, max)| max);
            let value = format!("generation {generation} with {lanes} lanes");
            findings.add(Verdict::Fail, &node.host, what, value, REPORT);
        } else if lanes < max && self.lanes.is_some_and(|usual| f64::from(lanes) < usual) {
            let what = format!("PCIe link of GPU {index} uses fewer lanes than its {max}");
            findings.add(Verdict::Warn, &node.host, what, lanes, REPORT);
        }
    }
}

/// Relative bandwidth of the PCIe link: lanes now, at the highest speed, because idle GPUs reduce the
/// speed.
fn pcie_bandwidth(gpu: &GpuHealth) -> Option<f64> {
    let ((_, generation), (lanes, _)) = gpu.pcie_generation.zip(gpu.pcie_width)?;
    Some(f64::from(lanes) * f64::from(generation.min(10)).exp2())
}
