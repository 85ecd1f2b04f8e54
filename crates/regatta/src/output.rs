//! Standard output, standard error and files. Many ranks may print at once, so each text is written
//! with a single write; a closed pipe or a full disk is an error like any other.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anstream::{AutoStream, ColorChoice, adapter};
use anyhow::{Context, Result, anyhow};
use regatta_comm::bootstrap::host_name;
use regatta_draw::escapes::keep_colours;
use regatta_launch::run_folder::file_size_hint;
use regatta_model::Warning;
use rustix::fs::{Access, access, fstat};
use rustix::io::Errno;
use serde::Serialize;

use crate::cli::{ERROR, FAINT, WARNING};

/// Prints a text to standard output.
pub fn print(text: &str) -> Result<()> {
    Stream::Stdout.write(text).context("standard output")
}

/// Prints a text that may contain any characters to standard output.
pub fn print_raw(text: &str) -> Result<()> {
    Stream::Stdout.write_raw(text).context("standard output")
}

/// Prints a report as JSON or as text.
pub fn print_report(
    json: bool,
    to_json: impl FnOnce() -> Result<String>,
    to_text: impl FnOnce() -> String,
) -> Result<()> {
    print(&if json { to_json()? } else { to_text() })
}

/// A value as a line of JSON.
pub fn json_line(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}

/// A value as indented JSON.
pub fn json_lines(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Prints a text to standard error. A failure to do so cannot be reported anywhere.
pub fn eprint(text: &str) {
    let _ = Stream::Stderr.write(text);
}

/// Whether the reader closed the pipe early (`regatta map | head`), which is not an error.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|e| e.downcast_ref::<io::Error>());
    io.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether both standard streams are the same terminal, pipe or file.
pub fn is_one_file() -> bool {
    let [out, err] = [fstat(std::io::stdout()), fstat(std::io::stderr())];
    matches!((out, err), (Ok(out), Ok(err)) if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino))
}

/// A standard stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    /// Writes a text with a single write, without colours if the stream does not support them.
    pub fn write(self, text: &str) -> io::Result<()> {
        match self.has_color() {
            true => self.write_raw(text),
            // A stream that strips colours itself would write the spans between them one by one.
            false => self.write_raw(&adapter::strip_str(text).to_string()),
        }
    }

    /// Writes a text as it is with a single write.
    pub fn write_raw(self, text: &str) -> io::Result<()> {
        // The lock is released before a write to a stream, whose reader may block.
        if let Some(file) = capture().as_mut() {
            return if self == Self::Stderr { write_and_flush(file, text) } else { Ok(()) };
        }
        match self {
            Self::Stdout => write_and_flush(std::io::stdout(), text),
            Self::Stderr => write_and_flush(std::io::stderr(), text),
        }
    }

    /// Whether the stream supports colours.
    pub fn has_color(self) -> bool {
        let choice = match self {
            Self::Stdout => AutoStream::choice(&std::io::stdout()),
            Self::Stderr => AutoStream::choice(&std::io::stderr()),
        };
        choice != ColorChoice::Never && capture().is_none()
    }

    /// Whether the stream is a terminal.
    pub fn is_terminal(self) -> bool {
        let is_terminal = match self {
            Self::Stdout => std::io::stdout().is_terminal(),
            Self::Stderr => std::io::stderr().is_terminal(),
        };
        is_terminal && capture().is_none()
    }

    /// Text of another program for this stream: sanitized if it is a terminal.
    pub fn sanitized(self, text: &str) -> Cow<'_, str> {
        if self.is_terminal() { keep_colours(text).into() } else { text.into() }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdout => "standard output",
            Self::Stderr => "standard error",
        })
    }
}

/// The file of an [`OutputCapture`].
static CAPTURE: Mutex<Option<File>> = Mutex::new(None);

/// Sends what is written to standard error to a file, and to standard output nowhere, until it is dropped.
pub struct OutputCapture(());

impl OutputCapture {
    /// Creates the file.
    pub fn to(path: &Path) -> Result<Self> {
        let file = File::create(path);
        *capture() = Some(file.with_context(|| format!("cannot write {}", path.display()))?);
        Ok(Self(()))
    }
}

impl Drop for OutputCapture {
    fn drop(&mut self) {
        *capture() = None;
    }
}

/// No code panics while it holds the lock.
fn capture() -> MutexGuard<'static, Option<File>> {
    CAPTURE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_and_flush(mut out: impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The error and its causes in one line. Causes that an error already spells out are not repeated.
pub fn one_line(error: &anyhow::Error) -> String {
    let add = |text: String, cause: String| match text.contains(&cause) {
        true => text,
        false => format!("{text}: {cause}"),
    };
    let text = error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), add);
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Prints an error to standard error.
pub fn error(text: &str) {
    eprint(&format!("{ERROR}error:{ERROR:#} {text}\n"));
}

/// Whether a line that a rank of this program wrote to standard error is such an error.
pub fn is_error(line: &str) -> bool {
    adapter::strip_str(line).to_string().starts_with("error: ")
}

/// Prints a note to standard error.
pub fn note(text: &str) {
    eprint(&format!("{WARNING}note:{WARNING:#} {text}\n"));
}

/// Prints a warning and its hint to standard error.
pub fn warn(warning: &Warning) {
    let Warning { message, hint, .. } = warning;
    note(&format!("{message}\n      {FAINT}{hint}{FAINT:#}"));
}

/// Writes a file atomically; `-` is standard output. Special files, such as /dev/null or a pipe, are
/// written to directly, because a rename would replace them.
pub fn write_file(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return print(text);
    }
    let context = format!("cannot write {}", path.display());
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return std::fs::write(path, text).context(context);
    }
    // Write through a symbolic link instead of replacing it.
    let real = std::fs::canonicalize(path);
    let path = real.as_deref().unwrap_or(path);
    // Ranks on several nodes may write the same file: the temporary name has host and PID.
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.{}.part", host_name(), std::process::id()));
    let part = Path::new(&part);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(part, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(part);
        match file_size_hint(&error) {
            "" => anyhow::Error::new(error).context(context),
            hint => anyhow!("{context}: {error}{hint}"),
        }
    })
}

/// Checks that [`write_file`] can create the file of an option.
pub fn check_writable(option: &str, path: &Path) -> Result<()> {
    let real = std::fs::canonicalize(path);
    let real = real.as_deref().unwrap_or(path);
    let checked = match std::fs::metadata(real) {
        _ if path == Path::new("-") => Ok(()),
        Ok(found) if found.is_dir() => Err(Errno::ISDIR),
        Ok(found) if !found.is_file() => Ok(()),
        _ => access(real.with_file_name("."), Access::WRITE_OK | Access::EXEC_OK),
    };
    checked.with_context(|| format!("{option} {}: cannot create the file", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_text_goes_to_the_file_without_colours() {
        let path = std::env::temp_dir().join(format!("regatta-capture-{}", std::process::id()));
        let captured = OutputCapture::to(&path).unwrap();
        note("a note");
        error("a failure");
        print("no output").unwrap();
        drop(captured);
        note("after the end");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(text.contains("note: a note\n"), "{text}");
        assert!(text.lines().any(|line| line.ends_with(" a failure") && is_error(line)), "{text}");
        assert!(!is_error("note: a note"));
        assert!(!text.contains("no output") && !text.contains("after the end"), "{text}");
    }
}
