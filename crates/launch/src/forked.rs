//! Forks. A lock that another thread holds at that moment stays locked in the child forever, so a
//! process that forks has one thread. Vendor libraries start threads (NVML, CUDA): code that loads
//! them before a fork runs in a child of its own.

use std::io::{Error, Read, Result, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The number of threads of this process; 1 if it is unknown.
pub fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}

/// Forks; returns the PID of the child in the parent. No other thread may exist.
pub(crate) fn fork() -> Result<Option<libc::pid_t>> {
    debug_assert_eq!(thread_count(), 1, "a process with several threads forks");
    // SAFETY: no other thread exists that could hold a lock in the child.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        child if child > 0 => Ok(Some(child)),
        _ => Err(Error::last_os_error()),
    }
}

/// Exits without flushing: all processes hold a copy of the buffers from before the fork.
pub(crate) fn exit(code: u8) -> ! {
    // SAFETY: it does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Runs `work` in a forked child and returns its output; a crash of the child is an error. No other
/// thread may exist.
pub fn run_in_child(work: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>> {
    let (mut reader, mut writer) = std::io::pipe()?;
    let Some(child) = fork()? else {
        drop(reader);
        let written = catch_unwind(AssertUnwindSafe(|| writer.write_all(&work())));
        exit(u8::from(!matches!(written, Ok(Ok(())))));
    };
    drop(writer);
    let mut output = Vec::new();
    let read = reader.read_to_end(&mut output);
    let mut status = 0;
    // SAFETY: the function writes one integer.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
        let error = Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // With SIGCHLD ignored, children have no status.
            Some(libc::ECHILD) => break,
            _ => return Err(error),
        }
    }
    read?;
    match status {
        0 => Ok(output),
        _ => Err(Error::other(format!("the child process failed with wait status {status:#x}"))),
    }
}

/// Runs `work`, which may load vendor libraries, in a child process, or here if this process has several
/// threads already: those libraries start threads, and a launcher must still be able to fork.
pub fn isolated<T: Serialize + DeserializeOwned>(work: impl FnOnce() -> T) -> Result<T> {
    if thread_count() > 1 {
        return Ok(work());
    }
    // An empty output is no JSON.
    let output = run_in_child(|| serde_json::to_vec(&work()).unwrap_or_default())?;
    Ok(serde_json::from_slice(&output)?)
}
