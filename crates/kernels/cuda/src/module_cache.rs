//! Compiled kernels: in memory, and as machine code on disk.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use regatta_comm::gpu_runtime::SUCCESS;
use sha2::{Digest, Sha256};

use crate::cache_dir::{cache_dir, hex, replace_file};
use crate::compiler::Compiler;
use crate::driver::{RawFunction, RawModule};
use crate::{CudaDevice, Kernel};

/// What every source begins with.
pub(crate) const PRELUDE: &str = include_str!("../kernels/prelude.cuh");

/// The loaded kernels of a device.
pub struct ModuleCache {
    compiler: Compiler,
    /// The version of the compiler, part of the key of cached code; `None` disables the cache on disk.
    version: Option<String>,
    /// The architecture, such as `sm_90a` or `gfx90a`.
    arch: String,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<ModuleKey, RawModule>,
    functions: HashMap<(ModuleKey, String), RawFunction>,
}

// SAFETY: modules and functions may be used by any thread.
unsafe impl Send for Loaded {}

/// The name of a source and its definitions.
type ModuleKey = (&'static str, Vec<(&'static str, u64)>);

impl ModuleCache {
    /// `hip_version` is that of the HIP runtime: hipRTC returns the same version in all releases.
    pub fn new(compiler: Compiler, hip_version: Option<u32>, arch: String) -> Self {
        let version = compiler.version.map(|(major, minor)| match hip_version {
            Some(hip) => format!("hip-{hip}"),
            None => format!("{major}.{minor}"),
        });
        Self { compiler, version, arch, loaded: Mutex::default() }
    }

    /// A kernel, which is compiled and loaded on its first use.
    pub fn function(&self, device: &CudaDevice, kernel: &Kernel) -> Result<RawFunction, String> {
        let module_key = (kernel.source.name, kernel.defines.clone());
        let key = (module_key, kernel.function.to_string());
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = loaded.functions.get(&key) {
            return Ok(*function);
        }
        let module = match loaded.modules.get(&key.0) {
            Some(module) => *module,
            None => {
                let module = self.load(device, kernel)?;
                loaded.modules.insert(key.0.clone(), module);
                module
            }
        };
        let name = CString::new(&*key.1).map_err(|error| error.to_string())?;
        let mut function = null_mut();
        let get = device.driver.module_get_function;
        // SAFETY: the module is valid; the function writes one pointer.
        match unsafe { get(&mut function, module, name.as_ptr()) } {
            SUCCESS => loaded.functions.insert(key, function),
            code => return Err(device.driver.error_string(code)),
        };
        Ok(function)
    }

    fn load(&self, device: &CudaDevice, kernel: &Kernel) -> Result<RawModule, String> {
        let code = self.code(kernel)?;
        let mut module = null_mut();
        // SAFETY: the image is machine code for this device, from the compiler or its cache.
        match unsafe { (device.driver.module_load_data)(&mut module, code.as_ptr().cast()) } {
            SUCCESS => Ok(module),
            code => Err(device.driver.error_string(code)),
        }
    }

    /// The machine code of a kernel's source, from the disk cache if it is there.
    fn code(&self, kernel: &Kernel) -> Result<Vec<u8>, String> {
        let source = format!("{PRELUDE}\n{}", kernel.source.text);
        let options = self.options(kernel);
        let version = self.version.as_deref();
        let path = version.and_then(|version| cached_path(&source, &options, version));
        if let Some(code) = path.as_ref().and_then(|path| fs::read(path).ok()) {
            return Ok(code);
        }
        let code = self.compiler.compile(kernel.source.name, &source, &options)?;
        if let Some(path) = path {
            // A cache that cannot be written only costs time.
            let _ = replace_file(&path, &code);
        }
        Ok(code)
    }

    fn options(&self, kernel: &Kernel) -> Vec<String> {
        let mut options = self.compiler.options(&self.arch);
        options.extend(kernel.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        options
    }
}

fn cached_path(source: &str, options: &[String], version: &str) -> Option<PathBuf> {
    let mut digest = Sha256::new();
    for part in [source, version].into_iter().chain(options.iter().map(String::as_str)) {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    let name = hex(&digest.finalize()[..16]);
    Some(cache_dir()?.join("kernels").join(format!("{name}.bin")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_comm::gpu_runtime::Vendor;

    /// Every source must compile without headers, for every architecture that it supports.
    #[test]
    fn all_sources_compile() {
        for arch in ["sm_80", "sm_90a"] {
            let compiler = match Compiler::open(Vendor::Nvidia) {
                Ok(compiler) => compiler,
                Err(error) => return eprintln!("skipped: {error}"),
            };
            let cache = ModuleCache::new(compiler, None, arch.to_owned());
            for kernel in crate::sources::representative_kernels(Vendor::Nvidia) {
                let source = format!("{PRELUDE}\n{}", kernel.source.text);
                let options = cache.options(&kernel);
                let code = cache.compiler.compile(kernel.source.name, &source, &options);
                assert!(code.is_ok(), "{} for {arch}: {code:?}", kernel.source.name);
            }
        }
    }
}
