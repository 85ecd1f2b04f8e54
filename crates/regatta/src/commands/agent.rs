//! `regatta agent`: runs the ranks of one node for `regatta launch`, which starts it.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use regatta_launch::agents::agent::NodeHooks;
use regatta_launch::agents::bootstrap_document::BootstrapDocument;
use regatta_launch::agents::node;

use crate::cli::AgentArgs;
use crate::commands::launcher::profile;
use crate::{output, plugins};

/// Maximum size of a boot document, in bytes.
const MAX_BOOT: u64 = 64 << 20;

/// Runs the command.
pub fn run(args: &AgentArgs) -> Result<()> {
    let boot = BootstrapDocument::from_text(&read(&args.boot)?)?;
    let hooks = NodeHooks {
        without_run_folder: &profile::record_on_node,
        built_in_file: &plugins::library,
    };
    Ok(node::run(&boot, args.node, output::error, hooks)?)
}

fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        let stdin = std::io::stdin().lock();
        stdin.take(MAX_BOOT).read_to_string(&mut text).context("standard input")?;
    } else {
        let hint = || format!("{}: the run folder must be on a shared file system", path.display());
        let file = std::fs::File::open(path).with_context(hint)?;
        file.take(MAX_BOOT).read_to_string(&mut text).with_context(hint)?;
    }
    Ok(text)
}
