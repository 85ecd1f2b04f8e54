//! Layout of a run folder.

use std::path::{Path, PathBuf};

use regatta_model::run_folder::{CHECKPOINTS, CONFIG};

use crate::config::{Config, MAX_CONFIG_BYTES};
use crate::regular_file;

/// The checkpoint directory of a run.
pub fn checkpoint_dir(config: &Config, run: &Path) -> PathBuf {
    match config.checkpoint.dir.as_str() {
        "" => run.join(CHECKPOINTS),
        folder => PathBuf::from(folder),
    }
}

/// The configuration of the run in a folder. That of another version may not parse.
pub fn saved_config(run: &Path) -> Option<Config> {
    let path = run.join(CONFIG);
    let text = regular_file::read_to_string(&path, MAX_CONFIG_BYTES).ok();
    text.filter(|text| !text.is_empty()).and_then(|text| Config::from_toml(&path, &text).ok())
}

/// The checkpoint directory for a path given by the user: that of the run folder at the path, or the path
/// itself.
pub fn find_checkpoint_dir(folder: &Path) -> PathBuf {
    let configured = saved_config(folder).map(|config| checkpoint_dir(&config, folder));
    let configured = configured.filter(|dir| dir.is_dir());
    let inside = Some(folder.join(CHECKPOINTS)).filter(|dir| dir.is_dir());
    configured.or(inside).unwrap_or_else(|| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn the_checkpoint_dir_follows_the_configuration_of_the_run() {
        let folder = TempDir::new();
        let (run, other) = (folder.0.join("run"), folder.0.join("other"));
        std::fs::create_dir_all(&run).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        assert_eq!(find_checkpoint_dir(&run), run);
        std::fs::create_dir(run.join(CHECKPOINTS)).unwrap();
        assert_eq!(find_checkpoint_dir(&run), run.join(CHECKPOINTS));
        let text = format!("[checkpoint]\ndir = {other:?}\n");
        std::fs::write(run.join(CONFIG), text).unwrap();
        assert_eq!(find_checkpoint_dir(&run), other);
        std::fs::write(run.join(CONFIG), "[checkpoint]\nplace = 3\n").unwrap();
        assert_eq!(find_checkpoint_dir(&run), run.join(CHECKPOINTS));
    }
}
