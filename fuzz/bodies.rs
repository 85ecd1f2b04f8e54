//! What each fuzz target does with its input. The targets and the replay test both include this
//! file, so that a corpus means the same to both.

use std::path::Path;
use std::time::{Duration, Instant};

use regatta_discover::nodefile;
use regatta_launch::fleet::member::{self, Member, Patience};
use regatta_launch::fleet::message::{Down, Hello, Up, decode};
use regatta_launch::fleet::roll::{self, Roll};
use regatta_launch::fleet::tree::Tree;
use regatta_measure::baseline::{Tolerance, judge};
use regatta_measure::compare::{Choice, compare};
use regatta_measure::{plot, read, write};
use regatta_model::document::{Document, from_json, to_json, to_json_line};
use regatta_model::{Allocation, BenchResult, CpuSet, Machine, Placement, hostlist};
use regatta_train::checkpoint::header;
use regatta_train::checkpoint::huggingface::{config as theirs, import};
use regatta_train::checkpoint::manifest::{Manifest, Sidecar};
use regatta_train::config::{Config, First, resolve};
use regatta_train::data::Tokenizer;
use regatta_train::data::token_file::{HEADER_BYTES, Header};
use regatta_wire::link::{Link, LinkError, Role, Step, Timing};
use regatta_wire::secret::Secret;
use sha2::{Digest, Sha256};

/// What a target does with an input.
#[derive(Clone, Copy)]
pub enum Body {
    /// What is no text is no input: the reader takes `&str`.
    Text(fn(&str)),
    /// Any bytes are input.
    Bytes(fn(&[u8])),
}

/// The targets by name; each has a folder of this name in the corpus.
pub const TARGETS: [(&str, Body); 14] = [
    ("hostlist", Body::Text(hosts)),
    ("cpuset", Body::Text(cpus)),
    ("nodefile", Body::Text(nodes)),
    ("xml", Body::Text(xml)),
    ("json", Body::Text(json)),
    ("link", Body::Bytes(link)),
    ("message", Body::Bytes(message)),
    ("bench", Body::Text(bench)),
    ("checkpoint", Body::Text(checkpoint)),
    ("huggingface", Body::Text(huggingface)),
    ("tokens", Body::Bytes(tokens)),
    ("tokenizer", Body::Text(tokenizer)),
    ("config", Body::Text(config)),
    ("safetensors", Body::Bytes(safetensors)),
];

/// Runs one target on one input.
pub fn run(target: &str, data: &[u8]) {
    let Some((_, body)) = TARGETS.iter().find(|(name, _)| *name == target) else {
        panic!("there is no fuzz target {target:?}");
    };
    match body {
        Body::Bytes(body) => body(data),
        Body::Text(body) => {
            if let Ok(text) = std::str::from_utf8(data) {
                body(text);
            }
        }
    }
}

/// Whatever an agent or a coordinator is told, by one that knows the secret, it goes on.
fn message(data: &[u8]) {
    let mut now = Instant::now();
    let hosts: Vec<String> = (0..4).map(|n| format!("n{n}")).collect();
    let hello = Hello { node: 0, machine: String::new(), port: None };
    let (grace, join) = (Duration::from_secs(10), Duration::from_secs(60));
    let patience = Patience { grace, join, rejoin: grace };
    let mut member = Member::new(hello, Tree { nodes: 4, fan_out: 2 }, patience, now);
    let mut roll = Roll::new(&hosts, grace);
    member.handle(member::Input::Joined(0u8), now);
    let mut rest = data;
    while let Some((&length, more)) = rest.split_first() {
        let (part, more) = more.split_at(more.len().min(length as usize));
        rest = more;
        if let Ok(up) = decode::<Up>(part) {
            roll.handle(roll::Input::Up(1, up.clone()), now);
            member.handle(member::Input::Up(1, up), now);
        }
        if let Ok(down) = decode::<Down>(part) {
            member.handle(member::Input::Down(down), now);
        }
        now += Duration::from_secs(1);
        roll.handle(roll::Input::Tick, now);
        member.handle(member::Input::Tick, now);
    }
    roll.handle(roll::Input::Closed(1, String::new()), now);
    member.handle(member::Input::Closed(1, String::new()), now);
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
    document::<BenchResult>(text);
}

