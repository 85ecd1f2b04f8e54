//! NICs present, up and at full speed.

use std::collections::{BTreeMap, BTreeSet};

use regatta_model::units::{format_mbit_per_s, pluralize};
use regatta_model::{LinkState, Nic, NicKind};

use super::findings::{Findings, by_key, upper_median, upper_medians};
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::fabric::fabric;
use crate::facts::{JobFacts, NicHealth, NodeFacts};

/// A PCIe link that is slower than this share of the port limits it.
const MIN_PCIE_SHARE: f64 = 0.5;
const DOWN_FIX: &str = "check cable, switch port and driver (`ip link`, `dmesg`); exclude the node";

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let names = common_names(facts);
    let expected = facts
        .expected
        .as_ref()
        .map(|machine| fabric(&machine.nics))
        .filter(|nics| !nics.is_empty());
    if names.is_empty() && expected.is_none() {
        return judge_without_fabric(facts);
    }
    let mut findings = Findings::default();
    let usual = Usual::new(facts, &names);
    let site_speed = expected.as_deref().map_or(0, lowest_speed);
    for node in &facts.nodes {
        let is_complete = match &expected {
            Some(expected) => judge_expected(node, expected, &mut findings),
            None => true,
        };
        if is_complete {
            judge_common(node, &names, &mut findings);
        }
        usual.compare(node, site_speed, &mut findings);
        judge_pcie(node, &mut findings);
    }
    CheckResult::new(Check::Nics, summary(facts, &names), findings.into_list())
}

/// The names of interfaces that are part of the fabric on at least half of the nodes.
fn common_names(facts: &JobFacts) -> BTreeSet<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for nic in facts.nodes.iter().flat_map(|node| fabric(&node.machine.nics)) {
        *counts.entry(&nic.name).or_default() += 1;
    }
    let is_common = |(_, count): &(&str, usize)| 2 * count >= facts.nodes.len();
    counts.into_iter().filter(is_common).map(|(name, _)| name.to_owned()).collect()
}

fn judge_without_fabric(facts: &JobFacts) -> CheckResult {
    let mut findings = Findings::default();
    for node in &facts.nodes {
        let mut physical = node.machine.nics.iter().filter(|n| n.kind != NicKind::Virtual);
        if let Some(nic) = physical.next() {
            findings.add(Verdict::Fail, &node.host, "all NICs are down", &nic.name, DOWN_FIX);
        }
    }
    match findings.into_list() {
        list if list.is_empty() => CheckResult::skipped(Check::Nics, "no NICs"),
        list => CheckResult::new(Check::Nics, "no NIC is up", list),
    }
}

/// Compares a node with the site's description; whether its number of NICs is complete.
fn judge_expected(node: &NodeFacts, expected: &[&Nic], findings: &mut Findings) -> bool {
    let Some(kind) = expected.first().map(|nic| nic.kind) else { return true };
    let is_up = |nic: &&Nic| nic.kind == kind && nic.state != LinkState::Down;
    let own: Vec<&Nic> = node.machine.nics.iter().filter(is_up).collect();
    let wanted = expected.len();
    if own.len() < wanted {
        let what =
            format!("fewer {kind:?} NICs are up than the {wanted} that a node of the site has");
        findings.add(Verdict::Fail, &node.host, what, own.len(), DOWN_FIX);
    }
    let speed = lowest_speed(expected);
    for nic in own.iter().filter(|nic| nic.speed_mbit.is_some_and(|own| own < speed)) {
        let expected = format_mbit_per_s(speed);
        let what = format!("{} is slower than the site's {expected}", nic.name);
        let own = format_mbit_per_s(nic.speed_mbit.unwrap_or(0));
        findings.add(Verdict::Fail, &node.host, what, own, DOWN_FIX);
    }
    own.len() >= wanted
}

fn lowest_speed(nics: &[&Nic]) -> u64 {
    nics.iter().filter_map(|nic| nic.speed_mbit).min().unwrap_or(0)
}

/// Interfaces that other nodes have must exist and be up.
fn judge_common(node: &NodeFacts, names: &BTreeSet<String>, findings: &mut Findings) {
    let own = fabric(&node.machine.nics);
    for name in names {
        let found = node.machine.nics.iter().find(|nic| nic.name == *name);
        match found {
            Some(nic) if nic.state == LinkState::Down => {
                let what = format!("{name} is down, but up on other nodes");
                findings.add(Verdict::Fail, &node.host, what, "", DOWN_FIX);
            }
            // The interfaces of a node may have other names.
            None if own.len() < names.len() => {
                let what = format!("{name} is missing, but exists on other nodes");
                findings.add(Verdict::Fail, &node.host, what, "", DOWN_FIX);
            }
            _ => {}
        }
    }
}

