//! Memory that is lent for a while and used again: a step needs the same tensors as the step before,
//! and new memory from the system costs more than many an operation.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use regatta_device::device::Device;
use regatta_device::memory::{Format, Tensor};

/// By length and format.
#[derive(Debug, Default)]
struct Free {
    tensors: HashMap<(usize, Format), Vec<Tensor>>,
    /// Bytes of all that there are.
    bytes: usize,
    /// The most that there were.
    most: usize,
}

/// Tensors that nobody uses now.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    free: Arc<Mutex<Free>>,
}

impl Scratch {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most bytes that there were at once.
    pub fn most_bytes(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).most
    }

    /// Gives back what nobody uses now: what comes next needs tensors of other sizes.
    pub fn trim(&self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = |tensor: &Tensor| tensor.len() * tensor.format().size();
        let unused: usize = free.tensors.values().flatten().map(bytes).sum();
        free.tensors.clear();
        free.bytes -= unused;
    }

    /// A tensor with anything in it.
    pub fn lend(&self, device: &dyn Device, elements: usize, format: Format) -> Lent {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free.tensors.get_mut(&(elements, format)).and_then(Vec::pop);
        if found.is_none() {
            free.bytes += elements * format.size();
            free.most = free.most.max(free.bytes);
        }
        drop(free);
        let tensor = found.unwrap_or_else(|| device.zeros(elements, format));
        Lent { tensor: Some(tensor), home: self.free.clone() }
    }
}

/// A tensor that goes back when it is dropped.
#[derive(Debug)]
pub struct Lent {
    /// `None` only while it is dropped.
    tensor: Option<Tensor>,
    home: Arc<Mutex<Free>>,
}

/// Where a tensor that was taken out of a [`Lent`] belongs.
#[derive(Debug)]
pub struct Home(Arc<Mutex<Free>>);

impl Home {
    /// Lends it again.
    pub fn lent(self, tensor: Tensor) -> Lent {
        Lent { tensor: Some(tensor), home: self.0 }
    }
}

impl Lent {
    /// Takes the tensor, for a collective that needs to own it.
    pub fn take(mut self) -> (Tensor, Home) {
        let home = Home(self.home.clone());
        match self.tensor.take() {
            Some(tensor) => (tensor, home),
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

impl Deref for Lent {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        match &self.tensor {
            Some(tensor) => tensor,
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Tensor {
        match &mut self.tensor {
            Some(tensor) => tensor,
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(tensor) = self.tensor.take() {
            let mut free = self.home.lock().unwrap_or_else(PoisonError::into_inner);
            free.tensors.entry((tensor.len(), tensor.format())).or_default().push(tensor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_device::reference::Reference;

    #[test]
    fn what_comes_back_is_lent_again() {
        let scratch = Scratch::new();
        let lend = |elements| scratch.lend(&Reference, elements, Format::F64);
        let mut first = lend(4);
        first.view_mut().host::<f64>()[0] = 5.0;
        let second = lend(4);
        assert_eq!(second.view().host::<f64>()[0], 0.0);
        drop(first);
        assert_eq!(lend(4).view().host::<f64>()[0], 5.0);
        assert_eq!(lend(3).len(), 3);
        let bytes = |elements: usize| elements * size_of::<f64>();
        assert_eq!(scratch.most_bytes(), bytes(4 + 4 + 3));
        scratch.trim();
        drop((second, lend(4)));
        assert_eq!(scratch.most_bytes(), bytes(4 + 4 + 3));
    }
}
