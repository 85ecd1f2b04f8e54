//! `regatta train --explain`: what a configuration comes to on a number of ranks.

use regatta_predict::cost::Form;
use regatta_predict::explain::{Explanation, MAX_RANKS, Subject};

use super::{Config, ConfigError, Resolved};

/// Characters of a usual text: the vocabulary size assumed where the data decides it.
const CHARACTERS: usize = 65;

/// The ranks that a configuration asks for, if nobody says how many there are.
pub fn ranks_asked(config: &Config) -> usize {
    let parallel = &config.parallel;
    // Those that share state are there, too.
    let copies = match parallel.dp {
        0 => parallel.shard.div_ceil(parallel.cp.max(1)).max(1),
        given => given,
    };
    let others = [parallel.tp, parallel.cp, parallel.pp];
    others.iter().fold(copies, |all, axis| all.saturating_mul(*axis))
}

/// Explains a configuration on a number of ranks, `per_host` of them on each host if that is known.
pub fn explain(
    resolved: &Resolved,
    ranks: usize,
    per_host: Option<usize>,
) -> Result<Explanation, ConfigError> {
    let config = &resolved.config;
    if ranks > MAX_RANKS {
        return Err(ConfigError::Contradiction(format!(
            "{ranks} ranks are more than can be explained: try {MAX_RANKS} or fewer, such as fewer \
             copies of the model (parallel.dp)"
        )));
    }
    let is_certain = config.model.vocabulary != 0;
    let vocabulary = if is_certain { config.model.vocabulary } else { CHARACTERS };
    let (plan, shape) = config.planned(ranks, vocabulary)?;
    let subject = Subject {
        model: &resolved.name,
        shape: &shape,
        is_certain,
        plan: &plan,
        form: Form::new(config.train.precision.activation_bytes(), config.train.recompute),
        per_host,
        notes: config.notes(&plan),
    };
    let unfit = |error: &dyn std::fmt::Display| ConfigError::Contradiction(error.to_string());
    regatta_predict::explain::explain(subject).map_err(|error| unfit(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::resolve;

    fn explained(words: &str, ranks: usize, per_host: Option<usize>) -> Explanation {
        let words: Vec<&str> = words.split_whitespace().collect();
        explain(&resolve(None, &words).unwrap(), ranks, per_host).unwrap()
    }

    #[test]
    fn every_rank_has_a_seat_and_figures() {
        let words = "layers=4 heads=4 width=64 context=64 batch=16 tp=2 pp=2 zero=1";
        let all = explained(words, 8, Some(4));
        assert_eq!(all.ranks.len(), 8);
        let last = &all.ranks[7];
        assert_eq!((last.tp, last.dp, last.pp, last.host.as_deref()), (1, 1, 1, Some("node 1")));
        assert!(all.kinds.iter().all(|kind| kind.held.iter().all(|held| held.expected > 0)));
        let first = &all.kinds[all.ranks[0].kind];
        let axes: Vec<_> = first.sent.iter().map(|sent| sent.axis.as_str()).collect();
        assert_eq!(axes, ["tensor", "shard", "forward", "tied", "world"]);
        let bubble = all.bubble.unwrap();
        // Two stages, four micro-batches: about a quarter, for stages are not quite equal.
        assert!(bubble > 0.1 && bubble < 0.4, "{bubble}");
        assert!(all.notes.is_empty() && !all.is_certain);
        let text = serde_json::to_string(&all).unwrap();
        assert!(text.contains("{\"what\":\"optimizer\",\"expected\":"), "{text}");
        assert!(text.contains("{\"axis\":\"tensor\",\"expected\":"), "{text}");
        assert!(explained(words, 8, Some(1)).notes[0].contains("node 0, node 1"));
        let shared = explained("zero=1 offload.parameters=disk", 2, None);
        assert!(shared.notes[0].contains("as by parallel.zero 3"), "{:?}", shared.notes);
    }

    #[test]
    fn kinds_of_tokens_that_do_not_suffice_are_refused_with_splits_that_do() {
        let words = ["heads=128", "width=1024", "tp=128", "batch=128"];
        let error = explain(&resolve(None, &words).unwrap(), 128, None).unwrap_err().to_string();
        let expected = "parallel.tp 128 is more than the kinds of tokens: tp 32 dp 4 or tp 64 dp 2 \
                        would, or start 64 with tp 64";
        assert_eq!(error, expected);
    }

    #[test]
    fn tiles_are_counted_and_told_of_where_they_save_nothing() {
        let words = "layers=4 heads=4 width=64 context=64 batch=16 vocabulary=50257";
        let of = |more: &str| explained(&format!("{words} {more}"), 2, None);
        let (whole, tiled) = (of("zero=3"), of("zero=3 tiles=8"));
        assert_eq!((whole.split.tiles, tiled.split.tiles), (1, 8));
        // Of the table, all beside a half; or a half and two eighths.
        for what in ["parameters", "gradients"] {
            let held = |all: &Explanation| {
                let kind = &all.kinds[all.ranks[0].kind];
                kind.held.iter().find(|held| held.what == what).unwrap().expected
            };
            assert!(held(&tiled) < held(&whole) * 6 / 10, "{what}");
        }
        assert!(tiled.notes.is_empty());
        let notes = of("tiles=8").notes;
        assert!(
            notes.len() == 1 && notes[0].contains("parallel.tiles 8 save nothing"),
            "{notes:?}"
        );
    }

    #[test]
    fn the_keys_say_how_many_ranks_there_are() {
        let config = |words: &[&str]| resolve(None, words).unwrap().config;
        assert_eq!(ranks_asked(&config(&[])), 1);
        assert_eq!(ranks_asked(&config(&["dp=3", "tp=2", "pp=4"])), 24);
        assert_eq!(
            ranks_asked(&config(&["tp=1048576", "pp=1048576", "cp=1048576", "dp=1048576"])),
            usize::MAX
        );
    }
}
