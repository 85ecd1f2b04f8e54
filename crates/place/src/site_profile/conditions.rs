//! Conditions of a setting on the job, the GPUs and the versions of libraries.

use std::str::FromStr;

use regatta_model::{Gpu, GpuVendor, Machine};
use serde::Deserialize;

use super::{HardwareMatch, parse};
use crate::environment::Framework;

/// The job that conditions are evaluated for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobContext {
    /// Number of nodes.
    pub nodes: u32,
    /// GPUs per node used by the job.
    pub gpus_per_node: u32,
    /// GPU vendor; `None` if the job uses no GPU.
    pub vendor: Option<GpuVendor>,
    /// GPU model and PCI ID: `NVIDIA GH200 120GB [10de:2342]`.
    pub gpu: Option<String>,
    /// Framework: `torch`, `jax`.
    pub framework: Option<String>,
    /// ROCm version, if known.
    pub rocm: Option<String>,
    /// NCCL version, if known.
    pub nccl: Option<String>,
    /// RCCL version, if known.
    pub rccl: Option<String>,
    /// libfabric version, if known.
    pub libfabric: Option<String>,
    /// Path of the network plug-in of NCCL or RCCL. `None`: unknown, because that it was not found here
    /// says nothing about the container or module that the job will load.
    pub plugin_path: Option<String>,
}

impl JobContext {
    /// The context of a job that uses all GPUs of nodes like this one.
    pub fn of(machine: &Machine, nodes: u32, framework: Framework) -> Self {
        let first = machine.gpus.first();
        let software = &machine.software;
        Self {
            nodes,
            gpus_per_node: machine.gpus.len() as u32,
            vendor: first.map(|gpu| gpu.vendor),
            gpu: first.map(|gpu| gpu_model(machine, gpu)),
            framework: Some(framework.to_string()),
            rocm: software.rocm.clone(),
            nccl: software.nccl.clone(),
            rccl: software.rccl.clone(),
            libfabric: software.libfabric.clone(),
            plugin_path: software.net_plugin.clone(),
        }
    }

    /// The context with the GPUs of a site's nodes where this machine has none, such as a login
    /// node.
    pub fn or_gpus_of(mut self, hardware: &HardwareMatch) -> Self {
        if self.vendor.is_none() {
            self.vendor = hardware.vendor;
            self.gpus_per_node = hardware.gpus.unwrap_or(0);
        }
        self
    }
}

/// A condition on the network plug-in.
#[derive(Debug, Clone, PartialEq)]
pub enum PluginCondition {
    /// Installed or not.
    Installed(bool),
    /// Installed in such a version.
    Version(Constraint),
}

/// Conditions, all of which must be met; absent ones always are.
///
/// A condition on an unknown version or plug-in is not met, unless `assume_unknown` is true: fixes
/// for specific versions are then skipped, while settings that are safer to apply too often opt in.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Conditions {
    /// Number of nodes.
    pub nodes: Option<Constraint>,
    /// GPUs per node.
    pub gpus_per_node: Option<Constraint>,
    /// GPU vendors.
    #[serde(deserialize_with = "parse::one_or_more")]
    pub vendor: Vec<GpuVendor>,
    /// Substrings of the GPU model and PCI ID, case-insensitive; one suffices.
    #[serde(deserialize_with = "parse::one_or_more")]
    pub gpu: Vec<String>,
    /// Frameworks.
    #[serde(deserialize_with = "parse::one_or_more")]
    pub framework: Vec<String>,
    /// ROCm version.
    pub rocm: Option<Constraint>,
    /// NCCL version.
    pub nccl: Option<Constraint>,
    /// RCCL version.
    pub rccl: Option<Constraint>,
    /// libfabric version.
    pub libfabric: Option<Constraint>,
    /// Network plug-in.
    #[serde(deserialize_with = "parse::plugin")]
    pub plugin: Option<PluginCondition>,
    /// Whether conditions on unknown versions are met.
    pub assume_unknown: bool,
}

