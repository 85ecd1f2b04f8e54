//! Shared libraries, for tests. Included by tests of other crates as well.

/// A shared library with these symbols; `false`: undefined.
pub(crate) fn library(symbols: &[(&str, bool)]) -> Vec<u8> {
    library_with(symbols, &[])
}

/// A shared library with these symbols, and strings in the dynamic section by their tags.
pub(crate) fn library_with(symbols: &[(&str, bool)], entries: &[(u64, &str)]) -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut table = Vec::new();
    for (name, defined) in symbols {
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([0x11, 0, u8::from(*defined), 0]);
        table.extend([0; 16]);
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    let mut dynamic = Vec::new();
    for (tag, value) in entries {
        dynamic.extend(tag.to_le_bytes());
        dynamic.extend((strings.len() as u64).to_le_bytes());
        strings.extend(value.as_bytes());
        strings.push(0);
    }
    dynamic.extend([0; 16]);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    // x86-64.
    file[0x12] = 62;
    file.extend(&table);
    file.extend(&strings);
    let dynamic_offset = file.len() as u64;
    file.extend(&dynamic);
    let sections = file.len() as u64;
    let header = |kind: u32, link: u32, offset: u64, size: usize| {
        let mut bytes = vec![0u8; 64];
        bytes[4..8].copy_from_slice(&kind.to_le_bytes());
        bytes[0x18..0x20].copy_from_slice(&offset.to_le_bytes());
        bytes[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
        bytes[0x28..0x2c].copy_from_slice(&link.to_le_bytes());
        bytes
    };
    file.extend(header(0, 0, 0, 0));
    file.extend(header(11, 2, 64, table.len()));
    file.extend(header(3, 0, 64 + table.len() as u64, strings.len()));
    file.extend(header(6, 2, dynamic_offset, dynamic.len()));
    file[0x28..0x30].copy_from_slice(&sections.to_le_bytes());
    file[0x3a] = 64;
    file[0x3c] = 4;
    file
}
