//! Runs the test programs of the workspace: those that mostly wait beside those that compute.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Test programs of the `regatta` package that mostly wait for processes and timeouts, on hosts whose network,
/// `/tmp`, `/dev/shm` and control groups are their own: other test programs do not see what they do.
const WAITING: [&str; 2] = ["cluster", "chaos"];
const WAITING_PACKAGE: &str = "regatta";

/// A compiled test program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TestProgram {
    /// Package and target, such as `regatta cluster`.
    name: String,
    executable: PathBuf,
    /// The folder of its package, in which it runs.
    dir: PathBuf,
    waits: bool,
}

/// Builds all test programs and runs them, also after a failure. Returns the names of those that failed.
pub fn run(variables: &[(&str, &str)], cargo: &mut Command) -> Result<Vec<String>> {
    let (waiting, computing): (Vec<_>, Vec<_>) =
        build(cargo)?.into_iter().partition(|program| program.waits);
    let failed = Mutex::new(Vec::new());
    let run_all = |programs: &[TestProgram]| -> Result<()> {
        for program in programs {
            if !program.run(variables)? {
                let mut failed = failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                failed.push(program.name.clone());
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| run_all(&waiting));
        run_all(&computing)?;
        beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    Ok(failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Builds the test programs and lists them in the order in which cargo finished them.
fn build(cargo: &mut Command) -> Result<Vec<TestProgram>> {
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let start = Instant::now();
    let output = cargo.stderr(Stdio::inherit()).output().context("cargo test --no-run")?;
    if !output.status.success() {
        bail!("the tests do not compile");
    }
    println!("xtask: tests built in {:.0} s", start.elapsed().as_secs_f64());
    let mut programs = parse(&String::from_utf8_lossy(&output.stdout))?;
    // Packages together, in an order that does not depend on the build.
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(programs)
}

/// The test programs in cargo's messages, one JSON object per line.
fn parse(messages: &str) -> Result<Vec<TestProgram>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo's messages")?;
        programs.extend(program(&message));
    }
    Ok(programs)
}

fn program(message: &Value) -> Option<TestProgram> {
    let is_test = message["profile"]["test"].as_bool()?;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?;
    // The folder has the name of the package without the prefix that those of libraries have.
    let (package, target) = (dir.file_name()?.to_str()?, message["target"]["name"].as_str()?);
    let waits = package == WAITING_PACKAGE && WAITING.contains(&target);
    let name = format!("{package} {target}");
    Some(TestProgram { name, executable: executable.into(), dir: dir.to_owned(), waits })
}

impl TestProgram {
    /// Runs it, and prints its output at its end: that of programs that run at once would be mixed. Returns
    /// whether it succeeded.
    fn run(&self, variables: &[(&str, &str)]) -> Result<bool> {
        println!("xtask: running {}", self.name);
        let start = Instant::now();
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.dir).env("CARGO_MANIFEST_DIR", &self.dir);
        command.envs(variables.iter().copied());
        let output = command.output().with_context(|| self.executable.display().to_string())?;
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let seconds = start.elapsed().as_secs_f64();
        println!("xtask: {} ({seconds:.1} s)\n{err}{out}", self.name);
        Ok(output.status.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, target: &str, executable: &str, test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/{package}/Cargo.toml",
               "target":{{"name":"{target}"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn test_programs_are_those_with_an_executable() {
        let messages = [
            artifact("comm", "regatta_comm", "null", false),
            artifact("comm", "chaos", "\"/t/chaos-1\"", true),
            artifact("regatta", "regatta", "\"/t/regatta\"", false),
            artifact("regatta", "chaos", "\"/t/chaos-2\"", true),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "not a message".to_owned(),
        ];
        let programs = parse(&messages.join("\n")).unwrap();
        let names: Vec<_> = programs.iter().map(|one| (one.name.as_str(), one.waits)).collect();
        assert_eq!(names, [("comm chaos", false), ("regatta chaos", true)]);
        assert_eq!(programs[0].dir, Path::new("/w/crates/comm"));
        assert!(parse("{").is_err());
    }
}
