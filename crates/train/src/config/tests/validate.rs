//! Parallel plans: what is derived, what is refused, and what is suggested instead.

use super::*;
use regatta_predict::layout::{ParallelLayout, StateTiers};
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::ScheduleKind;

#[test]
fn batches_that_do_not_divide_are_refused_with_suggestions() {
    let plan = |all: &str, ranks| args(all).unwrap().config.validate(ranks);
    let data = |ranks, batch, share, micro_batch| ParallelLayout {
        mesh: Mesh::data_parallel(ranks),
        zero: 0,
        sequence_parallel: false,
        schedule: ScheduleKind::OneFOneB,
        virtual_stages: 1,
        batch,
        batch_per_replica: share,
        micro_batch,
        micro_batches: share / micro_batch,
        tiles: 1,
        offload: StateTiers::default(),
    };
    assert_eq!(plan("batch=24 micro_batch=4", 3).unwrap(), data(3, 24, 8, 4));
    assert_eq!(plan("batch_per_replica=5", 8).unwrap(), data(8, 40, 5, 5));
    let cases = [
        (
            "batch=12",
            5,
            "train.batch 12 is not divisible by 5 ranks: set it to 10 or 15, run on 4 or 6 ranks, \
             or set train.batch_per_replica instead",
        ),
        ("batch=3", 8, "set it to 8, run on 3 ranks (-n 3),"),
        (
            "batch=24 micro_batch=5",
            2,
            "train.micro_batch 5 does not divide the 12 sequences of a replica (train.batch 24 over 2 \
             ranks): set it to 4 or 6",
        ),
        ("batch_per_replica=7 micro_batch=9", 2, "(train.batch_per_replica): set it to 7"),
        ("batch=0", 2, "train.batch and train.batch_per_replica are both 0"),
        ("dp=2", 4, "parallel.dp 2 does not match 4 ranks"),
        (
            "lr=3e-5 min_lr=1e-4",
            1,
            "optimizer.min_lr 0.0001 exceeds optimizer.lr 3e-5: lower it, or set optimizer.min_lr=auto \
             for a tenth of optimizer.lr",
        ),
        (
            "decay_steps=20",
            1,
            "optimizer.warmup_steps 50 exceeds optimizer.decay_steps 20: set it to 2",
        ),
    ];
    for (all, ranks, expected) in cases {
        let error = message(plan(all, ranks));
        assert!(error.contains(expected), "{error}");
    }
}

/// The plan of a model that can be split in many ways.
fn split(all: &str, ranks: usize) -> Result<ParallelLayout> {
    args(&format!("{MODEL} batch=24 {all}")).unwrap().config.validate(ranks)
}

const MODEL: &str = "family=gpt2 num_layers=8 num_heads=12 hidden_size=96 seq_len=64";

#[test]
fn the_default_min_lr_is_a_tenth_of_lr() {
    let min_lr = |all: &str| args(all).unwrap().config.lr_schedule(1).min_lr;
    for preset in PRESETS.iter().filter(|preset| preset.name != "shakespeare-char") {
        let config = preset.config().unwrap();
        assert_eq!(config.optimizer.min_lr, None, "{}", preset.name);
    }
    assert_eq!(min_lr(""), 2.5e-3 / 10.0);
    assert_eq!((min_lr("lr=3e-5"), min_lr("lr=3e-5 min_lr=0")), (3e-5 / 10.0, 0.0));
    assert!(args("lr=1e-9 min_lr=auto").unwrap().config.validate(1).is_ok());
    assert!(args("min_lr=-1").is_err());
}

#[test]
fn plans_follow_the_parallel_keys() {
    let plan = split("tp=2 cp=2 pp=2 zero=1", 24).unwrap();
    assert_eq!(plan.mesh, Mesh { dp: 3, cp: 2, tp: 2, pp: 2, shard: 6 });
    // The batch is split over replicas only; two micro-batches per stage.
    let batches = [plan.batch, plan.batch_per_replica, plan.micro_batch, plan.micro_batches];
    assert_eq!(batches, [24, 8, 2, 4]);
    assert!(plan.sequence_parallel && plan.zero == 1);
    assert!(!split("tp=2 sequence_parallel=false", 2).unwrap().sequence_parallel);
    // 63 tokens do not divide: auto turns it off.
    assert!(!split("tp=2 seq_len=63", 2).unwrap().sequence_parallel);
    let plan = split("zero=3 hsdp_shard=4", 8).unwrap();
    assert_eq!((plan.mesh.dp, plan.mesh.shard), (8, 4));
    let micros = |all: &str, ranks| {
        let plan = split(all, ranks).unwrap();
        (plan.micro_batch, plan.micro_batches)
    };
    assert_eq!(micros("pp=4", 4), (3, 8));
    // Not enough for two per stage: the smallest.
    assert_eq!(micros("pp=4 batch=6", 4), (1, 6));
    assert_eq!(micros("pp=4 schedule=interleaved virtual_stages=2 batch=20", 4), (1, 20));
    assert_eq!(micros("pp=2 micro_batch=12", 2), (12, 2));
}

