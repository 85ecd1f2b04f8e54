//! How a command starts ranks of its own: by `regatta launch`, each rank this program again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use regatta_launch::secret_file;

use crate::cli::{Cli, Command, LaunchArgs};
use crate::options::SourceArgs;
use crate::plan::Survey;

/// Which ranks are wanted.
#[derive(Debug, Default)]
pub struct Wanted<'a> {
    /// In all.
    pub ranks: Option<u32>,
    /// On each node.
    pub ranks_per_node: Option<u32>,
    /// On so many nodes.
    pub nodes: Option<u32>,
    /// On the nodes of this file.
    pub hostfile: Option<&'a Path>,
    /// Where the run is kept.
    pub folder: PathBuf,
    /// Whether ranks are placed by GPUs.
    pub gpus: bool,
    /// The user's own options for `regatta launch`.
    pub launch: Option<&'a str>,
    /// Ours.
    pub more: Vec<String>,
}

/// Whether this process is a rank of a job. One that has nothing to know the others by is an error.
pub fn is_rank(command: &str) -> Result<bool> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let in_a_job = is_set("RANK") && is_set("WORLD_SIZE");
    if in_a_job && !is_set(secret_file::VARIABLE) {
        bail!(
            "this is a rank by RANK and WORLD_SIZE, but has nothing to know the others by: start \
             `regatta {command}` once, outside of ranks, and it starts them; or give all ranks a \
             {} that only you can read, with 64 hexadecimal digits",
            secret_file::VARIABLE
        );
    }
    Ok(in_a_job)
}

impl Wanted<'_> {
    /// The options of `regatta launch` that start these ranks, each with this program's own
    /// arguments, and `--events` if the first is to tell this process what happens.
    pub fn launch_args(&self) -> Result<Box<LaunchArgs>> {
        let mut words: Vec<OsString> =
            ["regatta", "launch", "--run-dir"].map(OsString::from).to_vec();
        words.push(self.folder.clone().into());
        let mut option = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                words.extend([name.into(), value]);
            }
        };
        let number = |number: Option<u32>| number.map(|n| n.to_string().into());
        option("--ranks-per-node", number(self.ranks_per_node));
        option("--nodes", number(self.nodes));
        option("--hostfile", self.hostfile.map(|file| file.as_os_str().to_owned()));
        option("--ranks", number(self.ranks));
        if !self.gpus {
            words.push("--no-gpus".into());
        }
        // Whoever asks for more ranks than cores gets them.
        words.push("--oversubscribe".into());
        words.extend(self.more.iter().map(OsString::from));
        words.extend(more_words(self.launch)?);
        words.push("--".into());
        words.push(std::env::current_exe().context("where this program is")?.into());
        words.extend(std::env::args_os().skip(1));
        // Who is a rank already, by its scheduler, becomes that rank: nobody hears its events.
        let surroundings = Survey::take(&SourceArgs::default(), 0);
        if !surroundings.is_ok_and(|survey| survey.allocation.me.is_some()) {
            words.push("--events".into());
        }
        parsed(words)
    }
}

/// The user's own options for `regatta launch`.
fn more_words(launch: Option<&str>) -> Result<Vec<OsString>> {
    let more = launch.unwrap_or_default();
    let more = shlex::split(more).context("--launch: a quote is not closed")?;
    Ok(more.into_iter().map(OsString::from).collect())
}

fn parsed(words: Vec<OsString>) -> Result<Box<LaunchArgs>> {
    match Cli::try_parse_from(words).map(|cli| cli.command) {
        Ok(Command::Launch(args)) => Ok(args),
        Ok(_) => bail!("--launch takes options of `regatta launch` only"),
        Err(error) => {
            let error = error.to_string();
            let what = error.lines().next().unwrap_or_default();
            bail!("--launch: {}", what.trim_start_matches("error: "))
        }
    }
}

/// Whether the user's own options for `regatta launch` say how many ranks there are, or where.
pub fn says_how_many(launch: Option<&str>) -> Result<bool> {
    let mut words: Vec<OsString> = ["regatta", "launch"].map(OsString::from).to_vec();
    words.extend(more_words(launch)?);
    words.extend(["--".into(), "regatta".into()]);
    let LaunchArgs { source, job, .. } = *parsed(words)?;
    let nodes = source.nodes.is_some() || source.hostfile.is_some();
    Ok(nodes || job.ranks.is_some() || job.ranks_per_node.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_says_how_many_ranks_there_are_or_nothing_of_it() {
        for launch in ["-N2", "--nodes=2", "--hostfile hosts", "-n 4", "--ranks-per-node 2"] {
            assert!(says_how_many(Some(launch)).unwrap(), "{launch}");
        }
        for launch in ["--start-within 60", "--without NCCL_ALGO --grace 1", ""] {
            assert!(!says_how_many(Some(launch)).unwrap(), "{launch}");
        }
        assert!(says_how_many(Some("'")).is_err());
        assert!(!says_how_many(None).unwrap());
    }
}
