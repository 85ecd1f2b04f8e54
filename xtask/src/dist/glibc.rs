//! The C library that a binary needs.
//!
//! Packages are linked against the symbols of glibc 2.28, so that a newer one ends the build, but only there: a
//! link with the tools of packages would take CI minutes. CI checks the binary of the tests instead, which is
//! linked against the C library of the machine. The versions of its symbols do not tell when a symbol was
//! introduced: glibc 2.34 gave the functions of libpthread a new version, for example. But a library that gives
//! a symbol a new version still defines the previous one, for existing binaries. Hence a symbol exists in
//! glibc 2.28 if the C library of this machine defines it with a version up to 2.28.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::elf::{self, Symbol};
use crate::steps::output;

/// The newest C library whose symbols the binary may use: that of RHEL 8. Ubuntu 20.04 and SLES 15 SP3 have newer
/// ones.
pub const GLIBC: [u32; 2] = [2, 28];

/// Functions that glibc 2.28 has in the part that is linked statically; dynamic symbols since 2.33.
const STATIC_UNTIL_2_33: [&str; 10] = [
    "stat",
    "stat64",
    "fstat",
    "fstat64",
    "lstat",
    "lstat64",
    "fstatat",
    "fstatat64",
    "mknod",
    "mknodat",
];

/// # Errors
/// If a package's binary needs a newer C library than [`GLIBC`].
pub fn check_package(binary: &Path) -> Result<()> {
    let versions = elf::needed_versions(&read(binary)?);
    let versions = versions.with_context(|| binary.display().to_string())?;
    let newer = newer_versions(&versions);
    let [major, minor] = GLIBC;
    let (binary, newer) = (binary.display(), newer.join(", "));
    ensure!(newer.is_empty(), "{binary} needs {newer}, but only glibc {major}.{minor} is allowed");
    Ok(())
}

/// # Errors
/// If a binary that is linked for this machine refers to a symbol that [`GLIBC`] does not have.
pub fn check_symbols(binary: &Path) -> Result<()> {
    let symbols = elf::symbols(&read(binary)?).with_context(|| binary.display().to_string())?;
    let mut definitions = Vec::new();
    for library in libraries(binary)? {
        let defined = elf::symbols(&read(&library)?);
        definitions.extend(defined.with_context(|| library.display().to_string())?);
    }
    let missing = missing_symbols(&symbols, &definitions);
    let [major, minor] = GLIBC;
    ensure!(
        missing.is_empty(),
        "{} needs symbols that glibc {major}.{minor} does not have: {}; call the system call, or look the \
         symbol up at run time",
        binary.display(),
        missing.join(", ")
    );
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}

/// The libraries of this machine that a binary is loaded with.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let paths = library_paths(&output(Command::new("ldd").arg(binary))?);
    ensure!(!paths.is_empty(), "ldd {} lists no library", binary.display());
    Ok(paths)
}

/// The paths in the output of ldd; the kernel's `linux-vdso.so.1` has none.
fn library_paths(ldd: &str) -> Vec<PathBuf> {
    let words = ldd.lines().filter_map(|line| line.split_whitespace().find(|w| w.starts_with('/')));
    words.map(PathBuf::from).collect()
}

/// The versions of glibc that [`GLIBC`] does not have: newer ones, and those without a number, such as
/// `GLIBC_ABI_DT_RELR` of glibc 2.36.
fn newer_versions(versions: &[String]) -> Vec<&str> {
    let of_glibc = versions.iter().filter(|version| version.starts_with("GLIBC_"));
    let is_newer = |version: &str| glibc(version).is_none_or(|number| number > GLIBC);
    let newer: BTreeSet<&str> = of_glibc.map(String::as_str).filter(|v| is_newer(v)).collect();
    newer.into_iter().collect()
}

/// The symbols of glibc that a binary needs, and that no library defines with a version up to [`GLIBC`].
fn missing_symbols(binary: &[Symbol], libraries: &[Symbol]) -> Vec<String> {
    let number = |symbol: &Symbol| glibc(symbol.version.as_deref()?);
    let is_old = |symbol: &&Symbol| number(symbol).is_some_and(|number| number <= GLIBC);
    let defined = libraries.iter().filter(|symbol| symbol.is_defined).filter(is_old);
    let mut available: BTreeSet<&str> = defined.map(|symbol| symbol.name.as_str()).collect();
    available.extend(STATIC_UNTIL_2_33);
    let needed = binary.iter().filter(|symbol| !symbol.is_defined && !symbol.is_weak);
    let of_glibc = needed.filter(|symbol| number(symbol).is_some());
    let missing = of_glibc.filter(|symbol| !available.contains(symbol.name.as_str()));
    missing
        .map(|symbol| format!("{} ({})", symbol.name, symbol.version.as_deref().unwrap_or("?")))
        .collect()
}

