//! Everything that is printed or written. Many ranks may print at once, so a text goes out in one
//! piece; a closed pipe or a full disk is an error like any other.

use std::io::Write;
use std::path::Path;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice, adapter};
use anyhow::{Context, Result};
use regatta_model::Warning;

use crate::cli::{FAINT, WARNING};

/// Prints a text.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    let text = shown_on(&out, text);
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output")
}

/// Prints to standard error. If that fails too, nobody is left to tell.
pub fn complain(text: &str) {
    let mut out = std::io::stderr();
    let _ = out.write_all(shown_on(&out, text).as_bytes());
}

/// Prints what the user should know, to standard error.
pub fn note(warning: &Warning) {
    let Warning { what, hint, .. } = warning;
    complain(&format!("{WARNING}note:{WARNING:#} {what}\n      {FAINT}{hint}{FAINT:#}\n"));
}

/// The text as a stream shows it, without colours where it has none. A stream that strips the
/// colours itself would write the pieces between them one by one.
fn shown_on<S: RawStream>(stream: &S, text: &str) -> String {
    match AutoStream::choice(stream) {
        ColorChoice::Never => adapter::strip_str(text).to_string(),
        _ => text.to_owned(),
    }
}

/// Writes a file whole or not at all; `-` is standard output. What is no ordinary file, such as
/// /dev/null or a pipe, is written to directly: renaming would put a file in its place.
pub fn write_file(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return print(text);
    }
    let shown = path.display().to_string();
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return std::fs::write(path, text).with_context(|| shown);
    }
    // A link stays a link to the file behind it.
    let real = std::fs::canonicalize(path);
    let path = real.as_deref().unwrap_or(path);
    // Ranks of several nodes may write the same file: each has a part of its own.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{host}.{}.part", std::process::id()));
    let part = Path::new(&part);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(part, path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(part))).with_context(|| shown)
}
