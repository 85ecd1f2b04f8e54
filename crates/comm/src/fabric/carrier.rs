//! Messages between the ranks of a process's communicators, through libfabric instead of
//! connections of our own. It stands in the mesh, and like it moves when somebody waits.
//!
//! Every message has an opening, a small one of libfabric's that says what it is; a short message is
//! in it. The parts of a long one come under tags of their own, and are received when somebody has
//! asked for the message: straight into its memory if they replace what is there and the provider
//! takes any memory, else into ours, from where each is put or reduced while others come.

mod landing;

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::abi::CqEntry;
use super::gear::{Flight, Gear, Work};
use super::incoming::{Coming, Inbox};
use super::leaving::inside;
use super::outgoing::{Flow, Sending};
use super::port::Completed;
use super::tidy::after_the_dead;
use crate::tcp::{Channels, Head, Posted, Way, fits};
use crate::transport::Ticket;

/// Completions that are looked at at once.
const AT_ONCE: usize = 16;

/// How often in a row it is looked for more before the caller has its turn.
const ROUNDS: usize = 16;

/// How long memory that is lent may be waited for when it is taken back. Then the endpoint is shut,
/// and with it all communicators of this process end.
pub const GRACE: Duration = Duration::from_secs(2);

/// The same when a rank is lost, which may be the one it is waited for.
pub const SHORT_GRACE: Duration = Duration::from_millis(100);

/// How long the last openings may take to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// So many times in vain, and the thread sleeps; before that it only lets others run.
const YIELDS: u32 = 20;

/// How long is slept between looks: with a file to wait on, without, and at most without.
const LONG_REST: Duration = Duration::from_millis(50);
const FIRST_REST: Duration = Duration::from_micros(10);
const LAST_REST: Duration = Duration::from_millis(1);

/// So many looks in vain, and what nobody has asked for is fetched nevertheless: some milliseconds.
const FETCH_AFTER: u32 = YIELDS + 10;

/// A rank and the messages with it.
#[derive(Default)]
struct Peer {
    flow: Flow,
    inbox: Inbox,
}

/// All messages of this process through libfabric.
pub struct Carrier {
    gear: Gear,
    job: u64,
    ranks: u32,
    addresses: Vec<Vec<u8>>,
    peers: BTreeMap<u32, Peer>,
    sendings: BTreeMap<u64, Sending>,
    comings: BTreeMap<u64, Coming>,
    next: u64,
    /// What does not work any more, and why.
    broken: Vec<(u32, Way, String)>,
    /// Why nothing works any more.
    dead: Option<String>,
    /// How often nothing was found.
    idle: u32,
}

/// How long to sleep, and on what.
#[derive(Debug, Clone, Copy)]
pub struct Rest {
    /// A file that can be read when something is done.
    pub fd: Option<RawFd>,
    /// At most so long.
    pub most: Duration,
}

impl Carrier {
    /// On an endpoint that knows where all ranks are.
    pub fn new(mut gear: Gear, job: u64, addresses: &[Vec<u8>]) -> Result<Self, String> {
        gear.listen()?;
        Ok(Self {
            gear,
            job,
            ranks: addresses.len() as u32,
            addresses: addresses.to_vec(),
            peers: BTreeMap::new(),
            sendings: BTreeMap::new(),
            comings: BTreeMap::new(),
            next: 0,
            broken: Vec::new(),
            dead: None,
            idle: 0,
        })
    }

    /// Its provider, and on what.
    pub fn name(&self) -> String {
        let facts = self.gear.facts();
        format!("{} on {}", facts.provider, facts.domain)
    }

    /// Why nothing works any more, if so it is.
    pub fn dead(&self) -> Option<&str> {
        self.dead.as_deref()
    }

    /// Posts a message.
    pub fn send(
        &mut self,
        to: u32,
        head: Head,
        ticket: Ticket,
        start: *const u8,
        channels: &mut Channels,
    ) {
        let Some(_inside) = inside() else { return };
        self.next += 1;
        self.sendings.insert(self.next, Sending::new(to, head, ticket, start));
        self.pump_sendings(channels);
    }

    /// Posts a receive.
    pub fn receive(&mut self, from: u32, posted: Posted, channels: &mut Channels) {
        let Some(_inside) = inside() else { return };
        let inbox = &mut self.peers.entry(from).or_default().inbox;
        match inbox.early(|key| key == posted.key) {
            None => inbox.posted.push_back(posted),
            Some(early) => {
                let posted = fits(&early.message.head, &posted, channels).then_some(posted);
                self.land_early(from, early, posted, channels);
            }
        }
    }

