//! Labels of results, and how results of several files are told apart.

use std::path::{Path, PathBuf};

use regatta_model::bench::BenchShape;
use regatta_model::{BenchResult, units};

/// The label of a run without `--label`: backend, ranks and nodes.
pub fn default_label(backend: &str, shape: &BenchShape) -> String {
    let ranks = units::pluralize(shape.ranks.unwrap_or(0) as usize, "rank");
    let nodes = units::pluralize(shape.nodes.unwrap_or(0) as usize, "node");
    format!("{backend}, {ranks} on {nodes}")
}

/// Gives results of several files distinct labels. A default label is replaced by the name of the
/// file, an ambiguous one is prefixed with it, and what is then still ambiguous is numbered.
pub fn distinguish(results: &mut [(PathBuf, BenchResult)]) {
    let names = file_names(&results.iter().map(|(path, _)| path.as_path()).collect::<Vec<_>>());
    for ((_, result), name) in results.iter_mut().zip(&names) {
        let default = default_label(result.backend.as_deref().unwrap_or_default(), &result.shape);
        if result.label.is_empty() || result.label == default {
            result.label.clone_from(name);
        }
    }
    let labels = labels(results);
    for (at, (_, result)) in results.iter_mut().enumerate() {
        let elsewhere = |other: usize| labels[other] == labels[at] && names[other] != names[at];
        if (0..labels.len()).any(elsewhere) {
            result.label = format!("{}: {}", names[at], labels[at]);
        }
    }
    let labels = self::labels(results);
    for (at, (_, result)) in results.iter_mut().enumerate() {
        let same =
            |labels: &[String]| labels.iter().filter(|label| **label == result.label).count();
        if same(&labels) > 1 {
            result.label += &format!(" #{}", same(&labels[..=at]));
        }
    }
}

fn labels(results: &[(PathBuf, BenchResult)]) -> Vec<String> {
    results.iter().map(|(_, result)| result.label.clone()).collect()
}

/// The shortest names that differ for different files: without extension if possible, with as many
/// folders as necessary.
fn file_names(paths: &[&Path]) -> Vec<String> {
    let longest = paths.iter().map(|path| path.components().count()).max().unwrap_or(0);
    let stems: Vec<PathBuf> = paths.iter().map(|path| path.with_extension("")).collect();
    let whole: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
    let named = |paths: &[PathBuf], parts: usize| -> Vec<String> {
        paths.iter().map(|path| last_parts(path, parts)).collect()
    };
    let differ = |names: &Vec<String>| {
        let same = |(a, b): (usize, usize)| paths[a] != paths[b] && names[a] == names[b];
        !(0..paths.len()).flat_map(|a| (0..a).map(move |b| (a, b))).any(same)
    };
    let mut names = [&stems, &whole]
        .into_iter()
        .flat_map(|paths| (1..=longest).map(move |parts| named(paths, parts)));
    names.find(differ).unwrap_or_else(|| named(&whole, longest))
}

/// The last components of a path.
fn last_parts(path: &Path, parts: usize) -> String {
    let all: Vec<_> = path.components().collect();
    let last = &all[all.len().saturating_sub(parts)..];
    last.iter().collect::<PathBuf>().display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[&str]) -> Vec<String> {
        file_names(&paths.iter().map(Path::new).collect::<Vec<_>>())
    }

    #[test]
    fn file_names_are_as_short_as_possible() {
        assert_eq!(names(&["a.json", "x/b.json"]), ["a", "b"]);
        assert_eq!(names(&["runs/1/bench.json", "runs/2/bench.json"]), ["1/bench", "2/bench"]);
        assert_eq!(names(&["a.json", "a.csv", "b.json"]), ["a.json", "a.csv", "b.json"]);
        assert_eq!(names(&["bench.json", "old/bench.json"]), ["bench", "old/bench"]);
        assert_eq!(names(&["a.json", "a.json"]), ["a", "a"]);
        assert_eq!(names(&["-", "/x"]), ["-", "x"]);
        assert_eq!(names(&[]), [""; 0]);
    }

    #[test]
    fn results_of_several_files_have_distinct_labels() {
        let shape = BenchShape { ranks: Some(2), nodes: Some(1), ..BenchShape::default() };
        let default = "host, 2 ranks on 1 node";
        let labels = |labelled: &[(&str, &str)]| {
            let result = |(path, label): &(&str, &str)| {
                let (backend, label) = (Some("host".to_owned()), (*label).to_owned());
                let result =
                    BenchResult { backend, label, shape: shape.clone(), ..BenchResult::default() };
                (PathBuf::from(path), result)
            };
            let mut results: Vec<_> = labelled.iter().map(result).collect();
            distinguish(&mut results);
            super::labels(&results)
        };
        assert_eq!(labels(&[("a.json", default), ("b.json", default)]), ["a", "b"]);
        assert_eq!(labels(&[("a.json", "mine"), ("b.json", default)]), ["mine", "b"]);
        assert_eq!(labels(&[("a.json", "mine"), ("b.json", "mine")]), ["a: mine", "b: mine"]);
        assert_eq!(labels(&[("a.json", default), ("a.json", default)]), ["a #1", "a #2"]);
        let sweeps = [("a.json", "X=1"), ("a.json", "X=2"), ("b.json", "X=1")];
        assert_eq!(labels(&sweeps), ["a: X=1", "X=2", "b: X=1"]);
    }
}