impl Conditions {
    /// Whether all conditions are met.
    pub fn are_met(&self, job: &JobContext) -> bool {
        let count = |condition: &Option<Constraint>, n: u32| {
            condition.as_ref().is_none_or(|c| c.matches(&Version::new(vec![n.into()])))
        };
        let version = |condition: &Option<Constraint>, text: &Option<String>| {
            condition.as_ref().is_none_or(|c| self.version_matches(c, text))
        };
        let framework = job.framework.as_ref();
        let gpu = |part: &str| contains_ignore_case(job.gpu.as_deref(), part);
        count(&self.nodes, job.nodes)
            && count(&self.gpus_per_node, job.gpus_per_node)
            && (self.vendor.is_empty() || job.vendor.is_some_and(|v| self.vendor.contains(&v)))
            && (self.gpu.is_empty() || self.gpu.iter().any(|part| gpu(part)))
            && (self.framework.is_empty() || framework.is_some_and(|f| self.framework.contains(f)))
            && version(&self.rocm, &job.rocm)
            && version(&self.nccl, &job.nccl)
            && version(&self.rccl, &job.rccl)
            && version(&self.libfabric, &job.libfabric)
            && self.plugin.as_ref().is_none_or(|plugin| self.plugin_matches(plugin, job))
    }

    fn version_matches(&self, constraint: &Constraint, text: &Option<String>) -> bool {
        let version = text.as_deref().and_then(Version::leading);
        version.map_or(self.assume_unknown, |version| constraint.matches(&version))
    }

    /// The version of a plug-in is never known.
    fn plugin_matches(&self, condition: &PluginCondition, job: &JobContext) -> bool {
        match (condition, &job.plugin_path) {
            (PluginCondition::Installed(expected), Some(_)) => *expected,
            (PluginCondition::Installed(_), None) | (PluginCondition::Version(_), _) => {
                self.assume_unknown
            }
        }
    }
}

/// Model and PCI ID of a GPU. The ID identifies the GPU where the driver reports the name of the
/// board, or none.
pub(super) fn gpu_model(machine: &Machine, gpu: &Gpu) -> String {
    let device = machine.pci.iter().find(|d| gpu.pci.as_ref() == Some(&d.address));
    match device {
        Some(d) => format!("{} [{:04x}:{:04x}]", gpu.name, d.vendor, d.device),
        None => gpu.name.clone(),
    }
}

/// Whether `part` is a substring of `name`, case-insensitive.
pub(super) fn contains_ignore_case(name: Option<&str>, part: &str) -> bool {
    name.is_some_and(|name| name.to_lowercase().contains(&part.to_lowercase()))
}

/// A dotted version without trailing zeros: 6.2 is 6.2.0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u64>);

impl Version {
    /// The version at the start of a text: `2.27.7+cuda12.9` is 2.27.7, `v1.19.2` is 1.19.2.
    pub fn leading(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        Self::exact(text[..end].trim_end_matches('.'))
    }

    fn exact(text: &str) -> Option<Self> {
        let parts = text.split('.').map(|part| part.parse().ok());
        parts.collect::<Option<Vec<u64>>>().map(Self::new)
    }

    fn new(mut parts: Vec<u64>) -> Self {
        parts.truncate(parts.iter().rposition(|&part| part > 0).map_or(0, |last| last + 1));
        Self(parts)
    }
}

/// A constraint on a number or version: `>=2.27.3,<2.29`; all comparisons must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Constraint(Vec<(&'static str, Version)>);

/// Longer operators first, because `>=` must not parse as `>`.
const COMPARATORS: [&str; 7] = [">=", "<=", "!=", "==", ">", "<", "="];

impl Constraint {
    /// Whether `version` satisfies the constraint.
    pub fn matches(&self, version: &Version) -> bool {
        self.0.iter().all(|(comparator, bound)| match *comparator {
            ">=" => version >= bound,
            "<=" => version <= bound,
            ">" => version > bound,
            "<" => version < bound,
            "!=" => version != bound,
            _ => version == bound,
        })
    }
}

impl FromStr for Constraint {
    type Err = String;

