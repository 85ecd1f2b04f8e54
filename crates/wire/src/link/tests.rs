//! Two links in one thread; the test carries the bytes between them and sets the time.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::handshake::{HANDSHAKE_LEN, HELLO_LEN, PREFIX_LEN};
use super::*;
use crate::clock::RunClock;

const TIMING: Timing = Timing {
    handshake: Duration::from_secs(5),
    heartbeat: Duration::from_secs(2),
    lost_after: Duration::from_secs(10),
};

fn secret(digit: char) -> Secret {
    Secret::from_hex(&String::from(digit).repeat(64)).unwrap()
}

fn link(role: Role, secret: &Secret, nonce: u8, now: Instant) -> Link {
    Link::new(role, secret, [nonce; 32], TIMING, now)
}

fn pair(now: Instant) -> (Link, Link) {
    let secret = secret('a');
    (link(Role::Initiator, &secret, 1, now), link(Role::Responder, &secret, 2, now))
}

/// Removes and returns the pending bytes.
fn drain(link: &mut Link) -> Vec<u8> {
    let bytes = link.pending().to_vec();
    link.advance(bytes.len());
    bytes
}

/// Passes bytes to a link and returns its events.
fn receive(link: &mut Link, bytes: &[u8], now: Instant) -> Result<Vec<LinkEvent>> {
    let mut events = Vec::new();
    link.receive(bytes, now, &mut events).map(|()| events)
}

/// Delivers the pending bytes of a link and returns the events of the other.
fn transfer(from: &mut Link, to: &mut Link, now: Instant) -> Result<Vec<LinkEvent>> {
    receive(to, &drain(from), now)
}

const AUTHENTICATION_FAILED: Result<Vec<LinkEvent>> = Err(LinkError::AuthenticationFailed);

/// Exchanges bytes until neither link has any pending; returns the events of each.
fn exchange(initiator: &mut Link, responder: &mut Link, now: Instant) -> [Vec<LinkEvent>; 2] {
    let mut events = [Vec::new(), Vec::new()];
    while initiator.backlog() + responder.backlog() > 0 {
        events[1].extend(transfer(initiator, responder, now).unwrap());
        events[0].extend(transfer(responder, initiator, now).unwrap());
    }
    events
}

fn ready_pair(now: Instant) -> (Link, Link) {
    let (mut initiator, mut responder) = pair(now);
    exchange(&mut initiator, &mut responder, now);
    assert!(initiator.is_ready() && responder.is_ready());
    (initiator, responder)
}

fn frame(payload: &[u8]) -> LinkEvent {
    LinkEvent::Frame(payload.to_vec())
}

#[test]
fn frames_sent_before_the_handshake_are_delivered_after_it() {
    let now = Instant::now();
    let (mut initiator, mut responder) = pair(now);
    assert!(initiator.send(b"one") && initiator.send(b"") && responder.send(b"two"));
    assert_eq!(initiator.pending().len(), HELLO_LEN, "only the hello goes out");
    assert_eq!(initiator.backlog(), HELLO_LEN + 3 + 2 * FRAME_OVERHEAD);
    let events = exchange(&mut initiator, &mut responder, now);
    assert_eq!(events[0], [LinkEvent::Ready, frame(b"two")]);
    assert_eq!(events[1], [LinkEvent::Ready, frame(b"one"), frame(b"")]);
}

#[test]
fn both_sides_report_a_wrong_secret() {
    let now = Instant::now();
    let mut initiator = link(Role::Initiator, &secret('a'), 1, now);
    let mut responder = link(Role::Responder, &secret('b'), 2, now);
    transfer(&mut initiator, &mut responder, now).unwrap();
    assert_eq!(transfer(&mut responder, &mut initiator, now), AUTHENTICATION_FAILED);
    assert_eq!(transfer(&mut initiator, &mut responder, now), AUTHENTICATION_FAILED);
    assert!(!initiator.is_ready() && !responder.is_ready());
}

