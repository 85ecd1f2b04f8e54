//! The run-time compiler: NVRTC, or hipRTC with the same interface.

use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use libloading::Library;
use regatta_comm::gpu_runtime::{LibraryError, SUCCESS, Vendor, error_text, symbol};

use crate::library_path;

pub type Program = *mut std::ffi::c_void;

/// Functions of the compiler, named after `nvrtc…` and `hiprtc…`.
pub struct Compiler {
    pub vendor: Vendor,
    /// `None` for a fake, whose code is not cached.
    pub version: Option<(i32, i32)>,
    pub create_program: CreateProgram,
    pub compile_program: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    pub get_code_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    pub get_code: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    pub get_log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    pub get_log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    pub destroy_program: unsafe extern "C" fn(*mut Program) -> c_int,
    pub get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// One compilation at a time: hipRTC is not thread-safe in all versions. A fake has no library.
    pub library: Mutex<Option<Library>>,
}

#[rustfmt::skip]
pub type CreateProgram = unsafe extern "C" fn(
    *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
) -> c_int;

impl Compiler {
    /// Loads the compiler of a vendor.
    pub fn open(vendor: Vendor) -> Result<Self, LibraryError> {
        let (library, prefix, code, hint) = match vendor {
            Vendor::Nvidia => {
                let names = ["libnvrtc.so.13", "libnvrtc.so.12"];
                let library = library_path::open("REGATTA_NVRTC", &names)?;
                (library, "nvrtc", "CUBIN", "use CUDA 12 or newer")
            }
            Vendor::Amd => {
                let names = ["libhiprtc.so.7", "libhiprtc.so.6"];
                let library = library_path::open("REGATTA_HIPRTC", &names)?;
                (library, "hiprtc", "Code", "use ROCm 6.1 or newer")
            }
        };
        let named = |name: &str| format!("{prefix}{name}");
        type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        let get_version: Version = symbol(&library, &named("Version"), hint)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function writes two integers.
        unsafe { get_version(&mut major, &mut minor) };
        Ok(Self {
            vendor,
            version: Some((major, minor)),
            create_program: symbol(&library, &named("CreateProgram"), hint)?,
            compile_program: symbol(&library, &named("CompileProgram"), hint)?,
            get_code_size: symbol(&library, &named(&format!("Get{code}Size")), hint)?,
            get_code: symbol(&library, &named(&format!("Get{code}")), hint)?,
            get_log_size: symbol(&library, &named("GetProgramLogSize"), hint)?,
            get_log: symbol(&library, &named("GetProgramLog"), hint)?,
            destroy_program: symbol(&library, &named("DestroyProgram"), hint)?,
            get_error_string: symbol(&library, &named("GetErrorString"), hint)?,
            library: Mutex::new(Some(library)),
        })
    }

    /// The options that select an architecture and a language version.
    pub fn options(&self, arch: &str) -> Vec<String> {
        let mut options = vec![format!("--gpu-architecture={arch}"), "--std=c++17".to_owned()];
        if self.vendor == Vendor::Amd {
            // Atomic additions by the memory's own instruction instead of a loop: tensors are in
            // coarse-grained memory of the device, which supports it.
            options.push("-munsafe-fp-atomics".to_owned());
        }
        options
    }

    /// Compiles a source to machine code.
    pub fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<Vec<u8>, String> {
        let _one_at_a_time = self.library.lock();
        let to_c = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let (name, source) = (to_c(name)?, to_c(source)?);
        let options = options.iter().map(|option| to_c(option)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = ProgramGuard { raw: null_mut(), compiler: self };
        // SAFETY: both strings live until the function returns; there are no headers.
        let code = unsafe {
            let create = self.create_program;
            create(&mut program.raw, source.as_ptr(), name.as_ptr(), 0, null(), null())
        };
        self.check(code)?;
        let count = options.len() as c_int;
        // SAFETY: the program is valid, and the options live until the function returns.
        let code = unsafe { (self.compile_program)(program.raw, count, options.as_ptr()) };
        if code != SUCCESS {
            return Err(format!("{}: {}", self.error_string(code), program.log()));
        }
        let read = (self.get_code_size, self.get_code);
        // SAFETY: the program is compiled.
        unsafe { program.read(read) }.ok_or_else(|| "the compiler returned no code".to_owned())
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == SUCCESS { Ok(()) } else { Err(self.error_string(code)) }
    }

    fn error_string(&self, code: c_int) -> String {
        // SAFETY: the function accepts any code and returns a static string.
        unsafe { error_text((self.get_error_string)(code), code) }
    }
}

struct ProgramGuard<'a> {
    raw: Program,
    compiler: &'a Compiler,
}

type SizeAndRead = (
    unsafe extern "C" fn(Program, *mut usize) -> c_int,
    unsafe extern "C" fn(Program, *mut c_char) -> c_int,
);

impl ProgramGuard<'_> {
    /// Reads a result of the program; `None` if it has none.
    ///
    /// # Safety
    /// The second function must write as many bytes as the first returns.
    unsafe fn read(&self, (size, read): SizeAndRead) -> Option<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program is valid; the function writes one integer.
        if unsafe { size(self.raw, &mut bytes) } != SUCCESS {
            return None;
        }
        let mut to = vec![0u8; bytes];
        // SAFETY: the buffer has the size that the compiler asked for.
        (unsafe { read(self.raw, to.as_mut_ptr().cast()) } == SUCCESS).then_some(to)
    }

    /// The messages of the compiler.
    fn log(&self) -> String {
        // SAFETY: the functions return the log and its size.
        let log = unsafe { self.read((self.compiler.get_log_size, self.compiler.get_log)) };
        let log = String::from_utf8_lossy(&log.unwrap_or_default()).into_owned();
        log.trim_end_matches('\0').trim().to_owned()
    }
}

impl Drop for ProgramGuard<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the program is valid and not used afterwards.
            unsafe { (self.compiler.destroy_program)(&mut self.raw) };
        }
    }
}
