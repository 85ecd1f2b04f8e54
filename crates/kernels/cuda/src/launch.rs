//! Kernel launches.

use std::borrow::Cow;
use std::ffi::c_void;

use regatta_comm::MemorySpace;
use regatta_comm::gpu_runtime::SUCCESS;
use regatta_device::tensor::{View, ViewMut};

use crate::CudaDevice;
use crate::elementwise::to_u32;

/// A kernel source. The prelude is put before its text.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its name in errors and in the cache.
    pub name: &'static str,
    /// CUDA C++ without headers.
    pub text: &'static str,
}

/// A function of a source, compiled with definitions of its own.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    pub source: &'static Source,
    /// An `extern "C"` function.
    pub function: Cow<'static, str>,
    /// `-DNAME=value` for each.
    pub defines: Vec<(&'static str, u64)>,
}

impl Kernel {
    /// A kernel without definitions.
    pub fn new(source: &'static Source, function: impl Into<Cow<'static, str>>) -> Self {
        Self { source, function: function.into(), defines: Vec::new() }
    }

    /// With a definition.
    pub fn define(mut self, name: &'static str, value: u64) -> Self {
        self.defines.push((name, value));
        self
    }
}

/// Blocks, threads per block and dynamic shared memory of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub blocks: [u32; 3],
    pub threads: u32,
    pub shared_bytes: u32,
}

/// Threads per block of elementwise kernels.
const ELEMENTWISE_THREADS: u32 = 256;

impl Grid {
    /// A one-dimensional grid.
    pub fn new(blocks: u32, threads: u32) -> Self {
        Self { blocks: [blocks, 1, 1], threads, shared_bytes: 0 }
    }

    /// A two-dimensional grid.
    pub fn planar([x, y]: [usize; 2], threads: usize) -> Self {
        Self { blocks: [to_u32(x), to_u32(y), 1], threads: to_u32(threads), shared_bytes: 0 }
    }

    /// Enough threads for `elements` elements, `per_thread` each.
    pub fn linear(elements: usize, per_thread: usize) -> Self {
        let blocks = elements.div_ceil(per_thread * ELEMENTWISE_THREADS as usize);
        Self::new(u32::try_from(blocks).unwrap_or(u32::MAX), ELEMENTWISE_THREADS)
    }

    /// With dynamic shared memory.
    pub fn shared(self, bytes: u32) -> Self {
        Self { shared_bytes: bytes, ..self }
    }
}

/// An address in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ptr(pub u64);

impl Ptr {
    /// No memory.
    pub const NULL: Self = Self(0);

    /// The address of a tensor in device memory.
    ///
    /// # Panics
    /// If the tensor is in host memory.
    pub fn of(view: View<'_>) -> Self {
        let in_device_memory = view.is_empty() || view.space() != MemorySpace::Host;
        assert!(in_device_memory, "a GPU operation got a tensor in host memory");
        Self(view.address().addr().get() as u64)
    }

    /// The address of a mutable tensor in device memory.
    pub fn of_mut(view: &ViewMut<'_>) -> Self {
        Self::of(view.view())
    }

    /// The address of an optional tensor.
    pub fn optional(view: Option<View<'_>>) -> Self {
        view.map_or(Self::NULL, Self::of)
    }

    /// The address of an optional mutable tensor.
    pub fn optional_mut(view: Option<&ViewMut<'_>>) -> Self {
        view.map_or(Self::NULL, Self::of_mut)
    }

    /// An address some bytes further.
    pub fn offset_bytes(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }

    /// As an argument of a library.
    pub fn as_raw(self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arg {
    Ptr(Ptr),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    F32(f32),
    F64(f64),
}

macro_rules! arg_from {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for Arg {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        }
    )*};
}

arg_from!(Ptr => Ptr, i32 => I32, u32 => U32, i64 => I64, u64 => U64, f32 => F32, f64 => F64);

impl Arg {
    /// The address of the value, as the driver takes it.
    pub(crate) fn address(&self) -> *mut c_void {
        let value: *const c_void = match self {
            Self::Ptr(Ptr(value)) => (&raw const *value).cast(),
            Self::I32(value) => (&raw const *value).cast(),
            Self::U32(value) => (&raw const *value).cast(),
            Self::I64(value) => (&raw const *value).cast(),
            Self::U64(value) => (&raw const *value).cast(),
            Self::F32(value) => (&raw const *value).cast(),
            Self::F64(value) => (&raw const *value).cast(),
        };
        value.cast_mut()
    }
}

/// Dynamic shared memory that every kernel may use.
const DEFAULT_SHARED_BYTES: u32 = 48 * 1024;

impl CudaDevice {
    /// Queues a kernel. Errors become the device's sticky error.
    pub(crate) fn launch(&self, kernel: &Kernel, grid: Grid, args: &[Arg]) {
        let is_empty = grid.blocks.contains(&0);
        if is_empty || self.has_failed() || !self.make_current() {
            return;
        }
        let function = match self.modules.function(self, kernel) {
            Ok(function) => function,
            Err(cause) => return self.fail(&kernel.function, cause),
        };
        if grid.shared_bytes > DEFAULT_SHARED_BYTES {
            // SAFETY: the kernel was loaded.
            let code = unsafe { self.driver.allow_shared_bytes(function, grid.shared_bytes) };
            if code != SUCCESS {
                return self.fail(&kernel.function, self.driver.error_string(code));
            }
        }
        let mut addresses: Vec<*mut c_void> = args.iter().map(Arg::address).collect();
        let [x, y, z] = grid.blocks;
        let (threads, shared, stream) = (grid.threads, grid.shared_bytes, self.stream());
        let (params, extra) = (addresses.as_mut_ptr(), std::ptr::null_mut());
        #[cfg(any(test, feature = "fake"))]
        crate::fake::launch::announce(args);
        // SAFETY: the callers pass the arguments of the kernel, with memory that is large enough; the
        // driver copies them before it returns.
        let code = self.timed(
            || kernel.function.to_string(),
            || unsafe {
                let launch = self.driver.launch_kernel;
                launch(function, x, y, z, threads, 1, 1, shared, stream, params, extra)
            },
        );
        if code != SUCCESS {
            return self.fail(&kernel.function, self.driver.error_string(code));
        }
        self.after_launch(&kernel.function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_grids_cover_all_elements() {
        let blocks = |elements| Grid::linear(elements, 8).blocks[0];
        assert_eq!((blocks(0), blocks(1), blocks(2048), blocks(2049)), (0, 1, 1, 2));
    }

    #[test]
    fn arguments_are_passed_by_address() {
        let arg = Arg::from(7i32);
        // SAFETY: the address is that of the i32 in `arg`.
        assert_eq!(unsafe { *arg.address().cast::<i32>() }, 7);
        assert_eq!(Ptr(16).offset_bytes(4), Ptr(20));
    }
}
