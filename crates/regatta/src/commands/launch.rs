//! `regatta launch`. With `--preflight`, it checks the nodes by `regatta doctor` before the job, and
//! replaces bad ones.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_doctor::{Verdict, judge};
use regatta_launch::config::JobConfig;
use regatta_launch::discovery::Discovery;
use regatta_launch::driver::node_pool;
use regatta_launch::preflight;

use super::doctor::nodes::{self, examine, launch_options};
use super::doctor::render;
use super::launcher::{launch, nodes_changed};
use crate::cli::LaunchArgs;
use crate::output;

/// Runs the command.
pub fn run(args: LaunchArgs) -> Result<ExitCode> {
    let mut options = args.into_options()?;
    let mut discovery = Discovery::of_job(&options.job)?;
    if options.preflight && !options.dry_run {
        check_nodes(&mut options.job, &mut discovery)?;
    }
    launch(&options, discovery, None, Vec::new()).map(ExitCode::from)
}

/// Checks all nodes of the job, spares included. On return the job consists of good nodes only.
fn check_nodes(config: &mut JobConfig, discovery: &mut Discovery) -> Result<()> {
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
    let (bad, has_failed) = (&diagnosis.bad_nodes, diagnosis.verdict == Verdict::Fail);
    let (nodes, spares) = (&mut discovery.allocation.nodes, &mut config.spares);
    let update = preflight::replace_bad_nodes(nodes, spares, pool, bad, has_failed)?;
    output::eprint(&nodes_changed(&update, &hosts));
    Ok(())
}
