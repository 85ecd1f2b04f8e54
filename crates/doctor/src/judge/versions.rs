//! Versions of kernel, driver and communication libraries identical.

use regatta_model::Software;

use super::findings::Findings;
use super::majority::Groups;
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{JobFacts, NodeFacts};

/// A version that must be the same on all nodes.
struct Version {
    name: &'static str,
    value: fn(&Software) -> Option<&String>,
    fix: &'static str,
}

const DRIVER_FIX: &str = "exclude the node and report its driver to the site";
const LIBRARY_FIX: &str = "load the same modules and environment on all nodes (LD_LIBRARY_PATH), or use a \
                           container";

const VERSIONS: [Version; 7] = [
    Version { name: "NVIDIA driver", value: |s| s.nvidia_driver.as_ref(), fix: DRIVER_FIX },
    Version { name: "CUDA driver", value: |s| s.cuda_driver.as_ref(), fix: DRIVER_FIX },
    Version { name: "amdgpu driver", value: |s| s.amdgpu_driver.as_ref(), fix: DRIVER_FIX },
    Version { name: "ROCm", value: |s| s.rocm.as_ref(), fix: LIBRARY_FIX },
    Version { name: "NCCL", value: |s| s.nccl.as_ref(), fix: LIBRARY_FIX },
    Version { name: "RCCL", value: |s| s.rccl.as_ref(), fix: LIBRARY_FIX },
    Version { name: "libfabric", value: |s| s.libfabric.as_ref(), fix: LIBRARY_FIX },
];

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let mut findings = Findings::default();
    let mut summary = Vec::new();
    for Version { name, value, fix } in &VERSIONS {
        let value = |node| value(software(node)).map_or("not found", String::as_str);
        let groups = Groups::new(facts.nodes.iter().map(|n| (n.host.as_str(), Some(value(n)))));
        findings.add_differing(Verdict::Fail, &format!("{name} version"), &groups, fix);
        let found = groups.most_common().filter(|version| **version != "not found");
        summary.extend(found.map(|version| format!("{name} {version}")));
    }
    let kernels = facts.nodes.iter().map(|n| (n.host.as_str(), n.machine.os.kernel.as_deref()));
    let fix = "report the node to the site: it misses an update";
    findings.add_differing(Verdict::Warn, "kernel version", &Groups::new(kernels), fix);
    if summary.is_empty() {
        let kernel = facts.nodes.iter().find_map(|node| node.machine.os.kernel.as_ref());
        summary.extend(kernel.map(|kernel| format!("Linux {kernel}")));
    }
    CheckResult::new(Check::Versions, summary.join(", "), findings.into_list())
}

fn software(node: &NodeFacts) -> &Software {
    &node.machine.software
}
