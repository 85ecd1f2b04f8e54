//! Tuned algorithms on disk. A cache that cannot be read or written only costs time.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::gemm::Gemm;
use super::sys::{ALGORITHM_BYTES, Algorithm};
use crate::cache_dir::{hex, replace_file};

/// The tuned algorithms of one version of the library on one GPU model.
pub(crate) struct PlanCache {
    /// `None` keeps them in memory only.
    path: Option<PathBuf>,
    library: String,
    gpu: String,
    algorithms: HashMap<Gemm, Algorithm>,
    /// GEMMs whose algorithm in the file does not work.
    rejected: HashSet<Gemm>,
}

/// A line of the file. Library and GPU are repeated, because algorithms are valid for these only.
#[derive(Serialize, Deserialize)]
struct Record {
    library: String,
    gpu: String,
    gemm: Gemm,
    /// Hexadecimal.
    algorithm: String,
    checksum: String,
}

impl PlanCache {
    /// The cache in a directory, of a version of the library and a GPU model.
    pub fn open(directory: Option<&Path>, library: String, gpu: String) -> Self {
        let path =
            directory.map(|directory| directory.join("gemm").join(file_name(&library, &gpu)));
        let (algorithms, rejected) = (HashMap::new(), HashSet::new());
        Self { path, library, gpu, algorithms, rejected }
    }

    /// The algorithm of a GEMM. Reads the file again for an unknown GEMM: another process may have
    /// tuned it.
    pub fn get(&mut self, gemm: &Gemm) -> Option<Algorithm> {
        if !self.algorithms.contains_key(gemm) {
            self.read_file();
        }
        self.algorithms.get(gemm).copied()
    }

    /// Forgets an algorithm that does not work.
    pub fn reject(&mut self, gemm: &Gemm) {
        self.algorithms.remove(gemm);
        self.rejected.insert(*gemm);
    }

    /// Records a tuned algorithm and returns the one to use: that of another process which tuned the
    /// GEMM in the meantime, so that processes agree.
    pub fn insert(&mut self, gemm: Gemm, algorithm: Algorithm) -> Algorithm {
        self.read_file();
        if let Some(earlier) = self.algorithms.get(&gemm) {
            return *earlier;
        }
        self.algorithms.insert(gemm, algorithm);
        if let Some(path) = &self.path {
            // Without the file, later runs tune again.
            let _ = replace_file(path, &self.serialize());
        }
        algorithm
    }

    /// Adds the algorithms of the file, except damaged lines and rejected ones.
    fn read_file(&mut self) {
        let Some(bytes) = self.path.as_ref().and_then(|path| fs::read(path).ok()) else { return };
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(record) = serde_json::from_slice::<Record>(line) else { continue };
            let is_ours = record.library == self.library && record.gpu == self.gpu;
            if !is_ours || self.rejected.contains(&record.gemm) {
                continue;
            }
            if let Some(algorithm) = record.algorithm() {
                self.algorithms.entry(record.gemm).or_insert(algorithm);
            }
        }
    }

    fn serialize(&self) -> Vec<u8> {
        let mut lines: Vec<String> = self
            .algorithms
            .iter()
            .filter_map(|(gemm, algorithm)| {
                let record = Record::new(&self.library, &self.gpu, *gemm, algorithm);
                serde_json::to_string(&record).ok()
            })
            .collect();
        lines.sort();
        lines.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect()
    }
}

impl Record {
    fn new(library: &str, gpu: &str, gemm: Gemm, algorithm: &Algorithm) -> Self {
        let mut record = Self {
            library: library.to_owned(),
            gpu: gpu.to_owned(),
            gemm,
            algorithm: hex(&algorithm.0),
            checksum: String::new(),
        };
        record.checksum = record.expected_checksum();
        record
    }

    /// The algorithm; `None` if the record is damaged.
    fn algorithm(&self) -> Option<Algorithm> {
        let text = self.algorithm.as_bytes();
        if self.checksum != self.expected_checksum() || text.len() != 2 * ALGORITHM_BYTES {
            return None;
        }
        let mut bytes = [0; ALGORITHM_BYTES];
        for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Algorithm(bytes))
    }

    fn expected_checksum(&self) -> String {
        let gemm = format!("{:?}", self.gemm);
        let mut digest = Sha256::new();
        for part in [&self.library, &self.gpu, &gemm, &self.algorithm] {
            digest.update(part.as_bytes());
            digest.update([0]);
        }
        hex(&digest.finalize()[..8])
    }
}

fn file_name(library: &str, gpu: &str) -> String {
    let portable = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = format!("{library}-{gpu}").chars().map(portable).collect();
    format!("{name}.jsonl")
}

#[cfg(test)]
mod tests {
    use std::process;

    use regatta_comm::DType;
    use regatta_device::ops::LinearShape;

    use super::super::gemm::Epilogue;
    use super::*;

    /// A directory that is removed when dropped.
    struct TemporaryDirectory(PathBuf);

