//! The bodies of the fuzz targets. The fuzz targets and the replay test both include this file, so
//! both run the same checks on the corpora.

use std::collections::{BTreeSet, HashSet};
use std::fmt::{Debug, Display};
use std::path::Path;
use std::time::{Duration, Instant};

use regatta_discover::loader::elf::{dynamic, exported_symbols};
use regatta_discover::loader::parse_ld_cache;
use regatta_discover::{hostfile, hwloc, job_state};
use regatta_doctor::collect::library_version;
use regatta_doctor::{Diagnosis, JobFacts};
use regatta_events::file::{self, BlockEncoder, Record};
use regatta_events::status;
use regatta_fabric::net::handle::Handle;
use regatta_fabric::net::hello::Hello;
use regatta_fabric::net::{CONTROL_BYTES, ClearToSend};
use regatta_launch::agents::agent_state::{AgentInput, AgentState};
use regatta_launch::agents::bootstrap_document::JobTimeouts;
use regatta_launch::agents::message::{Downstream, Registration, Upstream, decode};
use regatta_launch::agents::node_table::{NodeTable, TableInput};
use regatta_launch::agents::tree::Tree;
use regatta_launch::channel::MAX_FRAME_LEN;
use regatta_measure::baseline::{Tolerance, check};
use regatta_measure::compare::{CompareOptions, compare};
use regatta_measure::{plot, read, write};
use regatta_model::document::{Document, from_json, to_json, to_json_line};
use regatta_model::{Allocation, BenchResult, CpuSet, Machine, Placement, hostlist, run_folder};
use regatta_nccl_tuning::Table;
use regatta_observe::comms::trace::{FileTrace, TimeRange, TraceText, tracks};
use regatta_observe::comms::{Analysis, Attempts, Collector, CommsReport};
use regatta_observe::net_log::{NetLog, NetReport, report};
use regatta_observe::read::LineSplitter;
use regatta_train::checkpoint::header;
use regatta_train::checkpoint::huggingface::{config as hf_config, import};
use regatta_train::checkpoint::manifest::{self, Manifest, Sidecar};
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
pub const TARGETS: [(&str, Body); 27] = [
    ("hostlist", Body::Text(host_list)),
    ("cpuset", Body::Text(cpuset)),
    ("hostfile", Body::Text(host_file)),
    ("hwloc_xml", Body::Text(hwloc_xml)),
    ("job_state", Body::Text(job_states)),
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
    ("net_log", Body::Bytes(net_log)),
    ("elf_symbols", Body::Bytes(elf_symbols)),
    ("ld_cache", Body::Bytes(ld_cache)),
    ("doctor_facts", Body::Text(doctor_facts)),
    ("event_file", Body::Bytes(event_file)),
    ("comms_status", Body::Bytes(comms_status)),
    ("run_records", Body::Bytes(run_records)),
    ("nccl_tuning", Body::Text(nccl_tuning)),
    ("net_handle", Body::Bytes(net_handle)),
    ("net_hello", Body::Bytes(net_hello)),
    ("net_clear_to_send", Body::Bytes(net_clear_to_send)),
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

/// Logs of NCCL are judged in any chunks, and reports round trip. The first byte is the chunk length.
fn net_log(data: &[u8]) {
    let Some((&chunk, log)) = data.split_first() else { return };
    let judge = |chunk: usize| {
        let mut facts = NetLog::default();
        let source = facts.add_source("log", None);
        log.chunks(chunk).for_each(|part| facts.read(source, part));
        facts.finish(source);
        report::report(&facts, Some(&written("ofi/GDRDMA".parse())))
    };
    let whole = judge(log.len().max(1));
    assert_eq!(whole, judge(usize::from(chunk).max(1)));
    assert_eq!(written(from_json::<NetReport>(&written(to_json(&whole)))), whole);
}

/// Event files are summarised and traced whatever they hold, reports round trip, and operations round
/// trip. A wrong checksum would hide all other checks, so the input is also read as a valid block.
fn event_file(data: &[u8]) {
    summarize(data);
    let mut block = file::MAGIC.to_vec();
    block.extend((data.len() as u32).to_le_bytes());
    block.extend(crc32fast::hash(data).to_le_bytes());
    block.extend(data);
    summarize(&block);
    let operations = operations(&block);
    let mut encoder = BlockEncoder::default();
    let mut again = file::MAGIC.to_vec();
    for operation in &operations {
        encoder.push(operation);
        if encoder.is_full() {
            again.extend(encoder.take_block());
        }
    }
    again.extend(encoder.take_block());
    assert_eq!(self::operations(&again), operations);
}

/// Records of a run are read in any pieces, and known ones round trip. The first byte is the length of a
/// piece.
fn run_records(data: &[u8]) {
    let Some((&piece, text)) = data.split_first() else { return };
    let split = |piece: usize| {
        let mut splitter = LineSplitter::<{ 1 << 24 }>::default();
        let (mut lines, mut skipped) = (Vec::new(), 0);
        for part in text.chunks(piece) {
            splitter.push(part, |line, is_complete| match is_complete {
                true => lines.push(line.to_vec()),
                false => skipped += 1,
            });
        }
        (lines, skipped)
    };
    let (lines, skipped) = split(text.len().max(1));
    assert_eq!((&lines, skipped), (&split(usize::from(piece).max(1)).0, 0));
    for record in lines.iter().filter_map(|line| run_folder::Record::parse(line).ok()) {
        let again = written(run_folder::Record::parse(written(record.to_line()).as_bytes()));
        if !matches!(record.event, run_folder::RunEvent::Other(_)) {
            assert_eq!(written(again.to_line()), written(record.to_line()));
        }
    }
}

fn operations(bytes: &[u8]) -> Vec<Record> {
    let mut found = Vec::new();
    let keep = |record: Record| {
        if matches!(record, Record::Operation(_)) {
            found.push(record);
        }
    };
    written(file::read(bytes, keep));
    found
}

/// The report and the trace of an event file.
fn summarize(bytes: &[u8]) {
    let mut collector = Collector::new("input".to_owned(), 100);
    let end = written(file::read(bytes, |record| collector.add(record)));
    let mut analysis = Analysis::default();
    analysis.add(collector.finish(Ok(end)));
    let selected = analysis.select(Attempts::All);
    let report = analysis.report(&selected);
    assert_eq!(written(from_json::<CommsReport>(&written(to_json(&report)))), report);
    let mut text = TraceText::new();
    for (position, track) in tracks(&selected).into_iter().enumerate() {
        let mut trace = FileTrace::new(&selected, position, track, 0, TimeRange::ALL);
        trace.begin(&mut text);
        written(file::read(bytes, |record| trace.add(&record, &mut text)));
    }
    text.finish();
    written(serde_json::from_str::<serde_json::Value>(&text.take()));
}

/// A status that can be read is read again after it was written. The input is also read as a slot with a
/// valid header.
fn comms_status(data: &[u8]) {
    let mut slot = vec![0; 8];
    slot.extend((data.len() as u32).to_le_bytes());
    slot.extend(crc32fast::hash(data).to_le_bytes());
    slot.extend(*b"rst\x01");
    slot.extend(data);
    for bytes in [data, &slot] {
        let Some(found) = status::decode(bytes) else { continue };
        let again = status::decode(&status::encode_slot(&found, 1));
        let again = again.unwrap_or_else(|| panic!("round trip: {found:?}"));
        assert_eq!((again.host_time, again.process.pid), (found.host_time, found.process.pid));
        assert!(again.communicators.len() <= found.communicators.len());
    }
}

/// Facts of nodes can be judged whatever they say; facts and diagnoses round trip.
fn doctor_facts(text: &str) {
    let Some(facts) = checked(from_json::<JobFacts>(text), text) else { return };
    assert_eq!(written(from_json::<JobFacts>(&written(to_json(&facts)))), facts);
    let diagnosis = regatta_doctor::judge(&facts, &BTreeSet::new());
    assert_eq!(written(from_json::<Diagnosis>(&written(to_json(&diagnosis)))), diagnosis);
    assert!(diagnosis.bad_nodes.len() <= diagnosis.nodes);
}

/// Tuning tables of NCCL round trip, and select only what NCCL has.
fn nccl_tuning(text: &str) {
    use regatta_nccl_tuning::select::{Call, CostTable, Decision, Rules, select};
    let Some(table) = checked(text.parse::<Table>(), text) else { return };
    assert_eq!(written(table.to_string().parse::<Table>()), table);
    for communicator in table.communicators() {
        let rules = Rules::new(&table, communicator);
        for row in table.rows.iter().filter(|row| row.communicator == communicator) {
            let (function, bytes) = (row.function, row.sizes.last);
            let costs = &mut CostTable { costs: &mut [1.0; 21], protocols: 3 };
            let call = Call { function, bytes, is_aggregated: false };
            let Decision::Chosen(choice) = select(&rules, call, costs) else {
                panic!("{row} applies to nothing");
            };
            assert!(choice.algorithm.supports(function, choice.protocol));
        }
    }
}

/// Handles of the network plug-in round trip.
fn net_handle(data: &[u8]) {
    let Some(handle) = data.first_chunk().and_then(Handle::decode) else { return };
    assert_eq!(Handle::decode(&handle.encode()), Some(handle));
}

/// Handshakes of the network plug-in are encoded to the same bytes.
fn net_hello(data: &[u8]) {
    if let Some(hello) = Hello::decode(data) {
        assert_eq!(hello.encode(), data);
    }
}

/// Clear-to-sends of the network plug-in are encoded to the same bytes.
fn net_clear_to_send(data: &[u8]) {
    let Some(message) = ClearToSend::decode(data) else { return };
    let mut bytes = [0; CONTROL_BYTES];
    let length = message.encode(&mut bytes);
    assert_eq!(&bytes[..length], data);
}

/// Exported symbols and needed libraries of a shared library are names in its file, which end with a
/// zero. Versions of NCCL are numbers.
fn elf_symbols(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let symbols = checked(exported_symbols(data), &text);
    let dynamic = checked(dynamic(data), &text).unwrap_or_default();
    let names = [dynamic.soname, dynamic.rpath, dynamic.runpath].into_iter().flatten();
    for name in symbols.into_iter().flatten().chain(dynamic.needed).chain(names) {
        assert_is_string_of(name, data);
    }
    if let Some((_, version)) = written(library_version(data)) {
        assert!(version.contains('.') && version.len() <= 32);
    }
}

/// Names and paths of the loader's cache are strings in its file.
fn ld_cache(data: &[u8]) {
    for (name, paths) in parse_ld_cache(data) {
        assert!(!paths.is_empty());
        paths.into_iter().chain([name]).for_each(|text| assert_is_string_of(text, data));
    }
}

/// Asserts that a text is a string of the file that ends with a zero.
fn assert_is_string_of(text: &str, data: &[u8]) {
    assert!(!text.is_empty() && !text.contains('\0'));
    let start = text.as_ptr().addr() - data.as_ptr().addr();
    assert_eq!(data[start + text.len()], 0);
}

/// Jobs in the output of any scheduler's command have an ID, and reasons are single lines.
fn job_states(text: &str) {
    use job_state::{parse_flux_jobs, parse_qstat, parse_sacct, parse_squeue};
    for parse in [parse_squeue, parse_sacct, parse_qstat, parse_flux_jobs] {
        let jobs = parse(text);
        assert_eq!(jobs, parse(text));
        for job in jobs {
            assert!(!job.id.is_empty());
            assert!(job.reason.is_none_or(|reason| !reason.contains('\n')));
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
    let timeouts = JobTimeouts { grace, join, lost_after: grace };
    let mut agent = AgentState::new(registration, Tree { nodes: 4, fan_out: 2 }, timeouts, now);
    let mut table = NodeTable::new(&hosts, grace);
    agent.handle(AgentInput::Connected(0u8), now);
    let mut rest = data;
    while let Some((&length, more)) = rest.split_first() {
        let (payload, more) = more.split_at(more.len().min(length as usize));
        rest = more;
        if let Ok(up) = decode::<Upstream>(payload) {
            table.handle(TableInput::Upstream(1, up.clone()), now);
            agent.handle(AgentInput::Upstream(1, up), now);
        }
        if let Ok(down) = decode::<Downstream>(payload) {
            agent.handle(AgentInput::Downstream(down), now);
        }
        now += Duration::from_secs(1);
        table.handle(TableInput::Tick, now);
        agent.handle(AgentInput::Tick, now);
    }
    table.handle(TableInput::Closed(1, String::new()), now);
    agent.handle(AgentInput::Closed(1, String::new()), now);
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
    assert!(decoded <= bytes.len());
    assert_eq!(checked(result, "").is_some(), decoded == bytes.len());
}

/// The payloads in a stream that arrives in chunks, and the error that ends it.
fn decode_frames(bytes: &[u8], chunk: usize) -> (Vec<Vec<u8>>, Result<(), FrameError>) {
    let mut decoder = FrameDecoder::new(MAX_FRAME_LEN);
    let mut frames = Vec::new();
    for chunk in bytes.chunks(chunk) {
        if let Err(error) = decoder.push(chunk, |frame| frames.push(frame)) {
            return (frames, Err(error));
        }
    }
    (frames, decoder.finish())
}

/// The value of a parser. Its error message is not empty, and bounded by the input's length.
fn checked<T, E: Display>(result: Result<T, E>, input: &str) -> Option<T> {
    let message = match result {
        Ok(value) => return Some(value),
        Err(error) => error.to_string(),
    };
    assert!(!message.is_empty());
    // A quoted input may have each byte escaped.
    assert!(message.len() <= 1000 + input.len() * 10, "an error of {} bytes", message.len());
    None
}

/// Expanded host lists round trip through compression.
fn host_list(text: &str) {
    let Some(hosts) = checked(hostlist::expand(text), text) else { return };
    // Expanded names contain no brackets, and separators only within brackets.
    let short = hostlist::compress(&hosts);
    assert_eq!(hostlist::expand(&short).as_ref(), Ok(&hosts), "compressed to {short:?}");
}

/// CPU sets round trip as list and as mask.
fn cpuset(text: &str) {
    let both = [text.parse(), CpuSet::from_mask(text)];
    for set in both.into_iter().filter_map(|set| checked(set, text)) {
        assert_eq!(set.to_string().parse().as_ref(), Ok(&set));
        assert_eq!(CpuSet::from_mask(&set.to_mask()).as_ref(), Ok(&set));
        assert_eq!(set.iter().count(), set.len());
        assert_eq!(set.ranges().iter().map(|(a, b)| b - a + 1).sum::<usize>(), set.len());
    }
}

/// The hosts of a host file are unique.
fn host_file(text: &str) {
    let Some(lines) = checked(hostfile::parse(text), text) else { return };
    let hosts = hostfile::merge_hosts(&lines);
    let distinct: HashSet<&str> = hosts.iter().map(|h| h.host.as_str()).collect();
    assert_eq!(distinct.len(), hosts.len());
    assert_eq!(hosts.is_empty(), lines.is_empty());
}

/// Parsing a topology is deterministic, and the machine round trips through JSON.
fn hwloc_xml(text: &str) {
    let Some(machine) = checked(hwloc::parse(text), text) else { return };
    assert_eq!(hwloc::parse(text).as_ref(), Ok(&machine));
    check_round_trip(&machine);
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
    let Some(all) = checked(read::read("input", text), text) else { return };
    for result in &all {
        check_round_trip(result);
        check(result, &all[0], Tolerance { fraction: 0.1 }).failures();
        write::nccl_tests(result);
    }
    let csv = write::csv(&all);
    // JSON documents may contain values that CSV cannot represent; rooflines and pairs are not read.
    let tables_only = all.iter().all(|r| r.roofline.is_empty() && r.pairs.is_none());
    if !text.trim_start().starts_with('{') && tables_only && csv.lines().count() > 1 {
        assert_eq!(write::csv(&written(read::read("values", &csv))), csv);
    }
    compare(&all, CompareOptions::default()).iter().for_each(|comparison| drop(comparison.text()));
    plot::html("input", &all, None);
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
    let header = Header::parse(data, data.len() as u64, Path::new("input"));
    if let Some(header) = checked(header, "") {
        assert_eq!(header.tokens * header.token_bytes, (data.len() - HEADER_BYTES) as u64);
    }
}

/// Tokenizers round trip, and decoding inverts encoding.
fn tokenizer(file: &str) {
    let path = Path::new("input");
    let parsed = Tokenizer::from_bytes(file.as_bytes(), path);
    let Some(tokenizer) = checked(parsed, file) else { return };
    let reread = written(Tokenizer::from_bytes(&tokenizer.to_bytes(), path));
    assert_eq!(reread.fingerprint(), tokenizer.fingerprint());
    for text in ["the crew's ready:\n\n 12 knots", "Größe \u{1f6a3}  ", file] {
        if let Some(tokens) = checked(tokenizer.encode(text), text) {
            assert!(tokens.iter().all(|token| (*token as usize) < tokenizer.vocab_size()));
            assert_eq!(tokenizer.decode(&tokens).ok().as_deref(), Some(text));
        }
    }
}

/// The value of a parser or writer that must accept its input, because this program wrote or read it.
fn written<T, E: Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("round trip: {error}"))
}

fn document<T: Document + PartialEq + Debug>(text: &str) {
    if let Some(document) = checked(from_json::<T>(text), text) {
        check_round_trip(&document);
    }
}

fn check_round_trip<T: Document + PartialEq + Debug>(document: &T) {
    for json in [to_json(document), to_json_line(document)] {
        assert_eq!(&written(from_json::<T>(&written(json))), document);
    }
}

/// A responder receives untrusted bytes instead of a handshake, or after one. The first byte selects
/// which, and the length of the chunks.
fn link(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let (authenticated, chunk) = (first >= 128, usize::from(first % 128) + 1);
    let now = Instant::now();
    let (events, result) = receive(authenticated, bytes, bytes.len().max(1), now);
    let in_chunks = receive(authenticated, bytes, chunk, now);
    assert_eq!((&events, &result), (&in_chunks.0, &in_chunks.1), "the chunk length matters");
    checked(result, "");
    assert!(events.is_empty(), "bytes of a peer without the secret were accepted");
}

/// The events of a responder that receives bytes in chunks, and the error that ends them.
fn receive(
    authenticated: bool,
    bytes: &[u8],
    chunk: usize,
    now: Instant,
) -> (Vec<LinkEvent>, Result<(), LinkError>) {
    let second = Duration::from_secs(1);
    let timing = Timing { handshake: second, heartbeat: second, lost_after: 2 * second };
    // A new secret for each input, so that no input can contain a valid proof.
    let Ok(secret) = Secret::generate() else { return (Vec::new(), Ok(())) };
    let mut responder = Link::new(Role::Responder, &secret, [1; 32], timing, now);
    let mut events = Vec::new();
    if authenticated {
        let mut initiator = Link::new(Role::Initiator, &secret, [2; 32], timing, now);
        while !responder.is_ready() {
            transfer(&mut initiator, &mut responder, now);
            transfer(&mut responder, &mut initiator, now);
        }
    }
    for chunk in bytes.chunks(chunk) {
        if let Err(error) = responder.receive(chunk, now, &mut events) {
            return (events, Err(error));
        }
    }
    assert!(responder.tick(now + second / 2).is_ok());
    assert_eq!(responder.is_ready(), authenticated);
    (events, Ok(()))
}

/// Delivers all pending bytes.
fn transfer(from: &mut Link, to: &mut Link, now: Instant) {
    assert!(to.receive(from.pending(), now, &mut Vec::new()).is_ok());
    from.advance(from.pending().len());
}

/// Manifests and sidecars of checkpoints round trip.
fn checkpoint(text: &str) {
    if let Some(manifest) = checked(Manifest::parse(text), text) {
        assert_eq!(Manifest::parse(&manifest::to_text(&manifest)), Ok(manifest));
    }
    if let Some(sidecar) = checked(Sidecar::parse(text), text) {
        assert_eq!(Sidecar::parse(&manifest::to_text(&sidecar)), Ok(sidecar));
    }
}

/// Model configurations have parameters and round trip; an index names only files in its own folder.
fn huggingface(text: &str) {
    if let Some(shape) = checked(hf_config::parse(text), text) {
        assert!(shape.num_params() > 0);
        let written = hf_config::to_text(&shape);
        assert_eq!(written.and_then(|text| hf_config::parse(&text)), Ok(shape));
    }
    if let Some(files) = checked(import::parse_index(text), text) {
        assert!(files.iter().all(|file| !file.contains('/')));
    }
}

/// Configurations, as a file and as command-line arguments, round trip, and a valid plan uses all
/// ranks.
fn config(text: &str) {
    let path = Path::new("input.toml");
    let arguments: Vec<&str> = text.lines().collect();
    let file = Base::File(path.to_owned(), text.to_owned());
    for result in [resolve::<&str>(Some(file), &[]), resolve(None, &arguments)] {
        let Some(resolved) = checked(result, text) else { continue };
        assert_eq!(written(Config::from_toml(path, &resolved.to_toml())), resolved.config);
        for ranks in [1, 2, 6, 64] {
            if let Some(plan) = checked(resolved.config.validate(ranks), text) {
                assert_eq!(plan.mesh.ranks(), ranks);
            }
        }
        if let Ok(shape) = resolved.config.shape(65) {
            assert!(shape.num_params() > 0);
        }
    }
}

/// Tensors of a safetensors file start after its header, and their lengths match their shapes.
fn safetensors(data: &[u8]) {
    let tensors = checked(header::parse(data), &String::from_utf8_lossy(data));
    for tensor in tensors.iter().flat_map(|tensors| tensors.values()) {
        assert!(tensor.bytes.start >= 8 + data.len() as u64);
        let bits = tensor.shape.iter().product::<usize>() * tensor.dtype.bitsize();
        assert_eq!((tensor.bytes.end - tensor.bytes.start) * 8, bits as u64);
    }
}
