use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

const OPEN: CommStatus = CommStatus::Open { calls: 0, signature_hash: 0 };

fn envelope(comm_id: u64, tag: u32, length: u64) -> Envelope {
    let key = MessageKey::new(comm_id, MatchKey::Tag(tag), 0);
    Envelope { key, length, signature_hash: 0 }
}

fn recv(envelope: Envelope, request: u64) -> PostedRecv<u64> {
    PostedRecv { envelope, request: RequestId(request), buffer: request }
}

fn collective(call: u64, signature_hash: u32) -> Envelope {
    let key = MessageKey::new(1, MatchKey::Collective, call);
    Envelope { key, length: 8, signature_hash }
}

/// An event at one rank, about messages of one peer. Payloads are the IDs of the messages.
#[derive(Debug, Clone)]
enum Event {
    Post {
        comm: u64,
        tag: u32,
    },
    /// A message arrives, with its payload or before it.
    Arrive {
        comm: u64,
        tag: u32,
        whole: bool,
    },
    /// The payload of one of the arriving messages is complete.
    Supply(usize),
    Close {
        comm: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let key = || (0u64..3, 0u32..3);
    prop_oneof![
        4 => key().prop_map(|(comm, tag)| Event::Post { comm, tag }),
        4 => (key(), any::<bool>())
            .prop_map(|((comm, tag), whole)| Event::Arrive { comm, tag, whole }),
        3 => (0usize..8).prop_map(Event::Supply),
        1 => (0u64..3).prop_map(|comm| Event::Close { comm }),
    ]
}

/// The reference: the n-th receive of a key gets the n-th message of that key.
#[derive(Default)]
struct Model {
    receives: HashMap<(u64, u32), VecDeque<u64>>,
    messages: HashMap<(u64, u32), VecDeque<u64>>,
    /// The receive of every matched message.
    pairs: HashMap<u64, u64>,
}

impl Model {
    fn pair(&mut self, key: (u64, u32)) {
        let receives = self.receives.entry(key).or_default();
        let messages = self.messages.entry(key).or_default();
        while !receives.is_empty() && !messages.is_empty() {
            self.pairs.extend(messages.pop_front().zip(receives.pop_front()));
        }
    }

    fn close(&mut self, comm: u64) {
        self.receives.retain(|key, _| key.0 != comm);
        self.messages.retain(|key, _| key.0 != comm);
    }

