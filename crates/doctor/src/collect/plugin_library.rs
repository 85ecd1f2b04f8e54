//! The facts of a plug-in's library: from its file, and from loading it.

use std::ffi::{CString, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use regatta_discover::loader::{Loader, elf};

use crate::plugin::kind::{interfaces, other_interfaces};
use crate::plugin::report::{LibraryFacts, LoadResult};

/// Longest name of a table, as a bound for tables that are none.
const MAX_NAME_LEN: usize = 128;

/// What a library's file says. It is to be loaded if the result is `NotTried` with an empty reason.
pub fn read_plugin(loader: &Loader, path: &str, file: &[u8], host: u16) -> LibraryFacts {
    let unusable = |reason: String| LibraryFacts::unusable(path.to_owned(), reason);
    let (machine, symbols, dynamic) =
        match (elf::machine(file), elf::exported_symbols(file), elf::dynamic(file)) {
            (Ok(machine), Ok(symbols), Ok(dynamic)) => (machine, symbols, dynamic),
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
                return unusable(error.to_string());
            }
        };
    let (architecture, here) = (elf::machine_name(machine), elf::machine_name(host));
    let reason = match machine == host {
        true => String::new(),
        false => format!("a library for {architecture}, but this machine is {here}"),
    };
    LibraryFacts {
        architecture: Some(architecture),
        soname: dynamic.soname.map(str::to_owned),
        glibc: dynamic.glibc.map(|(major, minor)| format!("{major}.{minor}")),
        interfaces: interfaces(&symbols),
        other_interfaces: other_interfaces(&symbols),
        dependencies: if machine == host { loader.dependencies(path, file) } else { Vec::new() },
        ..unusable(reason)
    }
}

/// The first field of the table of each requested symbol of a loaded library: its name in NCCL's log.
pub type TableNames = Vec<Option<String>>;

/// Adds what loading a library has shown.
pub fn add_loaded(facts: &mut LibraryFacts, symbols: &[String], names: &TableNames) {
    facts.load = LoadResult::Loaded;
    for interface in &mut facts.interfaces {
        let name = |version: &u32| {
            let symbol = interface.kind.symbol(*version);
            let at = symbols.iter().position(|requested| *requested == symbol)?;
            names.get(at)?.clone()
        };
        interface.name = interface.versions.iter().rev().find_map(name);
    }
}

/// The symbols whose tables have a name.
pub fn table_symbols(facts: &LibraryFacts) -> Vec<String> {
    let symbols = facts.interfaces.iter().flat_map(|interface| {
        interface.versions.iter().map(|version| interface.kind.symbol(*version))
    });
    symbols.collect()
}

/// Loads a library as NCCL does and returns the loader's error. Runs the library's initialisers, which
/// may start threads or change signal handlers: call it in a process of its own. The library stays
/// loaded, because finalisers of a plug-in that was never used need not be sound.
pub fn load_library(path: &Path) -> Result<&'static Library, String> {
    // SAFETY: initialisers run in a process that does nothing else.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    library.map(|library| &*Box::leak(Box::new(library))).map_err(|error| error.to_string())
}

/// The names in the tables of these symbols. No function of the library is called.
pub fn table_names(library: &Library, symbols: &[String]) -> TableNames {
    let probe = std::io::pipe().ok().map(|(read, write)| (read.into(), write.into()));
    let name = |symbol: &String| table_name(library, symbol, probe.as_ref()?);
    symbols.iter().map(name).collect()
}

fn table_name(library: &Library, symbol: &str, probe: &(OwnedFd, OwnedFd)) -> Option<String> {
    let symbol = CString::new(symbol).ok()?;
    // SAFETY: the address is not dereferenced by the type of the symbol.
    let table = unsafe { library.get::<*mut c_void>(symbol.as_bytes_with_nul()) }.ok()?;
    let table = table.as_raw_ptr().cast_const().cast::<u8>();
    let address: [u8; size_of::<usize>()] = read_memory(table, probe)?;
    let name = std::ptr::with_exposed_provenance::<u8>(usize::from_ne_bytes(address));
    let mut text = Vec::new();
    while text.len() < MAX_NAME_LEN {
        match read_memory::<1>(name.wrapping_add(text.len()), probe)? {
            [0] => break,
            [byte] => text.push(byte),
        }
    }
    String::from_utf8(text).ok().filter(|text| !text.is_empty())
}

