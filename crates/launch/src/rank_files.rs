//! Files that all ranks of a job must find, such as plug-ins of NCCL: in the run folder where a node sees
//! it, else in a folder of the node. A rank that loads another library or table than its peers may
//! deadlock, so a node without one of them must not start its ranks.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use regatta_wire::secret::Secret;
use serde::{Deserialize, Serialize};

use crate::process::RankSpec;

/// Begin of the name of a node's folder.
const PREFIX: &str = "regatta-plugins-";
/// Number of random hexadecimal digits in the name.
const RANDOM_DIGITS: usize = 16;

/// Longest path that NCCL takes.
pub const MAX_PATH_BYTES: usize = 254;

/// A file that all ranks must find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFile {
    /// Environment variable of the ranks with the path.
    pub variable: String,
    /// The path that the launcher has set.
    pub path: String,
    /// What a node does that does not see the file.
    pub source: FileSource,
}

/// Where a node that does not see a file takes it from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileSource {
    /// These contents.
    Contents(Vec<u8>),
    /// The file of this name that the program contains.
    BuiltIn(String),
    /// The file is the user's: it must exist on every node.
    Existing,
}

/// A file is missing on a node.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum RankFileError {
    /// The user's file does not exist.
    #[error(
        "{variable}={path}: no such file on this node, and all ranks must load the same: put it on a \
         file system that all nodes see, or install it on every node"
    )]
    Missing { variable: String, path: String },
    /// The program of this node does not contain the file.
    #[error("{variable}: this regatta does not contain {name}: run the same version on every node")]
    NotBuiltIn { variable: String, name: String },
    /// The copy cannot be written.
    #[error(
        "this node does not see the run folder, and {variable} cannot be copied to {path}: {source}; set \
         TMPDIR to a directory that is writable and not full, or --run-dir to a folder that all nodes see"
    )]
    Copy { variable: String, path: String, source: io::Error },
    /// NCCL would ignore the copy.
    #[error(
        "this node does not see the run folder, and NCCL does not take {path} as {variable}: it has a comma or \
         more than {MAX_PATH_BYTES} bytes; set TMPDIR to another directory, or --run-dir to a folder that all \
         nodes see"
    )]
    Path { variable: String, path: String },
}

/// Finds a file that the program contains.
pub type BuiltInFile<'a> = &'a dyn Fn(&str) -> Option<Vec<u8>>;

/// The copies of a node. Dropping them removes them.
#[derive(Debug, Default)]
pub struct NodeFiles {
    folder: Option<PathBuf>,
    copies: Vec<PathBuf>,
}

impl NodeFiles {
    /// Checks that this node sees the files. Those that it does not see, or with other contents, are
    /// copied to a new folder below `parent`, and the variables of the ranks are changed to the copies,
    /// whose variables are returned.
    pub fn provide(
        &mut self,
        files: &[RankFile],
        specs: &mut [RankSpec],
        parent: &Path,
        built_in: BuiltInFile<'_>,
    ) -> Result<Vec<String>, RankFileError> {
        let mut copied = Vec::new();
        for file in files {
            let Some(contents) = missing_contents(file, built_in)? else { continue };
            let copy = self.copy(file, &contents, parent)?;
            let settings = specs.iter_mut().flat_map(|spec| &mut spec.env);
            for (_, value) in settings.filter(|(name, _)| *name == file.variable) {
                *value = Some(copy.clone());
            }
            copied.push(file.variable.clone());
        }
        Ok(copied)
    }

    /// Writes a copy and returns its path.
    fn copy(
        &mut self,
        file: &RankFile,
        contents: &[u8],
        parent: &Path,
    ) -> Result<String, RankFileError> {
        let failed = |path: &Path, source| RankFileError::Copy {
            variable: file.variable.clone(),
            path: path.display().to_string(),
            source,
        };
        let folder = match &self.folder {
            Some(folder) => folder.clone(),
            None => create_folder(parent).map_err(|error| failed(parent, error))?,
        };
        self.folder = Some(folder.clone());
        let path = folder.join(Path::new(&file.path).file_name().unwrap_or_default());
        let bytes = path.as_os_str().as_encoded_bytes();
        if bytes.len() > MAX_PATH_BYTES || bytes.contains(&b',') {
            let (variable, path) = (file.variable.clone(), path.display().to_string());
            return Err(RankFileError::Path { variable, path });
        }
        let written = write(&path, contents).map_err(|error| failed(&path, error));
        if !self.copies.contains(&path) {
            self.copies.push(path.clone());
        }
        written?;
        let not_utf8 = || io::Error::new(io::ErrorKind::InvalidFilename, "the path is not UTF-8");
        path.to_str().map(str::to_owned).ok_or_else(|| failed(&path, not_utf8()))
    }
}

impl Drop for NodeFiles {
    fn drop(&mut self) {
        self.copies.iter().for_each(|copy| drop(std::fs::remove_file(copy)));
        let _ = self.folder.as_ref().map(std::fs::remove_dir);
    }
}

/// The contents of a file that this node does not see; `None` if it sees the file.
fn missing_contents(
    file: &RankFile,
    built_in: BuiltInFile<'_>,
) -> Result<Option<Vec<u8>>, RankFileError> {
    let (variable, path) = (&file.variable, Path::new(&file.path));
    let contents = match &file.source {
        FileSource::Existing if path.is_file() => return Ok(None),
        FileSource::Existing => {
            let (variable, path) = (variable.clone(), file.path.clone());
            return Err(RankFileError::Missing { variable, path });
        }
        FileSource::Contents(contents) => contents.clone(),
        FileSource::BuiltIn(name) => built_in(name).ok_or_else(|| RankFileError::NotBuiltIn {
            variable: variable.clone(),
            name: name.clone(),
        })?,
    };
    Ok((!has_contents(path, &contents)).then_some(contents))
}

