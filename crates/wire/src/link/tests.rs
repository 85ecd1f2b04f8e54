//! Two links in one thread, with the bytes between them and the time in the test's hands.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::handshake::{HELLO, PREFIX, WHOLE};
use super::*;

const TIMING: Timing = Timing {
    handshake: Duration::from_secs(5),
    beat: Duration::from_secs(2),
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
    (link(Role::Caller, &secret, 1, now), link(Role::Listener, &secret, 2, now))
}

/// What is pending, taken out.
fn take(link: &mut Link) -> Vec<u8> {
    let bytes = link.pending().to_vec();
    link.sent(bytes.len());
    bytes
}

/// What bytes mean to a link.
fn give(link: &mut Link, bytes: &[u8], now: Instant) -> Result<Vec<Step>, LinkError> {
    let mut steps = Vec::new();
    link.receive(bytes, now, &mut steps).map(|()| steps)
}

/// Lets two links talk until neither has more to say; what each heard.
fn talk(caller: &mut Link, listener: &mut Link, now: Instant) -> (Vec<Step>, Vec<Step>) {
    let (mut heard_by_caller, mut heard_by_listener) = (Vec::new(), Vec::new());
    while caller.backlog() + listener.backlog() > 0 {
        heard_by_listener.extend(give(listener, &take(caller), now).unwrap());
        heard_by_caller.extend(give(caller, &take(listener), now).unwrap());
    }
    (heard_by_caller, heard_by_listener)
}

fn ready_pair(now: Instant) -> (Link, Link) {
    let (mut caller, mut listener) = pair(now);
    talk(&mut caller, &mut listener, now);
    assert!(caller.is_ready() && listener.is_ready());
    (caller, listener)
}

fn frame(payload: &[u8]) -> Step {
    Step::Frame(payload.to_vec())
}

#[test]
fn what_is_sent_before_the_handshake_comes_after_it() {
    let now = Instant::now();
    let (mut caller, mut listener) = pair(now);
    assert!(caller.send(b"one") && caller.send(b"") && listener.send(b"two"));
    assert_eq!(caller.pending().len(), HELLO, "only the hello goes out");
    assert_eq!(caller.backlog(), HELLO + 7 + 4);
    let (by_caller, by_listener) = talk(&mut caller, &mut listener, now);
    assert_eq!(by_caller, [Step::Ready, frame(b"two")]);
    assert_eq!(by_listener, [Step::Ready, frame(b"one"), frame(b"")]);
}

#[test]
fn another_secret_is_reported_by_both() {
    let now = Instant::now();
    let mut caller = link(Role::Caller, &secret('a'), 1, now);
    let mut listener = link(Role::Listener, &secret('b'), 2, now);
    give(&mut listener, &take(&mut caller), now).unwrap();
    assert_eq!(give(&mut caller, &take(&mut listener), now), Err(LinkError::WrongSecret));
    assert_eq!(give(&mut listener, &take(&mut caller), now), Err(LinkError::WrongSecret));
    assert!(!caller.is_ready() && !listener.is_ready());
}

#[test]
fn the_secret_is_not_on_the_wire() {
    let now = Instant::now();
    let (mut caller, mut listener) = pair(now);
    let mut wire = take(&mut caller);
    give(&mut listener, &wire, now).unwrap();
    wire.extend(take(&mut listener));
    give(&mut caller, &wire[HELLO..], now).unwrap();
    wire.extend(take(&mut caller));
    let bytes = secret('a');
    assert!(!wire.windows(8).any(|window| window == &bytes.bytes()[..8]));
}

#[test]
fn another_version_is_told_and_reported_by_both() {
    let now = Instant::now();
    let (mut caller, mut listener) = pair(now);
    let mut hello = take(&mut caller);
    hello[PREFIX - 1] = 9;
    let theirs_is_9 = LinkError::Version { theirs: 9, ours: VERSION };
    assert_eq!(give(&mut listener, &hello, now), Err(theirs_is_9.clone()));
    assert!(theirs_is_9.to_string().contains("same regatta on every node"));

    // The other one, which speaks version 9, reads ours from the answer.
    let mut answer = take(&mut listener);
    assert_eq!(answer.len(), PREFIX);
    assert_eq!(answer[PREFIX - 2..], VERSION.to_be_bytes());
    answer[PREFIX - 1] = 9;
    assert_eq!(give(&mut caller, &answer, now), Err(theirs_is_9));
}

#[test]
fn a_link_that_failed_stays_failed() {
    let now = Instant::now();
    let (mut caller, mut listener) = pair(now);
    assert_eq!(give(&mut listener, b"GET / HTTP/1.1", now), Err(LinkError::Garbage));
    assert_eq!(give(&mut listener, &take(&mut caller), now), Err(LinkError::Garbage));
    assert_eq!(listener.tick(now + TIMING.handshake), Err(LinkError::Garbage));
}

