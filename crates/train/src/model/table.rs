//! A matrix with a row for each kind of token, the embedding's or the head's: in one piece, or in
//! tiles.

use super::Matrices;
use super::bank::{Bank, Params, bring_tile};
use crate::state::StepError;
use regatta_device::device::Linear;
use regatta_device::memory::{View, ViewMut};
use regatta_predict::shape::{Shape, Tile};

/// Rows for the kinds of tokens that this rank has.
#[derive(Debug, Clone)]
pub struct Table {
    tiles: Vec<Tile>,
    /// Whether they are blocks of their own; else there is one, in a block with others.
    is_tiled: bool,
    /// Where in its block a tile begins.
    start: usize,
    /// The token of the first row.
    first: usize,
    width: usize,
}

impl Table {
    /// The matrix of this short name, which is in the block of this number if it is in one piece.
    pub(super) fn new(shape: &Shape, number: usize, of: &Matrices<'_>, name: &str) -> Self {
        let own = of.block.share.of(shape.vocabulary);
        let (mut tiles, _) = of.find(name);
        let is_tiled = !tiles.is_empty();
        if !is_tiled {
            tiles.push(Tile { block: number, rows: 0..own.len() });
        }
        let start = of.block.find(name).map_or(0, |range| range.start);
        Self { tiles, is_tiled, start, first: own.start, width: shape.width }
    }

    /// Whether its tiles are blocks of their own, which come and go one after the other.
    pub fn is_tiled(&self) -> bool {
        self.is_tiled
    }

    /// Whether some of its rows are in a block.
    pub fn has(&self, block: usize) -> bool {
        self.tiles.iter().any(|tile| tile.block == block)
    }

    /// The blocks of its tiles.
    pub fn blocks(&self) -> impl Iterator<Item = usize> {
        self.tiles.iter().map(|tile| tile.block)
    }

    /// Numbers of its tiles.
    pub(super) fn tiles(&self) -> std::ops::Range<usize> {
        0..self.tiles.len()
    }

    /// The rows of a tile, of those that this rank has.
    pub(super) fn rows(&self, tile: usize) -> std::ops::Range<usize> {
        self.tiles[tile].rows.clone()
    }

    /// The most rows of a tile.
    pub(super) fn most_rows(&self) -> usize {
        self.tiles.iter().map(|tile| tile.rows.len()).max().unwrap_or(0)
    }

    /// The rows of all tiles.
    pub(super) fn all_rows(&self) -> usize {
        self.tiles.last().map_or(0, |tile| tile.rows.end)
    }

    /// The token of a tile's first row.
    pub(super) fn first(&self, tile: usize) -> usize {
        self.first + self.tiles[tile].rows.start
    }

    /// A product of so many rows with a tile.
    pub(super) fn sizes(&self, tile: usize, rows: usize) -> Linear {
        Linear { rows, inputs: self.width, outputs: self.tiles[tile].rows.len() }
    }

    /// The first tile will be needed soon.
    pub(super) fn ask(&self, params: &mut dyn Params) {
        self.tiles.iter().take(1).for_each(|first| params.ask(first.block));
    }

    /// A tile is here until it is freed; the next one begins to come.
    pub(super) fn bring(&self, params: &mut dyn Params, tile: usize) -> Result<(), StepError> {
        bring_tile(params, &self.tiles, tile)
    }

    /// A tile that was brought is not needed for now.
    pub(super) fn free(&self, params: &mut dyn Params, tile: usize) {
        params.free(self.tiles[tile].block);
    }

    /// The numbers of a tile that was brought.
    pub(super) fn of<'a>(&self, params: &'a dyn Params, tile: usize) -> View<'a> {
        let Tile { block, rows } = &self.tiles[tile];
        params.tile(*block).part(self.start..self.start + rows.len() * self.width)
    }

    /// Where a pass adds to a tile's gradients.
    pub(super) fn grads<'a>(&self, bank: &'a mut dyn Bank, tile: usize) -> ViewMut<'a> {
        let grads = bank.grads_of(self.tiles[tile].block);
        self.of_block(self.tiles[tile].block, grads)
    }

    /// A pass has added what it has to a tile's gradients. Those of a block with others are not
    /// complete by that.
    pub(super) fn done(&self, bank: &mut dyn Bank, tile: usize) -> Result<(), StepError> {
        if self.is_tiled { bank.complete(self.tiles[tile].block) } else { Ok(()) }
    }

    /// What belongs to the table of numbers of a block that has some of it.
    pub fn of_block<'a>(&self, block: usize, numbers: ViewMut<'a>) -> ViewMut<'a> {
        let here = self.tiles.iter().find(|tile| tile.block == block);
        let len = here.map_or(0, |tile| tile.rows.len() * self.width);
        numbers.split_at(self.start).1.split_at(len).0
    }
}
