//! What a message of NCCL, RCCL or a network plug-in says about the network. Covers NCCL 2.18 to 2.31 and
//! RCCL of the same versions, whose wording differs in places.

use memchr::memmem;

use super::fabric_plugin::{self, FabricUse};
use super::record::parse_u32;
use super::transport::Direction;

/// Networks that NCCL brings along: their failure to initialise is that of a missing device, not that of
/// a plug-in.
pub const BUILT_IN: [&str; 2] = ["IB", "Socket"];

/// The meaning of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The transport of a channel, behind `via`; `rank` is the rank that logged it.
    Channel {
        rank: u32,
        direction: Option<Direction>,
        via: &'a [u8],
    },
    /// The beginning of a channel line that continues in the next line.
    ChannelStart,
    /// Rank and size of a communicator, and its number of nodes.
    Communicator {
        rank: u32,
        ranks: u32,
        nodes: Option<u32>,
    },
    /// Rings or trees are connected.
    Connected,
    /// The network that a communicator uses.
    Network(&'a [u8]),
    /// Interfaces or devices of a network: `[0]hsn0:10.1.1.1<0> [1]...`.
    SocketInterfaces(&'a [u8]),
    IbDevices(&'a [u8]),
    NoIbDevice,
    /// Interface and address of the bootstrap connections.
    Bootstrap(&'a [u8]),
    /// A network plug-in.
    PluginLoaded {
        name: &'a [u8],
        version: Option<&'a [u8]>,
    },
    PluginLibrary(&'a [u8]),
    PluginNotFound(&'a [u8]),
    PluginFailed(&'a [u8]),
    /// Name and version of the libfabric plug-in, libfabric's version, and its provider.
    OfiVersion(&'a [u8]),
    LibfabricVersion(&'a [u8]),
    Provider(&'a [u8]),
    /// What our plug-in uses of libfabric.
    Fabric(FabricUse<'a>),
    /// Why our plug-in is not used although it is loaded.
    FabricNotUsed(&'a [u8]),
    /// Whether NIC and GPU are close enough for GPUDirect RDMA.
    GdrDistance {
        enabled: bool,
        text: &'a [u8],
    },
    /// An environment variable that NCCL has read.
    Variable {
        name: &'a [u8],
        value: &'a [u8],
    },
    /// Version of NCCL or RCCL.
    Version(&'a [u8]),
    /// Nothing about the network.
    Nothing,
}

/// Parses an info message.
pub fn parse(message: &[u8]) -> Message<'_> {
    let message = message.trim_ascii();
    if let Some(rest) = message.strip_prefix(b"Channel ") {
        return channel(rest);
    }
    match message.first() {
        Some(b'N') => net(message).or_else(|| version(message)),
        Some(b'C') => connected(message),
        Some(b'G') => gdr(message),
        Some(b'B') => bootstrap(message),
        Some(b'U') => message.strip_prefix(b"Using network ").map(Message::Network),
        _ => None,
    }
    .or_else(|| plugin(message))
    .or_else(|| communicator(message))
    .or_else(|| variable(message))
    .or_else(|| version(message))
    .unwrap_or(Message::Nothing)
}

/// `00/0 : 0[c1000] -> 1[c9000] [send] via NET/IB/0 comm 0x7f nRanks 80`. A line without an arrow is the
/// order of a ring.
fn channel(text: &[u8]) -> Message<'_> {
    let Some(colon) = memchr::memchr(b':', text) else { return Message::ChannelStart };
    let rest = text[colon + 1..].trim_ascii_start();
    let Some(arrow) = memmem::find(rest, b"->") else {
        return Message::Nothing;
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
        None => Message::Nothing,
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

fn connected(message: &[u8]) -> Option<Message<'_>> {
    if message.starts_with(b"Connected ") {
        return Some(Message::Connected);
    }
    // `CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA`
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

fn net(message: &[u8]) -> Option<Message<'_>> {
    if let Some(rest) = after_name(message, "NET/Socket") {
        let list = rest.strip_prefix(b"Using ")?.trim_ascii_start();
        return list.starts_with(b"[").then_some(Message::SocketInterfaces(list));
    }
    if let Some(rest) = after_name(message, "NET/IB") {
        return match rest {
            _ if rest.starts_with(b"No device found") => Some(Message::NoIbDevice),
            _ => {
                let list = rest.strip_prefix(b"Using ")?.trim_ascii_start();
                list.starts_with(b"[").then_some(Message::IbDevices(list))
            }
        };
    }
    if let Some(rest) = after_name(message, "NET/OFI") {
        return ofi(rest);
    }
    if let Some(fabric) = fabric_plugin::parse(message) {
        return Some(Message::Fabric(fabric));
    }
    if let Some(reason) = fabric_plugin::not_used(message) {
        return Some(Message::FabricNotUsed(reason));
    }
    after_name(message, "NET/Plugin").map(net_plugin)
}

/// Messages of the libfabric plug-in for NCCL and RCCL.
fn ofi(text: &[u8]) -> Option<Message<'_>> {
    const PROVIDER: [&[u8]; 2] = [b"Selected Provider is ", b"Selected provider is "];
    if let Some(rest) = strip_any(text, PROVIDER) {
        return Some(Message::Provider(until(rest, b", (")));
    }
    if let Some(rest) = text.strip_prefix(b"Using Libfabric version ") {
        return Some(Message::LibfabricVersion(rest));
    }
    let named = strip_any(text, [b"Using ", b"Initializing "]);
    named.filter(|rest| rest.starts_with(b"aws-ofi-")).map(Message::OfiVersion)
}

/// Messages of NCCL about the plug-in.
fn net_plugin(text: &[u8]) -> Message<'_> {
    if let Some(rest) = text.strip_prefix(b"Loaded net plugin ") {
        let open = memchr::memrchr(b'(', rest).filter(|at| rest.ends_with(b")") && *at > 0);
        let (name, version) = match open {
            Some(at) => (rest[..at].trim_ascii_end(), Some(&rest[at + 1..rest.len() - 1])),
            None => (rest, None),
        };
        return Message::PluginLoaded { name, version };
    }
    if let Some(rest) = text.strip_prefix(b"Could not find:") {
        return Message::PluginNotFound(rest.trim_ascii_start());
    }
    if memmem::find(text, b"No plugin found").is_some() {
        let library = memchr::memchr(b'(', text).map(|at| until(&text[at + 1..], b")"));
        return Message::PluginNotFound(library.unwrap_or_default());
    }
    if memmem::find(text, b"cannot open shared object file: No such file").is_some()
        && missing_is_plugin(text)
    {
        return Message::PluginNotFound(text);
    }
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
    match memchr::memchr(b':', text) {
        Some(_) if !is_harmless => Message::PluginFailed(text),
        _ => Message::Nothing,
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
fn plugin(message: &[u8]) -> Option<Message<'_>> {
    const LIBRARY: [&[u8]; 2] =
        [b"Successfully loaded external network plugin ", b"Successfully loaded external plugin "];
    let is_built_in = |network: &[u8]| BUILT_IN.iter().any(|name| name.as_bytes() == network);
    if let Some(rest) = strip_any(message, LIBRARY) {
        return Some(Message::PluginLibrary(rest));
    }
    if let Some(name) = message.strip_prefix(b"Initialized NET plugin ") {
        return (!is_built_in(name)).then_some(Message::PluginLoaded { name, version: None });
    }
    if let Some(name) = message.strip_prefix(b"Failed to initialize NET plugin ") {
        return Some(match name {
            b"IB" => Message::NoIbDevice,
            _ if is_built_in(name) => Message::Nothing,
            _ => Message::PluginFailed(message),
        });
    }
    let is_unsupported =
        message.starts_with(b"External network plugin ") && message.ends_with(b"unsupported");
    if is_unsupported {
        return Some(Message::PluginFailed(message));
    }
    // RCCL 2.30: `ncclOsDlopen(librccl-net.so) failed: librccl-net.so: cannot open ...`
    let rest = message.strip_prefix(b"ncclOsDlopen(")?;
    match memmem::find(rest, b"-net").is_some() {
        true if memmem::find(rest, b"No such file").is_some() => {
            Some(Message::PluginNotFound(until(rest, b")")))
        }
        true => Some(Message::PluginFailed(message)),
        false => None,
    }
}

fn bootstrap(message: &[u8]) -> Option<Message<'_>> {
    let rest = after_name(message, "Bootstrap")?;
    rest.strip_prefix(b"Using ").map(|text| Message::Bootstrap(text.trim_ascii()))
}

fn gdr(message: &[u8]) -> Option<Message<'_>> {
    let rest = message.strip_prefix(b"GPU Direct RDMA ")?;
    let enabled = match rest {
        _ if rest.starts_with(b"Enabled") => true,
        _ if rest.starts_with(b"Disabled") => false,
        _ => return None,
    };
    Some(Message::GdrDistance { enabled, text: rest })
}

/// `ncclCommInitRank comm 0x1 rank 3 nranks 16 cudaDev 3 ... - Init COMPLETE` and
/// `comm 0x1 rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0`.
fn communicator(message: &[u8]) -> Option<Message<'_>> {
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
    (rank < ranks).then_some(Message::Communicator { rank, ranks, nodes: nodes.flatten() })
}

/// `NCCL_IB_DISABLE set by environment to 1.`
fn variable(message: &[u8]) -> Option<Message<'_>> {
    let (name, rest) = message.split_at(memchr::memchr(b' ', message)?);
    let is_name = name.starts_with(b"NCCL_") || name.starts_with(b"RCCL_");
    let rest = is_name.then_some(rest)?;
    let value = strip_any(rest, [b" set by environment to ", b" set to "])?.trim_ascii();
    Some(Message::Variable { name, value: value.strip_suffix(b".").unwrap_or(value) })
}

/// `NCCL version 2.28.9+cuda13.0`, `RCCL version 2.18.6+hip6.0 HEAD:abc`, `RCCL version : 2.21.5-HEAD:9a0`.
/// Also in lines without a header.
pub fn version(message: &[u8]) -> Option<Message<'_>> {
    let rest = strip_any(message, [b"NCCL version ", b"RCCL version "])?.trim_ascii_start();
    let number = rest.strip_prefix(b":").unwrap_or(rest).trim_ascii_start();
    number.first().is_some_and(u8::is_ascii_digit).then_some(Message::Version(message))
}

/// Name and network of each element of `[0]hsn0:10.1.1.1<0> [1]mlx5_0:1/RoCE [RO]; OOB ib0:...`.
pub fn devices(list: &[u8]) -> impl Iterator<Item = (u32, &[u8], &[u8])> {
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
pub fn out_of_band(list: &[u8]) -> Option<&[u8]> {
    let at = memmem::find(list, b"OOB ")?;
    Some(until(&list[at + 4..], b":")).filter(|name| !name.is_empty())
}

/// The text after one of these prefixes.
fn strip_any<'a, const N: usize>(text: &'a [u8], prefixes: [&[u8]; N]) -> Option<&'a [u8]> {
    prefixes.iter().find_map(|prefix| text.strip_prefix(*prefix))
}

/// The text before the first of these bytes.
pub fn until<'a>(text: &'a [u8], stop: &[u8]) -> &'a [u8] {
    let end = text.iter().position(|b| stop.contains(b)).unwrap_or(text.len());
    text[..end].trim_ascii_end()
}
