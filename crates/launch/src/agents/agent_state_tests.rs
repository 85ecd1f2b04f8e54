use super::*;

fn agent(node: u32, start: Instant) -> AgentState<char> {
    let second = Duration::from_secs(1);
    let timeouts = JobTimeouts { grace: second, join: second * 60, lost_after: second };
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

fn exited(rank: u32) -> Upstream {
    let event = RankEvent::Job(JobEvent::Exited(rank, RankExit::Exit(0)));
    Upstream::RankEvent { node: rank, attempt: 0, event }
}

#[test]
fn lines_of_children_are_sent_before_an_exit_or_a_disconnect() {
    let now = Instant::now();
    let line = |rank| Upstream::Lines(vec![MergedLine::of(rank, false, "last".to_owned())]);
    let mut agent = agent(0, now);
    agent.handle(AgentInput::Connected('p'), now);
    let finished = Upstream::RankEvent {
        node: 1,
        attempt: 0,
        event: RankEvent::Finished(BTreeMap::from([(1, RankExit::Exit(0))])),
    };
    for end in [exited(1), finished] {
        agent.handle(AgentInput::Upstream('c', line(1)), now);
        let outputs = agent.handle(AgentInput::Upstream('c', end.clone()), now);
        let expected = [line(1), end].map(|message| AgentOutput::Upstream('p', message));
        assert_eq!(outputs, expected);
    }
    let registration = Registration { node: 1, machine: String::new(), port: None };
    agent.handle(AgentInput::Upstream('c', Upstream::Register(registration)), now);
    agent.handle(AgentInput::Upstream('c', line(1)), now);
    let outputs = agent.handle(AgentInput::Closed('c', "timeout".to_owned()), now);
    assert_eq!(outputs[0], AgentOutput::Upstream('p', line(1)));
    assert!(matches!(outputs[1], AgentOutput::Upstream('p', Upstream::Disconnected { .. })));
}

#[test]
fn last_lines_are_kept_until_another_parent_is_connected() {
    let now = Instant::now();
    let line = MergedLine::of(0, true, "saved".to_owned());
    let mut agent = agent(6, now);
    agent.handle(AgentInput::Connected('a'), now);
    agent.handle(AgentInput::Closed('a', "timeout".to_owned()), now);
    agent.handle(AgentInput::Ranks(JobEvent::Line(line.clone())), now);
    agent.handle(AgentInput::Ranks(JobEvent::Exited(0, RankExit::Exit(0))), now);
    agent.handle(AgentInput::Tick, now + MERGE_WINDOW);
    let outputs = agent.handle(AgentInput::Connected('b'), now + MERGE_WINDOW);
    let lines = AgentOutput::Upstream('b', Upstream::Lines(vec![line]));
    assert!(outputs.contains(&lines), "{outputs:?}");
}

#[test]
fn flood_of_lines_is_sent_in_short_messages() {
    let now = Instant::now();
    let mut agent = agent(0, now);
    agent.handle(AgentInput::Connected('p'), now);
    let line = |rank| MergedLine::of(rank, false, format!("{rank:01000}"));
    let flood = Upstream::Lines((0..5000).map(line).collect());
    let mut outputs = agent.handle(AgentInput::Upstream('c', flood), now);
    outputs.extend(agent.handle(AgentInput::Upstream('c', exited(0)), now));
    let mut lens = outputs.iter().filter_map(|output| match output {
        AgentOutput::Upstream('p', message @ Upstream::Lines(_)) => Some(message.cost()),
        _ => None,
    });
    assert!(lens.all(|len| len < WINDOW), "{outputs:?}");
}

#[test]
fn lost_parent_is_tried_last() {
    let second = Duration::from_secs(1);
    let start = Instant::now();
    let mut agent = agent(6, start);
    let outputs = agent.handle(AgentInput::Tick, start);
    assert_eq!(outputs, [AgentOutput::Connect(Some(2))]);
    agent.handle(AgentInput::Connected('a'), start);
    agent.handle(AgentInput::Closed('a', "timeout".to_owned()), start);
    assert!(agent.connect_timeout() * 3 < REJOIN_TIMEOUT, "time for all three");
    let targets = [Some(0), None, Some(2)];
    for (failures, target) in targets.into_iter().enumerate() {
        let now = start + second * failures as u32;
        assert_eq!(agent.handle(AgentInput::Tick, now), [AgentOutput::Connect(target)]);
        agent.handle(AgentInput::ConnectFailed, now);
    }
}
