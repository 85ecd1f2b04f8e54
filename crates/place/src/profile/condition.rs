//! When a setting applies: conditions on the job, the GPUs and the versions of libraries.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use regatta_model::{GpuVendor, Machine};
use serde::Deserialize;

use super::read;

/// What the conditions of settings are held against.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Situation {
    /// Nodes of the job.
    pub nodes: u32,
    /// GPUs that the job uses on a node.
    pub gpus_per_node: u32,
    /// Who makes them; `None` when the job uses none.
    pub vendor: Option<GpuVendor>,
    /// The name of the GPUs.
    pub gpu: Option<String>,
    /// The framework: `torch`, `jax`.
    pub framework: Option<String>,
    /// ROCm's version, if known; so with the others.
    pub rocm: Option<String>,
    /// NCCL's version.
    pub nccl: Option<String>,
    /// RCCL's version.
    pub rccl: Option<String>,
    /// libfabric's version.
    pub libfabric: Option<String>,
    /// The network plug-in of NCCL or RCCL.
    pub plugin: PluginState,
}

impl Situation {
    /// The situation of a job that uses all GPUs of nodes like this one.
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
            // A machine's description tells where a plug-in was found. That none was found here
            // says nothing of the container or module that the job will load.
            plugin: match &software.net_plugin {
                Some(_) => PluginState::Present { version: None },
                None => PluginState::Unknown,
            },
        }
    }
}

/// What is known of the network plug-in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PluginState {
    /// Nothing.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    /// There is one.
    Present {
        /// Its version, if known.
        version: Option<String>,
    },
}

/// What a condition asks of the network plug-in.
#[derive(Debug, Clone, PartialEq)]
pub enum PluginWish {
    /// That there is one, or that there is none.
    Found(bool),
    /// That there is one of such a version.
    Version(Constraint),
}

/// Conditions, all of which must hold; one that is not given always does.
///
/// A condition on a version or on the plug-in does not hold when that is unknown, unless
/// `assume_unknown` is true: a setting that only repairs some version is then left out, and one
/// that must rather be set once too often says so.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// On the number of nodes.
    pub nodes: Option<Constraint>,
    /// On the number of GPUs a node.
    pub gpus_per_node: Option<Constraint>,
    /// The makers of GPUs it is for.
    #[serde(deserialize_with = "read::one_or_more")]
    pub vendor: Vec<GpuVendor>,
    /// Part of the GPUs' name, in any case of letters.
    pub gpu: Option<String>,
    /// The frameworks it is for.
    #[serde(deserialize_with = "read::one_or_more")]
    pub framework: Vec<String>,
    /// On ROCm.
    pub rocm: Option<Constraint>,
    /// On NCCL.
    pub nccl: Option<Constraint>,
    /// On RCCL.
    pub rccl: Option<Constraint>,
    /// On libfabric.
    pub libfabric: Option<Constraint>,
    /// On the network plug-in.
    #[serde(deserialize_with = "read::plugin")]
    pub plugin: Option<PluginWish>,
    /// Whether conditions on what is unknown hold.
    pub assume_unknown: bool,
}

impl When {
    /// Whether all conditions hold.
    pub fn holds(&self, now: &Situation) -> bool {
        let count = |wish: &Option<Constraint>, n: u32| match wish {
            Some(constraint) => constraint.holds(&Version::from(n)),
            None => true,
        };
        count(&self.nodes, now.nodes)
            && count(&self.gpus_per_node, now.gpus_per_node)
            && (self.vendor.is_empty() || now.vendor.is_some_and(|v| self.vendor.contains(&v)))
            && self.gpu.as_ref().is_none_or(|part| has_part(now.gpu.as_deref(), part))
            && (self.framework.is_empty()
                || now.framework.as_ref().is_some_and(|f| self.framework.contains(f)))
            && self.version_holds(&self.rocm, now.rocm.as_deref())
            && self.version_holds(&self.nccl, now.nccl.as_deref())
            && self.version_holds(&self.rccl, now.rccl.as_deref())
            && self.version_holds(&self.libfabric, now.libfabric.as_deref())
            && self.plugin_holds(&now.plugin)
    }

    fn version_holds(&self, wish: &Option<Constraint>, text: Option<&str>) -> bool {
        let Some(constraint) = wish else { return true };
        match text.and_then(Version::leading) {
            Some(version) => constraint.holds(&version),
            None => self.assume_unknown,
        }
    }

    fn plugin_holds(&self, state: &PluginState) -> bool {
        match (&self.plugin, state) {
            (None, _) => true,
            (Some(_), PluginState::Unknown) => self.assume_unknown,
            (Some(PluginWish::Found(wanted)), state) => {
                *wanted == matches!(state, PluginState::Present { .. })
            }
            (Some(PluginWish::Version(_)), PluginState::Absent) => false,
            (Some(PluginWish::Version(wish)), PluginState::Present { version }) => {
                self.version_holds(&Some(wish.clone()), version.as_deref())
            }
        }
    }
}

/// Whether `part` occurs in `name`, in any case of letters.
pub(super) fn has_part(name: Option<&str>, part: &str) -> bool {
    name.is_some_and(|name| name.to_lowercase().contains(&part.to_lowercase()))
}

/// A version: numbers with dots between them. Missing ones count as 0, so 6.2 is 6.2.0.
#[derive(Debug, Clone, Eq)]
pub struct Version(Vec<u64>);

