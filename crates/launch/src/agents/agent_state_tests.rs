use super::*;

#[test]
fn lost_parent_is_tried_last() {
    let second = Duration::from_secs(1);
    let timeouts = AgentTimeouts { grace: second, join: second * 60, rejoin: second * 20 };
    let registration = Registration { node: 6, machine: String::new(), port: None };
    let start = Instant::now();
    let tree = Tree { nodes: 7, fan_out: 2 };
    let mut agent = AgentState::new(registration, tree, timeouts, start);
    let outputs = agent.handle(AgentInput::Tick, start);
    assert_eq!(outputs, [AgentOutput::Connect(Parent::Node(2))]);
    agent.handle(AgentInput::Connected('a'), start);
    agent.handle(AgentInput::Closed('a', "timeout".to_owned()), start);
    assert!(agent.connect_timeout() * 3 < timeouts.rejoin, "time for all three");
    let targets = [Parent::Node(0), Parent::Root, Parent::Node(2)];
    for (failures, target) in targets.into_iter().enumerate() {
        let now = start + second * failures as u32;
        assert_eq!(agent.handle(AgentInput::Tick, now), [AgentOutput::Connect(target)]);
        agent.handle(AgentInput::ConnectFailed, now);
    }
}
