//! Channels of real rank processes. This test program is also the program of the ranks.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use regatta_launch::channel::{self, RankEnd};
use regatta_launch::cpu_binding::Binding;
use regatta_launch::local::{LocalOptions, LocalWorkers};
use regatta_launch::process::RankSpec;
use regatta_launch::worker_group::{JobEvent, WorkerGroup};
use regatta_model::result::RankExit;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

const FRAMES: u32 = 1_000;
const LINES_PER_FRAME: u32 = 20;
const LONG_FRAME: u32 = 500;
/// Longer than the buffers of sockets.
const LONG_LEN: usize = 1 << 20;

/// What a rank of these tests does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum RankInput {
    /// Sends the input back, then numbered frames, and writes lines to standard output.
    EchoAndSend { padding: Vec<u8> },
    /// Sends these bytes instead of a frame and exits.
    WriteRaw(Vec<u8>),
    /// Checks that its children do not inherit the channel.
    SpawnChild,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum RankMessage {
    Echo(RankInput),
    Numbered(u32, Vec<u8>),
}

/// The program of the ranks: does nothing unless it was started with a channel.
#[test]
#[ignore = "started as a rank by the other tests"]
fn rank_process() {
    let Ok(fd) = std::env::var(channel::VARIABLE) else { return };
    // SAFETY: the descriptor is open, and only borrowed for the clone.
    let raw = unsafe { UnixStream::from_raw_fd(fd.parse().unwrap()) };
    let mut clone = raw.try_clone().unwrap();
    std::mem::forget(raw);
    // SAFETY: no other thread of this program accesses the environment.
    let mut rank_end = unsafe { RankEnd::take_from_env() }.unwrap().unwrap();
    match rank_end.recv_input().unwrap() {
        input @ RankInput::EchoAndSend { .. } => echo_and_send(&mut rank_end, input),
        RankInput::WriteRaw(bytes) => clone.write_all(&bytes).unwrap(),
        RankInput::SpawnChild => {
            assert!(std::env::var_os(channel::VARIABLE).is_none());
            let link = format!("/proc/self/fd/{fd}");
            let inherited = Command::new("readlink").arg(link).status().unwrap().success();
            assert!(!inherited);
        }
    }
    // Skips the report of the test harness.
    std::process::exit(0);
}

fn echo_and_send(rank_end: &mut RankEnd, input: RankInput) {
    rank_end.send(&RankMessage::Echo(input)).unwrap();
    let mut stdout = std::io::stdout().lock();
    for n in 0..FRAMES {
        for line in n * LINES_PER_FRAME..(n + 1) * LINES_PER_FRAME {
            writeln!(stdout, "line {line}").unwrap();
        }
        let len = if n == LONG_FRAME { LONG_LEN } else { (n % 1000) as usize };
        rank_end.send(&RankMessage::Numbered(n, vec![n as u8; len])).unwrap();
    }
}

/// Workers kill all descendants of this process at their end, so that only one test may run.
static SERIAL: Mutex<()> = Mutex::new(());

fn spec(rank: u32, command: &[&str], input: Option<Vec<u8>>) -> RankSpec {
    RankSpec {
        rank,
        command: command.iter().map(OsString::from).collect(),
        cwd: None,
        base_env: Vec::new(),
        env_remove_prefixes: Vec::new(),
        env: Vec::new(),
        binding: Binding::new(&Default::default(), &regatta_model::MemoryPolicy::Default),
        input: input.map(Arc::from),
    }
}

fn rank_spec(rank: u32, input: &RankInput) -> RankSpec {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--ignored", "--exact", "channel::rank_process", "--nocapture"];
    let command: Vec<&str> = [program.to_str().unwrap()].into_iter().chain(arguments).collect();
    spec(rank, &command, Some(channel::encode(input).unwrap()))
}

fn lock() -> MutexGuard<'static, ()> {
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All events until the end.
fn run(specs: &[RankSpec]) -> Vec<JobEvent> {
    run_serial(specs, &lock())
}

/// [`run`] with the lock held. The consumer pauses now and then, as for a slow terminal.
fn run_serial(specs: &[RankSpec], _serial: &MutexGuard<()>) -> Vec<JobEvent> {
    let options = LocalOptions { logs: None, attempt: 0, report_progress: false, notify: None };
    let mut workers = LocalWorkers::start(specs, &options).unwrap();
    let (mut events, mut pauses) = (Vec::new(), 0..100);
    let deadline = Instant::now() + Duration::from_secs(120);
    while events.last() != Some(&JobEvent::Finished) {
        assert!(Instant::now() < deadline, "not finished after {} events", events.len());
        let paused = events.len() % 1000 == 999 && pauses.next().is_some();
        events.extend(workers.next(Duration::from_millis(if paused { 2 } else { 50 }), paused));
    }
    events
}

