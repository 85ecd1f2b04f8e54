//! A matrix with one row per token of the vocabulary: the token embedding or the output layer, whole
//! or in tiles.

use std::ops::Range;

use super::param_access::{Params, ParamsAndGrads, unshard_tile};
use crate::state::Result;
use regatta_device::ops::{Device, LinearShape};
use regatta_device::tensor::{View, ViewMut};
use regatta_predict::shape::{Matrices, ModelShape, Module, ParamKind, Tile};

/// This rank's rows of a vocabulary matrix (vocab-parallel).
#[derive(Debug, Clone)]
pub struct VocabTable {
    /// One tile with all rows if the matrix is not tiled.
    tiles: Vec<Tile>,
    is_tiled: bool,
    /// Offset of a tile in its block.
    offset: usize,
    /// Rows of zeros behind the last, which a GEMM may include.
    padding_rows: usize,
    /// The token of the first row.
    first_token: usize,
    hidden_size: usize,
}

impl VocabTable {
    /// The weight of a module; `block` has it unless it is tiled.
    pub(super) fn new(shape: &ModelShape, block: usize, of: &Matrices<'_>, module: Module) -> Self {
        let local = of.block.shard.range(shape.vocab_size);
        let (mut tiles, _) = of.weight(module);
        let is_tiled = !tiles.is_empty();
        if !is_tiled {
            tiles.push(Tile { block, rows: 0..local.len() });
        }
        let (hidden_size, first_token) = (shape.hidden_size, local.start);
        let weight = of.block.param(module, ParamKind::Weight);
        let (offset, padding) = weight.map_or((0, 0), |weight| (weight.offset, weight.padding));
        let padding_rows = padding / hidden_size;
        Self { tiles, is_tiled, offset, padding_rows, first_token, hidden_size }
    }

    /// Whether its tiles are blocks of their own.
    pub fn is_tiled(&self) -> bool {
        self.is_tiled
    }

    /// Whether a block has rows of it.
    pub fn is_in_block(&self, block: usize) -> bool {
        self.tiles.iter().any(|tile| tile.block == block)
    }

    /// The blocks that have rows of it.
    pub fn blocks(&self) -> impl Iterator<Item = usize> {
        self.tiles.iter().map(|tile| tile.block)
    }

    /// The indices of its tiles.
    pub(super) fn tiles(&self) -> Range<usize> {
        0..self.tiles.len()
    }

    /// The local rows of a tile.
    pub(super) fn tile_rows(&self, tile: usize) -> Range<usize> {
        self.tiles[tile].rows.clone()
    }

    /// Rows of all tiles.
    pub(super) fn local_rows(&self) -> usize {
        self.tiles.last().map_or(0, |tile| tile.rows.end)
    }

    /// The tokens of a tile.
    pub(super) fn tokens(&self, tile: usize) -> Range<usize> {
        let Range { start, end } = self.tiles[tile].rows;
        self.first_token + start..self.first_token + end
    }

    /// The GEMM of `rows` hidden states with a tile, and with the padding if the device wants it.
    pub(super) fn gemm_shape(&self, device: &dyn Device, tile: usize, rows: usize) -> LinearShape {
        let padding = if device.pads_logits() { self.padding_rows } else { 0 };
        let outputs = self.tiles[tile].rows.len() + padding;
        LinearShape { rows, inputs: self.hidden_size, outputs }
    }

    /// Prefetches the first tile.
    pub(super) fn prefetch(&self, params: &mut dyn Params) {
        self.tiles.iter().take(1).for_each(|first| params.prefetch(first.block));
    }

    /// Unshards a tile and prefetches the next.
    pub(super) fn unshard(&self, params: &mut dyn Params, tile: usize) -> Result<()> {
        unshard_tile(params, &self.tiles, tile)
    }

    /// Ends the use of an unsharded tile.
    pub(super) fn reshard(&self, params: &mut dyn Params, tile: usize) {
        params.reshard(self.tiles[tile].block);
    }

    /// The rows of an unsharded tile.
    pub(super) fn tile<'a>(&self, params: &'a dyn Params, tile: usize) -> View<'a> {
        self.rows(params, tile, self.tiles[tile].rows.len())
    }

    /// The weight of a GEMM with an unsharded tile.
    pub(super) fn gemm_weight<'a>(
        &self,
        params: &'a dyn Params,
        tile: usize,
        shape: LinearShape,
    ) -> View<'a> {
        self.rows(params, tile, shape.outputs)
    }

    /// The first rows of an unsharded tile, and of the padding behind it.
    fn rows<'a>(&self, params: &'a dyn Params, tile: usize, rows: usize) -> View<'a> {
        let block = params.tile(self.tiles[tile].block);
        block.slice(self.offset..self.offset + rows * self.hidden_size)
    }

    /// The gradients of a tile.
    pub(super) fn grads<'a>(&self, params: &'a mut dyn ParamsAndGrads, tile: usize) -> ViewMut<'a> {
        let block = self.tiles[tile].block;
        self.part_of_block(block, params.grads_of(block))
    }

    /// The gradient of the weight of a GEMM with a tile.
    pub(super) fn gemm_weight_grads<'a>(
        &self,
        params: &'a mut dyn ParamsAndGrads,
        tile: usize,
        shape: LinearShape,
    ) -> ViewMut<'a> {
        let grads = params.grads_of(self.tiles[tile].block);
        grads.split_at(self.offset).1.split_at(shape.outputs * self.hidden_size).0
    }

    /// Reduces the gradients of a tile that is a block of its own; else its block is reduced later,
    /// together with the other parameters.
    pub(super) fn reduce_grads(&self, params: &mut dyn ParamsAndGrads, tile: usize) -> Result<()> {
        if self.is_tiled { params.reduce_grads(self.tiles[tile].block) } else { Ok(()) }
    }

    /// The table's elements of a block that has rows of it.
    pub fn part_of_block<'a>(&self, block: usize, elements: ViewMut<'a>) -> ViewMut<'a> {
        let tile = self.tiles.iter().find(|tile| tile.block == block);
        let len = tile.map_or(0, |tile| tile.rows.len() * self.hidden_size);
        elements.split_at(self.offset).1.split_at(len).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_device::precision::Precision;
    use regatta_kernels_cpu::Cpu;
    use regatta_kernels_cuda::fake;
    use regatta_predict::shape::{Family, Shard};
    use regatta_predict::testing;

    use crate::model::Model;

    #[test]
    fn gemms_of_gpus_include_the_padding_of_a_matrix_without_tiles() {
        let outputs = |device: &dyn Device, tiles| {
            let shape = ModelShape { vocab_size: 130, ..testing::shape(Family::Gpt2) };
            let model = Model::tiled(shape, Shard { rank: 1, ranks: 2 }, tiles);
            model.head.table.gemm_shape(device, 0, 3).outputs
        };
        let (cpu, gpu) = (Cpu::new(1, Precision::F32), fake::device(Precision::Bf16));
        assert_eq!([outputs(&cpu, 1), outputs(&gpu, 1)], [65, 128]);
        assert_eq!([outputs(&cpu, 5), outputs(&gpu, 5)], [13, 13]);
    }
}
