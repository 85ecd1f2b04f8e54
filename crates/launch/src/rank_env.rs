//! The environment of a rank: rendezvous address and port, cache folder, site settings.

use std::path::Path;

use regatta_model::allocation::UNKNOWN_HOST;
use regatta_model::hostlist::short_hostname;
use regatta_model::{GpuVisibility, Launcher, Machine, Scheduler};
use regatta_place::environment::{
    CacheDir, EnvContext, EnvVar, Framework, Rendezvous, environment,
};
use regatta_place::inherited_env::{InheritedEnv, KeptVariable, is_rank_specific, own_variables};
use regatta_place::launcher_options::{self, LauncherSyntax, RequiredOption};
use regatta_place::rendezvous::{self, Candidate};
use regatta_place::site_profile::{JobContext, Profile, SiteSetting};

use crate::config::RankEnvOptions;
use crate::discovery::{Discovery, PlacedJob};
use crate::error::{LaunchError, Result};
use crate::{cache_dir, host, port};

/// The environment of a rank, without the variables that the user excluded, and with the values that
/// the user has set. Notes of rank 0 about those go to `notes`.
pub fn rank_env(
    placed: &PlacedJob,
    args: &RankEnvOptions,
    rendezvous: &Rendezvous,
    rank: u32,
    notes: &mut Vec<String>,
) -> Result<Vec<EnvVar>> {
    env_where(placed, args, rendezvous, rank, &|_| true, notes)
}

/// The variables that all ranks of a job have, for its script.
pub fn job_env(
    placed: &PlacedJob,
    args: &RankEnvOptions,
    rendezvous: &Rendezvous,
    notes: &mut Vec<String>,
) -> Result<Vec<EnvVar>> {
    let own_devices = placed.job.visibility == GpuVisibility::Own;
    let is_device_list =
        |name: &str| name.ends_with("_VISIBLE_DEVICES") || name == "ZE_AFFINITY_MASK";
    let is_common = |name: &str| !(is_rank_specific(name) || own_devices && is_device_list(name));
    env_where(placed, args, rendezvous, 0, &is_common, notes)
}

fn env_where(
    placed: &PlacedJob,
    args: &RankEnvOptions,
    rendezvous: &Rendezvous,
    rank: u32,
    is_wanted: &dyn Fn(&str) -> bool,
    notes: &mut Vec<String>,
) -> Result<Vec<EnvVar>> {
    let mut variables = full_rank_env(placed, args, rendezvous, rank)?;
    let excluded = |name: &String| is_excluded(args, name);
    variables.retain(|v| is_wanted(&v.variable) && !excluded(&v.variable));
    let inherited = InheritedEnv { variable: &|name: &str| inherited_value(placed, name) };
    let kept = inherited.keep(&mut variables);
    // Once for the job, not by each of its ranks.
    if rank == 0 {
        notes.extend(kept.iter().map(note_of_kept));
    }
    variables.push(own_variables(&variables, &inherited));
    let set = args.set.iter().cloned().map(|(variable, value)| EnvVar {
        variable,
        value,
        why: "of this case of the benchmark".to_owned(),
    });
    variables.extend(set);
    Ok(variables)
}

/// Whether a variable of the site is not set.
fn is_excluded(args: &RankEnvOptions, name: &String) -> bool {
    let is_set = || args.set.iter().any(|(variable, _)| variable == name);
    args.without.contains(name) || is_set()
}

fn note_of_kept(KeptVariable { variable, value, planned }: &KeptVariable) -> String {
    format!("{variable}={value} is already set and kept; unset {variable} to get {planned}")
}

/// A variable of this process. torchrun sets OMP_NUM_THREADS=1 if the user has not set it.
fn inherited_value(placed: &PlacedJob, name: &str) -> Option<String> {
    let value = placed.env.get(name)?.to_owned();
    let by_torchrun = placed.allocation.launcher == Some(Launcher::Torch)
        && (name, value.as_str()) == ("OMP_NUM_THREADS", "1");
    (!by_torchrun).then_some(value)
}

/// A variable of this process that regatta has not set.
pub fn foreign_value(placed: &PlacedJob, name: &str) -> Option<String> {
    InheritedEnv { variable: &|name: &str| inherited_value(placed, name) }.foreign(name)
}

