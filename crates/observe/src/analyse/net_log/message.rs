//! What a message of NCCL, RCCL or a network plug-in says about the network. Covers NCCL 2.18 to 2.31 and
//! RCCL of the same versions, whose wording differs in places.

use memchr::memmem;

use super::fabric_plugin;
use super::log::{Device, MAX_LIST, Process, clip};
use super::record::parse_u32;
use super::report::{PluginReport, RankReport};
use super::transport::Direction;

/// Networks that NCCL brings along: their failure to initialise is that of a missing device, not that of
/// a plug-in.
pub const BUILT_IN: [&str; 2] = ["IB", "Socket"];

/// A message about a channel, whose record may be cut off, or any other.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The transport of a channel, behind `via`; `rank` is the rank that logged it.
    Channel { rank: u32, direction: Option<Direction>, via: &'a [u8] },
    /// The beginning of a channel line that continues in the next line.
    ChannelStart,
    /// The order of a ring.
    Ring,
    /// Any other: [`read_facts`] reads it.
    Other,
}

/// Parses an info message.
pub fn parse(message: &[u8]) -> Message<'_> {
    let message = message.trim_ascii();
    match message.strip_prefix(b"Channel ") {
        Some(rest) => channel(rest),
        None => collnet(message).unwrap_or(Message::Other),
    }
}

/// Adds to the facts of a process what a complete message says that is not about a channel; `None` if that
/// is nothing.
pub fn read_facts(message: &[u8], process: &mut Process, device: usize) -> Option<()> {
    let message = message.trim_ascii();
    let device = &mut process.devices[device];
    let facts = &mut process.facts;
    match message.first() {
        Some(b'N') => net(message, facts, &mut process.out_of_band),
        Some(b'C') => message.strip_prefix(b"Connected ").map(|_| device.connected = true),
        Some(b'G') => gdr(message, facts),
        Some(b'B') => bootstrap(message, facts),
        Some(b'U') => {
            message.strip_prefix(b"Using network ").map(|name| facts.network = Some(clip(name)))
        }
        _ => None,
    }
    .or_else(|| plugin(message, &mut facts.plugin, &mut facts.ib_missing))
    .or_else(|| communicator(message, device))
    .or_else(|| variable(message, facts))
    .or_else(|| version(message).map(|text| facts.library = Some(clip(text))))
}

/// `00/0 : 0[c1000] -> 1[c9000] [send] via NET/IB/0 comm 0x7f nRanks 80`. A line without an arrow is the
/// order of a ring.
fn channel(text: &[u8]) -> Message<'_> {
    let Some(colon) = memchr::memchr(b':', text) else { return Message::ChannelStart };
    let rest = text[colon + 1..].trim_ascii_start();
    let Some(arrow) = memmem::find(rest, b"->") else {
        return Message::Ring;
    };
    let sender = leading_number(rest);
    let after = rest[arrow + 2..].trim_ascii_start();
    let Some(at) = memmem::find(after, b" via ") else { return Message::ChannelStart };
    let (to, via) = (&after[..at], &after[at + 5..]);
    let direction = match () {
        () if to.ends_with(b"[receive]") => Some(Direction::Receive),
        () if to.ends_with(b"[send]") => Some(Direction::Send),
        () => None,
    };
    let rank = match direction {
        Some(Direction::Receive) => leading_number(to),
        _ => sender,
    };
    match rank {
        Some(rank) => Message::Channel { rank, direction, via: strip_comm(via) },
        None => Message::Ring,
    }
}

/// Without RCCL's ` comm 0x7f nRanks 80`.
fn strip_comm(via: &[u8]) -> &[u8] {
    let end = memmem::find(via, b" comm ").unwrap_or(via.len());
    via[..end].trim_ascii_end()
}

fn leading_number(text: &[u8]) -> Option<u32> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    parse_u32(&text[..digits])
}

