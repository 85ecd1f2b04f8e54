//! Numbers worked out by hand, for a model of 27,776 parameters: an embedding of 64 kinds of tokens and
//! 8 positions, 32 wide (2,304), two layers of 12,704, and the last norm (64).

#![allow(clippy::unwrap_used)]

use regatta_device::precision::Precision;
use regatta_predict::axis::Axis;
use regatta_predict::cost::{Cost, Form, Held, Holds, Sends, cost, costs};
use regatta_train::config::resolve;

fn all(words: &str, ranks: usize, precision: Precision) -> Vec<Cost> {
    let model = "family=gpt2 layers=2 heads=4 kv_heads=0 width=32 feed_forward=128 context=8 \
                 vocabulary=64 bias=auto tied=auto batch=4";
    let words: Vec<&str> = model.split_whitespace().chain(words.split_whitespace()).collect();
    let config = resolve(None, &words).unwrap().config;
    let (shape, plan) = (config.shape(64).unwrap(), config.validate(ranks).unwrap());
    assert_eq!(shape.parameters(), 27_776);
    let form = Form::new(precision.activation_bytes(), config.train.recompute);
    let all = costs(&shape, &plan, form).unwrap();
    let each = |rank| {
        assert_eq!(*all.rank(rank), cost(&shape, &plan, form, rank).unwrap(), "{words:?}, {rank}");
        all.rank(rank).clone()
    };
    (0..ranks).map(each).collect()
}

/// What the ranks of a split cost in f32.
fn split(words: &str, ranks: usize) -> Vec<Cost> {
    all(words, ranks, Precision::F32)
}

/// What all ranks send on an axis.
fn on(costs: &[Cost], axis: Axis) -> Vec<u64> {
    costs.iter().map(|cost| cost.sends.on(axis)).collect()
}

fn kept(held: Held) -> (u64, u64) {
    (held.kept, held.passing)
}

#[test]
fn one_rank_holds_all_and_sends_nothing() {
    let one = &split("", 1)[0];
    let Holds { parameters, gradients, moments, activations, working } = one.holds;
    // 16 bytes a parameter.
    assert_eq!((kept(parameters), kept(gradients)), ((111_104, 0), (111_104, 0)));
    assert_eq!(kept(moments), (222_208, 0));
    // 32 rows; a layer keeps 448 numbers of activations a row, and 72 of the stream and statistics.
    assert_eq!(activations, 2 * 32 * (448 + 72) * 4 + 32 * 32 * 4);
    // Logits of 64 kinds; gradients of the stream, of what is behind a norm, of what is inside.
    assert_eq!(working, 32 * 4 * (64 + 32 + 32 + 128 + 96));
    assert_eq!(one.sends, Sends::default());
    assert_eq!(one.blocks, ["embed", "layer.0", "layer.1", "head"]);
    // The input of each layer and of the head, and the inside of one.
    let again = &split("recompute=true", 1)[0];
    assert_eq!(again.holds.activations, 3 * 32 * 32 * 4 + 32 * (448 + 72 - 32) * 4);
    let half = &all("", 1, Precision::Bf16)[0];
    assert_eq!(half.holds.activations, 2 * 32 * (448 * 2 + 72 * 4) + 32 * 32 * 4);
}

#[test]
fn data_parallel_sums_gradients() {
    // 2(n-1)/n of 4 bytes a parameter.
    assert_eq!(on(&split("", 2), Axis::Data), [111_104; 2]);
    assert_eq!(on(&split("", 4), Axis::Data), [166_656; 4]);
    assert_eq!(split("", 2)[0].sends.total(), 111_104);
}

#[test]
fn zero_shares_states() {
    // Layers are padded to 12,736 for two ranks: 27,840 numbers, of which each has 13,920.
    let one = split("zero=1", 2);
    assert_eq!(kept(one[0].holds.parameters), (111_360, 0));
    assert_eq!(kept(one[0].holds.gradients), (111_360, 0));
    assert_eq!(kept(one[0].holds.moments), (111_360, 0));
    assert_eq!(on(&one, Axis::Shard), [111_360; 2]);
    assert_eq!(on(&one, Axis::Data), [0; 2]);
    // The norm of the gradients: a number for the other rank, and its sum back.
    assert_eq!(on(&one, Axis::World), [8; 2]);
    let two = split("zero=2 micro_batch=1", 2);
    // Two layers, and what is at the ends, come and go.
    assert_eq!(kept(two[0].holds.gradients), (55_680, 111_360));
    assert_eq!(on(&two, Axis::Shard), [3 * 55_680; 2]);
    let three = split("zero=3 micro_batch=1", 2);
    assert_eq!(kept(three[0].holds.parameters), (55_680, 111_360));
    // A micro-batch gathers the table twice, for the head is tied to it, layers twice, the norm once.
    assert_eq!(on(&three, Axis::Shard), [2 * 4 * (13_920 + 2_304 + 12_736 * 2 + 32); 2]);
    // Pairs share, and the two of a share sum: half of what one rank has.
    let hybrid = split("zero=3 shard=2", 4);
    assert_eq!(kept(hybrid[0].holds.moments), (111_360, 0));
    assert_eq!(on(&hybrid, Axis::Replica), [55_680; 4]);
    // Nobody to share with.
    assert_eq!(split("zero=3", 1)[0].holds, split("", 1)[0].holds);
}

