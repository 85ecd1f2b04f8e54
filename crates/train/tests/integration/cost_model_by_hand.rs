//! The cost model against values worked out by hand, for a model of 27,776 parameters: an embedding of
//! 64 tokens and 8 positions with a hidden size of 32 (2,304), two layers of 12,704, and the final norm
//! (64).

use regatta_device::precision::Precision;
use regatta_predict::axis::Axis;
use regatta_predict::cost::{
    CostOptions, MemoryBytes, RankCost, StateBytes, TrafficBytes, rank_cost, rank_costs,
};
use regatta_train::config::{Config, resolve};

/// The costs of all ranks on CPUs.
fn costs_of(words: &str, ranks: usize, precision: Precision) -> Vec<RankCost> {
    let bytes = precision.activation_bytes();
    costs_on(words, ranks, |config| CostOptions::new(bytes, config.train.recompute))
}

/// The costs of all ranks with the options of a configuration.
fn costs_on(words: &str, ranks: usize, options: impl Fn(&Config) -> CostOptions) -> Vec<RankCost> {
    let model = "family=gpt2 num_layers=2 num_heads=4 num_kv_heads=0 hidden_size=32 intermediate_size=128 seq_len=8 \
                 vocab_size=64 bias=auto tie_embeddings=auto batch=4";
    let words: Vec<&str> = model.split_whitespace().chain(words.split_whitespace()).collect();
    let config = resolve(None, &words).unwrap().config;
    let (shape, plan) = (config.shape(64).unwrap(), config.validate(ranks).unwrap());
    assert_eq!(shape.num_params(), 27_776);
    let options = options(&config);
    let all = rank_costs(&shape, &plan, options).unwrap();
    let each = |rank| {
        let alone = rank_cost(&shape, &plan, options, rank).unwrap();
        assert_eq!(*all.rank(rank), alone, "{words:?}, {rank}");
        all.rank(rank).clone()
    };
    (0..ranks).map(each).collect()
}

/// The costs of all ranks in f32.
fn f32_costs(words: &str, ranks: usize) -> Vec<RankCost> {
    costs_of(words, ranks, Precision::F32)
}

/// The bytes that each rank sends on an axis.
fn sent(costs: &[RankCost], axis: Axis) -> Vec<u64> {
    costs.iter().map(|cost| cost.traffic.on(axis)).collect()
}

/// Resident and transient bytes.
fn bytes(held: StateBytes) -> (u64, u64) {
    (held.resident, held.transient)
}

#[test]
fn a_single_rank_has_all_state_and_sends_nothing() {
    let one = &f32_costs("", 1)[0];
    let MemoryBytes { params, grads, optimizer, activations, workspace, pinned } = one.memory;
    // 16 bytes per parameter.
    assert_eq!((bytes(params), bytes(grads)), ((111_104, 0), (111_104, 0)));
    assert_eq!((bytes(optimizer), pinned), ((222_208, 0), 0));
    // 32 rows; a layer saves 448 elements of activations per row, and 72 of residual stream and statistics.
    assert_eq!(activations, 2 * 32 * (448 + 72) * 4 + 32 * 32 * 4);
    // Logits of 64 tokens; gradients of residual stream, norm output, MLP and qkv.
    assert_eq!(workspace, 32 * 4 * (64 + 32 + 32 + 128 + 96));
    assert_eq!(one.traffic, TrafficBytes::default());
    assert_eq!(one.blocks, ["embed", "layer.0", "layer.1", "head"]);
    // The input of each layer and of the head, and the activations of one layer.
    let recomputed = &f32_costs("recompute=true", 1)[0];
    assert_eq!(recomputed.memory.activations, 3 * 32 * 32 * 4 + 32 * (448 + 72 - 32) * 4);
    let bf16 = &costs_of("", 1, Precision::Bf16)[0];
    assert_eq!(bf16.memory.activations, 2 * 32 * (448 * 2 + 72 * 4) + 32 * 32 * 4);
}

#[test]
fn data_parallel_all_reduces_gradients() {
    // 2(n-1)/n of 4 bytes per parameter.
    assert_eq!(sent(&f32_costs("", 2), Axis::Data), [111_104; 2]);
    assert_eq!(sent(&f32_costs("", 4), Axis::Data), [166_656; 4]);
    assert_eq!(f32_costs("", 2)[0].traffic.total(), 111_104);
}

