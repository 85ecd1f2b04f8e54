//! Commands that launch their own ranks: `regatta launch` runs this program again as each rank.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use regatta_launch::secret_file;

use crate::cli::{Cli, Command, LaunchArgs};
use crate::options::SourceArgs;
use crate::plan::Discovery;

/// The ranks to launch.
#[derive(Debug, Default)]
pub struct LaunchRequest<'a> {
    /// Total number of ranks.
    pub ranks: Option<u32>,
    /// Ranks per node.
    pub ranks_per_node: Option<u32>,
    /// Number of nodes.
    pub nodes: Option<u32>,
    /// Hostfile with the nodes.
    pub hostfile: Option<&'a Path>,
    /// Run folder.
    pub run_dir: PathBuf,
    /// Whether each rank gets a GPU.
    pub gpus: bool,
    /// The user's options for `regatta launch` (`--launch`).
    pub user_options: Option<&'a str>,
    /// Further options for `regatta launch`.
    pub options: Vec<String>,
}

/// Whether this process is a rank of a job. A rank without the job's secret is an error.
pub fn is_rank(command: &str) -> Result<bool> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let is_rank = is_set("RANK") && is_set("WORLD_SIZE");
    if is_rank && !is_set(secret_file::VARIABLE) {
        bail!(
            "RANK and WORLD_SIZE are set, but {0} is not: run `regatta {command}` once, outside of \
             ranks, and it launches them; or set {0} in all ranks to a file that only you can read \
             and that holds 64 hexadecimal digits",
            secret_file::VARIABLE
        );
    }
    Ok(is_rank)
}

impl LaunchRequest<'_> {
    /// The arguments of `regatta launch` that run this program, with its own arguments, as each
    /// rank; with `--events` if rank 0 reports events to this process.
    pub fn launch_args(&self) -> Result<Box<LaunchArgs>> {
        let mut words: Vec<OsString> =
            ["regatta", "launch", "--run-dir"].map(OsString::from).to_vec();
        words.push(self.run_dir.clone().into());
        let mut option = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                words.extend([name.into(), value]);
            }
        };
        let count = |count: Option<u32>| count.map(|n| n.to_string().into());
        option("--ranks-per-node", count(self.ranks_per_node));
        option("--nodes", count(self.nodes));
        option("--hostfile", self.hostfile.map(|file| file.as_os_str().to_owned()));
        option("--ranks", count(self.ranks));
        if !self.gpus {
            words.push("--no-gpus".into());
        }
        // An explicit rank count may exceed the cores.
        words.push("--oversubscribe".into());
        words.extend(self.options.iter().map(OsString::from));
        words.extend(split_options(self.user_options)?);
        words.push("--".into());
        words.push(std::env::current_exe().context("path of this program")?.into());
        words.extend(std::env::args_os().skip(1));
        // A process that the scheduler started as a rank becomes that rank, and has no parent to
        // report events to.
        let discovery = Discovery::run(&SourceArgs::default(), 0);
        if !discovery.is_ok_and(|discovery| discovery.allocation.me.is_some()) {
            words.push("--events".into());
        }
        parse(words)
    }
}

fn split_options(launch: Option<&str>) -> Result<Vec<OsString>> {
    let words = shlex::split(launch.unwrap_or_default()).context("--launch: unclosed quote")?;
    Ok(words.into_iter().map(OsString::from).collect())
}

fn parse(words: Vec<OsString>) -> Result<Box<LaunchArgs>> {
    match Cli::try_parse_from(words).map(|cli| cli.command) {
        Ok(Command::Launch(args)) => Ok(args),
        Ok(_) => bail!("--launch accepts only options of `regatta launch`"),
        Err(error) => {
            let error = error.to_string();
            let first_line = error.lines().next().unwrap_or_default();
            bail!("--launch: {}", first_line.trim_start_matches("error: "))
        }
    }
}

/// Whether the user's options for `regatta launch` set the number of ranks or the nodes.
pub fn sets_rank_count(launch: Option<&str>) -> Result<bool> {
    let mut words: Vec<OsString> = ["regatta", "launch"].map(OsString::from).to_vec();
    words.extend(split_options(launch)?);
    words.extend(["--".into(), "regatta".into()]);
    let LaunchArgs { source, job, .. } = *parse(words)?;
    let nodes = source.nodes.is_some() || source.hostfile.is_some();
    Ok(nodes || job.ranks.is_some() || job.ranks_per_node.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_ranks_or_nodes_set_the_rank_count() {
        for launch in ["-N2", "--nodes=2", "--hostfile hosts", "-n 4", "--ranks-per-node 2"] {
            assert!(sets_rank_count(Some(launch)).unwrap(), "{launch}");
        }
        for launch in ["--start-timeout 60", "--without NCCL_ALGO --grace 1", ""] {
            assert!(!sets_rank_count(Some(launch)).unwrap(), "{launch}");
        }
        assert!(sets_rank_count(Some("'")).is_err());
        assert!(!sets_rank_count(None).unwrap());
    }
}
