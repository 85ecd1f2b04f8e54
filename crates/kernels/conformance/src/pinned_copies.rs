//! Asynchronous copies between pinned host memory and a device.

use std::collections::VecDeque;

use regatta_comm::Event;
use regatta_device::HostTensor;
use regatta_device::ops::Device;
use regatta_device::tensor::Tensor;

use crate::host_copy::{copy_from_f64, copy_to_f64};

/// Blocks in pinned memory, each of some elements.
#[derive(Debug, Clone, Copy)]
pub struct PinnedBlocks {
    /// Number of blocks.
    pub blocks: usize,
    /// Elements of a block.
    pub len: usize,
}

/// Rounds over all blocks.
const ROUNDS: usize = 3;

/// Device buffers: one being loaded, one in use, one being stored.
const BUFFERS: usize = 3;

/// Streams blocks through a few device buffers, as an optimizer step over offloaded state does, and checks
/// that every block was updated once per round.
pub fn check_pinned_blocks(device: &dyn Device, case: PinnedBlocks) {
    let mut blocks: Vec<HostTensor> = (0..case.blocks)
        .map(|_| device.zeros_pinned(case.len, device.master_dtype()).unwrap())
        .collect();
    let mut buffers: VecDeque<Tensor> =
        (0..BUFFERS).map(|_| device.zeros_master(case.len)).collect();
    for (index, block) in blocks.iter_mut().enumerate() {
        let values: Vec<f64> = (0..case.len).map(|i| value(index, i)).collect();
        copy_from_f64(device, &values, buffers[0].view_mut());
        let stored = store(device, &buffers[0], block);
        wait(device, stored);
    }
    for _ in 0..ROUNDS {
        double_all(device, &mut blocks, &mut buffers);
    }
    for (index, block) in blocks.iter_mut().enumerate() {
        let buffer = &mut buffers[index % BUFFERS];
        let loaded = device.load_async(block, buffer.view_mut(), device.record_event().as_ref());
        wait(device, loaded);
        let found = copy_to_f64(device, buffer.view());
        let expected = |i| value(index, i) * (1 << ROUNDS) as f64;
        let wrong = found.iter().enumerate().find(|(i, found)| **found != expected(*i));
        assert!(wrong.is_none(), "block {index}: element {wrong:?}");
        // The host reads what the device has stored.
        assert_eq!(block.view().unwrap().len(), case.len);
    }
}

/// Doubles every block: the next one is loaded and the previous one stored meanwhile.
fn double_all(device: &dyn Device, blocks: &mut [HostTensor], buffers: &mut VecDeque<Tensor>) {
    let mut loads = VecDeque::new();
    let mut stores = VecDeque::new();
    for index in 0..=blocks.len() {
        if index < blocks.len() {
            if stores.len() == BUFFERS - 1 {
                let (buffer, stored) = stores.pop_front().unwrap();
                wait(device, stored);
                buffers.push_back(buffer);
            }
            let mut buffer = buffers.pop_front().unwrap();
            let after = device.record_event();
            let loaded = device.load_async(&mut blocks[index], buffer.view_mut(), after.as_ref());
            loads.push_back((index, buffer, loaded));
        }
        if loads.len() == 2 || index == blocks.len() {
            let Some((block, mut buffer, loaded)) = loads.pop_front() else { continue };
            wait(device, loaded);
            device.scale(2.0, buffer.view_mut());
            let stored = store(device, &buffer, &mut blocks[block]);
            stores.push_back((buffer, stored));
        }
    }
    for (buffer, stored) in stores {
        wait(device, stored);
        buffers.push_back(buffer);
    }
}

/// Stores a buffer after the device's operations so far.
fn store(device: &dyn Device, from: &Tensor, to: &mut HostTensor) -> Option<Event> {
    device.store_async(from.view(), to, device.record_event().as_ref())
}

/// Lets the device's later operations wait for a copy.
fn wait(device: &dyn Device, copied: Option<Event>) {
    copied.into_iter().for_each(|copied| device.wait_event(&copied).unwrap());
}

/// An element, exact in f32 also after it was doubled.
fn value(block: usize, element: usize) -> f64 {
    (element % 1000 + 1000 * block) as f64
}
