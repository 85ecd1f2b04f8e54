//! Two ranks in one thread, each with an endpoint. Skipped with a message if libfabric is missing and not
//! required.

use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_fabric::ProviderChoice;
use regatta_fabric::abi::{Fid, Ops};
use regatta_fabric::memory::{Memory, Region};
use regatta_testbed::{REQUIRE_LIBFABRIC, skip};

use super::fabric::Fabric;
use super::negotiate::open;
use super::network::FabricNetwork;
use super::requests::RequestPool;
use super::tag::FabricTags;
use crate::matching::{Envelope, MessageKey, PostedRecv};
use crate::network::{Network, SharedState, UserBuffer, UserSend};
use crate::transport::{RecvAction, RequestId};
use crate::{DType, ReduceOp};

const COMM_ID: u64 = 5;

struct Rank {
    network: FabricNetwork,
    shared: Arc<SharedState>,
}

/// Two ranks over the tcp provider, optionally simulating required memory registration.
fn two_ranks(registration: bool) -> Option<[Rank; 2]> {
    let localhost = Some(std::net::Ipv4Addr::LOCALHOST.into());
    let endpoint = || open(&ProviderChoice::parse("tcp"), localhost, 0, 1);
    let mut endpoints = match (endpoint(), endpoint()) {
        (Ok(one), Ok(other)) => [one, other],
        (Err(why), _) | (_, Err(why)) => {
            skip(REQUIRE_LIBFABRIC, why);
            return None;
        }
    };
    let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address().unwrap()).collect();
    for endpoint in &mut endpoints {
        if registration {
            endpoint.info.needs_registration = true;
        }
    }
    let mut rank = 0;
    Some(endpoints.map(|endpoint| {
        let tags = FabricTags::new(48, 2).unwrap();
        let pool = RequestPool::new(endpoint, &addresses, tags, 7, rank).unwrap();
        rank += 1;
        let shared = Arc::new(SharedState::new().unwrap());
        shared.lock().comms.get(COMM_ID);
        let fabric = Fabric::new(pool, &addresses, shared.clone()).unwrap();
        Rank { network: FabricNetwork::new(fabric, shared.clone()), shared }
    }))
}

#[test]
fn a_busy_endpoint_rejects_posts_and_can_be_closed_later() {
    let localhost = Some(std::net::Ipv4Addr::LOCALHOST.into());
    let mut endpoint = match open(&ProviderChoice::parse("tcp"), localhost, 0, 1) {
        Ok(endpoint) => endpoint,
        Err(why) => return skip(REQUIRE_LIBFABRIC, why),
    };
    let mut memory = vec![0u8; 100];
    endpoint.info.needs_registration = true;
    endpoint.register(Memory::host(memory.as_mut_ptr(), memory.len()), false).unwrap();
    unsafe extern "C" fn refuse(_: *mut Fid) -> std::ffi::c_int {
        -libc::EBUSY
    }
    let real = *endpoint.ops();
    // SAFETY: the functions of an open endpoint.
    let busy = Ops { close: refuse, ..unsafe { *real } };
    *endpoint.ops() = Box::leak(Box::new(busy));
    assert!(!endpoint.close_ep() && !endpoint.close());
    let none = std::ptr::null_mut();
    // SAFETY: nothing is posted, because the endpoint is closed.
    let rejected = unsafe { endpoint.post(None, &mut memory[..], Region::NONE, 0, none) };
    assert!(rejected.unwrap_err().contains("closed"));
    *endpoint.ops() = real;
    assert!(endpoint.close() && endpoint.close());
}

fn envelope(tag: u64, length: usize) -> Envelope {
    let key = MessageKey { comm_id: COMM_ID, tagged: true, number: tag };
    Envelope { key, length: length as u64, signature_hash: 0 }
}

impl Rank {
    fn send(&self, to: u32, tag: u64, bytes: &[u8]) {
        let (envelope, start) = (envelope(tag, bytes.len()), bytes.as_ptr());
        self.network.send(to, UserSend { envelope, request: RequestId(tag), start });
    }

