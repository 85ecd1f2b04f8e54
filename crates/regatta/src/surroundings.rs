//! What surrounds a rank: where the ranks meet, caches, the site's settings, and with them its
//! environment.

use std::path::Path;

use anyhow::{Context, Result, bail};
use regatta_model::allocation::UNKNOWN_HOST;
use regatta_model::hostlist::short;
use regatta_model::{Launcher, Machine};
use regatta_place::environment::{EnvLine, Framework, RankContext, Rendezvous, environment};
use regatta_place::profile::Situation;
use regatta_place::rendezvous::{self, Candidate};

use crate::options::EnvChoices;
use crate::output;
use crate::plan::Plan;
use crate::system;

/// The environment of a rank.
pub fn of_rank(
    plan: &Plan,
    choices: &EnvChoices,
    meet: &Rendezvous,
    rank: u32,
) -> Result<Vec<EnvLine>> {
    let mut lines = all_of_rank(plan, choices, meet, rank)?;
    let left_out = [&choices.without, &choices.trying];
    lines.retain(|l| !left_out.iter().any(|names| names.contains(&l.variable)));
    Ok(lines)
}

fn all_of_rank(
    plan: &Plan,
    choices: &EnvChoices,
    meet: &Rendezvous,
    rank: u32,
) -> Result<Vec<EnvLine>> {
    let framework: Framework = choices.framework.into();
    let Some((_, node, _)) = plan.placement.find(rank) else {
        bail!("the job has ranks 0 to {}, not {rank}", plan.placement.ranks.saturating_sub(1));
    };
    let machine = plan.machine(node);
    let (cache, cache_why) = cache_folder(plan);
    let lines = environment(&RankContext {
        placement: &plan.placement,
        rank,
        machine,
        nics: plan.nics(node),
        framework,
        rendezvous: meet,
        cache: (&cache, &cache_why),
        settings: &settings(plan, machine, framework),
    });
    Ok(lines.unwrap_or_default())
}

/// Tells once what the user wants left out and is not there.
pub fn note_unknown(plan: &Plan, choices: &EnvChoices, meet: &Rendezvous) -> Result<()> {
    let lines = all_of_rank(plan, choices, meet, 0)?;
    for name in choices.without.iter().filter(|n| !lines.iter().any(|l| l.variable == **n)) {
        output::complain(&format!("note: --without {name}: it is not among the variables\n"));
    }
    Ok(())
}

fn settings(plan: &Plan, machine: &Machine, framework: Framework) -> Vec<EnvLine> {
    let nodes = plan.placement.nodes.len() as u32;
    let situation = Situation::of(machine, nodes, Some(framework.name()));
    let line = |s: regatta_place::profile::Setting| EnvLine {
        variable: s.variable,
        value: s.value,
        why: format!("{} ({})", s.why.trim_end_matches('.'), s.from_profile),
    };
    plan.site.profile.settings(&situation).into_iter().map(line).collect()
}

/// A folder on the node itself: the site's, else TMPDIR, else /tmp; one for each user and job.
fn cache_folder(plan: &Plan) -> (String, String) {
    // What the nodes of a job have cannot be seen from another.
    let live = plan.machines[0].is_live() && !plan.is_of_nodes();
    let of_site = plan.site.profile.node_local.expanded(plan.env.all());
    let site = of_site.into_iter().find(|d| !live || Path::new(d).is_dir());
    let temporary = plan.env.get("TMPDIR").unwrap_or("/tmp");
    let (base, why) = match site {
        Some(dir) => (dir, "the site's node-local folder"),
        None => (temporary.to_owned(), "node-local"),
    };
    let job = plan.allocation.job_id.as_deref().unwrap_or("local");
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String =
        format!("regatta-{}-{job}", system::user(&plan.env)).chars().map(safe).collect();
    (format!("{}/{name}", base.trim_end_matches('/')), why.to_owned())
}

/// Where the ranks of a job meet, as `rank` finds it out.
pub fn meet(args: &EnvChoices, plan: &Plan, rank: u32) -> Result<Rendezvous> {
    let (told_address, told_port) = torchrun(plan)?;
    let (address, address_why) = match (&args.master_addr, told_address) {
        (Some(address), _) => (address.clone(), "given by --master-addr".to_owned()),
        (None, Some(address)) => (address, TORCHRUN.to_owned()),
        (None, None) => master(plan)?,
    };
    let (port, port_why) = match (args.master_port, told_port) {
        (Some(port), _) => (port, "given by --master-port".to_owned()),
        (None, Some(port)) => (port, TORCHRUN.to_owned()),
        (None, None) => port(plan, rank)?,
    };
    Ok(Rendezvous { address, address_why, port, port_why })
}