#[test]
fn the_secret_is_never_transmitted() {
    let now = Instant::now();
    let (mut initiator, mut responder) = pair(now);
    let mut wire = drain(&mut initiator);
    receive(&mut responder, &wire, now).unwrap();
    wire.extend(drain(&mut responder));
    receive(&mut initiator, &wire[HELLO_LEN..], now).unwrap();
    wire.extend(drain(&mut initiator));
    assert!(!wire.windows(8).any(|window| window == &secret('a').bytes()[..8]));
}

#[test]
fn both_sides_report_a_version_mismatch() {
    let now = Instant::now();
    let (mut initiator, mut responder) = pair(now);
    let mut hello = drain(&mut initiator);
    hello[PREFIX_LEN - 1] = 9;
    let mismatch = LinkError::VersionMismatch { theirs: 9, ours: PROTOCOL_VERSION };
    assert_eq!(receive(&mut responder, &hello, now), Err(mismatch.clone()));
    assert!(mismatch.to_string().contains("same regatta version on every node"));

    // The peer, of version 9, reads our version from the reply.
    let mut reply = drain(&mut responder);
    assert_eq!(reply.len(), PREFIX_LEN);
    assert_eq!(reply[PREFIX_LEN - 2..], PROTOCOL_VERSION.to_be_bytes());
    reply[PREFIX_LEN - 1] = 9;
    assert_eq!(receive(&mut initiator, &reply, now), Err(mismatch));
}

#[test]
fn errors_are_final() {
    let now = Instant::now();
    let (mut initiator, mut responder) = pair(now);
    assert_eq!(receive(&mut responder, b"GET / HTTP/1.1", now), Err(LinkError::BadMagic));
    assert_eq!(transfer(&mut initiator, &mut responder, now), Err(LinkError::BadMagic));
    assert_eq!(responder.tick(now + TIMING.handshake), Err(LinkError::BadMagic));
}

#[test]
fn bad_magic_is_rejected_at_the_first_wrong_byte() {
    let now = Instant::now();
    let (_, mut responder) = pair(now);
    assert_eq!(receive(&mut responder, b"REG", now), Ok(vec![]));
    assert_eq!(receive(&mut responder, b"X", now), Err(LinkError::BadMagic));
}

#[test]
fn a_reflected_proof_is_rejected() {
    let now = Instant::now();
    // A responder that receives its own proof.
    let (mut initiator, mut responder) = pair(now);
    transfer(&mut initiator, &mut responder, now).unwrap();
    let reply = drain(&mut responder);
    assert_eq!(receive(&mut responder, &reply[HELLO_LEN..], now), AUTHENTICATION_FAILED);

    // An initiator that gets its own hello back, with the proof of a responder that replied to it.
    let (mut initiator, mut responder) = pair(now);
    let hello = drain(&mut initiator);
    receive(&mut responder, &hello, now).unwrap();
    let proof = drain(&mut responder).split_off(HELLO_LEN);
    assert_eq!(receive(&mut initiator, &[hello, proof].concat(), now), AUTHENTICATION_FAILED);
}

#[test]
fn a_proof_with_the_wrong_role_is_rejected() {
    // With equal nonces, only the role label distinguishes the proofs.
    let now = Instant::now();
    let link = |role| link(role, &secret('a'), 7, now);
    let (mut initiator, mut responder) = (link(Role::Initiator), link(Role::Responder));
    transfer(&mut initiator, &mut responder, now).unwrap();
    let proof = drain(&mut responder).split_off(HELLO_LEN);
    assert_eq!(receive(&mut responder, &proof, now), AUTHENTICATION_FAILED);
}

#[test]
fn a_replayed_handshake_is_rejected() {
    let now = Instant::now();
    let (mut initiator, mut responder) = pair(now);
    let mut sent = drain(&mut initiator);
    receive(&mut responder, &sent, now).unwrap();
    let reply = drain(&mut responder);
    receive(&mut initiator, &reply, now).unwrap();
    sent.extend(drain(&mut initiator));
    assert_eq!(receive(&mut responder, &sent[HELLO_LEN..], now), Ok(vec![LinkEvent::Ready]));

    for (role, bytes) in [(Role::Responder, sent), (Role::Initiator, reply)] {
        let mut other = link(role, &secret('a'), 3, now);
        assert_eq!(receive(&mut other, &bytes, now), AUTHENTICATION_FAILED, "{role:?}");
    }
}

