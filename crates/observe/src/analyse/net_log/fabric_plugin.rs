//! Messages of our network plug-in: what it uses of libfabric, or why it leaves the network to NCCL.

use memchr::memmem;

use super::log::{MAX_LIST, clip};
use super::report::RankReport;

/// Name of the plug-in's network.
pub const NETWORK: &str = "Regatta";
/// Begin of the plug-in's messages.
const PREFIX: &[u8] = b"NET/Regatta: ";
/// Begin of the message that it is not used, behind [`PREFIX`]: a warning, or for information if the user
/// has disabled it.
const NOT_USED: &[u8] = b"not used: ";
/// What the warning ends with.
const FALL_BACK: &[u8] = b"; NCCL's own transport is used";

/// Adds to the facts what an info message of the plug-in says, as `libfabric 1.17, provider cxi, 4 NICs
/// (cxi0, cxi1), 200 Gb/s each, GPUDirect RDMA: yes (dma-buf)`; false if that is nothing.
pub fn read_facts(message: &[u8], facts: &mut RankReport) -> bool {
    if let Some(reason) = not_used(message) {
        facts.plugin.not_used = Some(clip(reason));
        return true;
    }
    let text = message.strip_prefix(PREFIX).unwrap_or_default();
    let find = |name: &[u8]| parts(text).filter_map(|part| part.strip_prefix(name)).last();
    let Some(provider) = find(b"provider ").filter(|name| !name.is_empty()) else { return false };
    facts.plugin.provider = Some(clip(provider));
    facts.plugin.libfabric = find(b"libfabric ").map(clip);
    let names = parts(text).filter_map(nic_names).last().unwrap_or_default();
    let names = names.split(|b| *b == b',').map(<[u8]>::trim_ascii);
    facts.plugin.nics = names.filter(|name| !name.is_empty()).take(MAX_LIST).map(clip).collect();
    // `yes (dma-buf)`, or `no (REASON)`.
    if let Some(gdr) = find(b"GPUDirect RDMA: ").filter(|gdr| !gdr.starts_with(b"yes")) {
        facts.gdr_disabled.get_or_insert_with(|| format!("GPUDirect RDMA: {}", clip(gdr)));
    }
    true
}

/// The reason why the plug-in is not used.
pub fn not_used(message: &[u8]) -> Option<&[u8]> {
    let reason = message.trim_ascii().strip_prefix(PREFIX)?.strip_prefix(NOT_USED)?;
    Some(reason.strip_suffix(FALL_BACK).unwrap_or(reason).trim_ascii())
}

/// The names in `4 NICs (cxi0, cxi1)`.
fn nic_names(part: &[u8]) -> Option<&[u8]> {
    let at = memmem::find(part, b" NIC")?;
    let open = at + memchr::memchr(b'(', &part[at..])?;
    part[open + 1..].strip_suffix(b")")
}

/// The parts between commas that are not in parentheses.
fn parts(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut depth = 0_u32;
    text.split(move |byte| {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        *byte == b',' && depth == 0
    })
    .map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<RankReport> {
        let mut facts = RankReport::default();
        read_facts(text.as_bytes(), &mut facts).then_some(facts)
    }

    #[test]
    fn line_names_provider_nics_and_gpudirect_rdma() {
        let line = "NET/Regatta: libfabric 1.17, provider cxi, 2 NICs (cxi0, cxi1), 200 Gb/s each, \
                    GPUDirect RDMA: no (no DMA-BUF, and no HMEM)";
        let RankReport { plugin, gdr_disabled, .. } = read(line).unwrap();
        assert_eq!(
            (plugin.libfabric.as_deref(), plugin.provider.as_deref()),
            (Some("1.17"), Some("cxi"))
        );
        assert_eq!(plugin.nics, ["cxi0", "cxi1"]);
        let reason = "GPUDirect RDMA: no (no DMA-BUF, and no HMEM)";
        assert_eq!(gdr_disabled.as_deref(), Some(reason));
        let short = read("NET/Regatta: provider tcp;ofi_rxm, 1 NIC (eth0)").unwrap().plugin;
        assert_eq!(short.provider.as_deref(), Some("tcp;ofi_rxm"));
        assert_eq!(short.nics, ["eth0"]);
    }

    #[test]
    fn other_messages_of_the_plugin_say_nothing() {
        for text in ["NET/Regatta: libfabric 1.17", "NET/Regatta: ", "NET/OFI provider cxi", ""] {
            assert!(read(text).is_none(), "{text}");
            assert_eq!(not_used(text.as_bytes()), None, "{text}");
        }
        let unbalanced = read("NET/Regatta: provider cxi, 4 NICs )(cxi0, a)(").unwrap();
        assert!(unbalanced.plugin.nics.is_empty());
    }

    #[test]
    fn warning_has_the_reason() {
        let text = b"NET/Regatta: not used: no libfabric; NCCL's own transport is used";
        assert_eq!(not_used(text), Some(&b"no libfabric"[..]));
        assert_eq!(
            not_used(b"NET/Regatta: not used: REGATTA_NET=off"),
            Some(&b"REGATTA_NET=off"[..])
        );
    }
}
