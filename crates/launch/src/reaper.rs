//! Guarantees that no process of a launch outlives it, whichever process is killed.
//!
//! ```text
//! shell or srun -- reaper -- worker -- ranks -- their descendants
//! ```
//!
//! The original process becomes the reaper, a child subreaper. It forwards signals to its only
//! child, the worker, which continues with the job, and kills what the worker leaves behind: the
//! kernel reparents orphans to it. If the reaper itself is killed, the worker sees their pipe close
//! and kills all its descendants.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process;
use crate::signals::{self, SignalSet};

/// The reaper could not be set up.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot create the reaper process or its thread: {0}; raise the limits on processes \
     (ulimit -u) and open files (ulimit -n)"
)]
pub struct ReaperError(#[from] std::io::Error);

/// Time for killed processes to die. One that is blocked in the kernel may never do so.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// Exit code of a worker whose reaper was killed.
const KILLED: u8 = 128 + libc::SIGKILL as u8;

/// Signals that the reaper forwarded to this worker.
struct ForwardedSignals {
    signals: Vec<i32>,
    /// Whether signals are queued for [`take_signals`] instead of ending this process.
    queued: bool,
}

static FORWARDED: Mutex<ForwardedSignals> =
    Mutex::new(ForwardedSignals { signals: Vec::new(), queued: false });
static REAPER_DIED: AtomicBool = AtomicBool::new(false);

/// Forks. The caller continues as the worker, in its own process group; the original process stays
/// behind as the reaper and exits with the worker's status. Must be called before any thread
/// exists.
pub fn fork_worker() -> Result<(), ReaperError> {
    let (reader, writer) = std::io::pipe()?;
    // With SIGCHLD ignored by our parent, children would be reaped without a status.
    signals::reset(libc::SIGCHLD);
    let handled = SignalSet::of(signals::forwarded().chain([libc::SIGCHLD]));
    let previous = handled.block();
    process::become_subreaper();
    // SAFETY: no other thread exists that could hold a lock in the child.
    match unsafe { libc::fork() } {
        0 => {
            drop(writer);
            previous.set();
            Ok(become_worker(reader)?)
        }
        worker if worker > 0 => {
            drop(reader);
            exit(run_reaper(worker, writer, &handled))
        }
        _ => {
            let error = std::io::Error::last_os_error();
            previous.set();
            Err(error.into())
        }
    }
}

/// Forwards signals until the worker exits; returns its exit code.
fn run_reaper(worker: libc::pid_t, mut pipe: PipeWriter, handled: &SignalSet) -> u8 {
    loop {
        match handled.wait() {
            Some(libc::SIGCHLD) => {
                if let Some(status) = reap_children(worker) {
                    process::kill_and_reap_descendants(KILL_TIMEOUT);
                    return process::rank_exit(status).exit_code();
                }
            }
            Some(signal) => {
                // Fails if the worker has just exited.
                let _ = pipe.write_all(&[signal as u8]);
                if signal == libc::SIGTSTP {
                    signals::stop();
                }
            }
            None => {}
        }
    }
}

/// Reaps every exited child; returns the worker's status if it was among them.
fn reap_children(worker: libc::pid_t) -> Option<ExitStatus> {
    let mut worker_status = None;
    loop {
        let mut status = 0;
        // SAFETY: it writes to `status` alone.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
            pid if pid == worker => worker_status = Some(ExitStatus::from_raw(status)),
            pid if pid > 0 => {}
            _ => return worker_status,
        }
    }
}

/// Moves this process out of the terminal's process group: Ctrl-C then arrives once, through the
/// reaper, and Ctrl-Z does not stop the process that has to stop the ranks.
fn become_worker(pipe: PipeReader) -> std::io::Result<()> {
    signals::block_stop_signals();
    // SAFETY: a plain system call on this process.
    if unsafe { libc::setpgid(0, 0) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let read = move || read_signals(pipe);
    std::thread::Builder::new().name("reaper".to_owned()).spawn(read).map(drop)
}

/// Receives forwarded signals; kills all descendants and exits when the reaper dies.
fn read_signals(mut pipe: PipeReader) {
    let mut signal = [0];
    while pipe.read_exact(&mut signal).is_ok() {
        on_signal(i32::from(signal[0]));
    }
    REAPER_DIED.store(true, Ordering::SeqCst);
    process::kill_and_reap_descendants(KILL_TIMEOUT);
    exit(KILLED);
}

/// Until signals are queued no rank runs, so a signal ends this process as by default.
fn on_signal(signal: i32) {
    let mut forwarded = forwarded();
    if !forwarded.queued && !signals::is_job_control(signal) {
        exit(128u8.saturating_add(signal as u8));
    }
    forwarded.signals.push(signal);
}

fn forwarded() -> MutexGuard<'static, ForwardedSignals> {
    FORWARDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on forwarded signals are queued for [`take_signals`].
pub(crate) fn queue_signals() {
    forwarded().queued = true;
}

/// Takes the forwarded signals since the last call, in order.
pub(crate) fn take_signals() -> Vec<i32> {
    std::mem::take(&mut forwarded().signals)
}

/// Whether the reaper was killed. This process then kills its ranks, and their exits are not
/// failures.
pub(crate) fn has_died() -> bool {
    REAPER_DIED.load(Ordering::SeqCst)
}

/// Exits without flushing: both processes hold a copy of the buffers from before the fork.
fn exit(code: u8) -> ! {
    // SAFETY: it does not return.
    unsafe { libc::_exit(i32::from(code)) }
}
