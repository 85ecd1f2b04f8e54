//! What the child processes do.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use nccl_profiler_regatta::abi::event;
use regatta_events::status;

use crate::files::{event_files, read};
use crate::host::{self, Host};
use crate::plan::{PlannedCommunicator, expected, plan};
use crate::plugin::{CollectiveCall, MESSAGES, Opaque, Plugin};

/// Environment variable with the child's task.
pub const VARIABLE: &str = "REGATTA_TEST_FAKE_HOST";
/// Events that are pushed at once to overflow the ring.
pub const BURST: u64 = 200_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The task of a child process.
#[derive(Debug)]
pub struct Child {
    pub scenario: Scenario,
    pub seed: u64,
    pub version: u32,
    /// Whether steps are recorded, too.
    pub steps: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Runs the plan and exits.
    Run,
    /// Runs the plan, and is killed when that is in the file.
    Kill,
    /// Closes the library between two communicators.
    Reopen,
    /// Forks between two communicators; the fork records, too.
    Fork,
    /// Nothing may be recorded.
    Disabled,
    /// The folder cannot be created.
    NoFolder,
    /// The disk is full for a while.
    DiskFull,
    /// More events than the ring holds.
    Overflow,
}

const SCENARIOS: [Scenario; 8] = [
    Scenario::Run,
    Scenario::Kill,
    Scenario::Reopen,
    Scenario::Fork,
    Scenario::Disabled,
    Scenario::NoFolder,
    Scenario::DiskFull,
    Scenario::Overflow,
];

impl Child {
    pub fn to_text(&self) -> String {
        let Self { scenario, seed, version, steps } = self;
        format!("{} {seed} {version} {}", *scenario as usize, u8::from(*steps))
    }

