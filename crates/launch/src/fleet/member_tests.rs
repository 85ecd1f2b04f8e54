use super::*;

#[test]
fn who_is_gone_is_called_last() {
    let second = Duration::from_secs(1);
    let patience = Patience { grace: second, join: second * 60, rejoin: second * 20 };
    let hello = Hello { node: 6, machine: String::new(), port: None };
    let start = Instant::now();
    let mut agent = Member::new(hello, Tree { nodes: 7, fan_out: 2 }, patience, start);
    assert_eq!(agent.handle(Input::Tick, start), [Output::Call(Above::Node(2))]);
    agent.handle(Input::Joined('a'), start);
    agent.handle(Input::Closed('a', "silence".to_owned()), start);
    assert!(agent.call_limit() * 3 < patience.rejoin, "there is time for all three");
    for (calls, above) in [Above::Node(0), Above::Root, Above::Node(2)].into_iter().enumerate() {
        let now = start + second * calls as u32;
        assert_eq!(agent.handle(Input::Tick, now), [Output::Call(above)]);
        agent.handle(Input::CallFailed, now);
    }
}
