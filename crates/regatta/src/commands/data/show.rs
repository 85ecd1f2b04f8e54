//! `regatta data show`: what prepared data holds, after a look at all of it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use regatta_train::data::prepare::{self, About};
use regatta_train::data::{Prepared, TokenFile, Tokenizer, open};
use serde::Serialize;

use super::args::ShowArgs;
use crate::cli::{FAINT, GOOD, HEADING};
use crate::output;

/// Tokens of the beginning that are shown.
const BEGIN: u64 = 60;

/// What is known of a folder or a file. Its checksums are right, or there would be an error.
#[derive(Debug, Serialize)]
struct Shown {
    path: PathBuf,
    /// Of a folder only.
    #[serde(skip_serializing_if = "Option::is_none")]
    prepared: Option<About>,
    files: Vec<ShownFile>,
}

#[derive(Debug, Serialize)]
struct ShownFile {
    name: String,
    tokens: u64,
    token_bytes: u64,
    vocabulary: u64,
    fingerprint: Option<String>,
    sha256: Option<String>,
    /// The first words, or tokens where the tokenizer is not at hand.
    begins: String,
}

/// Runs it.
pub fn run(args: &ShowArgs) -> Result<ExitCode> {
    let shown = match args.path.is_dir() {
        true => folder(&args.path)?,
        false => Shown {
            path: args.path.clone(),
            prepared: None,
            files: vec![file(&args.path, beside(&args.path).as_ref())?],
        },
    };
    match args.json {
        true => output::print(&format!("{}\n", serde_json::to_string_pretty(&shown)?))?,
        false => output::print(&text(&shown))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn folder(path: &Path) -> Result<Shown> {
    let prepared = prepare::about(path)?;
    // Whether all belongs together, as training would ask.
    let data = open(&Prepared::Folder { path: path.to_owned(), tokenizer: None })?;
    let files: Result<Vec<ShownFile>> = [prepare::TRAIN, prepare::VALIDATION]
        .iter()
        .map(|name| file(&path.join(name), Some(&data.tokenizer)))
        .collect();
    Ok(Shown { path: path.to_owned(), prepared: Some(prepared), files: files? })
}

/// The tokenizer beside a token file, if there is a usable one.
fn beside(path: &Path) -> Option<Tokenizer> {
    Tokenizer::load(&path.with_file_name(prepare::TOKENIZER)).ok()
}

fn file(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<ShownFile> {
    let file = TokenFile::open(path)?;
    file.verify()?;
    let header = file.header();
    let mut first = Vec::new();
    file.tokens(0..file.len().min(BEGIN), &mut first)?;
    let own = |tokenizer: &&Tokenizer| header.fingerprint == Some(tokenizer.fingerprint());
    let begins = match tokenizer.filter(own) {
        Some(tokenizer) => tokenizer.decode(&first)?,
        None => first.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
    };
    Ok(ShownFile {
        name: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        tokens: header.tokens,
        token_bytes: header.token_bytes,
        vocabulary: header.vocabulary,
        fingerprint: header.fingerprint.clone(),
        sha256: header.checksum.map(|sum| sum.iter().map(|byte| format!("{byte:02x}")).collect()),
        begins,
    })
}

fn text(shown: &Shown) -> String {
    let mut lines = vec![format!("{HEADING}{}{HEADING:#}", shown.path.display())];
    lines.extend(shown.prepared.as_ref().map(facts));
    for file in &shown.files {
        let ShownFile { name, begins, .. } = file;
        let (tokens, vocabulary) = (grouped(file.tokens), grouped(file.vocabulary));
        lines.push(format!(
            "{name}: {tokens} tokens below {vocabulary}, {} bytes each, checksum {GOOD}right{GOOD:#}",
            file.token_bytes
        ));
        lines.push(format!("  {FAINT}{begins:?}{FAINT:#}"));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// What a folder was made of and holds, in lines.
pub fn facts(about: &About) -> String {
    let bytes = about.inputs.iter().map(|input| input.bytes).sum();
    let files = match about.inputs.as_slice() {
        [one] => one.name.clone(),
        many => format!("{} files", many.len()),
    };
    let (train, validation) = (grouped(about.train_tokens), grouped(about.validation_tokens));
    let About { tokenizer, fingerprint, .. } = about;
    format!(
        "  text        {files}, {} bytes\n  tokens      {train} to learn from, {validation} for \
         validation\n  vocabulary  {} ({tokenizer}, {fingerprint})",
        grouped(bytes),
        grouped(about.vocabulary as u64)
    )
}

/// A number with commas.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_apart() {
        let wanted = ["0", "999", "1,000", "1,115,394"];
        assert_eq!([0, 999, 1000, 1_115_394].map(grouped), wanted);
    }
}
