//! Closing an endpoint. libfabric may refuse to close objects in use. An open endpoint may still write
//! to posted memory, which must then not be freed.

use super::{Endpoint, serialized};
use crate::libfabric::abi::Fid;

impl Endpoint {
    /// Closes the endpoint, after which no memory is accessed. Returns false if it is busy: posted
    /// memory must then not be freed. May be called again.
    pub fn close_ep(&mut self) -> bool {
        self.closing = true;
        serialized(|| {
            if close(&mut self.ep) {
                return true;
            }
            // Some providers count regions bound to an endpoint as references to it.
            self.regions.retain_mut(|region| !close(region));
            close(&mut self.ep)
        })
    }

    /// Closes all objects. Returns false if posted or registered memory may still be accessed.
    pub fn close(&mut self) -> bool {
        if !self.close_ep() {
            return false;
        }
        serialized(|| {
            self.regions.retain_mut(|region| !close(region));
            if !self.regions.is_empty() {
                return false;
            }
            // These reference no memory of ours, so failing to close them only leaks them.
            close(&mut self.cq);
            close(&mut self.av);
            close(&mut self.domain);
            close(&mut self.fabric);
            true
        })
    }

    /// The functions of the endpoint, which a test replaces.
    #[cfg(test)]
    pub fn ops(&mut self) -> &mut *const crate::libfabric::abi::Ops {
        // SAFETY: the endpoint is open.
        unsafe { &mut (*self.ep.cast::<Fid>()).ops }
    }
}

/// Closes a libfabric object, all of which start with a `Fid`. Returns whether it is closed.
fn close<T>(object: &mut *mut T) -> bool {
    let fid: *mut Fid = object.cast();
    // SAFETY: a non-null object is open and no longer in use.
    let closed = fid.is_null() || unsafe { ((*(*fid).ops).close)(fid) } == 0;
    if closed {
        *object = std::ptr::null_mut();
    }
    closed
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Owners of posted memory have called `close` before.
        self.close();
    }
}
