//! What holds for all kinds and sizes of schedules.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// Kinds with sizes that they have.
fn schedules() -> impl Strategy<Value = Schedule> {
    let sizes = (0..4usize, 1..=8usize, 1..=4usize, 1..=24usize);
    sizes.prop_filter_map("there is no such schedule", |(kind, stages, chunks, micros)| {
        let kind = Kind::ALL[kind];
        // Few would fit by chance.
        let chunks = if kind == Kind::Interleaved && stages > 1 { chunks.max(2) } else { 1 };
        let micros =
            if kind == Kind::Interleaved { micros.next_multiple_of(stages) } else { micros };
        Schedule::new(kind, stages, chunks, micros).ok()
    })
}

fn equal(schedule: &Schedule) -> Costs {
    Costs::thirds(&vec![3.0; schedule.parts()])
}

fn timeline(kind: Kind, stages: usize, chunks: usize, micros: usize) -> Timeline {
    let schedule = Schedule::new(kind, stages, chunks, micros).unwrap();
    simulate(&schedule, &equal(&schedule)).unwrap()
}

/// Does a schedule as ranks would, with links of any length: whether each gets what it expects, all
/// come to their end, and no message is left over.
fn comes_to_its_end(schedule: &Schedule) -> bool {
    let mut links: HashMap<(Way, usize), VecDeque<Message>> = HashMap::new();
    let mut over = vec![0; schedule.stages];
    loop {
        let before = over.clone();
        for (rank, actions) in schedule.ranks.iter().enumerate() {
            let Some(&action) = actions.get(over[rank]) else { continue };
            if let Some(expected) = schedule.receives(action) {
                match links.entry((expected.way, expected.from)).or_default().pop_front() {
                    None => continue,
                    Some(message) if message != expected => return false,
                    Some(_) => {}
                }
            }
            if let Some(message) = schedule.sends(action) {
                links.entry((message.way, rank)).or_default().push_back(message);
            }
            over[rank] += 1;
        }
        if over == before {
            break;
        }
    }
    let ended = over.iter().zip(&schedule.ranks).all(|(over, actions)| *over == actions.len());
    ended && links.values().all(VecDeque::is_empty)
}

#[test]
fn all_schedules_of_small_sizes_are_right() {
    let mut made = 0;
    for kind in Kind::ALL {
        for (stages, chunks, micros) in
            (1..=8).flat_map(|p| (1..=4).flat_map(move |v| (1..=24).map(move |m| (p, v, m))))
        {
            let Ok(schedule) = Schedule::new(kind, stages, chunks, micros) else { continue };
            let sizes = format!("{kind} of {stages} stages, {chunks} chunks, {micros} micros");
            check(&schedule).unwrap_or_else(|fault| panic!("{sizes}: {fault}"));
            assert!(comes_to_its_end(&schedule), "{sizes}");
            made += 1;
        }
    }
    // Three kinds of one chunk, and the interleaved one: alone, and of 2, 3 and 4 chunks.
    let multiples: usize = (2..=8).map(|stages| 24 / stages).sum();
    assert_eq!(made, 3 * 8 * 24 + 24 + 3 * multiples);
}

