//! The environment of a rank: rendezvous address and port, cache folder, site settings.

use std::path::Path;

use anyhow::{Context, Result, bail};
use regatta_launch::cache_dir;
use regatta_model::allocation::UNKNOWN_HOST;
use regatta_model::hostlist::short_hostname;
use regatta_model::{Launcher, Machine};
use regatta_place::environment::{
    CacheDir, EnvContext, EnvVar, Framework, Rendezvous, environment,
};
use regatta_place::rendezvous::{self, Candidate};
use regatta_place::site_profile::{JobContext, SiteSetting};

use crate::options::RankEnvArgs;
use crate::output;
use crate::plan::JobPlan;
use crate::system;

/// The environment of a rank, without the variables that the user excluded.
pub fn rank_env(
    plan: &JobPlan,
    args: &RankEnvArgs,
    rendezvous: &Rendezvous,
    rank: u32,
) -> Result<Vec<EnvVar>> {
    let mut variables = full_rank_env(plan, args, rendezvous, rank)?;
    variables.retain(|v| ![&args.without, &args.inherit].iter().any(|e| e.contains(&v.variable)));
    Ok(variables)
}

fn full_rank_env(
    plan: &JobPlan,
    args: &RankEnvArgs,
    rendezvous: &Rendezvous,
    rank: u32,
) -> Result<Vec<EnvVar>> {
    let framework = args.framework;
    let Some((_, node, _)) = plan.placement.find_rank(rank) else {
        let last = plan.placement.ranks.saturating_sub(1);
        bail!("rank {rank} is out of range: the job has ranks 0 to {last}");
    };
    let machine = plan.machine(node);
    let (cache, cache_why) = cache_folder(plan);
    let variables = environment(&EnvContext {
        placement: &plan.placement,
        rank,
        machine,
        nics: plan.nics(node),
        framework,
        rendezvous,
        cache: CacheDir { path: &cache, why: cache_why },
        settings: &settings(plan, machine, framework),
    });
    Ok(variables.unwrap_or_default())
}

/// Notes the variables of `--without` that would not be set anyway.
pub fn note_unset_names(plan: &JobPlan, args: &RankEnvArgs, rendezvous: &Rendezvous) -> Result<()> {
    let variables = full_rank_env(plan, args, rendezvous, 0)?;
    for name in args.without.iter().filter(|n| !variables.iter().any(|v| v.variable == **n)) {
        output::note(&format!("--without {name} has no effect: regatta does not set {name}"));
    }
    Ok(())
}

fn settings(plan: &JobPlan, machine: &Machine, framework: Framework) -> Vec<EnvVar> {
    let nodes = plan.placement.nodes.len() as u32;
    let context = JobContext::of(machine, nodes, Some(framework.name()));
    let variable = |s: SiteSetting| EnvVar {
        variable: s.variable,
        value: s.value,
        why: format!("{} ({})", s.why.trim_end_matches('.'), s.profile),
    };
    plan.site.profile.settings(&context).into_iter().map(variable).collect()
}

/// Creates the directory of a rank's code caches, if this is the rank's node. Where another user may
/// have prepared it, this process gets a directory of its own: the ranks of a node cannot agree on a
/// name that other users cannot predict.
pub fn secure_cache_dir(plan: &JobPlan, rank: u32, variables: &mut [EnvVar]) {
    let node = plan.placement.find_rank(rank).map(|(node, ..)| node);
    if !plan.machines[0].is_live() || node.is_none() || node != plan.this_node() {
        return;
    }
    let values = variables.iter_mut().map(|variable| &mut variable.value);
    if let Some(warning) = cache_dir::secure(&cache_folder(plan).0, values) {
        output::note(&warning);
    }
}

/// A node-local folder per user and job: below the site's, else TMPDIR, else /tmp.
pub fn cache_folder(plan: &JobPlan) -> (String, &'static str) {
    // Only folders of this node can be checked.
    let live = plan.machines[0].is_live() && !plan.is_reported_by_agents();
    let candidates = plan.site.profile.node_local.expanded(plan.env.as_map());
    let site = candidates.into_iter().find(|d| !live || Path::new(d).is_dir());
    let temporary = plan.env.get("TMPDIR").unwrap_or("/tmp");
    let (base, why) = match site {
        Some(dir) => (dir, "the site's node-local folder"),
        None => (temporary.to_owned(), "node-local"),
    };
    let job = plan.allocation.job_id.as_deref().unwrap_or("local");
    let unsafe_char = |c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c);
    let name = format!("regatta-{}-{job}", system::user(&plan.env)).replace(unsafe_char, "-");
    (format!("{}/{name}", base.trim_end_matches('/')), why)
}

/// Master address and port of a job, as `rank` determines them.
pub fn rendezvous(args: &RankEnvArgs, plan: &JobPlan, rank: u32) -> Result<Rendezvous> {
    let (torchrun_address, torchrun_port) = torchrun_store(plan)?;
    let (address, address_why) = match (&args.master_addr, torchrun_address) {
        (Some(address), _) => (address.clone(), "given by --master-addr".to_owned()),
        (None, Some(address)) => (address, TORCHRUN.to_owned()),
        (None, None) => master_address(plan)?,
    };
    let (port, port_why) = match (args.master_port, torchrun_port) {
        (Some(port), _) => (port, "given by --master-port".to_owned()),
        (None, Some(port)) => (port, TORCHRUN.to_owned()),
        (None, None) => master_port(plan, rank)?,
    };
    Ok(Rendezvous { address, address_why, port, port_why })
}