    /// Moves what can be moved without waiting. What broke is given back.
    pub fn pass(&mut self, channels: &mut Channels) -> Vec<(u32, Way, String)> {
        let Some(_inside) = inside() else { return Vec::new() };
        self.gear.stuck = false;
        if self.dead.is_none() {
            self.complete(channels);
        }
        if self.dead.is_none() {
            self.pump_sendings(channels);
            self.pump_comings();
            self.tell_taken();
            if let Err(why) = self.gear.listen() {
                self.die(why);
            }
        }
        std::mem::take(&mut self.broken)
    }

    fn complete(&mut self, channels: &mut Channels) {
        let nothing = CqEntry { context: std::ptr::null_mut(), flags: 0, len: 0 };
        for _ in 0..ROUNDS {
            let mut entries = [nothing; AT_ONCE];
            match self.gear.port().completed(&mut entries) {
                Completed::Nothing => {
                    self.idle = self.idle.saturating_add(1);
                    return;
                }
                Completed::Some(count) => {
                    for entry in &entries[..count] {
                        if let Some(flight) = self.gear.landed(entry.context) {
                            self.done(flight, entry.len, channels);
                        }
                    }
                }
                Completed::Broken(why) => return self.die(why),
                Completed::Failed(context, why) => {
                    if let Some(flight) = self.gear.landed(context) {
                        self.failed(flight, why, channels);
                    }
                }
            }
            self.idle = 0;
        }
    }

    /// An operation is done.
    fn done(&mut self, flight: Flight, length: usize, channels: &mut Channels) {
        match (flight.work, &flight.stage) {
            (Work::Hear, Some(stage)) => {
                let bytes = &stage.bytes()[..length.min(stage.bytes().len())];
                self.hear(bytes, channels);
            }
            (Work::Out(id), _) => self.part_left(id, channels),
            (Work::In(id, at, size), stage) => {
                let bytes = stage.as_ref().map(|stage| &stage.bytes()[..size]);
                match length == size {
                    true => self.part_came(id, at, size, bytes, channels),
                    false => {
                        self.broke_coming(id, format!("a part has {length} bytes, not {size}"))
                    }
                }
            }
            _ => {}
        }
        self.gear.keep(flight.stage);
    }

    /// An operation is over without success; without a reason, because it was called back.
    fn failed(&mut self, flight: Flight, why: Option<String>, channels: &mut Channels) {
        match (flight.work, why) {
            (Work::Open(to), Some(why)) => self.broken.push((to, Way::Out, why)),
            (Work::Out(id), None) => self.part_left(id, channels),
            (Work::Out(id), Some(why)) => {
                if let Some(sending) = self.sendings.remove(&id) {
                    self.broken.push((sending.to, Way::Out, why));
                }
            }
            (Work::In(id, at, _), None) => {
                // It still comes, and is thrown away then.
                if let Some(coming) = self.comings.get_mut(&id) {
                    coming.flying -= 1;
                    coming.again.push(at);
                }
            }
            (Work::In(id, ..), Some(why)) => self.broke_coming(id, why),
            (Work::Open(_), None) | (Work::Hear, _) => {}
        }
        self.gear.keep(flight.stage);
    }

    fn part_left(&mut self, id: u64, channels: &mut Channels) {
        let Some(sending) = self.sendings.get_mut(&id) else { return };
        sending.flying -= 1;
        channels.moved(sending.head.key.channel, self.gear.part);
        if sending.is_done() {
            finish(self.sendings.remove(&id), channels);
        }
    }

    /// Posts what can be posted of what goes out. To each rank openings leave in their order.
    fn pump_sendings(&mut self, channels: &mut Channels) {
        if self.dead.is_some() {
            return;
        }
        let mut behind: Vec<u32> = Vec::new();
        let mut last = 0;
        while let Some((&id, sending)) = self.sendings.range_mut(last + 1..).next() {
            last = id;
            if !sending.opened && behind.contains(&sending.to) {
                continue;
            }
            let to = sending.to;
            let flow = &mut self.peers.entry(to).or_default().flow;
            let pumped = sending.pump(id, flow, &mut self.gear);
            if !sending.opened {
                behind.push(to);
            }
            match pumped {
                Err(why) => {
                    self.broken.push((to, Way::Out, why));
                    self.sendings.remove(&id);
                }
                Ok(()) if sending.is_done() => {
                    channels.moved(sending.head.key.channel, sending.head.length as usize);
                    finish(self.sendings.remove(&id), channels);
                }
                Ok(()) => {}
            }
        }
    }

