//! Kernel sources on an emulated AMD GPU: the system's C++ compiler compiles them for the host, with
//! `hip_emulation.h` in place of what hipRTC has built in.

use std::collections::HashMap;
use std::ffi::{CStr, OsString, c_char, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::{env, fs, process};

use libloading::Library;

use super::declarations::Defines;

const HEADER: &str = include_str!("hip_emulation.h");

/// What precedes the declaration of dynamic shared memory.
const DYNAMIC_SHARED: &str = "extern __shared__ ";

/// A compiled source.
pub struct HostModule {
    library: Library,
}

/// `emulate_grid` of the header.
type EmulateGrid = unsafe extern "C" fn(
    unsafe extern "C" fn(*mut *mut c_void),
    *const u32,
    u32,
    u32,
    *mut *mut c_void,
) -> *const c_char;

/// Compiled sources of the process, by text and definitions: every check opens a device of its own.
static COMPILED: LazyLock<Mutex<HashMap<String, Compilation>>> = LazyLock::new(Mutex::default);

/// The result of a compilation, for which only threads that need it wait.
type Compilation = Arc<OnceLock<Result<Arc<HostModule>, String>>>;

/// The system's C++ compiler.
pub fn cpp_compiler() -> Option<OsString> {
    static FOUND: OnceLock<Option<OsString>> = OnceLock::new();
    FOUND.get_or_init(find_cpp_compiler).clone()
}

fn find_cpp_compiler() -> Option<OsString> {
    let named = env::var_os("CXX").filter(|name| !name.is_empty());
    let candidates = named.into_iter().chain(["c++", "g++", "clang++"].map(OsString::from));
    candidates.into_iter().find(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    })
}

/// Compiles the kernels of a source.
pub fn compile<'a>(
    source: &str,
    defines: &Defines,
    kernels: impl Iterator<Item = &'a String>,
) -> Result<Arc<HostModule>, String> {
    let defined = defines.iter().map(|(name, value)| format!("#define {name} {value}\n"));
    let exported = kernels.map(|name| format!("EXPORT_KERNEL({name})\n"));
    let declared = source.replace(DYNAMIC_SHARED, "extern ");
    let parts = [HEADER.to_owned(), defined.collect(), declared, shared_memory(source)];
    let text = parts.join("\n") + "\n" + &exported.collect::<String>();
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let compilation = compiled.entry(text.clone()).or_default().clone();
    drop(compiled);
    let module = || build(&text).map(|library| Arc::new(HostModule { library }));
    compilation.get_or_init(module).clone()
}

/// The definition of the dynamic shared memory that a source declares.
fn shared_memory(source: &str) -> String {
    let declared = source.split_once(DYNAMIC_SHARED).and_then(|(_, rest)| rest.split_once("[];"));
    let Some((declaration, _)) = declared else {
        return "emulation::SharedMemory dynamic_shared_memory() { return {nullptr, 0}; }"
            .to_owned();
    };
    let name = declaration.rsplit(' ').next().unwrap_or_default();
    format!("{declaration}[DYNAMIC_SHARED_BYTES];\nEXPORT_SHARED({name})")
}

fn build(text: &str) -> Result<Library, String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let compiler = cpp_compiler().ok_or("no C++ compiler")?;
    let stem = format!("regatta-simt-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let [source, object] = ["cpp", "so"].map(|end| env::temp_dir().join(format!("{stem}.{end}")));
    fs::write(&source, text).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-fno-strict-aliasing"]);
    // Checked jumps reject those between the stacks of lanes. Visible variables in inline functions would be
    // one per process, but their sizes depend on the definitions.
    command.args(["-U_FORTIFY_SOURCE", "-fvisibility=hidden", "-o"]).args([&object, &source]);
    let library = run_compiler(command).and_then(|()| {
        // SAFETY: the library has no initialisers with preconditions.
        unsafe { Library::new(&object) }.map_err(|error| error.to_string())
    });
    remove([source, object]);
    library
}

fn run_compiler(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// A loaded library stays valid without its file.
fn remove(files: [PathBuf; 2]) {
    for file in files {
        let _ = fs::remove_file(file);
    }
}

impl HostModule {
    /// Runs a kernel.
    ///
    /// # Safety
    /// The arguments must be those of the kernel, with memory that is large enough.
    pub unsafe fn launch(
        &self,
        kernel: &str,
        blocks: [u32; 3],
        threads: u32,
        shared_bytes: u32,
        args: *mut *mut c_void,
    ) -> Result<(), String> {
        // SAFETY: the types are those in the header and in `EXPORT_KERNEL`.
        let error = unsafe {
            let call = self
                .library
                .get::<unsafe extern "C" fn(*mut *mut c_void)>(format!("call_{kernel}").as_bytes());
            let emulate = self.library.get::<EmulateGrid>(b"emulate_grid");
            let (call, emulate) = call
                .and_then(|call| Ok((call, emulate?)))
                .map_err(|error| format!("{kernel}: {error}"))?;
            emulate(*call, blocks.as_ptr(), threads, shared_bytes, args)
        };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: errors are static strings.
        let error = unsafe { CStr::from_ptr(error) };
        Err(format!("{kernel}: {}", error.to_string_lossy()))
    }
}
