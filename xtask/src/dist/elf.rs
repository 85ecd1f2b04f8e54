//! The dynamic symbols of a 64-bit ELF file, and the symbol versions that it needs.

use anyhow::{Context, Result};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};

/// A dynamic symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    pub name: String,
    /// Its version, such as `GLIBC_2.34`, if it has one.
    pub version: Option<String>,
    /// Whether the file defines the symbol, or needs it from a library.
    pub is_defined: bool,
    /// Whether the file is loaded without it, too.
    pub is_weak: bool,
}

/// The dynamic symbols of a program or a library.
///
/// # Errors
/// If the file is malformed.
pub fn symbols(file: &[u8]) -> Result<Vec<Symbol>> {
    let elf = parse(file)?;
    let (endian, sections) = (elf.endian(), elf.elf_section_table());
    let versions = sections.versions(endian, file).context("symbol versions")?;
    let mut symbols = Vec::new();
    for symbol in elf.dynamic_symbols() {
        let name = symbol.name().context("name of a dynamic symbol")?.to_owned();
        let version = match &versions {
            Some(versions) => {
                let version = versions.version_index(endian, symbol.index()).index();
                versions.version(version).with_context(|| format!("version of {name}"))?
            }
            None => None,
        };
        symbols.push(Symbol {
            version: version.map(|version| text(version.name())).transpose()?,
            is_defined: !symbol.is_undefined(),
            is_weak: symbol.is_weak(),
            name,
        });
    }
    Ok(symbols)
}

/// The versions without which the loader refuses the file, such as `GLIBC_2.28`.
///
/// # Errors
/// If the file is malformed.
pub fn needed_versions(file: &[u8]) -> Result<Vec<String>> {
    let elf = parse(file)?;
    let (endian, sections) = (elf.endian(), elf.elf_section_table());
    let mut names = Vec::new();
    let Some((needs, link)) = sections.gnu_verneed(endian, file).context("version needs")? else {
        return Ok(names);
    };
    let strings = sections.strings(endian, file, link).context("version names")?;
    for need in needs {
        for version in need.context("version needs")?.1 {
            let version = version.context("version needs")?;
            names.push(text(version.name(endian, strings).context("version names")?)?);
        }
    }
    Ok(names)
}

fn parse(file: &[u8]) -> Result<ElfFile64<'_>> {
    ElfFile64::parse(file).context("not a valid 64-bit ELF file")
}

fn text(name: &[u8]) -> Result<String> {
    Ok(std::str::from_utf8(name).context("symbol name")?.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn symbols_of_this_program_have_versions() {
        let symbols = symbols(&own()).unwrap();
        let start = symbols.iter().find(|symbol| symbol.name == "__libc_start_main").unwrap();
        assert!(!start.is_defined && !start.is_weak);
        let version = start.version.clone().unwrap();
        assert!(version.starts_with("GLIBC_2."), "{version}");
        assert!(needed_versions(&own()).unwrap().contains(&version));
        assert!(symbols.iter().any(|symbol| symbol.is_weak));
    }

    #[test]
    fn a_file_of_another_format_is_an_error() {
        for file in [&b""[..], b"\x7fELF", b"#!/bin/sh\n", &[0x7f; 4096]] {
            assert!(symbols(file).is_err() && needed_versions(file).is_err());
        }
    }

    #[test]
    fn a_truncated_file_is_an_error() {
        // The section table, at the end of the file, is missing.
        let mut file = own();
        file.truncate(file.len() / 2);
        assert!(symbols(&file).is_err() && needed_versions(&file).is_err());
    }

    #[test]
    fn damaged_files_do_not_panic() {
        let own = own();
        let header = 0..64_usize;
        // Section headers, where offsets and sizes are.
        let table = u64::from_le_bytes(own[0x28..0x30].try_into().unwrap()) as usize..own.len();
        let at = prop_oneof![header, table];
        proptest!(ProptestConfig::with_cases(64), |(changes in prop::collection::vec((at, any::<u8>()), 1..8))| {
            let mut damaged = own.clone();
            changes.iter().for_each(|(at, byte)| damaged[*at] = *byte);
            let _ = (symbols(&damaged), needed_versions(&damaged));
        });
    }
}
