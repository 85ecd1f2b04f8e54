//! The bodies of the fuzz targets. The fuzz targets and the replay test both include this file, so
//! both run the same checks on the corpora.

use std::path::Path;
use std::time::{Duration, Instant};

use regatta_discover::hostfile;
use regatta_launch::agents::agent_state::{self, AgentState, AgentTimeouts};
use regatta_launch::agents::message::{Downstream, Registration, Upstream, decode};
use regatta_launch::agents::node_table::{self, NodeTable};
use regatta_launch::agents::tree::Tree;
use regatta_launch::channel::MAX_FRAME_LEN;
use regatta_measure::baseline::{Tolerance, check};
use regatta_measure::compare::{CompareOptions, compare};
use regatta_measure::{plot, read, write};
use regatta_model::document::{Document, from_json, to_json, to_json_line};
use regatta_model::{Allocation, BenchResult, CpuSet, Machine, Placement, hostlist};
use regatta_train::checkpoint::header;
use regatta_train::checkpoint::huggingface::{config as hf_config, import};
use regatta_train::checkpoint::manifest::{Manifest, Sidecar};
use regatta_train::config::{Base, Config, resolve};
use regatta_train::data::Tokenizer;
use regatta_train::data::token_file::{HEADER_BYTES, Header};
use regatta_wire::framing::{FrameDecoder, FrameError};
use regatta_wire::link::{Link, LinkError, LinkEvent, Role, Timing};
use regatta_wire::secret::Secret;
use sha2::{Digest, Sha256};

/// The body of a fuzz target.
#[derive(Clone, Copy)]
pub enum Body {
    /// The parser takes `&str`; inputs that are not UTF-8 are skipped.
    Text(fn(&str)),
    /// The parser takes any bytes.
    Bytes(fn(&[u8])),
}

