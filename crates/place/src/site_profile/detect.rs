//! Profile detection.

use std::collections::BTreeMap;

use regatta_model::{Gpu, Machine, Nic, NicKind};

use super::conditions::{contains_ignore_case, gpu_model};
use super::{HardwareMatch, Profile, Profiles, SiteMatch};

/// Evidence for the site.
#[derive(Debug, Clone)]
pub struct SiteEvidence<'a> {
    /// Cluster name from the scheduler; else `SLURM_CLUSTER_NAME` of `env`.
    pub cluster: Option<String>,
    /// DNS domains or fully qualified host names, in addition to those of the machine and `env`.
    pub domains: Vec<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// The node.
    pub machine: &'a Machine,
}

/// The detected profile.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileMatch {
    /// The profile, with inherited settings.
    pub profile: Profile,
    /// The reason.
    pub why: String,
}

impl SiteEvidence<'_> {
    fn cluster(&self) -> Option<&str> {
        let variable = || self.env.get("SLURM_CLUSTER_NAME");
        self.cluster.as_ref().or_else(variable).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Domains and fully qualified host names, each with its source.
    fn domains(&self) -> Vec<(&str, &str)> {
        let own = self.domains.iter().map(|d| ("the domain", d.as_str()));
        let machine = self.machine.os.domains.iter().map(|d| ("the domain", d.as_str()));
        // A PBS job ID is a number, a dot and the server's host name.
        let server = self.env.get("PBS_JOBID").and_then(|id| id.split_once('.'));
        let server = server.map(|(_, server)| ("the PBS server", server));
        let submitter = self.env.get("PBS_O_HOST").map(|host| ("PBS_O_HOST", host.as_str()));
        own.chain(machine).chain(server).chain(submitter).collect()
    }
}

impl Profiles {
    /// Detects the profile of this machine.
    ///
    /// A site is identified by cluster name, domain or an environment variable, and its hardware
    /// must not contradict the node's, because sites have several partitions. The last match in
    /// order of reading wins, so a user's profile precedes built-in ones.
    ///
    /// Hardware alone never identifies a site, only a machine type: the most specific of the
    /// hardware-only profiles that match, at least the network type.
    pub fn detect(&self, evidence: &SiteEvidence<'_>) -> ProfileMatch {
        let mut reasons = Vec::new();
        for found in self.of_site(evidence) {
            match hardware_mismatch(&found.profile.matches.hardware, evidence.machine) {
                None => return found,
                Some(mismatch) => reasons.push(format!("{}, but {mismatch}", found.why)),
            }
        }
        let (profile, reason) = self.by_hardware(evidence.machine);
        if reasons.is_empty() {
            reasons.push("no cluster name, domain or variable identifies a known site".to_owned());
        }
        reasons.push(reason);
        ProfileMatch { profile, why: reasons.join("; ") }
    }

    /// The profile of the site that this machine belongs to, whatever its hardware: a login node is
    /// not like the nodes of a job.
    pub fn identify(&self, evidence: &SiteEvidence<'_>) -> Option<ProfileMatch> {
        self.of_site(evidence).next()
    }

    /// The profiles that the site identifies, the last in order of reading first.
    fn of_site(&self, evidence: &SiteEvidence<'_>) -> impl Iterator<Item = ProfileMatch> {
        self.iter().rev().filter_map(|profile| {
            let sign = identify_site(&profile.matches, evidence)?;
            let why = format!("{sign} identifies {}", profile.title);
            Some(ProfileMatch { profile: profile.clone(), why })
        })
    }

    /// The profile of a machine type, with the reason.
    fn by_hardware(&self, machine: &Machine) -> (Profile, String) {
        let matches =
            |p: &&Profile| !p.matches.identifies_site() && satisfies(&p.matches.hardware, machine);
        let best = self.iter().filter(matches).max_by_key(|p| p.matches.hardware.specificity());
        if let Some(best) = best {
            let why = format!("the hardware matches {}", best.title);
            return (best.clone(), why);
        }
        let profile = self.named("ethernet").cloned().unwrap_or_default();
        (profile, "no network better than Ethernet found".to_owned())
    }
}