/// Reads memory that may be invalid, because a symbol need not be a table: the kernel copies it through
/// a pipe and reports an invalid address as an error.
fn read_memory<const N: usize>(address: *const u8, probe: &(OwnedFd, OwnedFd)) -> Option<[u8; N]> {
    let (read, write) = probe;
    let mut bytes = [0u8; N];
    // SAFETY: the kernel checks the address.
    let written = unsafe { libc::write(write.as_raw_fd(), address.cast(), N) };
    let len = usize::try_from(written).ok().filter(|len| *len > 0)?;
    // SAFETY: the buffer has as many bytes as the pipe.
    let taken = unsafe { libc::read(read.as_raw_fd(), bytes.as_mut_ptr().cast(), len) };
    (usize::try_from(taken) == Ok(N)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use regatta_discover::loader::host_machine;
    use regatta_discover::{Env, Sysroot};

    use super::super::libraries::library_with;
    use super::*;
    use crate::plugin::PluginKind;

    fn loader() -> Loader {
        Loader::new(&Sysroot::live(), &Env::default(), 62)
    }

    #[test]
    fn kinds_architecture_and_dependencies_come_from_the_file() {
        let symbols =
            [("ncclNetPlugin_v8", true), ("ncclProfiler_v4", true), ("ncclGinPlugin_v11", true)];
        let file = library_with(&symbols, &[(1, "libgone.so.1"), (14, "libp.so")]);
        let facts = read_plugin(&loader(), "/opt/libp.so", &file, 62);
        let kinds: Vec<PluginKind> = facts.interfaces.iter().map(|i| i.kind).collect();
        assert_eq!(kinds, [PluginKind::Net, PluginKind::Profiler]);
        assert_eq!(facts.other_interfaces, ["gin v11"]);
        assert_eq!(
            (facts.soname.as_deref(), facts.architecture.as_deref()),
            (Some("libp.so"), Some("x86_64"))
        );
        assert_eq!(facts.missing().next().unwrap().name, "libgone.so.1");
        assert_eq!(facts.load, LoadResult::NotTried(String::new()));
        assert_eq!(table_symbols(&facts), ["ncclNetPlugin_v8", "ncclProfiler_v4"]);
    }

    #[test]
    fn other_files_are_not_loaded() {
        let reason = |file: &[u8], host: u16| {
            let facts = read_plugin(&loader(), "/opt/libp.so", file, host);
            facts.load.reason().unwrap().to_owned()
        };
        assert_eq!(reason(b"INPUT(libp.so)", 62), "not an ELF file");
        assert_eq!(reason(b"\x7fELF\x01\x01", 62), "not a 64-bit little-endian ELF file");
        let file = library_with(&[("a", true)], &[]);
        assert_eq!(reason(&file, 183), "a library for x86_64, but this machine is aarch64");
    }

    #[test]
    fn names_are_of_the_newest_table_with_a_name() {
        let file = library_with(&[("ncclNetPlugin_v8", true), ("ncclNetPlugin_v9", true)], &[]);
        let mut facts = read_plugin(&loader(), "/opt/libp.so", &file, 62);
        let symbols = table_symbols(&facts);
        let names = vec![Some("eight".to_owned()), None];
        add_loaded(&mut facts, &symbols, &names);
        assert_eq!(facts.interfaces[0].name.as_deref(), Some("eight"));
        assert_eq!(facts.load, LoadResult::Loaded);
    }

    #[test]
    fn the_loaders_error_names_the_file() {
        let error = load_library(Path::new("/nonexistent/libnccl-net.so")).unwrap_err();
        assert!(error.contains("/nonexistent/libnccl-net.so"), "{error}");
    }

    #[test]
    fn tables_are_read_without_a_crash() {
        // The C library's data and functions are no tables, but nothing is called.
        let library = Library::this();
        let symbols = ["environ", "malloc", "no_such_symbol"].map(str::to_owned);
        let names = table_names(&library, &symbols);
        assert_eq!((names.len(), names[2].as_deref()), (3, None));
        let probe = std::io::pipe().map(|(read, write)| (read.into(), write.into())).unwrap();
        assert_eq!(read_memory::<8>(std::ptr::null(), &probe), None);
        assert_eq!(read_memory::<3>(b"abc".as_ptr(), &probe), Some(*b"abc"));
        assert_ne!(host_machine(), 0);
    }
}
