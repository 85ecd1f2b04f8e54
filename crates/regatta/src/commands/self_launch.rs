//! Commands that launch their own ranks: `regatta launch` runs this program again as each rank.

use std::ffi::OsString;

use anyhow::{Context, Result, bail};
use regatta_launch::channel;
use regatta_launch::config::{JobConfig, OwnRanks, Workload};
use regatta_launch::secret_file;
use regatta_model::run_folder::RunKind;
use regatta_model::units::pluralize;

use super::launcher::LaunchOptions;
use super::rank_request::{self, RankRequest, RankTask};
use crate::cli::LaunchArgs;
use crate::options::{NcclPluginArgs, RankCountArgs};
use crate::output;
use regatta_launch::discovery::Discovery;

/// The ranks to launch.
#[derive(Debug, Default)]
pub struct LaunchRequest<'a> {
    pub counts: RankCountArgs,
    pub plugins: NcclPluginArgs,
    /// Whether each rank gets a GPU.
    pub gpus: bool,
    /// The user's options for `regatta launch` (`--launch`).
    pub user_options: Option<&'a str>,
}

/// Whether this process is a rank of a job. A rank without the job's secret is an error.
pub fn is_rank(command: &str) -> Result<bool> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let is_rank = is_set("RANK") && is_set("WORLD_SIZE");
    if is_rank && !is_set(secret_file::VARIABLE) {
        bail!(
            "RANK and WORLD_SIZE are set, but {0} is not: either run `regatta {command}` once, \
             without RANK and WORLD_SIZE, so that it launches the ranks; or set {0} on all ranks to \
             a file of mode 0600 with 64 hexadecimal digits",
            secret_file::VARIABLE
        );
    }
    Ok(is_rank)
}

impl LaunchRequest<'_> {
    /// The options of `regatta launch` for these ranks, completed by the user's. The ranks repeat the command
    /// line of this process; the request and the run folder are still to be set.
    pub fn options(self) -> Result<LaunchOptions> {
        let mut options = LaunchArgs::of_option(self.user_options)?.into_options()?;
        let RankCountArgs { ranks, ranks_per_node, nodes, hostfile } = self.counts;
        let NcclPluginArgs { profile, tuner, net_plugin } = self.plugins;
        let JobConfig { source, placement, run_dir, .. } = &mut options.job;
        merge("--nodes", &mut source.nodes, nodes)?;
        merge("--hostfile", &mut source.hostfile, hostfile)?;
        let job = &mut placement.job;
        merge("--ranks", &mut job.ranks, ranks)?;
        merge("--ranks-per-node", &mut job.ranks_per_node, ranks_per_node)?;
        check_unset("--run-dir", run_dir)?;
        let plugins = &mut options.parts.plugins;
        merge("--profile", &mut plugins.profile, profile)?;
        merge("--tuner", &mut plugins.tuner, tuner)?;
        merge("--net-plugin", &mut plugins.net_plugin, net_plugin)?;
        job.use_gpus &= self.gpus;
        // An explicit rank count may exceed the cores.
        job.oversubscribe = true;
        let command = [program()?].into_iter().chain(std::env::args_os().skip(1));
        options.job.workload = Workload::Command(command.collect());
        Ok(options)
    }
}

/// Has the ranks run a request that they receive through their channels. A process that the
/// scheduler started as a rank becomes that rank instead and keeps its own arguments.
pub fn set_request(config: &mut JobConfig, discovery: &Discovery, task: RankTask) -> Result<()> {
    if discovery.allocation.this_rank.is_some() {
        return Ok(());
    }
    let machine = (!discovery.needs_agents()).then(|| discovery.machines[0].clone());
    let user_command = rank_request::command_line();
    let (kind, tests_nodes, saves_on_signal) = match &task {
        RankTask::Bench(_) => (RunKind::Bench, false, false),
        // They test the nodes and need nothing of them.
        RankTask::Doctor(_) => (RunKind::Launch, true, false),
        RankTask::Train(task) => (RunKind::Train, false, !task.smoke),
    };
    let request = RankRequest { task, command_line: user_command.clone(), machine };
    config.workload = Workload::OwnRanks(OwnRanks {
        command: vec![program()?, "rank-worker".into()],
        user_command,
        kind,
        request: channel::encode(&request)?.into(),
        dir: tests_nodes.then(|| "/".into()),
        needs_secret: !tests_nodes,
        saves_on_signal,
    });
    Ok(())
}

fn program() -> Result<OsString> {
    Ok(std::env::current_exe().context("path of this program")?.into())
}

