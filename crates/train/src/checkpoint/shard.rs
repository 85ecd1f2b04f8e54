//! A rank's file of numbers, as safetensors: a header, then every piece's bytes.

use std::collections::HashSet;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use sha2::{Digest, Sha256};

use super::disk::Disk;
use super::error::CheckpointError;
use super::header;
use super::manifest::Written;
use super::piece::{Outline, Piece, key};

/// Numbers that are turned into bytes, hashed and written at a time.
const AT_A_TIME: usize = 1 << 18;

/// A shard that is laid out: all but the numbers.
#[derive(Debug)]
pub(super) struct Layout {
    header: Vec<u8>,
    /// Bytes of the whole file.
    pub bytes: u64,
}

/// Checks the pieces and says where each will be.
pub(super) fn lay_out(pieces: &[Outline]) -> Result<Layout, CheckpointError> {
    let mut keys = HashSet::new();
    let mut infos = Vec::with_capacity(pieces.len());
    let mut end = 0;
    for piece in pieces {
        piece.part.check(&piece.shape).map_err(|why| refuse(&piece.name, why))?;
        let key = key(piece.kind, &piece.name, &piece.part);
        let start = end;
        end += piece.part.len(&piece.shape) * size_of::<f32>();
        let shape = piece.part.own_shape(&piece.shape);
        let data_offsets = (start, end);
        infos.push((key.clone(), TensorInfo { dtype: Dtype::F32, shape, data_offsets }));
        if !keys.insert(key) {
            return Err(refuse(&piece.name, "is given twice".to_owned()));
        }
    }
    let header = header::write(None, infos).map_err(|why| {
        let name = pieces.first().map_or_else(String::new, |piece| piece.name.clone());
        CheckpointError::Piece { name, why }
    })?;
    let bytes = (header.len() + end) as u64;
    Ok(Layout { header, bytes })
}

/// A piece has as many numbers as its part, which was checked.
pub(super) fn check(piece: &Piece) -> Result<(), CheckpointError> {
    let Piece { name, shape, part, numbers, .. } = piece;
    let (needed, given) = (part.len(shape), numbers.len());
    if needed != given {
        return Err(refuse(name, format!("has {given} numbers for its part {part} of {needed}")));
    }
    Ok(())
}

fn refuse(name: &str, why: String) -> CheckpointError {
    CheckpointError::Piece { name: name.to_owned(), why }
}

/// Writes the file so that it survives a loss of power, and says what is in it. The pieces are those
/// that were laid out.
pub(super) fn write(
    disk: &dyn Disk,
    path: &Path,
    layout: &Layout,
    pieces: impl Iterator<Item = Result<Piece, CheckpointError>>,
) -> Result<Vec<Written>, CheckpointError> {
    let failed = || CheckpointError::writing(path, layout.bytes);
    let mut file = disk.create(path).map_err(failed())?;
    file.write(&layout.header).map_err(failed())?;
    let mut written = Vec::new();
    let mut bytes = Vec::new();
    for piece in pieces {
        let piece = piece?;
        check(&piece)?;
        let Piece { name, kind, shape, part, numbers } = piece;
        let mut sum = Sha256::new();
        for some in numbers.chunks(AT_A_TIME) {
            bytes.clear();
            bytes.extend(some.iter().flat_map(|number| number.to_le_bytes()));
            sum.update(&bytes);
            file.write(&bytes).map_err(failed())?;
        }
        written.push(Written { name, kind, shape, part, sha256: hex(&sum.finalize()) });
    }
    file.sync().map_err(failed())?;
    Ok(written)
}

/// A checksum as text.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
