//! Discovers machines, allocation and site, and places the job on them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use regatta_discover::allocation::{self, DetectionInputs};
use regatta_discover::{Env, Sysroot};
use regatta_model::allocation::UNKNOWN_HOST;
use regatta_model::hostlist::{self, short_hostname};
use regatta_model::{
    AllocatedNode, Allocation, JobSpec, Machine, Nic, PlacedNode, Placement, Scheduler, Warning,
};
use regatta_place::gpu_visibility;
use regatta_place::site_profile::{ProfileMatch, Profiles, SiteEvidence};

use crate::config::{JobConfig, JobSource, PlacementRequest};
use crate::error::{LaunchError, Result};
use crate::{forked, host};

/// Code of the warning that this machine stands in for the nodes of the job.
pub const STAND_IN: &str = "stand-in";

/// Code of the warning that the topology of a node is unknown.
pub const NO_SYSFS: &str = "no-sysfs";

/// The discovered machines and allocation.
#[derive(Debug, Clone)]
pub struct Discovery {
    /// Environment of this process.
    pub env: Env,
    /// Machine descriptions; the first one applies to every host without its own.
    pub machines: Vec<Machine>,
    /// Index into `machines` of each host whose agent reported, by short host name.
    pub machine_index: HashMap<String, usize>,
    /// NICs of each host whose agent reported, by short host name. Identical nodes share a machine
    /// description, but not their addresses.
    pub nics: HashMap<String, Vec<Nic>>,
    /// Nodes and ranks.
    pub allocation: Allocation,
    /// Whether ranks of an allocation's only node need an agent, too.
    pub always_agents: bool,
}

impl Discovery {
    /// Discovers what a job is launched on.
    pub fn of_job(config: &JobConfig) -> Result<Self> {
        let mut discovery = Self::run(&config.source, config.spares)?;
        // Options of the launcher, such as a container, are for the ranks of any node.
        discovery.always_agents = !config.agents.options.is_empty();
        Ok(discovery)
    }

    /// Loads the machines of the source, or discovers this one, and detects the allocation.
    pub fn run(source: &JobSource, spares: u32) -> Result<Self> {
        let env = Env::from_process();
        let machines = machines(source, &env)?;
        let allocation = match source.standalone {
            true => Allocation::single_node(&machines[0].host),
            false => allocation(source, spares, &machines, &env)?,
        };
        let (machine_index, nics) = Default::default();
        Ok(Self { env, machines, machine_index, nics, allocation, always_agents: false })
    }

    /// Index of a host's machine description.
    fn machine_of(&self, host: &str) -> usize {
        let named = || self.machines.iter().position(|m| same_host(&m.host, host));
        self.machine_index.get(short_hostname(host)).copied().or_else(named).unwrap_or(0)
    }

    /// The host of each node.
    pub fn hosts(&self) -> Vec<String> {
        self.allocation.nodes.iter().map(|node| node.host.clone()).collect()
    }

    /// Whether the machines were reported by agents on the job's nodes.
    pub fn is_reported_by_agents(&self) -> bool {
        !self.machine_index.is_empty()
    }

    /// Index of the node this process runs on, if it belongs to the job.
    fn this_node(&self) -> Option<usize> {
        if let Some(node) = self.allocation.this_rank.and_then(|me| me.node) {
            return Some(node as usize);
        }
        let own = self.env.get("SLURMD_NODENAME").unwrap_or(&self.machines[0].host);
        self.allocation.nodes.iter().position(|n| same_host(&n.host, own))
    }

    /// Whether the ranks are started by agents: on other nodes, or where it is requested.
    pub fn needs_agents(&self) -> bool {
        let nodes = self.allocation.nodes.len();
        let in_allocation = self.allocation.scheduler != Scheduler::None;
        let local = !in_allocation || self.this_node().is_some();
        nodes > 1 || !local || (self.always_agents && in_allocation)
    }

    /// Places a job.
    pub fn plan(self, source: &JobSource, job: &PlacementRequest) -> Result<PlacedJob> {
        let (site, job) = self.resolve_job(source, job)?;
        self.place(site, job)
    }

    /// Detects the site and completes the user's options with its defaults.
    pub fn resolve_job(
        &self,
        from: &JobSource,
        job: &PlacementRequest,
    ) -> Result<(ProfileMatch, JobSpec)> {
        let site = self.site(from)?;
        let job = job.resolve(&site.profile.place);
        Ok((site, job))
    }