#[test]
fn any_flipped_bit_of_the_handshake_is_rejected() {
    let now = Instant::now();
    for bit in 0..HANDSHAKE_LEN * 8 {
        let (mut initiator, mut responder) = pair(now);
        transfer(&mut initiator, &mut responder, now).unwrap();
        let mut reply = drain(&mut responder);
        reply[bit / 8] ^= 1 << (bit % 8);
        assert!(receive(&mut initiator, &reply, now).is_err(), "bit {bit}");
        assert!(!initiator.is_ready());
    }
}

#[test]
fn heartbeats_keep_an_idle_link_alive_and_silence_ends_it() {
    let start = Instant::now();
    let (mut initiator, mut responder) = ready_pair(start);
    let mut heartbeats = 0;
    for second in 1..=60 {
        let now = start + Duration::from_secs(second);
        initiator.tick(now).unwrap();
        responder.tick(now).unwrap();
        heartbeats += usize::from(!initiator.pending().is_empty());
        assert_eq!(exchange(&mut initiator, &mut responder, now), [vec![], vec![]]);
    }
    assert_eq!(heartbeats, 30, "one every two seconds");

    let cut = start + Duration::from_secs(60);
    assert_eq!(responder.tick(cut + Duration::from_millis(9_999)), Ok(()));
    let lost = responder.tick(cut + TIMING.lost_after);
    assert_eq!(lost, Err(LinkError::HeartbeatTimeout { seconds: 10 }));
}

#[test]
fn peers_that_are_stopped_together_do_not_time_out() {
    let (start, clock) = (Instant::now(), RunClock::new());
    let at = |millis: u64| start + Duration::from_nanos(clock.read(millis * 1_000_000));
    let (mut initiator, _) = ready_pair(start);
    for millis in (0..3_000).step_by(50) {
        initiator.tick(at(millis)).unwrap();
    }
    // Stopped from 3 s to 63 s; the responder is resumed 4 s later than this process.
    for millis in (63_000..67_000).step_by(50) {
        assert_eq!(initiator.tick(at(millis)), Ok(()));
    }
    let last = clock.read(67_000_000_000) / 1_000_000;
    assert!((7_000..8_000).contains(&last), "{last} ms on the clock");
    // A peer that is not resumed is lost.
    let lost = (67_000..80_000).step_by(50).find_map(|millis| initiator.tick(at(millis)).err());
    assert_eq!(lost, Some(LinkError::HeartbeatTimeout { seconds: 10 }));
}

#[test]
fn received_data_resets_the_heartbeat_timeout() {
    let start = Instant::now();
    let (mut initiator, mut responder) = ready_pair(start);
    initiator.send(&[1; 1000]);
    for (second, byte) in (1..).zip(drain(&mut initiator)) {
        let now = start + Duration::from_secs(second);
        receive(&mut responder, &[byte], now).unwrap();
        assert_eq!(responder.tick(now), Ok(()));
    }
}

#[test]
fn heartbeat_is_sent_without_receiving_and_only_after_the_handshake() {
    let start = Instant::now();
    let (mut busy, mut responder) = ready_pair(start);
    for second in 0..60 {
        let now = start + Duration::from_secs(second);
        busy.heartbeat(now);
        transfer(&mut busy, &mut responder, now).unwrap();
        responder.tick(now).unwrap();
    }
    let (mut early, _) = pair(start);
    drain(&mut early);
    early.heartbeat(start + TIMING.heartbeat);
    assert!(early.pending().is_empty(), "no heartbeat before the handshake is complete");
}

#[test]
fn heartbeats_do_not_accumulate_on_a_blocked_socket() {
    let start = Instant::now();
    let (mut initiator, _) = ready_pair(start);
    for second in 1..9 {
        initiator.tick(start + Duration::from_secs(second)).unwrap();
    }
    assert_eq!(initiator.backlog(), FRAME_OVERHEAD);
}

#[test]
fn a_slow_handshake_times_out() {
    let start = Instant::now();
    let (mut initiator, mut responder) = pair(start);
    for (second, byte) in (1..5).zip(drain(&mut initiator)) {
        let now = start + Duration::from_secs(second);
        receive(&mut responder, &[byte], now).unwrap();
        assert_eq!(responder.tick(now), Ok(()));
    }
    assert_eq!(responder.tick(start + TIMING.handshake), Err(LinkError::HandshakeTimeout));
    assert_eq!(initiator.tick(start + TIMING.handshake), Err(LinkError::HandshakeTimeout));
}

