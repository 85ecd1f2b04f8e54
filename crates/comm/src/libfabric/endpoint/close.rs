//! Closing an endpoint. libfabric may refuse to close objects in use. An open endpoint may still write
//! to posted memory, which must then not be freed.

use super::{Endpoint, serialized};
#[cfg(test)]
use crate::libfabric::abi;
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

    /// Simulates a busy endpoint, or ends the simulation.
    #[cfg(test)]
    pub fn simulate_busy(&mut self, busy: bool) {
        unsafe extern "C" fn refuse(_: *mut Fid) -> std::ffi::c_int {
            -libc::EBUSY
        }
        let fid: *mut Fid = self.ep.cast();
        let real_ops = self.real_ops.take();
        // SAFETY: the endpoint is open, and the leaked table outlives it.
        unsafe {
            let ops = real_ops.unwrap_or((*fid).ops);
            if busy {
                let abi::Ops { size, bind, control, .. } = *ops;
                (*fid).ops = Box::leak(Box::new(abi::Ops { size, close: refuse, bind, control }));
                self.real_ops = Some(ops);
            } else {
                (*fid).ops = ops;
            }
        }
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
