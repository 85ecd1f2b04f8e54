//! How ranks share the work: what is planned, what is refused, and what is proposed instead.

use super::*;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::Kind as Pipeline;
use regatta_predict::plan::{OnDisk, ParallelPlan};

#[test]
fn what_does_not_divide_is_one_clear_error() {
    let plan = |all: &[&str], ranks| words(all).unwrap().config.validate(ranks);
    let data = |ranks, batch, share, micro_batch| ParallelPlan {
        mesh: Mesh::data(ranks),
        zero: 0,
        sequence: false,
        schedule: Pipeline::OneFOneB,
        chunks: 1,
        batch,
        share,
        micro_batch,
        accumulation: share / micro_batch,
        tiles: 1,
        on_disk: OnDisk::default(),
    };
    assert_eq!(plan(&["batch=24", "micro_batch=4"], 3).unwrap(), data(3, 24, 8, 4));
    assert_eq!(plan(&["batch_per_rank=5"], 8).unwrap(), data(8, 40, 5, 5));
    let cases: [(&[&str], usize, &str); 8] = [
        (
            &["batch=12"],
            5,
            "train.batch 12 does not divide among 5 ranks: set it to 10 or 15, start 4 or 6 ranks, \
             or set train.batch_per_rank instead",
        ),
        (&["batch=3"], 8, "set it to 8, start 3 ranks,"),
        (
            &["batch=24", "micro_batch=5"],
            2,
            "train.micro_batch 5 does not divide a rank's 12 sequences (train.batch 24 over 2 \
             ranks): set it to 4 or 6",
        ),
        (&["batch_per_rank=7", "micro_batch=9"], 2, "(train.batch_per_rank): set it to 7"),
        (&["batch=0"], 2, "train.batch and train.batch_per_rank are 0"),
        (&["dp=2"], 4, "parallel.dp is 2, and there are 4 ranks"),
        (
            &["rate=1e-5"],
            1,
            "optimizer.minimum_rate 0.0001 is above optimizer.rate 1e-5: a tenth, 1.0e-6",
        ),
        (
            &["decay_steps=20"],
            1,
            "optimizer.warmup 50 is longer than optimizer.decay_steps 20: set it to 2",
        ),
    ];
    for (all, ranks, expected) in cases {
        let error = sentence(plan(all, ranks));
        assert!(error.contains(expected), "{error}");
    }
}

/// What is planned for a model that can be split in many ways.
fn split(all: &[&str], ranks: usize) -> Result<ParallelPlan, ConfigError> {
    let model = ["layers=8", "heads=12", "width=96", "context=64", "batch=24"];
    words(&[&model[..], all].concat()).unwrap().config.validate(ranks)
}

#[test]
fn ranks_are_laid_out_as_asked() {
    let plan = split(&["tp=2", "cp=2", "pp=2", "zero=1"], 24).unwrap();
    assert_eq!(plan.mesh, Mesh { dp: 3, cp: 2, tp: 2, pp: 2, shard: 6 });
    // The batch is shared by copies of the model only; two micro-batches a stage.
    assert_eq!((plan.batch, plan.share, plan.micro_batch, plan.accumulation), (24, 8, 2, 4));
    assert!(plan.sequence && plan.zero == 1);
    assert!(!split(&["tp=2", "sequence=false"], 2).unwrap().sequence);
    // 63 tokens do not divide: auto does without.
    assert!(!split(&["tp=2", "context=63"], 2).unwrap().sequence);
    let plan = split(&["zero=3", "shard=4"], 8).unwrap();
    assert_eq!((plan.mesh.dp, plan.mesh.shard), (8, 4));
    let micros = |all: &[&str], ranks| {
        let plan = split(all, ranks).unwrap();
        (plan.micro_batch, plan.accumulation)
    };
    assert_eq!(micros(&["pp=4"], 4), (3, 8));
    // Not enough for two a stage: the smallest.
    assert_eq!(micros(&["pp=4", "batch=6"], 4), (1, 6));
    let interleaved = ["pp=4", "parallel.schedule=interleaved", "chunks=2", "batch=20"];
    assert_eq!(micros(&interleaved, 4), (1, 20));
    assert_eq!(micros(&["pp=2", "micro_batch=12"], 2), (12, 2));
}

