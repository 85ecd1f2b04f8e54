//! The functions of the driver. A module is a CUDA source; its kernels are emulated.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use regatta_comm::gpu_runtime::{SUCCESS, Stream, Vendor};

use super::declarations::{self, Defines, Parameter};
use super::error::{INVALID_HANDLE, LAUNCH_FAILURE, NOT_FOUND, get_error_string, misuse};
use super::gpu::{FakeGpu, MULTIPROCESSORS, current, gpu_of_stream, world};
use super::kernels::{Emulation, emulation};
use super::launch::{Launch, read_args};
use super::runtime::code;
use super::simt::{self, HostModule};
use crate::Arg;
use crate::driver::{Attribute, Driver, GetErrorString, RawFunction, RawModule};
use crate::module_cache::PRELUDE;

/// A loaded source.
pub struct Module {
    source: String,
    defines: Defines,
    kernels: BTreeMap<String, Vec<Parameter>>,
    /// The compiled source, if it runs itself.
    host: Option<Arc<HostModule>>,
}

/// A kernel.
pub struct Function {
    module: Arc<Module>,
    name: String,
    emulation: Emulation,
    /// Dynamic shared memory that it may use.
    allowed_shared_bytes: AtomicU32,
}

/// Dynamic shared memory that every kernel may use.
const DEFAULT_SHARED_BYTES: u32 = 48 * 1024;

/// Threads of a block, and blocks of the second and third dimension of a grid, at most.
const MAX_THREADS: u32 = 1024;
const MAX_BLOCKS: u32 = 65_535;

/// Time of a kernel.
const KERNEL_MS: f32 = 0.001;

/// The driver of the fake GPUs of a vendor.
pub fn driver(vendor: Vendor) -> Driver {
    let is_amd = vendor == Vendor::Amd;
    Driver {
        vendor,
        module_load_data,
        module_get_function,
        launch_kernel,
        func_set_attribute: (!is_amd).then_some(func_set_attribute),
        memset_async,
        device_get_attribute,
        runtime_get_version: if is_amd { Some(runtime_get_version) } else { None },
        get_error_string: GetErrorString::Hip(get_error_string),
        _library: None,
    }
}

/// The image is a line with the name of the source and its definitions, then the source.
unsafe extern "C" fn module_load_data(to: *mut RawModule, image: *const c_void) -> c_int {
    // SAFETY: the fake compiler's image is a C string.
    let image = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
    let Ok(gpu) = current() else { return INVALID_HANDLE };
    let Some(module) = Module::parse(&image) else { return misuse("the image is no source") };
    let module = match gpu.config.runs_sources {
        true => match module.compiled(&image) {
            Ok(module) => module,
            Err(error) => return misuse(error),
        },
        false => module,
    };
    let mut world = world();
    let handle = world.new_handle();
    world.modules.insert(handle, Arc::new(module));
    // SAFETY: the caller passes a valid pointer, as in all functions below.
    unsafe { *to = handle as RawModule };
    SUCCESS
}

impl Module {
    fn parse(image: &str) -> Option<Self> {
        let (line, text) = image.split_once('\n')?;
        let text = text.strip_prefix(PRELUDE)?;
        let mut words = line.split(' ');
        let source = words.next()?.to_owned();
        let define = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let defines = words.map(define).collect::<Option<Defines>>()?;
        let kernels = declarations::kernels(text, &defines);
        Some(Self { source, defines, kernels, host: None })
    }

    /// With its source compiled for the host.
    fn compiled(self, image: &str) -> Result<Self, String> {
        let text = image.split_once('\n').map_or("", |(_, text)| text);
        let host = simt::compile(text, &self.defines, self.kernels.keys())?;
        Ok(Self { host: Some(host), ..self })
    }
}

unsafe extern "C" fn module_get_function(
    to: *mut RawFunction,
    module: RawModule,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let find = || {
        let gpu = current()?;
        let module = world().modules.get(&(module as usize)).cloned().ok_or(INVALID_HANDLE)?;
        let is_missing = gpu.config.missing_kernels.contains(&name);
        if is_missing || !module.kernels.contains_key(&name) {
            return Err(NOT_FOUND);
        }
        let Some(emulation) = emulation(&module.source, &name) else {
            return Err(misuse(format!("the fake GPU does not know {}: {name}", module.source)));
        };
        // HIP needs no permission for all shared memory of a workgroup.
        let allowed = match gpu.config.vendor {
            Vendor::Nvidia => DEFAULT_SHARED_BYTES,
            Vendor::Amd => gpu.config.max_shared_bytes(),
        };
        let allowed_shared_bytes = AtomicU32::new(allowed);
        let mut world = world();
        let handle = world.new_handle();
        let function = Function { module, name, emulation, allowed_shared_bytes };
        world.functions.insert(handle, Arc::new(function));
        Ok(handle)
    };
    // SAFETY: as above.
    code(find().map(|handle| unsafe { *to = handle as RawFunction }))
}

fn function_of(raw: RawFunction) -> Result<Arc<Function>, c_int> {
    world().functions.get(&(raw as usize)).cloned().ok_or(INVALID_HANDLE)
}

unsafe extern "C" fn func_set_attribute(raw: RawFunction, attribute: c_int, value: c_int) -> c_int {
    code(function_of(raw).and_then(|function| {
        let (bytes, gpu) = (value.unsigned_abs(), current()?);
        if attribute != 8 || bytes > gpu.config.max_shared_bytes() {
            return Err(misuse(format!("{bytes} bytes of shared memory for {}", function.name)));
        }
        function.allowed_shared_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }))
}

