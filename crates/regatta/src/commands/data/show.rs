//! `regatta data show`: summarises a dataset after verifying its checksums.

use std::path::{Path, PathBuf};

use anyhow::Result;
use regatta_model::text::hex;
use regatta_train::data::prepare::{self, PreparedMeta};
use regatta_train::data::{TokenFile, Tokenizer, open_folder};
use serde::Serialize;

use crate::args::data::ShowArgs;
use crate::cli::{FAINT, GOOD, HEADING};
use crate::output;

/// Number of tokens in a preview.
const PREVIEW_TOKENS: u64 = 60;

/// Summary of a dataset folder or a token file with valid checksums.
#[derive(Debug, Serialize)]
struct DatasetSummary {
    path: PathBuf,
    /// `None` for a single file.
    #[serde(skip_serializing_if = "Option::is_none")]
    prepared: Option<PreparedMeta>,
    files: Vec<TokenFileSummary>,
}

#[derive(Debug, Serialize)]
struct TokenFileSummary {
    name: String,
    tokens: u64,
    token_bytes: u64,
    vocab_size: u64,
    fingerprint: Option<String>,
    sha256: Option<String>,
    /// The first tokens as text, or as IDs without a tokenizer.
    preview: String,
}

/// Runs the command.
pub fn run(args: &ShowArgs) -> Result<()> {
    let path = args.path.clone();
    let (prepared, files) = if path.is_dir() {
        let prepared = prepare::metadata(&path)?;
        // The same consistency check as in training.
        let data = open_folder(&path, None)?;
        let split = |name: &str| file(&path.join(name), Some(&data.tokenizer));
        (Some(prepared), vec![split(prepare::TRAIN)?, split(prepare::VALIDATION)?])
    } else {
        let tokenizer = Tokenizer::load(&path.with_file_name(prepare::TOKENIZER)).ok();
        (None, vec![file(&path, tokenizer.as_ref())?])
    };
    let summary = DatasetSummary { path, prepared, files };
    output::print_report(args.json, || output::json_lines(&summary), || text(&summary))
}

fn file(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<TokenFileSummary> {
    let file = TokenFile::open(path)?;
    file.verify()?;
    let header = file.header();
    let mut first = Vec::new();
    file.tokens(0..file.len().min(PREVIEW_TOKENS), &mut first)?;
    let matches = |tokenizer: &&Tokenizer| header.fingerprint == Some(tokenizer.fingerprint());
    let preview = match tokenizer.filter(matches) {
        Some(tokenizer) => tokenizer.decode(&first)?,
        None => first.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
    };
    Ok(TokenFileSummary {
        name: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        tokens: header.tokens,
        token_bytes: header.token_bytes,
        vocab_size: header.vocabulary,
        fingerprint: header.fingerprint.clone(),
        sha256: header.checksum.map(|sum| hex(&sum)),
        preview,
    })
}

fn text(summary: &DatasetSummary) -> String {
    let mut lines = vec![format!("{HEADING}{}{HEADING:#}", summary.path.display())];
    lines.extend(summary.prepared.as_ref().map(dataset_lines));
    for file in &summary.files {
        let TokenFileSummary { name, preview, .. } = file;
        let (tokens, vocab_size) = (grouped(file.tokens), grouped(file.vocab_size));
        lines.push(format!(
            "{name}: {tokens} tokens of {} bytes, vocabulary size {vocab_size}, checksum {GOOD}ok{GOOD:#}",
            file.token_bytes
        ));
        lines.push(format!("  {FAINT}{preview:?}{FAINT:#}"));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Inputs, splits and vocabulary of a dataset, as lines.
pub fn dataset_lines(about: &PreparedMeta) -> String {
    let bytes = about.inputs.iter().map(|input| input.bytes).sum();
    let files = match about.inputs.as_slice() {
        [one] => one.name.clone(),
        many => format!("{} files", many.len()),
    };
    let (train, validation) = (grouped(about.train_tokens), grouped(about.validation_tokens));
    let PreparedMeta { tokenizer, fingerprint, .. } = about;
    format!(
        "  text        {files}, {} bytes\n  tokens      {train} training, {validation} validation\n  vocabulary  {} ({tokenizer}, {fingerprint})",
        grouped(bytes),
        grouped(about.vocabulary as u64)
    )
}

/// Formats a number with thousands separators.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_separated() {
        let expected = ["0", "999", "1,000", "1,115,394"];
        assert_eq!([0, 999, 1000, 1_115_394].map(grouped), expected);
    }
}