    /// Places a job with resolved options.
    pub fn place(mut self, site: ProfileMatch, job: JobSpec) -> Result<PlacedJob> {
        let variable = |name: &str| self.env.as_map().get(name).cloned();
        let allocation = &self.allocation;
        let job_gpus = match self.is_reported_by_agents() {
            true => None,
            false => gpu_visibility::job_gpus(&self.machines[0], allocation, &variable),
        };
        if let Some(job_gpus) = &job_gpus {
            self.machines[0].usable.gpus = Some(job_gpus.gpus.clone());
        }
        let bases: Vec<_> = self.machines.iter().map(|m| for_planning(m, allocation)).collect();
        let machine_of = |host: &str| self.machine_of(host);
        let mut placement = regatta_place::place_on(&bases, &machine_of, allocation, &job)?;
        check_size(&placement, allocation, &job)?;
        let cgroup = gpu_visibility::gpu_cgroup_warning(&self.machines[0], allocation, &variable);
        let hidden = job_gpus.filter(|_| job.use_gpus).map(|job_gpus| job_gpus.warning);
        let warnings = [self.stand_in_warning(), no_sysfs_warning(&self.machines), cgroup, hidden];
        placement.warnings.extend(warnings.into_iter().flatten());
        Ok(PlacedJob { discovery: self, site, job, placement })
    }
}

/// A placed job.
#[derive(Debug)]
pub struct PlacedJob {
    discovery: Discovery,
    /// The site profile and the reason for choosing it.
    pub site: ProfileMatch,
    /// The user's options, completed with the site's defaults.
    pub job: JobSpec,
    /// Node, cores and devices of each rank.
    pub placement: Placement,
}

impl std::ops::Deref for PlacedJob {
    type Target = Discovery;

    fn deref(&self) -> &Discovery {
        &self.discovery
    }
}

impl PlacedJob {
    /// Discovers machines and allocation, and places the job.
    pub fn new(source: &JobSource, job: &PlacementRequest) -> Result<Self> {
        Discovery::run(source, 0)?.plan(source, job)
    }

    /// The machine description of a node.
    pub fn machine(&self, node: &PlacedNode) -> &Machine {
        &self.machines[self.machine_of(&node.host)]
    }

    /// The NICs of a node; `None` if only a similar node's are known.
    pub fn nics(&self, node: &PlacedNode) -> Option<&[Nic]> {
        let own = self.machines.iter().find(|m| same_host(&m.host, &node.host)).map(|m| &m.nics);
        let reported = self.discovery.nics.get(short_hostname(&node.host));
        reported.or(own).map(Vec::as_slice)
    }

    /// Index of the placed node this process runs on, if it belongs to the job.
    pub fn this_node(&self) -> Option<usize> {
        if let Some(node) = self.allocation.this_rank.and_then(|me| me.node) {
            return Some(node as usize);
        }
        self.placement.nodes.iter().position(|n| same_host(&n.host, &self.machines[0].host))
    }
}

/// Whether two host names are equal up to their domain.
fn same_host(a: &str, b: &str) -> bool {
    short_hostname(a) == short_hostname(b)
}

fn machines(source: &JobSource, env: &Env) -> Result<Vec<Machine>> {
    if let Some(machine) = &source.system {
        return Ok(vec![machine.clone()]);
    }
    if source.machines.is_empty() {
        let discover = || regatta_discover::discover(&Sysroot::live(), env);
        let failed = LaunchError::io("the discovery of this machine failed");
        return Ok(vec![forked::isolated(discover).map_err(failed)?]);
    }
    source.machines.iter().map(|file| Ok(regatta_discover::load(file)?)).collect()
}

fn allocation(
    source: &JobSource,
    spares: u32,
    machines: &[Machine],
    env: &Env,
) -> Result<Allocation> {
    let live = source.system.is_none() && source.machines.is_empty();
    let own_name = if live { machines[0].host.clone() } else { host::name() };
    let hostfile = source.hostfile.as_deref().map(Path::to_string_lossy);
    let mut allocation = allocation::detect(&DetectionInputs {
        env,
        root: &Sysroot::live(),
        host: &own_name,
        hostfile: hostfile.as_deref(),
        flux_hosts: &host::flux_hosts,
    })?;
    if allocation.scheduler == Scheduler::None && allocation.this_rank.is_none() {
        allocation.nodes = hypothetical_nodes(machines, source.nodes.unwrap_or(1));
    } else if let Some(nodes) = source.nodes {
        let (used, available) = (nodes as usize + spares as usize, allocation.nodes.len());
        if used > available {
            return Err(LaunchError::TooManyNodes { nodes, spares, available });
        }
        allocation.nodes.truncate(used);
    }
    Ok(allocation)
}

