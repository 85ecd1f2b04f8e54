//! What memory of a GPU is, for libfabric. The vendor's library is already loaded by NCCL or RCCL.

use std::ffi::{CStr, c_int, c_void};

use regatta_fabric::memory::MemoryKind;

/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: c_int = 9;

type PointerGetAttribute = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;

/// The kind of memory at an address, or why it is not known.
pub fn memory_kind(address: *mut u8) -> Result<MemoryKind, String> {
    if let Some(cuda) = loaded(c"libcuda.so.1") {
        // SAFETY: the handle is that of a loaded library.
        let function = unsafe { libc::dlsym(cuda, c"cuPointerGetAttribute".as_ptr()) };
        if function.is_null() {
            return Err("libcuda.so.1 has no cuPointerGetAttribute".to_owned());
        }
        // SAFETY: the function of the CUDA driver.
        let function = unsafe { std::mem::transmute::<*mut c_void, PointerGetAttribute>(function) };
        let mut device: c_int = 0;
        // SAFETY: the attribute is an integer; unknown addresses are an error.
        let code = unsafe { function((&raw mut device).cast(), DEVICE_ORDINAL, address as u64) };
        return match code {
            0 => Ok(MemoryKind::Cuda(device)),
            code => Err(format!("cuPointerGetAttribute failed with {code}")),
        };
    }
    match loaded(c"libhsa-runtime64.so.1").or_else(|| loaded(c"libamdhip64.so.6")) {
        Some(_) => Ok(MemoryKind::Rocr),
        None => Err("neither the CUDA driver nor ROCm is loaded".to_owned()),
    }
}

/// A library, if the process has loaded it.
fn loaded(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: with RTLD_NOLOAD nothing is loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!handle.is_null()).then_some(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_the_kind_is_unknown() {
        let error = memory_kind(std::ptr::dangling_mut()).unwrap_err();
        assert!(error.contains("loaded") || error.contains("cuPointerGetAttribute"), "{error}");
    }
}
