use super::*;
use crate::agents::message::RankLaunch;
use crate::cpu_binding::Binding;
use regatta_model::MemoryPolicy;
use regatta_model::result::RankExit;

const REJOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Two connected nodes with one running rank each; the number of a node is that of its connection.
fn running_table(now: Instant) -> NodeTable<u8> {
    let mut table = NodeTable::new(&["a".to_owned(), "b".to_owned()], REJOIN_TIMEOUT);
    let binding = Binding::new(&Default::default(), &MemoryPolicy::Default);
    let mut launches = Vec::new();
    for node in 0..2 {
        let registration = Registration { node, machine: String::new(), port: None };
        let message = Upstream::Register(registration);
        table.handle(TableInput::Upstream(node as u8, message), now);
        let (command, env) = (None, Vec::new());
        let ranks = vec![RankLaunch { rank: node, command, env, binding: binding.clone() }];
        launches.push((node, NodeLaunch { ranks, ..NodeLaunch::default() }));
    }
    table.start(0, launches);
    table
}

/// The cause that is reported when the connections of two nodes, with one rank each, close.
fn cause(closed: fn(u8) -> TableInput<u8>) -> String {
    let now = Instant::now();
    let mut table = running_table(now);
    let outputs = (0..2).flat_map(|conn| table.handle(closed(conn), now));
    let causes = outputs.filter_map(|output| match output {
        TableOutput::Event(JobEvent::ConnectionLost { why, .. }) => Some(why),
        _ => None,
    });
    causes.collect::<Vec<_>>().join("; ")
}

#[test]
fn the_network_of_this_host_is_blamed_and_the_lost_nodes_are_named_when_most_are_silent() {
    let down = cause(|conn| TableInput::NetworkDown(conn, "no network".to_owned()));
    let expected = "no network, among them a with rank 0; no network, among them b with rank 1";
    assert_eq!(down, expected);
    let closed = cause(|conn| TableInput::Closed(conn, "it exited".to_owned()));
    assert_eq!(closed, "lost a with rank 0: it exited; lost b with rank 1: it exited");
}

#[test]
fn events_of_a_finished_attempt_are_not_those_of_the_next() {
    let now = Instant::now();
    let mut table = running_table(now);
    let killed = RankExit::Signal(libc::SIGKILL);
    let event = |node, event| Upstream::RankEvent { node, attempt: 0, event };
    let finished = |rank| RankEvent::Finished([(rank, killed)].into());
    table.handle(TableInput::Upstream(0, event(0, finished(0))), now);
    table.handle(TableInput::Closed(1, "no heartbeat".to_owned()), now);
    let outputs = table.handle(TableInput::Tick, now + REJOIN_TIMEOUT);
    assert_eq!(outputs.last(), Some(&TableOutput::Event(JobEvent::Finished)));
    // The network is up again before the next attempt starts.
    let why = "no heartbeat".to_owned();
    let reconnected = Upstream::Reconnected { node: 1, lost_parent: None, why };
    let start_failed = JobEvent::StartFailed { rank: 1, why: String::new() };
    let exited = RankEvent::Job(JobEvent::Exited(1, killed));
    let late = [exited, RankEvent::Job(start_failed), finished(1)];
    for message in [reconnected].into_iter().chain(late.map(|late| event(1, late))) {
        let outputs = table.handle(TableInput::Upstream(2, message), now + REJOIN_TIMEOUT);
        let events = outputs.iter().filter(|output| matches!(output, TableOutput::Event(_)));
        assert_eq!(events.count(), 0, "{outputs:?}");
    }
}
