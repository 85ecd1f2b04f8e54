//! `cargo xtask easybuild`: the EasyBuild file, whose list of crates is that of `Cargo.lock`.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Folder of the file and of its template.
const FOLDER: &str = "packaging/easybuild";

/// The toolchain, and its newest build tools in EasyBuild's collection.
const GCCCORE: &str = "15.2.0";
const BINUTILS: &str = "2.45";
const RUST: &str = "1.94.1";

/// A package of `Cargo.lock` that is downloaded.
#[derive(Debug, PartialEq, Eq)]
struct Crate {
    name: String,
    version: String,
    sha256: String,
}

/// Writes the file.
pub fn write() -> Result<()> {
    let (template, lock) = (PathBuf::from(FOLDER).join("regatta.eb.in"), "Cargo.lock");
    let text =
        std::fs::read_to_string(&template).with_context(|| template.display().to_string())?;
    let crates = crates(&std::fs::read_to_string(lock).context(lock)?).context(lock)?;
    let path = PathBuf::from(FOLDER).join(file_name());
    std::fs::write(&path, fill(&text, &crates)).with_context(|| path.display().to_string())?;
    println!("xtask: {}", path.display());
    Ok(())
}

/// EasyBuild finds a file by this name.
fn file_name() -> String {
    format!("regatta-{}-GCCcore-{GCCCORE}.eb", env!("CARGO_PKG_VERSION"))
}

/// The downloaded packages. Those of the workspace have no checksum.
fn crates(lock: &str) -> Result<Vec<Crate>> {
    let lock: toml::Table = lock.parse()?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("no packages")?;
    let downloaded = packages.iter().filter(|package| package.get("source").is_some());
    downloaded.map(one_crate).collect()
}

fn one_crate(package: &toml::Value) -> Result<Crate> {
    let text = |key: &str| {
        let value = package.get(key).and_then(toml::Value::as_str);
        value.map(str::to_owned).with_context(|| format!("a package without {key}: {package:?}"))
    };
    Ok(Crate { name: text("name")?, version: text("version")?, sha256: text("checksum")? })
}

/// The template with its values.
fn fill(template: &str, crates: &[Crate]) -> String {
    let rows = |row: fn(&Crate) -> String| crates.iter().map(row).collect::<Vec<_>>().join("\n");
    let values = [
        ("@VERSION@", env!("CARGO_PKG_VERSION").to_owned()),
        ("@DESCRIPTION@", env!("CARGO_PKG_DESCRIPTION").to_owned()),
        ("@GCCCORE@", GCCCORE.to_owned()),
        ("@BINUTILS@", BINUTILS.to_owned()),
        ("@RUST@", RUST.to_owned()),
        ("@CRATES@", rows(|c| format!("    ('{}', '{}'),", c.name, c.version))),
        (
            "@CHECKSUMS@",
            rows(|c| format!("    {{'{}-{}.tar.gz': '{}'}},", c.name, c.version, c.sha256)),
        ),
    ];
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOCK: &str = r#"
version = 4
[[package]]
name = "anstream"
version = "1.0.0"
source = "registry"
checksum = "824a"
dependencies = ["anstyle"]
[[package]]
name = "regatta"
version = "0.1.0"
"#;

    #[test]
    fn packages_of_the_workspace_are_not_downloaded() {
        let crates = crates(LOCK).unwrap();
        let [name, version, sha256] = ["anstream", "1.0.0", "824a"].map(str::to_owned);
        assert_eq!(crates, [Crate { name, version, sha256 }]);
        let text = fill("@CRATES@\n@CHECKSUMS@", &crates);
        assert_eq!(text, "    ('anstream', '1.0.0'),\n    {'anstream-1.0.0.tar.gz': '824a'},");
    }

    #[test]
    fn a_malformed_lock_file_is_an_error() {
        let without_checksum = LOCK.replace("checksum", "other");
        for lock in ["", "[[package]", "package = 1", &without_checksum] {
            assert!(crates(lock).is_err(), "{lock}");
        }
    }

    #[test]
    fn the_file_has_the_crates_of_the_lock_file() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let crates = crates(&read("Cargo.lock")).unwrap();
        let expected = fill(&read("packaging/easybuild/regatta.eb.in"), &crates);
        let file = format!("{FOLDER}/{}", file_name());
        assert!(read(&file) == expected, "{file} is outdated: run cargo xtask easybuild");
        assert!(!expected.contains('@'));
    }

    proptest! {
        #[test]
        fn any_text_is_a_lock_file_or_an_error(text in "\\PC*") {
            let _ = crates(&text);
        }
    }
}
