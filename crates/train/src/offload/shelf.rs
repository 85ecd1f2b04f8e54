//! Where each block's numbers are kept: in memory, or on disk and in memory while they are used.

use std::collections::VecDeque;

use regatta_predict::moved::Moved;

use super::{Store, StoreError, Ticket};
use crate::parallel::Company;
use crate::state::Pool;
use regatta_device::device::Device;
use regatta_device::memory::{Format, Tensor, View, ViewMut};

/// So many blocks may still be on their way to the disk while another is worked on.
const BEHIND: usize = 1;

/// Numbers of blocks, each in one piece.
pub struct Shelf {
    blocks: Vec<Option<Block>>,
    /// Bytes that are always in memory.
    kept: usize,
    disk: Option<Disk>,
}

struct Block {
    elements: usize,
    /// Where in the file it begins.
    at: u64,
    place: Place,
}

enum Place {
    /// On disk only.
    Away,
    Coming(Ticket),
    Here(Tensor),
    /// Somebody has it.
    Lent,
}

struct Disk {
    store: Store,
    format: Format,
    pool: Pool,
    writing: VecDeque<Ticket>,
}

impl Shelf {
    /// In memory.
    pub fn in_memory(tensors: Vec<Option<Tensor>>) -> Self {
        let block =
            |tensor: Tensor| Block { elements: tensor.len(), at: 0, place: Place::Here(tensor) };
        let kept = tensors.iter().flatten().map(|t| t.len() * t.format().size()).sum();
        let blocks = tensors.into_iter().map(|tensor| tensor.map(block)).collect();
        Self { blocks, kept, disk: None }
    }

    /// On disk, all zero: so many numbers of each block. What is read goes to other ranks, perhaps.
    pub fn on_disk(
        make: impl FnOnce(u64) -> Result<Store, StoreError>,
        elements: &[Option<usize>],
        format: Format,
        company: Company,
    ) -> Result<Self, StoreError> {
        let mut end = 0;
        let mut block = |elements: usize| {
            let at = end;
            end += (elements * format.size()) as u64;
            Block { elements, at, place: Place::Away }
        };
        let blocks = elements.iter().map(|elements| elements.map(&mut block)).collect();
        let (store, pool) = (make(end)?, Pool::new(company));
        let disk = Disk { store, format, pool, writing: VecDeque::new() };
        Ok(Self { blocks, kept: 0, disk: Some(disk) })
    }

    /// Whether this rank has a block.
    pub fn has(&self, block: usize) -> bool {
        self.blocks.get(block).is_some_and(Option::is_some)
    }

    /// It will be needed soon.
    pub fn ask(&mut self, block: usize) {
        let Some(Some(Block { elements, at, place })) = self.blocks.get_mut(block) else { return };
        if let (Place::Away, Some(disk)) = (&place, &mut self.disk) {
            let tensor = disk.pool.take(*elements, disk.format);
            *place = Place::Coming(disk.store.read(*at, tensor));
        }
    }

    /// It is here, until it is freed.
    pub fn bring(&mut self, block: usize) -> Result<(), StoreError> {
        self.ask(block);
        let Some(Block { place, .. }) = &mut self.blocks[block] else { return Ok(()) };
        *place = match std::mem::replace(place, Place::Lent) {
            Place::Coming(ticket) => Place::Here(ticket.wait()?),
            other => other,
        };
        Ok(())
    }

