//! Device files and kernel modules.

use std::collections::BTreeMap;

use super::findings::Findings;
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{DeviceFile, DeviceNeed, DeviceState, JobFacts, NodeFacts};

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let count = facts.nodes.iter().map(|node| node.device_files.len()).max().unwrap_or(0);
    if count == 0 {
        return CheckResult::skipped(Check::DeviceFiles, "none needed");
    }
    let mut findings = Findings::default();
    let usual = usual(facts);
    for node in &facts.nodes {
        for file in &node.device_files {
            judge_file(node, file, &usual, &mut findings);
        }
        judge_absent(node, &usual, &mut findings);
    }
    CheckResult::new(Check::DeviceFiles, format!("{count} present"), findings.into_list())
}

/// A file that most nodes have.
struct Usual<'a> {
    file: &'a DeviceFile,
    nodes: usize,
    usable: usize,
}

/// The files that more than half of the nodes have. Those of single GPUs belong to their nodes: a
/// scheduler may give a job other GPUs on each node.
fn usual(facts: &JobFacts) -> BTreeMap<&str, Usual<'_>> {
    let mut usual: BTreeMap<&str, Usual<'_>> = BTreeMap::new();
    for node in &facts.nodes {
        let files = node.device_files.iter().filter(|f| f.state != DeviceState::Missing);
        for file in files.filter(|file| !file.needed_by.starts_with("GPU ")) {
            let entry = Usual { file, nodes: 0, usable: 0 };
            let entry = usual.entry(&file.name).or_insert(entry);
            entry.nodes += 1;
            entry.usable += usize::from(file.state == DeviceState::Usable);
        }
    }
    usual.retain(|_, entry| 2 * entry.nodes > facts.nodes.len());
    usual
}

fn severity(need: DeviceNeed) -> Verdict {
    match need {
        DeviceNeed::Required | DeviceNeed::Unused => Verdict::Fail,
        DeviceNeed::Optional => Verdict::Warn,
    }
}

fn judge_file(
    node: &NodeFacts,
    file: &DeviceFile,
    usual: &BTreeMap<&str, Usual<'_>>,
    findings: &mut Findings,
) {
    let name = &file.name;
    match &file.state {
        DeviceState::Usable => {}
        DeviceState::Missing => {
            let what = format!("{name} is missing, which {} needs", file.needed_by);
            findings.add(severity(file.need), &node.host, what, "", fix(name));
        }
        DeviceState::Denied(error) => {
            let others = usual.get(name.as_str());
            let is_usual = others.is_some_and(|entry| 2 * entry.usable <= entry.nodes);
            // Without hardware a device file is of no use anyway.
            if file.need == DeviceNeed::Unused && is_usual {
                return;
            }
            let what = format!("{name} cannot be opened, which {} needs", file.needed_by);
            findings.add(severity(file.need), &node.host, what, error, fix(name));
        }
    }
}

/// Files of most other nodes that this node does not list.
fn judge_absent(node: &NodeFacts, usual: &BTreeMap<&str, Usual<'_>>, findings: &mut Findings) {
    for (name, entry) in usual {
        if !node.device_files.iter().any(|file| file.name == *name) {
            let what =
                format!("{name} ({}) is missing, but exists on other nodes", entry.file.needed_by);
            findings.add(severity(entry.file.need), &node.host, what, "", fix(name));
        }
    }
}

fn fix(name: &str) -> String {
    match name.starts_with('/') {
        true => format!(
            "load the driver and check group and mode (`ls -l {name}`); in containers pass \
             --device={name}"
        ),
        false => format!("`modprobe {name}` as root"),
    }
}