#[rustfmt::skip]
unsafe extern "C" fn launch_kernel(
    raw: RawFunction, x: c_uint, y: c_uint, z: c_uint,
    threads_x: c_uint, threads_y: c_uint, threads_z: c_uint,
    shared_bytes: c_uint, stream: Stream, params: *mut *mut c_void, _extra: *mut *mut c_void,
) -> c_int {
    let blocks = [x, y, z];
    let threads = threads_x * threads_y * threads_z;
    let launch = || {
        let (function, gpu) = (function_of(raw)?, gpu_of_stream(stream)?);
        let Function { module, name, .. } = &*function;
        gpu.lock().launched.insert((module.source.clone(), name.clone()));
        let failed = |error: String| misuse(format!("{}: {error}", module.source));
        function.check_grid(blocks, threads, shared_bytes).map_err(failed)?;
        // SAFETY: the device announced the arguments.
        let args = unsafe { read_args(params, &module.kernels[name]) }.map_err(failed)?;
        if gpu.config.failing_launches.contains(name) {
            return Err(LAUNCH_FAILURE);
        }
        let (function, on) = (function.clone(), gpu.clone());
        gpu.submit(move || function.run(&on, blocks, threads, shared_bytes, &args))
    };
    code(launch())
}

impl Function {
    fn run(
        &self,
        gpu: &Arc<FakeGpu>,
        blocks: [u32; 3],
        threads: u32,
        shared_bytes: u32,
        args: &[Arg],
    ) -> Result<(), c_int> {
        gpu.lock().clock_ms += KERNEL_MS;
        // After an error the GPU runs nothing, but the host learns of it later.
        if gpu.lock().queued_error.is_some() {
            return Ok(());
        }
        let fails_now = gpu.lock().failing_kernels.contains(&self.name);
        if fails_now || gpu.config.failing_kernels.contains(&self.name) {
            gpu.queue_error(super::error::ILLEGAL_ADDRESS);
            return Ok(());
        }
        let failed = |error: String| misuse(format!("{}: {error}", self.module.source));
        if let Some(host) = &self.module.host {
            let mut params: Vec<*mut c_void> = args.iter().map(Arg::address).collect();
            let params = params.as_mut_ptr();
            // SAFETY: the arguments are of the declared types; callers pass memory that is large enough.
            return unsafe { host.launch(&self.name, blocks, threads, shared_bytes, params) }
                .map_err(failed);
        }
        let launch = Launch {
            defines: &self.module.defines,
            dtypes: self.emulation.dtypes.clone(),
            width: self.emulation.width,
            blocks: blocks.map(|blocks| blocks as usize),
            threads: threads as usize,
            shared_bytes: shared_bytes as usize,
            args: args.to_vec(),
            gpu: gpu.clone(),
        };
        run(self.emulation.run, &launch).map_err(failed)
    }

    fn check_grid(&self, [x, y, z]: [u32; 3], threads: u32, shared: u32) -> Result<(), String> {
        let allowed = self.allowed_shared_bytes.load(Ordering::Relaxed);
        let is_grid = x > 0 && x <= i32::MAX as u32 && (1..=MAX_BLOCKS).contains(&y.max(z));
        if !is_grid || y.min(z) == 0 || !(1..=MAX_THREADS).contains(&threads) {
            return Err(format!("a grid of {x}, {y}, {z} blocks of {threads} threads"));
        }
        if shared > allowed {
            return Err(format!("{shared} bytes of shared memory, {allowed} are allowed"));
        }
        Ok(())
    }
}

/// Runs a kernel. Its assertions are errors: a panic must not cross the foreign interface.
fn run(emulation: fn(&Launch<'_>), launch: &Launch<'_>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| emulation(launch))).map_err(|panic| panic_text(&*panic))
}

pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned())
}

unsafe extern "C" fn memset_async(
    start: *mut c_void,
    value: c_uint,
    bytes: usize,
    stream: Stream,
) -> c_int {
    let start = start as usize;
    code(gpu_of_stream(stream).and_then(|gpu| {
        let on = gpu.clone();
        gpu.submit(move || {
            super::memory::check_access(&on, start as u64, bytes).map_err(misuse)?;
            // SAFETY: the memory was checked.
            unsafe { (start as *mut u8).write_bytes(value as u8, bytes) };
            Ok(())
        })
    }))
}

unsafe extern "C" fn device_get_attribute(to: *mut c_int, attribute: c_int, index: c_int) -> c_int {
    let Some(gpu) = world().gpus.get(&index).cloned() else { return INVALID_HANDLE };
    let (major, minor) = gpu.config.compute_capability;
    let values = [
        (Attribute::MULTIPROCESSORS, MULTIPROCESSORS),
        (Attribute::COMPUTE_CAPABILITY_MAJOR, major as c_int),
        (Attribute::COMPUTE_CAPABILITY_MINOR, minor as c_int),
        (Attribute::MAX_SHARED_BYTES_PER_BLOCK, gpu.config.max_shared_bytes() as c_int),
        (Attribute::WARP_SIZE, gpu.config.warp_size() as c_int),
    ];
    let known = values.iter().find(|(known, _)| known.code(gpu.config.vendor) == attribute);
    let Some((_, value)) = known else {
        return misuse(format!("unknown attribute {attribute}"));
    };
    // SAFETY: as above.
    unsafe { *to = *value };
    SUCCESS
}

unsafe extern "C" fn runtime_get_version(to: *mut c_int) -> c_int {
    // SAFETY: as above.
    code(current().map(|gpu| unsafe { *to = gpu.config.hip_version }))
}
