//! Regular files. A FIFO would block, and a device may never end, so they are refused.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use regatta_model::document::{self, Document};

use super::ReadError;

/// Maximum size of a document: that of a million ranks, with room to spare.
const MAX_DOCUMENT_BYTES: u64 = 1 << 30;

/// Opens a regular file, or a link to one, without blocking; None if it does not exist (yet).
pub fn open_regular(path: &Path) -> Result<Option<File>, ReadError> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Err(error) if is_missing(&error) => return Ok(None),
        opened => opened.map_err(ReadError::io(path))?,
    };
    match file.metadata().map_err(ReadError::io(path))?.is_file() {
        true => Ok(Some(file)),
        false => Err(ReadError::NotRegular(path.to_owned())),
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The text of a file; None if it does not exist.
pub fn read_text(path: &Path) -> Result<Option<String>, ReadError> {
    let Some(file) = open_regular(path)? else { return Ok(None) };
    let mut text = String::new();
    let read = file.take(MAX_DOCUMENT_BYTES + 1).read_to_string(&mut text);
    let bytes = read.map_err(ReadError::io(path))? as u64;
    let (path, limit) = (path.to_owned(), MAX_DOCUMENT_BYTES);
    if bytes > limit { Err(ReadError::TooLarge { path, bytes, limit }) } else { Ok(Some(text)) }
}

/// A document; None if it does not exist.
pub fn read_document<T: Document>(path: &Path) -> Result<Option<T>, ReadError> {
    let parse = |text: String| document::from_json(&text);
    let parsed = read_text(path)?.map(parse).transpose();
    parsed.map_err(|source| ReadError::Document { path: path.to_owned(), source })
}
