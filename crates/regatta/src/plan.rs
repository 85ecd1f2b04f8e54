//! Gathers what `map` and `env` decide on: machines, allocation, site and job; and places the job.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use regatta_discover::allocation::{self, Sources};
use regatta_discover::{Env, Root, systems};
use regatta_model::allocation::UNKNOWN_HOST;
use regatta_model::hostlist::{self, short};
use regatta_model::{
    AllocatedNode, Allocation, Job, Machine, Nic, PlacedNode, Placement, Scheduler, Warning,
};
use regatta_place::profile::{Facts, Profile, Profiles, Recognition};
use regatta_place::visible;

use crate::options::{JobArgs, SourceArgs};
use crate::system;

/// The warning that this machine stands in for others.
pub const STAND_IN: &str = "stand-in";

/// What there is to plan with.
#[derive(Clone)]
pub struct Survey {
    /// The environment it was gathered in.
    pub env: Env,
    /// The machines as found; the first stands for every host that no other describes.
    pub machines: Vec<Machine>,
    /// Which machine a host is, where its name alone does not tell: by its short name.
    pub kinds: HashMap<String, usize>,
    /// The interfaces of hosts that described themselves, by their short names: those that are
    /// alike have addresses of their own.
    pub nics: HashMap<String, Vec<Nic>>,
    /// The nodes and ranks.
    pub allocation: Allocation,
}

impl Survey {
    /// Looks at what the options name, or at this machine.
    pub fn take(source: &SourceArgs, spares: u32) -> Result<Self> {
        let env = Env::of_process();
        let machines = machines(source, &env)?;
        let allocation = allocation(source, spares, &machines, &env)?;
        Ok(Self { env, machines, kinds: HashMap::new(), nics: HashMap::new(), allocation })
    }

    /// Which machine a host is.
    fn kind(&self, host: &str) -> usize {
        let named = || self.machines.iter().position(|m| short(&m.host) == short(host));
        self.kinds.get(short(host)).copied().or_else(named).unwrap_or(0)
    }

    /// Whether the job's nodes described themselves, so that nothing has to be guessed from here.
    pub fn is_of_nodes(&self) -> bool {
        !self.kinds.is_empty()
    }

    /// The name of the node this process runs on, if it is one of the job's.
    fn this_node(&self) -> Option<usize> {
        if let Some(node) = self.allocation.me.and_then(|me| me.node) {
            return Some(node as usize);
        }
        let own = self.env.get("SLURMD_NODENAME").unwrap_or(&self.machines[0].host);
        self.allocation.nodes.iter().position(|n| short(&n.host) == short(own))
    }

    /// Whether ranks are to run elsewhere than on this machine.
    pub fn is_elsewhere(&self) -> bool {
        let nodes = self.allocation.nodes.len();
        let here = self.allocation.scheduler == Scheduler::None || self.this_node().is_some();
        nodes > 1 || !here
    }

    /// Places a job.
    pub fn plan(self, source: &SourceArgs, job: &JobArgs) -> Result<Plan> {
        let (site, job) = self.wishes(source, job)?;
        self.place(site, job)
    }

    /// The site, and what the user asks for, completed by the site.
    pub fn wishes(&self, source: &SourceArgs, job: &JobArgs) -> Result<(Recognition, Job)> {
        let site = site(source, &self.machines[0], &self.allocation, &self.env)?;
        let place = &site.profile.place;
        let job = job.job(place.reserve.as_ref(), place.smt);
        Ok((site, job))
    }

    /// Places a job of which all is known.
    pub fn place(mut self, site: Recognition, job: Job) -> Result<Plan> {
        let variable = |name: &str| self.env.all().get(name).cloned();
        let left = match self.is_of_nodes() {
            true => None,
            false => visible::left_to_job(&self.machines[0], &self.allocation, &variable),
        };
        if let Some(left) = &left {
            self.machines[0].usable.gpus = Some(left.gpus.clone());
        }
        let bases: Vec<Machine> =
            self.machines.iter().map(|m| for_planning(m, &self.allocation)).collect();
        let kind = |host: &str| self.kind(host);
        let mut placement = regatta_place::place_on(&bases, &kind, &self.allocation, &job)?;
        check_size(&placement, &self.allocation, &job)?;
        placement.warnings.extend(self.stand_in());
        let cgroup = visible::gpu_cgroup_warning(&self.machines[0], &self.allocation, &variable);
        placement.warnings.extend(cgroup);
        placement.warnings.extend(left.filter(|_| job.use_gpus).map(|left| left.warning));
        Ok(Plan { survey: self, site, job, placement })
    }
}

/// A job on its machines.
pub struct Plan {
    /// What it was planned with.
    survey: Survey,
    /// The site's profile, and why this one.
    pub site: Recognition,
    /// What the user asked for, completed by the site.
    pub job: Job,
    /// Where the ranks go.
    pub placement: Placement,
}

impl std::ops::Deref for Plan {
    type Target = Survey;

    fn deref(&self) -> &Survey {
        &self.survey
    }
}

impl Plan {
    /// Gathers and places.
    pub fn gather(source: &SourceArgs, job: &JobArgs) -> Result<Self> {
        Survey::take(source, 0)?.plan(source, job)
    }

    /// The machine a node is.
    pub fn machine(&self, node: &PlacedNode) -> &Machine {
        &self.machines[self.survey.kind(&node.host)]
    }

    /// The interfaces of a node, if they are not only those of one that is like it.
    pub fn nics(&self, node: &PlacedNode) -> Option<&[Nic]> {
        let host = short(&node.host);
        let own = self.machines.iter().find(|machine| short(&machine.host) == host);
        self.survey.nics.get(host).or(own.map(|machine| &machine.nics)).map(Vec::as_slice)
    }