/// The targets by name; each has a corpus folder of the same name.
pub const TARGETS: [(&str, Body); 15] = [
    ("hostlist", Body::Text(host_list)),
    ("cpuset", Body::Text(cpuset)),
    ("hostfile", Body::Text(host_file)),
    ("hwloc_xml", Body::Text(hwloc_xml)),
    ("documents", Body::Text(documents)),
    ("link", Body::Bytes(link)),
    ("agent_message", Body::Bytes(agent_message)),
    ("channel", Body::Bytes(channel)),
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
        panic!("unknown fuzz target {target:?}");
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

/// No sequence of messages from an authenticated peer makes an agent or a coordinator panic. Each
/// message is preceded by its length in one byte.
fn agent_message(data: &[u8]) {
    let mut now = Instant::now();
    let hosts: Vec<String> = (0..4).map(|n| format!("n{n}")).collect();
    let registration = Registration { node: 0, machine: String::new(), port: None };
    let (grace, join) = (Duration::from_secs(10), Duration::from_secs(60));
    let timeouts = AgentTimeouts { grace, join, rejoin: grace };
    let mut agent = AgentState::new(registration, Tree { nodes: 4, fan_out: 2 }, timeouts, now);
    let mut table = NodeTable::new(&hosts, grace);
    agent.handle(agent_state::AgentInput::Connected(0u8), now);
    let mut rest = data;
    while let Some((&length, more)) = rest.split_first() {
        let (payload, more) = more.split_at(more.len().min(length as usize));
        rest = more;
        if let Ok(up) = decode::<Upstream>(payload) {
            table.handle(node_table::TableInput::Upstream(1, up.clone()), now);
            agent.handle(agent_state::AgentInput::Upstream(1, up), now);
        }
        if let Ok(down) = decode::<Downstream>(payload) {
            agent.handle(agent_state::AgentInput::Downstream(down), now);
        }
        now += Duration::from_secs(1);
        table.handle(node_table::TableInput::Tick, now);
        agent.handle(agent_state::AgentInput::Tick, now);
    }
    table.handle(node_table::TableInput::Closed(1, String::new()), now);
    agent.handle(agent_state::AgentInput::Closed(1, String::new()), now);
}

/// Frames from a rank decode to the same payloads however the stream is split. The first byte is the
/// length of the chunks.
fn channel(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let (frames, result) = decode_frames(bytes, bytes.len().max(1));
    let in_chunks = decode_frames(bytes, usize::from(first) + 1);
    assert_eq!((&frames, &result), (&in_chunks.0, &in_chunks.1), "the chunk length matters");
    let prefix = size_of::<u32>();
    let decoded: usize = frames.iter().map(|payload| prefix + payload.len()).sum();
    match result {
        Ok(()) => assert_eq!(decoded, bytes.len()),
        Err(error) => {
            assert!(decoded < bytes.len());
            check_error(&error, "");
        }
    }
}

/// The payloads in a stream that arrives in chunks, and the error that ends it.
fn decode_frames(bytes: &[u8], chunk: usize) -> (Vec<Vec<u8>>, Result<(), FrameError>) {
    let mut decoder = FrameDecoder::new(MAX_FRAME_LEN, None);
    let mut frames = Vec::new();
    for chunk in bytes.chunks(chunk) {
        if let Err(error) = decoder.push(chunk, |frame| frames.push(frame)) {
            return (frames, Err(error));
        }
    }
    (frames, decoder.finish())
}

/// An error message is not empty, and bounded by the input's length.
fn check_error(error: &dyn std::fmt::Display, input: &str) {
    let message = error.to_string();
    assert!(!message.is_empty());
    // A quoted input may have each byte escaped.
    assert!(message.len() <= 1000 + input.len() * 10, "an error of {} bytes", message.len());
}

/// Expanded host lists round trip through compression.
fn host_list(text: &str) {
    match hostlist::expand(text) {
        Ok(hosts) => {
            // Expanded names contain no brackets, and separators only within brackets.
            let short = hostlist::compress(&hosts);
            assert_eq!(hostlist::expand(&short).as_ref(), Ok(&hosts), "compressed to {short:?}");
        }
        Err(error) => check_error(&error, text),
    }
}

/// CPU sets round trip as list and as mask.
fn cpuset(text: &str) {
    let list: Result<CpuSet, _> = text.parse();
    for parsed in [list, CpuSet::from_mask(text)] {
        match parsed {
            Ok(set) => {
                assert_eq!(set.to_string().parse().as_ref(), Ok(&set));
                assert_eq!(CpuSet::from_mask(&set.to_mask()).as_ref(), Ok(&set));
                assert_eq!(set.iter().count(), set.len());
                assert_eq!(set.ranges().iter().map(|(a, b)| b - a + 1).sum::<usize>(), set.len());
            }
            Err(error) => check_error(&error, text),
        }
    }
}

/// The hosts of a host file are unique.
fn host_file(text: &str) {
    match hostfile::parse(text) {
        Ok(lines) => {
            let hosts = hostfile::merge_hosts(&lines);
            let distinct: std::collections::HashSet<&str> =
                hosts.iter().map(|h| h.host.as_str()).collect();
            assert_eq!(distinct.len(), hosts.len());
            assert_eq!(hosts.is_empty(), lines.is_empty());
        }
        Err(error) => check_error(&error, text),
    }
}

/// Parsing a topology is deterministic, and the machine round trips through JSON.
fn hwloc_xml(text: &str) {
    match regatta_discover::hwloc::parse(text) {
        Ok(machine) => {
            assert_eq!(regatta_discover::hwloc::parse(text).as_ref(), Ok(&machine));
            check_round_trip(&machine);
        }
        Err(error) => check_error(&error, text),
    }
}

/// Documents round trip.
fn documents(text: &str) {
    document::<Machine>(text);
    document::<Placement>(text);
    document::<Allocation>(text);
    document::<BenchResult>(text);
}

/// Benchmark results round trip as JSON and CSV, and can be compared, checked against a baseline and
/// plotted.
fn bench(text: &str) {
    let all = match read::read("input", text) {
        Ok(all) => all,
        Err(error) => return check_error(&error, text),
    };
    for result in &all {
        check_round_trip(result);
        check(result, &all[0], Tolerance { fraction: 0.1 }).failures();
        write::nccl_tests(result);
    }
    let csv = write::csv(&all);
    // JSON documents may contain values that CSV cannot represent.
    if !text.trim_start().starts_with('{') && csv.lines().count() > 1 {
        match read::read("values", &csv) {
            Ok(reread) => assert_eq!(write::csv(&reread), csv),
            Err(error) => panic!("cannot read the CSV that was written: {error}\n{csv}"),
        }
    }
    compare(&all, CompareOptions::default()).iter().for_each(|comparison| drop(comparison.text()));
    plot::html("input", &all);
}

/// The header of a token file matches the file's length. A wrong checksum would hide all other
/// checks, so the input is also parsed with a valid one.
fn tokens(data: &[u8]) {
    token_header(data);
    let mut valid = data.to_vec();
    if let Some((fields, rest)) = valid.split_at_mut_checked(80)
        && let Some(checksum) = rest.first_chunk_mut::<32>()
    {
        checksum.copy_from_slice(&Sha256::digest(fields));
        token_header(&valid);
    }
}

fn token_header(data: &[u8]) {
    match Header::parse(data, data.len() as u64, Path::new("input")) {
        Ok(header) => {
            let bytes = header.tokens * header.token_bytes;
            assert_eq!(bytes, (data.len() - HEADER_BYTES) as u64);
        }
        Err(error) => check_error(&error, ""),
    }
}

/// Tokenizers round trip, and decoding inverts encoding.
fn tokenizer(file: &str) {
    let path = Path::new("input");
    let tokenizer = match Tokenizer::from_bytes(file.as_bytes(), path) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return check_error(&error, file),
    };
    match Tokenizer::from_bytes(&tokenizer.to_bytes(), path) {
        Ok(reread) => assert_eq!(reread.fingerprint(), tokenizer.fingerprint()),
        Err(error) => panic!("cannot read the tokenizer that was written: {error}"),
    }
    for text in ["the crew's ready:\n\n 12 knots", "Größe \u{1f6a3}  ", file] {
        match tokenizer.encode(text) {
            Ok(tokens) => {
                assert!(tokens.iter().all(|token| (*token as usize) < tokenizer.vocab_size()));
                assert_eq!(tokenizer.decode(&tokens).ok().as_deref(), Some(text));
            }
            Err(error) => check_error(&error, text),
        }
    }
}

