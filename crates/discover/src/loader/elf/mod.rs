//! Symbols and dependencies of a shared library, from its file: loading it would run its code.

mod dynamic;
#[cfg(test)]
pub(super) mod testing;

pub use dynamic::Dynamic;

use super::string_at;

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

/// Type of the section with dynamic symbols.
const SHT_DYNSYM: u32 = 11;
const SECTION_HEADER_LEN: u64 = 64;
const SYMBOL_LEN: u64 = 24;

/// The names of all symbols that a 64-bit shared library defines and exports. Names that are not
/// UTF-8 are left out.
pub fn exported_symbols(file: &[u8]) -> Result<Vec<&str>, ElfError> {
    let elf = Elf::new(file)?;
    let (section, strings) = elf.find_section(SHT_DYNSYM)?.ok_or(ElfError::NoSymbols)?;
    elf.names(&section, strings)
}

/// The processor architecture of a 64-bit library, `EM_*`.
pub fn machine(file: &[u8]) -> Result<u16, ElfError> {
    Elf::new(file)?.u16(0x12)
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
    dynamic::read(&Elf::new(file)?)
}

struct Section {
    kind: u32,
    link: u32,
    offset: u64,
    size: u64,
}

struct Elf<'a>(&'a [u8]);

impl<'a> Elf<'a> {
    fn new(file: &'a [u8]) -> Result<Self, ElfError> {
        if file.get(..4) != Some(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        match file.get(4..6) {
            Some([2, 1]) => Ok(Self(file)),
            _ => Err(ElfError::OtherClass),
        }
    }

    /// The first section of a type, and the string table that it refers to.
    fn find_section(&self, kind: u32) -> Result<Option<(Section, &'a [u8])>, ElfError> {
        let (table, count) = (self.u64(0x28)?, self.u16(0x3c)?);
        for index in 0..u64::from(count) {
            let section = self.section(table, index)?;
            if section.kind == kind {
                let strings = self.section(table, u64::from(section.link))?;
                return Ok(Some((section, self.bytes(strings.offset, strings.size)?)));
            }
        }
        Ok(None)
    }

    fn bytes(&self, offset: u64, len: u64) -> Result<&'a [u8], ElfError> {
        let range = || {
            let end = offset.checked_add(len)?;
            self.0.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
        };
        range().ok_or(ElfError::Damaged)
    }

    fn array<const N: usize>(&self, offset: u64) -> Result<[u8; N], ElfError> {
        self.bytes(offset, N as u64)?.try_into().map_err(|_| ElfError::Damaged)
    }

    fn u16(&self, offset: u64) -> Result<u16, ElfError> {
        self.array(offset).map(u16::from_le_bytes)
    }

    fn u32(&self, offset: u64) -> Result<u32, ElfError> {
        self.array(offset).map(u32::from_le_bytes)
    }

    fn u64(&self, offset: u64) -> Result<u64, ElfError> {
        self.array(offset).map(u64::from_le_bytes)
    }

    fn section(&self, table: u64, index: u64) -> Result<Section, ElfError> {
        let at = index.checked_mul(SECTION_HEADER_LEN).and_then(|o| table.checked_add(o));
        let at = at.ok_or(ElfError::Damaged)?;
        // The whole header is in the file, so that offsets below do not overflow.
        self.bytes(at, SECTION_HEADER_LEN)?;
        Ok(Section {
            kind: self.u32(at + 4)?,
            link: self.u32(at + 0x28)?,
            offset: self.u64(at + 0x18)?,
            size: self.u64(at + 0x20)?,
        })
    }

    fn names(&self, symbols: &Section, strings: &'a [u8]) -> Result<Vec<&'a str>, ElfError> {
        let symbols = self.bytes(symbols.offset, symbols.size)?;
        let name = |symbol: &[u8]| {
            let (name, section) = (symbol.first_chunk::<4>()?, symbol.get(6..8)?);
            // Section 0: the symbol is needed, not defined.
            if section == [0, 0] {
                return None;
            }
            string_at(strings, u64::from(u32::from_le_bytes(*name)))
        };
        Ok(symbols.chunks_exact(SYMBOL_LEN as usize).filter_map(name).collect())
    }
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
