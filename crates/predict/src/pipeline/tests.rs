//! Properties of all schedules.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use proptest::sample::Index;

use super::ScheduleKind::{GPipe, Interleaved, OneFOneB, ZeroBubble};
use super::*;

/// Valid schedules.
fn schedules() -> impl Strategy<Value = Schedule> {
    let sizes = (0..4usize, 1..=8usize, 1..=4usize, 1..=24usize);
    sizes.prop_filter_map("invalid sizes", |(kind, stages, chunks, micro_batches)| {
        let kind = ScheduleKind::ALL[kind];
        // Random sizes would rarely be valid.
        let (chunks, micro_batches) = match kind {
            Interleaved if stages > 1 => (chunks.max(2), micro_batches.next_multiple_of(stages)),
            _ => (1, micro_batches),
        };
        Schedule::new(kind, stages, chunks, micro_batches).ok()
    })
}

fn equal(schedule: &Schedule) -> ChunkCosts {
    ChunkCosts::equal_thirds(&vec![3.0; schedule.num_chunks()])
}

fn timeline(kind: ScheduleKind, stages: usize, chunks: usize, micro_batches: usize) -> Timeline {
    let schedule = Schedule::new(kind, stages, chunks, micro_batches).unwrap();
    simulate(&schedule, &equal(&schedule)).unwrap()
}

/// Executes a schedule with unbounded links: whether every rank receives what it expects, all complete,
/// and no message is left.
fn completes(schedule: &Schedule) -> bool {
    let mut links: HashMap<(Direction, usize), VecDeque<Message>> = HashMap::new();
    let mut done = vec![0; schedule.stages];
    loop {
        let before = done.clone();
        for (rank, actions) in schedule.ranks.iter().enumerate() {
            let Some(&action) = actions.get(done[rank]) else { continue };
            if let Some(expected) = schedule.receives(action) {
                match links.entry((expected.direction, expected.from)).or_default().pop_front() {
                    None => continue,
                    Some(message) if message != expected => return false,
                    Some(_) => {}
                }
            }
            if let Some(message) = schedule.sends(action) {
                links.entry((message.direction, rank)).or_default().push_back(message);
            }
            done[rank] += 1;
        }
        if done == before {
            break;
        }
    }
    let all_done = done.iter().zip(&schedule.ranks).all(|(done, actions)| *done == actions.len());
    all_done && links.values().all(VecDeque::is_empty)
}

#[test]
fn all_small_schedules_are_valid() {
    let mut valid = 0;
    for kind in ScheduleKind::ALL {
        for (stages, chunks, micro_batches) in
            (1..=8).flat_map(|p| (1..=4).flat_map(move |v| (1..=24).map(move |m| (p, v, m))))
        {
            let Ok(schedule) = Schedule::new(kind, stages, chunks, micro_batches) else { continue };
            let sizes = format!("{kind}: {stages} by {chunks}, {micro_batches} micro-batches");
            check(&schedule).unwrap_or_else(|fault| panic!("{sizes}: {fault}"));
            assert!(completes(&schedule), "{sizes}");
            valid += 1;
        }
    }
    // Three schedules with one chunk, and interleaved with one stage and with 2, 3 and 4 chunks.
    let multiples: usize = (2..=8).map(|stages| 24 / stages).sum();
    assert_eq!(valid, 3 * 8 * 24 + 24 + 3 * multiples);
}

/// The messages that a rank receives, in order.
fn received(schedule: &Schedule, rank: usize) -> impl Iterator<Item = Message> {
    schedule.ranks[rank].iter().filter_map(|action| schedule.receives(*action))
}

/// Largest number of micro-batches of a rank whose weight gradients are not complete yet, each counted
/// once per chunk.
fn in_flight(timeline: &Timeline, rank: usize) -> usize {
    let (mut in_flight, mut peak) = (0usize, 0);
    for span in &timeline.ranks[rank] {
        match span.action.computation {
            Computation::Forward => in_flight += 1,
            Computation::Backward | Computation::BackwardWeight => in_flight -= 1,
            Computation::BackwardInput => {}
        }
        peak = peak.max(in_flight);
    }
    peak
}