/// `CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA`
fn collnet(message: &[u8]) -> Option<Message<'_>> {
    let rest = message.strip_prefix(b"CollNet ")?;
    let rest = rest[memchr::memchr(b':', rest)? + 1..].trim_ascii_start();
    let at = memmem::find(rest, b" via ")?;
    let direction = match rest[..at].ends_with(b"[receive]") {
        true => Direction::Receive,
        false => Direction::Send,
    };
    let rank = leading_number(rest)?;
    Some(Message::Channel { rank, direction: Some(direction), via: strip_comm(&rest[at + 5..]) })
}

/// `NET/IB : Using ...`: the text behind a name and an optional colon.
fn after_name<'a>(message: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let rest = message.strip_prefix(name.as_bytes())?.trim_ascii_start();
    Some(rest.strip_prefix(b":").unwrap_or(rest).trim_ascii())
}

/// The list of interfaces or devices of a network: `[0]hsn0:10.1.1.1<0> [1]...`.
fn device_list<'a>(message: &'a [u8], network: &str) -> Option<&'a [u8]> {
    let list = after_name(message, network)?.strip_prefix(b"Using ")?.trim_ascii_start();
    list.starts_with(b"[").then_some(list)
}

/// The list of TCP interfaces.
pub fn socket_interfaces(message: &[u8]) -> Option<&[u8]> {
    device_list(message.trim_ascii(), "NET/Socket")
}

fn net(message: &[u8], facts: &mut RankReport, out_of_band: &mut Option<String>) -> Option<()> {
    if let Some(list) = socket_interfaces(message) {
        let found = devices(list).take(MAX_LIST);
        facts.sockets = found.map(|(at, name, _)| (at, clip(name))).collect();
    } else if let Some(list) = device_list(message, "NET/IB") {
        let found = devices(list).take(MAX_LIST);
        facts.ib_devices = found.map(|(at, name, link)| (at, ib_name(name, link))).collect();
        *out_of_band = interface_of_oob(list).map(clip);
    } else if let Some(text) = after_name(message, "NET/IB") {
        facts.ib_missing |= text.starts_with(b"No device found");
    } else if let Some(text) = after_name(message, "NET/OFI") {
        ofi(text, &mut facts.plugin);
    } else if !fabric_plugin::read_facts(message, facts) {
        net_plugin(after_name(message, "NET/Plugin")?, &mut facts.plugin);
    }
    Some(())
}

/// Name of an InfiniBand device, with the kind of its network if the log has it.
fn ib_name(name: &[u8], link: &[u8]) -> String {
    let name = clip(name);
    match clip(link).rsplit('/').next() {
        Some(link @ ("IB" | "RoCE")) => format!("{name} ({link})"),
        _ => name,
    }
}

/// Messages of the libfabric plug-in for NCCL and RCCL.
fn ofi(text: &[u8], plugin: &mut PluginReport) {
    if let Some(rest) = strip_any(text, [b"Selected Provider is ", b"Selected provider is "]) {
        plugin.provider = Some(clip(until(rest, b", (")));
    } else if let Some(rest) = text.strip_prefix(b"Using Libfabric version ") {
        plugin.libfabric = Some(clip(rest));
    } else if let Some(rest) = strip_any(text, [b"Using ", b"Initializing "])
        && rest.starts_with(b"aws-ofi-")
    {
        plugin.package = Some(clip(rest));
    }
}

