//! What a rank does, in a process of its own: the test program once more.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use regatta_comm::error::Peer;
use regatta_comm::worker::Communicator;
use regatta_comm::{
    Buffer, Call, CallKind, Collectives, Comm, CommError, Counts, DType, OwnedCall, Pending,
    ReduceOp, host, join, shm,
};
use regatta_wire::secret::Secret;
use rustix::process::{Signal, getpid, kill_process};

use crate::case::{By, Case, Fault, Place, Step};
use crate::meeting;
use crate::words::Said;

/// What makes a process a rank: the case, which rank, where ranks meet, and where rank 0 is.
pub const SEED: &str = "REGATTA_TEST_SEED";
pub const PLACE: &str = "REGATTA_TEST_PLACE";
pub const RANK: &str = "REGATTA_TEST_RANK";
pub const FOLDER: &str = "REGATTA_TEST_FOLDER";

/// The arguments with which the program is a rank.
pub const ARGUMENTS: [&str; 3] = ["--exact", "rank::as_a_rank", "--nocapture"];

/// What a rank writes when it is time for harm to be done to it from outside.
pub const HARM: &str = "now";

/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(20);

/// Not a test of its own: what a rank does that another test has started.
#[test]
fn as_a_rank() {
    let Ok(seed) = std::env::var(SEED) else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let place = if variable(PLACE) == "Network" { Place::Network } else { Place::Machine };
    let case = Case::new(seed.parse().unwrap(), place);
    let rank: usize = variable(RANK).parse().unwrap();
    let folder = PathBuf::from(variable(FOLDER));
    let before = (count("/proc/self/task", ""), count("/proc/self/fd", "socket"));
    let everybody: Vec<usize> = (0..case.ranks()).collect();
    if case.fault == Fault::KilledEarly && rank == case.victim {
        // The first has told the others its port before: without one they do not even try.
        let told = folder.join("first-port");
        let tells = rank == 0 && case.by != By::Memory;
        later(Duration::from_micros(case.after_us * 20), move || {
            while tells && !told.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            end_by(Signal::KILL);
        });
    }
    let mut said = match joined(&case, rank, &everybody, &folder, "first") {
        Ok(world) => Actor::new(&case, rank, world).act(),
        Err(error) => Said::of(&error, &everybody, 0),
    };
    if said.kind.is_some() && case.survivors().contains(&rank) {
        said.again = again(&case, rank, &folder);
    }
    said.left = left(before);
    println!("{}", said.write());
}

/// Does something after some time, in another thread.
fn later(after: Duration, what: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        what();
    });
}

fn end_by(signal: Signal) {
    kill_process(getpid(), signal).unwrap();
}

/// How many things are in a folder that lead to such.
fn count(folder: &str, like: &str) -> usize {
    let leads = |entry: &std::fs::DirEntry| match like {
        "" => true,
        like => {
            std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with(like))
        }
    };
    std::fs::read_dir(folder).unwrap().flatten().filter(leads).count()
}

