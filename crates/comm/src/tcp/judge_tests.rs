//! What rank 0 decides, and when.

use std::time::{Duration, Instant};

use super::control::{Called, Down, Fault, Left, Traffic, Up};
use super::judge::{ANSWER_WITHIN, Judge, To};
use crate::{DType, Kind, ReduceOp, Signature};

fn called(count: u64) -> Called {
    let (kind, dtype, op) = (Kind::AllReduce, DType::F32, ReduceOp::Sum);
    Signature { kind, dtype, op, root: 0, count, shape: 0 }.into()
}

fn ask(call: u64, late: Option<u64>) -> Up {
    Up::Ask { channel: 7, call: Some(call), awaited: Vec::new(), members: vec![0, 1, 2], late }
}

fn verdict(fault: Fault) -> Vec<(To, Down)> {
    vec![(To::All, Down::Verdict { channel: Some(7), fault })]
}

/// A rank, how many calls it began, and what they were.
type Answer = (u32, u64, Vec<(u64, Called)>);

/// Rank 1 asks where all are, and these answer.
fn inquiry(answers: &[Answer]) -> Vec<(To, Down)> {
    let now = Instant::now();
    let mut judge = Judge::default();
    judge.hear(1, ask(3, Some(9)), now);
    assert_eq!(judge.take().len(), 3);
    for (rank, calls, called) in answers {
        let (calls, called) = (*calls, called.clone());
        let (traffic, waits) = (Traffic::default(), Vec::new());
        judge.hear(*rank, Up::Answer { inquiry: 1, calls, called, traffic, waits }, now);
    }
    judge.tick(now + ANSWER_WITHIN);
    judge.take()
}

#[test]
fn ranks_that_called_something_else_are_told_to_all() {
    let told = inquiry(&[
        (0, 3, vec![(3, called(4))]),
        (1, 3, vec![(3, called(5))]),
        (2, 3, vec![(3, called(5))]),
    ]);
    let (most, odd) = ((1, called(5)), (0, called(4)));
    assert_eq!(told, verdict(Fault::Disagree { sequence: 3, most, odd }));
}

#[test]
fn ranks_that_did_not_come_or_answer_are_late() {
    let told = inquiry(&[(1, 3, vec![(3, called(5))]), (2, 2, vec![])]);
    assert_eq!(told, verdict(Fault::Late { sequence: 3, seconds: 9, missing: vec![0, 2] }));
}

/// The answer of a rank after so many calls that has waited for these, each for so many milliseconds.
fn waiting(inquiry: u64, calls: u64, waits: &[(u32, u64)]) -> Up {
    let (called, traffic, waits) = (Vec::new(), Traffic::default(), waits.to_vec());
    Up::Answer { inquiry, calls, called, traffic, waits }
}

#[test]
fn who_waits_for_another_is_not_late_but_the_other() {
    let now = Instant::now();
    let mut judge = Judge::default();
    judge.hear(1, ask(3, Some(9)), now);
    assert_eq!(judge.take().len(), 3);
    // Rank 2 waits for one of another communicator, and that for one that waits but for a moment.
    judge.hear(0, waiting(1, 3, &[(2, 9000)]), now);
    judge.hear(1, waiting(1, 3, &[(2, 9000)]), now);
    judge.hear(2, waiting(1, 2, &[(4, 8000)]), now);
    let asked = |rank| [(To::Rank(rank), Down::Where { inquiry: 1, channel: 7 })];
    assert_eq!(judge.take(), asked(4));
    judge.hear(4, waiting(1, 0, &[(5, 5000)]), now);
    assert_eq!(judge.take(), asked(5));
    judge.hear(5, waiting(1, 0, &[(1, 300)]), now);
    assert_eq!(judge.take(), verdict(Fault::Late { sequence: 3, seconds: 9, missing: vec![5] }));
}

