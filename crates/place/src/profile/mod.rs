//! Site profiles: which settings a site, or a kind of network, needs, and why.
//!
//! A profile is TOML. Those in `profiles/` are built in; a user's file may add to them, extend
//! them or replace them. Which one applies is decided in [`recognise`](Profiles::recognise), which
//! of its settings apply in [`Profile::settings`].
//!
//! ```toml
//! name = "my-cluster"
//! title = "My cluster"
//! extends = "slingshot"              # its settings first; own ones override by variable name
//! without = ["NCCL_NET_GDR_LEVEL"]   # settings of the base to leave out
//! [match]                            # any of cluster, domain and env names the site
//! cluster = ["mine"]
//! domain = ["*.mine.example.org"]
//! env = { CENTRE_HOST = "mine" }
//! hardware = { gpu = "MI250X", gpus = 8, nic = "slingshot" }   # what must not be contradicted
//! [place]
//! reserve = "first-of-l3"            # or "0,52", or "none"
//! smt = "one"                        # or "all"
//! [fabric]
//! interfaces = "hsn"
//! host_suffix = ["-hsn0"]
//! [node_local]
//! dirs = ["/mnt/bb/$USER"]
//! [[set]]
//! variable = "NCCL_CROSS_NIC"
//! value = "1"                        # or: unset = true
//! why = "Rings may leave through another NIC than they came in by."
//! when = { nodes = ">1", rocm = "<6.2", assume_unknown = true }
//! ```

mod condition;
mod nearest;
mod read;
mod recognise;
mod registry;

use std::collections::BTreeMap;

use regatta_model::{GpuVendor, NicKind, Reserve, SmtUse};
use serde::{Deserialize, Serialize};

pub use condition::{Constraint, PluginState, PluginWish, Situation, Version, When};
pub use recognise::{Facts, Recognition};
pub use registry::Profiles;

/// A site, or a kind of machine, and what it needs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The name to ask for it by: `lumi-g`.
    #[serde(deserialize_with = "read::name")]
    pub name: String,
    /// The name for people.
    #[serde(default)]
    pub title: String,
    /// The profile it builds on.
    #[serde(default)]
    pub extends: Option<String>,
    /// Variables of the base whose settings are left out.
    #[serde(default)]
    pub without: Vec<String>,
    /// How it is recognised. Not inherited, except by a profile that extends its namesake.
    #[serde(default, rename = "match")]
    pub matches: Matches,
    /// How ranks are placed.
    #[serde(default)]
    pub place: Place,
    /// Where its fast network is.
    #[serde(default)]
    pub fabric: Fabric,
    /// Where files of a node may lie.
    #[serde(default)]
    pub node_local: NodeLocal,
    /// Its settings, each with its conditions. Of several for one variable the first that holds
    /// counts.
    #[serde(default, rename = "set")]
    pub rules: Vec<Rule>,
}

/// How a site is recognised. Host names are no help: half of all Cray systems have a `nid001000`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Matches {
    /// Names that Slurm gives the cluster.
    pub cluster: Vec<String>,
    /// DNS domains: `*.polaris.alcf.anl.gov` is that domain and everything below it.
    pub domain: Vec<String>,
    /// Environment variables, each with the values that mean this site; one of them is enough.
    #[serde(deserialize_with = "read::value_lists")]
    pub env: BTreeMap<String, Vec<String>>,
    /// What the nodes are made of.
    pub hardware: Hardware,
}

impl Matches {
    /// Whether something other than hardware can name this profile: it is a site then, and not a
    /// kind of machine.
    pub fn names_a_site(&self) -> bool {
        !(self.cluster.is_empty() && self.domain.is_empty() && self.env.is_empty())
    }
}

/// What a node of a site is made of; what is not given may be anything.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hardware {
    /// Part of the processor's name, in any case of letters.
    pub cpu: Option<String>,
    /// Part of the GPUs' name, in any case of letters.
    pub gpu: Option<String>,
    /// Who makes the GPUs.
    pub vendor: Option<GpuVendor>,
    /// How many devices the runtime shows on a whole node. A job may see fewer, never more.
    pub gpus: Option<u32>,
    /// What network it is on.
    pub nic: Option<NicKind>,
}

/// How ranks are placed at a site, as far as it differs from what is usual.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Place {
    /// Cores left to the system.
    #[serde(deserialize_with = "read::reserve")]
    pub reserve: Option<Reserve>,
    /// Hardware threads of a core that are used.
    pub smt: Option<SmtUse>,
}

/// Where a site's fast network is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fabric {
    /// How the names of its interfaces begin: `hsn`.
    pub interfaces: Option<String>,
    /// What, put after a node's name, gives its name on the fabric. They are alternatives in order;
    /// one that does not resolve is passed over, and the plain name comes last.
    #[serde(deserialize_with = "read::one_or_more")]
    pub host_suffix: Vec<String>,
}

