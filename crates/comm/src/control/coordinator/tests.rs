//! Decisions of the fault coordinator and their timing.

use std::time::{Duration, Instant};

use super::super::messages::{
    CommClosed, ConnFailure, Fault, FromRoot, MessageCounts, RankStatus, StalledCall, ToRoot,
};
use super::{ANSWER_TIMEOUT, FaultCoordinator, Recipient};
use crate::{CallKind, DType, ReduceOp, Signature};

fn all_reduce(count: u64) -> Signature {
    let (kind, dtype, op) = (CallKind::AllReduce, DType::F32, ReduceOp::Sum);
    Signature { kind, dtype, op, root: 0, count, shape: 0 }
}

fn stalled(
    comm_id: u64,
    call: Option<u64>,
    awaited: &[u32],
    members: &[u32],
    timeout_s: Option<u64>,
) -> ToRoot {
    let (awaited, members) = (awaited.iter().copied().collect(), members.to_vec());
    ToRoot::Query { stalled: StalledCall { comm_id, call, awaited, members }, timeout_s }
}

fn query(call: u64, timeout_s: Option<u64>) -> ToRoot {
    stalled(7, Some(call), &[], &[0, 1, 2], timeout_s)
}

fn timeout(sequence: u64, missing: u32) -> Vec<(Recipient, FromRoot)> {
    aborts(Fault::Timeout { sequence, seconds: 9, missing: vec![missing] })
}

fn aborts(fault: Fault) -> Vec<(Recipient, FromRoot)> {
    vec![(Recipient::All, FromRoot::Abort { comm_id: Some(7), fault })]
}

/// A rank, the number of calls it started, and their signatures.
type Answer = (u32, u64, Vec<(u64, Signature)>);

/// Rank 1 reports a timeout, and these ranks answer the status query.
fn query_status(answers: &[Answer]) -> Vec<(Recipient, FromRoot)> {
    let now = Instant::now();
    let mut root = FaultCoordinator::default();
    root.handle(1, query(3, Some(9)), now);
    assert_eq!(root.take_outgoing().len(), 3);
    for (rank, calls, recent_calls) in answers {
        let (calls, recent_calls) = (*calls, recent_calls.clone());
        let (message_counts, waits) = (MessageCounts::default(), Vec::new());
        let status = RankStatus { calls, recent_calls, message_counts, waits };
        let status = ToRoot::Status { query: 1, status };
        root.handle(*rank, status, now);
    }
    root.tick(now + ANSWER_TIMEOUT);
    root.take_outgoing()
}

#[test]
fn a_call_mismatch_is_reported_to_all_ranks() {
    let sent = query_status(&[
        (0, 3, vec![(3, all_reduce(4))]),
        (1, 3, vec![(3, all_reduce(5))]),
        (2, 3, vec![(3, all_reduce(5))]),
    ]);
    let (majority, minority) = ((1, all_reduce(5)), (0, all_reduce(4)));
    assert_eq!(sent, aborts(Fault::CallMismatch { sequence: 3, majority, minority }));
}

#[test]
fn ranks_that_have_not_entered_the_call_or_do_not_answer_are_late() {
    let sent = query_status(&[(1, 3, vec![(3, all_reduce(5))]), (2, 2, vec![])]);
    assert_eq!(sent, aborts(Fault::Timeout { sequence: 3, seconds: 9, missing: vec![0, 2] }));
}

/// The status of a rank after `calls` calls, with the ranks it waits for and for how many ms.
fn status(query: u64, calls: u64, waits: &[(u32, u64)]) -> ToRoot {
    let (recent_calls, message_counts, waits) =
        (Vec::new(), MessageCounts::default(), waits.to_vec());
    ToRoot::Status { query, status: RankStatus { calls, recent_calls, message_counts, waits } }
}