#[test]
fn tiles_come_and_go_by_themselves() {
    let tiled = split("zero=3 micro_batch=1 tiles=2", 2);
    // The same numbers in more pieces. Halves of the table (1,024 each) and of four matrices, two of
    // each size; positions, the last norm, and what is small of two layers, padded to 448.
    let passing = 256 + 64 + 2 * 448 + 2 * (1024 + 1536 + 512 + 2048);
    for held in [tiled[0].holds.parameters, tiled[0].holds.gradients] {
        assert_eq!(kept(held), (55_680, 4 * passing));
    }
    // A micro-batch gathers the table for the embedding, and for the head twice; its gradients leave
    // behind both. Layers come twice, positions and the norm once.
    let (scattered, layers) = (2 * 2048 + 256 + 64 + 2 * 12_736, 2 * 2 * 12_736);
    let gathered = 3 * 2048 + 256 + 64 + layers;
    assert_eq!(on(&tiled, Axis::Shard), [2 * 4 * (scattered + gathered) / 2; 2]);
    // Logits of half of the kinds, for 8 rows; three numbers a row for each half, and for both.
    let one = split("zero=3 micro_batch=1", 2)[0].holds.working;
    assert_eq!(tiled[0].holds.working, one - 4 * 8 * 64 + 4 * 8 * (32 + 3 * 3));
    assert_eq!(tiled[0].blocks, ["embed", "layer.0", "layer.1", "head"]);
    // Tensor-parallel ranks say as much to each other.
    let of = |words| on(&split(words, 2), Axis::Tensor);
    assert_eq!(of("tp=2 tiles=4"), of("tp=2"));
    // Two stages sum the table tile by tile.
    let stages = split("pp=2 tiles=4", 2);
    assert_eq!(on(&stages, Axis::Tied), [8192; 2]);
    assert_eq!(stages[1].blocks, ["embed", "layer.1", "head"]);
}

#[test]
fn what_is_on_disk_comes_and_goes() {
    let moves = |words: &str, ranks| {
        let all = split(words, ranks);
        assert!(all.iter().all(|cost| cost.moves == all[0].moves));
        (all[0].moves.read, all[0].moves.written)
    };
    assert_eq!(moves("", 1), (0, 0));
    // Two moments of each parameter, once a step.
    assert_eq!(moves("offload.optimizer=disk", 1), (222_208, 222_208));
    assert_eq!(moves("offload.optimizer=disk", 2), (222_208, 222_208));
    assert_eq!(moves("offload.optimizer=disk zero=1", 2), (111_360, 111_360));
    // Each of four micro-batches: the table twice, layers twice, the norm once; and all for the update.
    let micro = 2 * 2_304 + 2 * 2 * 12_704 + 64;
    let read = 4 * (4 * micro + 27_776);
    assert_eq!(moves("offload.parameters=disk micro_batch=1", 1), (read, 111_104));
    // Half of it, with gaps, for each of two micro-batches; shared whatever is said of that.
    let micro = 2_304 + 2 * 12_736 + 32;
    let read = 4 * (2 * micro + 13_920);
    for zero in 0..4 {
        let words = format!("offload.parameters=disk zero={zero} micro_batch=1");
        assert_eq!(moves(&words, 2), (read, 55_680));
    }
}

#[test]
fn tensor_parallel_moves_the_stream() {
    // 32 rows of 32. A layer: 8(t-1)/t of them. Embedding and head: once in, once out, and three
    // numbers a row for the softmax. Norms: 128 a layer and 64.
    let numbers = 2 * 4096 + 1024 + 1024 + 96 + 2 * 128 + 64;
    let two = split("tp=2", 2);
    assert_eq!(on(&two, Axis::Tensor), [numbers * 4; 2]);
    let halves = all("tp=2", 2, Precision::Bf16);
    let bytes = 2 * 4096 * 2 + 1024 * 4 + 1024 * 2 + 96 * 4 + (2 * 128 + 64) * 4;
    assert_eq!(on(&halves, Axis::Tensor), [bytes; 2]);
    // Without shared rows nobody has norms of its own, and gathering is for nothing.
    let whole = 2 * 4096 + 1024 + 1024 + 96;
    assert_eq!(on(&split("tp=2 sequence=false", 2), Axis::Tensor), [whole * 4; 2]);
    let again = 3 * 4096 + 1024 + 1024 + 96;
    let recomputed = split("tp=2 sequence=false recompute=true", 2);
    assert_eq!(on(&recomputed, Axis::Tensor), [again * 4; 2]);
    // Positions, norms and what is added behind a sum are everybody's: 256 + 2 * 192 + 64 numbers;
    // and 16 of each layer are a gap behind 48 biases.
    let own = 4 * ((27_776 - 704) / 2 + 704 + 2 * 16);
    assert_eq!(kept(two[0].holds.parameters), (own, 0));
}