const TORCHRUN: &str = "set by torchrun, whose store already listens there";

/// Address and port of the store that torchrun's agent has opened. Its ranks do not listen on any
/// other.
fn torchrun_store(plan: &JobPlan) -> Result<(Option<String>, Option<u16>)> {
    if plan.allocation.launcher != Some(Launcher::Torch) {
        return Ok((None, None));
    }
    let parse = |text: &str| {
        text.parse().with_context(|| format!("MASTER_PORT={text}, set by torchrun, is not a port"))
    };
    let port = plan.env.get("MASTER_PORT").map(parse).transpose()?;
    Ok((plan.env.get("MASTER_ADDR").map(str::to_owned), port))
}

/// Address of rank 0: loopback on a single node.
fn master_address(plan: &JobPlan) -> Result<(String, String)> {
    if plan.placement.nodes.len() == 1 {
        return Ok(loopback());
    }
    let Some((node, placed, _)) = plan.placement.find_rank(0) else {
        bail!("the job has no rank 0")
    };
    if placed.host == UNKNOWN_HOST {
        bail!(
            "the launcher does not report the host of rank 0; pass --hostfile with the job's nodes, \
             or --master-addr"
        );
    }
    let suffixes = plan.site.profile.fabric.host_suffix.iter().map(String::as_str);
    let names = suffixes.chain([""]).map(|suffix| with_suffix(&placed.host, suffix));
    let candidates: Vec<Candidate> = names.map(candidate).collect();
    let is_local = plan.this_node() == Some(node);
    Ok(rendezvous::master_address(&plan.machines[0], is_local, &candidates)?)
}

/// The address of rank 0 in a job of one node, with the reason.
pub fn loopback() -> (String, String) {
    ("127.0.0.1".to_owned(), "the job has one node".to_owned())
}

/// A host name with its addresses.
pub fn candidate(name: String) -> Candidate {
    Candidate { addresses: system::resolve(&name), name }
}

/// Adds a suffix to a host name: `node1.site` and `i` give `node1i.site`. A suffix that is a domain
/// replaces the domain.
fn with_suffix(host: &str, suffix: &str) -> String {
    let name = short_hostname(host);
    match host.strip_prefix(name) {
        Some(domain) if !suffix.starts_with('.') => format!("{name}{suffix}{domain}"),
        _ => format!("{name}{suffix}"),
    }
}

/// A port that every rank derives independently from the job. Only rank 0 checks that it is free: to
/// the other ranks of its node, rank 0 may already be listening.
fn master_port(plan: &JobPlan, rank: u32) -> Result<(u16, String)> {
    let (job, source) = match &plan.allocation.job_id {
        Some(id) => {
            let cluster = plan.allocation.cluster.as_deref().unwrap_or_default();
            (format!("{cluster}/{id}"), "the job ID")
        }
        None => {
            let folder = std::env::current_dir().unwrap_or_default();
            let user = system::user(&plan.env);
            (format!("{user}@{}", folder.display()), "user and directory")
        }
    };
    let job = format!("{job}.{}", launch_id(plan).unwrap_or_default());
    let port = rendezvous::job_port(&job);
    let in_job = plan.allocation.this_rank.is_some() || plan.allocation.job_id.is_none();
    let checked = rank == 0 && in_job && plan.machines[0].is_live();
    if checked && !regatta_launch::port::is_free(port) {
        bail!(
            "MASTER_PORT {port}, a hash of {source}, is in use on {}: pass the same free port to \
             every rank with --master-port",
            plan.machines[0].host
        );
    }
    let free = if checked { "; checked to be free" } else { "" };
    Ok((port, format!("hash of {source}{free}")))
}

/// The launcher's identifier of this launch. Only the launcher's own variable is the same in all
/// ranks: those that mpirun starts on another node of a Slurm job also have the step of its daemon.
fn launch_id(plan: &JobPlan) -> Option<&str> {
    let variable = match plan.allocation.launcher? {
        Launcher::Srun => "SLURM_STEP_ID",
        Launcher::OpenMpi | Launcher::Pmix => "PMIX_NAMESPACE",
        Launcher::Pals => "PALS_APID",
        Launcher::Torch | Launcher::Flux | Launcher::Hydra => return None,
    };
    plan.env.get(variable)
}

#[cfg(test)]
mod tests {
    use super::with_suffix;

    #[test]
    fn suffix_goes_before_the_domain_or_replaces_it() {
        assert_eq!(with_suffix("jwb0001.juwels", "i"), "jwb0001i.juwels");
        assert_eq!(with_suffix("nid001", "-hsn0"), "nid001-hsn0");
        assert_eq!(with_suffix("x3005c0.cm.site", ".hsn.site"), "x3005c0.hsn.site");
        assert_eq!(with_suffix("nid001.site", ""), "nid001.site");
        assert_eq!(with_suffix("10.0.0.1", ""), "10.0.0.1");
    }
}
