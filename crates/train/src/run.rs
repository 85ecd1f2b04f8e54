//! A run's folder: where what the run has kept is.

use std::path::{Path, PathBuf};

use crate::config::Config;

/// The configuration of a run, in its folder.
pub const CONFIG: &str = "config.toml";

/// The folder of a run's checkpoints, in the run's, unless `checkpoint.folder` says otherwise.
pub const CHECKPOINTS: &str = "checkpoints";

/// Where the checkpoints of a run with this configuration are.
pub fn checkpoints(config: &Config, run: &Path) -> PathBuf {
    match config.checkpoint.folder.as_str() {
        "" => run.join(CHECKPOINTS),
        folder => PathBuf::from(folder),
    }
}

/// Where checkpoints are that a folder stands for: as the run's configuration in it says, in the
/// folder of checkpoints in it, or in itself.
pub fn kept_in(folder: &Path) -> PathBuf {
    let path = folder.join(CONFIG);
    let text = std::fs::read_to_string(&path).ok();
    // One that cannot be understood, such as a newer version's, is no reason not to look.
    let config = text.and_then(|text| Config::from_toml(&path, &text).ok());
    let told = config.map(|config| checkpoints(&config, folder)).filter(|told| told.is_dir());
    let inside = Some(folder.join(CHECKPOINTS)).filter(|inside| inside.is_dir());
    told.or(inside).unwrap_or_else(|| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_says_where_checkpoints_are() {
        let name = format!("regatta-run-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let (run, other) = (folder.join("run"), folder.join("other"));
        std::fs::create_dir_all(&run).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        assert_eq!(kept_in(&run), run);
        std::fs::create_dir(run.join(CHECKPOINTS)).unwrap();
        assert_eq!(kept_in(&run), run.join(CHECKPOINTS));
        let text = format!("[checkpoint]\nfolder = {other:?}\n");
        std::fs::write(run.join(CONFIG), text).unwrap();
        assert_eq!(kept_in(&run), other);
        std::fs::write(run.join(CONFIG), "[checkpoint]\nplace = 3\n").unwrap();
        assert_eq!(kept_in(&run), run.join(CHECKPOINTS));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
