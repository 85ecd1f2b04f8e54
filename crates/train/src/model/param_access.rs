//! Where a pass gets the parameters of a layer from, and where it accumulates their gradients. The
//! embedding and the head count as layers here.

use super::linear::DeferredWeightGrad;
use crate::state::Result;
use regatta_device::tensor::{View, ViewMut};
use regatta_predict::shape::Tile;

/// The parameters of a layer. Its matrices may be tiled: each tile is a block of its own that is
/// unsharded for use and then resharded.
pub trait Params {
    /// The parameters of the layer's own block.
    fn block(&self) -> View<'_>;

    /// Starts to unshard a tile that is needed soon.
    fn prefetch(&mut self, tile: usize);

    /// Unshards a tile.
    fn unshard(&mut self, tile: usize) -> Result<()>;

    /// The parameters of an unsharded tile.
    fn tile(&self, tile: usize) -> View<'_>;

    /// Ends the use of an unsharded tile.
    fn reshard(&mut self, tile: usize);
}

/// Parameters and gradients of a layer.
pub trait ParamsAndGrads: Params {
    /// Parameters and gradients of the layer's own block.
    fn params_and_grads(&mut self) -> (View<'_>, ViewMut<'_>);

    /// Gradients of the layer's own block, which need not be unsharded.
    fn grads(&mut self) -> ViewMut<'_>;

    /// Gradients of any block with parameters of the layer.
    fn grads_of(&mut self, block: usize) -> ViewMut<'_>;

    /// Gradients of the layer's own block and of a tile.
    fn block_and_tile_grads(&mut self, tile: usize) -> [ViewMut<'_>; 2];

    /// Reduces the gradients of a tile, to which this pass adds nothing more.
    fn reduce_grads(&mut self, tile: usize) -> Result<()>;

    /// The queue for weight gradients, if the schedule defers them.
    fn deferred(&mut self) -> Option<&mut Vec<DeferredWeightGrad>>;
}

/// Unshards one of several tiles that are used in sequence, and prefetches the next.
pub(super) fn unshard_tile(params: &mut dyn Params, tiles: &[Tile], index: usize) -> Result<()> {
    params.unshard(tiles[index].block)?;
    if let Some(next) = tiles.get(index + 1) {
        params.prefetch(next.block);
    }
    Ok(())
}

/// Parameters that are all in memory, unsharded.
#[derive(Debug, Clone, Copy)]
pub struct ResidentParams<'a> {
    /// The parameters of all blocks.
    pub all: &'a [View<'a>],
    /// The layer's own block.
    pub block: usize,
}

impl Params for ResidentParams<'_> {
    fn block(&self) -> View<'_> {
        self.all[self.block]
    }

    fn prefetch(&mut self, _tile: usize) {}

    fn unshard(&mut self, _tile: usize) -> Result<()> {
        Ok(())
    }

    fn tile(&self, tile: usize) -> View<'_> {
        self.all[tile]
    }

    fn reshard(&mut self, _tile: usize) {}
}