/// Messages of NCCL about the plug-in.
fn net_plugin(text: &[u8], plugin: &mut PluginReport) {
    if let Some(rest) = text.strip_prefix(b"Loaded net plugin ") {
        let open = memchr::memrchr(b'(', rest).filter(|at| rest.ends_with(b")") && *at > 0);
        let name = open.map_or(rest, |at| &rest[..at]);
        plugin.name = Some(clip(name));
        if let Some(at) = open {
            plugin.api = Some(clip(&rest[at + 1..rest.len() - 1]));
        }
    } else if let Some(rest) = text.strip_prefix(b"Could not find:") {
        plugin.on_not_found(rest);
    } else if memmem::find(text, b"No plugin found").is_some() {
        let library = memchr::memchr(b'(', text).map(|at| until(&text[at + 1..], b")"));
        plugin.on_not_found(library.unwrap_or_default());
    } else if memmem::find(text, b"cannot open shared object file: No such file").is_some()
        && missing_is_plugin(text)
    {
        plugin.on_not_found(text);
    } else {
        const HARMLESS: [&[u8]; 7] = [
            b"Failed to find ",
            b"Using internal",
            b"Loaded coll",
            b"Loaded Coll",
            b"Plugin name set by env",
            b"NET/",
            b"Loaded ",
        ];
        let is_harmless = HARMLESS.iter().any(|prefix| text.starts_with(prefix));
        // What remains is an error of the dynamic loader, as `LIBRARY: libfabric.so.1: undefined symbol`.
        if !is_harmless && text.contains(&b':') {
            plugin.on_failure(text);
        }
    }
}

impl PluginReport {
    /// The first one is the library that was asked for.
    fn on_not_found(&mut self, text: &[u8]) {
        self.not_found.get_or_insert_with(|| clip(text));
    }

    fn on_failure(&mut self, text: &[u8]) {
        self.failure.get_or_insert_with(|| clip(text));
    }
}

/// Whether the library that the dynamic loader did not find is the plug-in, and not one that the plug-in
/// needs.
fn missing_is_plugin(text: &[u8]) -> bool {
    let Some(at) = memmem::find(text, b": cannot open shared object file") else { return false };
    let name = text[..at].rsplit(|b| *b == b' ').next().unwrap_or_default();
    // `PLUGIN: LIBRARY: cannot open`: the plug-in is named first.
    let named = text[..at].split(|b| *b == b' ').next().unwrap_or_default();
    let is_net = memmem::find(name, b"-net").is_some() || memmem::find(name, b"net.so").is_some();
    is_net || named == name
}

/// Messages about plug-ins without `NET/Plugin`.
fn plugin(message: &[u8], plugin: &mut PluginReport, ib_missing: &mut bool) -> Option<()> {
    const LIBRARY: [&[u8]; 2] =
        [b"Successfully loaded external network plugin ", b"Successfully loaded external plugin "];
    let is_built_in = |network: &[u8]| BUILT_IN.iter().any(|name| name.as_bytes() == network);
    if let Some(rest) = strip_any(message, LIBRARY) {
        plugin.library = Some(clip(rest));
    } else if let Some(name) = message.strip_prefix(b"Initialized NET plugin ") {
        if !is_built_in(name) {
            plugin.name = Some(clip(name));
        }
    } else if let Some(name) = message.strip_prefix(b"Failed to initialize NET plugin ") {
        match name {
            b"IB" => *ib_missing = true,
            _ if is_built_in(name) => {}
            _ => plugin.on_failure(message),
        }
    } else if message.starts_with(b"External network plugin ") && message.ends_with(b"unsupported")
    {
        plugin.on_failure(message);
    } else {
        // RCCL 2.30: `ncclOsDlopen(librccl-net.so) failed: librccl-net.so: cannot open ...`
        let rest = message.strip_prefix(b"ncclOsDlopen(")?;
        memmem::find(rest, b"-net")?;
        match memmem::find(rest, b"No such file") {
            Some(_) => plugin.on_not_found(until(rest, b")")),
            None => plugin.on_failure(message),
        }
    }
    Some(())
}

fn bootstrap(message: &[u8], facts: &mut RankReport) -> Option<()> {
    let text = after_name(message, "Bootstrap")?.strip_prefix(b"Using ")?;
    facts.bootstrap = Some(clip(until(text.trim_ascii(), b":")));
    Some(())
}

/// Why NIC and GPU are not close enough for GPUDirect RDMA.
fn gdr(message: &[u8], facts: &mut RankReport) -> Option<()> {
    let text = message.strip_prefix(b"GPU Direct RDMA ")?;
    if text.starts_with(b"Disabled") {
        facts.gdr_disabled.get_or_insert_with(|| clip(text));
    }
    Some(())
}