proptest! {
    #[test]
    fn a_schedule_without_an_action_is_refused(
        mut schedule in schedules(), rank: Index, at: Index,
    ) {
        let list = rank.get_mut(&mut schedule.ranks[..]);
        let dropped = list.remove(at.index(list.len()));
        let fault = check(&schedule).unwrap_err();
        let named = matches!(fault, Fault::Missing { rank, action }
            if rank == schedule.stage(dropped.chunk) && action.chunk == dropped.chunk
                && action.micro == dropped.micro);
        prop_assert!(named, "{} for {}", fault, dropped);
    }

    #[test]
    fn an_action_done_twice_is_refused(
        mut schedule in schedules(), rank: Index, at: Index, to: Index,
    ) {
        let list = rank.get_mut(&mut schedule.ranks[..]);
        let action = *at.get(&list[..]);
        list.insert(to.index(list.len() + 1), action);
        let fault = check(&schedule).unwrap_err();
        prop_assert_eq!(fault, Fault::Twice { rank: schedule.stage(action.chunk), action });
    }

    /// Some other orders are right as well. What is not refused must work.
    #[test]
    fn what_is_not_refused_comes_to_its_end(
        mut schedule in schedules(), rank: Index, swaps in prop::collection::vec(any::<(Index, Index)>(), 1..4),
    ) {
        let list = rank.get_mut(&mut schedule.ranks[..]);
        for (one, other) in swaps {
            let (one, other) = (one.index(list.len()), other.index(list.len()));
            list.swap(one, other);
        }
        if check(&schedule).is_ok() {
            prop_assert!(comes_to_its_end(&schedule));
        }
    }

    /// Two passes of the same work in another order: the messages of one stage are crossed, or
    /// gradients are added in another order.
    #[test]
    fn swapped_passes_are_refused(mut schedule in schedules(), rank: Index, one: Index, other: Index) {
        prop_assume!(schedule.stages > 1);
        let list = rank.get_mut(&mut schedule.ranks[..]);
        let first = one.index(list.len());
        let alike: Vec<usize> =
            (0..list.len()).filter(|at| list[*at].work == list[first].work && *at != first).collect();
        prop_assume!(!alike.is_empty());
        let second = *other.get(&alike);
        list.swap(first, second);
        prop_assert!(check(&schedule).is_err(), "{} and {}", first, second);
    }

    #[test]
    fn a_message_that_is_sent_is_received(schedule in schedules()) {
        let mut sent: Vec<Message> = (0..schedule.stages).flat_map(|rank| schedule.sent(rank)).collect();
        let mut received: Vec<Message> =
            (0..schedule.stages).flat_map(|rank| schedule.received(rank)).collect();
        prop_assert_eq!(sent.len(), 2 * (schedule.parts() - 1) * schedule.micros);
        let key = |m: &Message| (m.way == Way::Forward, m.chunk, m.micro);
        sent.sort_by_key(key);
        received.sort_by_key(key);
        prop_assert_eq!(&sent, &received);
        let neighbours = |m: &Message| match m.way {
            Way::Forward => m.to == (m.from + 1) % schedule.stages,
            Way::Backward => m.from == (m.to + 1) % schedule.stages,
        };
        prop_assert!(sent.iter().all(neighbours));
    }

    #[test]
    fn each_chunk_is_completed_once_and_last(schedule in schedules()) {
        for (rank, actions) in schedule.ranks.iter().enumerate() {
            for chunk in (rank..schedule.parts()).step_by(schedule.stages) {
                let of_chunk: Vec<_> = actions.iter().filter(|a| a.chunk == chunk).collect();
                let complete = of_chunk.iter().filter(|a| schedule.completes(***a)).count();
                prop_assert_eq!(complete, 1);
                prop_assert!(schedule.completes(**of_chunk.last().unwrap()));
            }
        }
    }

    /// No time is spent twice, and none where nothing holds a rank up.
    #[test]
    fn timelines_are_tight(
        schedule in schedules(), costs in prop::collection::vec(0.1f64..4.0, 32), message in 0f64..1.0,
    ) {
        let costs = Costs { message, ..Costs::thirds(&costs[..schedule.parts()]) };
        let timeline = simulate(&schedule, &costs).unwrap();
        let ends: HashMap<Action, f64> =
            timeline.ranks.iter().flatten().map(|span| (span.action, span.end)).collect();
        for (actions, spans) in schedule.ranks.iter().zip(&timeline.ranks) {
            prop_assert_eq!(actions.len(), spans.len());
            let mut free = 0.0;
            for (action, span) in actions.iter().zip(spans) {
                prop_assert_eq!(*action, span.action);
                prop_assert!(span.start >= free);
                let waits = schedule.receives(*action).is_some();
                prop_assert!(waits || span.start == free);
                free = span.end;
            }
        }
        prop_assert!(ends.values().all(|end| *end <= timeline.total));
        prop_assert!((0.0..1.0).contains(&timeline.idle_overall()));
    }
}

#[test]
fn bubbles_are_as_in_books() {
    for stages in 1..=8 {
        for micros in 1..=24 {
            let (p, m) = (stages as f64, micros as f64);
            for kind in [Kind::GPipe, Kind::OneFOneB] {
                assert_eq!(timeline(kind, stages, 1, micros).bubble(), (p - 1.0) / m, "{kind}");
            }
            if stages == 1 || micros % stages > 0 {
                continue;
            }
            for chunks in 2..=4 {
                let bubble = timeline(Kind::Interleaved, stages, chunks, micros).bubble();
                assert_eq!(bubble, (p - 1.0) / (chunks as f64 * m), "{stages} {chunks} {micros}");
            }
        }
    }
}

