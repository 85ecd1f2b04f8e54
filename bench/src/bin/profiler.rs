//! Time of each callback of the NCCL profiler plug-in, through its table as NCCL calls it, without GPU:
//! with one thread and with two, while the plug-in's own thread drains the ring. Compared with the same
//! callbacks of an inert plug-in, and with a clock and a queue behind a mutex.
//!
//! Callbacks come in batches that fit into the ring, with pauses, as from a training step. With two
//! threads only batches count that ran at the same time: on a busy machine the scheduler often runs one
//! after the other, and then there is no contention to measure.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::hint::black_box;
use std::mem::zeroed;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nccl_profiler_regatta::abi::v5::{
    CollectiveDetail, Detail, EventDescriptor, Profiler, ncclProfiler_v5,
};
use nccl_profiler_regatta::abi::{KernelChannel, ProxyOp, event, v4};
use nccl_profiler_regatta::callbacks::state;
use nccl_profiler_regatta::session;
use regatta_benchmarks::{RunTimes, TempDir, report, stdout_of};
use regatta_events::clock::host_now;
use regatta_events::record::raw::RawEvent;

/// Calls of each callback in a batch of one thread, and of each of two threads: short batches overlap
/// more often.
const CALLS: usize = 1000;
const CALLS_OF_TWO: usize = 200;
const ROUNDS: usize = 60;
/// Two threads try to overlap this many times.
const MAX_ATTEMPTS: usize = 1500;
/// Time between callbacks that do not come back to back, in nanoseconds.
const PACE: u64 = 1000;
/// The pause in which the ring is drained.
const PAUSE: Duration = Duration::from_millis(10);
const FOLDER: &str = "REGATTA_PROFILE";

/// The callbacks, in the order in which a batch calls them.
const CALLBACKS: [&str; 8] = [
    "startEvent of a collective",
    "stopEvent of a collective",
    "startEvent of a channel",
    "recordEventState of a channel",
    "stopEvent of a channel",
    "startEvent of a transfer",
    "recordEventState of a transfer",
    "stopEvent of a transfer",
];

/// Share of a batch in which the other thread's batch has to run, too.
const MIN_OVERLAP: f64 = 0.9;

/// Times of a batch, a callback each.
type Batch = [Duration; CALLBACKS.len()];

/// A batch, with its start and end on the host clock.
struct Timed {
    batch: Batch,
    start: u64,
    end: u64,
}

impl Timed {
    /// The share of the batch in which another one ran, too.
    fn overlap(&self, other: &Self) -> f64 {
        let both = self.end.min(other.end).saturating_sub(self.start.max(other.start));
        both as f64 / (self.end - self.start).max(1) as f64
    }
}

fn main() -> Result<()> {
    if std::env::var_os(FOLDER).is_some() {
        return recording();
    }
    let (inert, _) = measure_one();
    println!("inert plug-in, ns per callback:");
    print_times(&inert, CALLS);
    let folder = TempDir::new()?;
    let mut command = Command::new(std::env::current_exe()?);
    print!("{}", stdout_of(command.env(FOLDER, folder.path()))?);
    Ok(())
}

/// The callbacks of a plug-in that records, in a process of its own.
fn recording() -> Result<()> {
    let (times, lost) = measure_one();
    println!("recording, 1 thread, {lost} events lost, ns per callback:");
    print_times(&times, CALLS);
    let (ours, mutex) = (sum(&times), RunTimes::of(mutex_batches()));
    report(&format!("profiler callbacks of {CALLS} operations"), ours, &[("a mutex", mutex)])?;
    for (how, pace) in [("back to back", 0), ("one in a microsecond", PACE)] {
        let (times, attempts, lost) = measure_two(pace)?;
        println!("recording, 2 threads, {how}, {lost} events lost, ns per callback:");
        println!("  {} of {attempts} rounds overlapped", times.len() / 2);
        if !times.is_empty() {
            print_times(&times, CALLS_OF_TWO);
        }
    }
    Ok(())
}

