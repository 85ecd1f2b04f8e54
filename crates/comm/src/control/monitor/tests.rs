//! What a communicator learns from rank 0, and what it reports.

use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;

use regatta_wire::link::Timing;
use regatta_wire::secret::Secret;

use super::*;
use crate::control::messages::StalledCall;
use crate::control::thread::LocalMessage;
use crate::control::{CallWatch, FromRoot, StallAction, Wait};
use crate::{CallKind, DType, ReduceOp};

/// Rank 1 of a job of four ranks, and the messages it sends to rank 0.
fn job() -> (Arc<Job>, Receiver<LocalMessage>) {
    let member = |rank: u32| RankInfo {
        rank,
        local_rank: 0,
        host: format!("n{rank}"),
        node: rank.into(),
        ips: Vec::new(),
        port: 1,
        debug: false,
        fabric: crate::libfabric::Preference::Tcp,
    };
    let limit = Duration::from_secs(9);
    let timing = Timing { handshake: limit, heartbeat: limit, lost_after: limit };
    let (control, sent) = ControlHandle::unconnected(Secret::generate().unwrap(), timing);
    let registry = Arc::new(CommRegistry::new(|| {}));
    let members = (0..4).map(member).collect();
    (Arc::new(Job { rank: 1, members, control, registry }), sent)
}

fn all_reduce(count: u64) -> Signature {
    let (kind, dtype, op) = (CallKind::AllReduce, DType::F32, ReduceOp::Sum);
    Signature { kind, dtype, op, root: 0, count, shape: 0 }
}

fn announced_error(monitor: &CommMonitor) -> Option<CommError> {
    let awaits = |_: u32, closed: &CommClosed| closed.calls < monitor.calls();
    monitor.announced_error(&|| "a call".to_owned(), &awaits)
}

#[test]
fn announcements_before_the_communicator_is_opened_are_kept() {
    let (job, _sent) = job();
    let fault = Fault::Aborted { rank: 3, why: "out of data".to_owned() };
    job.registry.apply(FromRoot::Abort { comm_id: Some(7), fault });
    let other = CommMonitor::open(job.clone(), 8, vec![1, 3]);
    assert!(!other.has_failed() && announced_error(&other).is_none());
    let monitor = CommMonitor::open(job, 7, vec![1, 3]);
    let by = Peer::new(1, "n3");
    assert_eq!(
        announced_error(&monitor),
        Some(CommError::Aborted { by, why: "out of data".to_owned() })
    );
    assert!(monitor.has_failed());
}

#[test]
fn a_lost_rank_fails_the_communicators_that_it_is_a_member_of() {
    let (job, _sent) = job();
    let open = |id, members| CommMonitor::open(job.clone(), id, members);
    let (with, without) = (open(1, vec![1, 2, 3]), open(2, vec![1, 2]));
    let fault = Fault::Lost { rank: 3, why: "gone".to_owned() };
    job.registry.apply(FromRoot::Abort { comm_id: None, fault });
    let later = open(3, vec![3, 1]);
    let failed = [&with, &without, &later].map(|monitor| monitor.has_failed());
    assert_eq!(failed, [true, false, true]);
    let named = announced_error(&later).and_then(|error| error.failed_rank());
    assert_eq!((named, job.registry.is_lost(3)), (Some(0), true));
}

#[test]
fn only_a_departure_before_the_current_call_fails_it() {
    let (job, _sent) = job();
    let monitor = CommMonitor::open(job.clone(), 7, vec![0, 1, 2]);
    monitor.begin(&all_reduce(1));
    let closed = CommClosed { comm_id: 7, size: 3, calls: 1, p2p_sent: Vec::new() };
    job.registry.apply(FromRoot::Closed { rank: 2, closed });
    assert!(announced_error(&monitor).is_none() && !monitor.has_failed());
    monitor.begin(&all_reduce(1));
    let error = announced_error(&monitor).unwrap();
    assert!(matches!(&error, CommError::Aborted { by, .. } if by.rank == 2), "{error}");
}

#[test]
fn both_sides_of_a_mismatch_name_their_own_call_first() {
    for (own, theirs) in [(5, 9), (9, 5)] {
        let (job, _sent) = job();
        let monitor = CommMonitor::open(job.clone(), 7, vec![0, 1, 2]);
        monitor.begin(&all_reduce(own));
        let fault = Fault::CallMismatch {
            sequence: 1,
            majority: (0, all_reduce(5)),
            minority: (2, all_reduce(9)),
        };
        job.registry.apply(FromRoot::Abort { comm_id: Some(7), fault });
        let Some(CommError::CallMismatch { ours_by, ours, theirs: other, .. }) =
            announced_error(&monitor)
        else {
            panic!("no mismatch")
        };
        assert_eq!((ours_by.rank, ours.count, other.count), (1, own, theirs));
    }
}

#[test]
fn a_timeout_is_reported_and_fails_unless_rank_0_names_another_cause() {
    let (job, sent) = job();
    let monitor = CommMonitor::open(job.clone(), 7, vec![0, 1, 2]);
    monitor.begin(&all_reduce(1));
    let start = clock::now();
    let mut watch = CallWatch::new(monitor.clone(), Duration::from_secs(2), start);
    let late = start + Duration::from_secs(2);
    assert_eq!(watch.check(0, late), StallAction::Timeout);
    let wait = Wait { call_number: Some(1), awaited: vec![2], call: "a call".to_owned() };
    watch.report(StallAction::Timeout, wait, late);
    let (call, awaited, members) = (Some(1), BTreeSet::from([2]), vec![0, 1, 2]);
    let stalled = StalledCall { comm_id: 7, call, awaited, members };
    let query = ToRoot::Query { stalled, timeout_s: Some(2) };
    assert!(matches!(sent.try_recv(), Ok(LocalMessage::ToRoot(sent)) if sent == query));
    assert_eq!(monitor.waits().len(), 1);
    assert!(watch.check_suspicion(late, late).is_ok());
    let error = watch.check_suspicion(late, late + Duration::from_secs(6)).unwrap_err();
    let CommError::Timeout { missing, .. } = &error else { panic!("{error}") };
    // Rank 0 did not answer either.
    assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [0, 2]);
    let abort = sent.try_recv();
    assert!(matches!(abort, Ok(LocalMessage::ToRoot(ToRoot::Abort { comm_id: 7, .. }))));
    assert_eq!(monitor.check_not_failed(), Err(error));
}
