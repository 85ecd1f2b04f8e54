//! Which folder a run may have: a new one, one in which nothing was trained yet, or its own.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use regatta_train::checkpoint;
use regatta_train::config::{Config, KEYS, Resume};
use regatta_train::metrics::{JsonLines, METRICS_FILE};
use regatta_train::run;

/// Locked by rank 0 of whoever trains in a run's folder.
const LOCK: &str = "train.lock";

/// What is in a folder that a run is to have.
#[derive(Debug, Default, PartialEq)]
struct There {
    /// Something was started there before.
    started: bool,
    /// Steps were done.
    trained: bool,
    /// There are checkpoints.
    kept: bool,
    /// The configuration of what is there, if it can be understood.
    config: Option<Config>,
}

/// How a folder may be used.
#[derive(Debug, PartialEq)]
enum Use {
    /// It is new.
    New,
    /// Beside what was started there before: that has trained nothing, or goes on now.
    Again,
}

/// Where a launch in a run's folder is kept, whose name is `id`. A run that is there already goes on
/// if it is the same, and what has trained nothing is in nobody's way.
pub fn launch_folder(folder: &Path, config: &Config, id: &str) -> Result<PathBuf> {
    match decide(&look(folder, config), config) {
        Ok(Use::New) => Ok(folder.to_owned()),
        Ok(Use::Again) => Ok(again(folder, id)),
        Err(why) => {
            let folder = folder.display();
            bail!(
                "{folder} {why}: --resume {folder} goes on with it, --run-dir takes another folder"
            )
        }
    }
}

/// Where ranks' logs are if those of others are there already.
pub fn again(folder: &Path, id: &str) -> PathBuf {
    folder.join("again").join(id)
}

fn decide(there: &There, config: &Config) -> Result<Use, String> {
    let resume = &config.checkpoint.resume;
    match (there.trained || there.kept, there.kept && *resume == Resume::Auto) {
        (false, _) if there.started => Ok(Use::Again),
        (false, _) => Ok(Use::New),
        (true, false) => Err("has a run already".to_owned()),
        (true, true) => match there.config.as_ref().map(|then| difference(then, config)) {
            None => Err("has a run already, whose configuration cannot be read".to_owned()),
            Some(None) => Ok(Use::Again),
            Some(Some(difference)) => Err(format!("has a run already, and {difference}")),
        },
    }
}

/// The first key that tells two runs apart. What a run first began from does not.
fn difference(then: &Config, now: &Config) -> Option<String> {
    let keys = KEYS.iter().filter(|key| key.full() != "checkpoint.resume");
    let mut all = keys.map(|key| (key.full(), key.get(then), key.get(now)));
    let (key, then, now) = all.find(|(_, then, now)| then != now)?;
    Some(format!("{key} is {then} there, {now} here"))
}

fn look(folder: &Path, config: &Config) -> There {
    let path = folder.join(run::CONFIG);
    let text = std::fs::read_to_string(&path).ok();
    let then = text.as_ref().and_then(|text| Config::from_toml(&path, text).ok());
    let told = run::checkpoints(then.as_ref().unwrap_or(config), folder);
    let steps = JsonLines::read(&folder.join(METRICS_FILE), u64::MAX).unwrap_or_default();
    There {
        started: text.is_some() || folder.join("events.jsonl").exists(),
        trained: !steps.is_empty(),
        kept: checkpoint::any(&told).unwrap_or(false),
        config: then,
    }
}

/// Takes a run's folder for as long as the result lives, if nobody else has it. Where the file
/// system cannot lock, all may have it.
pub fn hold(folder: &Path) -> Result<Option<File>> {
    let path = folder.join(LOCK);
    let shown = || path.display().to_string();
    std::fs::create_dir_all(folder).with_context(shown)?;
    let options = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = options.with_context(shown)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let owner = std::fs::read_to_string(&path).unwrap_or_default();
            let (owner, folder) = (owner.trim(), folder.display());
            bail!("another job ({owner}) trains in {folder}: end it, or choose another --run-dir");
        }
        Err(TryLockError::Error(_)) => return Ok(None),
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let text = format!("process {} on {host}\n", std::process::id());
    // Only for people to read: no reason to fail.
    let _ = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use regatta_train::config;

    use super::*;

    fn config(words: &[&str]) -> Config {
        config::resolve(None, words).unwrap().config
    }

    #[test]
    fn a_folder_is_used_again_by_its_own_run_or_if_nothing_was_trained() {
        let auto = config(&["steps=7"]);
        let same = || Some(config(&["steps=7", "resume=never"]));
        let new = There::default();
        assert_eq!(decide(&new, &auto), Ok(Use::New));
        let failed = There { started: true, config: same(), ..There::default() };
        assert_eq!(decide(&failed, &auto), Ok(Use::Again));
        let run = There { started: true, trained: true, kept: true, config: same() };
        assert_eq!(decide(&run, &auto), Ok(Use::Again));
        let told = |there: &There, words: &[&str]| decide(there, &config(words)).unwrap_err();
        assert!(told(&run, &["steps=8"]).ends_with("and train.steps is 7 there, 8 here"));
        for resume in ["resume=never", "resume=elsewhere"] {
            assert_eq!(told(&run, &["steps=7", resume]), "has a run already");
        }
        let lost = There { kept: false, config: same(), ..run };
        assert_eq!(told(&lost, &["steps=7"]), "has a run already", "nothing to go on from");
        let foreign = There { kept: true, config: None, ..lost };
        assert!(told(&foreign, &["steps=7"]).contains("cannot be read"));
    }
}
