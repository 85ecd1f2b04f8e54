//! The end of an endpoint. libfabric may refuse to close what is in use, and what is open may write to
//! memory that it was given: such memory must not be freed.

use super::{Port, alone};
#[cfg(test)]
use crate::fabric::abi;
use crate::fabric::abi::Fid;

impl Port {
    /// Closes the endpoint: no memory is touched any more. False: it is busy, and stays open. Then
    /// whatever was posted may still be written to, so that nobody may free it; it can be tried
    /// again.
    pub fn shut(&mut self) -> bool {
        self.over = true;
        alone(|| {
            if close(&mut self.ep) {
                return true;
            }
            // Some count what is registered with an endpoint as use of it.
            self.regions.retain_mut(|region| !close(region));
            close(&mut self.ep)
        })
    }

    /// Closes all. False: memory that was posted or registered may still be touched.
    pub fn close(&mut self) -> bool {
        if !self.shut() {
            return false;
        }
        alone(|| {
            self.regions.retain_mut(|region| !close(region));
            if !self.regions.is_empty() {
                return false;
            }
            // They know of no memory of ours: what of them cannot be closed only stays.
            close(&mut self.cq);
            close(&mut self.av);
            close(&mut self.domain);
            close(&mut self.fabric);
            true
        })
    }

    /// As if the endpoint could not be closed, for which a test finds none; or as before.
    #[cfg(test)]
    pub fn pretend_busy(&mut self, busy: bool) {
        unsafe extern "C" fn refuse(_: *mut Fid) -> std::ffi::c_int {
            -libc::EBUSY
        }
        let fid: *mut Fid = self.ep.cast();
        let known = self.closing.take();
        // SAFETY: the endpoint is open, and its table is replaced by one that lives as long.
        unsafe {
            let ops = known.unwrap_or((*fid).ops);
            if busy {
                let abi::Ops { size, bind, control, .. } = *ops;
                (*fid).ops = Box::leak(Box::new(abi::Ops { size, close: refuse, bind, control }));
                self.closing = Some(ops);
            } else {
                (*fid).ops = ops;
            }
        }
    }
}

/// Closes an object of libfabric's, all of which begin alike. Whether it is closed.
fn close<T>(object: &mut *mut T) -> bool {
    let fid: *mut Fid = object.cast();
    // SAFETY: if there is one, it is open, and nobody uses it any more.
    let closed = fid.is_null() || unsafe { ((*(*fid).ops).close)(fid) } == 0;
    if closed {
        *object = std::ptr::null_mut();
    }
    closed
}

impl Drop for Port {
    fn drop(&mut self) {
        // Who has memory that it may touch has seen to it before.
        self.close();
    }
}