/// Usual speeds by interface.
struct Usual<'a> {
    speed: BTreeMap<&'a String, f64>,
    pcie: BTreeMap<&'a String, f64>,
}

impl<'a> Usual<'a> {
    fn new(facts: &'a JobFacts, names: &BTreeSet<String>) -> Self {
        let speeds = by_key(facts, |node| {
            let nics = fabric(&node.machine.nics).into_iter();
            let nics = nics.filter(|nic| names.contains(&nic.name));
            nics.filter_map(|nic| Some((&nic.name, nic.speed_mbit? as f64)))
        });
        let links = by_key(facts, |node| {
            let nics = node.nics.iter().filter(|nic| names.contains(&nic.name));
            nics.filter_map(|nic| Some((&nic.name, pcie_gbit(nic)?)))
        });
        Self { speed: upper_medians(speeds), pcie: upper_medians(links) }
    }

    /// Compares with the other nodes. A speed below the site's is a finding already.
    fn compare(&self, node: &NodeFacts, site_speed: u64, findings: &mut Findings) {
        for nic in node.machine.nics.iter().filter(|nic| nic.state != LinkState::Down) {
            let (Some(own), Some(usual)) = (nic.speed_mbit, self.speed.get(&nic.name)) else {
                continue;
            };
            if (own as f64) < *usual && own >= site_speed {
                let usual = format_mbit_per_s(*usual as u64);
                let what = format!("{} is slower than the {usual} of the other nodes", nic.name);
                findings.add(Verdict::Fail, &node.host, what, format_mbit_per_s(own), DOWN_FIX);
            }
        }
        for nic in &node.nics {
            let (Some(own), Some(usual)) = (pcie_gbit(nic), self.pcie.get(&nic.name)) else {
                continue;
            };
            if own < *usual {
                let what = format!(
                    "PCIe link of {} is slower than the {usual:.0} Gb/s of the other nodes",
                    nic.name
                );
                let fix = "exclude the node and report the slot of the NIC to the site";
                findings.add(Verdict::Fail, &node.host, what, format!("{own:.0} Gb/s"), fix);
            }
        }
    }
}

/// Bandwidth of the PCIe link now, in Gb/s.
fn pcie_gbit(nic: &NicHealth) -> Option<f64> {
    let ((speed, _), (lanes, _)) = nic.pcie_speed.zip(nic.pcie_width)?;
    // Up to 5 GT/s 10 bits carry 8, above 130 bits carry 128.
    let efficiency = if speed <= 5.0 { 0.8 } else { 128.0 / 130.0 };
    Some(speed * f64::from(lanes) * efficiency)
}

/// A PCIe link that cannot carry the port's speed.
fn judge_pcie(node: &NodeFacts, findings: &mut Findings) {
    for nic in fabric(&node.machine.nics) {
        let health = node.nics.iter().find(|health| health.name == nic.name);
        let (Some(link), Some(speed)) = (health.and_then(pcie_gbit), nic.speed_mbit) else {
            continue;
        };
        if link < MIN_PCIE_SHARE * speed as f64 / 1000.0 {
            let port = format_mbit_per_s(speed);
            let what = format!("PCIe link of {} is slower than its port of {port}", nic.name);
            let fix = "report the slot of the NIC to the site";
            findings.add(Verdict::Warn, &node.host, what, format!("{link:.0} Gb/s"), fix);
        }
    }
}

fn summary(facts: &JobFacts, names: &BTreeSet<String>) -> String {
    let nics = facts.nodes.iter().flat_map(|node| fabric(&node.machine.nics));
    let nics: Vec<&Nic> = nics.filter(|nic| names.contains(&nic.name)).collect();
    let speed = upper_median(nics.iter().filter_map(|nic| nic.speed_mbit).map(|s| s as f64));
    let speed = speed.map(|speed| format!(" at {}", format_mbit_per_s(speed as u64)));
    format!("{} up{}", pluralize(names.len(), "NIC"), speed.unwrap_or_default())
}
