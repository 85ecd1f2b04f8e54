//! What each fuzz target does with its input. The targets and the replay test both include this
//! file, so that a corpus means the same to both.

use regatta_discover::nodefile;
use regatta_model::document::{Document, from_json, to_json, to_json_line};
use regatta_model::{Allocation, CpuSet, Machine, Placement, hostlist};

type Body = fn(&str);

/// The targets by name; each has a folder of this name in the corpus.
pub const TARGETS: [(&str, Body); 5] =
    [("hostlist", hosts), ("cpuset", cpus), ("nodefile", nodes), ("xml", xml), ("json", json)];

/// Runs one target on one input. What is no text is no input: the readers take `&str`.
pub fn run(target: &str, data: &[u8]) {
    let Some((_, body)) = TARGETS.iter().find(|(name, _)| *name == target) else {
        panic!("there is no fuzz target {target:?}");
    };
    if let Ok(text) = std::str::from_utf8(data) {
        body(text);
    }
}

/// An error is one sentence of bearable length for any input.
fn sentence(error: &dyn std::fmt::Display, input: &str) {
    let message = error.to_string();
    assert!(!message.is_empty());
    // Quoting may write each byte of the input as an escape.
    assert!(message.len() <= 1000 + input.len() * 10, "an error of {} bytes", message.len());
}

/// An expression expands, or says why not; what it expands to survives being compressed.
fn hosts(text: &str) {
    match hostlist::expand(text) {
        Ok(hosts) => {
            // Brackets cannot be in a name that was expanded, separators can only be in brackets.
            let short = hostlist::compress(&hosts);
            assert_eq!(hostlist::expand(&short).as_ref(), Ok(&hosts), "compressed to {short:?}");
        }
        Err(error) => sentence(&error, text),
    }
}

/// Each spelling that is read can be written and read back.
fn cpus(text: &str) {
    let list: Result<CpuSet, _> = text.parse();
    for read in [list, CpuSet::from_mask(text)] {
        match read {
            Ok(set) => {
                assert_eq!(set.to_string().parse().as_ref(), Ok(&set));
                assert_eq!(CpuSet::from_mask(&set.to_mask()).as_ref(), Ok(&set));
                assert_eq!(set.iter().count(), set.len());
                assert_eq!(set.ranges().iter().map(|(a, b)| b - a + 1).sum::<usize>(), set.len());
            }
            Err(error) => sentence(&error, text),
        }
    }
}

/// A node file is read, or its fault named; no host is listed twice.
fn nodes(text: &str) {
    match nodefile::parse(text) {
        Ok(lines) => {
            let hosts = nodefile::hosts(&lines);
            let distinct: std::collections::HashSet<&str> =
                hosts.iter().map(|h| h.host.as_str()).collect();
            assert_eq!(distinct.len(), hosts.len());
            assert_eq!(hosts.is_empty(), lines.is_empty());
        }
        Err(error) => sentence(&error, text),
    }
}

/// A topology gives a machine that survives being written, or one sentence.
fn xml(text: &str) {
    match regatta_discover::hwloc::parse(text) {
        Ok(machine) => {
            assert_eq!(regatta_discover::hwloc::parse(text).as_ref(), Ok(&machine));
            survives(&machine);
        }
        Err(error) => sentence(&error, text),
    }
}

/// Whatever is read as a document survives being written and read.
fn json(text: &str) {
    document::<Machine>(text);
    document::<Placement>(text);
    document::<Allocation>(text);
}

fn document<T: Document + PartialEq + std::fmt::Debug>(text: &str) {
    match from_json::<T>(text) {
        Ok(body) => survives(&body),
        Err(error) => sentence(&error, text),
    }
}

fn survives<T: Document + PartialEq + std::fmt::Debug>(body: &T) {
    for written in [to_json(body), to_json_line(body)] {
        match written {
            Ok(text) => match from_json::<T>(&text) {
                Ok(again) => assert_eq!(&again, body),
                Err(error) => panic!("written, but not read again: {error}\n{text}"),
            },
            Err(error) => panic!("read, but cannot be written: {error}"),
        }
    }
}
