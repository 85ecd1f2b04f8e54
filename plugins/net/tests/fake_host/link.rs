//! A connection, as the progress thread drives it: posts groups, tests requests, verifies contents.

use std::collections::VecDeque;
use std::ffi::c_int;

use regatta_plugin_abi::NcclResult;
use regatta_plugin_abi::net::MAX_GROUPED_RECVS;
use regatta_testbed::Random;

use crate::arena::{Arena, GAP};
use crate::plan::{CANARY, Group, Message, Pattern, Plan};
use crate::plugin::{Object, Outcome, Plugin, Recv};

const CANARIES: [u8; 8192] = [CANARY; 8192];
/// What replaces a message that was sent.
const SENT: u8 = 0xee;

/// What a step of the progress thread needs.
pub struct Driver<'a> {
    pub plugin: &'a Plugin,
    pub pattern: &'a Pattern,
    pub random: Random,
}

/// A connection.
pub struct Link {
    pub name: String,
    pub comm: Object,
    pub is_send: bool,
    pub registration: Object,
    pub arena: Arena,
    plan: Plan,
    next: Option<Group>,
    groups: VecDeque<Posted>,
    /// The most requests in flight.
    limit: usize,
    /// Bytes that were transferred.
    pub moved: u64,
    pub error: Option<NcclResult>,
}

/// A group that is posted, or is being posted.
struct Posted {
    group: Group,
    starts: Vec<*mut u8>,
    /// Messages that have to be posted; a receive is posted as a whole.
    unposted: Vec<usize>,
    /// Requests, with the first of their messages.
    requests: Vec<(usize, Object)>,
}

// SAFETY: the pointers lead to the arena of the link.
unsafe impl Send for Posted {}

impl Link {
    pub fn new(name: String, comm: Object, is_send: bool, plan: Plan, limit: usize) -> Self {
        Self {
            name,
            comm,
            is_send,
            registration: Object::NULL,
            arena: Arena::new(),
            plan,
            next: None,
            groups: VecDeque::new(),
            limit,
            moved: 0,
            error: None,
        }
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.groups.iter().map(|posted| posted.requests.len()).sum()
    }

    /// Whether everything is transferred, or an error occurred.
    pub fn is_done(&mut self) -> bool {
        if self.next.is_none() {
            self.next = self.plan.next();
        }
        self.error.is_some() || self.next.is_none() && self.groups.is_empty()
    }

    /// Posts and tests once. Returns whether anything has happened.
    pub fn step(&mut self, driver: &mut Driver) -> bool {
        let stepped = self.post(driver).and_then(|posted| Ok(self.test(driver)? || posted));
        self.error = stepped.err();
        stepped != Ok(false)
    }

    fn post(&mut self, driver: &mut Driver) -> Outcome<bool> {
        if self.in_flight() >= self.limit || !self.prepare(driver.pattern) {
            return Ok(false);
        }
        let Some(mut posted) = self.groups.pop_back() else { return Ok(false) };
        let result = match self.is_send {
            true => self.post_send(driver, &mut posted),
            false => self.post_recv(driver, &mut posted),
        };
        self.groups.push_back(posted);
        result
    }

    /// Prepares the next group, unless the last is not posted yet. Returns whether there is one to post.
    fn prepare(&mut self, pattern: &Pattern) -> bool {
        if self.groups.back().is_some_and(|last| !last.unposted.is_empty()) {
            return true;
        }
        let Some(group) = self.next.take().or_else(|| self.plan.next()) else { return false };
        let total = group.messages.iter().map(|message| message.recv + GAP).sum();
        let Some(mut start) = self.arena.allocate(total) else {
            self.next = Some(group);
            return false;
        };
        // SAFETY: allocated above.
        unsafe { std::slice::from_raw_parts_mut(start, total) }.fill(CANARY);
        let mut starts = Vec::new();
        for (index, message) in group.messages.iter().enumerate() {
            if self.is_send {
                // SAFETY: within what is allocated.
                let bytes = unsafe { std::slice::from_raw_parts_mut(start, message.send) };
                pattern.fill((self.plan.connection, group.sequence, index), bytes);
            }
            starts.push(start);
            // SAFETY: as above.
            start = unsafe { start.add(message.recv + GAP) };
        }
        let unposted = (0..group.messages.len()).collect();
        self.groups.push_back(Posted { group, starts, unposted, requests: Vec::new() });
        true
    }

