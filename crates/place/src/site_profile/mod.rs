//! Site profiles: the settings that a site or network type needs, with reasons.
//!
//! Profiles are TOML files. Those in `profiles/` are built in; a user's file may add to them,
//! extend them or replace them. [`detect`](Profiles::detect) selects the profile,
//! [`Profile::settings`] the settings that apply.
//!
//! ```toml
//! name = "my-cluster"
//! title = "My cluster"
//! extends = "slingshot"              # inherits its settings; own ones override by variable name
//! without = ["NCCL_NET_GDR_LEVEL"]   # settings of the base to exclude
//! [match]                            # any of cluster, domain and env identifies the site
//! cluster = ["mine"]
//! domain = ["*.mine.example.org"]
//! env = { CENTRE_HOST = "mine" }
//! hardware = { gpu = ["MI250X", "1002:7408"], gpus = 8 }   # must not contradict the node
//! [place]
//! reserve = "first-of-l3"            # or "0,52", or "none"
//! smt = "one"                        # or "all"
//! [fabric]
//! interfaces = "hsn"
//! host_suffix = ["-hsn0"]
//! [node_local]
//! dirs = ["/mnt/bb/$USER", "/tmp"]
//! in_memory = ["/tmp"]               # no datasets here
//! [batch]                            # for `regatta submit`
//! scheduler = "slurm"                # or "pbs", "flux"
//! require = ["account", "time"]      # options that must be given; also "queue"
//! queue = "gpu"                      # default partition or queue
//! queue_option = "qos"               # the Slurm option that it is for, instead of "partition"
//! chunk = "system=mine"              # resources of a chunk of a PBS select
//! request_gpus = false               # nodes come with their GPUs
//! container = "singularity"          # or "apptainer", "podman-hpc", "edf"
//! container_options = []             # of the first two, instead of --rocm or --nv
//! directives = [{ option = "--constraint=gpu", why = "The GPU nodes." }]
//! [[set]]
//! variable = "NCCL_CROSS_NIC"
//! value = "1"                        # or: unset = true
//! why = "Rings may use different NICs for ingress and egress."
//! when = { nodes = ">1", rocm = "<6.2", assume_unknown = true }
//! requires = { srun = "--network=x" }  # launcher options without which it has no effect
//! ```

mod conditions;
mod detect;
mod parse;
mod registry;

use std::collections::BTreeMap;

use regatta_model::{GpuVendor, NicKind, ReservedCores, SmtPolicy};
use serde::{Deserialize, Serialize};

use crate::batch::BatchSettings;
pub use conditions::{Conditions, Constraint, JobContext, PluginCondition, Version};
pub use detect::{ProfileMatch, SiteEvidence};
pub use registry::Profiles;

/// A site or machine type and its settings.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name for `--site`: `lumi-g`.
    #[serde(deserialize_with = "parse::name")]
    pub name: String,
    /// Display name.
    #[serde(default)]
    pub title: String,
    /// The base profile.
    #[serde(default)]
    pub extends: Option<String>,
    /// Variables of the base profile that are excluded.
    #[serde(default)]
    pub without: Vec<String>,
    /// How it is detected. Not inherited, except by a profile that extends its namesake.
    #[serde(default, rename = "match")]
    pub matches: SiteMatch,
    /// Placement defaults.
    #[serde(default)]
    pub place: PlacementDefaults,
    /// The fabric.
    #[serde(default)]
    pub fabric: FabricSettings,
    /// Node-local directories.
    #[serde(default)]
    pub node_local: NodeLocalDirs,
    /// What the site requires of batch jobs.
    #[serde(default)]
    pub batch: BatchSettings,
    /// The settings with their conditions. Of several for one variable the first whose conditions
    /// are met applies.
    #[serde(default, rename = "set")]
    pub rules: Vec<SiteSetting>,
}

