//! The recording of a process.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use regatta_events::operation::Source;
use regatta_events::record::raw::{OpenCommunicator, RawEvent, fixed_name};
use regatta_events::record::settings::{self, Level, Settings};
use regatta_events::record::{Recorder, stop_at_exit};

use crate::log::{self, Logger, log};
use crate::model::CommunicatorFacts;

/// How long a communicator waits for another one that creates the files.
const CREATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Communicators of version 3 beyond this number are recorded without their facts.
const LATE_COMMUNICATORS: u32 = 4096;

/// The recording of this process. It is never freed: any thread may be inside of a callback, also while
/// the process exits.
static SESSION: AtomicPtr<Session> = AtomicPtr::new(std::ptr::null_mut());
/// Held while a session is created.
static CREATE: Mutex<()> = Mutex::new(());
/// The process whose session could not be created.
static FAILED: AtomicU32 = AtomicU32::new(0);

/// The recording of a process.
#[derive(Debug)]
pub struct Session {
    /// The recorder.
    pub recorder: Recorder,
    /// What is recorded.
    pub level: Level,
    /// The process. A fork inherits the session, but not the thread that drains its ring.
    pub pid: u32,
    /// Communicators of version 3 whose facts have been recorded, a bit each.
    late: Box<[AtomicU64]>,
}

/// The outcome of [`open`].
#[derive(Debug)]
pub enum Opened {
    /// Nothing is recorded in this process.
    Disabled,
    /// The communicator is not recorded, others are.
    Skipped,
    /// The communicator is recorded.
    Recorded(&'static Session, u32),
}

/// The session of this process, if there is one.
#[inline]
pub fn current() -> Option<&'static Session> {
    // SAFETY: the pointer is NULL or comes from a leaked box.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

/// Opens a communicator. The first one creates the session.
pub fn open(facts: Option<CommunicatorFacts<'_>>, logger: Logger) -> Opened {
    let pid = std::process::id();
    let session = match current().filter(|session| session.pid == pid) {
        Some(session) => session,
        None => match create(pid, logger) {
            Ok(session) => session,
            Err(opened) => return opened,
        },
    };
    let communicator = session.recorder.next_communicator();
    match facts {
        Some(facts) => session.open_communicator(communicator, facts),
        None if communicator < LATE_COMMUNICATORS => {}
        None => session.open_communicator(communicator, CommunicatorFacts::default()),
    }
    Opened::Recorded(session, communicator)
}

fn create(pid: u32, logger: Logger) -> Result<&'static Session, Opened> {
    if FAILED.load(Ordering::Relaxed) == pid {
        return Err(Opened::Disabled);
    }
    let Some(settings) = Settings::from_env(Source::Nccl) else { return Err(Opened::Disabled) };
    let Some(_lock) = lock(CREATE_TIMEOUT) else { return Err(Opened::Skipped) };
    // Another thread may have been faster.
    if let Some(session) = current().filter(|session| session.pid == pid) {
        return Ok(session);
    }
    let folder = settings.folder.display().to_string();
    let recorder = Recorder::start(settings).map_err(|error| {
        FAILED.store(pid, Ordering::Relaxed);
        log(logger, log::Level::Warn, &format!("PROFILER/Regatta: {error}"));
        Opened::Disabled
    })?;
    log(logger, log::Level::Info, &format!("PROFILER/Regatta: recording to {folder}"));
    let late = (0..LATE_COMMUNICATORS / u64::BITS).map(|_| AtomicU64::new(0)).collect();
    let session = Box::new(Session { recorder, level: settings::level(), pid, late });
    let session: &'static Session = Box::leak(session);
    SESSION.store(std::ptr::from_ref(session).cast_mut(), Ordering::Release);
    stop_at_exit(&session.recorder);
    Ok(session)
}

/// A lock with a timeout: a fork may have inherited a lock that no thread releases, and a parallel file
/// system may not respond.
fn lock(timeout: Duration) -> Option<MutexGuard<'static, ()>> {
    let start = Instant::now();
    loop {
        match CREATE.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if start.elapsed() >= timeout => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

impl Session {
    /// Records the facts of a communicator.
    fn open_communicator(&self, communicator: u32, facts: CommunicatorFacts<'_>) {
        let number = |value: i32| u32::try_from(value).unwrap_or(0);
        self.recorder.push(RawEvent::Open(OpenCommunicator {
            communicator,
            id: facts.id,
            ranks: number(facts.ranks),
            nodes: number(facts.nodes),
            rank: number(facts.rank),
            name: fixed_name(facts.name.unwrap_or_default()),
        }));
    }

    /// Records the facts of a communicator that come with its operations, once.
    #[inline]
    pub fn open_late(&self, communicator: u32, facts: CommunicatorFacts<'_>) {
        let (word, bit) = (communicator / u64::BITS, 1 << (communicator % u64::BITS));
        let Some(word) = self.late.get(word as usize) else { return };
        let is_open = word.load(Ordering::Relaxed) & bit != 0;
        if !is_open && word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.open_communicator(communicator, facts);
        }
    }

    /// Closes a communicator. The file is written soon, by the session's thread.
    pub fn close(&self, communicator: u32) {
        self.recorder.push(RawEvent::Close { communicator });
        self.recorder.flush(Duration::ZERO);
    }
}
