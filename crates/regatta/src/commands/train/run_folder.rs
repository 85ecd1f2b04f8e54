//! Checks and locks the run folder. It must be new, without training progress, or hold the same run.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use regatta_model::run_folder::{CONFIG, EVENTS, RELAUNCH, TRAIN_LOCK};
use regatta_observe::read::lock::{self, LockState};
use regatta_observe::read::{lock_files, progress};
use regatta_train::checkpoint;
use regatta_train::config::{Config, KEYS, Resume};
use regatta_train::lock_file::{self, LockResult, lock_file};
use regatta_train::run_paths;
use regatta_train::training::TrainError;
use rustix::fs::{Access, access};

/// Contents of a run folder.
#[derive(Debug, Default, PartialEq)]
struct RunFolderContents {
    /// A launch used the folder before.
    launched: bool,
    /// There are metrics of steps.
    has_steps: bool,
    has_checkpoints: bool,
    /// The configuration of the run, if it can be parsed.
    config: Option<Config>,
}

/// Fails if a run to be resumed has no checkpoint: it would start over and lose its metrics.
pub fn check_resumable(folder: &Path, config: &Config) -> Result<()> {
    let checkpoints = run_paths::checkpoint_dir(config, folder);
    if access(folder, Access::WRITE_OK).is_err() {
        let folder = folder.display();
        bail!(
            "--resume {folder}: the run folder is not writable; start a new run from its checkpoint: \
             regatta train {folder}/{} checkpoint.resume={folder}",
            CONFIG
        );
    }
    match config.checkpoint.resume == Resume::Auto && !checkpoint::has_checkpoint(&checkpoints)? {
        true => Err(TrainError::no_checkpoint(&checkpoints).into()),
        false => Ok(()),
    }
}

impl RunFolderContents {
    /// Whether no run used the folder before.
    fn is_new(&self) -> bool {
        !self.launched && !self.has_steps && self.config.is_none()
    }
}

/// How a launch uses the run folder.
#[derive(Debug, PartialEq)]
enum RunFolderUse {
    New,
    /// An earlier launch used it: it trained no step, or its run is resumed.
    Relaunch,
}

/// The launch folder of launch `id` in a run folder. Fails if the folder holds another run, or one
/// that cannot be resumed.
pub fn launch_folder(folder: &Path, config: &Config, id: &str) -> Result<PathBuf> {
    let contents = read_contents(folder, config);
    let checkpoints = run_paths::checkpoint_dir(config, folder);
    if contents.is_new() && contents.has_checkpoints && !checkpoints.starts_with(folder) {
        let dir = checkpoints.display();
        bail!(
            "checkpoint.dir {dir} already has checkpoints of another run: choose another \
             checkpoint.dir; to start from these checkpoints, set checkpoint.resume={dir} as well"
        );
    }
    match check(&contents, config) {
        Ok(RunFolderUse::New) => Ok(folder.to_owned()),
        Ok(RunFolderUse::Relaunch) => Ok(relaunch_folder(folder, id)),
        Err(why) => {
            let folder = folder.display();
            let fix = match contents.has_checkpoints {
                true => format!("resume it with --resume {folder}, or choose another --run-dir"),
                false => "it has no checkpoint to resume from; choose another --run-dir".to_owned(),
            };
            bail!("{folder} already contains a run{why}: {fix}")
        }
    }
}

/// The launch folder of a later launch, next to the logs of earlier ones.
pub fn relaunch_folder(folder: &Path, id: &str) -> PathBuf {
    folder.join(RELAUNCH).join(id)
}

/// The error is the reason why an existing run is not resumed, possibly empty.
fn check(contents: &RunFolderContents, config: &Config) -> Result<RunFolderUse, String> {
    let resumes = contents.has_checkpoints && config.checkpoint.resume == Resume::Auto;
    match (contents.has_steps || contents.has_checkpoints, resumes) {
        (false, _) if contents.launched => Ok(RunFolderUse::Relaunch),
        (false, _) => Ok(RunFolderUse::New),
        (true, false) => Err(String::new()),
        (true, true) => match contents.config.as_ref().map(|saved| difference(saved, config)) {
            None => Err(" whose configuration cannot be read".to_owned()),
            Some(None) => Ok(RunFolderUse::Relaunch),
            Some(Some(difference)) => Err(format!(" with {difference}")),
        },
    }
}

/// The first key in which two runs differ, except where they start from.
fn difference(saved: &Config, new: &Config) -> Option<String> {
    let keys = KEYS.iter().filter(|key| key.full_name() != "checkpoint.resume");
    let mut values = keys.map(|key| (key.full_name(), key.get(saved), key.get(new)));
    let (key, saved, new) = values.find(|(_, saved, new)| saved != new)?;
    Some(format!("{key}={saved}, not {new}"))
}