/// How a site is detected. Host names do not identify a site: many Cray systems have a `nid001000`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteMatch {
    /// Slurm cluster names.
    pub cluster: Vec<String>,
    /// DNS domains: `*.polaris.alcf.anl.gov` is that domain and all its subdomains.
    pub domain: Vec<String>,
    /// Environment variables with the values that identify the site; one match suffices.
    #[serde(deserialize_with = "parse::value_lists")]
    pub env: BTreeMap<String, Vec<String>>,
    /// Hardware of the nodes.
    pub hardware: HardwareMatch,
}

impl SiteMatch {
    /// Whether this profile is for a site: identified by more than hardware.
    pub fn identifies_site(&self) -> bool {
        !(self.cluster.is_empty() && self.domain.is_empty() && self.env.is_empty())
    }
}

/// Hardware of a node; absent fields match anything.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HardwareMatch {
    /// Substring of the CPU model, case-insensitive.
    pub cpu: Option<String>,
    /// Substring of a CPU model that exists only in nodes with these GPUs: it identifies the node
    /// even if the GPUs are hidden or have an unknown name.
    pub host_cpu: Option<String>,
    /// Substrings of the GPU model and PCI ID, `AMD Instinct MI250X [1002:7408]`, case-insensitive;
    /// one suffices, because a driver may report a board name or only the architecture.
    #[serde(deserialize_with = "parse::one_or_more")]
    pub gpu: Vec<String>,
    /// GPU vendor.
    pub vendor: Option<GpuVendor>,
    /// Devices on a complete node. A job may see fewer, never more.
    pub gpus: Option<u32>,
    /// Network type.
    pub nic: Option<NicKind>,
}

/// Placement defaults of a site.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlacementDefaults {
    /// Cores reserved for the operating system.
    #[serde(deserialize_with = "parse::reserve")]
    pub reserve: Option<ReservedCores>,
    /// Hardware threads used per core.
    pub smt: Option<SmtPolicy>,
}

/// The fabric of a site.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FabricSettings {
    /// Name prefix of its interfaces: `hsn`.
    pub interfaces: Option<String>,
    /// Suffixes that turn a host name into its name on the fabric, tried in order. Names that do
    /// not resolve are skipped; the plain host name is the last resort.
    #[serde(deserialize_with = "parse::one_or_more")]
    pub host_suffix: Vec<String>,
}

/// Node-local directories, for caches that many processes write.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeLocalDirs {
    /// Directories in order of preference; `$NAME` is an environment variable.
    pub dirs: Vec<String>,
    /// Those of them that are in memory (tmpfs): files there use up the memory of the job.
    pub in_memory: Vec<String>,
}

impl NodeLocalDirs {
    /// The directories with variables expanded, without those whose variable is unset.
    pub fn expanded(&self, env: &BTreeMap<String, String>) -> Vec<String> {
        self.dirs.iter().filter_map(|dir| expand(dir, env)).collect()
    }

    /// Whether the site documents that a directory is in memory.
    pub fn is_in_memory(&self, dir: &str, env: &BTreeMap<String, String>) -> bool {
        self.in_memory.iter().filter_map(|dir| expand(dir, env)).any(|memory| memory == dir)
    }
}

fn expand(text: &str, env: &BTreeMap<String, String>) -> Option<String> {
    let mut parts = text.split('$');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let (name, rest) = part.split_at(end.unwrap_or(part.len()));
        out.push_str(env.get(name).filter(|value| !value.is_empty())?);
        out.push_str(rest);
    }
    Some(out)
}

/// A setting and its conditions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "parse::RawSetting")]
pub struct SiteSetting {
    /// The environment variable.
    pub variable: String,
    /// Value; `None`: unset.
    pub value: Option<String>,
    /// The reason, one sentence.
    pub why: String,
    /// Its conditions.
    #[serde(skip_serializing)]
    pub when: Conditions,
    /// Launcher options without which it has no effect.
    #[serde(skip_serializing)]
    pub requires: RequiredOptions,
    /// The profile that defines it.
    pub profile: String,
}

