//! Tests of the supervisor.

use super::*;
use super::{RankControl as Action, SupervisorInput as Input};
use proptest::prelude::*;

const GRACE: Duration = Duration::from_secs(10);

fn job_with(ranks: u32, hang_after: Option<Duration>) -> (Supervisor, Instant) {
    let now = Instant::now();
    (Supervisor::new(ranks, JobLimits { hang_after, ..JobLimits::new(GRACE) }, now), now)
}

fn job(ranks: u32) -> (Supervisor, Instant) {
    job_with(ranks, None)
}

#[test]
fn code_is_zero_when_all_ranks_succeed() {
    let (mut job, now) = job(2);
    assert!(job.handle(Input::Exited(1, RankExit::Exit(0)), now).is_empty());
    let last = job.handle(Input::Exited(0, RankExit::Exit(0)), now);
    assert_eq!((last, job.phase), (Vec::new(), JobPhase::Finished));
    assert_eq!((job.code(), job.first_failure()), (0, None));
}

#[test]
fn first_failure_sets_the_code_and_terminates_the_others() {
    let (mut job, now) = job(3);
    let actions = job.handle(Input::Exited(2, RankExit::Exit(7)), now);
    assert_eq!(actions, [Action::QueryState, Action::Terminate(libc::SIGTERM)]);
    assert!(job.handle(Input::Exited(0, RankExit::Signal(15)), now).is_empty());
    assert!(job.handle(Input::Tick, now + GRACE / 2).is_empty());
    assert_eq!(job.handle(Input::Tick, now + GRACE), [Action::Kill]);
    job.handle(Input::Exited(1, RankExit::Signal(9)), now + GRACE);
    assert_eq!((job.code(), job.first_failure()), (7, Some((2, RankExit::Exit(7)))));
}

#[test]
fn failed_check_terminates_all_ranks_and_is_the_only_failure() {
    let (mut job, now) = job(2);
    let terminate = [Action::QueryState, Action::Terminate(libc::SIGTERM)];
    assert_eq!(job.handle(Input::CheckFailed, now), terminate);
    assert!(job.handle(Input::CheckFailed, now).is_empty());
    job.handle(Input::Exited(0, RankExit::Exit(3)), now);
    assert_eq!(job.handle(Input::Tick, now + GRACE), [Action::Kill]);
    job.handle(Input::Exited(1, RankExit::Signal(9)), now + GRACE);
    assert_eq!((job.code(), job.first_failure()), (1, None));
}

#[test]
fn late_report_of_a_killed_rank_replaces_the_first_failure() {
    let killed = RankExit::Signal(libc::SIGKILL);
    let (mut job, now) = job(4);
    job.handle(Input::Exited(2, RankExit::Exit(1)), now);
    job.handle(Input::Exited(3, RankExit::Exit(1)), now);
    assert!(job.handle(Input::Exited(1, killed), now + LATE_REPORT_WINDOW / 2).is_empty());
    assert_eq!((job.code(), job.first_failure()), (137, Some((1, killed))));
    // A second killed rank does not replace the first.
    job.handle(Input::Exited(0, killed), now + LATE_REPORT_WINDOW / 2);
    assert_eq!(job.first_failure(), Some((1, killed)));
}

#[test]
fn lost_peer_is_the_first_failure_if_it_failed_itself() {
    let (mut job, now) = job(4);
    job.handle(Input::Exited(2, RankExit::Exit(1)), now);
    // After the report window, because the node of rank 3 is slow to report.
    let later = now + LATE_REPORT_WINDOW * 2;
    job.handle(Input::LostPeer(2, 3), later);
    job.handle(Input::Exited(1, RankExit::Signal(libc::SIGTERM)), later);
    assert_eq!(job.first_failure(), Some((2, RankExit::Exit(1))), "rank 3 still runs");
    job.handle(Input::Exited(3, RankExit::Exit(3)), later);
    assert_eq!((job.code(), job.first_failure()), (3, Some((3, RankExit::Exit(3)))));
}

#[test]
fn lost_peer_that_the_launcher_terminated_is_not_the_first_failure() {
    for exit in [RankExit::Signal(libc::SIGTERM), RankExit::Exit(0)] {
        let (mut job, now) = job(2);
        job.handle(Input::Exited(0, RankExit::Exit(1)), now);
        job.handle(Input::LostPeer(0, 1), now);
        job.handle(Input::Exited(1, exit), now);
        assert_eq!(job.first_failure(), Some((0, RankExit::Exit(1))), "{exit:?}");
    }
}

#[test]
fn kill_after_the_report_window_or_a_signal_is_not_the_cause() {
    let killed = RankExit::Signal(libc::SIGKILL);
    let (mut late, now) = job(2);
    late.handle(Input::Exited(1, RankExit::Exit(7)), now);
    late.handle(Input::Exited(0, killed), now + LATE_REPORT_WINDOW);
    assert_eq!(late.first_failure(), Some((1, RankExit::Exit(7))));
    let (mut signalled, now) = job(2);
    signalled.handle(Input::Signal(2), now);
    signalled.handle(Input::Exited(0, killed), now);
    assert_eq!(signalled.first_failure(), None);
}