    /// The node this process runs on, if it is one of the job's.
    pub fn this_node(&self) -> Option<usize> {
        if let Some(node) = self.allocation.me.and_then(|me| me.node) {
            return Some(node as usize);
        }
        let host = short(&self.machines[0].host);
        self.placement.nodes.iter().position(|n| short(&n.host) == host)
    }
}

fn machines(source: &SourceArgs, env: &Env) -> Result<Vec<Machine>> {
    if let Some(name) = &source.system {
        return Ok(vec![systems::system(name)?]);
    }
    if source.machines.is_empty() {
        return Ok(vec![regatta_discover::discover(&Root::live(), env)]);
    }
    let load = |path: &std::path::PathBuf| regatta_discover::load(path).map_err(Into::into);
    source.machines.iter().map(load).collect()
}

fn allocation(
    source: &SourceArgs,
    spares: u32,
    machines: &[Machine],
    env: &Env,
) -> Result<Allocation> {
    let live = source.system.is_none() && source.machines.is_empty();
    let own_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let hostfile = source.hostfile.as_deref().map(Path::to_string_lossy);
    let mut allocation = allocation::detect(&Sources {
        env,
        root: &Root::live(),
        host: if live { &machines[0].host } else { &own_name },
        hostfile: hostfile.as_deref(),
        flux_hosts: &system::flux_hosts,
    })?;
    let planned = allocation.scheduler == Scheduler::None && allocation.me.is_none();
    if planned {
        allocation.nodes = made_up_nodes(machines, source.nodes.unwrap_or(1));
    } else if let Some(wanted) = source.nodes {
        let given = allocation.nodes.len();
        let (wanted, spares) = (wanted as usize, spares as usize);
        if wanted + spares > given {
            let besides =
                if spares > 0 { format!(" and --spares {spares}") } else { String::new() };
            bail!("--nodes {wanted}{besides}, but the allocation has {given}");
        }
        allocation.nodes.truncate(wanted + spares);
    }
    Ok(allocation)
}

/// Nodes to plan with outside of any allocation: the machines described, then made-up ones.
fn made_up_nodes(machines: &[Machine], wanted: u32) -> Vec<AllocatedNode> {
    let wanted = (wanted.max(1) as usize).max(machines.len());
    let made_up = |i: usize| match machines.get(i) {
        Some(machine) if machines.len() > 1 || wanted == 1 => machine.host.clone(),
        _ => format!("node{}", i + 1),
    };
    (0..wanted).map(|i| AllocatedNode { host: made_up(i), ranks: None }).collect()
}

fn site(
    source: &SourceArgs,
    machine: &Machine,
    allocation: &Allocation,
    env: &Env,
) -> Result<Recognition> {
    let mut profiles = Profiles::builtin()?;
    for path in &source.profile_file {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| shown.clone())?;
        profiles = profiles.with_file(&shown, &text)?;
    }
    let named = |name: &str, why: &str| -> Result<Recognition> {
        let profile: Profile = profiles.named(name)?.clone();
        Ok(Recognition { profile, why: why.to_owned() })
    };
    if let Some(name) = &source.profile {
        return named(name, "asked for by --profile");
    }
    if let Some(name) =
        machine.system.as_ref().filter(|n| profiles.names().any(|p| p == n.as_str()))
    {
        return named(name, "the profile of the built-in system");
    }
    let live = source.machines.is_empty();
    Ok(profiles.recognise(&Facts {
        cluster: allocation.cluster.clone(),
        domains: Vec::new(),
        env: if live { env.all().clone() } else { Default::default() },
        machine,
    }))
}

/// Ranks that wait for another number than were started wait for ever. Who asks for a number knows
/// better than the launcher, for example of a later one.
fn check_size(placement: &Placement, allocation: &Allocation, job: &Job) -> Result<()> {
    let asked = job.ranks.is_some() || job.ranks_per_node.is_some();
    match allocation.me {
        Some(me) if !asked && me.size != placement.ranks => bail!(
            "this is rank {} of {}, but the nodes of the job would have {}: the launcher does not \
             tell how it dealt them; pass --ranks-per-node, or --hostfile with `host slots=4` lines",
            me.rank,
            me.size,
            placement.ranks
        ),
        _ => Ok(()),
    }
}

/// A rank that a launcher bound already must plan with what its node's ranks have together, and a
/// recorded binding is another process's.
fn for_planning(machine: &Machine, allocation: &Allocation) -> Machine {
    let mut machine = machine.clone();
    if !machine.is_live() || allocation.me.is_some() {
        machine.usable.affinity = None;
    }
    machine
}

impl Survey {
    /// A plan made on a login node takes it for one of the job's nodes, since nothing else is known
    /// of them. A rank is on one of them, whatever they are called.
    fn stand_in(&self) -> Option<Warning> {
        let Self { allocation, env, .. } = self;
        let machine = &self.machines[0];
        let known = |host: &str| allocation.nodes.iter().any(|n| short(&n.host) == short(host));
        let on_node = known(&machine.host)
            || known(UNKNOWN_HOST)
            || env.get("SLURMD_NODENAME").is_some_and(known)
            || allocation.me.is_some()
            || self.is_of_nodes();
        if !machine.is_live() || on_node || allocation.scheduler == Scheduler::None {
            return None;
        }
        let hosts: Vec<&str> = allocation.nodes.iter().map(|n| n.host.as_str()).collect();
        Some(Warning {
            code: STAND_IN.to_owned(),
            what: format!(
                "{} is no node of the job: the plan takes {} to be like it",
                machine.host,
                hostlist::compress(&hosts)
            ),
            hint: "run this on a node of the job, or describe its nodes by --system, or by \
                   --machine with what `regatta map --dump` wrote there"
                .to_owned(),
        })
    }
}