/// Nodes to plan for outside of any allocation: the described machines, then `node1`, `node2`, ...
fn hypothetical_nodes(machines: &[Machine], count: u32) -> Vec<AllocatedNode> {
    let count = (count.max(1) as usize).max(machines.len());
    let host = |i: usize| match machines.get(i) {
        Some(machine) if machines.len() > 1 || count == 1 => machine.host.clone(),
        _ => format!("node{}", i + 1),
    };
    (0..count).map(|i| AllocatedNode { host: host(i), ranks: None }).collect()
}

/// Warns that a node has no /sys, as some containers and chroots. With it, there is a NUMA node.
fn no_sysfs_warning(machines: &[Machine]) -> Option<Warning> {
    let Machine { host, .. } = machines.iter().find(|m| m.is_live() && m.numa.is_empty())?;
    Some(Warning::new(
        NO_SYSFS,
        format!(
            "the topology of {host} is unknown, because /sys is not mounted: every CPU counts as a \
             core, memory is not bound, and only GPUs that NVML reports are used"
        ),
        "mount /sys in the container or chroot (mount -t sysfs sysfs /sys)",
    ))
}

/// Fails if the launcher started another number of ranks than the plan has: they would wait for each
/// other forever. An explicit rank count takes precedence over the launcher's.
fn check_size(placement: &Placement, allocation: &Allocation, job: &JobSpec) -> Result<()> {
    let explicit = job.ranks.is_some() || job.ranks_per_node.is_some();
    let (planned, me) = (placement.ranks, allocation.this_rank);
    match me.filter(|me| !explicit && me.size != planned) {
        Some(me) => Err(LaunchError::JobSize { rank: me.rank, size: me.size, planned }),
        None => Ok(()),
    }
}

/// Drops the CPU affinity of a recorded machine, which is another process's, and of a rank that a
/// launcher has already bound: the plan covers all ranks of the node.
fn for_planning(machine: &Machine, allocation: &Allocation) -> Machine {
    let mut machine = machine.clone();
    if !machine.is_live() || allocation.this_rank.is_some() {
        machine.usable.affinity = None;
    }
    machine
}

/// The built-in site profiles, and those of the user's files.
pub fn site_profiles(files: &[PathBuf]) -> Result<Profiles> {
    let mut profiles = Profiles::builtin()?;
    for path in files {
        let shown = path.display().to_string();
        let unreadable = LaunchError::io(format!("--site-file {shown}"));
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        profiles = profiles.with_file(&shown, &text)?;
    }
    Ok(profiles)
}

impl Discovery {
    /// The site profile that the options name, or that matches the machine.
    fn site(&self, source: &JobSource) -> Result<ProfileMatch> {
        let machine = &self.machines[0];
        let profiles = site_profiles(&source.site_files)?;
        let is_profile = |name: &&String| profiles.names().any(|profile| profile == *name);
        let (name, why) = if let Some(name) = &source.site {
            (name, "selected by --site")
        } else if let Some(name) = machine.system.as_ref().filter(is_profile) {
            (name, "the profile of the built-in system")
        } else {
            let live = source.machines.is_empty();
            return Ok(profiles.detect(&SiteEvidence {
                cluster: self.allocation.cluster.clone(),
                domains: Vec::new(),
                env: if live { self.env.as_map().clone() } else { Default::default() },
                machine,
            }));
        };
        Ok(ProfileMatch { profile: profiles.named(name)?.clone(), why: why.to_owned() })
    }

    /// Warns that the plan is based on a machine outside the job, such as a login node. A rank is
    /// always inside the job, even if its host name is not in the list.
    fn stand_in_warning(&self) -> Option<Warning> {
        let Self { allocation, env, .. } = self;
        let machine = &self.machines[0];
        let known = |host: &str| allocation.nodes.iter().any(|n| same_host(&n.host, host));
        let in_job = known(&machine.host)
            || known(UNKNOWN_HOST)
            || env.get("SLURMD_NODENAME").is_some_and(known)
            || allocation.this_rank.is_some()
            || self.is_reported_by_agents();
        if !machine.is_live() || in_job || allocation.scheduler == Scheduler::None {
            return None;
        }
        let nodes: Vec<&str> = allocation.nodes.iter().map(|n| n.host.as_str()).collect();
        let (host, nodes) = (&machine.host, hostlist::compress(&nodes));
        Some(Warning::new(
            STAND_IN,
            format!(
                "{host} is not a node of the job: the plan assumes that the job's nodes ({nodes}) are identical to it"
            ),
            "run this on a node of the job, or describe the nodes with --system, or with \
                   --machine and a file that `regatta map --dump` wrote there",
        ))
    }
}
