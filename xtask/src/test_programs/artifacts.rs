//! What cargo built, from its messages.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::steps::cargo;

/// A compiled test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestProgram {
    pub package: String,
    pub target: String,
    pub executable: PathBuf,
    /// The folder of its package, in which it runs.
    pub dir: PathBuf,
    /// Whether its tests are in modules, such as those of an integration program with a folder of its own.
    pub has_modules: bool,
}

/// What cargo built.
#[derive(Debug, Default)]
pub struct Build {
    pub programs: Vec<TestProgram>,
    /// The binary `regatta`, which tests execute.
    pub binary: PathBuf,
}

/// Builds the test programs and lists them in the order in which cargo finished them.
pub fn build_tests() -> Result<Build> {
    let start = Instant::now();
    let build = build(&["test", "--workspace", "--no-run"])?;
    println!("xtask: tests built in {:.0} s", start.elapsed().as_secs_f64());
    Ok(build)
}

/// Builds with these arguments of cargo.
pub fn build(arguments: &[&str]) -> Result<Build> {
    let mut cargo = cargo();
    cargo.args(arguments).arg("--message-format=json-render-diagnostics");
    let output = cargo.stderr(Stdio::inherit()).output().context("cargo")?;
    ensure!(output.status.success(), "cargo {} failed", arguments.join(" "));
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// The programs in cargo's messages, one JSON object per line.
fn parse(messages: &str) -> Result<Build> {
    let mut build = Build::default();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo's messages")?;
        build.programs.extend(program(&message));
        build.binary = binary(&message).unwrap_or(build.binary);
    }
    ensure!(
        !build.binary.as_os_str().is_empty(),
        "cargo's messages do not name the binary regatta"
    );
    Ok(build)
}

/// The path of the binary in the message of its build.
fn binary(message: &Value) -> Option<PathBuf> {
    let is_binary =
        message["target"]["kind"] == json!(["bin"]) && message["target"]["name"] == "regatta";
    let executable = message["executable"].as_str()?;
    (is_binary && message["profile"]["test"] == false).then(|| executable.into())
}

fn program(message: &Value) -> Option<TestProgram> {
    let is_test = message["profile"]["test"].as_bool()?;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?;
    // The folder has the name of the package without the prefix that those of libraries have.
    let (package, target) = (dir.file_name()?.to_str()?, message["target"]["name"].as_str()?);
    let (package, target) = (package.to_owned(), target.to_owned());
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let has_modules = message["target"]["kind"] == json!(["test"]) && source.ends_with("main.rs");
    let (executable, dir) = (executable.into(), dir.to_owned());
    Some(TestProgram { package, target, executable, dir, has_modules })
}

impl TestProgram {
    /// Package and target, such as `regatta cluster`.
    pub fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, target: &str, executable: &str, test: bool) -> String {
        let kind = if test { "test" } else { "bin" };
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/{package}/Cargo.toml",
               "target":{{"name":"{target}","kind":["{kind}"],"src_path":"/w/tests/{target}/main.rs"}},"profile":{{"test":{test}}},
               "executable":{executable}}}"#
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
        let Build { programs, binary } = parse(&messages.join("\n")).unwrap();
        let names: Vec<_> = programs.iter().map(TestProgram::name).collect();
        assert_eq!(names, ["comm chaos", "regatta chaos"]);
        assert_eq!(programs[0].dir, Path::new("/w/crates/comm"));
        assert_eq!(binary, Path::new("/t/regatta"));
        assert!(parse("{").is_err());
        assert!(parse(&messages[1]).is_err(), "without the binary");
    }
}
