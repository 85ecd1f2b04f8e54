//! `regatta train --explain`: predicted memory, traffic and compute of a configuration.

use regatta_predict::explain::{ExplainInput, Explanation, MAX_RANKS};

use super::presets::CHAR_VOCAB_SIZE;
use super::{Config, ConfigError, Resolved, Result};

/// The number of ranks implied by the parallel keys.
pub fn implied_ranks(config: &Config) -> usize {
    let parallel = &config.parallel;
    // At least one shard group.
    let replicas = match parallel.dp {
        0 => parallel.hsdp_shard.div_ceil(parallel.cp.max(1)).max(1),
        given => given,
    };
    let others = [parallel.tp, parallel.cp, parallel.pp];
    others.iter().fold(replicas, |all, axis| all.saturating_mul(*axis))
}

/// Explains a configuration on a number of ranks, `per_host` of them on each host if known.
pub fn explain(resolved: &Resolved, ranks: usize, per_host: Option<usize>) -> Result<Explanation> {
    let config = &resolved.config;
    if ranks > MAX_RANKS {
        return Err(ConfigError::Inconsistent(format!(
            "cannot explain {ranks} ranks: the maximum is {MAX_RANKS}; use fewer data-parallel replicas \
             (parallel.dp)"
        )));
    }
    let vocab_known = config.model.vocab_size != 0;
    let vocab_size = if vocab_known { config.model.vocab_size } else { CHAR_VOCAB_SIZE };
    let (plan, shape) = config.validate_with_vocab(ranks, vocab_size)?;
    let options = config.cost_options();
    let input = ExplainInput {
        model: &resolved.name,
        shape: &shape,
        vocab_known,
        plan: &plan,
        micro_batch_auto: config.train.micro_batch.is_chosen(),
        options,
        saves_in_background: config.saves_in_background(),
        ranks_per_host: per_host,
        notes: config.notes(&plan),
    };
    regatta_predict::explain::explain(input)
        .map_err(|error| ConfigError::Inconsistent(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::resolve;
    use regatta_model::rank_bytes::PeakBytes;

    fn explained(words: &str, ranks: usize, per_host: Option<usize>) -> Explanation {
        let words: Vec<&str> = words.split_whitespace().collect();
        explain(&resolve(None, &words).unwrap(), ranks, per_host).unwrap()
    }

    #[test]
    fn every_rank_has_coordinates_and_predictions() {
        let words = "num_layers=4 num_heads=4 hidden_size=64 seq_len=64 batch=16 tp=2 pp=2 zero=1";
        let all = explained(words, 8, Some(4));
        assert_eq!(all.ranks.len(), 8);
        let last = &all.ranks[7];
        assert_eq!((last.tp, last.dp, last.pp, last.host.as_deref()), (1, 1, 1, Some("node 1")));
        let mut memory = all.rank_classes.iter().flat_map(|class| &class.memory);
        assert!(memory.all(|memory| memory.expected > 0));
        let first = &all.rank_classes[all.ranks[0].class];
        let axes: Vec<_> = first.sent.iter().map(|sent| sent.axis.as_str()).collect();
        assert_eq!(axes, ["tensor", "shard", "forward", "tied", "world"]);
        let bubble = all.bubble.unwrap();
        // Two stages, four micro-batches: about a quarter, because stages are not quite equal.
        assert!(bubble > 0.1 && bubble < 0.4, "{bubble}");
        assert!(all.notes.is_empty() && !all.vocab_known);
        let text = serde_json::to_string(&all).unwrap();
        assert!(text.contains("{\"what\":\"optimizer\",\"expected\":"), "{text}");
        assert!(text.contains("{\"axis\":\"tensor\",\"expected\":"), "{text}");
        assert!(explained(words, 8, Some(1)).notes[0].contains("node 0, node 1"));
        let shared = explained("zero=1 offload.parameters=disk", 2, None);
        assert!(shared.notes[0].contains("implies parallel.zero 3"), "{:?}", shared.notes);
    }

    #[test]
    fn tp_above_the_vocabulary_size_is_refused_with_splits_that_fit() {
        let words = ["family=gpt2", "num_heads=128", "hidden_size=1024", "tp=128", "batch=128"];
        let error = explain(&resolve(None, &words).unwrap(), 128, None).unwrap_err().to_string();
        let expected = ": use tp=32 dp=4 or tp=64 dp=2, or run on 64 ranks with tp=64";
        assert!(error.starts_with("parallel.tp 128 ") && error.ends_with(expected), "{error}");
    }

    #[test]
    fn tiles_reduce_predicted_memory_or_are_noted_as_useless() {
        let words = "num_layers=4 num_heads=4 hidden_size=64 seq_len=64 batch=16 vocab_size=50257";
        let of = |more: &str| explained(&format!("{words} {more}"), 2, None);
        let (whole, tiled) = (of("zero=3"), of("zero=3 tiles=8"));
        assert_eq!((whole.mesh.tiles, tiled.mesh.tiles), (1, 8));
        // Of the embedding, all and a half; or a half and two eighths.
        for what in ["parameters", "gradients"] {
            let expected = |all: &Explanation| {
                let class = &all.rank_classes[all.ranks[0].class];
                class.memory.iter().find(|memory| memory.what == what).unwrap().expected
            };
            assert!(expected(&tiled) < expected(&whole) * 6 / 10, "{what}");
        }
        assert!(tiled.notes.is_empty());
        let notes = of("tiles=8").notes;
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(note.contains("parallel.tiles 8 saves no memory"), "{note}");
    }

    #[test]
    fn pinned_memory_of_a_gpu_is_host_memory() {
        let words = "num_layers=4 num_heads=4 hidden_size=64 seq_len=64 vocab_size=64 batch=16 \
                     train.device=gpu";
        let rows = |more: &str| {
            let all = explained(&format!("{words} {more}"), 1, None);
            let class = &all.rank_classes[0];
            let bytes = |rows: &[PeakBytes]| {
                rows.iter().map(|row| (row.what.clone(), row.expected)).collect::<Vec<_>>()
            };
            (all.parameters as u64, bytes(&class.memory), bytes(&class.host_memory))
        };
        let (parameters, resident, copy) = rows("");
        // Blocks are padded.
        let near = |bytes: u64, expected: u64| (expected..expected * 101 / 100).contains(&bytes);
        assert!(copy.len() == 1 && near(copy[0].1, 12 * parameters), "{copy:?}");
        let (_, offloaded, host) = rows("offload.optimizer=host");
        assert_eq!((host.len(), host[0].0.as_str()), (1, "pinned host memory"));
        assert!(near(host[0].1, 8 * parameters), "{host:?}");
        assert!(offloaded[2].1 < resident[2].1, "{offloaded:?} {resident:?}");
        let (_, _, staging) = rows("offload.optimizer=disk");
        assert!(staging[0].1 < host[0].1, "{staging:?}");
        assert!(rows("checkpoint.interval=0").2.is_empty());
    }

    #[test]
    fn parallel_keys_imply_the_number_of_ranks() {
        let ranks = |words: &[&str]| implied_ranks(&resolve(None, words).unwrap().config);
        assert_eq!(ranks(&[]), 1);
        assert_eq!(ranks(&["dp=3", "tp=2", "pp=4"]), 24);
        assert_eq!(ranks(&["tp=1048576", "pp=1048576", "cp=1048576", "dp=1048576"]), usize::MAX);
    }
}