#[test]
fn oversized_frames_are_rejected_by_sender_and_receiver() {
    let now = Instant::now();
    let (mut initiator, mut responder) = ready_pair(now);
    assert!(!initiator.send(&vec![0; MAX_FRAME_LEN + 1]));
    assert_eq!(initiator.backlog(), 0);

    let mut events = Vec::new();
    let max = MAX_FRAME_LEN + OVERHEAD;
    initiator.send(&[7]);
    let bytes = [drain(&mut initiator), (max as u32 + 1).to_be_bytes().to_vec()].concat();
    let result = responder.receive(&bytes, now, &mut events);
    let error = FrameError::TooLong { bytes: max + 1, max };
    assert_eq!(result, Err(error.into()));
    assert_eq!(events, [frame(&[7])], "earlier frames are delivered");
}

#[test]
fn a_frame_of_maximum_length_is_delivered() {
    let now = Instant::now();
    let (mut initiator, mut responder) = ready_pair(now);
    assert!(initiator.send(&vec![5; MAX_FRAME_LEN]));
    let [_, received] = exchange(&mut initiator, &mut responder, now);
    assert!(matches!(&received[..], [LinkEvent::Frame(payload)] if payload.len() == MAX_FRAME_LEN));
}

/// All bytes from initiator to responder, and the events they produce.
fn recorded_stream(payloads: &[Vec<u8>], now: Instant) -> (Link, Vec<u8>, Vec<LinkEvent>) {
    let (mut initiator, mut responder) = pair(now);
    let mut bytes = drain(&mut initiator);
    receive(&mut responder, &bytes, now).unwrap();
    transfer(&mut responder, &mut initiator, now).unwrap();
    let mut events = vec![LinkEvent::Ready];
    for (at, payload) in (1..).zip(payloads) {
        initiator.send(payload);
        events.push(LinkEvent::Frame(payload.clone()));
        bytes.extend(drain(&mut initiator));
        initiator.tick(now + TIMING.heartbeat * at).unwrap();
    }
    bytes.extend(drain(&mut initiator));
    // A new responder with the same nonce gives the same replies.
    (pair(now).1, bytes, events)
}

/// The frames of payloads, as bytes on the wire.
fn sealed(link: &mut Link, payloads: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let seal = |payload: &Vec<u8>| {
        link.send(payload);
        drain(link)
    };
    payloads.iter().map(seal).collect()
}

#[test]
fn plaintext_and_repetitions_are_not_visible_on_the_wire() {
    let now = Instant::now();
    let (mut initiator, mut responder) = pair(now);
    let key = b"API_KEY=hunter2 in the environment".to_vec();
    initiator.send(&key);
    let mut wire = drain(&mut initiator);
    receive(&mut responder, &wire, now).unwrap();
    transfer(&mut responder, &mut initiator, now).unwrap();
    wire.extend(drain(&mut initiator));
    let [first, second] = sealed(&mut initiator, &[key.clone(), key.clone()]).try_into().unwrap();
    assert_ne!(first, second);
    for bytes in [wire, first, second] {
        assert!(!bytes.windows(8).any(|window| key.windows(8).any(|part| part == window)));
    }
}

#[test]
fn frames_of_another_direction_or_link_are_rejected() {
    let now = Instant::now();
    let (mut initiator, _) = ready_pair(now);
    initiator.send(b"reflected");
    let bytes = drain(&mut initiator);
    let rejected = Err(LinkError::FrameNotAuthentic);
    assert_eq!(receive(&mut initiator, &bytes, now), rejected);

    let (mut other, mut responder) =
        (link(Role::Initiator, &secret('a'), 3, now), link(Role::Responder, &secret('a'), 4, now));
    exchange(&mut other, &mut responder, now);
    assert_eq!(receive(&mut responder, &bytes, now), rejected);
}