/// The evidence that identifies this site, if any.
fn identify_site(matches: &SiteMatch, evidence: &SiteEvidence<'_>) -> Option<String> {
    if let Some(name) = evidence.cluster()
        && matches.cluster.iter().any(|c| c.eq_ignore_ascii_case(name))
    {
        return Some(format!("the cluster name {name:?}"));
    }
    let domains = evidence.domains();
    let domain = domains.iter().find(|(_, d)| matches.domain.iter().any(|p| domain_matches(d, p)));
    if let Some((what, domain)) = domain {
        return Some(format!("{what} {domain:?}"));
    }
    matches.env.iter().find_map(|(name, values)| {
        let value = evidence.env.get(name)?;
        values.contains(value).then(|| format!("{name}={value}"))
    })
}

/// Whether a domain matches a pattern; `*.domain` also matches subdomains.
fn domain_matches(domain: &str, pattern: &str) -> bool {
    let domain = domain.trim_end_matches('.').to_ascii_lowercase();
    let pattern = pattern.to_ascii_lowercase();
    match pattern.strip_prefix("*.") {
        Some(parent) => {
            domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        }
        None => domain == pattern,
    }
}

impl HardwareMatch {
    /// Number of fields that are set.
    fn specificity(&self) -> usize {
        let Self { cpu, host_cpu, gpu, vendor, gpus, nic } = self;
        let gpu = !gpu.is_empty() || host_cpu.is_some();
        let set = [cpu.is_some(), gpu, vendor.is_some(), gpus.is_some(), nic.is_some()];
        set.into_iter().filter(|&is_set| is_set).count()
    }

    fn requires_gpus(&self) -> bool {
        !self.gpu.is_empty() || self.vendor.is_some() || self.gpus.is_some()
    }

    /// Whether the CPU alone shows that the node has these GPUs.
    fn has_host_cpu(&self, machine: &Machine) -> bool {
        let cpu = machine.cpu_model.as_deref();
        self.host_cpu.as_ref().is_some_and(|part| contains_ignore_case(cpu, part))
    }

    /// Whether a GPU is of another vendor or model.
    fn excludes_gpu(&self, gpu: &Gpu, machine: &Machine) -> bool {
        let model = gpu_model(machine, gpu);
        let named = self.gpu.iter().any(|part| contains_ignore_case(Some(&model), part));
        let other_model = !self.gpu.is_empty() && !named && !self.has_host_cpu(machine);
        other_model || self.vendor.is_some_and(|vendor| gpu.vendor != vendor)
    }
}

/// How the machine contradicts the hardware of a site. Unknown properties do not.
fn hardware_mismatch(required: &HardwareMatch, machine: &Machine) -> Option<String> {
    if let (Some(part), Some(model)) = (&required.cpu, &machine.cpu_model)
        && !contains_ignore_case(Some(model), part)
    {
        return Some(format!("the CPU is {model}, not {part}"));
    }
    if required.requires_gpus() && machine.gpus.is_empty() && !required.has_host_cpu(machine) {
        return Some("this node has no visible GPU".to_owned());
    }
    if let Some(gpu) = machine.gpus.iter().find(|gpu| required.excludes_gpu(gpu, machine)) {
        return Some(format!("GPU {} is {}", gpu.index, gpu.name));
    }
    let count = machine.gpus.len();
    if let Some(max) = required.gpus.filter(|&max| count > max as usize) {
        return Some(format!("this node has {count} GPUs, not {max}"));
    }
    let nic = required.nic?;
    let nics: Vec<&Nic> = machine.nics.iter().collect();
    let missing = !nics.is_empty() && !has_nic(&nics, nic);
    missing.then(|| format!("this node has no {} interface", nic.name()))
}

/// Whether the machine has everything that is required.
fn satisfies(required: &HardwareMatch, machine: &Machine) -> bool {
    required.specificity() > 0
        && hardware_mismatch(required, machine).is_none()
        && (required.cpu.is_none() || machine.cpu_model.is_some())
        && required.nic.is_none_or(|nic| has_nic(&machine.fabric_nics(), nic))
}

/// RoCE uses InfiniBand verbs and needs the same settings.
fn has_nic(nics: &[&Nic], kind: NicKind) -> bool {
    let is_roce = |nic: &Nic| kind == NicKind::InfiniBand && nic.kind == NicKind::Roce;
    nics.iter().any(|nic| nic.kind == kind || is_roce(nic))
}
