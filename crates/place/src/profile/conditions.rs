//! Conditions of a setting on the job, the GPUs and the versions of libraries.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use regatta_model::{GpuVendor, Machine};
use serde::Deserialize;

use super::parse;

/// The job that conditions are evaluated for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobContext {
    /// Number of nodes.
    pub nodes: u32,
    /// GPUs per node used by the job.
    pub gpus_per_node: u32,
    /// GPU vendor; `None` if the job uses no GPU.
    pub vendor: Option<GpuVendor>,
    /// GPU model.
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
    /// NCCL or RCCL network plug-in.
    pub plugin: PluginState,
}

impl JobContext {
    /// The context of a job that uses all GPUs of nodes like this one.
    pub fn of(machine: &Machine, nodes: u32, framework: Option<&str>) -> Self {
        let first = machine.gpus.first();
        let software = &machine.software;
        Self {
            nodes,
            gpus_per_node: machine.gpus.len() as u32,
            vendor: first.map(|gpu| gpu.vendor),
            gpu: first.map(|gpu| gpu.name.clone()),
            framework: framework.map(str::to_owned),
            rocm: software.rocm.clone(),
            nccl: software.nccl.clone(),
            rccl: software.rccl.clone(),
            libfabric: software.libfabric.clone(),
            // That no plug-in was found here says nothing about the container or module that the
            // job will load.
            plugin: match &software.net_plugin {
                Some(_) => PluginState::Present { version: None },
                None => PluginState::Unknown,
            },
        }
    }
}

/// State of the network plug-in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PluginState {
    /// Unknown.
    #[default]
    Unknown,
    /// Not installed.
    Absent,
    /// Installed.
    Present {
        /// Its version, if known.
        version: Option<String>,
    },
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
    /// Substring of the GPU model, case-insensitive.
    pub gpu: Option<String>,
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
        let count = |condition: &Option<Constraint>, n: u32| match condition {
            Some(constraint) => constraint.matches(&Version::from(n)),
            None => true,
        };
        count(&self.nodes, job.nodes)
            && count(&self.gpus_per_node, job.gpus_per_node)
            && (self.vendor.is_empty() || job.vendor.is_some_and(|v| self.vendor.contains(&v)))
            && self.gpu.as_ref().is_none_or(|part| contains_ignore_case(job.gpu.as_deref(), part))
            && (self.framework.is_empty()
                || job.framework.as_ref().is_some_and(|f| self.framework.contains(f)))
            && self.version_matches(&self.rocm, job.rocm.as_deref())
            && self.version_matches(&self.nccl, job.nccl.as_deref())
            && self.version_matches(&self.rccl, job.rccl.as_deref())
            && self.version_matches(&self.libfabric, job.libfabric.as_deref())
            && self.plugin_matches(&job.plugin)
    }

    fn version_matches(&self, condition: &Option<Constraint>, text: Option<&str>) -> bool {
        let Some(constraint) = condition else { return true };
        match text.and_then(Version::leading) {
            Some(version) => constraint.matches(&version),
            None => self.assume_unknown,
        }
    }

    fn plugin_matches(&self, state: &PluginState) -> bool {
        match (&self.plugin, state) {
            (None, _) => true,
            (Some(_), PluginState::Unknown) => self.assume_unknown,
            (Some(PluginCondition::Installed(expected)), state) => {
                *expected == matches!(state, PluginState::Present { .. })
            }
            (Some(PluginCondition::Version(_)), PluginState::Absent) => false,
            (Some(PluginCondition::Version(condition)), PluginState::Present { version }) => {
                self.version_matches(&Some(condition.clone()), version.as_deref())
            }
        }
    }
}

/// Whether `part` is a substring of `name`, case-insensitive.
pub(super) fn contains_ignore_case(name: Option<&str>, part: &str) -> bool {
    name.is_some_and(|name| name.to_lowercase().contains(&part.to_lowercase()))
}

/// A dotted version. Missing components are 0: 6.2 is 6.2.0.
#[derive(Debug, Clone, Eq)]
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
        text.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>().map(Self)
    }
}

