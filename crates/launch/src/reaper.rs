//! Guarantees that no process of a launch outlives it, whichever process is killed or hangs.
//!
//! ```text
//! shell or srun -- original process -- reaper -- worker -- ranks -- their descendants
//! ```
//!
//! The original process forwards signals to the worker, which continues with the job. The reaper
//! between them is a child subreaper: the kernel reparents to it what the worker leaves behind, and
//! it kills that. It also kills a worker whose main loop has stopped. Any two of the three may be
//! killed:
//!
//! - The reaper notices the death of the worker.
//! - The original process, also a subreaper, notices the death of the reaper.
//! - The worker notices the death of the original process: their connection closes.
//!
//! Each then kills all its descendants. The command name of the reaper is not that of the others, so
//! `pkill -9 regatta` does not kill it.

mod hang_detector;

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use regatta_wire::clock;

use self::hang_detector::{HangDetector, Heartbeat};
use crate::forked::{exit, fork};
use crate::killed_agent::KilledAgent;
use crate::signals::{self, SignalSet};
use crate::{process, secret_file};

/// The reaper could not be set up.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot create the reaper process or its thread: {0}; raise the limits on processes \
     (ulimit -u) and open files (ulimit -n)"
)]
pub struct ReaperError(#[from] std::io::Error);

/// When and how the reaper ends a hung worker.
#[derive(Debug, Clone)]
pub struct Watchdog {
    /// The worker is killed when its main loop has not run for this long.
    pub timeout: Duration,
    /// Tells the user.
    pub report: fn(&str),
    /// The agent whose end is reported after the worker or the reaper was killed, once none of its
    /// descendants is left.
    pub agent: Option<KilledAgent>,
}

/// Command name of the reaper.
const NAME: &std::ffi::CStr = c"rgt-reaper";
/// Time for killed processes to die. One that is blocked in the kernel may never do so.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// Exit code of a worker whose original process was killed, and of a hung worker.
const KILLED: u8 = 128 + libc::SIGKILL as u8;
/// Interval of the reaper's checks.
const TICK: Duration = Duration::from_millis(100);
/// Time that the worker has to stop its output on SIGTSTP, before the shell writes to the terminal.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of the worker's heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);

/// Signals that the original process forwarded to this worker.
struct ForwardedSignals {
    signals: Vec<i32>,
    /// Whether signals are queued for [`take_signals`] instead of ending this process.
    queued: bool,
}

/// The worker's end of the heartbeat pipe.
struct HeartbeatSender {
    pipe: PipeWriter,
    /// The last heartbeat; `None` while they are suspended.
    last: Option<Instant>,
}

static FORWARDED: Mutex<ForwardedSignals> =
    Mutex::new(ForwardedSignals { signals: Vec::new(), queued: false });
static HEARTBEATS: Mutex<Option<HeartbeatSender>> = Mutex::new(None);
/// The worker's connection to the original process.
static ORIGINAL: OnceLock<UnixStream> = OnceLock::new();

/// Forks twice. The caller continues as the worker, in its own process group; the original process
/// and the reaper stay behind and exit with the worker's status. Must be called before any thread
/// exists. A worker stays the worker: it runs the jobs of a sweep one after the other.
pub fn fork_worker(watchdog: Watchdog) -> Result<(), ReaperError> {
    if ORIGINAL.get().is_some() {
        return Ok(());
    }
    let (to_worker, to_original) = UnixStream::pair()?;
    to_worker.set_read_timeout(Some(STOP_TIMEOUT))?;
    let (heartbeat_reader, heartbeat_writer) = std::io::pipe()?;
    // Neither a stopped reaper nor a stopped worker blocks the other.
    rustix::io::ioctl_fionbio(&heartbeat_reader, true).map_err(std::io::Error::from)?;
    rustix::io::ioctl_fionbio(&heartbeat_writer, true).map_err(std::io::Error::from)?;
    // With SIGCHLD ignored by our parent, children would be reaped without a status.
    signals::reset(libc::SIGCHLD);
    let handled = SignalSet::of(signals::forwarded().chain([libc::SIGCHLD]));
    let previous = handled.block();
    process::become_subreaper();
    let reaper = fork().inspect_err(|_| previous.set())?;
    if let Some(reaper) = reaper {
        drop(to_original);
        exit(forward_signals(reaper, to_worker, &handled, &watchdog));
    }
    drop(to_worker);
    leave_process_group()?;
    process::become_subreaper();
    if let Some(worker) = fork()? {
        // Dropped, so that a write of the original process fails once the worker has exited.
        drop(to_original);
        let code = run_reaper(worker, heartbeat_reader, &watchdog);
        continue_parent();
        exit(code);
    }
    previous.set();
    leave_process_group()?;
    // SAFETY: a plain library call; the function is async-signal-safe and takes no arguments.
    unsafe { libc::atexit(continue_parent) };
    *heartbeats() = Some(HeartbeatSender { pipe: heartbeat_writer, last: None });
    let _ = ORIGINAL.set(to_original.try_clone()?);
    let read = move || read_signals(to_original);
    Ok(std::thread::Builder::new().name("reaper".to_owned()).spawn(read).map(drop)?)
}

/// Continues the parent, which could not notice the exit of this process while it is stopped.
extern "C" fn continue_parent() {
    // SAFETY: plain system calls. A parent that is not stopped ignores the signal.
    unsafe { libc::kill(libc::getppid(), libc::SIGCONT) };
}

/// Moves this process out of the terminal's process group: Ctrl-C then arrives once, through the
/// original process, and Ctrl-Z does not stop the process that has to stop the ranks.
fn leave_process_group() -> std::io::Result<()> {
    signals::block_stop_signals();
    // SAFETY: a plain system call on this process.
    match unsafe { libc::setpgid(0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The original process: forwards signals until the reaper exits; returns its exit code.
fn forward_signals(
    reaper: libc::pid_t,
    mut worker: UnixStream,
    handled: &SignalSet,
    watchdog: &Watchdog,
) -> u8 {
    loop {
        match handled.wait() {
            Some(libc::SIGCHLD) => {
                if let Some(status) = reap_children(reaper) {
                    // A reaper that exits has reported the end of the worker.
                    clean_up(status.signal().and(Some(watchdog)));
                    return process::rank_exit(status).exit_code();
                }
            }
            Some(signal) => {
                // Fails if the worker has just exited.
                let _ = worker.write_all(&[signal as u8]);
                if signal == libc::SIGTSTP {
                    stop_after_worker(&mut worker);
                }
            }
            None => {}
        }
    }
}

/// Stops this process once the worker has confirmed that it writes no more: the shell then prints its
/// prompt. A SIGCONT that has arrived in the meantime is forwarded instead, because a stop would discard it.
fn stop_after_worker(worker: &mut UnixStream) {
    // A confirmation after the timeout only shortens the next wait.
    let _ = worker.read(&mut [0; 64]);
    match SignalSet::of([libc::SIGCONT]).wait_for(Duration::ZERO) {
        true => drop(worker.write_all(&[libc::SIGCONT as u8])),
        false => signals::stop(),
    }
}

/// Confirms to the original process that this worker has stopped its output on SIGTSTP.
pub(crate) fn confirm_stop() {
    if let Some(mut original) = ORIGINAL.get() {
        let _ = original.write(&[1]);
    }
}

/// The reaper: waits until the worker exits or hangs, and kills what is left; returns the worker's
/// exit code. All other signals that it can handle stay blocked: a scheduler may signal every
/// process of a job.
fn run_reaper(worker: libc::pid_t, mut pipe: PipeReader, watchdog: &Watchdog) -> u8 {
    // SAFETY: the name is a C string; the call copies it.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    let children = SignalSet::of([libc::SIGCHLD]);
    let mut detector = HangDetector::new(watchdog.timeout);
    loop {
        children.wait_for(TICK);
        if let Some(status) = reap_children(worker) {
            let code = process::rank_exit(status).exit_code();
            clean_up((code >= 128).then_some(watchdog));
            return code;
        }
        if detector.is_hung(last_heartbeat(&mut pipe), clock::now()) {
            clean_up(Some(watchdog));
            // Only now: the terminal may block.
            let seconds = watchdog.timeout.as_secs();
            (watchdog.report)(&format!(
                "regatta process {worker} did not respond for {seconds} s (--heartbeat-timeout), \
                 because it was stopped or hung: killed it and its ranks"
            ));
            return KILLED;
        }
    }
}

/// Kills what the worker left behind, and removes its secret file. Reports that a worker was killed.
fn clean_up(killed: Option<&Watchdog>) {
    let none_left = process::kill_and_reap_descendants(KILL_TIMEOUT);
    secret_file::remove_stale(&std::env::temp_dir());
    if let Some(Watchdog { report, agent: Some(agent), .. }) = killed.filter(|_| none_left) {
        report(&agent.to_line());
    }
}

/// The last heartbeat in the pipe, if there is any.
fn last_heartbeat(pipe: &mut PipeReader) -> Option<Heartbeat> {
    let mut last = None;
    let mut bytes = [0; 64];
    while let Ok(count @ 1..) = pipe.read(&mut bytes) {
        last = Some(Heartbeat::of(bytes[count - 1]));
    }
    last
}

/// Reaps every exited child; returns the status of `awaited` if it was among them.
fn reap_children(awaited: libc::pid_t) -> Option<ExitStatus> {
    let mut awaited_status = None;
    loop {
        let mut status = 0;
        // SAFETY: it writes to `status` alone.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
            pid if pid == awaited => awaited_status = Some(ExitStatus::from_raw(status)),
            pid if pid > 0 => {}
            _ => return awaited_status,
        }
    }
}

/// Receives forwarded signals; kills all descendants and exits when the original process dies.
fn read_signals(mut original: UnixStream) {
    let mut signal = [0];
    while original.read_exact(&mut signal).is_ok() {
        on_signal(i32::from(signal[0]));
    }
    process::PARENT_DIED.store(true, Ordering::SeqCst);
    process::kill_and_reap_descendants(KILL_TIMEOUT);
    secret_file::remove_own();
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

fn heartbeats() -> MutexGuard<'static, Option<HeartbeatSender>> {
    HEARTBEATS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the reaper that the main loop of this worker runs. It must do so again within the timeout
/// of the [`Watchdog`], or call [`suspend_heartbeats`].
pub(crate) fn heartbeat() {
    if let Some(sender) = heartbeats().as_mut()
        && sender.last.is_none_or(|last| last.elapsed() >= HEARTBEAT_INTERVAL)
    {
        sender.last = Some(Instant::now());
        // A full pipe means that the reaper is stopped.
        let _ = sender.pipe.write(&[Heartbeat::Running as u8]);
    }
}

/// Tells the reaper that this worker may block for any time, for example because the terminal is
/// stopped. The next poll of signals resumes the heartbeats.
pub fn suspend_heartbeats() {
    if let Some(sender) = heartbeats().as_mut()
        && sender.last.take().is_some()
    {
        let _ = sender.pipe.write(&[Heartbeat::Suspended as u8]);
    }
}
