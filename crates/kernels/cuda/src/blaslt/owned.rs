//! Objects of the library: handles, descriptors, layouts and preferences.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::descriptors::{StatusError, check};
use super::sys::SetAttribute;

/// An object, destroyed when dropped.
pub(crate) struct Owned {
    pub raw: *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
}

impl Owned {
    /// Creates an object by the function of this name.
    ///
    /// # Safety
    /// `create` must write the address of an object that `destroy` accepts, or return an error. The library must
    /// stay loaded until the object is dropped.
    pub unsafe fn new(
        name: &'static str,
        destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
        create: impl FnOnce(&mut *mut c_void) -> c_int,
    ) -> Result<Self, StatusError> {
        let mut raw = null_mut();
        check(name, create(&mut raw))?;
        Ok(Self { raw, destroy })
    }

    /// Sets an attribute by the function of this name.
    ///
    /// # Safety
    /// `set` must be the function for objects of this kind.
    pub unsafe fn set<T: Copy>(
        &self,
        (name, set): (&'static str, SetAttribute),
        attribute: c_int,
        value: T,
    ) -> Result<(), StatusError> {
        // SAFETY: the object is valid; the function reads one value.
        let code = unsafe { set(self.raw, attribute, (&raw const value).cast(), size_of::<T>()) };
        check(name, code)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the object is valid and not used afterwards.
        unsafe { (self.destroy)(self.raw) };
    }
}
