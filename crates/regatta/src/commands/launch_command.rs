//! `regatta launch`. With `--preflight`, it checks the nodes by `regatta doctor` before the job, and
//! replaces bad ones.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_doctor::{Diagnosis, Verdict, judge};
use regatta_launch::config::JobConfig;
use regatta_launch::discovery::Discovery;
use regatta_launch::driver::node_pool;
use regatta_launch::node_pool::{NodePool, PoolUpdate};
use regatta_model::hostlist;

use super::doctor::nodes::{self, examine, launch_options};
use super::doctor::render;
use super::launch::{launch, nodes_changed};
use crate::cli::LaunchArgs;
use crate::output;

/// Runs the command.
pub fn run(args: LaunchArgs) -> Result<ExitCode> {
    let mut options = args.into_options()?;
    let mut discovery = Discovery::of_job(&options.job)?;
    if options.preflight && !options.dry_run {
        replace_bad_nodes(&mut options.job, &mut discovery)?;
    }
    launch(&options, discovery, None, Vec::new()).map(ExitCode::from)
}

/// Checks all nodes of the job, spares included. On return the job consists of good nodes only.
fn replace_bad_nodes(config: &mut JobConfig, discovery: &mut Discovery) -> Result<()> {
    if let Some(me) = discovery.allocation.this_rank {
        bail!(
            "--preflight needs one `regatta launch` for the whole job, and this is rank {}: start it \
             without srun or mpiexec",
            me.rank
        );
    }
    let pool = node_pool(config, discovery)?;
    let skip = BTreeSet::new();
    let options = launch_options(config)?;
    let facts = examine(&options, discovery, &nodes::tests(&skip, &[])?)?;
    let diagnosis = judge(&facts, &skip);
    // Standard output belongs to the job.
    output::eprint(&render(&diagnosis, false));
    let hosts = discovery.hosts();
    let (pool, update) = good_nodes(pool, &hosts, &diagnosis)?;
    output::eprint(&nodes_changed(&update, &hosts));
    apply(&pool, config, discovery);
    Ok(())
}

/// The nodes of the job without the bad ones.
fn good_nodes(
    mut pool: NodePool,
    hosts: &[String],
    diagnosis: &Diagnosis,
) -> Result<(NodePool, PoolUpdate)> {
    if diagnosis.verdict == Verdict::Fail && diagnosis.bad_nodes.is_empty() {
        bail!(
            "--preflight: a check failed that no single node is to blame for; nothing was started"
        );
    }
    let index = |bad: &String| hosts.iter().position(|host| host == bad);
    let bad: Vec<usize> = diagnosis.bad_nodes.iter().filter_map(index).collect();
    match pool.exclude(&bad, "it failed the preflight check") {
        PoolUpdate::GiveUp(why) => bail!(
            "--preflight: {}: {why}; nothing was started",
            hostlist::compress(&diagnosis.bad_nodes)
        ),
        update => Ok((pool, update)),
    }
}

/// Reduces the allocation to the nodes of the pool, the spares last.
fn apply(pool: &NodePool, config: &mut JobConfig, discovery: &mut Discovery) {
    let nodes = pool.active().iter().chain(pool.spares());
    let all = std::mem::take(&mut discovery.allocation.nodes);
    discovery.allocation.nodes = nodes.filter_map(|&node| all.get(node).cloned()).collect();
    config.spares = pool.spares().len() as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(spares: usize, bad: &[&str], verdict: Verdict) -> Result<(NodePool, PoolUpdate)> {
        let hosts: Vec<String> = (1..=5).map(|n| format!("n{n}")).collect();
        let diagnosis = Diagnosis {
            verdict,
            nodes: hosts.len(),
            bad_nodes: bad.iter().map(|host| (*host).to_owned()).collect(),
            exclude: None,
            checks: Vec::new(),
            notes: Vec::new(),
        };
        good_nodes(NodePool::new(hosts.len(), spares, None).unwrap(), &hosts, &diagnosis)
    }

    #[test]
    fn bad_nodes_are_replaced_by_spares() {
        let (pool, _) = decide(2, &["n2", "n4"], Verdict::Fail).unwrap();
        assert_eq!((pool.active(), pool.spares()), (&[0, 4, 2][..], &[][..]), "n4 was a spare");
        let (pool, update) = decide(2, &[], Verdict::Warn).unwrap();
        assert_eq!((pool.active().len(), update), (3, PoolUpdate::Unchanged));
    }

    #[test]
    fn nothing_starts_without_enough_good_nodes() {
        let error = decide(1, &["n1", "n2"], Verdict::Fail).unwrap_err().to_string();
        assert!(error.starts_with("--preflight: n[1-2]: 3 usable nodes left"), "{error}");
        let error = decide(1, &[], Verdict::Fail).unwrap_err().to_string();
        assert!(error.contains("no single node"), "{error}");
    }
}