/// Whether a regular file has these contents. An earlier job may have left another one at the path.
fn has_contents(path: &Path, contents: &[u8]) -> bool {
    let has_length =
        |file: std::fs::Metadata| file.is_file() && file.len() == contents.len() as u64;
    std::fs::metadata(path).is_ok_and(has_length)
        && std::fs::read(path).is_ok_and(|found| found == contents)
}

/// Creates a folder for this user alone. Its name is random: another user could occupy one that can be
/// predicted.
fn create_folder(parent: &Path) -> io::Result<PathBuf> {
    let random = Secret::generate()?.to_hex();
    let folder = parent.join(format!("{PREFIX}{}", &random[..RANDOM_DIGITS]));
    DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

/// Writes a file. A process that has loaded an older one keeps it: the file is replaced, not changed.
fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(contents)?;
        file.set_permissions(Permissions::from_mode(0o755))?;
        std::fs::rename(&part, path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&part)))
}

#[cfg(test)]
mod tests {
    use regatta_model::MemoryPolicy;

    use super::*;
    use crate::cpu_binding::Binding;

    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new() -> Self {
            let path = create_folder(&std::env::temp_dir()).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap();
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        }

        fn file(&self, name: &str, source: FileSource) -> RankFile {
            let path = self.0.join(name).to_str().unwrap().to_owned();
            RankFile { variable: format!("PATH_OF_{}", name.to_uppercase()), path, source }
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn specs(files: &[RankFile]) -> Vec<RankSpec> {
        let env: Vec<_> =
            files.iter().map(|f| (f.variable.clone(), Some(f.path.clone()))).collect();
        let spec = |rank| RankSpec {
            rank,
            command: Vec::new(),
            cwd: None,
            base_env: Vec::new(),
            env_remove_prefixes: Vec::new(),
            env: env.clone(),
            binding: Binding::new(&Default::default(), &MemoryPolicy::Default),
            input: None,
        };
        vec![spec(0), spec(1)]
    }

    fn library(name: &str) -> Option<Vec<u8>> {
        (name == "library").then(|| b"library".to_vec())
    }

    #[test]
    fn node_that_sees_the_files_uses_them() {
        let folder = TestFolder::new();
        let files = [
            folder.file("table", FileSource::Contents(b"rows".to_vec())),
            folder.file("library", FileSource::BuiltIn("library".to_owned())),
            folder.file("own", FileSource::Existing),
        ];
        for (name, text) in [("table", "rows"), ("library", "library"), ("own", "any")] {
            std::fs::write(folder.0.join(name), text).unwrap();
        }
        let (mut ranks, mut node) = (specs(&files), NodeFiles::default());
        let copied = node.provide(&files, &mut ranks, &folder.0, &library).unwrap();
        assert!(copied.is_empty());
        assert_eq!(ranks[1].env, specs(&files)[1].env);
        assert_eq!(folder.names().len(), 3);
    }

    #[test]
    fn missing_and_stale_files_are_copied_for_all_ranks_and_removed_at_the_end() {
        let folder = TestFolder::new();
        let files = [
            folder.file("table", FileSource::Contents(b"rows".to_vec())),
            folder.file("library", FileSource::BuiltIn("library".to_owned())),
        ];
        // Of an earlier job, with the same length.
        std::fs::write(folder.0.join("table"), "ROWS").unwrap();
        let (mut ranks, mut node) = (specs(&files), NodeFiles::default());
        // Twice: the job is restarted.
        for _ in 0..2 {
            ranks = specs(&files);
            let copied = node.provide(&files, &mut ranks, &folder.0, &library).unwrap();
            assert_eq!(copied, ["PATH_OF_TABLE", "PATH_OF_LIBRARY"]);
        }
        for (setting, text) in [(0, "rows"), (1, "library")] {
            let path = ranks[0].env[setting].1.clone().unwrap();
            assert_eq!(ranks[1].env[setting].1.as_ref(), Some(&path));
            assert!(path.contains(PREFIX), "{path}");
            assert_eq!(std::fs::read_to_string(path).unwrap(), text);
        }
        assert_eq!(folder.names().len(), 2, "one folder for all copies");
        drop(node);
        assert_eq!(folder.names(), ["table"]);
    }

    #[test]
    fn file_that_the_node_cannot_get_is_an_error() {
        let folder = TestFolder::new();
        let provide = |file: RankFile, parent: &Path| {
            let files = [file];
            let mut node = NodeFiles::default();
            let provided = node.provide(&files, &mut specs(&files), parent, &library);
            provided.unwrap_err().to_string()
        };
        let error = provide(folder.file("own", FileSource::Existing), &folder.0);
        assert!(error.starts_with("PATH_OF_OWN=") && error.contains("no such file"), "{error}");
        let other = FileSource::BuiltIn("other".to_owned());
        let error = provide(folder.file("other", other), &folder.0);
        assert!(error.contains("does not contain other"), "{error}");
        let table = folder.file("table", FileSource::Contents(Vec::new()));
        let error = provide(table, Path::new("/dev/null"));
        assert!(error.contains("PATH_OF_TABLE cannot be copied to /dev/null"), "{error}");
        let with_comma = folder.0.join("a,b");
        std::fs::create_dir(&with_comma).unwrap();
        let table = folder.file("table", FileSource::Contents(Vec::new()));
        let error = provide(table, &with_comma);
        assert!(error.contains("NCCL does not take /") && error.contains("TMPDIR"), "{error}");
        assert_eq!(std::fs::read_dir(with_comma).unwrap().count(), 0);
    }
}