    /// Parses comma-separated comparisons; a number without operator means equal.
    fn from_str(text: &str) -> Result<Self, String> {
        let part = |item: &str| {
            let item = item.trim();
            let comparator = COMPARATORS.into_iter().find(|c| item.starts_with(c)).unwrap_or("");
            let rest = &item[comparator.len()..];
            Version::exact(rest.trim()).map(|version| (comparator, version)).ok_or_else(|| {
                format!("{text:?} is not a version constraint such as \">=2.27.3,<2.29\"")
            })
        };
        text.split(',').map(part).collect::<Result<Vec<_>, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holds(constraint: &str, version: &str) -> bool {
        constraint.parse::<Constraint>().unwrap().matches(&Version::leading(version).unwrap())
    }

    fn when(text: &str) -> Conditions {
        toml::from_str(text).unwrap()
    }

    /// A launch from a login node.
    #[test]
    fn gpus_are_those_of_the_site_where_the_machine_has_none() {
        let amd =
            HardwareMatch { vendor: Some(GpuVendor::Amd), gpus: Some(8), ..Default::default() };
        let context = JobContext::default().or_gpus_of(&amd);
        assert_eq!((context.vendor, context.gpus_per_node), (Some(GpuVendor::Amd), 8));
        let own = JobContext { vendor: Some(GpuVendor::Nvidia), gpus_per_node: 4, ..context };
        let own = own.or_gpus_of(&amd);
        assert_eq!((own.vendor, own.gpus_per_node), (Some(GpuVendor::Nvidia), 4));
    }

    #[test]
    fn versions_compare_numerically() {
        assert!(holds(">=2.27.3,<2.29", "2.28"));
        assert!(holds(">=2.27.3", "2.27.3+cuda12.4"));
        assert!(!holds(">=2.27.3", "2.9.9"));
        assert!(!holds(">=2.27.3,<2.29", "2.29.0"));
        assert!(holds("6.2", "6.2.0-66"));
        assert!(holds("!=6.2", "6.2.1"));
        assert!(holds("==7", "v7.0."));
        assert!(holds("<=6.4", "6.4.0.0"));
    }

    #[test]
    fn invalid_constraints_are_rejected() {
        for bad in ["", ">", ">=a", "1,", "1..2", ">=1.2-rc", "~1", "99999999999999999999999"] {
            let error = bad.parse::<Constraint>().unwrap_err();
            assert!(error.contains("not a version constraint"), "{bad}: {error}");
        }
        assert_eq!(Version::leading("rocm"), None);
        assert_eq!(Version::leading(""), None);
    }

    #[test]
    fn unknown_versions_match_only_with_assume_unknown() {
        let rocm = |version: &str| JobContext { rocm: Some(version.into()), ..Default::default() };
        let contexts = [rocm("6.1.3"), JobContext::default(), rocm("local build"), rocm("6.2")];
        let met = |text: &str| contexts.each_ref().map(|context| when(text).are_met(context));
        assert_eq!(met("rocm = '<6.2'"), [true, false, false, false]);
        assert_eq!(met("rocm = '<6.2'\nassume_unknown = true"), [true, true, true, false]);
    }

    #[test]
    fn plugin_conditions_are_evaluated() {
        let contexts = [None, Some("/opt/librccl-net.so".to_owned())]
            .map(|plugin_path| JobContext { plugin_path, ..JobContext::default() });
        let met = |text: &str| contexts.each_ref().map(|context| when(text).are_met(context));
        assert_eq!(met("plugin = true"), [false, true]);
        assert_eq!(met("plugin = false"), [false, false]);
        assert_eq!(met("plugin = '>=1.9'"), [false, false]);
        assert_eq!(met("plugin = '>=1.9'\nassume_unknown = true"), [true, true]);
    }

    #[test]
    fn all_conditions_must_be_met() {
        let text = r#"
            nodes = ">1"
            gpus_per_node = 8
            vendor = ["amd", "nvidia"]
            framework = "torch"
            gpu = "mi250"
        "#;
        let when = when(text);
        let good = JobContext {
            nodes: 2,
            gpus_per_node: 8,
            vendor: Some(GpuVendor::Amd),
            gpu: Some("AMD Instinct MI250X".into()),
            framework: Some("torch".into()),
            ..JobContext::default()
        };
        assert!(when.are_met(&good));
        let changes: [fn(&mut JobContext); 6] = [
            |job| job.nodes = 1,
            |job| job.gpus_per_node = 4,
            |job| job.vendor = Some(GpuVendor::Intel),
            |job| job.vendor = None,
            |job| job.gpu = None,
            |job| job.framework = None,
        ];
        for change in changes {
            let mut job = good.clone();
            change(&mut job);
            assert!(!when.are_met(&job), "{job:?}");
        }
    }

    proptest! {
        #[test]
        fn constraint_parsing_never_panics(text in "\\PC*") {
            let _ = text.parse::<Constraint>();
            let _ = Version::leading(&text);
        }

        #[test]
        fn exactly_one_of_less_equal_greater_matches(a in "[0-9]{1,3}(\\.[0-9]{1,3}){0,3}", b in "[0-9]{1,3}(\\.[0-9]{1,3}){0,3}") {
            let count = ["<", "=", ">"].iter().filter(|s| holds(&format!("{s}{a}"), &b)).count();
            prop_assert_eq!(count, 1);
        }
    }
}