/// Whatever is read as results survives being written, and can be written in other forms, compared,
/// judged and drawn.
fn bench(text: &str) {
    let all = match read::read("input", text) {
        Ok(all) => all,
        Err(error) => return sentence(&error, text),
    };
    for result in &all {
        survives(result);
        judge(result, &all[0], Tolerance { fraction: 0.1 }).failures();
        write::nccl_tests(result);
    }
    let values = write::csv(&all);
    // Our own documents may hold what has no place between commas.
    if !text.trim_start().starts_with('{') && values.lines().count() > 1 {
        match read::read("values", &values) {
            Ok(again) => assert_eq!(write::csv(&again), values),
            Err(error) => panic!("written, but not read again: {error}\n{values}"),
        }
    }
    compare(&all, Choice::default()).iter().for_each(|comparison| drop(comparison.text()));
    plot::html("input", &all);
}

/// The begin of a token file is read, or its fault named; what is read fits the file. Its own sum
/// would keep all else from being tried, so it is put right, too.
fn tokens(data: &[u8]) {
    header_of_tokens(data);
    let mut right = data.to_vec();
    if let Some((summed, rest)) = right.split_at_mut_checked(80)
        && let Some(sum) = rest.first_chunk_mut::<32>()
    {
        sum.copy_from_slice(&Sha256::digest(summed));
        header_of_tokens(&right);
    }
}

fn header_of_tokens(data: &[u8]) {
    match Header::parse(data, data.len() as u64, Path::new("input")) {
        Ok(header) => {
            let bytes = header.tokens * header.token_bytes;
            assert_eq!(bytes, (data.len() - HEADER_BYTES) as u64);
        }
        Err(error) => sentence(&error, ""),
    }
}

/// A tokenizer that is read gives texts back as they were, and is the same when it is read again.
fn tokenizer(file: &str) {
    let path = Path::new("input");
    let tokenizer = match Tokenizer::from_bytes(file.as_bytes(), path) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return sentence(&error, file),
    };
    match Tokenizer::from_bytes(&tokenizer.to_bytes(), path) {
        Ok(again) => assert_eq!(again.fingerprint(), tokenizer.fingerprint()),
        Err(error) => panic!("written, but not read again: {error}"),
    }
    for text in ["the crew's ready:\n\n 12 knots", "Größe \u{1f6a3}  ", file] {
        match tokenizer.encode(text) {
            Ok(tokens) => {
                assert!(tokens.iter().all(|token| (*token as usize) < tokenizer.vocabulary()));
                assert_eq!(tokenizer.decode(&tokens).ok().as_deref(), Some(text));
            }
            Err(error) => sentence(&error, text),
        }
    }
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

/// A listener's link takes foreign bytes, before an honest handshake or after one. The first byte
/// says which, and into chunks of what length the others are cut.
fn link(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let (honest, chunk) = (first >= 128, usize::from(first % 128) + 1);
    let now = Instant::now();
    let (steps, error) = hear(honest, bytes, bytes.len().max(1), now);
    let in_chunks = hear(honest, bytes, chunk, now);
    assert_eq!((&steps, &error), (&in_chunks.0, &in_chunks.1), "the cutting matters");
    if let Some(error) = error {
        sentence(&error, "");
    }
    assert!(honest || steps.is_empty(), "a stranger was let in");
    let length = |step: &Step| if let Step::Frame(payload) = step { 4 + payload.len() } else { 0 };
    assert!(steps.iter().map(length).sum::<usize>() <= bytes.len());
}

