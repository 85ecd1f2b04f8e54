//! Where compiled kernels and tuned GEMM algorithms are kept between runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io, process};

/// `$REGATTA_CACHE_DIR`, `$XDG_CACHE_HOME/regatta` or `~/.cache/regatta`; `None` if none of these
/// variables is set. The directory need not exist.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    cache_dir_of(|variable| std::env::var_os(variable))
}

/// The cache directory, with a lookup of environment variables. A relative directory is ignored, as the
/// XDG specification demands: it would depend on the working directory.
fn cache_dir_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let directory = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    directory("REGATTA_CACHE_DIR")
        .or_else(|| Some(directory("XDG_CACHE_HOME")?.join("regatta")))
        .or_else(|| Some(directory("HOME")?.join(".cache/regatta")))
}

/// Replaces a file atomically: readers see the old or the new contents.
pub(crate) fn replace_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let temporary = path.with_extension(format!("{}.tmp", process::id()));
    let written = fs::write(&temporary, contents).and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_dir_with(variables: &[(&str, &str)]) -> Option<PathBuf> {
        cache_dir_of(|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, path)| path.into())
        })
    }

    #[test]
    fn more_specific_variables_win() {
        let variables =
            [("HOME", "/home/ada"), ("XDG_CACHE_HOME", "/cache"), ("REGATTA_CACHE_DIR", "/fast")];
        let expected = ["/home/ada/.cache/regatta", "/cache/regatta", "/fast"];
        for (count, path) in (1..).zip(expected) {
            assert_eq!(cache_dir_with(&variables[..count]), Some(path.into()));
        }
        assert_eq!(cache_dir_with(&[]), None);
    }

    #[test]
    fn relative_and_empty_directories_are_ignored() {
        let variables = [("REGATTA_CACHE_DIR", "cache"), ("XDG_CACHE_HOME", ""), ("HOME", "/root")];
        assert_eq!(cache_dir_with(&variables), Some("/root/.cache/regatta".into()));
    }
}
