//! Two ranks in one thread, each with a carrier. Skipped in words where there is no libfabric.

use std::time::{Duration, Instant};

use super::carrier::{Carrier, GRACE};
use super::choose::Choice;
use super::gear::Gear;
use super::meet::open;
use super::tag::Tags;
use crate::tcp::{Channels, Head, Key, Posted};
use crate::transport::{Landing, Ticket};
use crate::{DType, ReduceOp};

const CHANNEL: u64 = 5;

struct Rank {
    carrier: Carrier,
    channels: Channels,
}

/// Two ranks over libfabric's tcp; as if the provider wanted memory to be registered, or not.
fn two(registered: bool) -> Option<[Rank; 2]> {
    let localhost = Some(std::net::Ipv4Addr::LOCALHOST.into());
    let port = || open(&Choice::parse("tcp"), localhost, 0, 1);
    let mut ports = match (port(), port()) {
        (Ok(one), Ok(other)) => [one, other],
        (Err(why), _) | (_, Err(why)) => {
            println!("skipped: {why}");
            return None;
        }
    };
    let addresses: Vec<_> = ports.iter().map(|port| port.address().unwrap()).collect();
    for port in &mut ports {
        port.reach(&addresses).unwrap();
        if registered {
            port.want_registration();
        }
    }
    let mut rank = 0;
    Some(ports.map(|port| {
        let gear = Gear::new(port, Tags::new(48, 2).unwrap(), 7, rank);
        rank += 1;
        Rank { carrier: Carrier::new(gear, 7, &addresses).unwrap(), channels: Channels::default() }
    }))
}

#[test]
fn what_cannot_be_closed_takes_nothing_more_and_is_closed_later() {
    let localhost = Some(std::net::Ipv4Addr::LOCALHOST.into());
    let mut port = match open(&Choice::parse("tcp"), localhost, 0, 1) {
        Ok(port) => port,
        Err(why) => return println!("skipped: {why}"),
    };
    let mut room = vec![0u8; 100];
    port.want_registration();
    port.register(room.as_mut_ptr(), room.len()).unwrap();
    port.pretend_busy(true);
    assert!(!port.shut() && !port.close());
    let (bytes, none) = ((room.as_ptr(), room.len()), std::ptr::null_mut());
    // SAFETY: nothing is posted.
    let refused = unsafe { port.send(0, bytes, none, 0, std::ptr::null_mut()) };
    assert!(refused.unwrap_err().contains("shut"));
    port.pretend_busy(false);
    assert!(port.close() && port.close());
}

fn key(tag: u64) -> Key {
    Key { channel: CHANNEL, tagged: true, number: tag }
}

impl Rank {
    fn send(&mut self, to: u32, tag: u64, bytes: &[u8]) {
        let head = Head { key: key(tag), length: bytes.len() as u64, what: 0, stripes: 1 };
        self.carrier.send(to, head, Ticket(tag), bytes.as_ptr(), &mut self.channels);
    }

    fn receive(&mut self, from: u32, tag: u64, into: &mut [u8], landing: Landing) {
        let (start, length) = (into.as_mut_ptr(), into.len());
        let posted = Posted {
            key: key(tag),
            what: 0,
            ticket: Ticket(tag),
            start,
            length,
            landing,
            with: None,
        };
        self.carrier.receive(from, posted, &mut self.channels);
    }

    /// Looks once. Whether an operation is done.
    fn looks(&mut self) -> bool {
        let broken = self.carrier.pass(&mut self.channels);
        assert!(broken.is_empty(), "{broken:?}");
        self.carrier.rest();
        !std::mem::take(&mut self.channels.get(CHANNEL).done).is_empty()
    }
}

/// Until each has done so many operations.
fn run(ranks: &mut [Rank; 2], mut wanted: [usize; 2]) {
    let until = Instant::now() + Duration::from_secs(60);
    while wanted != [0, 0] {
        assert!(Instant::now() < until, "still to do: {wanted:?}");
        for (rank, wanted) in ranks.iter_mut().zip(&mut wanted) {
            *wanted -= usize::from(rank.looks()).min(*wanted);
        }
    }
}

fn numbers(count: usize, from: u8) -> Vec<u8> {
    (0..count).map(|i| (i % 50) as u8 + from).collect()
}

#[test]
fn messages_of_all_lengths_land_where_they_should() {
    for registered in [false, true] {
        let Some(mut ranks) = two(registered) else { return };
        for length in [0, 1, 5000, 16_312, 16_313, 262_144, 262_145, 3_000_001] {
            for landing in [Landing::Replace, Landing::Reduce(DType::U8, ReduceOp::Sum)] {
                let (sent, mut got) = (numbers(length, 1), numbers(length, 3));
                ranks[1].receive(0, 9, &mut got, landing);
                ranks[0].send(1, 9, &sent);
                run(&mut ranks, [1, 1]);
                let sum = landing != Landing::Replace;
                let right = |i: usize| sent[i] + if sum { (i % 50) as u8 + 3 } else { 0 };
                assert!((0..length).all(|i| got[i] == right(i)), "{length} {landing:?}");
            }
        }
    }
}

#[test]
fn what_nobody_asks_for_is_fetched_and_kept() {
    let Some(mut ranks) = two(false) else { return };
    let (sent, mut got) = (numbers(1_000_000, 0), vec![0; 1_000_000]);
    ranks[0].send(1, 1, &sent);
    run(&mut ranks, [1, 0]);
    drop(sent);
    ranks[1].receive(0, 1, &mut got, Landing::Replace);
    run(&mut ranks, [0, 1]);
    assert_eq!(got, numbers(1_000_000, 0));
}

#[test]
fn memory_that_is_taken_back_is_not_touched_and_the_next_message_comes() {
    let Some(mut ranks) = two(false) else { return };
    let (sent, mut got) = (numbers(4_000_000, 1), vec![0; 4_000_000]);
    ranks[1].receive(0, 1, &mut got, Landing::Replace);
    ranks[0].send(1, 1, &sent);
    // Until something has come, and by far not all.
    while ranks[1].channels.get(CHANNEL).moved == 0 {
        ranks.iter_mut().for_each(|rank| drop(rank.carrier.pass(&mut rank.channels)));
    }
    // Both at once, for one waits for the other.
    std::thread::scope(|scope| {
        for rank in &mut ranks {
            scope.spawn(|| rank.carrier.cancel(CHANNEL, GRACE, &mut rank.channels));
        }
    });
    let (before, mut next) = (got.clone(), [0; 3]);
    drop(sent);
    ranks[1].receive(0, 2, &mut next, Landing::Replace);
    ranks[0].send(1, 2, &[4, 5, 6]);
    run(&mut ranks, [1, 1]);
    for _ in 0..1000 {
        ranks.iter_mut().for_each(|rank| assert!(!rank.looks()));
    }
    assert!(got == before);
    assert_eq!(next, [4, 5, 6]);
}