#[test]
fn zero_shards_state() {
    // Layers are padded to 12,736 elements for two ranks: 27,840 in all, 13,920 per rank.
    let one = f32_costs("zero=1", 2);
    assert_eq!(bytes(one[0].memory.params), (111_360, 0));
    assert_eq!(bytes(one[0].memory.grads), (111_360, 0));
    assert_eq!(bytes(one[0].memory.optimizer), (111_360, 0));
    assert_eq!(sent(&one, Axis::Shard), [111_360; 2]);
    assert_eq!(sent(&one, Axis::Data), [0; 2]);
    // The gradient norm: one f64 all-reduce.
    assert_eq!(sent(&one, Axis::World), [8; 2]);
    let two = f32_costs("zero=2 micro_batch=1", 2);
    // Transient: two layers, embedding and head.
    assert_eq!(bytes(two[0].memory.grads), (55_680, 111_360));
    assert_eq!(sent(&two, Axis::Shard), [3 * 55_680; 2]);
    let three = f32_costs("zero=3 micro_batch=1", 2);
    assert_eq!(bytes(three[0].memory.params), (55_680, 111_360));
    // A micro-batch gathers the table twice because the head is tied, layers twice, the norm once.
    assert_eq!(sent(&three, Axis::Shard), [2 * 4 * (13_920 + 2_304 + 12_736 * 2 + 32); 2]);
    // Shard groups of two; replicas all-reduce half of the gradients.
    let hybrid = f32_costs("zero=3 hsdp_shard=2", 4);
    assert_eq!(bytes(hybrid[0].memory.optimizer), (111_360, 0));
    assert_eq!(sent(&hybrid, Axis::Replica), [55_680; 4]);
    // A single rank shards nothing.
    assert_eq!(f32_costs("zero=3", 1)[0].memory, f32_costs("", 1)[0].memory);
}

#[test]
fn tiles_are_gathered_one_by_one() {
    let tiled = f32_costs("zero=3 micro_batch=1 tiles=2", 2);
    // The same elements in more blocks: halves of the table (1,024 each) and of four matrices, two of
    // each size; positions, the final norm, and norms and biases of two layers, padded to 448.
    let transient = 256 + 64 + 2 * 448 + 2 * (1024 + 1536 + 512 + 2048);
    for held in [tiled[0].memory.params, tiled[0].memory.grads] {
        assert_eq!(bytes(held), (55_680, 4 * transient));
    }
    // A micro-batch gathers the table once for the embedding and twice for the head, and reduces its
    // gradients after both. Layers are gathered twice, positions and norm once.
    let (scattered, layers) = (2 * 2048 + 256 + 64 + 2 * 12_736, 2 * 2 * 12_736);
    let gathered = 3 * 2048 + 256 + 64 + layers;
    assert_eq!(sent(&tiled, Axis::Shard), [2 * 4 * (scattered + gathered) / 2; 2]);
    // Logits of half of the vocabulary for 8 rows; three softmax statistics per row and tile, and merged.
    let one = f32_costs("zero=3 micro_batch=1", 2)[0].memory.workspace;
    assert_eq!(tiled[0].memory.workspace, one - 4 * 8 * 64 + 4 * 8 * (32 + 3 * 3));
    assert_eq!(tiled[0].blocks, ["embed", "layer.0", "layer.1", "head"]);
    // Tensor-parallel traffic does not depend on tiles.
    let of = |words| sent(&f32_costs(words, 2), Axis::Tensor);
    assert_eq!(of("tp=2 tiles=4"), of("tp=2"));
    // Two stages all-reduce the tied table tile by tile.
    let stages = f32_costs("pp=2 tiles=4", 2);
    assert_eq!(sent(&stages, Axis::Tied), [8192; 2]);
    assert_eq!(stages[1].blocks, ["embed", "layer.1", "head"]);
}

