use proptest::prelude::*;

use crate::config::{Config, resolve};

/// Arguments for a model and a split, most of which are inconsistent.
fn any_args() -> impl Strategy<Value = Vec<String>> {
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
        let ((tp, cp, pp, dp), (layers, heads, seq_len)) = (axes, model);
        let ((batch, micro, per_replica), (schedule, virtual_stages, sequence, (zero, shard))) = (step, more);
        let batch = if per_replica { "train.batch_per_replica" } else { "train.batch" }.to_owned()
            + &format!("={batch}");
        let micro = if micro == 0 { "auto".to_owned() } else { micro.to_string() };
        let text = format!(
            "parallel.tp={tp} parallel.cp={cp} parallel.pp={pp} parallel.dp={dp} \
             model.num_layers={layers} model.num_heads={heads} model.hidden_size={} model.seq_len={seq_len} \
             train.micro_batch={micro} parallel.schedule={schedule} parallel.virtual_stages={virtual_stages} \
             parallel.sequence_parallel={sequence} parallel.zero={zero} parallel.hsdp_shard={shard} {batch}",
            heads * 8
        );
        text.split_whitespace().map(str::to_owned).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_suggestion_fits(args in any_args(), ranks in 1usize..65) {
        let config = config(&args);
        if let Err(infeasible) = config.layout(ranks) {
            let message = infeasible.message(&config, ranks);
            for suggestion in &infeasible.suggestions {
                for change in suggestion.changes(&config, ranks) {
                    // As a user would write it.
                    let is_unchanged = |arg: &&String| {
                        !change.set.iter().any(|(key, _)| arg.starts_with(&format!("{key}=")))
                    };
                    let mut args: Vec<String> = args.iter().filter(is_unchanged).cloned().collect();
                    args.extend(change.set.iter().map(|(key, value)| format!("{key}={value}")));
                    let tried = self::config(&args).validate(change.ranks);
                    prop_assert!(tried.is_ok(), "{message}: {change:?}: {tried:?}");
                    for (_, value) in &change.set {
                        prop_assert!(message.contains(value), "{message}: {change:?}");
                    }
                    let ranks = change.ranks.to_string();
                    let is_named = !change.set.is_empty() || message.contains(&ranks);
                    prop_assert!(is_named, "{message}: {change:?}");
                }
            }
        }
    }
}

fn config(args: &[String]) -> Config {
    resolve(None, args).unwrap().config
}
