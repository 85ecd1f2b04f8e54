//! Messages of our network plug-in: what it uses of libfabric, or why it leaves the network to NCCL.

use memchr::memmem;

/// Name of the plug-in's network.
pub const NETWORK: &str = "Regatta";
/// Begin of the plug-in's messages.
const PREFIX: &[u8] = b"NET/Regatta: ";
/// Begin of the message that it is not used, behind [`PREFIX`]: a warning, or for information if the user
/// has disabled it.
const NOT_USED: &[u8] = b"not used: ";
/// What the warning ends with.
const FALL_BACK: &[u8] = b"; NCCL's own transport is used";

/// What the plug-in uses: `libfabric 1.17, provider cxi, 4 NICs (cxi0, cxi1), 200 Gb/s each, GPUDirect
/// RDMA: yes (dma-buf)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricUse<'a> {
    pub libfabric: Option<&'a [u8]>,
    pub provider: &'a [u8],
    /// Names of the NICs, separated by commas.
    pub nics: &'a [u8],
    /// `yes (dma-buf)`, or `no (REASON)`.
    pub gdr: Option<&'a [u8]>,
}

impl<'a> FabricUse<'a> {
    /// Names of the NICs, by their number.
    pub fn nics(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.nics.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(|name| !name.is_empty())
    }
}

/// Parses an info message of the plug-in.
pub fn parse(message: &[u8]) -> Option<FabricUse<'_>> {
    let text = message.strip_prefix(PREFIX)?;
    let mut found = FabricUse { libfabric: None, provider: b"", nics: b"", gdr: None };
    for part in parts(text) {
        if let Some(version) = part.strip_prefix(b"libfabric ") {
            found.libfabric = Some(version);
        } else if let Some(name) = part.strip_prefix(b"provider ") {
            found.provider = name;
        } else if let Some(gdr) = part.strip_prefix(b"GPUDirect RDMA: ") {
            found.gdr = Some(gdr);
        } else if let Some(names) = nic_names(part) {
            found.nics = names;
        }
    }
    (!found.provider.is_empty()).then_some(found)
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

    #[test]
    fn line_names_provider_nics_and_gpudirect_rdma() {
        let line =
            b"NET/Regatta: libfabric 1.17, provider cxi, 2 NICs (cxi0, cxi1), 200 Gb/s each, \
                     GPUDirect RDMA: no (no DMA-BUF, and no HMEM)";
        let found = parse(line).unwrap();
        assert_eq!((found.libfabric, found.provider), (Some(&b"1.17"[..]), &b"cxi"[..]));
        assert_eq!(found.nics().collect::<Vec<_>>(), [b"cxi0", b"cxi1"]);
        assert_eq!(found.gdr, Some(&b"no (no DMA-BUF, and no HMEM)"[..]));
        let short = parse(b"NET/Regatta: provider tcp;ofi_rxm, 1 NIC (eth0)").unwrap();
        assert_eq!((short.provider, short.nics), (&b"tcp;ofi_rxm"[..], &b"eth0"[..]));
    }

    #[test]
    fn other_messages_of_the_plugin_say_nothing() {
        for text in ["NET/Regatta: libfabric 1.17", "NET/Regatta: ", "NET/OFI provider cxi", ""] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
            assert_eq!(not_used(text.as_bytes()), None, "{text}");
        }
        let unbalanced = parse(b"NET/Regatta: provider cxi, 4 NICs )(cxi0, a)(").unwrap();
        assert_eq!(unbalanced.nics, b"");
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