#[test]
fn offloaded_state_is_read_and_written() {
    let io_bytes = |words: &str, ranks| {
        let all = f32_costs(words, ranks);
        assert!(all.iter().all(|cost| cost.disk_io == all[0].disk_io));
        (all[0].disk_io.read, all[0].disk_io.written)
    };
    assert_eq!(io_bytes("", 1), (0, 0));
    // Two moments of each parameter, once per step.
    assert_eq!(io_bytes("offload.optimizer=disk", 1), (222_208, 222_208));
    assert_eq!(io_bytes("offload.optimizer=disk", 2), (222_208, 222_208));
    assert_eq!(io_bytes("offload.optimizer=disk zero=1", 2), (111_360, 111_360));
    // Per micro-batch: the table twice, layers twice, the norm once; all parameters for the update.
    let micro = 2 * 2_304 + 2 * 2 * 12_704 + 64;
    let read = 4 * (4 * micro + 27_776);
    assert_eq!(io_bytes("offload.parameters=disk micro_batch=1", 1), (read, 111_104));
    // Half of it, with padding, for each of two micro-batches; sharded at every ZeRO stage.
    let micro = 2_304 + 2 * 12_736 + 32;
    let read = 4 * (2 * micro + 13_920);
    for zero in 0..4 {
        let words = format!("offload.parameters=disk zero={zero} micro_batch=1");
        assert_eq!(io_bytes(&words, 2), (read, 55_680));
    }
}

#[test]
fn tensor_parallel_communicates_the_residual_stream() {
    // 32 rows of 32 elements. A layer: 8(t-1)/t of them. Embedding and head: once forward, once backward,
    // and three softmax statistics per row. Norms: 128 per layer and 64.
    let elements = 2 * 4096 + 1024 + 1024 + 96 + 2 * 128 + 64;
    let two = f32_costs("tp=2", 2);
    assert_eq!(sent(&two, Axis::Tensor), [elements * 4; 2]);
    let bf16 = costs_of("tp=2", 2, Precision::Bf16);
    let bf16_bytes = 2 * 4096 * 2 + 1024 * 4 + 1024 * 2 + 96 * 4 + (2 * 128 + 64) * 4;
    assert_eq!(sent(&bf16, Axis::Tensor), [bf16_bytes; 2]);
    // Without sequence parallelism norm gradients are complete on every rank.
    let all_reduced = 2 * 4096 + 1024 + 1024 + 96;
    let replicated = f32_costs("tp=2 sequence_parallel=false", 2);
    assert_eq!(sent(&replicated, Axis::Tensor), [all_reduced * 4; 2]);
    let with_recompute = 3 * 4096 + 1024 + 1024 + 96;
    let recomputed = f32_costs("tp=2 sequence_parallel=false recompute=true", 2);
    assert_eq!(sent(&recomputed, Axis::Tensor), [with_recompute * 4; 2]);
    // Positions, norms and biases of row-parallel layers are replicated: 256 + 2 * 192 + 64 elements;
    // 16 elements of each layer are padding behind 48 biases, and 32 rows of 32 elements behind the table.
    let local = 4 * ((27_776 - 704) / 2 + 704 + 2 * 16 + 32 * 32);
    assert_eq!(bytes(two[0].memory.params), (local, 0));
}

#[test]
fn context_parallel_circulates_keys_and_values() {
    // 16 rows of 64 elements: once forward, once backward, and their gradients twice.
    let two = f32_costs("cp=2", 2);
    assert_eq!(sent(&two, Axis::Context), [2 * 4 * 1024 * 4; 2]);
    assert_eq!(sent(&two, Axis::Data), [111_104; 2]);
}

#[test]
fn pipelines_send_the_residual_stream_to_the_next_stage() {
    let two = f32_costs("pp=2", 2);
    // Four micro-batches of 8 rows.
    assert_eq!(sent(&two, Axis::Forward), [4 * 8 * 32 * 4, 0]);
    assert_eq!(sent(&two, Axis::Backward), [0, 4 * 8 * 32 * 4]);
    // Both stages have the tied table of 2,048 elements.
    assert_eq!(sent(&two, Axis::Tied), [8192; 2]);
    let blocks: Vec<_> = two.iter().map(|cost| cost.blocks.join(" ")).collect();
    assert_eq!(blocks, ["embed layer.0", "embed layer.1 head"]);
    assert_eq!(bytes(two[1].memory.params), (4 * (2048 + 12_704 + 64), 0));
    // The first stage has two micro-batches in flight, or with GPipe all.
    let layer = 8 * (448 + 72) * 4;
    assert_eq!(two[0].memory.activations, 2 * layer);
    assert_eq!(f32_costs("pp=2 parallel.schedule=gpipe", 2)[0].memory.activations, 4 * layer);
    assert_eq!(two[1].memory.activations, layer + 8 * 32 * 4);
}

