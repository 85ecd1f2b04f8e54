//! Nothing outlives a launch, whatever is killed.
//!
//! ```text
//! shell or srun -- warden -- worker -- ranks -- what they started
//! ```
//!
//! The process that was started becomes the warden. It only passes signals on to its one child, the
//! worker, which goes on with the job, and ends what the worker leaves behind: the kernel hands
//! orphans to it. If the warden itself is killed, the worker sees their pipe close, and ends
//! everything below it.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process;
use crate::signals::{self, Set};

/// Why a job cannot be guarded.
#[derive(Debug, thiserror::Error)]
#[error(
    "no process or thread to guard the job: {0}; raise the limits on processes (ulimit -u) and \
     open files (ulimit -n)"
)]
pub struct WardenError(#[from] std::io::Error);

/// How long killed processes are waited for. One that hangs in the kernel may never go.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a worker without a warden ends with.
const KILLED: u8 = 128 + libc::SIGKILL as u8;

/// Signals that the warden passed on and nobody asked for yet.
struct Heard {
    signals: Vec<i32>,
    /// Whether somebody will ask.
    attended: bool,
}

static HEARD: Mutex<Heard> = Mutex::new(Heard { signals: Vec::new(), attended: false });
static GONE: AtomicBool = AtomicBool::new(false);

/// Splits this process in two: the caller goes on as the worker, in a process group of its own, and
/// the process that was started stays behind as the warden, which ends as the worker does. To be
/// called before any thread exists.
pub fn guard() -> Result<(), WardenError> {
    let (line, pen) = std::io::pipe()?;
    // A parent that ignores it would have our children vanish without a status.
    signals::reset(libc::SIGCHLD);
    let taken = Set::of(signals::passed_on().chain([libc::SIGCHLD]));
    let before = taken.block();
    process::adopt_orphans();
    // SAFETY: there is no other thread that could hold a lock which the child then waits for.
    match unsafe { libc::fork() } {
        0 => {
            drop(pen);
            before.set();
            Ok(work(line)?)
        }
        worker if worker > 0 => {
            drop(line);
            exit(watch(worker, pen, &taken))
        }
        _ => {
            let error = std::io::Error::last_os_error();
            before.set();
            Err(error.into())
        }
    }
}

/// The warden's life, until the worker is over: its code.
fn watch(worker: libc::pid_t, mut pen: PipeWriter, taken: &Set) -> u8 {
    loop {
        match taken.wait() {
            Some(libc::SIGCHLD) => {
                if let Some(status) = bury(worker) {
                    process::end_descendants(PATIENCE);
                    return process::ending(status).code();
                }
            }
            Some(signal) => {
                // A worker that is just over takes nothing more.
                let _ = pen.write_all(&[signal as u8]);
                if signal == libc::SIGTSTP {
                    signals::stop();
                }
            }
            None => {}
        }
    }
}

/// Takes leave of every child that is over; the worker's status, if it was among them.
fn bury(worker: libc::pid_t) -> Option<ExitStatus> {
    let mut found = None;
    loop {
        let mut status = 0;
        // SAFETY: it writes to `status` alone.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
            pid if pid == worker => found = Some(ExitStatus::from_raw(status)),
            pid if pid > 0 => {}
            _ => return found,
        }
    }
}

/// Makes this process the worker: out of the terminal's reach, so that Ctrl-C comes once, through
/// the warden, and Ctrl-Z never stops the one that is to stop the ranks.
fn work(line: PipeReader) -> std::io::Result<()> {
    signals::never_stop();
    // SAFETY: a plain system call on this process.
    if unsafe { libc::setpgid(0, 0) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    std::thread::Builder::new().name("warden".to_owned()).spawn(move || listen(line)).map(drop)
}

/// Takes what the warden passes on, and ends everything when there is no warden any more.
fn listen(mut line: PipeReader) {
    let mut signal = [0];
    while line.read_exact(&mut signal).is_ok() {
        hear(i32::from(signal[0]));
    }
    GONE.store(true, Ordering::SeqCst);
    process::end_descendants(PATIENCE);
    exit(KILLED);
}

/// Before anybody attends to signals nothing runs yet, so they end us as they end any process.
fn hear(signal: i32) {
    let mut heard = heard();
    let stays = [libc::SIGTSTP, libc::SIGCONT].contains(&signal);
    if !heard.attended && !stays {
        exit(128u8.saturating_add(signal as u8));
    }
    heard.signals.push(signal);
}

fn heard() -> MutexGuard<'static, Heard> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on somebody asks for the signals that the warden passes on.
pub(crate) fn attend() {
    heard().attended = true;
}

/// The signals that the warden passed on since the last question, in their order.
pub(crate) fn passed_on() -> Vec<i32> {
    std::mem::take(&mut heard().signals)
}

/// Whether there was a warden, and it was killed: the ranks then end because we end them, and no
/// rank is to blame.
pub(crate) fn is_gone() -> bool {
    GONE.load(Ordering::SeqCst)
}

/// Ends at once: what was printed before the fork is in the buffers of both halves.
fn exit(code: u8) -> ! {
    // SAFETY: it does not return.
    unsafe { libc::_exit(i32::from(code)) }
}
