use super::*;

fn agent(node: u32, start: Instant) -> AgentState<char> {
    let second = Duration::from_secs(1);
    let timeouts = AgentTimeouts { grace: second, join: second * 60, rejoin: second * 20 };
    let registration = Registration { node, machine: String::new(), port: None };
    AgentState::new(registration, Tree { nodes: 7, fan_out: 2 }, timeouts, start)
}

#[test]
fn forwarded_frames_fill_the_window_until_the_parent_grants_credit() {
    let now = Instant::now();
    let mut agent = agent(2, now);
    agent.handle(AgentInput::Connected('p'), now);
    let frame = Upstream::Frame { attempt: 0, rank: 9, bytes: vec![1; WINDOW as usize] };
    let cost = frame.cost();
    let outputs = agent.handle(AgentInput::Upstream('c', frame.clone()), now);
    assert_eq!(outputs, [AgentOutput::Upstream('p', frame)]);
    assert!(agent.is_window_full());
    let outputs = agent.handle(AgentInput::Downstream(Downstream::Credit(cost)), now);
    assert_eq!(outputs, [AgentOutput::Downstream('c', Downstream::Credit(cost))]);
    assert!(!agent.is_window_full());
}

#[test]
fn lost_parent_is_tried_last() {
    let second = Duration::from_secs(1);
    let start = Instant::now();
    let mut agent = agent(6, start);
    let outputs = agent.handle(AgentInput::Tick, start);
    assert_eq!(outputs, [AgentOutput::Connect(Parent::Node(2))]);
    agent.handle(AgentInput::Connected('a'), start);
    agent.handle(AgentInput::Closed('a', "timeout".to_owned()), start);
    assert!(agent.connect_timeout() * 3 < second * 20, "time for all three");
    let targets = [Parent::Node(0), Parent::Root, Parent::Node(2)];
    for (failures, target) in targets.into_iter().enumerate() {
        let now = start + second * failures as u32;
        assert_eq!(agent.handle(AgentInput::Tick, now), [AgentOutput::Connect(target)]);
        agent.handle(AgentInput::ConnectFailed, now);
    }
}
