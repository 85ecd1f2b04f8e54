//! Checkpoints are independent of the mesh: any mesh restores what any other saved.

use proptest::prelude::*;
use safetensors::SafeTensors;

use super::owned_shards::ShardRange;
use super::slices::slices;
use super::*;
use crate::checkpoint::huggingface;
use crate::checkpoint::{Checkpoint, StateTensor};
use crate::config::resolve;
use crate::model::Model;
use crate::parallel::ProcessGroups;
use crate::state::{ParamInit, ShardingConfig};
use crate::step::DeviceModel;
use crate::testing::TempDir;
use regatta_device::reference::Reference;
use regatta_predict::cost::{CostOptions, MemoryBytes, StateBytes, rank_cost};
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::{PipelineSize, ScheduleKind, Stage};
use regatta_predict::shape::{Family, ModelShape, ParamSpec};
use regatta_predict::testing::shape;

/// A rank's engine.
fn engine(shape: &ModelShape, mesh: Mesh, rank: usize) -> Engine {
    let coord = mesh.coord(rank);
    let model = Model::tiled(shape.clone(), coord.tensor_shard(&mesh), 1);
    let stage = match mesh.pp {
        1 => Stage::single(shape),
        pp => {
            let kind = ScheduleKind::OneFOneB;
            let size = PipelineSize { kind, stages: pp, virtual_stages: 1, micro_batches: pp };
            Stage::new(shape, size, coord.pp).unwrap()
        }
    };
    let mut groups = ProcessGroups::single_rank();
    (groups.mesh, groups.coord) = (mesh, coord);
    let device_model = DeviceModel::new(model, Box::new(Reference));
    Engine::new(
        device_model,
        groups,
        stage,
        &ShardingConfig::default(),
        ParamInit::Random { seed: 5 },
    )
    .unwrap()
}

/// The value of an element of a full parameter.
fn element(kind: StateTensor, name: &str, position: usize) -> f32 {
    let name: usize = name.bytes().enumerate().map(|(i, byte)| (i + 1) * byte as usize).sum();
    (name * 4 + kind as usize) as f32 + position as f32 / 4096.0
}

/// The values that a rank should have in a range.
fn expected(range: &ShardRange<'_>) -> Vec<f32> {
    let ParamSpec { name, full_shape, .. } = range.parameter;
    let slices = slices(range.parameter, range.range.clone());
    let runs = slices.iter().flat_map(|part| part.contiguous_ranges(full_shape));
    let positions = runs.flatten();
    positions.map(|position| element(range.kind, name, position)).collect()
}

/// Saves a checkpoint on all ranks.
fn save(shape: &ModelShape, mesh: Mesh, folder: &Path) -> Checkpoint {
    let ranks = mesh.ranks();
    let mut writers: Vec<_> =
        (0..ranks).map(|rank| Writer::new(folder, rank, ranks, 1).unwrap()).collect();
    let meta = CheckpointMeta {
        step: 3,
        tokens: 3,
        seed: 5,
        shape: shape.clone(),
        config: String::new(),
        tokenizer: String::new(),
        extra: Default::default(),
    };
    for (rank, writer) in writers.iter_mut().enumerate() {
        let mut engine = engine(shape, mesh, rank);
        let blocks = engine.device_model.model.blocks.clone();
        for range in OwnedShards::of(&engine).all(&blocks) {
            let (state, start) = (&mut engine.state, range.start());
            state.write_elements(range.block, range.kind, start, &expected(&range)).unwrap();
        }
        let shards = owned_shards(&engine);
        let metas = shards.iter().map(|shard| shard.meta.clone()).collect();
        let mut elements = |number: usize| shards[number].elements(&mut engine);
        writer.write_blocking(meta.clone(), metas, &mut elements).unwrap();
    }
    for writer in &mut writers {
        assert!(matches!(writer.finish(TIMEOUT), State::Written { step: 3 }));
    }
    writers.iter_mut().for_each(|writer| drop(writer.commit(3).unwrap()));
    Checkpoint::latest(folder).unwrap().unwrap()
}

/// Restores a checkpoint on all ranks.
fn read(shape: &ModelShape, mesh: Mesh, saved: &Checkpoint) {
    for rank in 0..mesh.ranks() {
        let mut engine = engine(shape, mesh, rank);
        restore(&mut engine, saved).unwrap();
        let blocks = engine.device_model.model.blocks.clone();
        for range in OwnedShards::of(&engine).all(&blocks) {
            let mut read = vec![0.0; range.range.len()];
            let (state, start) = (&mut engine.state, range.start());
            state.read_elements(range.block, range.kind, start, &mut read).unwrap();
            assert_eq!(read, expected(&range), "rank {rank}: {}", range.parameter.name);
        }
    }
}