    /// Gives all memory of a communicator back, in so long.
    pub fn cancel(&mut self, channel: u64, grace: Duration, channels: &mut Channels) {
        let Some(_inside) = inside() else { return };
        for peer in self.peers.values_mut() {
            peer.inbox.posted.retain(|posted| posted.key.channel != channel);
        }
        // What was opened is sent to the end, without its content, for the other side counts on it.
        self.sendings.retain(|_, s| s.opened || s.head.key.channel != channel);
        for sending in self.sendings.values_mut().filter(|s| s.head.key.channel == channel) {
            sending.lent = None;
        }
        for coming in self.comings.values_mut() {
            if coming.posted.is_some() && coming.message.head.key.channel == channel {
                coming.forget();
            }
        }
        self.take_back(channel, grace, channels);
    }

    /// Waits until the provider has let go of a communicator's memory, which it mostly has at once.
    /// If it does not, only closing the endpoint makes it.
    fn take_back(&mut self, channel: u64, grace: Duration, channels: &mut Channels) {
        let mut back = self.dead.is_some() || self.gear.recall(channel, true);
        let until = Instant::now() + grace;
        while !back && self.dead.is_none() {
            if Instant::now() >= until {
                self.die(format!("it held on to memory for {} ms", grace.as_millis()));
                break;
            }
            let broken = self.pass(channels);
            self.broken.extend(broken);
            std::thread::sleep(FIRST_REST);
            back = self.gear.recall(channel, false);
        }
        if self.dead.is_some() {
            self.let_go(channel, channels);
        }
    }

    /// Waits for an endpoint that cannot be closed, as long as it may write to a caller's memory:
    /// the caller would use it for something else, and we cannot keep it from that.
    fn let_go(&mut self, channel: u64, channels: &mut Channels) {
        while !self.gear.shut() && self.gear.may_write(channel) {
            self.complete(channels);
            std::thread::sleep(LAST_REST);
        }
    }

    fn die(&mut self, why: String) {
        self.gear.shut();
        self.comings.clear();
        self.dead.get_or_insert(why);
    }

    /// A communicator that was cancelled is no more: what still comes for it is thrown away.
    pub fn close(&mut self, channel: u64, channels: &mut Channels) {
        let Some(_inside) = inside() else { return };
        let ranks: Vec<u32> = self.peers.keys().copied().collect();
        for rank in ranks {
            let early = |peer: &mut Peer| peer.inbox.early(|key| key.channel == channel);
            while let Some(early) = self.peers.get_mut(&rank).and_then(early) {
                self.land_early(rank, early, None, channels);
            }
        }
    }

    /// How whoever waits may sleep.
    pub fn rest(&mut self) -> Rest {
        let inside = inside();
        if self.dead.is_some() || inside.is_none() {
            return Rest { fd: None, most: LONG_REST };
        }
        let doubled = FIRST_REST * 2u32.saturating_pow(self.idle.saturating_sub(YIELDS).min(10));
        let most = if self.idle < YIELDS { Duration::ZERO } else { doubled.min(LAST_REST) };
        let short = Rest { fd: None, most };
        if self.peers.values_mut().any(|peer| peer.inbox.unfetched().is_some()) {
            if self.idle >= FETCH_AFTER {
                self.fetch();
            }
            return short;
        }
        match self.gear.port().wait_on() {
            Err(()) => Rest { fd: None, most: Duration::ZERO },
            Ok(Some(fd)) if !self.gear.stuck => Rest { fd: Some(fd), most: LONG_REST },
            Ok(_) => short,
        }
    }

    /// Before the end: what was sent leaves.
    pub fn farewell(mut self) {
        let Some(_inside) = inside() else { return std::mem::forget(self) };
        let (until, mut channels) = (Instant::now() + FAREWELL, Channels::default());
        while self.dead.is_none() && self.gear.is_sending() && Instant::now() < until {
            self.complete(&mut channels);
            std::thread::sleep(FIRST_REST);
        }
        after_the_dead(&self.addresses);
        self.gear.leave(self.dead.is_some() || !self.comings.is_empty());
    }
}

fn finish(sending: Option<Sending>, channels: &mut Channels) {
    if let Some(sending) = sending.filter(|sending| sending.lent.is_some()) {
        channels.done(sending.head.key.channel, sending.ticket);
    }
}
