//! Which profile is this machine's.

use std::collections::BTreeMap;

use regatta_model::{Machine, NicKind};

use super::condition::has_part;
use super::{Hardware, Matches, Profile, Profiles};

/// What a site is recognised by.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The scheduler's name for the cluster; else `SLURM_CLUSTER_NAME` of `env` is taken.
    pub cluster: Option<String>,
    /// DNS domains or full host names, beside those that the machine and `env` tell.
    pub domains: Vec<String>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// The node.
    pub machine: &'a Machine,
}

/// The profile found, and why it.
#[derive(Debug, Clone, PartialEq)]
pub struct Recognition {
    /// The profile, with everything it inherits.
    pub profile: Profile,
    /// The reason, one sentence or more.
    pub why: String,
}

impl Facts<'_> {
    fn cluster(&self) -> Option<&str> {
        let variable = || self.env.get("SLURM_CLUSTER_NAME");
        self.cluster.as_ref().or_else(variable).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Domains and full host names, each with where it comes from.
    fn domains(&self) -> Vec<(&str, &str)> {
        let own = self.domains.iter().map(|d| ("the domain", d.as_str()));
        let machine = self.machine.os.domains.iter().map(|d| ("the domain", d.as_str()));
        // A job's name at PBS is a number, a dot and the server's full name.
        let server = self.env.get("PBS_JOBID").and_then(|id| id.split_once('.'));
        let server = server.map(|(_, server)| ("the PBS server", server));
        let submitter = self.env.get("PBS_O_HOST").map(|host| ("PBS_O_HOST", host.as_str()));
        own.chain(machine).chain(server).chain(submitter).collect()
    }
}

impl Profiles {
    /// The profile of this machine.
    ///
    /// A site is named by its cluster's name, its domain or an environment variable, and its
    /// hardware must not be contradicted: a site has partitions of other kinds. Of several the one
    /// read last counts, so that a user's own comes before the built-in ones.
    ///
    /// Hardware alone never names a site. It picks the kind of machine: of the profiles that ask
    /// for hardware only, the one that asks for most of what is here; at least the kind of network.
    pub fn recognise(&self, facts: &Facts<'_>) -> Recognition {
        let profiles: Vec<&Profile> = self.iter().collect();
        let mut passed_over = Vec::new();
        for profile in profiles.into_iter().rev() {
            let Some(sign) = sign(&profile.matches, facts) else { continue };
            match contradiction(&profile.matches.hardware, facts.machine) {
                None => {
                    let why = format!("{sign} names {}", profile.title);
                    return Recognition { profile: profile.clone(), why };
                }
                Some(other) => {
                    passed_over.push(format!("{sign} names {}, but {other}", profile.title));
                }
            }
        }
        let (profile, kind) = self.kind_of(facts.machine);
        let mut reasons = passed_over;
        if reasons.is_empty() {
            reasons.push("no cluster name, domain or variable names a known site".to_owned());
        }
        reasons.push(kind);
        Recognition { profile, why: reasons.join("; ") }
    }

    /// The profile of a kind of machine, and why it.
    fn kind_of(&self, machine: &Machine) -> (Profile, String) {
        let fits = |p: &&Profile| !p.matches.names_a_site() && fits(&p.matches.hardware, machine);
        let best = self.iter().filter(fits).max_by_key(|p| p.matches.hardware.wishes());
        if let Some(best) = best {
            let why = format!("the hardware is that of {}", best.title);
            return (best.clone(), why);
        }
        let profile = self.named("ethernet").cloned().unwrap_or_default();
        (profile, "no network faster than Ethernet was found".to_owned())
    }
}

/// What names this site, if anything does.
fn sign(matches: &Matches, facts: &Facts<'_>) -> Option<String> {
    if let Some(name) = facts.cluster()
        && matches.cluster.iter().any(|c| c.eq_ignore_ascii_case(name))
    {
        return Some(format!("the cluster name {name:?}"));
    }
    let domains = facts.domains();
    let domain = domains.iter().find(|(_, d)| matches.domain.iter().any(|p| is_below(d, p)));
    if let Some((what, domain)) = domain {
        return Some(format!("{what} {domain:?}"));
    }
    matches.env.iter().find_map(|(name, values)| {
        let value = facts.env.get(name)?;
        values.contains(value).then(|| format!("{name}={value}"))
    })
}

/// Whether a domain is the one of the pattern or, for `*.domain`, one below it.
fn is_below(domain: &str, pattern: &str) -> bool {
    let domain = domain.trim_end_matches('.').to_ascii_lowercase();
    let pattern = pattern.to_ascii_lowercase();
    match pattern.strip_prefix("*.") {
        Some(parent) => {
            domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        }
        None => domain == pattern,
    }
}

impl Hardware {
    /// How many things it asks for.
    fn wishes(&self) -> usize {
        [
            self.cpu.is_some(),
            self.gpu.is_some(),
            self.vendor.is_some(),
            self.gpus.is_some(),
            self.nic.is_some(),
        ]
        .into_iter()
        .filter(|&wish| wish)
        .count()
    }

    fn wants_gpus(&self) -> bool {
        self.gpu.is_some() || self.vendor.is_some() || self.gpus.is_some()
    }
}

/// What of the machine contradicts the hardware of a site. What is not known does not.
fn contradiction(wanted: &Hardware, machine: &Machine) -> Option<String> {
    if let (Some(part), Some(model)) = (&wanted.cpu, &machine.cpu_model)
        && !has_part(Some(model), part)
    {
        return Some(format!("the processor is {model}, not {part}"));
    }
    if wanted.wants_gpus() && machine.gpus.is_empty() {
        return Some("this node shows no GPU".to_owned());
    }
    let other = |gpu: &&regatta_model::Gpu| {
        wanted.gpu.as_ref().is_some_and(|part| !has_part(Some(&gpu.name), part))
            || wanted.vendor.is_some_and(|vendor| gpu.vendor != vendor)
    };
    if let Some(gpu) = machine.gpus.iter().find(other) {
        return Some(format!("GPU {} is {}", gpu.index, gpu.name));
    }
    let count = machine.gpus.len();
    if let Some(most) = wanted.gpus.filter(|&most| count > most as usize) {
        return Some(format!("this node has {count} GPUs, not {most}"));
    }
    let nic = wanted.nic?;
    let has_nic = machine.nics.is_empty() || machine.nics.iter().any(|n| is_kind(n.kind, nic));
    (!has_nic).then(|| format!("this node has no {} interface", kind_name(nic)))
}

/// Whether everything that is asked for is here.
fn fits(wanted: &Hardware, machine: &Machine) -> bool {
    wanted.wishes() > 0
        && contradiction(wanted, machine).is_none()
        && (wanted.cpu.is_none() || machine.cpu_model.is_some())
        && wanted.nic.is_none_or(|nic| machine.fabric().iter().any(|n| is_kind(n.kind, nic)))
}

/// RoCE speaks InfiniBand's verbs, and needs the same settings.
fn is_kind(found: NicKind, wanted: NicKind) -> bool {
    found == wanted || (found == NicKind::Roce && wanted == NicKind::InfiniBand)
}

fn kind_name(kind: NicKind) -> &'static str {
    match kind {
        NicKind::Slingshot => "Slingshot",
        NicKind::InfiniBand => "InfiniBand",
        NicKind::Roce => "RoCE",
        NicKind::Ethernet => "Ethernet",
        NicKind::Virtual => "virtual",
    }
}
