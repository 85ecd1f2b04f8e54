//! Short names of devices.

/// GPU name without vendor, and without memory size if that is shown separately:
/// `NVIDIA H100 80GB HBM3` gives `H100`.
pub fn short_gpu_name(name: &str, memory_shown: bool) -> &str {
    const VENDORS: [&str; 6] =
        ["NVIDIA ", "Tesla ", "AMD ", "Instinct ", "Intel(R) Data Center GPU ", "Intel(R) "];
    let short = VENDORS.iter().fold(name, |name, vendor| name.strip_prefix(vendor).unwrap_or(name));
    let is_size = |word: &str| {
        let digits = word.strip_suffix("GB").or_else(|| word.strip_suffix("GiB"));
        digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut at = 0;
    for word in short.split([' ', '-']) {
        if memory_shown && at > 0 && is_size(word) {
            return &short[..at - 1];
        }
        at += word.len() + 1;
    }
    short
}

/// PCI address without the default domain.
pub fn short_pci(address: &str) -> &str {
    let trimmed = address.strip_prefix("0000:").or_else(|| address.strip_prefix("00000000:"));
    trimmed.unwrap_or(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_names_and_pci_addresses_are_shortened() {
        assert_eq!(short_gpu_name("NVIDIA H100 80GB HBM3", true), "H100");
        assert_eq!(short_gpu_name("NVIDIA H100 80GB HBM3", false), "H100 80GB HBM3");
        assert_eq!(short_gpu_name("NVIDIA A100-SXM4-40GB", true), "A100-SXM4");
        assert_eq!(short_gpu_name("AMD Instinct MI250X", true), "MI250X");
        assert_eq!(short_gpu_name("Intel(R) Data Center GPU Max 1550", true), "Max 1550");
        assert_eq!(short_gpu_name("80GB", true), "80GB");
        assert_eq!(short_pci("0000:c1:00.0"), "c1:00.0");
        assert_eq!(short_pci("0009:01:00.0"), "0009:01:00.0");
    }
}
