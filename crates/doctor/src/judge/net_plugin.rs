//! The network plug-in of NCCL or RCCL: identical, loadable, and of a version that the library uses.

use std::ops::RangeInclusive;

use regatta_model::{GpuVendor, NicKind, Software};

use super::findings::Findings;
use super::majority::Groups;
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::fabric::fabric;
use crate::facts::{JobFacts, NetPlugin, NodeFacts};
use crate::plugin::kind::version_list;
use crate::plugin::{PluginKind, Release};

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let mut findings = Findings::default();
    let lacks_plugin = facts.nodes.iter().filter(|node| node.net_plugin.is_none());
    lacks_plugin.filter(|node| needs_plugin(node)).for_each(|node| {
        let what = "no network plug-in: NCCL and RCCL use TCP on this network";
        let fix = "load the site's module of aws-ofi-nccl (or aws-ofi-rccl), or set NCCL_NET_PLUGIN to \
                   its absolute path";
        findings.add(Verdict::Warn, &node.host, what, "", fix);
    });
    if facts.nodes.iter().all(|node| node.net_plugin.is_none()) {
        return match findings.into_list() {
            list if list.is_empty() => CheckResult::skipped(Check::NetPlugin, "none, none needed"),
            list => CheckResult::new(Check::NetPlugin, "none", list),
        };
    }
    compare(facts, &mut findings);
    for node in &facts.nodes {
        if let Some(plugin) = &node.net_plugin {
            judge_plugin(node, plugin, &mut findings);
        }
    }
    CheckResult::new(Check::NetPlugin, summary(facts), findings.into_list())
}

/// Networks that NCCL and RCCL reach only by a plug-in.
fn needs_plugin(node: &NodeFacts) -> bool {
    let needs = |kind: NicKind| matches!(kind, NicKind::Slingshot | NicKind::Efa);
    let runtime = |vendor: GpuVendor| vendor != GpuVendor::Intel;
    node.machine.gpus.first().is_some_and(|gpu| runtime(gpu.vendor))
        && fabric(&node.machine.nics).first().is_some_and(|nic| needs(nic.kind))
}

fn compare(facts: &JobFacts, findings: &mut Findings) {
    let fix = "load the same modules and environment on all nodes";
    let path = |node: &NodeFacts| {
        node.net_plugin.as_ref().map_or("not found".to_owned(), |plugin| plugin.path.clone())
    };
    let paths = Groups::new(facts.nodes.iter().map(|n| (n.host.as_str(), Some(path(n)))));
    findings.add_differing(Verdict::Fail, "path of the network plug-in", &paths, fix);
    let digest = |node: &NodeFacts| {
        let plugin = node.net_plugin.as_ref().filter(|p| Some(&p.path) == paths.most_common())?;
        plugin.digest.clone()
    };
    let digests = Groups::new(facts.nodes.iter().map(|n| (n.host.as_str(), digest(n))));
    let fix = "install the same build of the plug-in on all nodes";
    findings.add_differing(Verdict::Fail, "digest of the network plug-in", &digests, fix);
}

fn judge_plugin(node: &NodeFacts, plugin: &NetPlugin, findings: &mut Findings) {
    let path = &plugin.path;
    if let Some(error) = &plugin.load_error {
        let what = format!("{path} cannot be loaded, and NCCL uses TCP");
        let fix = "put the libraries that it needs into LD_LIBRARY_PATH (`ldd`); in containers bind the \
                   site's libfabric";
        findings.add(Verdict::Fail, &node.host, what, error, fix);
        return;
    }
    if plugin.net_versions.is_empty() {
        let what = format!("{path} exports no interface ncclNetPlugin_v*");
        let fix = "set NCCL_NET_PLUGIN to the file of the network plug-in";
        findings.add(Verdict::Fail, &node.host, what, "", fix);
        return;
    }
    let Some((library, supported)) = supported(node) else { return };
    if !plugin.net_versions.iter().any(|version| supported.contains(version)) {
        let (first, last) = (supported.start(), supported.end());
        let what = format!("{path} exports no version that {library} uses (v{first} to v{last})");
        let fix = format!("install a build of the plug-in for {library}");
        findings.add(Verdict::Fail, &node.host, what, version_list(&plugin.net_versions), fix);
    }
}

/// The library that would load the plug-in and the versions of the net interface that it uses.
fn supported(node: &NodeFacts) -> Option<(String, RangeInclusive<u32>)> {
    let Software { nccl, rccl, rocm, .. } = &node.machine.software;
    match node.machine.gpus.first()?.vendor {
        GpuVendor::Nvidia => {
            let version = nccl.as_ref()?;
            let supported = Release::of_nccl(version)?.supported(PluginKind::Net)?;
            Some((format!("NCCL {version}"), supported))
        }
        GpuVendor::Amd => {
            rccl.as_ref()?;
            let version = rocm.as_ref()?;
            let supported = Release::of_rocm(version)?.supported(PluginKind::Net)?;
            Some((format!("RCCL of ROCm {version}"), supported))
        }
        GpuVendor::Intel => None,
    }
}

fn summary(facts: &JobFacts) -> String {
    let plugin = facts.nodes.iter().find_map(|node| node.net_plugin.as_ref());
    plugin.map_or_else(String::new, |plugin| {
        let mut interfaces = vec![format!("net {}", version_list(&plugin.net_versions))];
        interfaces.extend(plugin.other_interfaces.iter().cloned());
        format!("{}: {}", plugin.path, interfaces.join(", "))
    })
}
