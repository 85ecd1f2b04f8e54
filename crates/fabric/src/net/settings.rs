//! Settings of a network from environment variables, and the defaults that sites recommend for a provider.

use std::time::Duration;

use crate::ProviderChoice;

/// Variable: whether libfabric is used.
pub const MODE_VARIABLE: &str = "REGATTA_NET";
/// Variable: the provider.
pub const PROVIDER_VARIABLE: &str = "REGATTA_FABRIC";
/// Variable: seconds after which a peer that does not answer is lost.
pub const TIMEOUT_VARIABLE: &str = "REGATTA_NET_TIMEOUT";
/// Variable: threads that move large messages, with providers that do so with the processor.
pub const THREADS_VARIABLE: &str = "REGATTA_NET_THREADS";
/// NCCL's variable with the interfaces to use.
pub const INTERFACE_VARIABLE: &str = "NCCL_SOCKET_IFNAME";

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_THREADS: usize = 16;
/// Threads by default, if the rank has at least so many processors. One thread is not faster than none.
const DEFAULT_THREADS: usize = 2;
const MIN_PROCESSORS: usize = 4;
/// The kernel counts keepalive probes in seconds, and at most 32767 of them.
const TIMEOUT_SECONDS: std::ops::RangeInclusive<u64> = 3..=32_767;

/// Whether libfabric is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// If a suitable provider is found.
    Auto,
    /// Always: without a suitable provider the job fails.
    Require,
    /// Never.
    Off,
}

/// The settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Whether libfabric is used.
    pub mode: Mode,
    /// The provider.
    pub provider: ProviderChoice,
    /// Time after which a peer that does not answer is lost.
    pub timeout: Duration,
    /// Interfaces to use, as in `NCCL_SOCKET_IFNAME`.
    pub interfaces: Option<String>,
    /// Threads that move large messages, if it is set.
    pub threads: Option<usize>,
}

impl Settings {
    /// Reads the settings. An invalid value is an error that names the variable.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let get =
            |name: &str| get(name).map(|value| value.trim().to_owned()).filter(|v| !v.is_empty());
        let mode = match get(MODE_VARIABLE).as_deref() {
            None | Some("auto") => Mode::Auto,
            Some("require") => Mode::Require,
            Some("off") => Mode::Off,
            Some(other) => {
                return Err(format!("{MODE_VARIABLE} is {other:?}, expected auto, require or off"));
            }
        };
        let timeout = match get(TIMEOUT_VARIABLE) {
            None => DEFAULT_TIMEOUT,
            Some(text) => {
                let seconds = text.parse().ok().filter(|seconds| TIMEOUT_SECONDS.contains(seconds));
                let range = format!("{}..{}", TIMEOUT_SECONDS.start(), TIMEOUT_SECONDS.end());
                let expected =
                    format!("{TIMEOUT_VARIABLE} is {text:?}, expected seconds in {range}");
                Duration::from_secs(seconds.ok_or(expected)?)
            }
        };
        let provider = ProviderChoice::parse(&get(PROVIDER_VARIABLE).unwrap_or_default());
        let threads = match get(THREADS_VARIABLE) {
            None => None,
            Some(text) => {
                let threads = text.parse().ok().filter(|threads| *threads <= MAX_THREADS);
                let expected =
                    || format!("{THREADS_VARIABLE} is {text:?}, expected 0..{MAX_THREADS}");
                Some(threads.ok_or_else(expected)?)
            }
        };
        Ok(Self { mode, provider, timeout, interfaces: get(INTERFACE_VARIABLE), threads })
    }

    /// Threads for a provider. A NIC moves data without the processor.
    pub fn threads(&self, is_software: bool) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let is_default = is_software && processors >= MIN_PROCESSORS;
        self.threads.unwrap_or(if is_default { DEFAULT_THREADS } else { 0 })
    }
}