#[test]
fn a_message_that_does_not_come_is_asked_for_too() {
    let now = Instant::now();
    let late =
        |awaited| Up::Ask { channel: 7, call: None, awaited, members: vec![], late: Some(9) };
    let mut judge = Judge::default();
    judge.hear(1, late(vec![2]), now);
    let asked = [1, 2].map(|rank| (To::Rank(rank), Down::Where { inquiry: 1, channel: 7 }));
    assert_eq!(judge.take(), asked);
    judge.hear(1, waiting(1, 3, &[(2, 9000)]), now);
    judge.hear(2, waiting(1, 3, &[(0, 8000)]), now);
    assert_eq!(judge.take().len(), 1);
    // Who does not answer waits for nobody.
    judge.tick(now + ANSWER_WITHIN);
    assert_eq!(judge.take(), verdict(Fault::Late { sequence: 0, seconds: 9, missing: vec![0] }));
}

#[test]
fn where_all_have_come_it_is_asked_whom_they_wait_for() {
    let now = Instant::now();
    let mut judge = Judge::default();
    let (channel, call, members, late) = (7, Some(3), vec![0, 1, 2], Some(9));
    judge.hear(1, Up::Ask { channel, call, awaited: vec![0], members, late }, now);
    assert_eq!(judge.take().len(), 3);
    judge.hear(0, waiting(1, 3, &[(2, 9000)]), now);
    judge.hear(1, waiting(1, 3, &[(0, 9000)]), now);
    judge.hear(2, waiting(1, 3, &[]), now);
    assert_eq!(judge.take(), verdict(Fault::Late { sequence: 3, seconds: 9, missing: vec![2] }));
}

#[test]
fn what_differed_before_is_worse_than_who_is_late() {
    let told = inquiry(&[
        (0, 3, vec![(2, called(4)), (3, called(5))]),
        (1, 3, vec![(2, called(4)), (3, called(5))]),
        (2, 2, vec![(2, called(6))]),
    ]);
    let (most, odd) = ((0, called(4)), (2, called(6)));
    assert_eq!(told, verdict(Fault::Disagree { sequence: 2, most, odd }));
}

#[test]
fn if_all_are_there_and_agree_only_the_asker_is_told() {
    let told = inquiry(&[0, 1, 2].map(|rank| (rank, 3, vec![(3, called(5))])));
    assert_eq!(told, [(To::Rank(1), Down::Clear { channel: 7 })]);
}

#[test]
fn a_verdict_is_made_once() {
    let mut judge = Judge::default();
    for rank in [2, 1] {
        let fault = Fault::Aborted { rank, why: "enough".to_owned() };
        judge.hear(rank, Up::Report { channel: 7, fault }, Instant::now());
    }
    assert_eq!(judge.take(), verdict(Fault::Aborted { rank: 2, why: "enough".to_owned() }));
}

#[test]
fn who_has_left_is_told_to_those_who_wait_in_vain() {
    let now = Instant::now();
    let mut judge = Judge::default();
    let left = Left { channel: 7, calls: 3, messages: vec![] };
    judge.hear(2, Up::Left(left.clone()), now);
    judge.hear(1, ask(3, None), now);
    assert_eq!(judge.take(), []);
    judge.hear(1, ask(4, None), now);
    assert_eq!(judge.take(), [(To::Rank(1), Down::Left { rank: 2, left })]);
}

#[test]
fn a_broken_connection_waits_for_the_cause() {
    let now = Instant::now();
    let saw = |rank| Up::Saw { channel: 7, rank, sends: true, why: "reset".to_owned() };
    let lost = |rank, why: &str| {
        let fault = Fault::Lost { rank, why: why.to_owned() };
        vec![(To::All, Down::Verdict { channel: None, fault })]
    };
    let mut judge = Judge::default();
    judge.hear(0, saw(1), now);
    judge.closed(2, "killed");
    judge.tick(now + Duration::from_secs(1));
    assert_eq!(judge.take(), lost(2, "killed"));
    // It was the other way round after all.
    judge.hear(0, saw(1), now);
    judge.tick(now);
    assert_eq!(judge.take(), []);
    judge.tick(now + Duration::from_secs(1));
    let asked = Down::Where { inquiry: 1, channel: 0 };
    assert_eq!(judge.take(), [(To::Rank(1), asked)]);
    judge.tick(now + Duration::from_secs(4));
    assert_eq!(judge.take(), lost(1, "reset"));
}