fn document<T: Document + PartialEq + std::fmt::Debug>(text: &str) {
    match from_json::<T>(text) {
        Ok(document) => check_round_trip(&document),
        Err(error) => check_error(&error, text),
    }
}

fn check_round_trip<T: Document + PartialEq + std::fmt::Debug>(document: &T) {
    for json in [to_json(document), to_json_line(document)] {
        match json {
            Ok(text) => match from_json::<T>(&text) {
                Ok(reread) => assert_eq!(&reread, document),
                Err(error) => panic!("cannot read the document that was written: {error}\n{text}"),
            },
            Err(error) => panic!("cannot write the document that was read: {error}"),
        }
    }
}

/// A responder receives untrusted bytes instead of a handshake, or after one. The first byte selects
/// which, and the length of the chunks.
fn link(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let (authenticated, chunk) = (first >= 128, usize::from(first % 128) + 1);
    let now = Instant::now();
    let (events, error) = receive(authenticated, bytes, bytes.len().max(1), now);
    let in_chunks = receive(authenticated, bytes, chunk, now);
    assert_eq!((&events, &error), (&in_chunks.0, &in_chunks.1), "the chunk length matters");
    if let Some(error) = error {
        check_error(&error, "");
    }
    assert!(authenticated || events.is_empty(), "an unauthenticated peer was accepted");
    let frame_len = |event: &LinkEvent| match event {
        LinkEvent::Frame(payload) => size_of::<u32>() + payload.len(),
        LinkEvent::Ready => 0,
    };
    assert!(events.iter().map(frame_len).sum::<usize>() <= bytes.len());
}