const TORCHRUN: &str = "as torchrun says, whose store listens there already";

/// Where ranks of torchrun meet: at the store of its agent. None of them would listen elsewhere,
/// and all would wait.
fn torchrun(plan: &Plan) -> Result<(Option<String>, Option<u16>)> {
    if plan.allocation.launcher != Some(Launcher::Torch) {
        return Ok((None, None));
    }
    let port = plan.env.get("MASTER_PORT");
    let number = port.map(|text| {
        text.parse().with_context(|| format!("MASTER_PORT={text}, set by torchrun, is no port"))
    });
    Ok((plan.env.get("MASTER_ADDR").map(str::to_owned), number.transpose()?))
}

/// Where rank 0 listens. On one node no network is needed.
fn master(plan: &Plan) -> Result<(String, String)> {
    if plan.placement.nodes.len() == 1 {
        return Ok(("127.0.0.1".to_owned(), "the job has one node".to_owned()));
    }
    let Some((node, placed, _)) = plan.placement.find(0) else { bail!("the job has no rank 0") };
    let here = plan.this_node() == Some(node);
    if placed.host == UNKNOWN_HOST {
        bail!(
            "the launcher does not tell the name of rank 0's node; pass --hostfile with the job's \
             nodes, or --master-addr"
        );
    }
    let suffixes = plan.site.profile.fabric.host_suffix.iter().map(String::as_str);
    let candidates: Vec<Candidate> = suffixes
        .chain([""])
        .map(|suffix| with_suffix(&placed.host, suffix))
        .map(|name| Candidate { addresses: system::resolve(&name), name })
        .collect();
    Ok(rendezvous::master_address(&plan.machines[0], here, &candidates)?)
}

/// `node1.site` and `i` make `node1i.site`; a suffix that is a domain replaces the name's own.
fn with_suffix(host: &str, suffix: &str) -> String {
    let name = short(host);
    match host.strip_prefix(name) {
        Some(domain) if !suffix.starts_with('.') => format!("{name}{suffix}{domain}"),
        _ => format!("{name}{suffix}"),
    }
}

/// A port every rank finds by itself. Only rank 0 looks whether it is free: for the others of its
/// node it may rightly be taken, by rank 0.
fn port(plan: &Plan, rank: u32) -> Result<(u16, String)> {
    let job = match &plan.allocation.job_id {
        Some(id) => format!("{}/{id}", plan.allocation.cluster.as_deref().unwrap_or_default()),
        None => {
            let folder = std::env::current_dir().unwrap_or_default();
            format!("{}@{}", system::user(&plan.env), folder.display())
        }
    };
    let job = format!("{job}.{}", step(plan).unwrap_or_default());
    let port = rendezvous::port(&job);
    let here = plan.allocation.me.is_some() || plan.allocation.job_id.is_none();
    let live = plan.machines[0].is_live();
    if rank == 0 && here && live && !system::port_is_free(port) {
        bail!(
            "port {port}, derived from this job, is taken on {}: another program listens there; \
             pass --master-port with a free one to every rank",
            plan.machines[0].host
        );
    }
    let of = if plan.allocation.job_id.is_some() { "the job" } else { "user and folder" };
    let free = if rank == 0 && here && live { ", and free" } else { "" };
    Ok((port, format!("derived from {of}{free}")))
}

/// What the launcher calls this one of its starts. Only its own word is the same for all ranks:
/// those that mpirun starts on another node of a Slurm job also have the step of its daemon there.
fn step(plan: &Plan) -> Option<&str> {
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
    fn names_on_the_fabric() {
        assert_eq!(with_suffix("jwb0001.juwels", "i"), "jwb0001i.juwels");
        assert_eq!(with_suffix("nid001", "-hsn0"), "nid001-hsn0");
        assert_eq!(with_suffix("x3005c0.cm.site", ".hsn.site"), "x3005c0.hsn.site");
        assert_eq!(with_suffix("nid001.site", ""), "nid001.site");
        assert_eq!(with_suffix("10.0.0.1", ""), "10.0.0.1");
    }
}
