use proptest::prelude::*;

use crate::config::{Config, resolve};

/// Words for a model and a split, most of which do not fit together.
fn any_words() -> impl Strategy<Value = Vec<String>> {
    let axes = (1usize..9, 1usize..5, 1usize..9, prop_oneof![Just(0usize), 1usize..9]);
    let model = (1usize..13, prop::sample::select(vec![1usize, 2, 3, 4, 6, 8, 12]), 1usize..100);
    let step = (1usize..40, prop_oneof![Just(0usize), 1usize..9], prop::bool::ANY);
    let more = (
        prop::sample::select(vec!["1f1b", "1f1b", "gpipe", "interleaved", "zero-bubble"]),
        prop_oneof![Just(1usize), 1usize..4],
        prop::sample::select(vec!["auto", "auto", "true", "false"]),
        (0usize..4, prop_oneof![Just(0usize), 1usize..6]),
    );
    (axes, model, step, more).prop_map(|(axes, model, step, more)| {
        let ((tp, cp, pp, dp), (layers, heads, context)) = (axes, model);
        let ((batch, micro, is_each), (schedule, chunks, sequence, (zero, shard))) = (step, more);
        let batch = if is_each { "train.batch_per_rank" } else { "train.batch" }.to_owned()
            + &format!("={batch}");
        let text = format!(
            "parallel.tp={tp} parallel.cp={cp} parallel.pp={pp} parallel.dp={dp} \
             model.layers={layers} model.heads={heads} model.width={} model.context={context} \
             train.micro_batch={micro} parallel.schedule={schedule} parallel.chunks={chunks} \
             parallel.sequence={sequence} parallel.zero={zero} parallel.shard={shard} {batch}",
            heads * 8
        );
        text.split_whitespace().map(str::to_owned).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_advice_works(asked in any_words(), ranks in 1usize..65) {
        let refuse = |asked: &[String]| {
            let words: Vec<&str> = asked.iter().map(String::as_str).collect();
            let config = words_of(&words);
            config.fit(ranks).err().map(|misfit| (config, misfit))
        };
        if let Some((config, misfit)) = refuse(&asked) {
            let told = misfit.sentence(&config, ranks);
            for help in &misfit.helps {
                for fix in help.fixes(&config, ranks) {
                    // As a user would write it.
                    let is_set = |word: &&String| {
                        !fix.set.iter().any(|(key, _)| word.starts_with(&format!("{key}=")))
                    };
                    let mut words: Vec<String> = asked.iter().filter(is_set).cloned().collect();
                    words.extend(fix.set.iter().map(|(key, value)| format!("{key}={value}")));
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    let tried = words_of(&words).validate(fix.ranks);
                    prop_assert!(tried.is_ok(), "{told}: {fix:?}: {tried:?}");
                    for (_, value) in &fix.set {
                        prop_assert!(told.contains(value), "{told}: {fix:?}");
                    }
                    let ranks = fix.ranks.to_string();
                    prop_assert!(!fix.set.is_empty() || told.contains(&ranks), "{told}: {fix:?}");
                }
            }
        }
    }
}

fn words_of(all: &[&str]) -> Config {
    resolve(None, all).unwrap().config
}