fn print_times(batches: &[Batch], calls: usize) {
    for (index, name) in CALLBACKS.iter().enumerate() {
        let times = RunTimes::of(batches.iter().map(|batch| batch[index]).collect());
        let ns = |time: Duration| time.as_secs_f64() * 1e9 / calls as f64;
        let (low, median, high) = (ns(times.low), ns(times.median), ns(times.high));
        println!("  {name}: {median:.0} ({low:.0} to {high:.0})");
    }
}

/// The times of whole batches.
fn sum(batches: &[Batch]) -> RunTimes {
    RunTimes::of(batches.iter().map(|batch| batch.iter().sum()).collect())
}

/// Events lost so far.
fn lost() -> u64 {
    session::current().map_or(0, |session| session.recorder.lost())
}

/// Runs batches in this thread. Returns their times, and the events lost.
fn measure_one() -> (Vec<Batch>, u64) {
    let (before, host) = (lost(), Host::open(CALLS, 0));
    let times = (0..ROUNDS).map(|_| host.timed().batch).collect();
    (times, lost() - before)
}

/// Runs batches in two threads, until enough of them ran at the same time. Returns the times of both
/// threads in those rounds, the number of all rounds, and the events lost.
fn measure_two(pace: u64) -> Result<(Vec<Batch>, usize, u64)> {
    let (before, arrived) = (lost(), AtomicUsize::new(0));
    let mut times = Vec::new();
    let mut attempts = 0;
    while times.len() < 2 * ROUNDS && attempts < MAX_ATTEMPTS {
        let first = attempts;
        let run = || {
            let host = Host::open(CALLS_OF_TWO, pace);
            let round = |round: usize| {
                // Spins: a thread that sleeps at a barrier may wake after the other's batch.
                arrived.fetch_add(1, Ordering::AcqRel);
                while arrived.load(Ordering::Acquire) < 2 * (first + round + 1) {
                    std::hint::spin_loop();
                }
                host.timed()
            };
            (0..ROUNDS).map(round).collect::<Vec<_>>()
        };
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(run);
            (run(), other.join())
        });
        let Ok(other) = other else { bail!("a thread panicked") };
        attempts += ROUNDS;
        let overlapped = one.iter().zip(&other).filter(|(one, other)| {
            one.overlap(other) >= MIN_OVERLAP && other.overlap(one) >= MIN_OVERLAP
        });
        times.extend(overlapped.flat_map(|(one, other)| [one.batch, other.batch]));
    }
    Ok((times, attempts, lost() - before))
}

/// A communicator of a host.
struct Host {
    table: &'static Profiler,
    context: *mut c_void,
    calls: usize,
    /// Nanoseconds between callbacks; 0: none.
    pace: u64,
    collective: EventDescriptor,
    channel: EventDescriptor,
    transfer: EventDescriptor,
}

impl Host {
    fn open(calls: usize, pace: u64) -> Self {
        let table = black_box(&ncclProfiler_v5);
        let (mut context, mut mask) = (null_mut(), 0);
        let name = c"benchmark".as_ptr();
        // SAFETY: all pointers are valid, and zero is valid for all fields of events.
        unsafe {
            (table.init)(&mut context, 1, &mut mask, name, 1, 8, 0, None);
            let base = v4::CollectiveDetail {
                sequence: 1,
                function: c"AllReduce".as_ptr(),
                send_buffer: null_mut(),
                receive_buffer: null_mut(),
                count: 1 << 20,
                root: 0,
                dtype: c"ncclBfloat16".as_ptr(),
                channels: 1,
                warps: 16,
                algorithm: c"RING".as_ptr(),
                protocol: c"SIMPLE".as_ptr(),
            };
            let descriptor = |event_type: u64, detail: Detail| EventDescriptor {
                event_type,
                detail,
                ..zeroed()
            };
            let as_in_v4 = |event_type: u64, v4: v4::Detail| descriptor(event_type, Detail { v4 });
            let collective = CollectiveDetail { base, parent_group: null_mut() };
            let kernel_channel = KernelChannel { channel_id: 0, p_timer: host_now() };
            let pid = std::process::id() as i32;
            let proxy_op = ProxyOp { pid, is_send: 1, ..zeroed() };
            Self {
                table,
                context,
                calls,
                pace,
                collective: descriptor(event::COLLECTIVE, Detail { collective }),
                channel: as_in_v4(event::KERNEL_CHANNEL, v4::Detail { kernel_channel }),
                transfer: as_in_v4(event::PROXY_OP, v4::Detail { proxy_op }),
            }
        }
    }

