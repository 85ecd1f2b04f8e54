//! Closing an endpoint. libfabric may refuse to close objects in use. An open endpoint may still write
//! to posted memory, which must then not be freed.

use super::{Endpoint, serialized};
use crate::abi::{Fid, Ops};
use crate::memory::Region;

impl Endpoint {
    /// Closes the endpoint, after which no memory is accessed. Returns false if it is busy: posted
    /// memory must then not be freed. May be called again.
    pub fn close_ep(&mut self) -> bool {
        self.closing = true;
        let connected: Vec<_> = self.connected.iter().copied().collect();
        for ep in connected {
            self.close_connected(ep);
        }
        if self.has_busy_connection {
            return false;
        }
        serialized(|| {
            if close(&mut self.ep) {
                return true;
            }
            // Some providers count regions bound to an endpoint as references to it.
            self.close_regions();
            close(&mut self.ep)
        })
    }

    /// Closes all objects. Returns false if posted or registered memory may still be accessed.
    pub fn close(&mut self) -> bool {
        if !self.close_ep() {
            return false;
        }
        serialized(|| {
            self.close_regions();
            if !self.regions.is_empty() {
                return false;
            }
            // These reference no memory of ours.
            close_or_leak(&mut self.pep);
            close_or_leak(&mut self.eq);
            close_or_leak(&mut self.cq);
            close_or_leak(&mut self.av);
            close_or_leak(&mut self.domain);
            close_or_leak(&mut self.fabric);
            true
        })
    }

    fn close_regions(&mut self) {
        self.regions.retain(|Region(region)| !close(&mut region.clone()));
    }

    /// Closes a registration, whose memory is not accessed afterwards. Returns false if it is in use.
    pub fn deregister(&mut self, Region(mut region): Region) -> bool {
        if region.is_null() || !self.regions.contains(&Region(region)) {
            return true;
        }
        let key = Region(region);
        let closed = serialized(|| close(&mut region));
        if closed {
            self.regions.remove(&key);
        }
        closed
    }

    /// The functions of the endpoint, which tests replace.
    #[doc(hidden)]
    pub fn ops(&mut self) -> &mut *const Ops {
        // SAFETY: the endpoint is open.
        unsafe { &mut (*self.ep.cast::<Fid>()).ops }
    }
}

/// Closes a libfabric object, all of which start with a `Fid`. Returns whether it is closed.
pub(super) fn close<T>(object: &mut *mut T) -> bool {
    let fid: *mut Fid = object.cast();
    // SAFETY: a non-null object is open and no longer in use.
    let closed = fid.is_null() || unsafe { ((*(*fid).ops).close)(fid) } == 0;
    if closed {
        *object = std::ptr::null_mut();
    }
    closed
}

/// Closes a libfabric object once. The tcp provider has freed a part of a completion queue when it refuses to close
/// it, so that a second attempt crashes.
fn close_or_leak<T>(object: &mut *mut T) {
    close(object);
    *object = std::ptr::null_mut();
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Owners of posted memory have called `close` before.
        self.close();
    }
}