proptest! {
    #[test]
    fn missing_actions_are_refused(
        mut schedule in schedules(), rank: Index, at: Index,
    ) {
        let list = rank.get_mut(&mut schedule.ranks[..]);
        let dropped = list.remove(at.index(list.len()));
        let fault = check(&schedule).unwrap_err();
        let named = matches!(fault, ScheduleFault::Missing { rank, action }
            if rank == schedule.stage(dropped.chunk) && action.chunk == dropped.chunk
                && action.micro_batch == dropped.micro_batch);
        prop_assert!(named, "{} for {}", fault, dropped);
    }

    #[test]
    fn duplicate_actions_are_refused(
        mut schedule in schedules(), rank: Index, at: Index, to: Index,
    ) {
        let list = rank.get_mut(&mut schedule.ranks[..]);
        let action = *at.get(&list[..]);
        list.insert(to.index(list.len() + 1), action);
        let fault = check(&schedule).unwrap_err();
        prop_assert_eq!(fault, ScheduleFault::Duplicate { rank: schedule.stage(action.chunk), action });
    }

    /// Some reordered schedules are valid; those must complete.
    #[test]
    fn reordered_schedules_that_pass_the_check_complete(
        mut schedule in schedules(), rank: Index, swaps in prop::collection::vec(any::<(Index, Index)>(), 1..4),
    ) {
        let list = rank.get_mut(&mut schedule.ranks[..]);
        for (one, other) in swaps {
            let (one, other) = (one.index(list.len()), other.index(list.len()));
            list.swap(one, other);
        }
        if check(&schedule).is_ok() {
            prop_assert!(completes(&schedule));
        }
    }

    /// Swapping two equal passes breaks message order or accumulation order.
    #[test]
    fn swapped_passes_are_refused(mut schedule in schedules(), rank: Index, one: Index, other: Index) {
        prop_assume!(schedule.stages > 1);
        let list = rank.get_mut(&mut schedule.ranks[..]);
        let first = one.index(list.len());
        let same: Vec<usize> =
            (0..list.len()).filter(|at| list[*at].computation == list[first].computation && *at != first).collect();
        prop_assume!(!same.is_empty());
        let second = *other.get(&same);
        list.swap(first, second);
        prop_assert!(check(&schedule).is_err(), "{} and {}", first, second);
    }

    #[test]
    fn every_sent_message_is_received(schedule in schedules()) {
        let mut sent: Vec<Message> = (0..schedule.stages).flat_map(|rank| schedule.sent(rank)).collect();
        let mut received: Vec<Message> =
            (0..schedule.stages).flat_map(|rank| received(&schedule, rank)).collect();
        prop_assert_eq!(sent.len(), 2 * (schedule.num_chunks() - 1) * schedule.micro_batches);
        let key = |m: &Message| (m.direction == Direction::Forward, m.chunk, m.micro_batch);
        sent.sort_by_key(key);
        received.sort_by_key(key);
        prop_assert_eq!(&sent, &received);
        let neighbours = |m: &Message| match m.direction {
            Direction::Forward => m.to == (m.from + 1) % schedule.stages,
            Direction::Backward => m.from == (m.to + 1) % schedule.stages,
        };
        prop_assert!(sent.iter().all(neighbours));
    }

    #[test]
    fn each_chunk_is_completed_once_by_its_last_action(schedule in schedules()) {
        for (rank, actions) in schedule.ranks.iter().enumerate() {
            let completes = |action: &Action| {
                let is_last = action.micro_batch + 1 == schedule.micro_batches;
                is_last && action.computation.computes_weight_grads()
            };
            for chunk in (rank..schedule.num_chunks()).step_by(schedule.stages) {
                let of_chunk: Vec<_> = actions.iter().filter(|a| a.chunk == chunk).collect();
                let complete = of_chunk.iter().filter(|a| completes(a)).count();
                prop_assert_eq!(complete, 1);
                prop_assert!(completes(of_chunk.last().unwrap()));
            }
        }
    }

    /// Spans do not overlap, and a rank idles only while it waits for a message.
    #[test]
    fn ranks_idle_only_while_waiting_for_messages(
        schedule in schedules(), costs in prop::collection::vec(0.1f64..4.0, 32), message in 0f64..1.0,
    ) {
        let costs = ChunkCosts { message, ..ChunkCosts::equal_thirds(&costs[..schedule.num_chunks()]) };
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
fn bubbles_match_the_published_formulas() {
    for stages in 1..=8 {
        for micro_batches in 1..=24 {
            let (p, m) = (stages as f64, micro_batches as f64);
            for kind in [GPipe, OneFOneB] {
                let bubble = timeline(kind, stages, 1, micro_batches).bubble();
                assert_eq!(bubble, (p - 1.0) / m, "{kind}");
            }
            if stages == 1 || micro_batches % stages > 0 {
                continue;
            }
            for chunks in 2..=4 {
                let bubble = timeline(Interleaved, stages, chunks, micro_batches).bubble();
                let expected = (p - 1.0) / (chunks as f64 * m);
                assert_eq!(bubble, expected, "{stages} {chunks} {micro_batches}");
            }
        }
    }
}

#[test]
fn zero_bubble_has_a_third_of_the_1f1b_bubble() {
    for stages in 2..=8 {
        for micro_batches in 1..=24 {
            let (p, m) = (stages as f64, micro_batches as f64);
            let zero = timeline(ZeroBubble, stages, 1, micro_batches);
            let one = timeline(OneFOneB, stages, 1, micro_batches);
            assert!(zero.total < one.total, "{stages} {micro_batches}");
            if micro_batches >= stages {
                assert_eq!(zero.bubble(), (p - 1.0) / (3.0 * m), "{stages} {micro_batches}");
            }
            let max = (0..stages).map(|rank| in_flight(&zero, rank)).max();
            assert!(max <= Some(in_flight(&one, 0)), "{stages} {micro_batches}");
        }
    }
}

#[test]
fn micro_batches_in_flight_match_the_formulas() {
    for stages in 1..=8usize {
        for micro_batches in 1..=24usize {
            let in_flight = |kind| -> Vec<usize> {
                let timeline = timeline(kind, stages, 1, micro_batches);
                (0..stages).map(|rank| in_flight(&timeline, rank)).collect()
            };
            assert_eq!(in_flight(OneFOneB)[0], stages.min(micro_batches));
            assert_eq!(in_flight(OneFOneB)[stages - 1], 1);
            if stages > 1 {
                assert_eq!(in_flight(GPipe), vec![micro_batches; stages]);
            }
        }
    }
    // p micro-batches in v chunks, plus p - 1.
    assert_eq!(in_flight(&timeline(Interleaved, 4, 3, 16), 0), 4 * 3 + 3);
}

#[test]
fn message_time_delays_the_receiver() {
    let schedule = Schedule::new(OneFOneB, 2, 1, 1).unwrap();
    let costs = ChunkCosts { message: 0.5, ..equal(&schedule) };
    // 1 forward, 1 forward, 2 backward, 2 backward, and a message there and back.
    assert_eq!(simulate(&schedule, &costs).unwrap().total, 7.0);
    // Two messages on one link.
    let schedule = Schedule::new(GPipe, 2, 1, 2).unwrap();
    let costs = ChunkCosts { message: 10.0, ..equal(&schedule) };
    let timeline = simulate(&schedule, &costs).unwrap();
    let starts: Vec<f64> = timeline.ranks[1].iter().map(|span| span.start).collect();
    assert_eq!(starts, [11.0, 21.0, 22.0, 24.0]);
}

#[test]
fn invalid_costs_are_refused() {
    let schedule = Schedule::new(OneFOneB, 2, 1, 1).unwrap();
    let short = ChunkCosts::equal_thirds(&[1.0]);
    let expected = simulate::SimulateError::Lengths { what: "forward", costs: 1, chunks: 2 };
    assert_eq!(simulate(&schedule, &short), Err(expected));
    let wrong = ChunkCosts { message: f64::NAN, ..equal(&schedule) };
    assert!(simulate(&schedule, &wrong).unwrap_err().to_string().contains("message cost NaN"));
}

#[test]
fn one_stage_sends_no_messages() {
    for kind in ScheduleKind::ALL {
        let schedule = Schedule::new(kind, 1, 1, 2).unwrap();
        let actions = schedule.ranks[0].iter();
        let passes: Vec<_> = actions.map(|a| (a.computation, a.micro_batch)).collect();
        use Computation::{Backward, Forward};
        assert_eq!(passes, [(Forward, 0), (Backward, 0), (Forward, 1), (Backward, 1)]);
        assert_eq!(schedule.sent(0).count() + received(&schedule, 0).count(), 0);
        assert_eq!(Schedule::new(kind, 1, 2, 2), Err(ScheduleError::OneStage { chunks: 2 }));
    }
}

#[test]
fn invalid_sizes_are_refused_with_valid_ones() {
    for (kind, [stages, chunks, micro_batches], expected) in [
        (
            OneFOneB,
            [4, 2, 8],
            "set parallel.virtual_stages to 1 or parallel.schedule to interleaved",
        ),
        (Interleaved, [4, 1, 8], "set parallel.virtual_stages to 2 or parallel.schedule to 1f1b"),
        (Interleaved, [4, 2, 6], "try 4 or 8, or parallel.schedule 1f1b"),
        (GPipe, [0, 1, 1], "a pipeline needs at least 1 of its stages, got 0"),
        (GPipe, [2, 1, usize::MAX], "use fewer or larger micro-batches"),
    ] {
        let error = Schedule::new(kind, stages, chunks, micro_batches).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