/// Fails if another launcher has set the rank or world size of this process to other values than
/// planned: the ranks would wait for each other forever, or train as several jobs.
pub fn check_identity(placed: &PlacedJob, planned: &[EnvVar]) -> Result<()> {
    let inherited = InheritedEnv { variable: &|name: &str| inherited_value(placed, name) };
    let Some(KeptVariable { variable, value, planned }) = inherited.contradiction(planned) else {
        return Ok(());
    };
    let (ranks, launcher) = (placed.placement.ranks, foreign_launcher(&inherited));
    Err(LaunchError::Identity { variable, value, planned, ranks, launcher })
}

/// Fails if this process is one of several ranks of another launcher: each of them would launch a job
/// of its own. The world sizes may agree by chance.
pub fn check_is_no_rank(placed: &PlacedJob) -> Result<()> {
    let inherited = InheritedEnv { variable: &|name: &str| inherited_value(placed, name) };
    let Some((rank, size)) = inherited.foreign_rank() else { return Ok(()) };
    Err(LaunchError::IsRank { rank, size, launcher: foreign_launcher(&inherited) })
}

/// The launcher that has set the variables of a rank, as far as its other variables tell.
fn foreign_launcher(inherited: &InheritedEnv<'_>) -> &'static str {
    const SIGNS: [(&str, &str); 7] = [
        ("TORCHELASTIC_RUN_ID", "torchrun"),
        ("PET_NNODES", "Kubeflow"),
        ("PET_NPROC_PER_NODE", "Kubeflow"),
        ("RAY_JOB_ID", "Ray"),
        ("RAY_ADDRESS", "Ray"),
        ("RAY_WORKER_ID", "Ray"),
        ("KUBERNETES_SERVICE_HOST", "Kubernetes (Kubeflow?)"),
    ];
    let found = SIGNS.iter().find(|(name, _)| inherited.foreign(name).is_some());
    found.map_or("another launcher or the user", |(_, launcher)| launcher)
}

fn full_rank_env(
    placed: &PlacedJob,
    args: &RankEnvOptions,
    rendezvous: &Rendezvous,
    rank: u32,
) -> Result<Vec<EnvVar>> {
    let framework = args.framework;
    let Some((_, node, _)) = placed.placement.find_rank(rank) else {
        let last = placed.placement.ranks.saturating_sub(1);
        return Err(LaunchError::NoRank { option: "rank", rank, last });
    };
    let machine = placed.machine(node);
    let variables = environment(&EnvContext {
        placement: &placed.placement,
        rank,
        machine,
        nics: placed.nics(node),
        framework,
        rendezvous,
        cache: &cache_folder(placed),
        settings: &settings(placed, machine, framework, placed.placement.nodes.len() as u32),
        jax_detects_launcher: jax_detects_launcher(placed),
    });
    Ok(variables.unwrap_or_default())
}

/// Whether this rank's launcher sets variables that JAX reads.
fn jax_detects_launcher(placed: &PlacedJob) -> bool {
    match placed.allocation.launcher {
        Some(Launcher::Srun) => true,
        Some(Launcher::OpenMpi) => placed.env.is_set("OMPI_MCA_orte_hnp_uri"),
        _ => false,
    }
}

/// Notes about the variables of `--without` that would not be set anyway.
pub fn notes_of_unset_names(
    placed: &PlacedJob,
    args: &RankEnvOptions,
    rendezvous: &Rendezvous,
) -> Result<Vec<String>> {
    let variables = full_rank_env(placed, args, rendezvous, 0)?;
    let is_unset = |name: &&String| !variables.iter().any(|v| v.variable == **name);
    let note = |name| format!("--without {name} has no effect: regatta does not set {name}");
    Ok(args.without.iter().filter(is_unset).map(note).collect())
}

/// The launcher options that the site's settings need to take effect.
pub fn required_options(placed: &PlacedJob, launcher: LauncherSyntax) -> Vec<RequiredOption> {
    let nodes = placed.placement.nodes.len() as u32;
    let context = JobContext::of(&placed.machines[0], nodes, Framework::Torch);
    launcher_options::required_options(&placed.site.profile.settings(&context), launcher)
}

/// The launcher options that the site's settings need to take effect in the ranks of agents: those
/// of settings that the user neither excluded nor replaced.
pub fn agent_step_options(
    discovery: &Discovery,
    site: &Profile,
    args: &RankEnvOptions,
    launcher: LauncherSyntax,
) -> Vec<RequiredOption> {
    let nodes = discovery.allocation.nodes.len() as u32;
    let context = JobContext::of(&discovery.machines[0], nodes, args.framework);
    let context = context.or_gpus_of(&site.matches.hardware);
    let is_replaced = |setting: &SiteSetting| {
        let own = discovery.env.get(&setting.variable);
        own.is_some_and(|own| Some(own) != setting.value.as_deref())
    };
    let is_excluded = |name: &String| is_excluded(args, name);
    let mut settings = site.settings(&context);
    settings.retain(|setting| !is_excluded(&setting.variable) && !is_replaced(setting));
    launcher_options::required_options(&settings, launcher)
}

/// A note that a job of one node gets no network settings, if the site has any.
pub fn note_of_single_node(placed: &PlacedJob, args: &RankEnvOptions) -> Option<String> {
    let settings = |nodes| settings(placed, &placed.machines[0], args.framework, nodes).len();
    let has_fewer = placed.placement.nodes.len() == 1 && settings(2) > settings(1);
    let title = &placed.site.profile.title;
    has_fewer.then(|| {
        format!(
            "the job has one node: the network settings of {title} apply from two nodes on (-N 2)"
        )
    })
}

fn settings(
    placed: &PlacedJob,
    machine: &Machine,
    framework: Framework,
    nodes: u32,
) -> Vec<EnvVar> {
    let context = JobContext::of(machine, nodes, framework);
    let variable = |s: SiteSetting| EnvVar {
        variable: s.variable,
        value: s.value,
        why: format!("{} ({})", s.why.trim_end_matches('.'), s.profile),
    };
    placed.site.profile.settings(&context).into_iter().map(variable).collect()
}

/// Creates the directory of a rank's code caches, if this is the rank's node. Where another user may
/// have prepared it, this process gets a directory of its own: the ranks of a node cannot agree on a
/// name that other users cannot predict. Returns a warning then.
pub fn secure_cache_dir(placed: &PlacedJob, rank: u32, variables: &mut [EnvVar]) -> Option<String> {
    let node = placed.placement.find_rank(rank).map(|(node, ..)| node);
    if !placed.machines[0].is_live() || node.is_none() || node != placed.this_node() {
        return None;
    }
    let values = variables.iter_mut().map(|variable| &mut variable.value);
    cache_dir::secure(&cache_folder(placed).path, values)
}

/// A node-local folder per user and job: below the site's, else TMPDIR, else /tmp.
pub fn cache_folder(placed: &PlacedJob) -> CacheDir {
    // Only folders of this node can be checked.
    let live = placed.machines[0].is_live() && !placed.is_reported_by_agents();
    let node_local = &placed.site.profile.node_local;
    let candidates = node_local.expanded(placed.env.as_map());
    let site = candidates.into_iter().find(|d| !live || Path::new(d).is_dir());
    let temporary = placed.env.get("TMPDIR").unwrap_or("/tmp");
    let (base, why) = match site {
        Some(dir) => (dir, "the site's node-local folder"),
        None => (temporary.to_owned(), "node-local"),
    };
    let in_memory = node_local.is_in_memory(&base, placed.env.as_map())
        || (placed.machines[0].is_live() && host::is_in_memory(Path::new(&base)));
    let job = placed.allocation.job_id.as_deref().unwrap_or("local");
    let unsafe_char = |c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c);
    let name = format!("regatta-{}-{job}", host::user(&placed.env)).replace(unsafe_char, "-");
    CacheDir { path: format!("{}/{name}", base.trim_end_matches('/')), why, in_memory }
}

