//! Finds event files and status files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use regatta_model::run_folder::COMMS;

/// The files with an extension in run folders and folders, and those that are named, in order.
pub fn find(paths: &[PathBuf], extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            // Named files are not searched: a wrong name is an error when it is read.
            std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
            found.push(path.clone());
            continue;
        }
        let inner = path.join(COMMS);
        let folder = if inner.is_dir() { inner } else { path.clone() };
        let files = files_of(&folder, extension)
            .with_context(|| format!("cannot read {}", folder.display()))?;
        if files.is_empty() {
            bail!(
                "{} has no files *.{extension}: run the job with `regatta launch --profile`, or set \
                 NCCL_PROFILER_PLUGIN to the path of regatta's profiler plug-in and REGATTA_PROFILE to a \
                 folder that all nodes share",
                folder.display()
            );
        }
        found.extend(files);
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn files_of(folder: &Path, extension: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    Ok(found)
}