#[test]
fn second_signal_kills() {
    let (mut job, now) = job(1);
    assert_eq!(job.handle(Input::Signal(2), now), [Action::Terminate(2)]);
    assert_eq!(job.handle(Input::Signal(2), now), [Action::Kill]);
    job.handle(Input::Exited(0, RankExit::Signal(9)), now);
    assert_eq!((job.code(), job.signal, job.first_failure()), (130, Some(2), None));
}

#[test]
fn signal_after_a_failure_is_recorded_and_keeps_the_code() {
    let (mut job, now) = job(2);
    job.handle(Input::Exited(1, RankExit::Exit(7)), now);
    assert_eq!(job.handle(Input::Signal(15), now), [Action::Kill]);
    job.handle(Input::Exited(0, RankExit::Signal(9)), now);
    assert_eq!((job.code(), job.signal), (7, Some(15)));
}

#[test]
fn signal_to_many_nodes_does_not_cut_the_grace_period() {
    let (mut job, now) = job(2);
    assert_eq!(job.handle(Input::NodeSignal(15), now), [Action::Terminate(15)]);
    assert!(job.handle(Input::NodeSignal(15), now + GRACE / 2).is_empty());
    assert_eq!(job.handle(Input::Tick, now + GRACE), [Action::Kill]);
}

#[test]
fn node_signal_after_a_failure_is_recorded_and_does_not_kill() {
    let (mut job, now) = job(2);
    job.handle(Input::Exited(1, RankExit::Signal(15)), now);
    assert!(job.handle(Input::NodeSignal(15), now).is_empty());
    assert_eq!(job.signal, Some(15));
}

#[test]
fn code_is_zero_when_ranks_exit_cleanly_on_a_signal() {
    let (mut job, now) = job(1);
    job.handle(Input::Signal(libc::SIGTERM), now);
    job.handle(Input::Exited(0, RankExit::Exit(0)), now);
    assert_eq!(job.code(), 0);
}

/// A training, whose ranks save on a signal.
fn training(ranks: u32) -> (Supervisor, Instant) {
    let now = Instant::now();
    let limits = JobLimits { signal_grace: None, may_stop_early: true, ..JobLimits::new(GRACE) };
    (Supervisor::new(ranks, limits, now), now)
}

#[test]
fn training_has_no_deadline_to_save_and_a_second_signal_kills() {
    for signal in [Input::Signal(2), Input::NodeSignal(15)] {
        let (mut job, now) = training(2);
        let [Action::Signal(_)] = job.handle(signal, now)[..] else { panic!() };
        assert!(job.handle(Input::Tick, now + GRACE * 100).is_empty());
        assert_eq!(job.handle(Input::Signal(2), now + GRACE * 100), [Action::Kill]);
    }
}

#[test]
fn failure_of_a_rank_that_saves_starts_the_grace_period_of_the_others() {
    let (mut job, now) = training(3);
    job.handle(Input::Signal(2), now);
    let stopped = RankExit::Exit(STOPPED_EARLY.into());
    assert!(job.handle(Input::Exited(2, stopped), now).is_empty());
    assert!(job.handle(Input::Tick, now + GRACE * 2).is_empty());
    job.handle(Input::Exited(1, RankExit::Exit(1)), now + GRACE * 2);
    assert_eq!(job.handle(Input::Tick, now + GRACE * 3), [Action::Kill]);
    job.handle(Input::Exited(0, RankExit::Signal(9)), now + GRACE * 3);
    assert_eq!((job.code(), job.first_failure()), (130, None));
}

#[test]
fn training_stopped_by_a_signal_to_a_rank_has_not_failed() {
    let stopped = RankExit::Exit(STOPPED_EARLY.into());
    let (mut job, now) = training(2);
    assert!(job.handle(Input::Exited(0, stopped), now).is_empty());
    assert!(job.handle(Input::Exited(1, stopped), now).is_empty());
    assert_eq!(job.phase, JobPhase::Finished);
    assert_eq!((job.code(), job.first_failure()), (STOPPED_EARLY, None));
}

#[test]
fn exit_code_of_an_early_stop_is_a_failure_only_without_a_signal() {
    let stopped = RankExit::Exit(STOPPED_EARLY.into());
    for signal in [libc::SIGUSR1, libc::SIGTERM] {
        let (mut job, now) = job(2);
        job.handle(Input::Signal(signal), now);
        assert!(job.handle(Input::Exited(0, stopped), now).is_empty());
        job.handle(Input::Exited(1, stopped), now);
        assert_eq!((job.code(), job.first_failure()), (STOPPED_EARLY, None));
    }
    let (mut job, now) = job(2);
    job.handle(Input::Exited(0, stopped), now);
    assert_eq!(job.first_failure(), Some((0, stopped)));
}

#[test]
fn hang_while_saving_terminates_the_training() {
    let (mut job, now) = training(1);
    job.limits.hang_after = Some(GRACE);
    job.handle(Input::Signal(2), now);
    assert_eq!(job.handle(Input::Tick, now + GRACE).len(), 2);
    assert_eq!(job.handle(Input::Tick, now + GRACE * 2), [Action::Kill]);
    job.handle(Input::Exited(0, RankExit::Signal(9)), now + GRACE * 2);
    assert_eq!(job.code(), HANG_CODE);
}

