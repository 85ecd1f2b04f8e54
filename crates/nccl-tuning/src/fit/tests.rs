use proptest::prelude::*;

use super::*;
use crate::Algorithm;
use crate::candidate::candidates;

const COMMUNICATOR: Communicator = Communicator { ranks: 16, nodes: 2 };

fn choice(algorithm: Algorithm, protocol: Protocol) -> Choice {
    Choice { algorithm, protocol, channels: 0 }
}

fn tree_ll() -> Choice {
    choice(Algorithm::Tree, Protocol::Ll)
}

/// All-reduces of one size: a list of times by round, of the default and of choices.
fn timings(bytes: u64, times: &[(Option<Choice>, &[f64])]) -> Vec<Timing> {
    let function = Function::AllReduce;
    let of = |&(choice, times): &(Option<Choice>, &[f64])| {
        let one =
            move |(round, time_us): (u32, f64)| Timing { function, bytes, choice, round, time_us };
        (0..).zip(times.to_vec()).map(one).collect::<Vec<_>>()
    };
    times.iter().flat_map(of).collect()
}

fn chosen(times: &[(Option<Choice>, &[f64])]) -> Option<Choice> {
    fit(&timings(8, times))[0].chosen.map(|one| one.choice)
}

#[test]
fn a_choice_must_beat_the_default_by_more_than_the_noise() {
    let of = |default: &[f64], tree: &[f64]| {
        chosen(&[(None, default), (Some(tree_ll()), tree)]).is_some()
    };
    assert!(of(&[10.0, 10.0, 10.0], &[9.0, 9.0, 9.0]));
    assert!(!of(&[10.0, 10.0, 10.0], &[9.6, 9.6, 9.6]), "4 %");
    assert!(!of(&[10.0, 10.0, 14.0, 14.0, 14.0], &[11.0; 5]), "the default is as fast at times");
    assert!(of(&[10.0, 10.0, 10.0, 10.0, 30.0], &[9.0; 5]), "one slow round of the default");
    assert!(of(&[10.0; 5], &[9.0, 9.0, 9.0, 9.0, 12.0]), "one slow round of the choice");
    assert!(!of(&[10.0; 5], &[9.0, 9.0, 9.0, 12.0, 12.0]), "two slow rounds");
    assert!(of(&[10.0; 4], &[9.0, 9.0, 9.0, 12.0]), "one of four");
    assert!(!of(&[10.0; 8], &[8.0, 8.0, 8.0, 8.0, 8.0, 12.0, 12.0, 12.0]), "three of eight");
    assert!(!of(&[10.0, 10.0], &[1.0, 1.0]), "too few rounds");
    assert!(!of(&[10.0, 10.0, 10.0], &[1.0, 1.0]), "failed in a round");
    assert!(!of(&[10.0, 10.0, 10.0], &[]));
}

#[test]
fn the_fastest_choice_is_taken_and_the_next_size_prefers_it() {
    let (tree, ring) = (Some(tree_ll()), Some(choice(Algorithm::Ring, Protocol::Simple)));
    let mut all = timings(8, &[(None, &[10.0; 3]), (tree, &[5.0; 3]), (ring, &[6.0; 3])]);
    all.extend(timings(16, &[(None, &[10.0; 3]), (tree, &[5.1; 3]), (ring, &[5.0; 3])]));
    all.extend(timings(64, &[(None, &[10.0; 3]), (tree, &[6.0; 3]), (ring, &[5.0; 3])]));
    all.extend(timings(256, &[(None, &[5.0; 3]), (tree, &[6.0; 3]), (ring, &[5.0; 3])]));
    let fits = fit(&all);
    let found: Vec<_> = fits.iter().map(|fit| fit.chosen.map(|one| one.choice)).collect();
    assert_eq!(found, [tree, tree, ring, None]);
    assert_eq!(fits[3].fastest.map(|one| one.choice), ring);
    let text: Vec<String> = rows(&fits, COMMUNICATOR).iter().map(Row::to_string).collect();
    let expected = [
        "all-reduce ranks=16 nodes=2 bytes=8..32 tree ll",
        "all-reduce ranks=16 nodes=2 bytes=33..128 ring simple",
    ];
    assert_eq!(text, expected);
}

#[test]
fn ll128_has_a_row_for_where_it_is_not_available() {
    let ll128 = Some(choice(Algorithm::Tree, Protocol::Ll128));
    let mut all = Vec::new();
    for (bytes, tree) in [(8, 6.0), (16, 6.0), (32, 9.9)] {
        all.extend(timings(
            bytes,
            &[(None, &[10.0; 3]), (ll128, &[5.0; 3]), (Some(tree_ll()), &[tree; 3])],
        ));
    }
    let text: Vec<String> = rows(&fit(&all), COMMUNICATOR).iter().map(Row::to_string).collect();
    let expected = [
        "all-reduce ranks=16 nodes=2 bytes=8..32 tree ll128",
        "all-reduce ranks=16 nodes=2 bytes=8..22 tree ll",
    ];
    assert_eq!(text, expected);
}