impl From<u32> for Version {
    fn from(number: u32) -> Self {
        Self(vec![number.into()])
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let length = self.0.len().max(other.0.len());
        let part = |v: &Self, i: usize| v.0.get(i).copied().unwrap_or(0);
        (0..length)
            .map(|i| part(self, i).cmp(&part(other, i)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&parts.join("."))
    }
}

/// A constraint on a number or version: `>=2.27.3,<2.29`; all comparisons must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Constraint(Vec<(Comparator, Version)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparator {
    AtLeast,
    AtMost,
    Greater,
    Less,
    NotEqual,
    Equal,
}

/// Longer operators first, because `>=` must not parse as `>`.
const COMPARATORS: [(&str, Comparator); 7] = [
    (">=", Comparator::AtLeast),
    ("<=", Comparator::AtMost),
    ("!=", Comparator::NotEqual),
    ("==", Comparator::Equal),
    (">", Comparator::Greater),
    ("<", Comparator::Less),
    ("=", Comparator::Equal),
];

impl Constraint {
    /// Whether `version` satisfies the constraint.
    pub fn matches(&self, version: &Version) -> bool {
        self.0.iter().all(|(comparator, bound)| {
            let order = version.cmp(bound);
            match comparator {
                Comparator::AtLeast => order.is_ge(),
                Comparator::AtMost => order.is_le(),
                Comparator::Greater => order.is_gt(),
                Comparator::Less => order.is_lt(),
                Comparator::NotEqual => order.is_ne(),
                Comparator::Equal => order.is_eq(),
            }
        })
    }
}

impl FromStr for Constraint {
    type Err = String;

    /// Parses comma-separated comparisons; a number without operator means equal.
    fn from_str(text: &str) -> Result<Self, String> {
        let part = |item: &str| {
            let item = item.trim();
            let (comparator, rest) = COMPARATORS
                .iter()
                .find_map(|(sign, c)| item.strip_prefix(sign).map(|rest| (*c, rest)))
                .unwrap_or((Comparator::Equal, item));
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
        let known = JobContext { rocm: Some("6.1.3".into()), ..JobContext::default() };
        let garbled = JobContext { rocm: Some("local build".into()), ..JobContext::default() };
        let unknown = JobContext::default();
        let plain = when(r#"rocm = "<6.2""#);
        assert!(plain.are_met(&known) && !plain.are_met(&unknown) && !plain.are_met(&garbled));
        let assumed = when("rocm = \"<6.2\"\nassume_unknown = true");
        assert!(assumed.are_met(&known) && assumed.are_met(&unknown) && assumed.are_met(&garbled));
        let newer = JobContext { rocm: Some("6.2".into()), ..JobContext::default() };
        assert!(!assumed.are_met(&newer));
    }

    #[test]
    fn plugin_conditions_are_evaluated() {
        let absent = JobContext { plugin: PluginState::Absent, ..JobContext::default() };
        let present = |version: Option<&str>| JobContext {
            plugin: PluginState::Present { version: version.map(str::to_owned) },
            ..JobContext::default()
        };
        let unknown = JobContext::default();
        let installed = when("plugin = true");
        assert!(
            installed.are_met(&present(None))
                && !installed.are_met(&absent)
                && !installed.are_met(&unknown)
        );
        let none = when("plugin = false");
        assert!(none.are_met(&absent) && !none.are_met(&present(None)) && !none.are_met(&unknown));
        let new = when(r#"plugin = ">=1.9""#);
        assert!(new.are_met(&present(Some("1.19.2"))) && !new.are_met(&present(Some("1.4.0"))));
        assert!(!new.are_met(&present(None)) && !new.are_met(&absent));
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
        assert!(!when.are_met(&JobContext { nodes: 1, ..good.clone() }));
        assert!(!when.are_met(&JobContext { gpus_per_node: 4, ..good.clone() }));
        assert!(!when.are_met(&JobContext { vendor: Some(GpuVendor::Intel), ..good.clone() }));
        assert!(!when.are_met(&JobContext { vendor: None, ..good.clone() }));
        assert!(!when.are_met(&JobContext { gpu: None, ..good.clone() }));
        assert!(!when.are_met(&JobContext { framework: None, ..good.clone() }));
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