#[test]
fn the_root_cause_of_a_wait_chain_is_late() {
    let now = Instant::now();
    let mut root = FaultCoordinator::default();
    root.handle(1, query(3, Some(9)), now);
    assert_eq!(root.take_outgoing().len(), 3);
    // Rank 2 waits in another communicator for rank 4, and that for rank 5, whose own wait is short.
    root.handle(0, status(1, 3, &[(2, 9000)]), now);
    root.handle(1, status(1, 3, &[(2, 9000)]), now);
    root.handle(2, status(1, 2, &[(4, 8000)]), now);
    let queried = |rank| [(Recipient::Rank(rank), FromRoot::QueryStatus { query: 1, comm_id: 7 })];
    assert_eq!(root.take_outgoing(), queried(4));
    root.handle(4, status(1, 0, &[(5, 5000)]), now);
    assert_eq!(root.take_outgoing(), queried(5));
    root.handle(5, status(1, 0, &[(1, 300)]), now);
    assert_eq!(root.take_outgoing(), timeout(3, 5));
}

#[test]
fn a_late_message_queries_both_ranks() {
    let now = Instant::now();
    let mut root = FaultCoordinator::default();
    root.handle(1, stalled(7, None, &[2], &[], Some(9)), now);
    let queried =
        [1, 2].map(|rank| (Recipient::Rank(rank), FromRoot::QueryStatus { query: 1, comm_id: 7 }));
    assert_eq!(root.take_outgoing(), queried);
    root.handle(1, status(1, 3, &[(2, 9000)]), now);
    root.handle(2, status(1, 3, &[(0, 8000)]), now);
    assert_eq!(root.take_outgoing().len(), 1);
    // A rank that does not answer has no outgoing edges in the wait graph.
    root.tick(now + ANSWER_TIMEOUT);
    assert_eq!(root.take_outgoing(), timeout(0, 0));
}

#[test]
fn the_awaited_rank_is_late_if_all_have_entered_the_call() {
    let now = Instant::now();
    let mut root = FaultCoordinator::default();
    root.handle(1, stalled(7, Some(3), &[0], &[0, 1, 2], Some(9)), now);
    assert_eq!(root.take_outgoing().len(), 3);
    root.handle(0, status(1, 3, &[(2, 9000)]), now);
    root.handle(1, status(1, 3, &[(0, 9000)]), now);
    root.handle(2, status(1, 3, &[]), now);
    assert_eq!(root.take_outgoing(), timeout(3, 2));
}

#[test]
fn an_earlier_mismatch_takes_precedence_over_a_timeout() {
    let sent = query_status(&[
        (0, 3, vec![(2, all_reduce(4)), (3, all_reduce(5))]),
        (1, 3, vec![(2, all_reduce(4)), (3, all_reduce(5))]),
        (2, 2, vec![(2, all_reduce(6))]),
    ]);
    let (majority, minority) = ((0, all_reduce(4)), (2, all_reduce(6)));
    assert_eq!(sent, aborts(Fault::CallMismatch { sequence: 2, majority, minority }));
}

#[test]
fn if_all_ranks_agree_only_the_requester_is_informed() {
    let sent = query_status(&[0, 1, 2].map(|rank| (rank, 3, vec![(3, all_reduce(5))])));
    assert_eq!(sent, [(Recipient::Rank(1), FromRoot::Clear { comm_id: 7 })]);
}

#[test]
fn a_communicator_is_aborted_once() {
    let mut root = FaultCoordinator::default();
    for rank in [2, 1] {
        let fault = Fault::Aborted { rank, why: "test abort".to_owned() };
        root.handle(rank, ToRoot::Abort { comm_id: 7, fault }, Instant::now());
    }
    assert_eq!(
        root.take_outgoing(),
        aborts(Fault::Aborted { rank: 2, why: "test abort".to_owned() })
    );
}

#[test]
fn ranks_that_await_a_departed_rank_are_informed() {
    let now = Instant::now();
    let mut root = FaultCoordinator::default();
    let closed = CommClosed { comm_id: 7, size: 3, calls: 3, p2p_sent: vec![] };
    root.handle(2, ToRoot::Closed(closed.clone()), now);
    root.handle(1, query(3, None), now);
    assert_eq!(root.take_outgoing(), []);
    root.handle(1, query(4, None), now);
    assert_eq!(root.take_outgoing(), [(Recipient::Rank(1), FromRoot::Closed { rank: 2, closed })]);
}