    pub fn from_env() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let [scenario, seed, version, steps] = numbers[..] else { panic!("{text}") };
        let scenario = SCENARIOS[scenario as usize];
        Some(Self { scenario, seed, version: version as u32, steps: steps == 1 })
    }

    pub fn plan(&self) -> Vec<PlannedCommunicator> {
        let communicators = if self.scenario == Scenario::Run { 3 } else { 2 };
        plan(self.seed, self.version, communicators)
    }

    pub fn run(&self) {
        match self.scenario {
            Scenario::Run => self.run_plan(),
            Scenario::Kill => self.kill(),
            Scenario::Reopen => self.reopen(),
            Scenario::Fork => self.fork(),
            Scenario::Disabled => self.disabled(),
            Scenario::NoFolder => self.no_folder(),
            Scenario::DiskFull => self.disk_full(),
            Scenario::Overflow => self.overflow(),
        }
    }

    fn open(&self, plugin: &Plugin, planned: &PlannedCommunicator) -> Opaque {
        let (context, mask) = plugin.init(planned.id, planned.name, planned.ranks, planned.rank);
        assert_ne!(context, Opaque(null_mut()));
        let always = event::COLLECTIVE | event::P2P | event::KERNEL_CHANNEL | event::PROXY_OP;
        assert_eq!(mask & always, always);
        assert_eq!(mask & event::PROXY_STEP != 0, self.steps);
        assert_eq!(mask & event::COLLECTIVE_API != 0, self.version >= 5);
        assert_eq!(mask & event::COPY_ENGINE_COLLECTIVE != 0, self.version >= 6);
        context
    }

    fn host<'a>(&self, plugin: &'a Plugin) -> Host<'a> {
        Host { plugin, seed: self.seed, steps: self.steps }
    }

    fn run_plan(&self) {
        let (plugin, plan) = (Plugin::open(self.version), self.plan());
        let contexts: Vec<_> = plan.iter().map(|c| self.open(&plugin, c)).collect();
        host::run(&self.host(&plugin), &plan, &contexts);
        contexts.iter().for_each(|context| plugin.finalize(*context));
        if self.version > 3 {
            let messages = MESSAGES.lock().unwrap();
            // One message, of the level INFO.
            assert!(matches!(&messages[..], [(3, text)] if text.contains("recording to")));
        }
    }

    fn kill(&self) {
        let (plugin, plan) = (Plugin::open(self.version), self.plan());
        let contexts: Vec<_> = plan.iter().map(|c| self.open(&plugin, c)).collect();
        host::run(&self.host(&plugin), &plan, &contexts);
        plugin.finalize(contexts[0]);
        let ended = expected(&plan, self.version, self.steps);
        let ended = ended.iter().filter(|operation| operation.timing == "Device").count();
        wait(|| {
            let folder = std::env::var_os("REGATTA_PROFILE").unwrap();
            let content = read(&event_files(folder.as_ref())[0]);
            content.recorded().iter().filter(|o| o.timing == "Device").count() >= ended
        });
        // SAFETY: ends this process.
        unsafe { libc::raise(libc::SIGKILL) };
    }

    fn reopen(&self) {
        for planned in self.plan() {
            let plugin = Plugin::open(self.version);
            let context = self.open(&plugin, &planned);
            host::run(&self.host(&plugin), &[planned], &[context]);
            plugin.finalize(context);
            plugin.close();
        }
    }

    fn fork(&self) {
        let (plugin, plan) = (Plugin::open(self.version), self.plan());
        let first = self.open(&plugin, &plan[0]);
        host::run(&self.host(&plugin), &plan[..1], &[first]);
        // SAFETY: the fork calls only the plug-in, and exits.
        match unsafe { libc::fork() } {
            0 => {
                let (context, _) = plugin.init(1, None, 2, 0);
                enqueue(&plugin, context);
                // SAFETY: exit handlers run, as in a program that forks and returns.
                unsafe { libc::exit(0) };
            }
            fork => {
                let mut status = -1;
                // SAFETY: `status` is valid for writes.
                assert_eq!(unsafe { libc::waitpid(fork, &mut status, 0) }, fork);
                assert_eq!(status, 0);
            }
        }
        let second = self.open(&plugin, &plan[1]);
        host::run(&self.host(&plugin), &plan[1..], &[second]);
    }

    fn disabled(&self) {
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let plugin = Plugin::open(self.version);
        assert_eq!(plugin.init(1, None, 2, 0), (Opaque(null_mut()), 0));
        assert_eq!(enqueue(&plugin, Opaque(null_mut())), Opaque(null_mut()));
        plugin.finalize(Opaque(null_mut()));
        assert_eq!(threads(), before);
        assert!(MESSAGES.lock().unwrap().is_empty());
    }

    fn no_folder(&self) {
        let plugin = Plugin::open(self.version);
        for _ in 0..2 {
            assert_eq!(plugin.init(1, None, 2, 0), (Opaque(null_mut()), 0));
        }
        assert_eq!(enqueue(&plugin, Opaque(null_mut())), Opaque(null_mut()));
        let messages = MESSAGES.lock().unwrap();
        match self.version {
            3 => assert!(messages.is_empty(), "version 3 has no logger"),
            _ => assert!(matches!(&messages[..], [(2, text)] if text.contains("REGATTA_PROFILE"))),
        }
    }

    fn disk_full(&self) {
        let (plugin, plan) = (Plugin::open(self.version), self.plan());
        // Not even the communicators can be written.
        limit_file_size(64);
        let contexts: Vec<_> = plan.iter().map(|c| self.open(&plugin, c)).collect();
        host::run(&self.host(&plugin), &plan[..1], &contexts[..1]);
        plugin.finalize(contexts[0]);
        wait_for_drain();
        limit_file_size(libc::RLIM_INFINITY);
        host::run(&self.host(&plugin), &plan[1..], &contexts[1..]);
    }

    fn overflow(&self) {
        let plugin = Plugin::open(self.version);
        let (context, _) = plugin.init(1, None, 2, 0);
        let folder = std::env::var_os("REGATTA_PROFILE").unwrap();
        let file = event_files(folder.as_ref())[0].with_extension(status::EXTENSION);
        wait(|| {
            for _ in 0..BURST {
                enqueue(&plugin, context);
            }
            let status = std::fs::read(&file).unwrap();
            status::decode(&status).is_some_and(|status| status.lost > 0)
        });
        // The exit does not wait long for a ring that is full.
        wait_for_drain();
    }
}

/// A collective that never runs.
fn enqueue(plugin: &Plugin, context: Opaque) -> Opaque {
    let call = CollectiveCall {
        comm_hash: 1,
        comm_name: None,
        rank: 0,
        sequence: 0,
        function: Some(c"AllReduce"),
        count: 1,
        root: 0,
        dtype: Some(c"ncclFloat32"),
        channels: 1,
        algorithm: Some(c"RING"),
        protocol: Some(c"LL"),
    };
    plugin.collective(context, Opaque(null_mut()), Opaque(null_mut()), &call)
}

/// Writes beyond the size fail, as on a full disk; a thread that does not block SIGXFSZ is killed.
fn limit_file_size(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is valid for reads; the signal's default disposition is restored.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

/// Waits until the ring was drained and what was requested is written: the thread that does it sleeps
/// between two rounds.
fn wait_for_drain() {
    let before = drain_sleeps();
    wait(|| drain_sleeps() > before + 10);
}

/// How many times the thread that writes events has slept.
fn drain_sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let read = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default()
    };
    let status = tasks.map(read).find(|status| status.contains("regatta-events")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

fn wait(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "timed out");
        std::thread::sleep(Duration::from_millis(5));
    }
}