#[test]
fn the_micro_batch_of_cpus_is_the_largest_that_divides_up_to_the_given_one() {
    let micro_batch = |all: &str, ranks| split(all, ranks).map(|plan| plan.micro_batch);
    for (all, ranks, expected) in [
        ("micro_batch=auto", 1, 24),
        ("cpu_micro_batch=4", 1, 4),
        ("cpu_micro_batch=5", 1, 4),
        ("cpu_micro_batch=100", 1, 24),
        ("cpu_micro_batch=4", 12, 2),
        ("cpu_micro_batch=8 pp=4", 4, 6),
        ("cpu_micro_batch=2 pp=4", 4, 2),
        ("cpu_micro_batch=4 micro_batch=8", 1, 8),
    ] {
        assert_eq!(micro_batch(all, ranks).unwrap(), expected, "{all}");
    }
    for key in ["micro_batch", "cpu_micro_batch"] {
        let error = message(args(&format!("{key}=0")));
        assert!(error.contains("auto or an integer in [1, 1048576]"), "{error}");
    }
}

#[test]
fn presets_on_cpus_have_small_micro_batches() {
    for (preset, expected) in [("gpt2", 4), ("gpt2-xl", 4), ("llama-1b", 1), ("llama-70b", 1)] {
        let config = load(&[preset]).unwrap().config;
        assert_eq!(config.train.micro_batch, MicroBatchSize::Auto, "{preset}");
        assert_eq!(config.validate(1).unwrap().micro_batch, expected, "{preset}");
    }
    let tiny = load(&["tiny"]).unwrap().config.validate(1).unwrap();
    assert_eq!(tiny.micro_batch, tiny.batch);
}

/// Invalid layouts, `-n RANKS WORDS => part of the error`.
const INVALID_LAYOUTS: &str = "
-n 8 tp=3 pp=2 => 8 ranks are not divisible by parallel.tp 3 x parallel.pp 2 = 6: run on 6 or 12 ranks, or use tp=2 pp=2 dp=2 or tp=4 pp=2
-n 4 tp=3 => 4 ranks are not divisible by parallel.tp 3: run on 3 or 6 ranks, or use tp=2 dp=2 or
-n 1 tp=2 cp=2 => 1 rank is not divisible by parallel.tp 2 x parallel.cp 2 = 4: run on 4 ranks (-n 4),
# Eight heads divide neither by 5 nor by 10 ranks, nor 24 sequences by 5 replicas.
-n 20 tp=5 num_heads=8 => parallel.tp 5: run on 16 ranks with tp=4 or 32 ranks with tp=8
# Three ranks can only be split by 3.
-n 3 tp=3 num_heads=4 hidden_size=64 => parallel.tp 3: use tp=1 dp=3, or run on 2 ranks with tp=2 or 4 ranks with tp=4
-n 2 tp=2 num_heads=3 => run on 1 rank with tp=1 or 3 ranks with tp=3
# Nor does a batch of 9 divide by 2 or 4.
-n 8 tp=3 batch=9 => 8 ranks are not divisible by parallel.tp 3: run on 3 or 9 ranks
-n 2 schedule=interleaved virtual_stages=2 => parallel.pp to 2, or set parallel.schedule to 1f1b and parallel.virtual_stages to 1
-n 2 sequence_parallel=true => needs parallel.tp > 1: set parallel.tp to 2, or set parallel.sequence_parallel to auto
-n 12 tp=8 hidden_size=64 num_heads=4 => use tp=2 dp=6 or tp=4 dp=3
-n 4 pp=7 => by parallel.pp 7: run on 7 ranks (-n 7), or use pp=2 dp=2 or pp=4
-n 8 dp=2 tp=2 => parallel.dp 2 does not match 8 ranks with parallel.tp 2: set it to 0, or run on 4 ranks
-n 8 batch=9 tp=2 => is not divisible by 4 replicas on 8 ranks: set it to 8 or 12, run on 6 or 18
-n 2 cp=2 seq_len=62 => by 4 (2 x parallel.cp 2): set it to 60 or 64
-n 2 sequence_parallel=true tp=2 seq_len=63 => are not divisible by parallel.tp 2: set model.seq_len to 62 or 64, or set parallel.sequence_parallel to false
-n 16 pp=16 => parallel.pp 16 exceeds model.num_layers 8: use pp=4 dp=4 or pp=8 dp=2, or run on 8 ranks with pp=8
-n 4 pp=4 virtual_stages=4 schedule=interleaved => parallel.pp 4 x parallel.virtual_stages 4 exceeds model.num_layers 8: use pp=2 dp=2, or run on 2 ranks with pp=2
-n 2 pp=2 virtual_stages=2 => parallel.virtual_stages 2 needs parallel.schedule interleaved
-n 4 pp=4 batch=3 => at least 4 micro-batches per step, but a replica has 3 sequences: set train.batch to 4
-n 4 pp=4 micro_batch=12 => gives 2 micro-batches per step (24 sequences), but parallel.pp 4
-n 8 zero=1 hsdp_shard=3 => does not divide parallel.dp x parallel.cp = 8: set it to 2 or 4
-n 8 hsdp_shard=2 => parallel.hsdp_shard 2 has no effect with parallel.zero 0
";