/// What a listener makes of foreign bytes that come in chunks.
fn hear(honest: bool, bytes: &[u8], chunk: usize, now: Instant) -> (Vec<Step>, Option<LinkError>) {
    let second = Duration::from_secs(1);
    let timing = Timing { handshake: second, beat: second, lost_after: 2 * second };
    // A new secret each time, so that no input can hold a proof.
    let Ok(secret) = Secret::generate() else { return (Vec::new(), None) };
    let mut listener = Link::new(Role::Listener, &secret, [1; 32], timing, now);
    let mut steps = Vec::new();
    if honest {
        let mut caller = Link::new(Role::Caller, &secret, [2; 32], timing, now);
        shake_hands(&mut caller, &mut listener, now);
    }
    for chunk in bytes.chunks(chunk) {
        if let Err(error) = listener.receive(chunk, now, &mut steps) {
            return (steps, Some(error));
        }
    }
    assert!(listener.tick(now + second / 2).is_ok());
    assert_eq!(listener.is_ready(), honest);
    (steps, None)
}

fn shake_hands(caller: &mut Link, listener: &mut Link, now: Instant) {
    while !listener.is_ready() {
        pass_on(caller, listener, now);
        pass_on(listener, caller, now);
    }
}

fn pass_on(from: &mut Link, to: &mut Link, now: Instant) {
    assert!(to.receive(from.pending(), now, &mut Vec::new()).is_ok());
    from.sent(from.pending().len());
}

/// What is believed about a checkpoint survives being written and read.
fn checkpoint(text: &str) {
    match Manifest::parse(text) {
        Ok(manifest) => assert_eq!(Manifest::parse(&manifest.to_text()), Ok(manifest)),
        Err(error) => sentence(&error, text),
    }
    match Sidecar::parse(text) {
        Ok(sidecar) => assert_eq!(Sidecar::parse(&sidecar.to_text()), Ok(sidecar)),
        Err(error) => sentence(&error, text),
    }
}

/// A model's sizes can be counted and written again; an index names files of its own folder.
fn huggingface(text: &str) {
    match theirs::parse(text) {
        Ok(shape) => {
            assert!(shape.parameters() > 0);
            let written = theirs::to_text(&shape);
            assert_eq!(written.and_then(|text| theirs::parse(&text)), Ok(shape));
        }
        Err(error) => sentence(&error, text),
    }
    match import::parse_index(text) {
        Ok(files) => assert!(files.iter().all(|file| !file.contains('/'))),
        Err(error) => sentence(&error, text),
    }
}

/// A configuration is taken or refused, as a file and as words; what is taken survives being written,
/// and a plan of it has every rank at work.
fn config(text: &str) {
    let path = Path::new("input.toml");
    let words: Vec<&str> = text.lines().collect();
    let file = First::File(path.to_owned(), text.to_owned());
    for read in [resolve::<&str>(Some(file), &[]), resolve(None, &words)] {
        let resolved = match read {
            Ok(resolved) => resolved,
            Err(error) => {
                sentence(&error, text);
                continue;
            }
        };
        match Config::from_toml(path, &resolved.to_toml()) {
            Ok(again) => assert_eq!(again, resolved.config),
            Err(error) => panic!("written, but not read again: {error}"),
        }
        for ranks in [1, 2, 6, 64] {
            match resolved.config.validate(ranks) {
                Ok(plan) => assert_eq!(plan.mesh.ranks(), ranks),
                Err(error) => sentence(&error, text),
            }
        }
        if let Ok(shape) = resolved.config.shape(65) {
            assert!(shape.parameters() > 0);
        }
    }
}

/// The header of a safetensors file: tensors are behind it, and as long as their shapes say.
fn safetensors(data: &[u8]) {
    match header::parse(data) {
        Ok(places) => {
            for place in places.values() {
                assert!(place.bytes.start >= 8 + data.len() as u64);
                let bits = place.shape.iter().product::<usize>() * place.dtype.bitsize();
                assert_eq!((place.bytes.end - place.bytes.start) * 8, bits as u64);
            }
        }
        Err(error) => sentence(&error, &String::from_utf8_lossy(data)),
    }
}