#[test]
fn context_parallel_passes_keys_and_values_on() {
    // 16 rows of 64: once forward, once backward, and their gradients twice.
    let two = split("cp=2", 2);
    assert_eq!(on(&two, Axis::Context), [2 * 4 * 1024 * 4; 2]);
    assert_eq!(on(&two, Axis::Data), [111_104; 2]);
}

#[test]
fn pipelines_send_the_stream_to_the_next_stage() {
    let two = split("pp=2", 2);
    // Four micro-batches of 8 rows.
    assert_eq!(on(&two, Axis::Forward), [4 * 8 * 32 * 4, 0]);
    assert_eq!(on(&two, Axis::Backward), [0, 4 * 8 * 32 * 4]);
    // Both have the table of 2,048.
    assert_eq!(on(&two, Axis::Tied), [8192; 2]);
    let blocks: Vec<_> = two.iter().map(|cost| cost.blocks.join(" ")).collect();
    assert_eq!(blocks, ["embed layer.0", "embed layer.1 head"]);
    assert_eq!(kept(two[1].holds.parameters), (4 * (2048 + 12_704 + 64), 0));
    // The first stage has two micro-batches under way, or with gpipe all.
    let layer = 8 * (448 + 72) * 4;
    assert_eq!(two[0].holds.activations, 2 * layer);
    assert_eq!(split("pp=2 parallel.schedule=gpipe", 2)[0].holds.activations, 4 * layer);
    assert_eq!(two[1].holds.activations, layer + 8 * 32 * 4);
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let words = ["width=1048576", "heads=1", "context=1048576", "batch=1048576", "layers=10000"];
    let config = resolve(None, &words).unwrap().config;
    let (shape, plan) = (config.shape(64).unwrap(), config.validate(1).unwrap());
    let error = cost(&shape, &plan, Form::new(4, false), 0).unwrap_err();
    assert!(error.to_string().contains("more than can be counted"), "{error}");
}

/// Of how many kinds the ranks of a split are, each counted once.
fn kinds(words: &str, ranks: usize) -> usize {
    let words: Vec<&str> = words.split_whitespace().collect();
    let config = resolve(None, &words).unwrap().config;
    let (shape, plan) = (config.shape(64).unwrap(), config.validate(ranks).unwrap());
    let all = costs(&shape, &plan, Form::new(4, false)).unwrap();
    assert_eq!(all.of.len(), ranks);
    all.kinds.len()
}

#[test]
fn what_ranks_of_a_kind_cost_is_counted_once() {
    // Numbers of the embedding, of layers and of the head do not divide, and one rank is the first.
    assert!(kinds("batch_per_rank=1", 8192) <= 5);
    assert!(kinds("batch_per_rank=1 zero=3 shard=8", 8192) <= 5);
    let three = "layers=8 heads=8 width=64 context=64 batch_per_rank=16 tp=8 pp=8";
    assert!(kinds(&format!("{three} zero=1"), 8192) <= 65);
    assert!(kinds(&format!("{three} cp=4"), 8192) <= 64 * 4 + 1);
    // As many as there are tiles do not matter, nor layers.
    assert!(kinds("layers=10000 tiles=10000 zero=3 batch_per_rank=1", 8192) <= 4);
}

proptest::proptest! {
    #[test]
    fn ranks_of_a_kind_cost_the_same(
        dp in 1usize..8, two in proptest::array::uniform3(1usize..3), zero in 0usize..4, shard in 0usize..3,
        tiles in 1usize..6,
    ) {
        let ([tp, cp, pp], data) = (two, dp * two[1]);
        let shard = if zero > 0 && shard > 0 && data % shard == 0 { shard } else { 0 };
        let words = format!("tp={tp} cp={cp} pp={pp} zero={zero} shard={shard} tiles={tiles}");
        let words = format!("{words} batch={}", 4 * dp);
        // Each is held against what it costs by itself.
        split(&words, data * tp * pp);
    }
}