impl Version {
    /// The version that a text begins with: `2.27.7+cuda12.9` is 2.27.7, `v1.19.2` is 1.19.2.
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

/// What a number or a version must be: `>=2.27.3,<2.29`; all parts must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Constraint(Vec<(Comparison, Version)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    AtLeast,
    AtMost,
    More,
    Less,
    Not,
    Equal,
}

/// Longer ones first, so that `>=` is not read as `>`.
const COMPARISONS: [(&str, Comparison); 7] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    ("!=", Comparison::Not),
    ("==", Comparison::Equal),
    (">", Comparison::More),
    ("<", Comparison::Less),
    ("=", Comparison::Equal),
];

impl Constraint {
    /// Whether `version` is as asked.
    pub fn holds(&self, version: &Version) -> bool {
        self.0.iter().all(|(comparison, bound)| {
            let order = version.cmp(bound);
            match comparison {
                Comparison::AtLeast => order.is_ge(),
                Comparison::AtMost => order.is_le(),
                Comparison::More => order.is_gt(),
                Comparison::Less => order.is_lt(),
                Comparison::Not => order.is_ne(),
                Comparison::Equal => order.is_eq(),
            }
        })
    }
}

impl FromStr for Constraint {
    type Err = String;

    /// Reads comma-joined comparisons; a number without a sign means equal.
    fn from_str(text: &str) -> Result<Self, String> {
        let part = |item: &str| {
            let item = item.trim();
            let (comparison, rest) = COMPARISONS
                .iter()
                .find_map(|(sign, c)| item.strip_prefix(sign).map(|rest| (*c, rest)))
                .unwrap_or((Comparison::Equal, item));
            Version::exact(rest.trim()).map(|version| (comparison, version)).ok_or_else(|| {
                format!("{text:?} is no comparison of versions, such as \">=2.27.3,<2.29\"")
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
        constraint.parse::<Constraint>().unwrap().holds(&Version::leading(version).unwrap())
    }

    fn when(text: &str) -> When {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn versions_compare_as_numbers() {
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
    fn what_is_no_version_is_said() {
        for bad in ["", ">", ">=a", "1,", "1..2", ">=1.2-rc", "~1", "99999999999999999999999"] {
            let error = bad.parse::<Constraint>().unwrap_err();
            assert!(error.contains("no comparison of versions"), "{bad}: {error}");
        }
        assert_eq!(Version::leading("rocm"), None);
        assert_eq!(Version::leading(""), None);
    }

    #[test]
    fn unknown_versions_do_not_hold_unless_assumed() {
        let known = Situation { rocm: Some("6.1.3".into()), ..Situation::default() };
        let garbled = Situation { rocm: Some("local build".into()), ..Situation::default() };
        let unknown = Situation::default();
        let plain = when(r#"rocm = "<6.2""#);
        assert!(plain.holds(&known) && !plain.holds(&unknown) && !plain.holds(&garbled));
        let assumed = when("rocm = \"<6.2\"\nassume_unknown = true");
        assert!(assumed.holds(&known) && assumed.holds(&unknown) && assumed.holds(&garbled));
        let newer = Situation { rocm: Some("6.2".into()), ..Situation::default() };
        assert!(!assumed.holds(&newer));
    }

    #[test]
    fn plugin_may_be_wished_for_by_version() {
        let absent = Situation { plugin: PluginState::Absent, ..Situation::default() };
        let present = |version: Option<&str>| Situation {
            plugin: PluginState::Present { version: version.map(str::to_owned) },
            ..Situation::default()
        };
        let unknown = Situation::default();
        let found = when("plugin = true");
        assert!(found.holds(&present(None)) && !found.holds(&absent) && !found.holds(&unknown));
        let none = when("plugin = false");
        assert!(none.holds(&absent) && !none.holds(&present(None)) && !none.holds(&unknown));
        let new = when(r#"plugin = ">=1.9""#);
        assert!(new.holds(&present(Some("1.19.2"))) && !new.holds(&present(Some("1.4.0"))));
        assert!(!new.holds(&present(None)) && !new.holds(&absent));
    }

    #[test]
    fn all_conditions_must_hold() {
        let text = r#"
            nodes = ">1"
            gpus_per_node = 8
            vendor = ["amd", "nvidia"]
            framework = "torch"
            gpu = "mi250"
        "#;
        let when = when(text);
        let good = Situation {
            nodes: 2,
            gpus_per_node: 8,
            vendor: Some(GpuVendor::Amd),
            gpu: Some("AMD Instinct MI250X".into()),
            framework: Some("torch".into()),
            ..Situation::default()
        };
        assert!(when.holds(&good));
        assert!(!when.holds(&Situation { nodes: 1, ..good.clone() }));
        assert!(!when.holds(&Situation { gpus_per_node: 4, ..good.clone() }));
        assert!(!when.holds(&Situation { vendor: Some(GpuVendor::Intel), ..good.clone() }));
        assert!(!when.holds(&Situation { vendor: None, ..good.clone() }));
        assert!(!when.holds(&Situation { gpu: None, ..good.clone() }));
        assert!(!when.holds(&Situation { framework: None, ..good.clone() }));
    }

    proptest! {
        #[test]
        fn constraints_never_panic(text in "\\PC*") {
            let _ = text.parse::<Constraint>();
            let _ = Version::leading(&text);
        }

        #[test]
        fn one_of_less_equal_and_more_holds(a in "[0-9]{1,3}(\\.[0-9]{1,3}){0,3}", b in "[0-9]{1,3}(\\.[0-9]{1,3}){0,3}") {
            let count = ["<", "=", ">"].iter().filter(|s| holds(&format!("{s}{a}"), &b)).count();
            prop_assert_eq!(count, 1);
        }
    }
}
