//! Messages between the ranks of a process's communicators, through libfabric instead of
//! connections of our own. It stands in the mesh, and like it moves when somebody waits.
//!
//! Every message has an opening, a small one of libfabric's that says what it is; a short message is
//! in it. The parts of a long one come under tags of their own, and are received when somebody has
//! asked for the message: straight into its memory if they replace what is there and the provider
//! takes any memory, else into ours, from where each is put or reduced while others come.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::abi::CqEntry;
use super::gear::{Flight, Gear, Work};
use super::incoming::{Coming, Early, Inbox};
use super::leaving::inside;
use super::opening::{Kind, Message, OPENING, Opening};
use super::outgoing::{AHEAD, Flow, Sending};
use super::parked;
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
        parked::enter(&gear);
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

    fn broke_coming(&mut self, id: u64, why: String) {
        if let Some(coming) = self.comings.remove(&id) {
            self.broken.push((coming.from, Way::In, why));
        }
    }

    fn part_left(&mut self, id: u64, channels: &mut Channels) {
        let Some(sending) = self.sendings.get_mut(&id) else { return };
        sending.flying -= 1;
        channels.moved(sending.head.key.channel, self.gear.part);
        if sending.is_done() {
            finish(self.sendings.remove(&id), channels);
        }
    }

    fn part_came(
        &mut self,
        id: u64,
        at: usize,
        size: usize,
        bytes: Option<&[u8]>,
        channels: &mut Channels,
    ) {
        let Some(coming) = self.comings.get_mut(&id) else { return };
        coming.flying -= 1;
        if let Some(bytes) = bytes {
            coming.put(at, bytes);
        }
        channels.moved(coming.message.head.key.channel, size);
        self.finish_coming(id, channels);
    }

    fn finish_coming(&mut self, id: u64, channels: &mut Channels) {
        if self.comings.get(&id).is_some_and(Coming::is_done)
            && let Some(posted) = self.comings.remove(&id).and_then(Coming::hand_over)
        {
            channels.done(posted.key.channel, posted.ticket);
        }
    }

    /// An opening came. Bytes of strangers are thrown away.
    fn hear(&mut self, bytes: &[u8], channels: &mut Channels) {
        let Some(opening) = Opening::decode(bytes) else { return };
        let from = opening.from;
        if opening.job != self.job || from >= self.ranks {
            return;
        }
        let peer = self.peers.entry(from).or_default();
        match opening.kind {
            Kind::Taken(count) => peer.flow.taken(count),
            Kind::Message(message) => {
                let short = &bytes[OPENING..];
                match peer.inbox.is_next(&message) {
                    true => self.accept(from, message, short, channels),
                    false => peer.inbox.put(message, short),
                }
                while let Some((message, short)) =
                    self.peers.get_mut(&from).and_then(|peer| peer.inbox.in_turn())
                {
                    self.accept(from, message, &short, channels);
                }
            }
        }
    }

    /// A message whose turn it is goes to who asked for it, or is kept until somebody does.
    fn accept(&mut self, from: u32, message: Message, short: &[u8], channels: &mut Channels) {
        let inbox = &mut self.peers.entry(from).or_default().inbox;
        match inbox.asked(message.head.key) {
            Some(posted) => {
                let posted = fits(&message.head, &posted, channels).then_some(posted);
                self.land(from, message, short, posted, channels);
            }
            None if channels.may_be_early(&message.head) => inbox.keep(message, short.to_vec()),
            None => self.land(from, message, short, None, channels),
        }
    }

    /// A message goes where it belongs, or if that is nowhere, away.
    fn land(
        &mut self,
        from: u32,
        message: Message,
        short: &[u8],
        posted: Option<Posted>,
        channels: &mut Channels,
    ) {
        self.peers.entry(from).or_default().inbox.taken += 1;
        if message.part > 0 {
            self.next += 1;
            let (id, mut coming) = (self.next, Coming::new(from, message, posted));
            if self.dead.is_some() {
                return;
            }
            match coming.pump(id, &mut self.gear) {
                Ok(()) => drop(self.comings.insert(id, coming)),
                Err(why) => self.broken.push((from, Way::In, why)),
            }
            return;
        }
        let Some(posted) = posted else { return };
        match short.get(..posted.length) {
            Some(bytes) => {
                posted.target().put(0, bytes);
                channels.moved(posted.key.channel, bytes.len());
                channels.done(posted.key.channel, posted.ticket);
            }
            None => self.broken.push((from, Way::In, "a message is cut off".to_owned())),
        }
    }

    /// The same for one that came before it was asked for.
    fn land_early(
        &mut self,
        from: u32,
        early: Early,
        posted: Option<Posted>,
        channels: &mut Channels,
    ) {
        let Some(id) = early.fetched else {
            return self.land(from, early.message, &early.short, posted, channels);
        };
        self.peers.entry(from).or_default().inbox.taken += 1;
        if let Some(coming) = self.comings.get_mut(&id) {
            match posted {
                Some(_) => coming.posted = posted,
                None => coming.forget(),
            }
        }
        self.finish_coming(id, channels);
    }

    /// Fetches what nobody has asked for yet: who sends it may wait for that, and this rank for
    /// something else of the same one.
    fn fetch(&mut self) {
        for (rank, peer) in &mut self.peers {
            while let Some(early) = peer.inbox.unfetched() {
                // Without memory for it, it stays where it is.
                let Some(coming) = Coming::early(*rank, early.message) else { break };
                self.next += 1;
                early.fetched = Some(self.next);
                self.comings.insert(self.next, coming);
            }
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

    fn pump_comings(&mut self) {
        let mut failed = Vec::new();
        for (id, coming) in &mut self.comings {
            if let Err(why) = coming.pump(*id, &mut self.gear) {
                failed.push((*id, why));
            }
        }
        failed.into_iter().for_each(|(id, why)| self.broke_coming(id, why));
    }

    /// Ranks that wait for it hear that they may go on.
    fn tell_taken(&mut self) {
        for (rank, peer) in &mut self.peers {
            let taken = peer.inbox.taken;
            if taken < AHEAD / 4 {
                continue;
            }
            match self.gear.open(*rank, Kind::Taken(taken), &[]) {
                Ok(true) => peer.inbox.taken = 0,
                Ok(false) => {}
                Err(why) => self.broken.push((*rank, Way::Out, why)),
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
        if self.dead.is_some() || self.gear.recall(channel, true) {
            return;
        }
        let until = Instant::now() + grace;
        while !self.gear.recall(channel, false) {
            if Instant::now() >= until {
                self.die(format!("it held on to memory for {} ms", grace.as_millis()));
                return;
            }
            let broken = self.pass(channels);
            self.broken.extend(broken);
            std::thread::sleep(FIRST_REST);
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
        if self.gear.facts().entangled {
            after_the_dead(&self.addresses);
        }
        parked::leave(self.gear);
    }
}

fn finish(sending: Option<Sending>, channels: &mut Channels) {
    if let Some(sending) = sending.filter(|sending| sending.lent.is_some()) {
        channels.done(sending.head.key.channel, sending.ticket);
    }
}