/// A rank could not send to `rank` in a communicator of these members.
fn conn_failed(comm_id: u64, rank: u32, members: &[u32]) -> ToRoot {
    let (sending, why, members) = (true, "reset".to_owned(), members.to_vec());
    ToRoot::ConnFailed(ConnFailure { comm_id, rank, sending, why, members })
}

fn lost(rank: u32, why: &str) -> Vec<(Recipient, FromRoot)> {
    let fault = Fault::Lost { rank, why: why.to_owned() };
    vec![(Recipient::All, FromRoot::Abort { comm_id: None, fault })]
}

#[test]
fn a_communicator_is_forgotten_when_all_members_have_closed_it() {
    let now = Instant::now();
    let mut root = FaultCoordinator::default();
    for comm_id in 1..100 {
        for rank in 0..3 {
            root.handle(rank, query(1, None), now);
            let closed = CommClosed { comm_id, size: 3, calls: 1, p2p_sent: vec![] };
            root.handle(rank, ToRoot::Closed(closed), now);
        }
    }
    assert!(root.closed.is_empty(), "{:?}", root.closed);
}

#[test]
fn a_connection_failure_waits_for_the_root_cause() {
    let now = Instant::now();
    let report = |rank| conn_failed(7, rank, &[0, 1, 2]);
    let mut root = FaultCoordinator::default();
    root.handle(0, report(1), now);
    root.connection_closed(2, "killed");
    root.tick(now + Duration::from_secs(1));
    assert_eq!(root.take_outgoing(), lost(2, "killed"));
    // Without another cause, the peer is lost.
    root.handle(0, report(1), now);
    root.tick(now);
    assert_eq!(root.take_outgoing(), []);
    root.tick(now + Duration::from_secs(1));
    let queried = FromRoot::QueryStatus { query: 1, comm_id: 0 };
    assert_eq!(root.take_outgoing(), [(Recipient::Rank(1), queried)]);
    root.tick(now + Duration::from_secs(4));
    assert_eq!(root.take_outgoing(), lost(1, "reset"));
}

#[test]
fn a_lost_rank_explains_no_failure_in_communicators_without_it() {
    let now = Instant::now();
    let mut root = FaultCoordinator::default();
    root.handle(0, conn_failed(7, 1, &[0, 1]), now);
    root.handle(3, conn_failed(8, 4, &[3, 4]), now - Duration::from_secs(1));
    root.tick(now);
    let queried =
        |query, rank| (Recipient::Rank(rank), FromRoot::QueryStatus { query, comm_id: 0 });
    assert_eq!(root.take_outgoing(), [queried(1, 4)]);
    root.connection_closed(2, "killed");
    assert_eq!(root.take_outgoing(), lost(2, "killed"));
    root.tick(now + Duration::from_secs(1));
    assert_eq!(root.take_outgoing(), [queried(2, 1)]);
    root.tick(now + Duration::from_secs(4));
    assert_eq!(root.take_outgoing(), [lost(4, "reset"), lost(1, "reset")].concat());
}

#[test]
fn if_the_peer_answers_the_link_is_broken() {
    let now = Instant::now();
    for (sending, from, to) in [(true, 2, 1), (false, 1, 2)] {
        let mut root = FaultCoordinator::default();
        let (why, members) = ("timed out".to_owned(), vec![1, 2]);
        let failure = ConnFailure { comm_id: 7, rank: 1, sending, why, members };
        root.handle(2, ToRoot::ConnFailed(failure), now);
        root.tick(now + Duration::from_secs(1));
        assert_eq!(root.take_outgoing().len(), 1);
        root.handle(1, status(1, 3, &[]), now);
        let fault = Fault::LinkBroken { from, to, why: "timed out".to_owned() };
        assert_eq!(
            root.take_outgoing(),
            [(Recipient::All, FromRoot::Abort { comm_id: None, fault })]
        );
    }
}