#[test]
fn if_the_other_answers_it_is_the_path_that_is_broken() {
    let now = Instant::now();
    for (sends, from, to) in [(true, 2, 1), (false, 1, 2)] {
        let mut judge = Judge::default();
        judge.hear(2, Up::Saw { channel: 7, rank: 1, sends, why: "timed out".to_owned() }, now);
        judge.tick(now + Duration::from_secs(1));
        assert_eq!(judge.take().len(), 1);
        judge.hear(1, waiting(1, 3, &[]), now);
        let fault = Fault::Path { from, to, why: "timed out".to_owned() };
        assert_eq!(judge.take(), [(To::All, Down::Verdict { channel: None, fault })]);
    }
}

#[test]
fn a_message_that_was_sent_and_does_not_come_shows_the_slow_path() {
    let now = Instant::now();
    let mut judge = Judge::default();
    judge.hear(1, ask(3, Some(9)), now);
    // A ring: rank 1 has sent rank 2 two messages of which one came; all others wait for rank 2.
    let traffic = |sent, came, awaited: u32| Traffic { sent, came, awaited: vec![awaited] };
    let answers = [
        traffic(vec![(1, 1)], vec![(2, 1)], 2),
        traffic(vec![(2, 2)], vec![(0, 1)], 0),
        traffic(vec![(0, 1)], vec![(1, 1)], 1),
    ];
    let answer = |judge: &mut Judge, inquiry| {
        for (rank, traffic) in (0..).zip(answers.clone()) {
            let (called, waits) = (vec![(3, called(5))], Vec::new());
            judge.hear(rank, Up::Answer { inquiry, calls: 3, called, traffic, waits }, now);
        }
    };
    answer(&mut judge, 1);
    // It may have been on its way; so all are asked again.
    assert_eq!(judge.take().len(), 3);
    judge.tick(now + Duration::from_secs(1));
    answer(&mut judge, 2);
    let why = "in 9 s not even 64 KiB came through".to_owned();
    assert_eq!(judge.take()[3..], verdict(Fault::Path { from: 1, to: 2, why }));
}

#[test]
fn who_ended_well_is_not_lost() {
    let now = Instant::now();
    let mut judge = Judge::default();
    judge.hear(1, Up::Bye, now);
    judge.closed(1, "closed");
    assert_eq!(judge.take(), []);
    judge.hear(0, Up::Bye, now);
    assert_eq!(judge.take(), [(To::All, Down::Bye)]);
}

#[test]
fn one_that_ended_before_it_came_to_a_communicator_is_not_waited_for() {
    let now = Instant::now();
    let waits = |judge: &mut Judge, channel| {
        let (call, awaited, members, late) = (Some(1), vec![1], vec![], None);
        judge.hear(2, Up::Ask { channel, call, awaited, members, late }, now);
        judge.take()
    };
    let told = |channel, fault| vec![(To::All, Down::Verdict { channel: Some(channel), fault })];
    for lost in [false, true] {
        let mut judge = Judge::default();
        let left = Left { channel: 8, calls: 1, messages: vec![] };
        judge.hear(1, Up::Left(left), now);
        if lost {
            judge.closed(3, "killed");
            judge.take();
        }
        assert_eq!(waits(&mut judge, 7), []);
        judge.hear(1, Up::Bye, now);
        // It has done its part in the other.
        assert_eq!(waits(&mut judge, 8), []);
        let fault = match lost {
            true => Fault::Lost { rank: 3, why: "killed".to_owned() },
            false => Fault::Aborted { rank: 1, why: "it ended".to_owned() },
        };
        assert_eq!(waits(&mut judge, 7), told(7, fault.clone()));
        judge.hear(2, Up::Saw { channel: 9, rank: 1, sends: true, why: "reset".to_owned() }, now);
        judge.tick(now + Duration::from_secs(1));
        assert_eq!(judge.take(), told(9, fault));
    }
}