#[test]
fn splits_that_do_not_fit_are_refused_with_those_that_do() {
    let cases: [(&[&str], usize, &str); 20] = [
        (
            &["tp=3", "pp=2"],
            8,
            "parallel.tp 3 x parallel.pp 2 do not divide 8 ranks: tp 2 pp 2 dp 2 or tp 4 pp 2 dp 1 \
             would, or start 6 or 12",
        ),
        (&["tp=3"], 4, "parallel.tp 3 does not divide 4 ranks: tp 2 dp 2 or tp 4 dp 1 would, or"),
        // Eight heads would be shared by neither 5 nor 10 ranks, nor 24 sequences by the 5 copies of 4.
        (
            &["tp=5", "heads=8"],
            20,
            "model.heads 8 does not divide among parallel.tp 5: start 16 with tp 4 or 32 with tp 8",
        ),
        // The ranks that there are can be split by 3 only.
        (
            &["tp=3", "heads=4", "width=64"],
            3,
            "model.heads 4 does not divide among parallel.tp 3: tp 1 dp 3 would, or start 2 with tp \
             2 or 4 with tp 4",
        ),
        // Nor is a batch of 9 shared by 2 or 4.
        (&["tp=3", "batch=9"], 8, "does not divide 8 ranks: start 3 or 9 ranks"),
        (
            &["parallel.schedule=interleaved", "chunks=2"],
            2,
            "parallel.pp to 2, or set parallel.schedule to 1f1b and parallel.chunks to 1",
        ),
        (&["sequence=true"], 2, "is 1: set parallel.tp to 2, or set parallel.sequence to auto"),
        (&["tp=8", "width=64", "heads=4"], 12, "12 ranks: tp 2 dp 6 or tp 4 dp 3 would"),
        (&["pp=7"], 4, "parallel.pp 7 does not divide 4 ranks: pp 2 dp 2 or pp 4 dp 1 would, or"),
        (
            &["dp=2", "tp=2"],
            8,
            "parallel.dp is 2, and there are 8 ranks with parallel.tp 2: set it to 0, or start 4 ranks",
        ),
        (
            &["batch=9", "tp=2"],
            8,
            "among 4 copies of the model on 8 ranks: set it to 8 or 12, start 6 or 18",
        ),
        (&["cp=2", "context=62"], 2, "of parallel.cp 2: set it to 60 or 64"),
        (
            &["sequence=true", "tp=2", "context=63"],
            2,
            "do not divide among parallel.tp 2: set model.context to 62 or 64, or set \
             parallel.sequence to false",
        ),
        (
            &["pp=16"],
            16,
            "parallel.pp 16 is more than model.layers 8: pp 4 dp 4 or pp 8 dp 2 would, or start 8 \
             with pp 8",
        ),
        (
            &["pp=4", "chunks=4", "parallel.schedule=interleaved"],
            4,
            "parallel.pp 4 x parallel.chunks 4 is more than model.layers 8: pp 2 dp 2 would, or start \
             2 with pp 2",
        ),
        (&["pp=2", "chunks=2"], 2, "parallel.chunks 2 are for parallel.schedule interleaved"),
        (
            &["pp=4", "batch=3"],
            4,
            "at least 4 micro-batches a step, and a copy of the model has 3 sequences: set train.batch to 4",
        ),
        (
            &["pp=4", "micro_batch=12"],
            4,
            "makes 2 micro-batches of a step's 24 sequences, and parallel.pp 4",
        ),
        (&["zero=1", "shard=3"], 8, "(parallel.dp x parallel.cp): set it to 2 or 4"),
        (&["shard=2"], 8, "parallel.shard 2 says how many ranks share state, and parallel.zero 0"),
    ];
    for (all, ranks, expected) in cases {
        let error = sentence(split(all, ranks));
        assert!(error.contains(expected), "{error}");
    }
    assert!(sentence(words(&["zero=4"])).contains("a whole number, 0 to 3"));
}

proptest! {
    #[test]
    fn a_plan_shares_all_sequences(batch in 1usize..200, micro in 0usize..20, ranks in 1usize..20) {
        let words = [format!("batch={batch}"), format!("micro_batch={micro}")];
        match resolve(None, &words).unwrap().config.validate(ranks) {
            Ok(plan) => {
                prop_assert_eq!(plan.batch, batch);
                prop_assert_eq!(plan.mesh.dp * plan.accumulation * plan.micro_batch, batch);
            }
            Err(_) => prop_assert!(batch % ranks != 0 || micro > 0 && batch / ranks % micro != 0),
        }
    }

    #[test]
    fn a_plan_has_every_rank_at_work(
        dp in 1usize..5, tp in 1usize..5, cp in 1usize..5, pp in 1usize..5, zero in 0usize..4,
        batch in 1usize..100, micro in 0usize..9,
    ) {
        let axes = [("dp", dp), ("tp", tp), ("cp", cp), ("pp", pp), ("zero", zero)];
        let sizes = [("batch", batch), ("micro_batch", micro)];
        let all: Vec<String> =
            axes.iter().chain(&sizes).map(|(name, size)| format!("{name}={size}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let ranks = dp * tp * cp * pp;
        match split(&all, ranks) {
            Ok(plan) => {
                prop_assert_eq!((plan.mesh.dp, plan.mesh.ranks()), (dp, ranks));
                prop_assert_eq!(plan.share * dp, batch);
                prop_assert_eq!(plan.accumulation * plan.micro_batch, plan.share);
                prop_assert!(plan.accumulation >= pp);
            }
            Err(error) => {
                let wrong = cp == 3 || batch % dp != 0 || batch / dp < pp;
                let uneven = micro > 0 && (batch / dp % micro != 0 || batch / dp / micro < pp);
                prop_assert!(wrong || uneven, "{}", error);
            }
        }
    }

    #[test]
    fn what_is_proposed_instead_works(tp in 1usize..9, pp in 1usize..9, ranks in 1usize..65) {
        prop_assume!(ranks % (tp * pp) != 0);
        // Whatever their number, copies have sequences enough.
        let model = ["layers=8", "heads=12", "width=96", "context=64", "batch_per_rank=64"];
        let plan = |keys: &[String]| {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            words(&[&model[..], &keys].concat()).unwrap().config.validate(ranks)
        };
        let error = sentence(plan(&[format!("tp={tp}"), format!("pp={pp}")]));
        let (_, after) = error.split_once("ranks: ").unwrap();
        let (proposed, _) = after.split_once(" would").unwrap();
        for split_words in proposed.split(" or ") {
            let all: Vec<&str> = split_words.split(' ').collect();
            let keys: Vec<String> = all.chunks(2).map(|w| format!("{}={}", w[0], w[1])).collect();
            prop_assert_eq!(plan(&keys).unwrap().mesh.ranks(), ranks);
        }
    }
}