fn read_contents(folder: &Path, config: &Config) -> RunFolderContents {
    let saved = run_paths::saved_config(folder);
    let checkpoints = run_paths::checkpoint_dir(saved.as_ref().unwrap_or(config), folder);
    RunFolderContents {
        launched: [CONFIG, EVENTS].iter().any(|name| folder.join(name).exists()),
        has_steps: progress(folder).is_some(),
        has_checkpoints: checkpoint::has_checkpoint(&checkpoints).unwrap_or(false),
        config: saved,
    }
}

/// Locks a run folder until the result is dropped. Returns `None` if the file system does not
/// support locks.
pub fn lock(folder: &Path) -> Result<Option<File>> {
    let path = folder.join(TRAIN_LOCK);
    let shown = || path.display().to_string();
    std::fs::create_dir_all(folder).with_context(shown)?;
    match lock_file(&path).with_context(shown)? {
        LockResult::Locked(file) => Ok(Some(file)),
        LockResult::Unsupported => Ok(None),
        LockResult::HeldBy(owner) => Err(in_use(folder, &owner)),
    }
}

/// Fails if a job uses a run folder. Only a hint: rank 0 takes the lock.
pub fn check_not_in_use(folder: &Path) -> Result<()> {
    let is_held = |file: &Path| lock::state(file) == LockState::Held;
    let lock_path = folder.join(TRAIN_LOCK);
    if is_held(&lock_path) {
        return Err(in_use(folder, &lock_file::owner(&lock_path)));
    }
    // The launcher of a job whose rank 0 has not started yet.
    match lock_files(folder).iter().any(|file| is_held(file)) {
        true => Err(in_use(folder, "")),
        false => Ok(()),
    }
}

/// The error of a run folder that another job uses; its owner may be unknown.
fn in_use(folder: &Path, owner: &str) -> anyhow::Error {
    let folder = folder.display();
    let owner = if owner.is_empty() { String::new() } else { format!(" ({owner})") };
    anyhow!(
        "{folder} is in use by another job{owner}: wait for it or stop it, or start a new run with \
         another --run-dir"
    )
}

#[cfg(test)]
mod tests {
    use regatta_train::config;

    use super::*;

    fn config(words: &[&str]) -> Config {
        config::resolve(None, words).unwrap().config
    }

    #[test]
    fn a_run_folder_is_reused_by_the_same_run_or_without_progress() {
        let auto = config(&["steps=7"]);
        let same = || Some(config(&["steps=7", "resume=never"]));
        assert_eq!(check(&RunFolderContents::default(), &auto), Ok(RunFolderUse::New));
        let failed = RunFolderContents { launched: true, config: same(), ..Default::default() };
        assert_eq!(check(&failed, &auto), Ok(RunFolderUse::Relaunch));
        let run = RunFolderContents { has_steps: true, has_checkpoints: true, ..failed };
        assert_eq!(check(&run, &auto), Ok(RunFolderUse::Relaunch));
        let error = |contents: &_, words: &[&str]| check(contents, &config(words)).unwrap_err();
        assert_eq!(error(&run, &["steps=8"]), " with train.steps=7, not 8");
        for resume in ["resume=never", "resume=other"] {
            assert_eq!(error(&run, &["steps=7", resume]), "");
        }
        let no_checkpoints = RunFolderContents { has_checkpoints: false, config: same(), ..run };
        assert_eq!(error(&no_checkpoints, &["steps=7"]), "");
        let unreadable =
            RunFolderContents { has_checkpoints: true, config: None, ..no_checkpoints };
        assert!(error(&unreadable, &["steps=7"]).contains("cannot be read"));
    }

    #[test]
    fn a_run_folder_is_in_use_while_its_launcher_or_rank_0_holds_a_lock() {
        let name = format!("regatta-in-use-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let launch = relaunch_folder(&folder, "1");
        std::fs::create_dir_all(&launch).unwrap();
        let is_refused_with = |part: &str| {
            let error = check_not_in_use(&folder).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check_not_in_use(&folder).unwrap();
        let launcher = File::create(launch.join(EVENTS)).unwrap();
        launcher.lock().unwrap();
        is_refused_with(" is in use by another job: wait for it or stop it");
        let rank_0 = lock(&folder).unwrap();
        is_refused_with(&format!(" by another job (process {} on ", std::process::id()));
        drop((launcher, rank_0));
        check_not_in_use(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