    /// A message is as long as its ID.
    fn unexpected_bytes(&self) -> u64 {
        self.messages.values().flatten().map(|_| 8).sum()
    }
}

proptest! {
    #[test]
    fn every_receive_gets_the_message_in_its_position(events in proptest::collection::vec(event(), 0..200)) {
        let (mut queue, mut model) = (MatchQueue::<u64, u64>::default(), Model::default());
        let mut delivered: HashMap<u64, u64> = HashMap::new();
        // Messages whose payload is still arriving: whether they go directly to a receive.
        let mut arriving: Vec<(u64, Option<u64>)> = Vec::new();
        // Messages of communicators that were closed while they arrived.
        let mut closed: Vec<u64> = Vec::new();
        let mut comms: HashMap<u64, u64> = HashMap::new();
        let mut next = 0;
        for event in events {
            next += 1;
            let result = match event {
                Event::Post { comm, tag } => {
                    model.receives.entry((comm, tag)).or_default().push_back(next);
                    model.pair((comm, tag));
                    queue.post(recv(envelope(comm, tag, 8), next))
                }
                Event::Arrive { comm, tag, whole } => {
                    comms.insert(next, comm);
                    model.messages.entry((comm, tag)).or_default().push_back(next);
                    model.pair((comm, tag));
                    let payload = whole.then_some(next);
                    let result = queue.arrive(next, envelope(comm, tag, 8), payload, || OPEN);
                    if !whole {
                        let direct = match &result {
                            MatchResult::Deliver(recv, None) => Some(recv.buffer),
                            _ => None,
                        };
                        arriving.push((next, direct));
                    }
                    result
                }
                Event::Supply(which) if which < arriving.len() => match arriving.remove(which) {
                    (id, Some(receive)) => {
                        prop_assert_eq!(delivered.insert(id, receive), None);
                        continue;
                    }
                    (id, None) => queue.supply(id, id),
                },
                Event::Supply(_) => continue,
                Event::Close { comm } => {
                    let arriving = arriving.iter().filter(|(_, direct)| direct.is_none());
                    closed.extend(arriving.map(|(id, _)| *id).filter(|id| comms[id] == comm));
                    model.close(comm);
                    prop_assert!(queue.close(comm).iter().all(|id| comms[id] == comm));
                    continue;
                }
            };
            match result {
                MatchResult::Deliver(recv, Some(id)) => {
                    prop_assert_eq!(delivered.insert(id, recv.buffer), None);
                }
                MatchResult::Discard(payload, error) => {
                    prop_assert_eq!(error, None);
                    prop_assert!(payload.is_some_and(|id| closed.contains(&id)));
                }
                MatchResult::Deliver(_, None) | MatchResult::Queued => {}
            }
            prop_assert_eq!(queue.unexpected_bytes(), model.unexpected_bytes());
            let waiting = model.receives.values().any(|receives| !receives.is_empty());
            prop_assert_eq!(queue.has_posted(), waiting);
        }
        for (id, direct) in arriving {
            let receive = match (direct, queue.supply(id, id)) {
                (Some(receive), _) => receive,
                (None, MatchResult::Deliver(recv, _)) => recv.buffer,
                (None, _) => continue,
            };
            prop_assert_eq!(delivered.insert(id, receive), None);
        }
        for (message, receive) in &model.pairs {
            let lost = closed.contains(message) && !delivered.contains_key(message);
            prop_assert!(lost || delivered.get(message) == Some(receive));
        }
        prop_assert!(delivered.keys().all(|message| model.pairs.contains_key(message)));
    }
}

#[test]
fn a_message_of_another_size_is_a_mismatch() {
    let error = Some(ProtocolError::SizeMismatch { request: RequestId(1), sent: 9, expected: 8 });
    let mut queue = MatchQueue::<u64, ()>::default();
    assert_eq!(queue.post(recv(envelope(1, 5, 8), 1)), MatchResult::Queued);
    let arrived = queue.arrive(1, envelope(1, 5, 9), Some(()), || OPEN);
    assert_eq!(arrived, MatchResult::Discard(Some(()), error.clone()));
    // The same if the message is first, whether or not its payload has arrived.
    assert_eq!(queue.arrive(2, envelope(1, 5, 9), None, || OPEN), MatchResult::Queued);
    assert_eq!(queue.post(recv(envelope(1, 5, 8), 1)), MatchResult::Discard(None, error));
    assert_eq!(queue.supply(2, ()), MatchResult::Discard(Some(()), None));
    assert_eq!(queue.unexpected_bytes(), 0);
}

#[test]
fn a_message_of_another_call_is_a_mismatch() {
    let mismatch =
        |call| MatchResult::Discard(Some(()), Some(ProtocolError::CallMismatch { call }));
    let mut queue = MatchQueue::<u64, ()>::default();
    queue.post(recv(collective(3, 70), 1));
    assert_eq!(queue.arrive(1, collective(3, 71), Some(()), || OPEN), mismatch(3));
    // Without a posted receive, the number of calls decides.
    let open = || CommStatus::Open { calls: 4, signature_hash: 80 };
    for (call, hash, result) in [
        (3, 70, mismatch(3)),
        (4, 81, mismatch(4)),
        (4, 80, MatchResult::Queued),
        (5, 90, MatchResult::Queued),
    ] {
        assert_eq!(
            queue.arrive(2, collective(call, hash), Some(()), open),
            result,
            "{call} {hash}"
        );
    }
    let closed = queue.arrive(3, collective(9, 0), Some(()), || CommStatus::Closed);
    assert_eq!(closed, MatchResult::Discard(Some(()), None));
}

#[test]
fn a_payload_that_was_taken_is_delivered_once_it_is_supplied() {
    let mut queue = MatchQueue::<u64, &str>::default();
    queue.arrive(1, envelope(1, 5, 8), Some("header"), || OPEN);
    assert!(queue.any_payload(|payload| *payload == "header"));
    assert_eq!(queue.take_payload(|payload| Some(payload.len())), Some((1, 6)));
    assert_eq!(queue.take_payload(|payload| Some(payload.len())), None);
    assert_eq!(queue.post(recv(envelope(1, 5, 8), 7)), MatchResult::Queued);
    let delivered = MatchResult::Deliver(recv(envelope(1, 5, 8), 7), Some("bytes"));
    assert_eq!(queue.supply(1, "bytes"), delivered);
}