#[test]
fn a_message_in_flight_for_too_long_identifies_the_broken_link() {
    let now = Instant::now();
    let mut root = FaultCoordinator::default();
    root.handle(1, query(3, Some(9)), now);
    // A ring: rank 1 has sent two messages to rank 2, of which one arrived; the others wait for rank 2.
    let message_counts =
        |sent, received, awaited: u32| MessageCounts { sent, received, awaited: vec![awaited] };
    let answers = [
        message_counts(vec![(1, 1)], vec![(2, 1)], 2),
        message_counts(vec![(2, 2)], vec![(0, 1)], 0),
        message_counts(vec![(0, 1)], vec![(1, 1)], 1),
    ];
    let answer = |root: &mut FaultCoordinator, query| {
        for (rank, message_counts) in (0..).zip(answers.clone()) {
            let (recent_calls, waits) = (vec![(3, all_reduce(5))], Vec::new());
            let status = RankStatus { calls: 3, recent_calls, message_counts, waits };
            root.handle(rank, ToRoot::Status { query, status }, now);
        }
    };
    answer(&mut root, 1);
    // The message may just have been in flight, so the query is repeated.
    assert_eq!(root.take_outgoing().len(), 3);
    root.tick(now + Duration::from_secs(1));
    answer(&mut root, 2);
    let why = "less than 64 KiB arrived in 9 s".to_owned();
    assert_eq!(root.take_outgoing()[3..], aborts(Fault::LinkBroken { from: 1, to: 2, why }));
}

#[test]
fn a_rank_that_exited_regularly_is_not_lost() {
    let now = Instant::now();
    let mut root = FaultCoordinator::default();
    root.handle(1, ToRoot::Shutdown, now);
    root.connection_closed(1, "closed");
    assert_eq!(root.take_outgoing(), []);
    root.handle(0, ToRoot::Shutdown, now);
    assert_eq!(root.take_outgoing(), [(Recipient::All, FromRoot::Shutdown)]);
}

#[test]
fn a_rank_that_exited_before_joining_a_communicator_aborts_it() {
    let now = Instant::now();
    let waits = |root: &mut FaultCoordinator, comm_id| {
        root.handle(2, stalled(comm_id, Some(1), &[1], &[], None), now);
        root.take_outgoing()
    };
    let sent =
        |comm_id, fault| vec![(Recipient::All, FromRoot::Abort { comm_id: Some(comm_id), fault })];
    for lost in [false, true] {
        let mut root = FaultCoordinator::default();
        let closed = CommClosed { comm_id: 8, size: 3, calls: 1, p2p_sent: vec![] };
        root.handle(1, ToRoot::Closed(closed), now);
        if lost {
            root.connection_closed(3, "killed");
            root.take_outgoing();
        }
        assert_eq!(waits(&mut root, 7), []);
        root.handle(1, ToRoot::Shutdown, now);
        // It completed its calls in the other communicator.
        assert_eq!(waits(&mut root, 8), []);
        let fault = match lost {
            true => Fault::Lost { rank: 3, why: "killed".to_owned() },
            false => Fault::Aborted { rank: 1, why: "it exited".to_owned() },
        };
        assert_eq!(waits(&mut root, 7), sent(7, fault.clone()));
        root.handle(2, conn_failed(9, 1, &[1, 2]), now);
        root.tick(now + Duration::from_secs(1));
        assert_eq!(root.take_outgoing(), sent(9, fault));
    }
}

#[test]
fn reports_on_a_communicator_that_all_members_have_closed_are_ignored() {
    let now = Instant::now();
    let mut root = FaultCoordinator::default();
    let fault = Fault::Aborted { rank: 1, why: "late".to_owned() };
    for rank in 0..3 {
        let closed = CommClosed { comm_id: 7, size: 3, calls: 1, p2p_sent: Vec::new() };
        root.handle(rank, ToRoot::Closed(closed), now);
    }
    root.handle(1, ToRoot::Abort { comm_id: 7, fault: fault.clone() }, now);
    assert!(root.take_outgoing().is_empty() && root.aborted.is_empty());
    root.handle(1, ToRoot::Abort { comm_id: 8, fault }, now);
    assert_eq!(root.take_outgoing().len(), 1);
}
