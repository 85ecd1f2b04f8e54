//! The site that a job is submitted to, and its scheduler.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow};
use regatta_discover::Env;
use regatta_launch::config::JobSource;
use regatta_launch::subprocess::output_of;
use regatta_place::batch::BatchScheduler;
use regatta_place::site_profile::{Profile, SiteEvidence};

use regatta_launch::discovery::{Discovery, site_profiles};

/// Limit on the query of Slurm's cluster name.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The site.
pub struct Site {
    /// Its profile; without settings if the site is not known.
    pub profile: Profile,
    /// Whether the profile was named or identified.
    pub is_known: bool,
}

impl Site {
    /// The named site, or the one that this machine, usually a login node, belongs to.
    pub fn detect(name: Option<&str>, files: &[PathBuf]) -> Result<Self> {
        let profiles = site_profiles(files)?;
        if let Some(name) = name {
            return Ok(Self { profile: profiles.named(name)?.clone(), is_known: true });
        }
        let discovery = Discovery::run(&JobSource { standalone: true, ..JobSource::default() }, 0)?;
        let found = profiles.identify(&SiteEvidence {
            cluster: slurm_cluster_name(&discovery.env),
            domains: Vec::new(),
            env: discovery.env.as_map().clone(),
            machine: &discovery.machines[0],
        });
        Ok(match found {
            Some(found) => Self { profile: found.profile, is_known: true },
            None => {
                let title = "this cluster".to_owned();
                Self { profile: Profile { title, ..Profile::default() }, is_known: false }
            }
        })
    }

    /// The scheduler: the given one, else the site's, else the one that is installed.
    pub fn scheduler(&self, given: Option<BatchScheduler>) -> Result<BatchScheduler> {
        choose(given, self.profile.batch.scheduler, is_installed).ok_or_else(|| {
            anyhow!(
                "no scheduler found: sbatch, qsub and flux are not in PATH; run this on a login \
                 node, or name a site with --system, or --scheduler, and print the script with \
                 --dry-run"
            )
        })
    }
}

fn choose(
    given: Option<BatchScheduler>,
    of_site: Option<BatchScheduler>,
    is_installed: impl Fn(BatchScheduler) -> bool,
) -> Option<BatchScheduler> {
    let installed = || BatchScheduler::ALL.into_iter().find(|scheduler| is_installed(*scheduler));
    given.or(of_site).or_else(installed)
}

/// Whether the program that submits to a scheduler is in PATH.
fn is_installed(scheduler: BatchScheduler) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |folder: PathBuf| folder.join(scheduler.program()).is_file();
    std::env::split_paths(&path).filter(|folder| folder != Path::new("")).any(has)
}

/// The cluster name in Slurm's configuration: outside a job, no variable has it.
fn slurm_cluster_name(env: &Env) -> Option<String> {
    if env.get("SLURM_CLUSTER_NAME").is_some() || !is_installed(BatchScheduler::Slurm) {
        return None;
    }
    cluster_name(&output_of("scontrol", &["show", "config"], QUERY_TIMEOUT)?)
}

/// The cluster name in the output of `scontrol show config`.
fn cluster_name(config: &str) -> Option<String> {
    let lines = config.lines().filter_map(|line| line.split_once('='));
    let mut names = lines.filter(|(key, _)| key.trim() == "ClusterName");
    names.next().map(|(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_is_given_or_the_sites_or_installed() {
        use BatchScheduler::{Flux, Pbs, Slurm};
        let none = |_| false;
        assert_eq!(choose(Some(Flux), Some(Pbs), none), Some(Flux));
        // LLNL's systems have an sbatch that calls Flux.
        assert_eq!(choose(None, Some(Flux), |scheduler| scheduler == Slurm), Some(Flux));
        assert_eq!(choose(None, None, |scheduler| scheduler != Slurm), Some(Pbs));
        assert_eq!(choose(None, None, none), None);
    }

    #[test]
    fn cluster_name_is_in_slurms_configuration() {
        let config = "Configuration data as of 2026-11-17\nBootTime = 2026\nClusterName             = lumi\nX = ClusterName = y\n";
        assert_eq!(cluster_name(config).as_deref(), Some("lumi"));
        assert_eq!(cluster_name(""), None);
    }
}
