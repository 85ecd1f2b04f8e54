//! The pages of `docs/sites`: their job scripts are those of `regatta submit`, their reports those of
//! `regatta net-log`, and their example programs train.
//!
//! `REGATTA_BLESS=1 cargo test -p regatta --test commands site_pages` updates the pages.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use regatta_discover::systems;
use regatta_model::document;
use regatta_testbed::assert_contains;

use self::simulated::healthy_job;
use crate::support::python::python_with;
use crate::support::{CommandOutput, TempDir, command, regatta};

#[path = "../../../doctor/tests/simulated/mod.rs"]
mod simulated;

/// The logs, in the tests of `regatta-observe`, whose reports are on the pages.
const REPORTS: [(&str, &str); 9] = [
    ("alps", "nccl-2.24-cxi.log"),
    ("cloud-vm", "nccl-2.24-efa.log"),
    ("el-capitan", "rccl-2.21-cxi.log"),
    ("frontier", "rccl-2.21-cxi.log"),
    ("jupiter", "nccl-2.31-ib.log"),
    ("lumi", "rccl-2.21-cxi.log"),
    ("perlmutter", "nccl-2.24-cxi.log"),
    ("polaris", "nccl-2.24-cxi.log"),
    ("slurm-infiniband", "nccl-2.31-ib.log"),
];
/// The heading above a report.
const REPORT_HEADING: &str = "## What --check-net prints";
/// The built-in systems whose simulated nodes `regatta doctor` judges on the pages.
const DIAGNOSES: [(&str, &str); 9] = [
    ("alps", "alps"),
    ("aurora", "aurora"),
    ("el-capitan", "el-capitan"),
    ("frontier", "frontier"),
    ("jupiter", "jupiter"),
    ("lumi", "lumi-g"),
    ("perlmutter", "perlmutter"),
    ("polaris", "polaris"),
    ("slurm-infiniband", "dgx-h100"),
];
/// The heading above a diagnosis.
const DIAGNOSIS_HEADING: &str = "## What doctor prints";
/// Facts of a virtual machine with one H200, for the page about them.
const VM_FACTS: &str = "tests/fixtures/doctor-h200-vm.json";
/// What starts a line with a directive of a scheduler.
const DIRECTIVES: [&str; 3] = ["#SBATCH ", "#PBS ", "# flux: "];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A code block, or the lines between two of them.
#[derive(Debug, Clone)]
struct Part {
    /// The language of a code block.
    language: Option<String>,
    text: String,
}

impl Part {
    fn is_code(&self, language: &str) -> bool {
        self.language.as_deref() == Some(language)
    }

    /// The command of a block with a single one that prints a job script.
    fn submit_command(&self) -> Option<Vec<String>> {
        let words = shlex::split(&self.text.replace("\\\n", " "))?;
        let is_submit = words.starts_with(&["regatta".to_owned(), "submit".to_owned()]);
        (self.is_code("sh") && is_submit && words.contains(&"--dry-run".to_owned()))
            .then(|| words[1..].to_vec())
    }
}

struct Page {
    path: PathBuf,
    parts: Vec<Part>,
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let mut parts = vec![Part { language: None, text: String::new() }];
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let in_code = parts.last().unwrap().language.is_some();
            match line.strip_prefix("```") {
                Some(_) if in_code => parts.push(Part { language: None, text: String::new() }),
                Some(language) => {
                    let language = Some(language.to_owned());
                    parts.push(Part { language, text: String::new() });
                }
                None => writeln!(parts.last_mut().unwrap().text, "{line}").unwrap(),
            }
        }
        Self { path, parts }
    }

    fn name(&self) -> &str {
        self.path.file_stem().unwrap().to_str().unwrap()
    }

    fn text(&self) -> String {
        let part = |part: &Part| match &part.language {
            Some(language) => format!("```{language}\n{}```\n", part.text),
            None => part.text.clone(),
        };
        self.parts.iter().map(part).collect()
    }

    /// Index of each printed job script, with the command before it.
    fn scripts(&self) -> Vec<(usize, Vec<String>)> {
        let after = |(at, part): (usize, &Part)| {
            let command = part.submit_command()?;
            let next = self.parts.iter().skip(at + 1).position(|p| p.language.is_some())?;
            Some((at + 1 + next, command))
        };
        self.parts.iter().enumerate().filter_map(after).collect()
    }

    /// Index of the text below a heading.
    fn text_below(&self, heading: &str) -> Option<usize> {
        let heading = self.parts.iter().position(|part| part.text.contains(heading))?;
        let text = self.parts.iter().skip(heading).position(|part| part.is_code("text"))?;
        Some(heading + text)
    }
}