    /// Posts any message of the group.
    fn post_send(&mut self, driver: &mut Driver, posted: &mut Posted) -> Outcome<bool> {
        let at = driver.random.below(posted.unposted.len() as u64) as usize;
        let index = posted.unposted[at];
        let Message { tag, send, .. } = posted.group.messages[index];
        let (start, registration) = (posted.starts[index], self.registration);
        let message = Recv { start, length: send, tag, registration };
        let Some(request) = driver.plugin.isend(self.comm, message)? else { return Ok(false) };
        posted.unposted.swap_remove(at);
        posted.requests.push((index, request));
        Ok(true)
    }

    fn post_recv(&mut self, driver: &mut Driver, posted: &mut Posted) -> Outcome<bool> {
        let registration = self.registration;
        let recv = |(message, start): (&Message, &*mut u8)| Recv {
            start: *start,
            length: message.recv,
            tag: message.tag,
            registration,
        };
        let group: Vec<Recv> = posted.group.messages.iter().zip(&posted.starts).map(recv).collect();
        let request = driver.plugin.irecv(self.comm, &group, posted.group.is_optional)?;
        let Some(request) = request else { return Ok(false) };
        posted.unposted.clear();
        posted.requests.push((0, request));
        Ok(true)
    }

    /// Tests any request.
    fn test(&mut self, driver: &mut Driver) -> Outcome<bool> {
        let all = self.in_flight();
        if all == 0 {
            return Ok(false);
        }
        // Mostly the oldest, as NCCL.
        let mut at = if driver.random.below(4) > 0 { 0 } else { driver.random.below(all as u64) };
        let mut number = 0;
        while at >= self.groups[number].requests.len() as u64 {
            at -= self.groups[number].requests.len() as u64;
            number += 1;
        }
        let (index, request) = self.groups[number].requests[at as usize];
        let mut sizes = [-1; MAX_GROUPED_RECVS];
        let wants_sizes = driver.random.below(8) > 0;
        if !driver.plugin.test(request, wants_sizes.then_some(&mut sizes))? {
            return Ok(false);
        }
        self.groups[number].requests.swap_remove(at as usize);
        match self.is_send {
            true => self.sent(number, index, sizes[0]),
            false => self.received(driver, number, &sizes)?,
        }
        self.free_complete();
        Ok(true)
    }

    /// A message was sent: its memory is used for something else.
    fn sent(&mut self, number: usize, index: usize, size: c_int) {
        let Posted { group, starts, .. } = &self.groups[number];
        let length = group.messages[index].send;
        assert!(size == -1 || size == length as c_int, "{}: sent {size} of {length}", self.name);
        // SAFETY: the request is complete.
        unsafe { std::slice::from_raw_parts_mut(starts[index], length) }.fill(SENT);
        self.moved += length as u64;
    }

    /// Verifies a group, and flushes it.
    fn received(
        &mut self,
        driver: &Driver,
        number: usize,
        sizes: &[c_int; MAX_GROUPED_RECVS],
    ) -> Outcome {
        let Posted { group, starts, .. } = &self.groups[number];
        let where_from = || format!("{}, group {}", self.name, group.sequence);
        for (index, (message, start)) in group.messages.iter().zip(starts).enumerate() {
            let size = sizes[index];
            assert!(size == -1 || size == message.send as c_int, "{}: {size}", where_from());
            // SAFETY: the request is complete.
            let bytes = unsafe { std::slice::from_raw_parts(*start, message.recv + GAP) };
            let (content, rest) = bytes.split_at(message.send);
            let id = (self.plan.connection, group.sequence, index);
            assert!(driver.pattern.matches(id, content), "{}: wrong contents", where_from());
            assert!(rest == &CANARIES[..rest.len()], "{}: written past the end", where_from());
            let (length, tag, registration) = (message.send, message.tag, self.registration);
            let recv = Recv { start: *start, length, tag, registration };
            assert_eq!(driver.plugin.iflush(self.comm, recv)?, None, "a flush of host memory");
            self.moved += message.send as u64;
        }
        let unused = &sizes[group.messages.len()..];
        assert!(unused.iter().all(|size| *size == -1), "{}: {sizes:?}", where_from());
        Ok(())
    }

    fn free_complete(&mut self) {
        let is_complete =
            |posted: &Posted| posted.requests.is_empty() && posted.unposted.is_empty();
        while self.groups.front().is_some_and(is_complete) {
            self.groups.pop_front();
            self.arena.free();
        }
    }

    /// For the message of a hang.
    pub fn describe(&self) -> String {
        let (requests, moved) = (self.in_flight(), self.moved);
        let unposted: usize = self.groups.iter().map(|posted| posted.unposted.len()).sum();
        let Self { name, error, .. } = self;
        format!("{name}: {moved} bytes, {requests} requests, {unposted} unposted, {error:?}")
    }
}