#[test]
fn invalid_layouts_are_refused_with_suggestions() {
    for line in INVALID_LAYOUTS.lines().filter(|line| line.starts_with("-n ")) {
        let (layout, expected) = line.split_once(" => ").unwrap();
        let (ranks, words) = layout["-n ".len()..].split_once(' ').unwrap();
        let error = message(split(words, ranks.parse().unwrap()));
        assert!(error.contains(expected), "{layout}: {error}");
    }
    assert!(message(args("zero=4")).contains("an integer in [0, 3]"));
}

proptest! {
    #[test]
    fn plans_cover_the_whole_batch(batch in 1usize..200, micro in 1usize..20, ranks in 1usize..20) {
        match args(&format!("batch={batch} micro_batch={micro}")).unwrap().config.validate(ranks) {
            Ok(plan) => {
                prop_assert_eq!(plan.batch, batch);
                prop_assert_eq!(plan.mesh.dp * plan.micro_batches * plan.micro_batch, batch);
            }
            Err(_) => prop_assert!(batch % ranks != 0 || batch / ranks % micro != 0),
        }
    }

    #[test]
    fn plans_use_every_rank(
        dp in 1usize..5, tp in 1usize..5, cp in 1usize..5, pp in 1usize..5, zero in 0usize..4,
        batch in 1usize..100, micro in 0usize..9,
    ) {
        let size = if micro == 0 { "auto".to_owned() } else { micro.to_string() };
        let all = format!("dp={dp} tp={tp} cp={cp} pp={pp} zero={zero} batch={batch} micro_batch={size}");
        let ranks = dp * tp * cp * pp;
        match split(&all, ranks) {
            Ok(plan) => {
                prop_assert_eq!((plan.mesh.dp, plan.mesh.ranks()), (dp, ranks));
                prop_assert_eq!(plan.batch_per_replica * dp, batch);
                prop_assert_eq!(plan.micro_batches * plan.micro_batch, plan.batch_per_replica);
                prop_assert!(plan.micro_batches >= pp);
            }
            Err(error) => {
                let wrong = cp == 3 || batch % dp != 0 || batch / dp < pp;
                let uneven = micro > 0 && (batch / dp % micro != 0 || batch / dp / micro < pp);
                prop_assert!(wrong || uneven, "{}", error);
            }
        }
    }

    #[test]
    fn suggested_splits_fit(tp in 1usize..9, pp in 1usize..9, ranks in 1usize..65) {
        prop_assume!(ranks % (tp * pp) != 0);
        // Enough sequences for any number of replicas.
        let plan = |keys: &str| {
            args(&format!("{MODEL} batch_per_replica=64 {keys}")).unwrap().config.validate(ranks)
        };
        let error = message(plan(&format!("tp={tp} pp={pp}")));
        let (_, suggested) = error.split_once("use ").unwrap();
        for split in suggested.split(" or ") {
            prop_assert_eq!(plan(split).unwrap().mesh.ranks(), ranks);
        }
    }
}