/// Rank and size of a communicator, and its number of nodes: `ncclCommInitRank comm 0x1 rank 3 nranks 16
/// cudaDev 3 ... - Init COMPLETE` and `comm 0x1 rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0`.
fn communicator(message: &[u8], device: &mut Device) -> Option<()> {
    let at = memmem::find(message, b" rank ")?;
    memmem::find(&message[..at], b"comm 0x")?;
    let mut words = message[at + 6..].split(|b| *b == b' ');
    let rank = parse_u32(words.next()?)?;
    let key = words.next()?;
    if !key.eq_ignore_ascii_case(b"nranks") {
        return None;
    }
    let ranks = parse_u32(words.next()?)?;
    let nodes = (words.next() == Some(b"nNodes")).then(|| words.next().and_then(parse_u32));
    let is_larger = device.communicator.is_none_or(|(_, known)| ranks >= known);
    if rank < ranks && is_larger {
        device.communicator = Some((rank, ranks));
        device.nodes = nodes.flatten().or(device.nodes);
    }
    Some(())
}

/// An environment variable that NCCL has read: `NCCL_IB_DISABLE set by environment to 1.`
fn variable(message: &[u8], facts: &mut RankReport) -> Option<()> {
    let (name, rest) = message.split_at(memchr::memchr(b' ', message)?);
    let is_name = name.starts_with(b"NCCL_") || name.starts_with(b"RCCL_");
    let rest = is_name.then_some(rest)?;
    let value = strip_any(rest, [b" set by environment to ", b" set to "])?.trim_ascii();
    if facts.variables.len() < MAX_LIST {
        let value = value.strip_suffix(b".").unwrap_or(value);
        facts.variables.entry(clip(name)).or_insert_with(|| clip(value));
    }
    Some(())
}

/// `NCCL version 2.28.9+cuda13.0`, `RCCL version 2.18.6+hip6.0 HEAD:abc`, `RCCL version : 2.21.5-HEAD:9a0`.
/// Also in lines without a header.
pub fn version(message: &[u8]) -> Option<&[u8]> {
    let rest = strip_any(message, [b"NCCL version ", b"RCCL version "])?.trim_ascii_start();
    let number = rest.strip_prefix(b":").unwrap_or(rest).trim_ascii_start();
    number.first().is_some_and(u8::is_ascii_digit).then_some(message)
}

/// Name and network of each element of `[0]hsn0:10.1.1.1<0> [1]mlx5_0:1/RoCE [RO]; OOB ib0:...`.
fn devices(list: &[u8]) -> impl Iterator<Item = (u32, &[u8], &[u8])> {
    let end = memchr::memchr(b';', list).unwrap_or(list.len());
    list[..end].split(|b| *b == b'[').filter_map(|element| {
        let close = element.iter().position(|b| *b == b']')?;
        let index = parse_u32(&element[..close])?;
        let element = element[close + 1..].trim_ascii();
        let colon = element.iter().position(|b| *b == b':').unwrap_or(element.len());
        let (name, rest) = element.split_at(colon);
        (!name.is_empty()).then_some((index, name, rest.strip_prefix(b":").unwrap_or(rest)))
    })
}

/// The interface behind `; OOB ` of a list of InfiniBand devices.
fn interface_of_oob(list: &[u8]) -> Option<&[u8]> {
    let at = memmem::find(list, b"OOB ")?;
    Some(until(&list[at + 4..], b":")).filter(|name| !name.is_empty())
}

/// The text after one of these prefixes.
fn strip_any<'a, const N: usize>(text: &'a [u8], prefixes: [&[u8]; N]) -> Option<&'a [u8]> {
    prefixes.iter().find_map(|prefix| text.strip_prefix(*prefix))
}

/// The text before the first of these bytes.
fn until<'a>(text: &'a [u8], stop: &[u8]) -> &'a [u8] {
    let end = text.iter().position(|b| stop.contains(b)).unwrap_or(text.len());
    text[..end].trim_ascii_end()
}