/// The events of a responder that receives bytes in chunks, and the error that ends them.
fn receive(
    authenticated: bool,
    bytes: &[u8],
    chunk: usize,
    now: Instant,
) -> (Vec<LinkEvent>, Option<LinkError>) {
    let second = Duration::from_secs(1);
    let timing = Timing { handshake: second, heartbeat: second, lost_after: 2 * second };
    // A new secret for each input, so that no input can contain a valid proof.
    let Ok(secret) = Secret::generate() else { return (Vec::new(), None) };
    let mut responder = Link::new(Role::Responder, &secret, [1; 32], timing, now);
    let mut events = Vec::new();
    if authenticated {
        let mut initiator = Link::new(Role::Initiator, &secret, [2; 32], timing, now);
        complete_handshake(&mut initiator, &mut responder, now);
    }
    for chunk in bytes.chunks(chunk) {
        if let Err(error) = responder.receive(chunk, now, &mut events) {
            return (events, Some(error));
        }
    }
    assert!(responder.tick(now + second / 2).is_ok());
    assert_eq!(responder.is_ready(), authenticated);
    (events, None)
}

fn complete_handshake(initiator: &mut Link, responder: &mut Link, now: Instant) {
    while !responder.is_ready() {
        transfer(initiator, responder, now);
        transfer(responder, initiator, now);
    }
}

/// Delivers all pending bytes.
fn transfer(from: &mut Link, to: &mut Link, now: Instant) {
    assert!(to.receive(from.pending(), now, &mut Vec::new()).is_ok());
    from.advance(from.pending().len());
}

/// Manifests and sidecars of checkpoints round trip.
fn checkpoint(text: &str) {
    match Manifest::parse(text) {
        Ok(manifest) => assert_eq!(Manifest::parse(&manifest.to_text()), Ok(manifest)),
        Err(error) => check_error(&error, text),
    }
    match Sidecar::parse(text) {
        Ok(sidecar) => assert_eq!(Sidecar::parse(&sidecar.to_text()), Ok(sidecar)),
        Err(error) => check_error(&error, text),
    }
}

/// Model configurations have parameters and round trip; an index names only files in its own folder.
fn huggingface(text: &str) {
    match hf_config::parse(text) {
        Ok(shape) => {
            assert!(shape.num_params() > 0);
            let written = hf_config::to_text(&shape);
            assert_eq!(written.and_then(|text| hf_config::parse(&text)), Ok(shape));
        }
        Err(error) => check_error(&error, text),
    }
    match import::parse_index(text) {
        Ok(files) => assert!(files.iter().all(|file| !file.contains('/'))),
        Err(error) => check_error(&error, text),
    }
}

/// Configurations, as a file and as command-line arguments, round trip, and a valid plan uses all
/// ranks.
fn config(text: &str) {
    let path = Path::new("input.toml");
    let arguments: Vec<&str> = text.lines().collect();
    let file = Base::File(path.to_owned(), text.to_owned());
    for result in [resolve::<&str>(Some(file), &[]), resolve(None, &arguments)] {
        let resolved = match result {
            Ok(resolved) => resolved,
            Err(error) => {
                check_error(&error, text);
                continue;
            }
        };
        match Config::from_toml(path, &resolved.to_toml()) {
            Ok(reread) => assert_eq!(reread, resolved.config),
            Err(error) => panic!("cannot read the configuration that was written: {error}"),
        }
        for ranks in [1, 2, 6, 64] {
            match resolved.config.validate(ranks) {
                Ok(plan) => assert_eq!(plan.mesh.ranks(), ranks),
                Err(error) => check_error(&error, text),
            }
        }
        if let Ok(shape) = resolved.config.shape(65) {
            assert!(shape.num_params() > 0);
        }
    }
}

/// Tensors of a safetensors file start after its header, and their lengths match their shapes.
fn safetensors(data: &[u8]) {
    match header::parse(data) {
        Ok(tensors) => {
            for tensor in tensors.values() {
                assert!(tensor.bytes.start >= 8 + data.len() as u64);
                let bits = tensor.shape.iter().product::<usize>() * tensor.dtype.bitsize();
                assert_eq!((tensor.bytes.end - tensor.bytes.start) * 8, bits as u64);
            }
        }
        Err(error) => check_error(&error, &String::from_utf8_lossy(data)),
    }
}