/// Master address and port of a job, as `rank` determines them. Those that the user or another
/// launcher has set are kept, because all ranks of the job have them.
pub fn rendezvous(args: &RankEnvOptions, placed: &PlacedJob, rank: u32) -> Result<Rendezvous> {
    choose_rendezvous(args, placed, rank, &|name| foreign_value(placed, name))
}

/// Master address and port of a job with the values of variables that are already set and kept: none, if
/// this process starts the ranks.
pub fn choose_rendezvous(
    args: &RankEnvOptions,
    placed: &PlacedJob,
    rank: u32,
    set: &dyn Fn(&str) -> Option<String>,
) -> Result<Rendezvous> {
    let why = match placed.allocation.launcher {
        Some(Launcher::Torch) => TORCHRUN,
        _ => "already set, and kept",
    };
    let address = || match set("MASTER_ADDR") {
        Some(address) => Ok((check_address(placed, address)?, why.to_owned())),
        None => master_address(placed),
    };
    let port = || match set("MASTER_PORT") {
        Some(text) => {
            let port = text.trim().parse();
            Ok((port.map_err(|source| LaunchError::MasterPort { text, source })?, why.to_owned()))
        }
        None => master_port(placed, rank),
    };
    given_or(args, address, port)
}

/// The master address and port that the user has given, else others, with the reasons.
pub fn given_or(
    args: &RankEnvOptions,
    address: impl FnOnce() -> Result<(String, String)>,
    port: impl FnOnce() -> Result<(u16, String)>,
) -> Result<Rendezvous> {
    let (address, address_why) = match &args.master_addr {
        Some(address) => (address.clone(), "given by --master-addr".to_owned()),
        None => address()?,
    };
    let (port, port_why) = match args.master_port {
        Some(port) => (port, "given by --master-port".to_owned()),
        None => port()?,
    };
    Ok(Rendezvous { address, address_why, port, port_why })
}

