//! Ranks that the site's `mpiexec` must start itself.

use regatta_model::shell::quote;

use super::container::ContainerCommands;
use super::{BatchJob, BatchScheduler, RunKind, quote_all, settings};
use crate::launcher_options::{LauncherSyntax, required_options};
use crate::site_profile::Profile;

/// Whether a setting of the site needs an option of PALS, as `CCL_PROCESS_LAUNCHER=pmix` does on
/// Aurora: the processes that agents of `regatta launch` start have no PMIx.
pub(super) fn is_needed(scheduler: BatchScheduler, job: &BatchJob, site: &Profile) -> bool {
    scheduler == BatchScheduler::Pbs
        && RunKind::of(&job.command) == RunKind::Program
        && !required_options(&settings(job, site), LauncherSyntax::Pals).is_empty()
}

/// Commands before the launcher: the environment that all ranks have in common, because PBS has the
/// list of nodes on the first one only, and the options of mpiexec.
pub(super) fn setup(job: &BatchJob) -> String {
    let regatta = quote(&job.regatta);
    let own = quote_all(&job.launch_options);
    let of_map = quote_all(&without_option(&job.launch_options, "--without"));
    format!(
        "\n# The master address and the settings of the site, for the ranks of all nodes.\n\
         eval \"$({regatta} env{own} || echo exit 1)\"\n\
         # Number of ranks, their cores, and what the settings of the site require of mpiexec.\n\
         options=$({regatta} map{of_map} --format pals) || exit\n"
    )
}

/// The command that starts the ranks, each of which becomes one of the job by `regatta launch`.
pub(super) fn command(job: &BatchJob, container: &ContainerCommands) -> String {
    let (regatta, own) = (quote(&job.regatta), quote_all(&job.launch_options));
    let (prefix, words) = (&container.prefix, quote_all(&job.command));
    format!("mpiexec --envall $options {regatta} launch{own} \\\n    --{prefix}{words}")
}

/// Options and their values without those of one option.
fn without_option(words: &[String], option: &str) -> Vec<String> {
    let is_other = |pair: &&[String]| pair.first().is_some_and(|name| name != option);
    words.chunks(2).filter(is_other).flatten().cloned().collect()
}