#[test]
fn hang_terminates_the_job() {
    let (mut job, now) = job_with(2, Some(Duration::from_secs(60)));
    let at = |seconds| now + Duration::from_secs(seconds);
    assert!(job.handle(Input::Tick, at(59)).is_empty());
    job.handle(Input::Progress, at(59));
    assert!(job.handle(Input::Tick, at(118)).is_empty());
    let actions = job.handle(Input::Tick, at(119));
    assert_eq!(actions, [Action::QueryState, Action::Terminate(libc::SIGTERM)]);
    assert_eq!(job.handle(Input::Tick, at(129)), [Action::Kill]);
    job.handle(Input::Exited(0, RankExit::Signal(9)), at(129));
    job.handle(Input::Exited(1, RankExit::Signal(9)), at(129));
    assert_eq!((job.code(), job.first_failure()), (124, None));
    assert_eq!(job.hang.as_deref(), Some("no rank wrote output or used CPU time for 60 s"));
}

#[test]
fn stopped_job_is_not_a_hang() {
    let (mut job, now) = job_with(1, Some(Duration::from_secs(60)));
    let at = |seconds| now + Duration::from_secs(seconds);
    job.handle(Input::Signal(libc::SIGTSTP), at(10));
    assert!(job.handle(Input::Tick, at(1000)).is_empty());
    job.handle(Input::Signal(libc::SIGCONT), at(1000));
    assert!(job.handle(Input::Tick, at(1059)).is_empty());
    assert!(!job.handle(Input::Tick, at(1060)).is_empty());
}

#[test]
fn stall_terminates_a_running_job_that_is_not_stopped() {
    let (mut job, now) = job_with(2, Some(Duration::from_secs(60)));
    job.handle(Input::Progress, now);
    job.handle(Input::Signal(libc::SIGTSTP), now);
    assert!(job.handle(Input::Stalled, now).is_empty());
    job.handle(Input::Signal(libc::SIGCONT), now);
    let actions = job.handle(Input::Stalled, now);
    assert_eq!(actions, [Action::QueryState, Action::Terminate(libc::SIGTERM)]);
    assert!(job.handle(Input::Stalled, now).is_empty(), "once");
    job.handle(Input::Exited(0, RankExit::Signal(15)), now);
    job.handle(Input::Exited(1, RankExit::Signal(15)), now);
    assert_eq!(job.code(), HANG_CODE);
    assert_eq!(job.hang.as_deref(), Some("a collective or message made no progress for 60 s"));
}

#[test]
fn lost_connection_is_the_first_failure_even_if_its_ranks_exit_cleanly() {
    let (mut job, now) = job(3);
    let actions = job.handle(Input::ConnectionLost(1), now);
    assert_eq!(actions, [Action::QueryState, Action::Terminate(libc::SIGTERM)]);
    assert!(job.handle(Input::ConnectionLost(2), now).is_empty());
    job.handle(Input::Exited(0, RankExit::Signal(15)), now);
    job.handle(Input::Exited(1, RankExit::NodeLost), now);
    assert!(job.handle(Input::Exited(2, RankExit::Exit(0)), now).is_empty());
    assert_eq!(job.phase, JobPhase::Finished);
    assert_eq!((job.code(), job.first_failure()), (137, Some((1, RankExit::NodeLost))));
}

#[test]
fn user_signals_are_only_forwarded() {
    let (mut job, now) = job(1);
    let actions = job.handle(Input::Signal(libc::SIGUSR1), now);
    assert_eq!(actions, [Action::Signal(libc::SIGUSR1)]);
    assert!(job.handle(Input::Tick, now + GRACE * 2).is_empty());
}

proptest! {
    /// For any sequence of inputs, a job finishes exactly once when all ranks have exited.
    #[test]
    fn every_job_finishes_once(
        ranks in 1u32..6,
        noise in proptest::collection::vec((0u8..7, 0u32..6), 0..30),
    ) {
        let (mut job, now) = job(ranks);
        let exits = (0..ranks).map(|r| Input::Exited(r, RankExit::Exit(0)));
        let inputs = noise.into_iter().map(|(variant, n)| match variant {
            0 => Input::Signal(libc::SIGTERM),
            1 => Input::Signal(libc::SIGUSR2),
            2 => Input::Exited(n % ranks, RankExit::Exit(n as i32)),
            3 => Input::ConnectionLost(n % ranks),
            4 => Input::LostPeer(n % ranks, (n + 1) % ranks),
            5 => Input::Stalled,
            _ => Input::Tick,
        });
        for (i, input) in inputs.chain(exits).enumerate() {
            let was_finished = job.phase == JobPhase::Finished;
            let actions = job.handle(input, now + Duration::from_secs(i as u64));
            if was_finished {
                prop_assert_eq!((actions, job.phase), (Vec::new(), JobPhase::Finished));
            }
        }
        prop_assert_eq!(job.phase, JobPhase::Finished);
    }
}