#[test]
fn what_is_no_hello_is_refused_at_the_first_wrong_byte() {
    let now = Instant::now();
    let (_, mut listener) = pair(now);
    assert_eq!(give(&mut listener, b"REG", now), Ok(vec![]));
    assert_eq!(give(&mut listener, b"X", now), Err(LinkError::Garbage));
}

#[test]
fn a_reflected_proof_is_refused() {
    let now = Instant::now();
    // To a listener that is sent its own hello and proof.
    let (mut caller, mut listener) = pair(now);
    give(&mut listener, &take(&mut caller), now).unwrap();
    let answer = take(&mut listener);
    assert_eq!(give(&mut listener, &answer[HELLO..], now), Err(LinkError::WrongSecret));

    // To a caller that gets its own hello back, and the proof of a listener that was asked with it.
    let (mut caller, mut listener) = pair(now);
    let hello = take(&mut caller);
    give(&mut listener, &hello, now).unwrap();
    let proof = take(&mut listener).split_off(HELLO);
    let reflected = [hello, proof].concat();
    assert_eq!(give(&mut caller, &reflected, now), Err(LinkError::WrongSecret));
}

#[test]
fn a_proof_of_the_same_nonces_from_the_wrong_side_is_refused() {
    // Both sides with one nonce: only the label tells the proofs apart.
    let now = Instant::now();
    let secret = secret('a');
    let mut listener = link(Role::Listener, &secret, 7, now);
    let mut caller = link(Role::Caller, &secret, 7, now);
    give(&mut listener, &take(&mut caller), now).unwrap();
    let proof = take(&mut listener).split_off(HELLO);
    assert_eq!(give(&mut listener, &proof, now), Err(LinkError::WrongSecret));
}

#[test]
fn a_replay_is_refused() {
    let now = Instant::now();
    let (mut caller, mut listener) = pair(now);
    let mut callers = take(&mut caller);
    give(&mut listener, &callers, now).unwrap();
    let listeners = take(&mut listener);
    give(&mut caller, &listeners, now).unwrap();
    callers.extend(take(&mut caller));
    assert_eq!(give(&mut listener, &callers[HELLO..], now), Ok(vec![Step::Ready]));

    let secret = secret('a');
    let mut again = link(Role::Listener, &secret, 3, now);
    assert_eq!(give(&mut again, &callers, now), Err(LinkError::WrongSecret));
    let mut again = link(Role::Caller, &secret, 3, now);
    assert_eq!(give(&mut again, &listeners, now), Err(LinkError::WrongSecret));
}

#[test]
fn any_changed_bit_of_the_handshake_is_refused() {
    let now = Instant::now();
    for bit in 0..WHOLE * 8 {
        let (mut caller, mut listener) = pair(now);
        give(&mut listener, &take(&mut caller), now).unwrap();
        let mut answer = take(&mut listener);
        answer[bit / 8] ^= 1 << (bit % 8);
        assert!(give(&mut caller, &answer, now).is_err(), "bit {bit}");
        assert!(!caller.is_ready());
    }
}

#[test]
fn beats_keep_a_quiet_link_alive_and_silence_ends_it() {
    let start = Instant::now();
    let (mut caller, mut listener) = ready_pair(start);
    let mut beats = 0;
    for second in 1..=60 {
        let now = start + Duration::from_secs(second);
        caller.tick(now).unwrap();
        listener.tick(now).unwrap();
        beats += usize::from(!caller.pending().is_empty());
        assert_eq!(talk(&mut caller, &mut listener, now), (vec![], vec![]));
    }
    assert_eq!(beats, 30, "one each two seconds");

    let cut = start + Duration::from_secs(60);
    assert_eq!(listener.tick(cut + Duration::from_millis(9_999)), Ok(()));
    let lost = listener.tick(cut + TIMING.lost_after);
    assert_eq!(lost, Err(LinkError::Silent { seconds: 10 }));
}

#[test]
fn a_side_that_only_sends_is_heard() {
    let start = Instant::now();
    let (mut caller, mut listener) = ready_pair(start);
    caller.send(&[1; 1000]);
    for (second, byte) in (1..).zip(take(&mut caller)) {
        let now = start + Duration::from_secs(second);
        give(&mut listener, &[byte], now).unwrap();
        assert_eq!(listener.tick(now), Ok(()));
    }
}

#[test]
fn one_that_hears_nothing_for_long_can_still_show_that_it_lives() {
    let start = Instant::now();
    let (mut busy, mut listener) = ready_pair(start);
    for second in 0..60 {
        let now = start + Duration::from_secs(second);
        busy.beat(now);
        give(&mut listener, &take(&mut busy), now).unwrap();
        listener.tick(now).unwrap();
    }
    let (mut early, _) = pair(start);
    take(&mut early);
    early.beat(start + TIMING.beat);
    assert!(early.pending().is_empty(), "no beat before the handshake is through");
}

