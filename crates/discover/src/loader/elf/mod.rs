//! Symbols and dependencies of a shared library, from its file: loading it would run its code.

mod dynamic;
#[cfg(test)]
pub(super) mod testing;

pub use dynamic::Dynamic;

use object::LittleEndian;
use object::elf::{ELFMAG, FileHeader64, SHT_DYNSYM};
use object::read::StringTable;
use object::read::elf::{FileHeader, SectionTable, Sym};

/// Why the symbols of a file cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// Another file type.
    #[error("not an ELF file")]
    NotElf,
    /// A 32-bit or big-endian library.
    #[error("not a 64-bit little-endian ELF file")]
    OtherClass,
    /// A table lies outside of the file.
    #[error("truncated or damaged ELF file")]
    Damaged,
    /// Without dynamic symbols.
    #[error("the ELF file has no dynamic symbol table")]
    NoSymbols,
}

impl From<object::read::Error> for ElfError {
    fn from(_: object::read::Error) -> Self {
        Self::Damaged
    }
}

type Header = FileHeader64<LittleEndian>;

/// The names of all symbols that a 64-bit shared library defines and exports. Names that are not
/// UTF-8 are left out.
pub fn exported_symbols(file: &[u8]) -> Result<Vec<&str>, ElfError> {
    let symbols = sections(file)?.symbols(LittleEndian, file, SHT_DYNSYM)?;
    if symbols.is_empty() {
        return Err(ElfError::NoSymbols);
    }
    let defined = symbols.iter().filter(|symbol| !symbol.is_undefined(LittleEndian));
    let name = |symbol: &<Header as FileHeader>::Sym| {
        text(symbol.name(LittleEndian, symbols.strings()).ok()?)
    };
    Ok(defined.filter_map(name).collect())
}

/// The processor architecture of a 64-bit library, `EM_*`.
pub fn machine(file: &[u8]) -> Result<u16, ElfError> {
    Ok(header(file)?.e_machine(LittleEndian).0)
}

/// The name of an architecture as in `uname -m`.
pub fn machine_name(machine: u16) -> String {
    match machine {
        21 => "ppc64le".to_owned(),
        62 => "x86_64".to_owned(),
        183 => "aarch64".to_owned(),
        243 => "riscv64".to_owned(),
        other => format!("ELF machine {other}"),
    }
}

/// What a library needs from the dynamic loader.
pub fn dynamic(file: &[u8]) -> Result<Dynamic<'_>, ElfError> {
    dynamic::read(&sections(file)?, file)
}

fn header(file: &[u8]) -> Result<&Header, ElfError> {
    match file.get(4..6) {
        _ if !file.starts_with(&ELFMAG) => Err(ElfError::NotElf),
        Some([2, 1]) => Ok(Header::parse(file)?),
        _ => Err(ElfError::OtherClass),
    }
}

/// The sections, whose names are not needed.
fn sections(file: &[u8]) -> Result<SectionTable<'_, Header>, ElfError> {
    let headers = header(file)?.section_headers(LittleEndian, file)?;
    Ok(SectionTable::new(headers, StringTable::default()))
}

/// A string of a string table; `None` if it is empty or not UTF-8.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::testing::{library, library_with};
    use super::*;

    #[test]
    fn defined_symbols_are_listed() {
        let file = library(&[("ncclNetPlugin_v8", true), ("fi_getinfo", false), ("b", true)]);
        assert_eq!(exported_symbols(&file).unwrap(), ["ncclNetPlugin_v8", "b"]);
    }

    #[test]
    fn other_files_are_errors() {
        assert_eq!(exported_symbols(b"#!/bin/sh\n"), Err(ElfError::NotElf));
        assert_eq!(exported_symbols(b""), Err(ElfError::NotElf));
        assert_eq!(exported_symbols(b"\x7fELF\x01\x01"), Err(ElfError::OtherClass));
        let file = library(&[("a", true)]);
        // The last section header is that of the dynamic section.
        assert_eq!(dynamic(&file[..file.len() - 1]), Err(ElfError::Damaged));
        assert_eq!(exported_symbols(&file[..file.len() - 65]), Err(ElfError::Damaged));
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
            cut in any::<prop::sample::Index>(),
        ) {
            let symbols = [("ncclNetPlugin_v8", true), ("ncclNetPlugin_v9", true)];
            let mut file = library_with(&symbols, &[(1, "libc.so.6"), (29, "$ORIGIN/lib")]);
            for (index, value) in changes {
                let at = index.index(file.len());
                file[at] = value;
            }
            file.truncate(cut.index(file.len() + 1));
            let _ = exported_symbols(&file);
            let _ = dynamic(&file);
            let _ = machine(&file);
        }
    }
}
