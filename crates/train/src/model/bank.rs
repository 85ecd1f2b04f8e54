//! Where a pass has a layer's parameters from, and where it leaves their gradients. The embedding and
//! the head are layers here, too.

use super::product::Later;
use crate::state::StepError;
use regatta_device::memory::{View, ViewMut};
use regatta_predict::shape::Tile;

/// The parameters of a layer. Its matrices may be in tiles, each a block of its own that is brought
/// when it is needed, and then freed.
pub trait Params {
    /// Those of the layer's own block.
    fn own(&self) -> View<'_>;

    /// A tile will be needed soon.
    fn ask(&mut self, tile: usize);

    /// A tile is here, until it is freed.
    fn bring(&mut self, tile: usize) -> Result<(), StepError>;

    /// A tile that was brought.
    fn tile(&self, tile: usize) -> View<'_>;

    /// A tile is not needed for now.
    fn free(&mut self, tile: usize);
}

/// The same, and the gradients.
pub trait Bank: Params {
    /// The parameters of the layer's own block, and where a pass adds to their gradients.
    fn both(&mut self) -> (View<'_>, ViewMut<'_>);

    /// The latter alone, for which the block need not be here.
    fn grads(&mut self) -> ViewMut<'_>;

    /// Where a pass adds to the gradients of a block that has some of the layer's parameters.
    fn grads_of(&mut self, block: usize) -> ViewMut<'_>;

    /// Where a pass adds to the gradients of the layer's own block, and of a tile.
    fn tile_grads(&mut self, tile: usize) -> [ViewMut<'_>; 2];

    /// A pass has added what it has to the gradients of a tile.
    fn complete(&mut self, tile: usize) -> Result<(), StepError>;

    /// If gradients of matrices can wait: what is left to be done.
    fn later(&mut self) -> Option<&mut Vec<Later>>;
}

/// Brings one of tiles that are used one after the other; the next one begins to come meanwhile.
pub(super) fn bring_tile(
    params: &mut dyn Params,
    tiles: &[Tile],
    number: usize,
) -> Result<(), StepError> {
    params.bring(tiles[number].block)?;
    if let Some(next) = tiles.get(number + 1) {
        params.ask(next.block);
    }
    Ok(())
}

/// Parameters that are all there.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// Those of all blocks.
    pub all: &'a [View<'a>],
    /// Which block it is whose passes use them.
    pub block: usize,
}

impl Params for Given<'_> {
    fn own(&self) -> View<'_> {
        self.all[self.block]
    }

    fn ask(&mut self, _tile: usize) {}

    fn bring(&mut self, _tile: usize) -> Result<(), StepError> {
        Ok(())
    }

    fn tile(&self, tile: usize) -> View<'_> {
        self.all[tile]
    }

    fn free(&mut self, _tile: usize) {}
}