#[test]
fn beats_do_not_pile_up_when_nothing_is_taken() {
    let start = Instant::now();
    let (mut caller, _) = ready_pair(start);
    for second in 1..9 {
        caller.tick(start + Duration::from_secs(second)).unwrap();
    }
    assert_eq!(caller.backlog(), 4);
}

#[test]
fn a_handshake_by_the_byte_is_given_up() {
    let start = Instant::now();
    let (mut caller, mut listener) = pair(start);
    for (second, byte) in (1..5).zip(take(&mut caller)) {
        let now = start + Duration::from_secs(second);
        give(&mut listener, &[byte], now).unwrap();
        assert_eq!(listener.tick(now), Ok(()));
    }
    assert_eq!(listener.tick(start + TIMING.handshake), Err(LinkError::Slow));
    assert_eq!(caller.tick(start + TIMING.handshake), Err(LinkError::Slow));
}

#[test]
fn what_is_too_long_is_neither_sent_nor_believed() {
    let now = Instant::now();
    let (mut caller, mut listener) = ready_pair(now);
    assert!(!caller.send(&vec![0; LONGEST + 1]));
    assert_eq!(caller.backlog(), 0);

    let mut steps = Vec::new();
    let too_long = (LONGEST as u32 + 1).to_be_bytes();
    let bytes = [&[0, 0, 0, 1, 7][..], &too_long].concat();
    let result = listener.receive(&bytes, now, &mut steps);
    assert_eq!(result, Err(LinkError::TooLong { bytes: LONGEST + 1 }));
    assert_eq!(steps, [frame(&[7])], "what came before it counts");
}

#[test]
fn the_longest_goes_through() {
    let now = Instant::now();
    let (mut caller, mut listener) = ready_pair(now);
    assert!(caller.send(&vec![5; LONGEST]));
    let (_, heard) = talk(&mut caller, &mut listener, now);
    assert!(matches!(&heard[..], [Step::Frame(payload)] if payload.len() == LONGEST));
}

/// The bytes of a whole conversation from caller to listener, and what they mean.
fn conversation(payloads: &[Vec<u8>], now: Instant) -> (Link, Vec<u8>, Vec<Step>) {
    let (mut caller, mut listener) = pair(now);
    let mut bytes = take(&mut caller);
    give(&mut listener, &bytes, now).unwrap();
    give(&mut caller, &take(&mut listener), now).unwrap();
    let mut steps = vec![Step::Ready];
    for (at, payload) in (1..).zip(payloads) {
        caller.send(payload);
        steps.push(Step::Frame(payload.clone()));
        bytes.extend(take(&mut caller));
        caller.tick(now + TIMING.beat * at).unwrap();
    }
    bytes.extend(take(&mut caller));
    // A fresh listener of the same nonce gives the same answers.
    (pair(now).1, bytes, steps)
}

proptest! {
    #[test]
    fn any_cutting_gives_the_same_frames(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..5),
        cuts in prop::collection::vec(1usize..100, 1..50),
    ) {
        let now = Instant::now();
        let (mut listener, bytes, steps) = conversation(&payloads, now);
        let (mut heard, mut rest, mut cuts) = (Vec::new(), &bytes[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (chunk, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            heard.extend(give(&mut listener, chunk, now).unwrap());
            rest = later;
        }
        prop_assert_eq!(heard, steps);
    }

    #[test]
    fn noise_never_makes_a_link_ready(
        hello in any::<bool>(),
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..10),
        role in prop_oneof![Just(Role::Caller), Just(Role::Listener)],
    ) {
        let now = Instant::now();
        let mut link = link(role, &secret('a'), 1, now);
        let mut steps = Vec::new();
        if hello {
            let mut other = self::link(Role::Caller, &secret('b'), 2, now);
            link.receive(&take(&mut other), now, &mut steps).unwrap();
        }
        for chunk in &chunks {
            let _ = link.receive(chunk, now, &mut steps);
            prop_assert!(link.backlog() <= 2 * WHOLE);
        }
        prop_assert!(!link.is_ready() && steps.is_empty());
    }

    #[test]
    fn noise_after_the_handshake_never_panics(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..10),
    ) {
        let now = Instant::now();
        let (_, mut listener) = ready_pair(now);
        let mut steps = Vec::new();
        for chunk in &chunks {
            let _ = listener.receive(chunk, now, &mut steps);
        }
        let received: usize = chunks.iter().map(Vec::len).sum();
        let delivered: usize = steps.iter().map(|s| match s {
            Step::Frame(payload) => payload.len() + 4,
            Step::Ready => 0,
        }).sum();
        prop_assert!(delivered <= received);
    }
}
