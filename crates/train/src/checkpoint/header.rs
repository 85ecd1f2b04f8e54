//! The header of a safetensors file.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

/// Bytes of the length field before the header.
const LENGTH: usize = 8;
/// Maximum length of a header, as in the safetensors library.
const MAX_LENGTH: u64 = 100_000_000;

/// Location of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorLocation {
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<usize>,
    /// Byte range.
    pub bytes: Range<u64>,
}

/// Reads the header of a file of `bytes` bytes. Errors are predicates about the file.
pub(super) fn read(file: &File, bytes: u64) -> Result<HashMap<String, TensorLocation>, String> {
    let damaged = |why: &str| format!("is damaged: its header {why}");
    let mut length = [0; LENGTH];
    file.read_exact_at(&mut length, 0).map_err(|error| format!("cannot be read: {error}"))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_LENGTH.min(bytes) {
        return Err(damaged(&format!("cannot have {length} bytes")));
    }
    let mut text = vec![0; length as usize];
    file.read_exact_at(&mut text, LENGTH as u64)
        .map_err(|error| format!("cannot be read: {error}"))?;
    let locations = parse(&text).map_err(|why| damaged(&format!("is wrong: {why}")))?;
    let end = locations.values().map(|at| at.bytes.end).max();
    if end.is_some_and(|end| end > bytes) {
        return Err(format!("is truncated: it has {bytes} bytes of {}", end.unwrap_or_default()));
    }
    Ok(locations)
}

/// Locations of the tensors of a file, by name. The header may be arbitrary bytes.
pub fn parse(header: &[u8]) -> Result<HashMap<String, TensorLocation>, String> {
    let metadata: Metadata = serde_json::from_slice(header).map_err(|error| error.to_string())?;
    let base = (LENGTH + header.len()) as u64;
    let mut locations = HashMap::new();
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        let at = |offset: usize| base.checked_add(offset as u64).ok_or("it is too long");
        let bytes = at(start)?..at(end)?;
        locations
            .insert(name, TensorLocation { dtype: info.dtype, shape: info.shape.clone(), bytes });
    }
    Ok(locations)
}

/// The header of a file with these tensors, in this order.
pub(super) fn write(
    about: Option<HashMap<String, String>>,
    tensors: Vec<(String, TensorInfo)>,
) -> Result<Vec<u8>, String> {
    let metadata = Metadata::new(about, tensors).map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    // Data starts at a multiple of 8, for memory mapping.
    text.resize(text.len().next_multiple_of(LENGTH), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text);
    Ok(header)
}