/// Sets an option that the user must not give again in `--launch`.
fn merge<T>(name: &str, option: &mut Option<T>, value: Option<T>) -> Result<()> {
    if value.is_some() {
        check_unset(name, option)?;
        *option = value;
    }
    Ok(())
}

/// Fails if the user has set an option in `--launch` that the command sets.
fn check_unset<T>(name: &str, option: &Option<T>) -> Result<()> {
    if option.is_some() {
        bail!("--launch: {name} is already set by this command");
    }
    Ok(())
}

/// The default number of ranks on a single machine without GPUs; elsewhere the launcher determines it.
/// Communication needs two ranks.
pub fn local_rank_count(discovery: &Discovery) -> Option<u32> {
    let by_launcher = discovery.needs_agents() || discovery.allocation.this_rank.is_some();
    (!by_launcher).then(|| discovery.machines[0].cores.len().clamp(2, 8) as u32)
}

/// Notes that ranks share cores, which `regatta launch` allows only with `--oversubscribe`.
pub fn note_oversubscription(config: &JobConfig, discovery: &Discovery) {
    if discovery.needs_agents() || discovery.allocation.this_rank.is_some() {
        return;
    }
    let machine = &discovery.machines[0];
    let usable = machine.usable.process_cpus();
    let cores = machine.cores.iter().filter(|core| core.cpus.intersects(&usable)).count();
    if let Some(ranks) = config.placement.job.ranks.filter(|ranks| *ranks as usize > cores) {
        let cores = pluralize(cores, "core");
        output::note(&format!(
            "{ranks} ranks on {cores} (oversubscribed): ranks share cores and wait for each other"
        ));
    }
}

/// Whether the number of ranks or the nodes are set.
pub fn has_rank_count(JobConfig { source, placement, .. }: &JobConfig) -> bool {
    let job = &placement.job;
    let nodes = source.nodes.is_some() || source.hostfile.is_some();
    nodes || job.ranks.is_some() || job.ranks_per_node.is_some()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(launch: &str) -> JobConfig {
        LaunchArgs::of_option(Some(launch)).unwrap().into_options().unwrap().job
    }

    #[test]
    fn user_options_complete_the_request_and_must_not_repeat_it() {
        let request = |user_options| {
            let counts = RankCountArgs { nodes: Some(2), ..RankCountArgs::default() };
            LaunchRequest { counts, user_options, ..LaunchRequest::default() }
        };
        let args = request(Some("--grace 1 --hostfile 'a b'")).options().unwrap();
        let JobConfig { source, placement, grace, run_dir, workload, .. } = args.job;
        assert_eq!((source.nodes, grace), (Some(2), Some(Duration::from_secs(1))));
        assert_eq!(source.hostfile.as_deref(), Some("a b".as_ref()));
        assert!(!placement.job.use_gpus && placement.job.oversubscribe && run_dir.is_none());
        let Workload::Command(command) = workload else { panic!("a request") };
        assert_eq!(command[1..], std::env::args_os().skip(1).collect::<Vec<_>>());
        for twice in ["-N 2", "--run-dir other"] {
            let error = request(Some(twice)).options().unwrap_err().to_string();
            assert!(error.contains("already set"), "{error}");
        }
        for invalid in ["--bogus", "'", "-- other"] {
            assert!(request(Some(invalid)).options().is_err(), "{invalid}");
        }
    }

    #[test]
    fn ranks_that_save_have_no_deadline_after_a_signal_unless_set() {
        let second = Duration::from_secs(1);
        let cases = [
            ("", true, None),
            ("", false, Some(30 * second)),
            ("--grace 2", true, Some(2 * second)),
        ];
        for (launch, saves_on_signal, expected) in cases {
            let mut config = parse(launch);
            config.workload = Workload::OwnRanks(OwnRanks {
                command: Vec::new(),
                user_command: Vec::new(),
                kind: RunKind::Train,
                request: Vec::new().into(),
                dir: None,
                needs_secret: true,
                saves_on_signal,
            });
            assert_eq!(config.limits().signal_grace, expected, "{launch}");
            assert_eq!(config.limits().grace, expected.unwrap_or(30 * second), "after a failure");
        }
    }

    #[test]
    fn options_for_ranks_or_nodes_set_the_rank_count() {
        let sets_rank_count = |launch| has_rank_count(&parse(launch));
        for launch in ["-N2", "--nodes=2", "--hostfile hosts", "-n 4", "--ranks-per-node 2"] {
            assert!(sets_rank_count(launch), "{launch}");
        }
        for launch in ["--start-timeout 60", "--without NCCL_ALGO --grace 1", ""] {
            assert!(!sets_rank_count(launch), "{launch}");
        }
    }
}