const TORCHRUN: &str = "set by torchrun, whose store already listens there";

/// A master address that is set. Ranks on other nodes cannot reach a loopback address.
fn check_address(placed: &PlacedJob, address: String) -> Result<String> {
    let loopback = address == "localhost"
        || address.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    match placed.placement.nodes.len() {
        nodes if loopback && nodes > 1 => Err(LaunchError::LoopbackAddress { address, nodes }),
        _ => Ok(address),
    }
}

/// Address of rank 0: loopback on a single node.
fn master_address(placed: &PlacedJob) -> Result<(String, String)> {
    if placed.placement.nodes.len() == 1 {
        return Ok(loopback());
    }
    let (node, first, _) = placed.placement.find_rank(0).ok_or(LaunchError::NoRanks)?;
    if first.host == UNKNOWN_HOST {
        // Exported by `regatta env` in the job script, which runs where the nodes are known.
        if let Some(address) = placed.env.get("MASTER_ADDR") {
            return Ok((address.to_owned(), "inherited from the job script".to_owned()));
        }
        return Err(LaunchError::UnknownMaster);
    }
    let suffixes = placed.site.profile.fabric.host_suffix.iter().map(String::as_str);
    let names = suffixes.chain([""]).map(|suffix| with_suffix(&first.host, suffix));
    if placed.allocation.scheduler == Scheduler::None && !placed.machines[0].is_live() {
        let name = names.map(|name| (name, HYPOTHETICAL.to_owned())).next();
        return Ok(name.unwrap_or_else(loopback));
    }
    let candidates: Vec<Candidate> = names.map(candidate).collect();
    let is_local = placed.this_node() == Some(node);
    Ok(rendezvous::master_address(&placed.machines[0], is_local, &candidates)?)
}

const HYPOTHETICAL: &str =
    "name of rank 0's node on the fabric; its address is looked up on the nodes themselves";

/// The address of rank 0 in a job of one node, with the reason.
pub fn loopback() -> (String, String) {
    ("127.0.0.1".to_owned(), "the job has one node".to_owned())
}

/// A host name with its addresses.
pub fn candidate(name: String) -> Candidate {
    Candidate { addresses: host::resolve(&name), name }
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
fn master_port(placed: &PlacedJob, rank: u32) -> Result<(u16, String)> {
    let (job, source) = match &placed.allocation.job_id {
        Some(id) => {
            let cluster = placed.allocation.cluster.as_deref().unwrap_or_default();
            (format!("{cluster}/{id}"), "the job ID")
        }
        None => {
            let folder = std::env::current_dir().unwrap_or_default();
            let user = host::user(&placed.env);
            (format!("{user}@{}", folder.display()), "user and directory")
        }
    };
    let job = format!("{job}.{}", launch_id(placed).unwrap_or_default());
    let port = rendezvous::job_port(&job);
    let in_job = placed.allocation.this_rank.is_some() || placed.allocation.job_id.is_none();
    let checked = rank == 0 && in_job && placed.machines[0].is_live();
    if checked && !port::is_free(port) {
        let host = placed.machines[0].host.clone();
        return Err(LaunchError::PortInUse { port, source_of_port: source, host });
    }
    let free = if checked { "; checked to be free" } else { "" };
    Ok((port, format!("hash of {source}{free}")))
}

/// The launcher's identifier of this launch. Only the launcher's own variable is the same in all
/// ranks: those that mpirun starts on another node of a Slurm job also have the step of its daemon.
fn launch_id(placed: &PlacedJob) -> Option<&str> {
    let variable = match placed.allocation.launcher? {
        Launcher::Srun => "SLURM_STEP_ID",
        Launcher::OpenMpi | Launcher::Pmix => "PMIX_NAMESPACE",
        Launcher::Pals => "PALS_APID",
        Launcher::Torch | Launcher::Flux | Launcher::Hydra => return None,
    };
    placed.env.get(variable)
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
