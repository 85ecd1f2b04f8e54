//! Embeds the shared library of a dependency into a program.
//!
//! Of a dependency with the crate types `cdylib` and `rlib`, cargo builds both before it compiles the
//! program. `include_bytes!` could not name the shared library: its folder is cargo's, and its name has a
//! hash unless the dependency is in the same workspace. It is beside the `rlib` that cargo gives to the
//! compiler, so that one `cargo build`, `cargo install` or distribution build makes the whole program.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use proc_macro::{Literal, TokenStream, TokenTree};

/// Compression level: about half of the size in half a second.
const LEVEL: u8 = 8;

/// Expands to the bytes of the shared library of the dependency with this library name, compressed by
/// deflate. They are empty where nothing is linked, as in `cargo check`.
#[proc_macro]
pub fn cdylib(name: TokenStream) -> TokenStream {
    let name = name.to_string();
    let bytes = match read_cdylib(name.trim_matches('"'), std::env::args_os()) {
        Ok(bytes) => bytes,
        Err(error) => return compile_error(&error),
    };
    TokenTree::from(Literal::byte_string(&bytes)).into()
}

fn compile_error(message: &str) -> TokenStream {
    format!("compile_error!({message:?})").parse().unwrap_or_default()
}

/// The compressed shared library of a dependency, by the arguments of the compiler.
fn read_cdylib(name: &str, args: impl Iterator<Item = OsString>) -> Result<Vec<u8>, String> {
    let Some(rlib) = rlib(name, args) else { return Ok(Vec::new()) };
    let path = rlib.with_extension("so");
    let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(miniz_oxide::deflate::compress_to_vec(&bytes, LEVEL))
}

/// The value of `--extern NAME=PATH`, if it is compiled code and not only metadata.
fn rlib(name: &str, args: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let prefix = format!("{name}=");
    let path = |arg: OsString| Some(PathBuf::from(arg.to_str()?.strip_prefix(&prefix)?));
    args.filter_map(path).find(|path| Path::extension(path) == Some(OsStr::new("rlib")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(path: &str) -> impl Iterator<Item = OsString> {
        ["rustc", "--extern", "other=/deps/libother.rlib", "--extern", path]
            .map(OsString::from)
            .into_iter()
    }

    #[test]
    fn the_library_beside_the_rlib_of_a_dependency_is_compressed() {
        let folder = std::env::temp_dir().join(format!("regatta-embed-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libplugin-1a2b.so"), b"library").unwrap();
        let rlib = format!("plugin={}/libplugin-1a2b.rlib", folder.display());
        let compressed = read_cdylib("plugin", args(&rlib)).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(miniz_oxide::inflate::decompress_to_vec(&compressed).unwrap(), b"library");
    }

    #[test]
    fn a_check_without_a_build_embeds_nothing() {
        assert_eq!(read_cdylib("plugin", args("plugin=/deps/libplugin.rmeta")), Ok(Vec::new()));
        assert_eq!(read_cdylib("missing", args("plugin=/deps/libplugin.rlib")), Ok(Vec::new()));
    }

    #[test]
    fn a_missing_library_is_named() {
        let error = read_cdylib("plugin", args("plugin=/none/libplugin.rlib")).unwrap_err();
        assert!(error.starts_with("/none/libplugin.so: "), "{error}");
    }
}