    /// Numbers that were brought; nothing of a block that this rank has not.
    pub fn view(&self, block: usize) -> View<'_> {
        match self.blocks[block].as_ref().map(|block| &block.place) {
            Some(Place::Here(tensor)) => tensor.view(),
            None => View::of::<f32>(&[]),
            _ => unreachable!("they are looked at while they are here"),
        }
    }

    /// The same, to be changed.
    pub fn view_mut(&mut self, block: usize) -> ViewMut<'_> {
        match self.blocks[block].as_mut().map(|block| &mut block.place) {
            Some(Place::Here(tensor)) => tensor.view_mut(),
            None => ViewMut::of::<f32>(&mut []),
            _ => unreachable!("they are changed while they are here"),
        }
    }

    /// Takes numbers that were brought, for a collective that needs to own them.
    pub fn take(&mut self, block: usize) -> Tensor {
        let place = self.blocks[block].as_mut().map(|block| &mut block.place);
        match place.map(|place| std::mem::replace(place, Place::Lent)) {
            Some(Place::Here(tensor)) => tensor,
            _ => unreachable!("they are taken while they are here"),
        }
    }

    /// Gives them back, as they were.
    pub fn give(&mut self, block: usize, tensor: Tensor) {
        let Some(Block { place, .. }) = &mut self.blocks[block] else { return };
        *place = match &mut self.disk {
            None => Place::Here(tensor),
            Some(disk) => {
                disk.pool.give(tensor);
                Place::Away
            }
        };
    }

    /// They are not needed for now; if they were changed, the disk gets them.
    pub fn free(&mut self, block: usize, changed: bool) -> Result<(), StoreError> {
        let (Some(Block { place, at, .. }), Some(disk)) = (&mut self.blocks[block], &mut self.disk)
        else {
            return Ok(());
        };
        match std::mem::replace(place, Place::Away) {
            Place::Here(tensor) if changed => disk.write(*at, tensor),
            Place::Here(tensor) => {
                disk.pool.give(tensor);
                Ok(())
            }
            other => {
                *place = other;
                Ok(())
            }
        }
    }

    /// Copies some numbers of a block, wherever they are; not all of it need be in memory for that.
    pub fn fetch(
        &mut self,
        device: &dyn Device,
        block: usize,
        start: usize,
        to: &mut [f32],
    ) -> Result<(), StoreError> {
        // What could not be written must not be taken for what is there.
        self.settle()?;
        let Some((at, room)) = self.some(block, start, to.len())? else {
            device.fetch(self.view(block).part(start..start + to.len()), to);
            return Ok(());
        };
        let Some(disk) = &self.disk else { return Ok(()) };
        let read = disk.store.read(at, room).wait()?;
        device.fetch(read.view(), to);
        Ok(())
    }

    /// Waits until all that was changed is on disk.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        self.disk.as_mut().map_or(Ok(()), |disk| disk.wait(0))
    }

    /// Changes some numbers of a block, wherever they are.
    pub fn put(
        &mut self,
        device: &dyn Device,
        block: usize,
        start: usize,
        from: &[f32],
    ) -> Result<(), StoreError> {
        let Some((at, mut room)) = self.some(block, start, from.len())? else {
            device.put(from, self.view_mut(block).part(start..start + from.len()));
            return Ok(());
        };
        let Some(disk) = &self.disk else { return Ok(()) };
        device.put(from, room.view_mut());
        disk.store.write(at, room).wait()?;
        Ok(())
    }

    /// Where some numbers of a block are on disk, with room for them; nothing if they are here. What
    /// was read ahead does not count: it would not be what is there when it is changed.
    fn some(
        &mut self,
        block: usize,
        start: usize,
        elements: usize,
    ) -> Result<Option<(u64, Tensor)>, StoreError> {
        if let Some(Block { place: Place::Coming(_), .. }) = self.blocks[block] {
            self.bring(block)?;
            self.free(block, false)?;
        }
        let (Some(Block { at, place: Place::Away, .. }), Some(disk)) =
            (&self.blocks[block], &self.disk)
        else {
            return Ok(None);
        };
        let at = at + (start * disk.format.size()) as u64;
        Ok(Some((at, Tensor::zeroed(elements, disk.format))))
    }

    /// Bytes that are always in memory, and those for what comes and goes.
    pub fn bytes(&self) -> [usize; 2] {
        [self.kept, self.disk.as_ref().map_or(0, |disk| disk.pool.bytes())]
    }

    /// What was read and written so far.
    pub fn moved(&self) -> Moved {
        self.disk.as_ref().map_or(Moved::default(), |disk| disk.store.moved())
    }
}

impl Disk {
    /// Begins to write; waits for earlier ones where too many are under way.
    fn write(&mut self, at: u64, tensor: Tensor) -> Result<(), StoreError> {
        self.writing.push_back(self.store.write(at, tensor));
        self.wait(BEHIND)
    }

    /// Waits until so few are still being written.
    fn wait(&mut self, left: usize) -> Result<(), StoreError> {
        while self.writing.len() > left {
            if let Some(ticket) = self.writing.pop_front() {
                self.pool.give(ticket.wait()?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_as_they_were_left() {
        let folder = std::env::temp_dir().join(format!("regatta-shelf-{}", std::process::id()));
        let make = |bytes| Store::new(&folder, "shelf", bytes);
        let elements = [Some(3), None, Some(3), Some(3), Some(3)];
        let mut shelf = Shelf::on_disk(make, &elements, Format::F64, None).unwrap();
        for round in 0..3 {
            for block in [0, 2, 3, 4] {
                shelf.ask(block + 1);
                shelf.bring(block).unwrap();
                let numbers = shelf.view_mut(block).host::<f64>();
                assert!(numbers.iter().all(|x| *x == (block * round) as f64), "{numbers:?}");
                numbers.iter_mut().for_each(|x| *x += block as f64);
                shelf.free(block, true).unwrap();
            }
        }
        // The last of them is on disk before anybody reads it there.
        let mut numbers = [0.0; 3];
        shelf.fetch(&regatta_device::reference::Reference, 4, 0, &mut numbers).unwrap();
        assert_eq!(numbers, [12.0; 3]);
        assert!(shelf.disk.as_ref().is_some_and(|disk| disk.writing.is_empty()));
        assert!(shelf.view(1).is_empty() && !shelf.has(1));
        let [kept, passing] = shelf.bytes();
        assert_eq!(kept, 0);
        assert!(passing <= (BEHIND + 2) * 24, "{passing}");
        drop(shelf);
        std::fs::remove_dir(&folder).unwrap();
    }
}