#[test]
fn gpus_send_gradients_in_the_dtype_of_their_gemms() {
    let words = "train.device=gpu train.precision=bf16 pp=2";
    let costs = |words: &str| costs_on(words, 2, Config::cost_options);
    let two = costs(words);
    assert_eq!(sent(&two, Axis::Forward), [4 * 8 * 32 * 4, 0]);
    assert_eq!(sent(&two, Axis::Backward), [0, 4 * 8 * 32 * 2]);
    let f32 = costs(&format!("{words} train.residual_gradient=f32"));
    assert_eq!(sent(&f32, Axis::Backward), [0, 4 * 8 * 32 * 4]);
    // The first stage receives one gradient, the last sends two. In f32, one more is being computed, and
    // GEMMs need a copy in bf16.
    let saved = |stage: usize| f32[stage].memory.workspace - two[stage].memory.workspace;
    let message = 8 * 32 * 2;
    assert_eq!([saved(0), saved(1)], [1, 2].map(|messages| (messages + 1 + 1) * message));
}

#[test]
fn overflowing_costs_are_an_error() {
    let words = "hidden_size=1048576 num_heads=1 seq_len=1048576 batch=1048576 num_layers=10000";
    let words: Vec<&str> = words.split(' ').collect();
    let config = resolve(None, &words).unwrap().config;
    let (shape, plan) = (config.shape(64).unwrap(), config.validate(1).unwrap());
    let error = rank_cost(&shape, &plan, CostOptions::new(4, false), 0).unwrap_err();
    assert!(error.to_string().contains("overflows the cost model"), "{error}");
}

/// Number of distinct rank costs.
fn distinct_costs(words: &str, ranks: usize) -> usize {
    let words: Vec<&str> = words.split_whitespace().collect();
    let config = resolve(None, &words).unwrap().config;
    let (shape, plan) = (config.shape(64).unwrap(), config.validate(ranks).unwrap());
    let all = rank_costs(&shape, &plan, CostOptions::new(4, false)).unwrap();
    assert_eq!(all.class_of.len(), ranks);
    all.classes.len()
}

#[test]
fn equal_ranks_are_computed_once() {
    // Embedding, layers and head do not divide evenly, and rank 0 differs.
    assert!(distinct_costs("batch_per_replica=1", 8192) <= 5);
    assert!(distinct_costs("batch_per_replica=1 zero=3 hsdp_shard=8", 8192) <= 5);
    let three = "num_layers=8 num_heads=8 hidden_size=64 seq_len=64 batch_per_replica=16 tp=8 pp=8";
    assert!(distinct_costs(&format!("{three} zero=1"), 8192) <= 65);
    assert!(distinct_costs(&format!("{three} cp=4"), 8192) <= 64 * 4 + 1);
    // Independent of the number of tiles and layers.
    assert!(distinct_costs("num_layers=10000 tiles=10000 zero=3 batch_per_replica=1", 8192) <= 4);
}

proptest::proptest! {
    #[test]
    fn grouped_costs_equal_individual_costs(
        dp in 1usize..8, two in proptest::array::uniform3(1usize..3), zero in 0usize..4, shard in 0usize..3,
        tiles in 1usize..6,
    ) {
        let ([tp, cp, pp], data) = (two, dp * two[1]);
        let shard = if zero > 0 && shard > 0 && data % shard == 0 { shard } else { 0 };
        let words = format!("tp={tp} cp={cp} pp={pp} zero={zero} hsdp_shard={shard} tiles={tiles}");
        let words = format!("{words} batch={}", 4 * dp);
        // `rank_costs` compares both.
        f32_costs(&words, data * tp * pp);
    }
}