/// What is left of the communicators: nothing, after a moment.
fn left(before: (usize, usize)) -> String {
    let until = Instant::now() + Duration::from_secs(8);
    loop {
        let now = (count("/proc/self/task", ""), count("/proc/self/fd", "socket"));
        if now == before {
            return "nothing".to_owned();
        }
        if Instant::now() > until {
            return format!("{now:?} threads and sockets, there were {before:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The ranks that can join again, and do a sum.
fn again(case: &Case, rank: usize, folder: &Path) -> String {
    let world = match joined(case, rank, &case.survivors(), folder, "again") {
        Ok(world) => world,
        Err(error) => return error.to_string(),
    };
    let mut sum = vec![1i64; 5000];
    match world.all_reduce(&mut sum, ReduceOp::Sum).and_then(|()| world.barrier()) {
        Ok(()) if sum.iter().all(|v| *v == i64::from(world.size())) => "well".to_owned(),
        Ok(()) => format!("the sum is {}", sum[0]),
        Err(error) => error.to_string(),
    }
}

/// How long ranks may be silent, and late, so that what is not to be seen does not count.
pub fn patience(case: &Case) -> (Duration, Duration) {
    let (short, long) = (Duration::from_secs(4), LONG);
    match (case.fault, case.by) {
        (Fault::Stopped | Fault::Woken, By::Memory) => (long, short),
        (Fault::Stopped | Fault::Woken, _) => (short, long),
        (Fault::Calls(_) | Fault::Silent, _) => (long, short),
        (Fault::Cut | Fault::CutBetween { .. }, _) => (short, long),
        (Fault::Slow, _) => (short, short),
        _ => (long, long),
    }
}

/// A communicator of these ranks of the case.
fn joined(
    case: &Case,
    rank: usize,
    members: &[usize],
    folder: &Path,
    name: &str,
) -> Result<Communicator, CommError> {
    let (lost_after, desync_after) = patience(case);
    let early = case.fault == Fault::KilledEarly && name == "first";
    let join_within = if early { Duration::from_secs(5) } else { LONG };
    let number = members.iter().position(|member| *member == rank).unwrap() as u32;
    let debug = case.debug;
    if case.by == By::Memory {
        let peer = |(i, member): (u32, &usize)| Peer::new(i, case.host(*member));
        let settings =
            shm::Settings { desync_after, debug, join_within, ..shm::Settings::default() };
        let name = format!("{}/{name}", folder.display());
        let engine = shm::join(&name, number, (0..).zip(members).map(peer).collect(), settings)?;
        return Ok(Communicator::new(Box::new(engine)));
    }
    let secret = std::fs::read_to_string(folder.join(format!("{name}-secret"))).unwrap();
    let file = folder.join(format!("{name}-port"));
    let listener = (number == 0).then(|| bootstrap::listen("0.0.0.0:0".parse().unwrap()).unwrap());
    let master = match case.place {
        Place::Machine => "127.0.0.1".to_owned(),
        Place::Network => case.host(members[0]),
    };
    let port = meeting::port(&file, listener.as_ref().map(|l| l.local_addr().unwrap().port()));
    let secret = Secret::from_hex(&secret).unwrap();
    let settings = bootstrap::BootstrapConfig {
        listener,
        host: case.host(rank),
        // Ranks of other cases are on other nodes.
        node: format!("{} {}", folder.display(), case.host(rank)),
        join_within,
        lost_after,
        desync_after,
        debug,
        ..bootstrap::BootstrapConfig::new(number, members.len() as u32, &master, port, secret)
    };
    if case.by == By::Host { host::join(settings) } else { bootstrap::join(settings) }
}

/// A rank at work.
struct Actor<'a> {
    case: &'a Case,
    rank: usize,
    world: std::sync::Arc<Communicator>,
    part: Option<Box<dyn Comm>>,
    /// What goes on in the background, and in which step it began.
    pending: Vec<(Pending, usize)>,
    began: Instant,
}

impl<'a> Actor<'a> {
    fn new(case: &'a Case, rank: usize, world: Communicator) -> Self {
        let (world, pending, began) = (std::sync::Arc::new(world), Vec::new(), Instant::now());
        Self { case, rank, world, part: None, pending, began }
    }

    /// Works until it is over, and says how it was.
    fn act(&mut self) -> Said {
        let colour = Some(self.rank as u32 % self.case.colours);
        let everybody: Vec<usize> = (0..self.case.ranks()).collect();
        match self.world.split(colour, 0) {
            Ok(part) => self.part = part,
            Err(error) => return self.of_split(&error),
        }
        let mut number = 0;
        loop {
            let start = Instant::now();
            if let Err(said) = self.turn(number) {
                let took_ms = start.elapsed().as_millis() as u64;
                return self.give_up(Said { took_ms, ..*said });
            }
            if number % self.case.script.len() == 0 {
                match self.goes_on(number) {
                    Ok(true) => {}
                    Ok(false) => return Said::default(),
                    Err(error) => {
                        let took = start.elapsed().as_millis() as u64;
                        let said = Said::of(&error, &everybody, took);
                        return self.give_up(said);
                    }
                }
            }
            number += 1;
        }
    }

    /// An error of a split names ranks as those who split are numbered, or as they would be.
    fn of_split(&mut self, error: &CommError) -> Said {
        let everybody: Vec<usize> = (0..self.case.ranks()).collect();
        let part = self.case.members(self.rank, Step { in_part: true, ..self.case.step(0) });
        let real = |(rank, host): &(usize, String)| {
            *rank < everybody.len() && self.case.host(*rank) == *host
        };
        let before = Said::of(error, &everybody, 0);
        let said = match before.named.iter().all(real) {
            true => before,
            false => Said::of(error, &part, 0),
        };
        self.give_up(said)
    }

    /// As a program should: what it waits for in one communicator, others must not in another.
    fn give_up(&mut self, said: Said) -> Said {
        let said = said.first();
        let why = said.as_reason();
        self.world.abort(&why);
        if let Some(part) = &self.part {
            part.abort(&why);
        }
        for (pending, _) in self.pending.drain(..) {
            // It ends, whichever way.
            let _ = pending.wait();
        }
        self.part = None;
        said
    }

    /// Rank 0 says whether all go on.
    fn goes_on(&self, number: usize) -> Result<bool, CommError> {
        let enough = match self.case.fault {
            Fault::Paused => Duration::from_secs(2),
            _ if self.case.may_end_well() => Duration::from_secs(12),
            _ => LONG,
        };
        let more = number < self.case.at + 8 || self.began.elapsed() < enough;
        // Rank 0 decides; but all wait for all, so that nobody is far ahead.
        let mut flag = [u8::from(more || self.rank != 0)];
        self.world.all_reduce(&mut flag, ReduceOp::Min)?;
        Ok(flag[0] != 0)
    }

    fn turn(&mut self, number: usize) -> Result<(), Box<Said>> {
        if number == self.case.at {
            self.meet_fate();
        }
        let step = self.case.step_of(number, self.rank);
        let members = self.case.members(self.rank, step);
        let failed = |error: CommError| Box::new(Said::of(&error, &members, 0));
        if step.background {
            self.pending.push((self.comm(step).start(owned(step, self.comm(step))), number));
            return if self.pending.len() < 3 { Ok(()) } else { self.settle() };
        }
        let done = match step.kind {
            Some(_) => {
                let mut owned = owned(step, self.comm(step));
                self.comm(step).run(owned.as_call())
            }
            None => ring(self.comm(step), step.count),
        };
        done.map_err(failed)?;
        self.settle()
    }

    /// Waits for what goes on in the background.
    fn settle(&mut self) -> Result<(), Box<Said>> {
        for (pending, number) in std::mem::take(&mut self.pending) {
            let step = self.case.step_of(number, self.rank);
            let members = self.case.members(self.rank, step);
            pending.wait().map_err(|error| Box::new(Said::of(&error, &members, 0)))?;
        }
        Ok(())
    }

    fn comm(&self, step: Step) -> &dyn Comm {
        match &self.part {
            Some(part) if step.in_part => part.as_ref(),
            _ => &*self.world,
        }
    }

    /// What is to happen in this step begins, if it is to happen to this rank.
    fn meet_fate(&self) {
        let (case, after) = (self.case, Duration::from_micros(self.case.after_us));
        let from_outside =
            matches!(case.fault, Fault::Cut | Fault::CutBetween { .. } | Fault::Slow);
        if from_outside && self.rank == 0 {
            println!("\n{HARM}");
        }
        if self.rank != case.victim {
            return;
        }
        match case.fault {
            Fault::Killed => later(after, || end_by(Signal::KILL)),
            Fault::Exits => later(after, || std::process::exit(0)),
            Fault::Stopped | Fault::Woken | Fault::Paused => later(after, || {
                println!("\n{HARM}");
                end_by(Signal::STOP);
            }),
            Fault::Aborts => {
                let world = self.world.clone();
                later(after, move || world.abort("it has had enough"));
            }
            Fault::Silent => std::thread::sleep(patience(case).1 + Duration::from_secs(3)),
            _ => {}
        }
    }
}

/// A step as a call with buffers of its own.
fn owned(step: Step, comm: &dyn Comm) -> OwnedCall {
    let kind = step.kind.unwrap_or(CallKind::Barrier);
    let Step { dtype, op, root, count, .. } = step;
    let mut call = OwnedCall {
        kind,
        dtype,
        op,
        root,
        tag: 0,
        counts: Counts::Equal(count),
        input: None,
        output: Buffer::zeroed(0),
    };
    let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
    if !matches!(kind, CallKind::Broadcast | CallKind::Barrier) {
        call.input = Some(Buffer::zeroed(0));
        let input = call.as_call().lengths(rank, ranks).0;
        call.input = Some(comm.buffer(input * dtype.size()));
    }
    let output = call.as_call().lengths(rank, ranks).1;
    call.output = comm.buffer(output * dtype.size());
    call
}

/// To the right, and from the left, at once.
fn ring(comm: &dyn Comm, count: usize) -> Result<(), CommError> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let data = vec![rank as u8; count];
    let mut got = vec![0; count];
    let message = |kind, root| Call {
        kind,
        dtype: DType::U8,
        op: ReduceOp::Sum,
        root,
        tag: 7,
        counts: Counts::Equal(count),
        input: None,
        output: &mut [],
    };
    let send = Call { input: Some(&data), ..message(CallKind::Send, (rank + 1) % ranks) };
    let left = (rank + ranks - 1) % ranks;
    comm.run_group(vec![send, Call { output: &mut got, ..message(CallKind::Receive, left) }])?;
    assert!(got.iter().all(|byte| *byte == left as u8));
    Ok(())
}
