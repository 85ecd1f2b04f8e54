//! What ranks of one split keep, ranks of any other read; and a file of all is made of it.

use proptest::prelude::*;
use safetensors::SafeTensors;

use super::holding::Numbers;
use super::place::parts;
use super::*;
use crate::checkpoint::huggingface::{self, HuggingFaceError};
use crate::checkpoint::{Checkpoint, Kind};
use crate::data::testing::Folder;
use crate::model::Model;
use crate::parallel::Groups;
use crate::state::Sharing;
use crate::step::Net;
use regatta_device::reference::Reference;
use regatta_predict::mesh::Mesh;
use regatta_predict::pipeline::{Kind as Pipeline, Stage};
use regatta_predict::shape::{Family, Parameter, Shape};
use regatta_predict::testing::shape;

/// A rank's model.
fn engine(shape: &Shape, mesh: Mesh, rank: usize) -> Engine {
    let seat = mesh.seat(rank);
    let model = Model::of(shape.clone(), seat.tensor_share(&mesh));
    let stage = match mesh.pp {
        1 => Stage::whole(shape),
        pp => Stage::new(shape, (Pipeline::OneFOneB, pp, 1, pp), seat.pp).unwrap(),
    };
    let mut groups = Groups::alone();
    (groups.mesh, groups.seat) = (mesh, seat);
    let net = Net::new(model, Box::new(Reference));
    Engine::new(net, groups, stage, &Sharing::default(), 5).unwrap()
}

/// The number at a place of a whole parameter.
fn number(kind: Kind, name: &str, place: usize) -> f32 {
    let name: usize = name.bytes().enumerate().map(|(i, byte)| (i + 1) * byte as usize).sum();
    (name * 4 + kind as usize) as f32 + place as f32 / 4096.0
}

/// What a rank should have of some of its numbers.
fn expected(some: &Numbers<'_>) -> Vec<f32> {
    let Parameter { name, whole, .. } = some.parameter;
    let parts = parts(some.parameter, some.range.clone());
    let runs = parts.iter().flat_map(|part| part.runs(whole));
    let places = runs.flat_map(|run| run.start..run.start + run.len);
    places.map(|place| number(some.kind, name, place)).collect()
}

/// All ranks keep what they should have.
fn keep(shape: &Shape, mesh: Mesh, folder: &Path) -> Checkpoint {
    let ranks = mesh.ranks();
    let mut writers: Vec<_> =
        (0..ranks).map(|rank| Writer::new(folder, rank, ranks, 1).unwrap()).collect();
    let about = About {
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
        let blocks = engine.net.model.blocks.clone();
        for some in Holding::of(&engine).all(&blocks) {
            put(&mut engine, (some.block, some.kind), some.start(), &expected(&some)).unwrap();
        }
        let own = pieces(&engine);
        let outlines = own.iter().map(|own| own.outline.clone()).collect();
        let mut numbers = |number: usize| own[number].numbers(&mut engine);
        writer.write_now(about.clone(), outlines, &mut numbers).unwrap();
    }
    for writer in &mut writers {
        assert!(matches!(writer.finish(PATIENCE), State::Written { step: 3 }));
    }
    writers.iter_mut().for_each(|writer| drop(writer.commit(3).unwrap()));
    Checkpoint::latest(folder).unwrap().unwrap()
}

/// All ranks read what they should have.
fn read(shape: &Shape, mesh: Mesh, kept: &Checkpoint) {
    for rank in 0..mesh.ranks() {
        let mut engine = engine(shape, mesh, rank);
        restore(&mut engine, kept).unwrap();
        let blocks = engine.net.model.blocks.clone();
        for some in Holding::of(&engine).all(&blocks) {
            let mut read = vec![0.0; some.range.len()];
            fetch(&mut engine, (some.block, some.kind), some.start(), &mut read).unwrap();
            assert_eq!(read, expected(&some), "rank {rank}: {}", some.parameter.name);
        }
    }
}

/// A model that divides among three and among four tensor ranks.
fn model(llama: bool) -> Shape {
    let mut shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
    (shape.heads, shape.kv_heads) = (12, 12);
    (shape.width, shape.feed_forward) = (24, 12);
    shape
}

fn mesh() -> impl Strategy<Value = Mesh> {
    (1usize..4, 1usize..3, 1usize..5, 1usize..5).prop_map(|(dp, cp, tp, pp)| Mesh {
        dp,
        cp,
        tp,
        pp,
        shard: dp * cp,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn what_any_split_keeps_any_other_reads(llama: bool, one in mesh(), other in mesh()) {
        let (folder, shape) = (Folder::new(), model(llama));
        let kept = keep(&shape, one, folder.path());
        let bytes = kept.verify().unwrap();
        prop_assert_eq!(bytes, 4 * 3 * shape.parameters() as u64, "each number is there once");
        read(&shape, other, &kept);
    }

    #[test]
    fn one_file_is_made_of_any_split(split in mesh()) {
        let (folder, shape) = (Folder::new(), model(true));
        let kept = keep(&shape, split, folder.path());
        let to = folder.path().join("model");
        let mut numbers = |name: &str| {
            Ok::<_, HuggingFaceError>(kept.read_whole(name, Kind::Parameter).unwrap())
        };
        huggingface::export(&to, &shape, &mut numbers, None).unwrap();
        let bytes = std::fs::read(to.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let found = tensors.tensor("model.layers.1.mlp.down_proj.weight").unwrap();
        let there = found.data().as_chunks::<4>().0.iter().map(|n| f32::from_le_bytes(*n));
        let ours = (0..24 * 12).map(|place| number(Kind::Parameter, "layer.1.down.weight", place));
        prop_assert!(there.eq(ours));
    }
}

#[test]
fn a_tensor_of_another_shape_is_refused() {
    let folder = Folder::new();
    let kept = keep(&model(true), Mesh::data(1), folder.path());
    let other = Shape { feed_forward: 24, ..model(true) };
    let error = restore(&mut engine(&other, Mesh::data(1), 0), &kept).unwrap_err().to_string();
    assert!(
        error.contains("layer.0.up.weight is of shape [24, 24] there, [48, 24] here"),
        "{error}"
    );
}