/// A model divisible by three and by four tensor-parallel ranks.
fn model(llama: bool) -> ModelShape {
    let mut shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
    (shape.num_heads, shape.num_kv_heads) = (12, 12);
    (shape.hidden_size, shape.intermediate_size) = (24, 12);
    shape
}

fn mesh() -> impl Strategy<Value = Mesh> {
    let sizes = (1usize..4, 1usize..3, 1usize..5, 1usize..5);
    sizes.prop_map(|(dp, cp, tp, pp)| Mesh { dp, cp, tp, pp, shard: dp * cp })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_mesh_restores_what_any_other_saved(llama: bool, one in mesh(), other in mesh()) {
        let (folder, shape) = (TempDir::new(), model(llama));
        let saved = save(&shape, one, &folder.0);
        let bytes = saved.verify().unwrap();
        prop_assert_eq!(bytes, 4 * 3 * shape.num_params() as u64, "each element once");
        read(&shape, other, &saved);
    }

    #[test]
    fn any_mesh_can_be_exported_to_hugging_face(split in mesh()) {
        let (folder, shape) = (TempDir::new(), model(true));
        let saved = save(&shape, split, &folder.0);
        let to = folder.0.join("model");
        let mut elements = |name: &str| {
            Ok(saved.read_whole(name, StateTensor::Parameter).unwrap())
        };
        huggingface::export(&to, &shape, &mut elements, None, false).unwrap();
        let bytes = std::fs::read(to.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let found = tensors.tensor("model.layers.1.mlp.down_proj.weight").unwrap();
        let there = found.data().as_chunks::<4>().0.iter().map(|n| f32::from_le_bytes(*n));
        let ours = (0..24 * 12).map(|position| element(StateTensor::Parameter, "layer.1.down.weight", position));
        prop_assert!(there.eq(ours));
    }
}

#[test]
fn a_tensor_of_a_different_shape_is_refused() {
    let folder = TempDir::new();
    let saved = save(&model(true), Mesh::data_parallel(1), &folder.0);
    let other = ModelShape { intermediate_size: 24, ..model(true) };
    let error = restore(&mut engine(&other, Mesh::data_parallel(1), 0), &saved).unwrap_err();
    let expected = "layer.0.up.weight has shape [24, 24] in the checkpoint and [48, 24] in the";
    assert!(error.to_string().contains(expected), "{error}");
}

/// The memory check counts the copy that a background checkpoint writes.
#[test]
fn the_predicted_checkpoint_copy_is_what_ranks_write() {
    let model = "num_layers=8 num_heads=4 hidden_size=32 seq_len=8 batch=8";
    for (args, ranks) in [("", 1), ("", 4), ("tp=2", 4), ("pp=2", 2)] {
        let args: Vec<&str> = model.split(' ').chain(args.split_whitespace()).collect();
        let config = resolve(None, &args).unwrap().config;
        // No padding of the vocabulary, also of its shards.
        let (plan, shape) = config.validate_with_vocab(ranks, 128).unwrap();
        let mut all = 0;
        for rank in 0..ranks {
            let engine = engine(&shape, plan.mesh, rank);
            let shards = owned_shards(&engine);
            let written: usize = shards.iter().map(|s| 4 * s.meta.slice.len(&s.meta.shape)).sum();
            let memory = rank_cost(&shape, &plan, CostOptions::new(4, false), rank).unwrap().memory;
            let predicted = config.memory_need(&plan, &memory).checkpoint() as usize;
            // Parameters replicated over the tensor-parallel group are written by one of its ranks, a table
            // that two stages have by one of them.
            let off = written.abs_diff(predicted);
            assert!(off <= predicted / 10, "{args:?}: {written} {predicted}");
            all += written;
        }
        assert_eq!(all, 12 * shape.num_params(), "{args:?}");
    }
    let footprint = |args: &[&str]| {
        let config = resolve(None, args).unwrap().config;
        let optimizer = StateBytes { resident: 800, transient: 0 };
        let memory = MemoryBytes { optimizer, ..MemoryBytes::default() };
        config.memory_need(&config.validate(2).unwrap(), &memory).checkpoint()
    };
    assert_eq!(footprint(&[]), 600);
    assert_eq!(footprint(&["zero=1"]), 1200);
    assert_eq!(footprint(&["checkpoint.interval=0"]), 0);
    assert_eq!(footprint(&["offload.optimizer=disk"]), 0);
    // Host memory is the CPU's own, and has the offloaded state of a GPU.
    assert_eq!(footprint(&["offload.optimizer=host"]), 600);
    assert_eq!(footprint(&["offload.optimizer=host", "train.device=gpu"]), 0);
}