fn frames_of(rank: u32, events: &[JobEvent]) -> Vec<RankMessage> {
    let frame = |event: &JobEvent| match event {
        JobEvent::Frame { rank: r, bytes } if *r == rank => {
            Some(channel::decode_from(rank, bytes).unwrap())
        }
        _ => None,
    };
    events.iter().filter_map(frame).collect()
}

fn warnings(events: &[JobEvent]) -> Vec<&str> {
    let mut warnings = Vec::new();
    for event in events {
        if let JobEvent::Warning(text) = event {
            warnings.push(&text[..]);
        }
    }
    warnings
}

fn exit_of(rank: u32, events: &[JobEvent]) -> Option<RankExit> {
    events.iter().find_map(|event| match event {
        JobEvent::Exited(r, exit) if *r == rank => Some(*exit),
        _ => None,
    })
}

#[test]
fn frames_and_output_of_a_rank_arrive_completely_and_in_order() {
    let input = RankInput::EchoAndSend { padding: vec![7; 1 << 19] };
    let events = run(&[rank_spec(0, &input), rank_spec(1, &input)]);
    for rank in 0..2 {
        let frames = frames_of(rank, &events);
        assert_eq!(frames.len() as u32, FRAMES + 1);
        assert_eq!(frames[0], RankMessage::Echo(input.clone()));
        for (n, frame) in frames[1..].iter().enumerate() {
            let len = if n == LONG_FRAME as usize { LONG_LEN } else { n };
            assert_eq!(*frame, RankMessage::Numbered(n as u32, vec![n as u8; len]));
        }
        let line = |event: &JobEvent| match event {
            JobEvent::Line(line) if line.ranks == [rank] => {
                line.text.strip_prefix("line ").and_then(|n| n.parse().ok())
            }
            _ => None,
        };
        let lines: Vec<u32> = events.iter().filter_map(line).collect();
        assert_eq!(lines, (0..FRAMES * LINES_PER_FRAME).collect::<Vec<_>>());
        assert_eq!(exit_of(rank, &events), Some(RankExit::Exit(0)));
    }
    assert_eq!(warnings(&events), [""; 0]);
}

#[test]
fn invalid_bytes_in_a_channel_are_a_warning_that_names_the_rank() {
    let cases: [(&[u8], &str); 3] = [
        (b"Hello, launcher!", "rank 5: a frame of 1214606444 bytes exceeds the maximum"),
        (&[0, 0, 1, 0, 42], "rank 5: the stream ended after 5 of 260 bytes"),
        (&[0], "rank 5: the stream ended after 1 of 4 bytes"),
    ];
    for (bytes, expected) in cases {
        let events = run(&[rank_spec(5, &RankInput::WriteRaw(bytes.to_vec()))]);
        let warnings = warnings(&events);
        assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
    }
}

#[test]
fn children_of_a_rank_do_not_inherit_its_channel() {
    let events = run(&[rank_spec(0, &RankInput::SpawnChild)]);
    assert_eq!(exit_of(0, &events), Some(RankExit::Exit(0)), "{events:?}");
}

#[test]
fn programs_that_ignore_their_channel_finish() {
    let input = vec![0; 1 << 20];
    let events =
        run(&[spec(0, &["true"], Some(input.clone())), spec(1, &["sleep", "0.3"], Some(input))]);
    for rank in 0..2 {
        assert_eq!(exit_of(rank, &events), Some(RankExit::Exit(0)));
    }
    assert_eq!(warnings(&events), [""; 0]);
}

#[test]
fn ranks_may_need_more_descriptors_than_the_soft_limit_and_inherit_it() {
    let serial = lock();
    let previous = getrlimit(Resource::Nofile);
    let low = Rlimit { current: Some(64), ..previous };
    setrlimit(Resource::Nofile, low).unwrap();
    let program = ["sh", "-c", "ulimit -n"];
    let specs: Vec<_> = (0..40).map(|rank| spec(rank, &program, Some(Vec::new()))).collect();
    // Other runs change the limit, too.
    let events = run_serial(&specs, &serial);
    let is_limit = |event: &&JobEvent| matches!(event, JobEvent::Line(l) if l.text == "64");
    assert_eq!(events.iter().filter(is_limit).count(), 40);
    assert_eq!(getrlimit(Resource::Nofile), low);
    setrlimit(Resource::Nofile, previous).unwrap();
}

#[test]
fn a_rank_without_input_has_no_channel() {
    let events = run(&[spec(0, &["printenv", channel::VARIABLE], None)]);
    assert_eq!(exit_of(0, &events), Some(RankExit::Exit(1)));
}
