//! Operations in flight on an endpoint, each with the context that the provider uses until it completes.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::abi::Context;

/// Operations in flight. Contexts are reused, and stay where they are.
pub struct InFlight<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

struct Slot<T> {
    context: NonNull<Context>,
    operation: Option<T>,
}

// SAFETY: contexts are owned, and only accessed by the provider and through this value.
unsafe impl<T: Send> Send for InFlight<T> {}

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> InFlight<T> {
    /// Posts an operation with a context of its own, and holds it until it completes. Returns it if the
    /// provider did not accept it: with an error, or to be tried again.
    pub fn post(
        &mut self,
        operation: T,
        post: impl FnOnce(*mut Context) -> crate::FiResult<bool>,
    ) -> Result<(), (T, Option<String>)> {
        let number = self.free.pop().unwrap_or_else(|| self.add_slot());
        let slot = &mut self.slots[number];
        match post(slot.context.as_ptr()) {
            Ok(true) => {
                slot.operation = Some(operation);
                Ok(())
            }
            Ok(false) => {
                self.free.push(number);
                Err((operation, None))
            }
            Err(why) => {
                self.free.push(number);
                Err((operation, Some(why)))
            }
        }
    }

    fn add_slot(&mut self) -> usize {
        let number = self.slots.len();
        let context = Context { internal: [std::ptr::null_mut(); 8], number };
        // Not a Box, because the provider writes to it while it is owned here.
        let context = NonNull::from(Box::leak(Box::new(context)));
        self.slots.push(Slot { context, operation: None });
        number
    }

    /// The operation with this context, which is complete.
    pub fn complete(&mut self, context: *mut c_void) -> Option<T> {
        let context = NonNull::new(context.cast::<Context>())?;
        // SAFETY: the provider returns the context it was given.
        let number = unsafe { (*context.as_ptr()).number };
        let operation = self.slots.get_mut(number)?.operation.take()?;
        self.free.push(number);
        Some(operation)
    }

    /// The operations, with their contexts.
    pub fn iter(&self) -> impl Iterator<Item = (&T, *mut Context)> {
        self.slots.iter().filter_map(|slot| Some((slot.operation.as_ref()?, slot.context.as_ptr())))
    }

    /// Forgets operations that will not complete: the provider has given them up.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if slot.operation.take_if(|operation| !keep(operation)).is_some() {
                self.free.push(number);
            }
        }
    }

    /// Takes all operations, after the endpoint was closed.
    pub fn take_all(&mut self) -> Vec<T> {
        self.slots.iter_mut().filter_map(|slot| slot.operation.take()).collect()
    }

    /// Forgets the contexts of an endpoint that cannot be closed: it may write to them at any time.
    pub fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}

impl<T> Drop for InFlight<T> {
    fn drop(&mut self) {
        for slot in &self.slots {
            // SAFETY: it was leaked from a Box, and the endpoint that used it is closed.
            drop(unsafe { Box::from_raw(slot.context.as_ptr()) });
        }
    }
}