#[test]
fn ranges_end_at_the_measured_sizes() {
    assert_eq!(half_way(8, 8), 8);
    assert_eq!(half_way(0, 1), 1);
    assert_eq!(half_way(1 << 20, 4 << 20), (2 << 20) + 1);
    assert_eq!(half_way(u64::MAX - 1, u64::MAX), u64::MAX);
    assert!(rows(&[], COMMUNICATOR).is_empty());
}

/// Times of all candidates of an all-reduce that differ by noise only: uniform, by up to a fraction.
fn noise(seed: u64, rounds: u32, fraction: f64) -> Vec<Timing> {
    let mut state = seed;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let candidates = candidates(&[Function::AllReduce], &[]);
    let choices = candidates.iter().map(|one| Some(one.choice)).chain([None, None]);
    let choices: Vec<Option<Choice>> = choices.collect();
    let mut all = Vec::new();
    for (bits, round) in (3..25).flat_map(|bits| (0..rounds).map(move |round| (bits, round))) {
        let (function, bytes) = (Function::AllReduce, 1 << bits);
        let mut one = |choice| {
            let time_us = 100.0 * (1.0 + fraction * random());
            Timing { function, bytes, choice, round, time_us }
        };
        all.extend(choices.iter().map(|choice| one(*choice)));
    }
    all
}

#[test]
fn noise_of_thirty_percent_chooses_almost_nothing() {
    let fits: Vec<SizeFit> = (0..50).flat_map(|seed| fit(&noise(seed, 5, 0.3))).collect();
    let wrong = fits.iter().filter(|fit| fit.chosen.is_some()).count();
    // Of 10 candidates for each size.
    assert!(wrong * 20 < fits.len(), "{wrong} of {}", fits.len());
}

/// Times of few sizes, with gaps. Choices are often faster.
fn any_timings() -> impl Strategy<Value = Vec<Timing>> {
    let functions = [Function::AllReduce, Function::Reduce];
    let choice = prop::option::of(prop::sample::select(candidates(&functions, &[])));
    let one = (choice, prop::sample::select(functions.to_vec()), 1u64..5, 0u32..3, 0.2f64..2.0);
    let timing = one.prop_map(|(candidate, function, size, round, time_us)| {
        let function = candidate.as_ref().map_or(function, |candidate| candidate.functions[0]);
        let choice = candidate.map(|candidate| candidate.choice);
        let time_us = if choice.is_some() { time_us } else { time_us + 0.8 };
        Timing { function, bytes: size * size * 1000, choice, round, time_us }
    });
    prop::collection::vec(timing, 0..800)
}

proptest! {
    #[test]
    fn nothing_is_chosen_if_all_times_are_within_the_least_gain(seed: u64, rounds in 1u32..6) {
        let all = noise(seed, rounds, 1.0 / (1.0 - MIN_GAIN) - 1.0 - 1e-9);
        prop_assert!(fit(&all).iter().all(|fit| fit.chosen.is_none() && fit.without_ll128.is_none()));
    }

    #[test]
    fn no_choice_is_slower_than_the_default(all in any_timings()) {
        for fit in fit(&all) {
            for chosen in [fit.chosen, fit.without_ll128].into_iter().flatten() {
                prop_assert!(chosen.time_us <= fit.default_us * (1.0 - MIN_GAIN));
                prop_assert!(chosen.choice.algorithm.supports(fit.function, chosen.choice.protocol));
            }
            prop_assert!(fit.chosen.is_some() || fit.without_ll128.is_none());
        }
    }

    #[test]
    fn rows_give_every_measured_size_its_choice(all in any_timings()) {
        let fits = fit(&all);
        let rows = rows(&fits, COMMUNICATOR);
        for row in &rows {
            prop_assert!(row.sizes.first <= row.sizes.last);
            prop_assert_eq!(row.to_string(), crate::Table { comments: vec![], rows: vec![*row] }
                .to_string().parse::<crate::Table>().unwrap().rows[0].to_string());
        }
        for fit in &fits {
            let matching = rows.iter().filter(|row| row.function == fit.function);
            let found: Vec<_> = matching.filter(|row| row.sizes.contains(fit.bytes)).collect();
            let expected: Vec<_> = [fit.chosen, fit.without_ll128].into_iter().flatten().collect();
            prop_assert_eq!(found.len(), expected.len(), "{:?} {:?}", found, fit);
            for (row, expected) in found.iter().zip(expected) {
                prop_assert_eq!(row.choice, expected.choice);
            }
        }
    }
}