/// All pages of sites.
fn pages() -> Vec<Page> {
    let entries = std::fs::read_dir(workspace().join("docs/sites")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let is_page = |path: &PathBuf| path.file_name().unwrap() != "README.md";
    let pages: Vec<Page> = paths.into_iter().filter(is_page).map(Page::read).collect();
    assert_eq!(pages.len(), 10);
    pages
}

/// What `regatta submit` prints, in a folder without jobs.
fn printed_script(words: &[String]) -> String {
    let folder = TempDir::new();
    let mut submit = command();
    submit.current_dir(folder.path()).args(words);
    CommandOutput::from(submit.output().unwrap()).ok()
}

/// What `regatta doctor` prints for healthy nodes of a site. Rates are left out: those of simulated
/// nodes are not measured.
fn printed_diagnosis(page: &str) -> String {
    let Some((_, system)) = DIAGNOSES.iter().find(|(name, _)| *name == page) else {
        let facts = Path::new(env!("CARGO_MANIFEST_DIR")).join(VM_FACTS);
        return regatta(&["doctor", "--facts", facts.to_str().unwrap()]).ok();
    };
    let facts = healthy_job(&systems::system(system).unwrap(), 2, 1);
    let folder = TempDir::new();
    folder.write("facts.json", document::to_json(&facts).unwrap());
    let facts = folder.path().join("facts.json");
    let measured = "speed,bandwidth,file-system-speed";
    let printed = regatta(&["doctor", "--facts", facts.to_str().unwrap(), "--skip", measured]).ok();
    assert!(printed.ends_with("PASS: 2 nodes\n"), "{printed}");
    printed
}

#[test]
fn scripts_and_reports_are_those_of_the_commands() {
    let bless = std::env::var_os("REGATTA_BLESS").is_some();
    for mut page in pages() {
        let before = page.text();
        let scripts = page.scripts();
        let has_scheduler = page.name() != "cloud-vm";
        assert!(!has_scheduler || scripts.len() >= 4, "{}: {} scripts", page.name(), scripts.len());
        for (at, words) in scripts {
            assert!(page.parts[at].is_code("bash"), "{}: {words:?}", page.name());
            page.parts[at].text = printed_script(&words);
        }
        if let Some((_, log)) = REPORTS.iter().find(|(name, _)| *name == page.name()) {
            let log = workspace().join("crates/observe/tests/logs").join(log);
            let report = regatta(&["net-log", log.to_str().unwrap()]).ok();
            let at = page.text_below(REPORT_HEADING);
            let at = at.unwrap_or_else(|| panic!("{}: no report", page.name()));
            assert!(report.starts_with("GOOD: "), "{report}");
            page.parts[at].text = report;
        }
        let diagnosis = page.text_below(DIAGNOSIS_HEADING);
        let diagnosis = diagnosis.unwrap_or_else(|| panic!("{}: no diagnosis", page.name()));
        page.parts[diagnosis].text = printed_diagnosis(page.name());
        let after = page.text();
        if bless {
            std::fs::write(&page.path, &after).unwrap();
        }
        let differs = before.lines().zip(after.lines()).find(|(old, new)| old != new);
        assert!(
            bless || before == after,
            "{} is out of date; REGATTA_BLESS=1 updates it: {differs:?}",
            page.path.display()
        );
    }
}

/// Scripts that are not printed by `regatta submit` have no other directives than those that are.
#[test]
fn directives_of_all_scripts_are_those_of_the_site() {
    let is_directive = |line: &&str| DIRECTIVES.iter().any(|start| line.starts_with(start));
    for page in pages() {
        let printed: BTreeSet<usize> = page.scripts().into_iter().map(|(at, _)| at).collect();
        let of = |at: &usize| page.parts[*at].text.lines().filter(is_directive);
        let known: BTreeSet<&str> = printed.iter().flat_map(of).collect();
        for (at, part) in page.parts.iter().enumerate().filter(|(_, part)| part.is_code("bash")) {
            let folder = TempDir::new();
            let file = folder.write("job.sh", &part.text);
            let syntax = Command::new("bash").args(["-n", &file]).status().unwrap();
            assert!(syntax.success(), "{}:\n{}", page.name(), part.text);
            let unknown: Vec<&str> = of(&at).filter(|line| !known.contains(line)).collect();
            assert!(unknown.is_empty(), "{}: {unknown:?}", page.name());
        }
    }
}

#[test]
fn pages_are_complete_and_linked() {
    let index = std::fs::read_to_string(workspace().join("docs/sites/README.md")).unwrap();
    for page in pages() {
        assert_contains(&index, &*format!("({}.md)", page.name()));
        let text = page.text();
        let sections = ["## Install", "## Network", "## What doctor prints", REPORT_HEADING];
        assert_contains(&text, sections);
        assert_contains(&text, ["ddp.py", "fsdp.py", "torchrun", "## Sources"]);
    }
    for file in ["README.md", "docs/submit.md"] {
        assert_contains(
            std::fs::read_to_string(workspace().join(file)).unwrap(),
            "sites/README.md",
        );
    }
}

/// Runs an example on two CPU ranks, each started by regatta or by torchrun.
fn run_example(python: &str, example: &str, by_torchrun: bool) -> String {
    let folder = TempDir::new();
    let bin = Path::new(python).parent().unwrap_or(Path::new("")).display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    let script = workspace().join("docs/examples").join(example);
    let script = script.to_str().unwrap();
    let options = ["--steps", "20", "--hidden-size", "64"];
    let mut launch = command();
    launch.current_dir(folder.path()).env("CUDA_VISIBLE_DEVICES", "").env("PATH", path);
    launch.args(["launch", "--standalone", "--oversubscribe", "--no-gpus"]);
    match by_torchrun {
        true => {
            let torchrun = workspace().join("docs/examples/torchrun.sh");
            let torchrun = torchrun.to_str().unwrap();
            launch.args(["--ranks-per-node", "1", "--", "sh", torchrun, "2", script])
        }
        false => launch.args(["-n", "2", "--", python, script]),
    };
    CommandOutput::from(launch.args(options).output().unwrap()).ok()
}

#[test]
fn examples_train() {
    let Some(python) = python_with("torch") else { return };
    for by_torchrun in [false, true] {
        let ddp = run_example(&python, "ddp.py", by_torchrun);
        assert_contains(&ddp, ["world size 2, backend gloo", "done: the weights of 2 ranks agree"]);
        let fsdp = run_example(&python, "fsdp.py", by_torchrun);
        assert_contains(&fsdp, ["world size 2, backend gloo", "done: rank 0 of 2 holds"]);
        for text in [ddp, fsdp] {
            let losses = text.lines().filter_map(|line| line.split_once(": loss ")).map(|(_, l)| l);
            let losses: Vec<f64> = losses.map(|loss| loss.trim().parse().unwrap()).collect();
            assert!(losses.len() == 2 && losses[1] < losses[0], "the loss falls: {text}");
        }
    }
}
