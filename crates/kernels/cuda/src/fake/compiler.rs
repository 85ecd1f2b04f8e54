//! A run-time compiler whose machine code is the source: a line with its name and its definitions, then its
//! text.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use regatta_comm::gpu_runtime::{SUCCESS, Vendor};

use super::gpu::current;
use crate::compiler::Compiler;

/// `NVRTC_ERROR_COMPILATION` and `HIPRTC_ERROR_COMPILATION`.
const COMPILATION_FAILED: c_int = 6;

struct Program {
    name: String,
    source: String,
    code: CString,
    log: CString,
}

pub fn compiler(vendor: Vendor) -> Compiler {
    Compiler {
        vendor,
        version: None,
        create_program,
        compile_program,
        get_code_size,
        get_code,
        get_log_size,
        get_log,
        destroy_program,
        get_error_string,
        library: None.into(),
    }
}

/// # Safety
/// `text` must be a C string.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: as required of the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

unsafe extern "C" fn create_program(
    to: *mut *mut c_void,
    source: *const c_char,
    name: *const c_char,
    _: c_int,
    _: *const *const c_char,
    _: *const *const c_char,
) -> c_int {
    // SAFETY: the caller passes C strings and a valid pointer.
    unsafe {
        let (name, source) = (text(name), text(source));
        let (code, log) = (CString::default(), CString::default());
        *to = Box::into_raw(Box::new(Program { name, source, code, log })).cast();
    }
    SUCCESS
}

unsafe extern "C" fn compile_program(
    program: *mut c_void,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    // SAFETY: created above; the caller passes `count` C strings.
    let (program, options): (&mut Program, Vec<String>) = unsafe {
        let options = (0..count as usize).map(|at| text(*options.add(at))).collect();
        (&mut *program.cast(), options)
    };
    let Ok(gpu) = current() else { return COMPILATION_FAILED };
    let architecture = format!("--gpu-architecture={}", gpu.config.arch);
    let is_failing = gpu.config.failing_sources.contains(&program.name);
    if is_failing || !options.contains(&architecture) {
        let log = format!("{}(1): error: compiled with {options:?}", program.name);
        program.log = CString::new(log).unwrap_or_default();
        return COMPILATION_FAILED;
    }
    let defines = options.iter().filter_map(|option| option.strip_prefix("-D"));
    let defines: String = defines.map(|define| format!(" {define}")).collect();
    let code = format!("{}{defines}\n{}", program.name, program.source);
    program.code = CString::new(code).unwrap_or_default();
    SUCCESS
}

/// # Safety
/// `program` must be valid.
unsafe fn with<R>(program: *mut c_void, read: impl FnOnce(&Program) -> R) -> R {
    // SAFETY: as required of the caller.
    read(unsafe { &*program.cast::<Program>() })
}

/// # Safety
/// `to` must have as many bytes as the text, with its terminating 0.
unsafe fn write(text: &CStr, to: *mut c_char) -> c_int {
    let bytes = text.to_bytes_with_nul();
    // SAFETY: as required of the caller.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len()) };
    SUCCESS
}

unsafe extern "C" fn get_code_size(program: *mut c_void, bytes: *mut usize) -> c_int {
    // SAFETY: the caller passes a valid program and a valid pointer, as in all functions below.
    unsafe { *bytes = with(program, |program| program.code.count_bytes() + 1) };
    SUCCESS
}

unsafe extern "C" fn get_code(program: *mut c_void, to: *mut c_char) -> c_int {
    // SAFETY: as above.
    unsafe { with(program, |program| write(&program.code, to)) }
}

unsafe extern "C" fn get_log_size(program: *mut c_void, bytes: *mut usize) -> c_int {
    // SAFETY: as above.
    unsafe { *bytes = with(program, |program| program.log.count_bytes() + 1) };
    SUCCESS
}

unsafe extern "C" fn get_log(program: *mut c_void, to: *mut c_char) -> c_int {
    // SAFETY: as above.
    unsafe { with(program, |program| write(&program.log, to)) }
}

unsafe extern "C" fn destroy_program(program: *mut *mut c_void) -> c_int {
    // SAFETY: created above, and not used afterwards.
    unsafe { drop(Box::from_raw((*program).cast::<Program>())) };
    SUCCESS
}

unsafe extern "C" fn get_error_string(code: c_int) -> *const c_char {
    match code {
        COMPILATION_FAILED => c"compilation failed".as_ptr(),
        _ => c"unknown error".as_ptr(),
    }
}
