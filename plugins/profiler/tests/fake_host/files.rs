//! Reads what the plug-in wrote.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use regatta_events::file::{self, Lost, ReadEnd, Record};
use regatta_events::operation::{
    Algorithm, Communicator, DataType, Name, Operation, OperationKind, Process, Protocol, Timing,
};

use crate::plan::Expected;

/// The content of an event file.
#[derive(Debug)]
pub struct Content {
    pub end: ReadEnd,
    pub process: Option<Process>,
    pub communicators: HashMap<u32, Communicator>,
    pub names: HashMap<Name, String>,
    pub operations: Vec<Operation>,
    pub lost: Lost,
}

/// Paths of the event files of a folder.
pub fn event_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|e| e == file::EXTENSION)).collect()
}

/// Reads an event file.
pub fn read(path: &Path) -> Content {
    let mut content = Content {
        end: ReadEnd::Open,
        process: None,
        communicators: HashMap::new(),
        names: HashMap::new(),
        operations: Vec::new(),
        lost: Lost::default(),
    };
    let input = BufReader::new(File::open(path).unwrap());
    content.end = file::read(input, |record| match record {
        Record::Process(process) => content.process = Some(process),
        Record::Name(name, text) => drop(content.names.insert(name, text)),
        Record::Communicator(communicator) => {
            // Written again after a block that could not be written.
            let previous = content.communicators.insert(communicator.index, communicator.clone());
            assert!(previous.is_none_or(|previous| previous == communicator));
        }
        Record::Operation(operation) => {
            assert!(content.communicators.contains_key(&operation.communicator));
            content.operations.push(operation);
        }
        Record::Lost(lost) => content.lost = lost,
        Record::Clock(_) | Record::End => {}
    })
    .unwrap();
    content
}

impl Content {
    /// The operations, in the order of [`Expected`].
    pub fn recorded(&self) -> Vec<Expected> {
        let mut all: Vec<_> = self.operations.iter().map(|operation| self.of(operation)).collect();
        all.sort();
        all
    }

    fn of(&self, operation: &Operation) -> Expected {
        let name = |name: Name| self.names[&name].clone();
        let device =
            (operation.timing == Timing::Device).then_some((operation.start, operation.end));
        Expected {
            communicator: operation.communicator,
            kind: match operation.kind {
                OperationKind::Other(other) => name(other),
                kind => kind.known_name().unwrap().to_owned(),
            },
            peer: operation.peer,
            index: operation.index,
            sequence: operation.sequence,
            dtype: match operation.dtype {
                DataType::Other(other) => name(other),
                dtype => dtype.known_name().unwrap().to_owned(),
            },
            count: operation.count,
            bytes: operation.bytes,
            algorithm: match operation.algorithm {
                Algorithm::Other(other) => name(other),
                algorithm => algorithm.known_name().unwrap().to_owned(),
            },
            protocol: match operation.protocol {
                Protocol::Other(other) => name(other),
                protocol => protocol.known_name().unwrap().to_owned(),
            },
            channels: operation.channels,
            captured: operation.captured,
            timing: format!("{:?}", operation.timing),
            device,
            network: operation.network.map(|network| network.sent),
        }
    }
}