/// Options of launchers that a setting needs to take effect: the only place where a profile names
/// them. `regatta map`, `regatta submit` and `regatta launch` use them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequiredOptions {
    /// Of Slurm's srun, and of the job's allocation.
    pub srun: Option<String>,
    /// Of HPE's PALS mpiexec.
    pub pals: Option<String>,
}

/// Value of a setting that is the path of the network plug-in.
const PLUGIN_PATH: &str = "{plugin}";

impl SiteSetting {
    /// The value in a context, in which `{plugin}` is the path of the network plug-in; `None` if
    /// that is unknown.
    fn value_in(&self, context: &JobContext) -> Option<Option<String>> {
        match self.value.as_deref() {
            Some(PLUGIN_PATH) => context.plugin_path.clone().map(Some),
            _ => Some(self.value.clone()),
        }
    }
}

impl Profile {
    /// Parses one profile; `file` is for error messages. [`Profiles`] adds the settings of its
    /// base.
    pub fn parse(file: &str, text: &str) -> Result<Self, ProfileError> {
        parse::profile(file, text)
    }

    /// The settings whose conditions are met, in profile order.
    pub fn settings(&self, context: &JobContext) -> Vec<SiteSetting> {
        let mut settings: Vec<SiteSetting> = Vec::new();
        for rule in self.rules.iter().filter(|rule| rule.when.are_met(context)) {
            let Some(value) = rule.value_in(context) else { continue };
            if !settings.iter().any(|s| s.variable == rule.variable) {
                settings.push(SiteSetting { value, ..rule.clone() });
            }
        }
        settings
    }
}

/// Why a profile is invalid or unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ProfileError {
    /// Syntax error.
    #[error("{file}:{line}: {message}")]
    Syntax { file: String, line: usize, message: String },
    /// Unknown base profile.
    #[error("{file}: profile {profile:?} extends the unknown profile {base:?}; {hint}")]
    UnknownBase { file: String, profile: String, base: String, hint: String },
    /// Cyclic `extends`.
    #[error("{file}: profile {profile:?} extends itself through {base:?}")]
    Cycle { file: String, profile: String, base: String },
    /// An excluded variable that the base does not set.
    #[error(
        "{file}: profile {profile:?} excludes {variable:?}, which its base does not set; {hint}"
    )]
    UnknownExclusion { file: String, profile: String, variable: String, hint: String },
    /// Duplicate name in a file.
    #[error("{file}: duplicate profile {profile:?}; remove or rename one")]
    Duplicate { file: String, profile: String },
    /// Unknown profile name.
    #[error("unknown profile {name:?}; {hint}")]
    UnknownName { name: String, hint: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_expanded_or_skipped() {
        let dirs = ["/mnt/bb/$USER", "$TMPDIR", "/local/scratch", "/a$B_C/d"].map(str::to_owned);
        let local = NodeLocalDirs { dirs: dirs.to_vec(), ..NodeLocalDirs::default() };
        let env = [("USER", "ada"), ("B_C", "x"), ("TMPDIR", "")];
        let env = env.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(local.expanded(&env), ["/mnt/bb/ada", "/local/scratch", "/ax/d"]);
    }

    #[test]
    fn first_matching_rule_applies() {
        let text = r#"
            name = "t"
            set = [
                { variable = "A", value = "small", why = "Few nodes.", when = { nodes = "<4" } },
                { variable = "B", unset = true, why = "Never." },
                { variable = "A", value = 7, why = "Many nodes." },
            ]
        "#;
        let profile = Profile::parse("t.toml", text).unwrap();
        let at = |nodes| {
            let context = JobContext { nodes, ..JobContext::default() };
            let settings = profile.settings(&context);
            settings.into_iter().map(|s| (s.variable, s.value)).collect::<Vec<_>>()
        };
        let pair = |v: &str, x: Option<&str>| (v.to_owned(), x.map(str::to_owned));
        assert_eq!(at(2), [pair("A", Some("small")), pair("B", None)]);
        assert_eq!(at(4), [pair("B", None), pair("A", Some("7"))]);
    }
}
