//! Peer-to-peer access between the GPUs of a node.

use regatta_model::GpuVendor;
use regatta_model::units::pluralize;

use super::findings::{Findings, upper_median};
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{JobFacts, NodeFacts};

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let has_peers = |node: &&NodeFacts| {
        node.machine.gpus.len().max(node.peer_to_peer.gpus_on_node.unwrap_or(0) as usize) > 1
    };
    let nodes: Vec<&NodeFacts> = facts.nodes.iter().filter(has_peers).collect();
    if nodes.is_empty() {
        return CheckResult::skipped(Check::PeerToPeer, "fewer than two GPUs per node");
    }
    let mut findings = Findings::default();
    for node in &nodes {
        judge_binding(node, &mut findings);
        judge_iommu(node, &mut findings);
    }
    // Links of a lost GPU are a consequence, not a second defect.
    let gpus = upper_median(nodes.iter().map(|node| node.machine.gpus.len() as f64));
    let is_complete = |node: &&&NodeFacts| Some(node.machine.gpus.len() as f64) == gpus;
    let usual = upper_median(nodes.iter().filter(is_complete).map(|node| links(node)));
    for node in nodes.iter().filter(is_complete) {
        if let Some(usual) = usual.filter(|usual| links(node) < *usual) {
            let what = format!("fewer links between GPUs than the {usual} of the other nodes");
            let fix = "reset the GPUs (`nvidia-smi -r` as root), or exclude the node";
            findings.add(Verdict::Fail, &node.host, what, links(node), fix);
        }
    }
    let summary = match usual {
        Some(links @ 1.0..) => {
            format!("{} between GPUs per node", pluralize(links as usize, "link"))
        }
        _ => "GPUs communicate over PCIe".to_owned(),
    };
    CheckResult::new(Check::PeerToPeer, summary, findings.into_list())
}

/// Links between the GPUs of a node, parallel ones counted.
fn links(node: &NodeFacts) -> f64 {
    node.machine.gpu_links.iter().map(|link| f64::from(link.count.unwrap_or(1))).sum()
}

fn judge_binding(node: &NodeFacts, findings: &mut Findings) {
    let Some((name, value)) = &node.peer_to_peer.gpu_binding else { return };
    let what = format!(
        "{name}={value} gives each task a cgroup with its own GPUs, in which peer-to-peer copies to \
         the other GPUs of the node fail"
    );
    let fix = "request GPUs with --gpus-per-node and launch with --gpu-bind=none; select a GPU per \
               rank by `regatta launch`";
    findings.add(Verdict::Warn, &node.host, what, "", fix);
}

/// GPUs without links of their own copy over PCIe. An IOMMU that translates addresses sends these
/// copies through the host bridge, or breaks them.
fn judge_iommu(node: &NodeFacts, findings: &mut Findings) {
    let vendor = node.machine.gpus.first().map(|gpu| gpu.vendor);
    let uses_pcie = node.machine.gpu_links.is_empty() && vendor != Some(GpuVendor::Intel);
    let iommu = node.peer_to_peer.iommu.as_deref();
    if let (true, Some(kind @ ("DMA" | "DMA-FQ"))) = (uses_pcie, iommu) {
        let what = "the IOMMU translates the addresses of GPUs that communicate over PCIe";
        let fix = "boot with iommu=pt, or set NCCL_P2P_DISABLE=1 if peer-to-peer copies hang";
        findings.add(Verdict::Warn, &node.host, what, kind, fix);
    }
}