/// Major and minor of `GLIBC_2.28` or `GLIBC_2.2.5`.
fn glibc(version: &str) -> Option<[u32; 2]> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.').map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn symbol(name: &str, version: &str, is_defined: bool, is_weak: bool) -> Symbol {
        let version = Some(version.to_owned()).filter(|version| !version.is_empty());
        Symbol { name: name.to_owned(), version, is_defined, is_weak }
    }

    fn needs(name: &str, version: &str) -> Symbol {
        symbol(name, version, false, false)
    }

    fn defines(name: &str, version: &str) -> Symbol {
        symbol(name, version, true, false)
    }

    #[test]
    fn only_symbols_without_an_earlier_version_are_missing() {
        let libc = [
            defines("pthread_create", "GLIBC_2.2.5"),
            defines("pthread_create", "GLIBC_2.34"),
            defines("gettid", "GLIBC_2.30"),
            defines("statx", "GLIBC_2.28"),
            defines("fstat", "GLIBC_2.33"),
            defines("_Unwind_Resume", "GCC_3.0"),
        ];
        let binary = [
            needs("pthread_create", "GLIBC_2.34"),
            needs("statx", "GLIBC_2.28"),
            needs("fstat", "GLIBC_2.33"),
            needs("_Unwind_Resume", "GCC_3.0"),
            symbol("gettid", "GLIBC_2.30", false, true),
            symbol("__gmon_start__", "", false, true),
            defines("own", ""),
        ];
        assert!(missing_symbols(&binary, &libc).is_empty());
        let binary = [needs("gettid", "GLIBC_2.30"), needs("exit", "GLIBC_2.2.5")];
        assert_eq!(missing_symbols(&binary, &libc), ["gettid (GLIBC_2.30)", "exit (GLIBC_2.2.5)"]);
    }

    #[test]
    fn versions_up_to_the_limit_are_allowed() {
        let versions =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(newer_versions(&versions(&["GLIBC_2.28", "GLIBC_2.2.5", "GCC_4.2.0"])).is_empty());
        let names =
            versions(&["GLIBC_2.29", "GLIBC_2.9", "GLIBC_2.29", "GLIBC_ABI_DT_RELR", "GLIBC_3.0"]);
        assert_eq!(newer_versions(&names), ["GLIBC_2.29", "GLIBC_3.0", "GLIBC_ABI_DT_RELR"]);
    }

    #[test]
    fn libraries_are_the_paths_of_ldd() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                   \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibx.so => not found\n";
        let paths = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(library_paths(ldd), paths.map(PathBuf::from));
        assert!(library_paths("\tnot a dynamic executable\n").is_empty());
    }

    #[test]
    fn symbols_of_this_program_are_found_in_the_libraries_of_this_machine() {
        let own = std::env::current_exe().unwrap();
        let libraries = libraries(&own).unwrap();
        let definitions: Vec<Symbol> =
            libraries.iter().flat_map(|path| elf::symbols(&read(path).unwrap()).unwrap()).collect();
        let is_old = |symbol: &Symbol| {
            symbol.name == "pthread_create"
                && glibc(symbol.version.as_deref().unwrap()).unwrap() <= GLIBC
        };
        assert!(definitions.iter().any(|symbol| symbol.is_defined && is_old(symbol)));
        let newer = definitions.iter().filter(|symbol| symbol.is_defined);
        let newer =
            newer.filter(|s| s.version.as_deref().and_then(glibc).is_some_and(|v| v > GLIBC));
        // Where the C library is newer than the limit, needing all that it defines is noticed.
        let needed: Vec<Symbol> = newer
            .map(|symbol| Symbol { is_defined: false, is_weak: false, ..symbol.clone() })
            .collect();
        assert_eq!(missing_symbols(&needed, &definitions).is_empty(), needed.is_empty());
    }

    /// Links a program with the linker that Rust uses.
    fn link(name: &str, source: &str) -> PathBuf {
        let program = std::env::temp_dir().join(format!("regatta-{name}-{}", std::process::id()));
        let source_file = program.with_extension("c");
        std::fs::write(&source_file, source).unwrap();
        let linked = Command::new("cc").arg(&source_file).arg("-o").arg(&program).status();
        std::fs::remove_file(source_file).unwrap();
        assert!(linked.unwrap().success());
        program
    }

    #[test]
    fn a_program_that_calls_a_newer_function_is_refused() {
        let main = |attribute: &str| {
            format!(
                "{attribute} int gettid(void);\nint main(void) {{ return gettid ? gettid() : 0; }}\n"
            )
        };
        let programs = [link("strong", &main("")), link("weak", &main("__attribute__((weak))"))];
        let [strong, weak] = programs.each_ref().map(|program| check_symbols(program));
        programs.iter().for_each(|program| std::fs::remove_file(program).unwrap());
        let error = strong.unwrap_err().to_string();
        assert!(error.contains("does not have: gettid (GLIBC_2.30);"), "{error}");
        weak.unwrap();
    }

    proptest! {
        #[test]
        fn a_version_is_its_number(major in 0..9_u32, minor in 0..99_u32, patch in prop::option::of(0..9_u32)) {
            let patch = patch.map(|patch| format!(".{patch}")).unwrap_or_default();
            prop_assert_eq!(glibc(&format!("GLIBC_{major}.{minor}{patch}")), Some([major, minor]));
        }

        #[test]
        fn any_text_is_a_version_or_not(text in "\\PC*") {
            let _ = glibc(&text);
            let _ = glibc(&format!("GLIBC_{text}"));
            let _ = library_paths(&text);
        }
    }
}