#[test]
fn heartbeats_are_authenticated() {
    let start = Instant::now();
    let (mut initiator, mut responder) = ready_pair(start);
    initiator.heartbeat(start + TIMING.heartbeat);
    let mut heartbeat = drain(&mut initiator);
    *heartbeat.last_mut().unwrap() ^= 1;
    assert_eq!(receive(&mut responder, &heartbeat, start), Err(LinkError::FrameNotAuthentic));
    assert_eq!(responder.tick(start), Err(LinkError::FrameNotAuthentic), "the link is closed");
}

proptest! {
    #[test]
    fn frames_do_not_depend_on_segmentation(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..5),
        chunk_lens in prop::collection::vec(1usize..100, 1..50),
    ) {
        let now = Instant::now();
        let (mut responder, bytes, events) = recorded_stream(&payloads, now);
        let (mut received, mut rest, mut chunk_lens) = (Vec::new(), &bytes[..], chunk_lens.iter().cycle());
        while !rest.is_empty() {
            let (chunk, remaining) = rest.split_at((*chunk_lens.next().unwrap()).min(rest.len()));
            received.extend(receive(&mut responder, chunk, now).unwrap());
            rest = remaining;
        }
        prop_assert_eq!(received, events);
    }

    #[test]
    fn random_bytes_never_authenticate(
        hello in any::<bool>(),
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..10),
        role in prop_oneof![Just(Role::Initiator), Just(Role::Responder)],
    ) {
        let now = Instant::now();
        let mut link = link(role, &secret('a'), 1, now);
        let mut events = Vec::new();
        if hello {
            let mut other = self::link(Role::Initiator, &secret('b'), 2, now);
            link.receive(&drain(&mut other), now, &mut events).unwrap();
        }
        for chunk in &chunks {
            let _ = link.receive(chunk, now, &mut events);
            prop_assert!(link.backlog() <= 2 * HANDSHAKE_LEN);
        }
        prop_assert!(!link.is_ready() && events.is_empty());
    }

    #[test]
    fn random_bytes_after_the_handshake_never_panic(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..10),
    ) {
        let now = Instant::now();
        let (_, mut responder) = ready_pair(now);
        let mut events = Vec::new();
        for chunk in &chunks {
            let _ = responder.receive(chunk, now, &mut events);
        }
        prop_assert_eq!(events, []);
    }

    #[test]
    fn a_flipped_bit_ends_the_link_before_the_frame_is_delivered(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..5),
        at in any::<prop::sample::Index>(),
        bit in 0u32..8,
    ) {
        let now = Instant::now();
        let (mut initiator, mut responder) = ready_pair(now);
        let frames = sealed(&mut initiator, &payloads);
        let mut bytes = frames.concat();
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        let mut events = Vec::new();
        let result = responder.receive(&bytes, now, &mut events);
        let (mut intact, mut end) = (Vec::new(), 0);
        for (payload, bytes) in payloads.iter().zip(&frames) {
            end += bytes.len();
            if end > at {
                break;
            }
            intact.push(frame(payload));
        }
        prop_assert_eq!(&events, &intact);
        // After a longer length the link waits for more bytes; any byte of them ends it.
        let start = frames[..intact.len()].concat().len();
        prop_assert!(result.is_err() || at < start + framing::PREFIX_LEN);
    }

    #[test]
    fn replayed_reordered_and_dropped_frames_are_rejected(
        order in prop::collection::vec(0usize..4, 1..8),
    ) {
        let now = Instant::now();
        let (mut initiator, mut responder) = ready_pair(now);
        let payloads: Vec<Vec<u8>> = (0..4).map(|i| vec![i; 10]).collect();
        let frames = sealed(&mut initiator, &payloads);
        let mut events = Vec::new();
        let bytes: Vec<u8> = order.iter().flat_map(|i| frames[*i].clone()).collect();
        let result = responder.receive(&bytes, now, &mut events);
        let in_order = order.iter().enumerate().take_while(|(at, i)| at == *i).count();
        let expected: Vec<_> = payloads[..in_order].iter().map(|payload| frame(payload)).collect();
        prop_assert_eq!(events, expected);
        let error = (in_order < order.len()).then_some(LinkError::FrameNotAuthentic);
        prop_assert_eq!(result.err(), error);
    }
}