    fn receive(&self, from: u32, tag: u64, into: &mut [u8], action: RecvAction) {
        let (envelope, request) = (envelope(tag, into.len()), RequestId(tag));
        let buffer = UserBuffer::new(into, action);
        self.network.receive(from, PostedRecv { envelope, request, buffer });
    }

    /// Makes progress once. Returns whether a request completed.
    fn progress(&self) -> bool {
        self.network.progress();
        self.network.sleep_set(Duration::ZERO);
        let mut state = self.shared.lock();
        assert!(state.broken.is_empty(), "{:?}", state.broken);
        !state.comms.take_completed(COMM_ID).is_empty()
    }
}

/// Makes progress until each rank has completed this many requests.
fn run(ranks: &[Rank; 2], mut pending: [usize; 2]) {
    let until = Instant::now() + Duration::from_secs(60);
    while pending != [0, 0] {
        assert!(Instant::now() < until, "pending: {pending:?}");
        for (rank, pending) in ranks.iter().zip(&mut pending) {
            *pending -= usize::from(rank.progress()).min(*pending);
        }
    }
}

fn pattern(count: usize, from: u8) -> Vec<u8> {
    (0..count).map(|i| (i % 50) as u8 + from).collect()
}

#[test]
fn messages_of_all_sizes_are_copied_and_reduced() {
    for registration in [false, true] {
        let Some(ranks) = two_ranks(registration) else { return };
        for length in [0, 1, 5000, 16_312, 16_313, 262_144, 262_145, 3_000_001] {
            for action in [RecvAction::Copy, RecvAction::Reduce(DType::U8, ReduceOp::Sum)] {
                let (sent, mut got) = (pattern(length, 1), pattern(length, 3));
                ranks[1].receive(0, 9, &mut got, action);
                ranks[0].send(1, 9, &sent);
                run(&ranks, [1, 1]);
                let sum = action != RecvAction::Copy;
                let expected = |i: usize| sent[i] + if sum { (i % 50) as u8 + 3 } else { 0 };
                assert!((0..length).all(|i| got[i] == expected(i)), "{length} {action:?}");
            }
        }
    }
}

#[test]
fn large_unexpected_messages_are_fetched() {
    let Some(ranks) = two_ranks(false) else { return };
    let (sent, mut got) = (pattern(1_000_000, 0), vec![0; 1_000_000]);
    ranks[0].send(1, 1, &sent);
    run(&ranks, [1, 0]);
    drop(sent);
    ranks[1].receive(0, 1, &mut got, RecvAction::Copy);
    run(&ranks, [0, 1]);
    assert_eq!(got, pattern(1_000_000, 0));
}

#[test]
fn cancelled_memory_is_not_written_and_later_messages_arrive() {
    let Some(ranks) = two_ranks(false) else { return };
    let (sent, mut got) = (pattern(4_000_000, 1), vec![0; 4_000_000]);
    ranks[1].receive(0, 1, &mut got, RecvAction::Copy);
    ranks[0].send(1, 1, &sent);
    // Until part of the message has arrived.
    while ranks[1].shared.lock().comms.get(COMM_ID).bytes_moved == 0 {
        ranks.iter().for_each(|rank| rank.network.progress());
    }
    // Concurrently, because the ranks wait for each other.
    std::thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(|| rank.network.cancel(COMM_ID, false));
        }
    });
    ranks.iter().for_each(|rank| drop(rank.shared.lock().comms.take_completed(COMM_ID)));
    let (before, mut next) = (got.clone(), [0; 3]);
    drop(sent);
    ranks[1].receive(0, 2, &mut next, RecvAction::Copy);
    ranks[0].send(1, 2, &[4, 5, 6]);
    run(&ranks, [1, 1]);
    for _ in 0..1000 {
        ranks.iter().for_each(|rank| assert!(!rank.progress()));
    }
    assert!(got == before);
    assert_eq!(next, [4, 5, 6]);
}