/// Where files of a node may lie: caches that many processes write.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeLocal {
    /// Folders in order of preference; `$NAME` stands for an environment variable.
    pub dirs: Vec<String>,
}

impl NodeLocal {
    /// The folders with their variables filled in; one whose variable is not set is left out.
    pub fn expanded(&self, env: &BTreeMap<String, String>) -> Vec<String> {
        self.dirs.iter().filter_map(|dir| expand(dir, env)).collect()
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

/// One setting and when it applies.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "read::RawRule")]
pub struct Rule {
    /// The environment variable.
    pub variable: String,
    /// What it is set to; `None`: it must not be set.
    pub value: Option<String>,
    /// The reason, one sentence.
    pub why: String,
    /// When it applies.
    pub when: When,
    /// The profile that states it.
    pub from: String,
}

/// A setting that applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The environment variable.
    pub variable: String,
    /// What it is to be set to; `None`: it must not be set.
    pub value: Option<String>,
    /// The reason, one sentence.
    pub why: String,
    /// The profile that states it.
    pub from_profile: String,
}

impl Profile {
    /// Reads one profile; `file` is for error messages. Settings of a base are not in it yet:
    /// [`Profiles`] brings them in.
    pub fn parse(file: &str, text: &str) -> Result<Self, ProfileError> {
        read::profile(file, text)
    }

    /// The settings that apply in this situation, in the order of the profile.
    pub fn settings(&self, situation: &Situation) -> Vec<Setting> {
        let mut settings: Vec<Setting> = Vec::new();
        for rule in self.rules.iter().filter(|rule| rule.when.holds(situation)) {
            if settings.iter().any(|s| s.variable == rule.variable) {
                continue;
            }
            settings.push(Setting {
                variable: rule.variable.clone(),
                value: rule.value.clone(),
                why: rule.why.clone(),
                from_profile: rule.from.clone(),
            });
        }
        settings
    }
}

/// What is wrong with a profile, or with the name of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The text is not a profile.
    #[error("{file}:{line}: {message}")]
    Text {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what it should be.
        message: String,
    },
    /// It builds on a profile that does not exist.
    #[error("{file}: profile {profile:?} extends {base:?}, which does not exist; {hint}")]
    UnknownBase {
        /// The file.
        file: String,
        /// The profile.
        profile: String,
        /// What it extends.
        base: String,
        /// What may have been meant.
        hint: String,
    },
    /// It builds on itself, through others.
    #[error("{file}: profile {profile:?} extends itself, by way of {base:?}")]
    Circle {
        /// The file.
        file: String,
        /// The profile.
        profile: String,
        /// What it extends.
        base: String,
    },
    /// It leaves out what its base does not have.
    #[error(
        "{file}: profile {profile:?} is without {variable:?}, which its base never sets; {hint}"
    )]
    NothingToLeaveOut {
        /// The file.
        file: String,
        /// The profile.
        profile: String,
        /// The variable.
        variable: String,
        /// What may have been meant.
        hint: String,
    },
    /// Two profiles of one file have one name.
    #[error("{file}: there are two profiles {profile:?}; remove one or rename it")]
    Twice {
        /// The file.
        file: String,
        /// The name.
        profile: String,
    },
    /// Nobody knows a profile of this name.
    #[error("there is no profile {name:?}; {hint}")]
    UnknownName {
        /// The name.
        name: String,
        /// What may have been meant.
        hint: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_filled_in_or_left_out() {
        let dirs = ["/mnt/bb/$USER", "$TMPDIR", "/local/scratch", "/a$B_C/d"].map(str::to_owned);
        let local = NodeLocal { dirs: dirs.to_vec() };
        let env = [("USER", "ada"), ("B_C", "x"), ("TMPDIR", "")];
        let env = env.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(local.expanded(&env), ["/mnt/bb/ada", "/local/scratch", "/ax/d"]);
    }

    #[test]
    fn the_first_rule_that_holds_counts() {
        let text = r#"
            name = "t"
            [[set]]
            variable = "A"
            value = "small"
            why = "Few nodes."
            when = { nodes = "<4" }
            [[set]]
            variable = "B"
            unset = true
            why = "Never."
            [[set]]
            variable = "A"
            value = 7
            why = "Many nodes."
        "#;
        let profile = Profile::parse("t.toml", text).unwrap();
        let at = |nodes| {
            let situation = Situation { nodes, ..Situation::default() };
            let settings = profile.settings(&situation);
            settings.into_iter().map(|s| (s.variable, s.value)).collect::<Vec<_>>()
        };
        let pair = |v: &str, x: Option<&str>| (v.to_owned(), x.map(str::to_owned));
        assert_eq!(at(2), [pair("A", Some("small")), pair("B", None)]);
        assert_eq!(at(4), [pair("B", None), pair("A", Some("7"))]);
    }
}
