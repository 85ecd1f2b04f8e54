//! What the parent process has the ranks train.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use regatta_model::run_folder::CONFIG;
use regatta_train::config::Resolved;
use serde::{Deserialize, Serialize};

use crate::args::train::TrainArgs;
use crate::output;

/// A training or a smoke test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainTask {
    /// The configuration, and where it comes from.
    pub resolved: Resolved,
    /// Run folder, if the command line names it.
    run_dir: Option<OsString>,
    /// Launch folder of a later launch in the run folder.
    relaunch_dir: Option<OsString>,
    /// The run is resumed (`--resume`), so that it must have a checkpoint, unless
    /// `checkpoint.resume=never` starts it over.
    pub resume: bool,
    /// Run the smoke test.
    pub smoke: bool,
    /// Rank 0 prints JSON, if it reports the events itself.
    pub json: bool,
}

impl TrainTask {
    pub fn new(resolved: &Resolved, args: &TrainArgs) -> Result<Self> {
        Ok(Self {
            resolved: with_absolute_paths(resolved)?,
            run_dir: args.resume.as_ref().or(args.run_dir.as_ref()).map(Into::into),
            relaunch_dir: None,
            resume: args.resume.is_some(),
            smoke: args.smoke,
            json: args.json,
        })
    }

    pub fn run_dir(&self) -> Option<PathBuf> {
        self.run_dir.as_ref().map(PathBuf::from)
    }

    /// Sets the launch folder.
    pub fn set_launch_dir(&mut self, launch_dir: &Path) {
        let is_relaunch = self.run_dir.as_ref().is_some_and(|run_dir| run_dir != launch_dir);
        self.relaunch_dir = is_relaunch.then(|| launch_dir.into());
    }

    /// Saves the configuration when the training starts: in the folder of a later launch, which shows
    /// that it was not refused; and in the run folder, for `--resume` and for commands that look up the
    /// run's checkpoints, but that of a run without steps left stays unchanged.
    pub fn save_config(&self, run_dir: &Path, has_steps_left: bool) -> Result<()> {
        let relaunch_dir = self.relaunch_dir.as_ref().map(Path::new);
        for folder in relaunch_dir.into_iter().chain(has_steps_left.then_some(run_dir)) {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            output::write_file(&folder.join(CONFIG), &self.resolved.to_toml())?;
        }
        Ok(())
    }
}

/// The configuration with an absolute checkpoint folder, valid in any working directory.
fn with_absolute_paths(resolved: &Resolved) -> Result<Resolved> {
    let mut resolved = resolved.clone();
    let checkpoints = &mut resolved.config.checkpoint.dir;
    if !checkpoints.is_empty() {
        let absolute = std::path::absolute(&checkpoints);
        let absolute = absolute.with_context(|| format!("checkpoint.dir {checkpoints}"))?;
        *checkpoints = absolute.to_string_lossy().into_owned();
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use regatta_launch::channel;

    use super::*;
    use crate::cli::tests::parse_train;
    use crate::commands::train::options;

    #[test]
    fn ranks_receive_the_resolved_configuration() {
        let words = "gpt2 --smoke --run-dir r lr=3e-4 dropout=0.1 data.source='a\"b' \
                     checkpoint.dir=c tp=2";
        let args = parse_train(words).unwrap();
        let resolved = options::resolve(&args).unwrap();
        let task = TrainTask::new(&resolved, &args).unwrap();
        let received: TrainTask = channel::decode(&channel::encode(&task).unwrap()).unwrap();
        assert_eq!(received, task);
        let mut config = received.resolved.config.clone();
        assert_eq!(config.checkpoint.dir, std::path::absolute("c").unwrap().to_str().unwrap());
        config.checkpoint.dir = "c".to_owned();
        assert_eq!(config, resolved.config);
        let name = received.resolved.name.as_str();
        assert_eq!((name, received.run_dir()), ("gpt2", Some("r".into())));
    }
}