#[test]
fn the_zero_bubble_schedule_has_a_third_of_the_bubble() {
    for stages in 2..=8 {
        for micros in 1..=24 {
            let (p, m) = (stages as f64, micros as f64);
            let zero = timeline(Kind::ZeroBubble, stages, 1, micros);
            let one = timeline(Kind::OneFOneB, stages, 1, micros);
            assert!(zero.total < one.total, "{stages} {micros}");
            if micros >= stages {
                assert_eq!(zero.bubble(), (p - 1.0) / (3.0 * m), "{stages} {micros}");
            }
            assert!(zero.alive.iter().all(|alive| *alive <= one.alive[0]), "{stages} {micros}");
        }
    }
}

#[test]
fn activations_are_kept_as_long_as_needed() {
    for stages in 1..=8usize {
        for micros in 1..=24usize {
            let alive = |kind| timeline(kind, stages, 1, micros).alive;
            assert_eq!(alive(Kind::OneFOneB)[0], stages.min(micros));
            assert_eq!(alive(Kind::OneFOneB)[stages - 1], 1);
            if stages > 1 {
                assert_eq!(alive(Kind::GPipe), vec![micros; stages]);
            }
        }
    }
    // Of chunks, the first stage keeps p - 1 more than those of p micro-batches.
    assert_eq!(timeline(Kind::Interleaved, 4, 3, 16).alive[0], 4 * 3 + 3);
}

#[test]
fn messages_take_their_time() {
    let schedule = Schedule::new(Kind::OneFOneB, 2, 1, 1).unwrap();
    let costs = Costs { message: 0.5, ..equal(&schedule) };
    // 1 forward, 1 forward, 2 backward, 2 backward, and a message there and back.
    assert_eq!(simulate(&schedule, &costs).unwrap().total, 7.0);
    // Two messages share a link.
    let schedule = Schedule::new(Kind::GPipe, 2, 1, 2).unwrap();
    let costs = Costs { message: 10.0, ..equal(&schedule) };
    let timeline = simulate(&schedule, &costs).unwrap();
    let starts: Vec<f64> = timeline.ranks[1].iter().map(|span| span.start).collect();
    assert_eq!(starts, [11.0, 21.0, 22.0, 24.0]);
}

#[test]
fn costs_that_are_none_are_refused() {
    let schedule = Schedule::new(Kind::OneFOneB, 2, 1, 1).unwrap();
    let short = Costs::thirds(&[1.0]);
    let expected = simulate::SimulateError::Lengths { what: "forward", costs: 1, parts: 2 };
    assert_eq!(simulate(&schedule, &short), Err(expected));
    let wrong = Costs { message: f64::NAN, ..equal(&schedule) };
    assert!(simulate(&schedule, &wrong).unwrap_err().to_string().contains("message cost of NaN"));
}

#[test]
fn one_stage_is_no_pipeline() {
    for kind in Kind::ALL {
        let schedule = Schedule::new(kind, 1, 1, 2).unwrap();
        let works: Vec<_> = schedule.ranks[0].iter().map(|a| (a.work, a.micro)).collect();
        use Work::{Backward, Forward};
        assert_eq!(works, [(Forward, 0), (Backward, 0), (Forward, 1), (Backward, 1)]);
        assert_eq!(schedule.sent(0).count() + schedule.received(0).count(), 0);
        assert_eq!(Schedule::new(kind, 1, 2, 2), Err(ScheduleError::OneStage { chunks: 2 }));
    }
}

#[test]
fn what_there_is_not_is_refused_with_what_there_is() {
    let text = |kind, stages, chunks, micros| {
        Schedule::new(kind, stages, chunks, micros).unwrap_err().to_string()
    };
    let many = text(Kind::OneFOneB, 4, 2, 8);
    assert!(many.contains("set the chunks to 1, or the schedule to interleaved"), "{many}");
    let few = text(Kind::Interleaved, 4, 1, 8);
    assert!(few.contains("set the chunks to 2, or the schedule to 1f1b"), "{few}");
    let uneven = text(Kind::Interleaved, 4, 2, 6);
    assert!(uneven.contains("try 4 or 8 micro-batches, or the schedule 1f1b"), "{uneven}");
    assert_eq!(text(Kind::GPipe, 0, 1, 1), "a pipeline with 0 stages: it needs at least 1");
    assert!(text(Kind::GPipe, 2, 1, usize::MAX).contains("take fewer or larger micro-batches"));
}

#[test]
fn kinds_have_names() {
    for kind in Kind::ALL {
        assert_eq!(kind.name().parse::<Kind>(), Ok(kind));
    }
    let text = "zbh1".parse::<Kind>().unwrap_err().to_string();
    let expected =
        "no pipeline schedule is called \"zbh1\": there are gpipe, 1f1b, interleaved, zero-bubble";
    assert_eq!(text, expected);
}