    impl TemporaryDirectory {
        fn new(name: &str) -> Self {
            let name = format!("regatta-plan-cache-{name}-{}", process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for TemporaryDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn gemm(rows: usize) -> Gemm {
        let shape = LinearShape { rows, inputs: 64, outputs: 256 };
        let gemm = Gemm::forward(shape, DType::Bf16, DType::Bf16);
        gemm.with_epilogue(Epilogue::GeluAuxBias(DType::Bf16))
    }

    fn algorithm(seed: u8) -> Algorithm {
        Algorithm(std::array::from_fn(|at| seed.wrapping_mul(37).wrapping_add(at as u8)))
    }

    fn open(directory: &TemporaryDirectory) -> PlanCache {
        PlanCache::open(Some(&directory.0), "cublaslt-130100".into(), "NVIDIA H200".into())
    }

    fn path(directory: &TemporaryDirectory) -> PathBuf {
        directory.0.join("gemm/cublaslt-130100-nvidia-h200.jsonl")
    }

    #[test]
    fn algorithms_survive_the_process() {
        let directory = TemporaryDirectory::new("round-trip");
        let mut cache = open(&directory);
        assert_eq!(cache.get(&gemm(8)), None);
        cache.insert(gemm(8), algorithm(1));
        cache.insert(gemm(16), algorithm(2));
        let mut cache = open(&directory);
        assert_eq!(cache.get(&gemm(8)), Some(algorithm(1)));
        assert_eq!(cache.get(&gemm(16)), Some(algorithm(2)));
        assert_eq!(cache.get(&gemm(24)), None);
        let files = fs::read_dir(directory.0.join("gemm")).unwrap().count();
        assert_eq!(files, 1, "temporary files are renamed");
    }

    #[test]
    fn the_first_of_several_processes_decides() {
        let directory = TemporaryDirectory::new("processes");
        let (mut first, mut second) = (open(&directory), open(&directory));
        assert_eq!(second.get(&gemm(8)), None);
        assert_eq!(first.insert(gemm(8), algorithm(1)), algorithm(1));
        assert_eq!(second.insert(gemm(8), algorithm(2)), algorithm(1));
        second.insert(gemm(16), algorithm(3));
        assert_eq!(first.get(&gemm(16)), Some(algorithm(3)));
    }

    #[test]
    fn rejected_algorithms_are_replaced() {
        let directory = TemporaryDirectory::new("rejected");
        open(&directory).insert(gemm(8), algorithm(1));
        let mut cache = open(&directory);
        assert_eq!(cache.get(&gemm(8)), Some(algorithm(1)));
        cache.reject(&gemm(8));
        assert_eq!(cache.get(&gemm(8)), None);
        assert_eq!(cache.insert(gemm(8), algorithm(2)), algorithm(2));
        assert_eq!(open(&directory).get(&gemm(8)), Some(algorithm(2)));
    }

    #[test]
    fn damaged_lines_are_ignored() {
        let directory = TemporaryDirectory::new("damage");
        let mut cache = open(&directory);
        for rows in 0..3 {
            cache.insert(gemm(8 + 8 * rows), algorithm(rows as u8));
        }
        let text = fs::read_to_string(path(&directory)).unwrap();
        let damaged: Vec<String> = (0..)
            .zip(text.lines())
            .map(|(at, line)| match at {
                0 => line.replacen("\"n\":", "\"n\":1", 1),
                1 => line[..line.len() / 2].to_owned(),
                _ => line.to_owned(),
            })
            .collect();
        let bytes = [b"\xff\xfe no JSON\n\n", damaged.join("\n").as_bytes()].concat();
        fs::write(path(&directory), bytes).unwrap();
        let mut cache = open(&directory);
        let found = (0..3).filter(|rows| cache.get(&gemm(8 + 8 * rows)).is_some()).count();
        assert_eq!(found, 1);
    }

    #[test]
    fn algorithms_of_other_libraries_and_gpus_are_ignored() {
        let directory = TemporaryDirectory::new("foreign");
        open(&directory).insert(gemm(8), algorithm(1));
        for (library, gpu) in [("cublaslt-120800", "NVIDIA H200"), ("cublaslt-130100", "A100")] {
            let mut cache = PlanCache::open(Some(&directory.0), library.into(), gpu.into());
            assert_eq!(cache.get(&gemm(8)), None);
            let own = directory.0.join("gemm").join(file_name(library, gpu));
            fs::copy(path(&directory), own).unwrap();
            assert_eq!(cache.get(&gemm(8)), None);
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_works_in_memory() {
        let directory = TemporaryDirectory::new("unwritable");
        fs::write(&directory.0, "a file where the directory should be").unwrap();
        for mut cache in [open(&directory), PlanCache::open(None, String::new(), String::new())] {
            cache.insert(gemm(8), algorithm(1));
            assert_eq!(cache.get(&gemm(8)), Some(algorithm(1)));
        }
        fs::remove_file(&directory.0).unwrap();
    }
}
