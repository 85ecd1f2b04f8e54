use super::*;
use crate::agents::message::RankLaunch;
use crate::cpu_binding::Binding;
use regatta_model::MemoryPolicy;

/// The cause that is reported when the connections of two nodes, with one rank each, close.
fn cause(closed: fn(u8) -> TableInput<u8>) -> String {
    let now = Instant::now();
    let mut table = NodeTable::new(&["a".to_owned(), "b".to_owned()], Duration::from_secs(5));
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
    let outputs = (0..2).flat_map(|conn| table.handle(closed(conn), now));
    let causes = outputs.filter_map(|output| match output {
        TableOutput::Event(JobEvent::ConnectionLost { why, .. }) => Some(why),
        _ => None,
    });
    causes.collect::<Vec<_>>().join("; ")
}

#[test]
fn no_node_is_blamed_when_the_network_of_this_host_is_down() {
    let down = cause(|conn| TableInput::NetworkDown(conn, "no network".to_owned()));
    assert_eq!(down, "no network; no network");
    let closed = cause(|conn| TableInput::Closed(conn, "it exited".to_owned()));
    assert_eq!(closed, "lost a with rank 0: it exited; lost b with rank 1: it exited");
}
