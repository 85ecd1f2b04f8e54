//! The operations in flight, in the order in which they were enqueued.

use std::collections::{BTreeMap, HashMap};

use super::open_operation::OpenOperation;

/// Operations by their number. Numbers of different threads say nothing about the order.
#[derive(Debug, Default)]
pub(super) struct OpenSet {
    by_order: BTreeMap<u64, OpenOperation>,
    order: HashMap<u64, u64>,
    next: u64,
}

impl OpenSet {
    pub(super) fn insert(&mut self, open: OpenOperation) {
        // A number that is used again replaces the operation that had it.
        self.remove(open.enqueue.operation);
        self.order.insert(open.enqueue.operation, self.next);
        self.by_order.insert(self.next, open);
        self.next += 1;
    }

    pub(super) fn get_mut(&mut self, operation: u64) -> Option<&mut OpenOperation> {
        self.by_order.get_mut(self.order.get(&operation)?)
    }

    pub(super) fn remove(&mut self, operation: u64) -> Option<OpenOperation> {
        self.by_order.remove(&self.order.remove(&operation)?)
    }

    pub(super) fn len(&self) -> usize {
        self.by_order.len()
    }

    /// Removes the oldest operation.
    pub(super) fn pop_first(&mut self) -> Option<OpenOperation> {
        let (_, oldest) = self.by_order.pop_first()?;
        self.order.remove(&oldest.enqueue.operation);
        Some(oldest)
    }

    /// All operations, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &OpenOperation> {
        self.by_order.values()
    }

    /// Removes all operations.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = OpenOperation> + use<> {
        self.order.clear();
        std::mem::take(&mut self.by_order).into_values()
    }
}