    /// A batch, and a pause in which the ring is drained.
    fn timed(&self) -> Timed {
        let start = host_now();
        let batch = self.batch();
        let end = host_now();
        std::thread::sleep(PAUSE);
        Timed { batch, start, end }
    }

    /// Calls each callback for many operations.
    fn batch(&self) -> Batch {
        let mut operations = vec![null_mut(); self.calls];
        let mut channels = vec![null_mut(); self.calls];
        let mut transfers = vec![null_mut(); self.calls];
        [
            self.start(&self.collective, &[], &mut operations),
            self.stop(&operations),
            self.start(&self.channel, &operations, &mut channels),
            self.record(&channels, state::CHANNEL_STOP, host_now()),
            self.stop(&channels),
            self.start(&self.transfer, &operations, &mut transfers),
            self.record(&transfers, state::TRANSFER_IN_PROGRESS, 0),
            self.stop(&transfers),
        ]
    }

    /// Calls a callback many times. With a pace each call is timed on its own, less the clock's time.
    fn run(&self, mut call: impl FnMut(usize)) -> Duration {
        if self.pace == 0 {
            let start = Instant::now();
            (0..self.calls).for_each(call);
            return start.elapsed();
        }
        let (mut total, mut clock) = (0, 0);
        for index in 0..self.calls {
            let before = host_now();
            let start = host_now();
            call(index);
            let end = host_now();
            total += end - start;
            clock += start - before;
            while host_now() < end + self.pace {
                std::hint::spin_loop();
            }
        }
        Duration::from_nanos(total.saturating_sub(clock))
    }

    fn start(
        &self,
        event: &EventDescriptor,
        parents: &[*mut c_void],
        handles: &mut [*mut c_void],
    ) -> Duration {
        let mut event = *event;
        self.run(|index| {
            event.parent = parents.get(index).copied().unwrap_or(null_mut());
            // SAFETY: all pointers are valid.
            unsafe { (self.table.start_event)(self.context, &mut handles[index], &event) };
        })
    }

    fn record(&self, handles: &[*mut c_void], state: i32, value: u64) -> Duration {
        self.run(|index| {
            // SAFETY: all pointers are valid.
            unsafe { (self.table.record_event_state)(handles[index], state, &value) };
        })
    }

    fn stop(&self, handles: &[*mut c_void]) -> Duration {
        self.run(|index| {
            // SAFETY: a handle of this table.
            unsafe { (self.table.stop_event)(handles[index]) };
        })
    }
}

/// The same number of events into a queue behind an uncontended mutex.
fn mutex_batches() -> Vec<Duration> {
    let queue: Mutex<VecDeque<RawEvent>> = Mutex::new(VecDeque::with_capacity(1 << 16));
    let one = |_| {
        let start = Instant::now();
        // Five of the eight callbacks record an event.
        for operation in 0..5 * CALLS as u64 {
            let event = RawEvent::NetworkStart { operation, time: host_now() };
            if let Ok(mut queue) = queue.lock() {
                queue.push_back(black_box(event));
            }
        }
        let time = start.elapsed();
        if let Ok(mut queue) = queue.lock() {
            queue.clear();
        }
        time
    };
    (0..ROUNDS).map(one).collect()
}