/// Settings of a provider that sites recommend: the variable, its value, and why.
pub type Default = (&'static str, &'static str, &'static str);

/// Slingshot. Sites set other values for some of them, which then count.
const CXI: [Default; 10] = [
    ("FI_MR_CACHE_MONITOR", "userfaultfd", "the default monitor may deadlock"),
    ("FI_CXI_DISABLE_HOST_REGISTER", "1", "registration of host memory with the GPU may deadlock"),
    ("FI_CXI_DEFAULT_CQ_SIZE", "131072", "completion queues of large jobs"),
    ("FI_CXI_DEFAULT_TX_SIZE", "2048", "transmit queues of large jobs"),
    ("FI_CXI_RDZV_PROTO", "alt_read", "rendezvous of large jobs"),
    ("FI_CXI_RX_MATCH_MODE", "hybrid", "falls back to software matching instead of failing"),
    ("FI_CXI_RDZV_THRESHOLD", "0", "corrupted messages"),
    ("FI_CXI_RDZV_GET_MIN", "0", "corrupted messages"),
    ("FI_CXI_RDZV_EAGER_SIZE", "0", "corrupted messages"),
    ("NCCL_PROTO", "^LL128", LL128),
];

/// NCCL's protocols LL and LL128 have flags within their data.
const LL128: &str =
    "the network does not write 128 bytes in one piece, as the protocol LL128 needs";
const LL: &str = "the network does not write data in order, as the protocols LL and LL128 need";

/// EFA.
const EFA: [Default; 2] = [
    ("FI_EFA_FORK_SAFE", "1", "data loaders fork while memory is registered"),
    ("NCCL_PROTO", "simple", LL),
];

/// TCP, and its native version in libfabric 1.17. A send is complete when its last bytes are in the staging buffer,
/// which is lost if the connection is closed.
const TCP: [Default; 1] = [("FI_TCP_STAGING_SBUF_SIZE", "0", STAGING)];
const NET: [Default; 1] = [("FI_NET_STAGING_SBUF_SIZE", "0", STAGING)];
const STAGING: &str =
    "the end of a message may be lost with the staging buffer when a connection is closed";

/// TCP through the layer `ofi_rxm`, which copies or negotiates messages that are larger than 16 KiB otherwise. NCCL's
/// messages have at most 512 KiB.
const RXM: [Default; 1] = [(
    "FI_OFI_RXM_EAGER_LIMIT",
    "524288",
    "receives are posted before their messages are sent, so that a rendezvous is not needed",
)];

/// What sites recommend for a provider.
pub fn recommended(provider: &str) -> &'static [Default] {
    match (provider, provider.split(';').next()) {
        ("tcp;ofi_rxm", _) => &RXM,
        ("tcp", _) => &TCP,
        ("net", _) => &NET,
        (_, Some("cxi")) => &CXI,
        (_, Some("efa")) => &EFA,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Settings, String> {
        Settings::read(|variable| (variable == name).then(|| value.to_owned()))
    }

    #[test]
    fn settings_have_defaults() {
        let defaults = read("", "").unwrap();
        assert_eq!((defaults.mode, defaults.timeout.as_secs()), (Mode::Auto, 60));
        assert_eq!((defaults.provider, defaults.interfaces), (ProviderChoice::Auto, None));
        assert_eq!(read(MODE_VARIABLE, " require ").unwrap().mode, Mode::Require);
        assert_eq!(read(MODE_VARIABLE, "off").unwrap().mode, Mode::Off);
        assert_eq!(read(TIMEOUT_VARIABLE, "5").unwrap().timeout.as_secs(), 5);
        assert_eq!(read(PROVIDER_VARIABLE, "off").unwrap().provider, ProviderChoice::Tcp);
        assert_eq!(read(INTERFACE_VARIABLE, "hsn").unwrap().interfaces.as_deref(), Some("hsn"));
    }

    #[test]
    fn invalid_values_are_named() {
        let error = read(MODE_VARIABLE, "yes").unwrap_err();
        assert_eq!(error, "REGATTA_NET is \"yes\", expected auto, require or off");
        let error = read(TIMEOUT_VARIABLE, "1").unwrap_err();
        assert_eq!(error, "REGATTA_NET_TIMEOUT is \"1\", expected seconds in 3..32767");
    }

    #[test]
    fn threads_can_be_set() {
        assert_eq!(read(THREADS_VARIABLE, "3").unwrap().threads(false), 3);
        assert_eq!(read("", "").unwrap().threads(false), 0);
        assert!([0, DEFAULT_THREADS].contains(&read("", "").unwrap().threads(true)));
        let error = read(THREADS_VARIABLE, "17").unwrap_err();
        assert_eq!(error, "REGATTA_NET_THREADS is \"17\", expected 0..16");
    }

    #[test]
    fn recommendations_are_those_of_the_provider() {
        assert_eq!(recommended("cxi;ofi_rxm").len(), CXI.len());
        assert_eq!(recommended("tcp;ofi_rxm"), RXM);
        assert_eq!((recommended("tcp"), recommended("net")), (&TCP[..], &NET[..]));
        assert!(recommended("shm").is_empty());
    }
}
