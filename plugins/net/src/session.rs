//! The NICs of the process, found once, and their endpoints.

use std::ffi::{CString, OsStr};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

use regatta_fabric::net::device::{Device, describe, discover};
use regatta_fabric::net::settings::{self, Mode, Settings};
use regatta_fabric::net::{Connectors, Nic, NicOptions, interface};

use crate::message;

static SESSION: OnceLock<Session> = OnceLock::new();

/// The NICs, or why there are none.
pub struct Session {
    devices: Result<Vec<NamedDevice>, String>,
    settings: Settings,
    endpoints: Mutex<Vec<EndpointSet>>,
    /// Connections that are being established.
    pub connectors: Connectors,
}

/// A NIC, and its names as C strings.
pub struct NamedDevice {
    /// The NIC.
    pub device: Device,
    /// Name, for NCCL's log.
    pub name: CString,
    /// Path of the PCI device.
    pub pci_path: Option<CString>,
}

/// The endpoints of a NIC for the connections of a thread, which use them in turn. NCCL sets up the
/// connections of a communicator in a thread of its own: so communicators neither wait for each other nor fail
/// together.
struct EndpointSet {
    device: usize,
    thread: ThreadId,
    nics: Vec<Arc<Nic>>,
    next: usize,
}

impl EndpointSet {
    fn is_idle(&self) -> bool {
        self.nics.iter().all(|nic| Arc::strong_count(nic) == 1)
    }

    fn is_retired(&self) -> bool {
        self.nics.iter().any(|nic| nic.is_retired())
    }

    fn next(&mut self) -> Option<Arc<Nic>> {
        self.next = (self.next + 1) % self.nics.len().max(1);
        self.nics.get(self.next).cloned()
    }
}

/// The session of the process, found by the first call.
pub fn session() -> &'static Session {
    SESSION.get_or_init(Session::from_env)
}

impl Session {
    fn from_env() -> Self {
        let get = |name: &str| std::env::var(name).ok();
        let (settings, devices) = match Settings::read(get) {
            Ok(settings) => {
                let devices = open(&settings).map_err(|why| match settings.mode {
                    Mode::Require => {
                        format!(
                            "{why}; the job fails because of {}=require",
                            settings::MODE_VARIABLE
                        )
                    }
                    Mode::Auto | Mode::Off => why,
                });
                (settings, devices)
            }
            // A mistake must not lead to the slow network unnoticed.
            Err(why) => {
                let defaults = Settings::read(|_| None);
                let mut settings = defaults.unwrap_or_else(|_| Settings {
                    mode: Mode::Require,
                    provider: Default::default(),
                    timeout: std::time::Duration::from_secs(60),
                    interfaces: None,
                    threads: Some(0),
                });
                settings.mode = Mode::Require;
                (settings, Err(why))
            }
        };
        let session = Self {
            devices,
            settings,
            endpoints: Mutex::default(),
            connectors: Connectors::default(),
        };
        session.report();
        session
    }

    /// One line for the log.
    fn report(&self) {
        match (&self.devices, self.settings.mode) {
            (Ok(_), _) => {}
            (Err(why), Mode::Off) => message::info(&format!("not used: {why}")),
            (Err(why), Mode::Auto) => {
                message::warn(&format!("not used: {why}; NCCL's own transport is used"));
            }
            (Err(why), Mode::Require) => message::warn(why),
        }
    }

    /// The number of NICs. If there must be one and there is none, one that cannot be used: NCCL would take
    /// an error or no NIC as a reason to use another transport.
    pub fn count(&self) -> usize {
        match (&self.devices, self.settings.mode) {
            (Ok(devices), _) => devices.len(),
            (Err(_), Mode::Require) => 1,
            (Err(_), Mode::Auto | Mode::Off) => 0,
        }
    }

    /// A NIC; `None` if it only stands for the error.
    pub fn device(&self, index: usize) -> Option<&NamedDevice> {
        self.devices.as_ref().ok()?.get(index)
    }

    /// The endpoint of a NIC for connections of this thread. Those that nothing uses any more are reused.
    pub fn nic(&self, index: usize) -> Result<Arc<Nic>, String> {
        let devices = self.devices.as_ref().map_err(Clone::clone)?;
        let device = devices.get(index).ok_or_else(|| format!("there is no NIC {index}"))?;
        let thread = std::thread::current().id();
        let (own, retired) = self.take_endpoints(index, thread);
        drop(retired);
        let mut set = match own {
            Some(own) => own,
            None => self.open_endpoints(device, index, thread)?,
        };
        let nic = set.next().ok_or("no endpoint")?;
        self.lock_endpoints().push(set);
        Ok(nic)
    }

    /// Takes out the endpoints for a thread, its own or idle ones, and those that are not used any more. Other
    /// threads need not wait while endpoints are opened and closed.
    fn take_endpoints(
        &self,
        device: usize,
        thread: ThreadId,
    ) -> (Option<EndpointSet>, Vec<EndpointSet>) {
        let mut all = self.lock_endpoints();
        let retired = all.extract_if(.., |set| set.is_idle() && set.is_retired()).collect();
        let find = |is_suitable: &dyn Fn(&EndpointSet) -> bool| {
            let is_usable = |set: &EndpointSet| set.device == device && !set.is_retired();
            all.iter().position(|set| is_usable(set) && is_suitable(set))
        };
        let at = find(&|set| set.thread == thread).or_else(|| find(&EndpointSet::is_idle));
        let own = at.map(|at| EndpointSet { thread, ..all.swap_remove(at) });
        (own, retired)
    }

    fn lock_endpoints(&self) -> MutexGuard<'_, Vec<EndpointSet>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_endpoints(
        &self,
        device: &NamedDevice,
        index: usize,
        thread: ThreadId,
    ) -> Result<EndpointSet, String> {
        let mut set = EndpointSet { device: index, thread, nics: Vec::new(), next: 0 };
        let threads = self.settings.threads(device.device.is_software());
        let control_ip = self.control_address(&device.device)?;
        let (timeout, has_thread) = (self.settings.timeout, threads > 0);
        for _ in 0..threads.max(1) {
            let options = NicOptions { control_ip, timeout, has_thread };
            set.nics.push(Nic::open(&device.device, options)?);
        }
        Ok(set)
    }

    /// Where listeners of a NIC are: on its own network if it has IP addresses.
    fn control_address(&self, device: &Device) -> Result<IpAddr, String> {
        let interfaces = interface::interfaces().map_err(|error| format!("getifaddrs: {error}"))?;
        let own = format!("={}", device.domain);
        let own = device.is_ip().then(|| interface::choose(&interfaces, Some(&own))).flatten();
        let filter = self.settings.interfaces.as_deref();
        own.or_else(|| interface::choose(&interfaces, filter)).ok_or_else(|| {
            let variable = settings::INTERFACE_VARIABLE;
            format!(
                "no network interface is up that {variable} ({}) allows",
                filter.unwrap_or("unset")
            )
        })
    }
}

/// Finds the NICs.
fn open(settings: &Settings) -> Result<Vec<NamedDevice>, String> {
    // What libfabric reads when it is loaded.
    apply_recommended(settings);
    let devices = discover(settings, Path::new("/"))?;
    let version = regatta_fabric::library::library()?.version();
    message::info(&describe(version, &devices));
    let c_string = |text: &OsStr| CString::new(text.as_encoded_bytes()).ok();
    let named = |device: Device| NamedDevice {
        name: c_string(OsStr::new(&device.domain)).unwrap_or_default(),
        pci_path: device.pci_path.as_ref().and_then(|path| c_string(path.as_os_str())),
        device,
    };
    Ok(devices.into_iter().map(named).collect())
}

/// Sets what sites recommend for the network of this node, unless the user has set it.
fn apply_recommended(settings: &Settings) {
    use regatta_fabric::ProviderChoice;
    let provider = match &settings.provider {
        ProviderChoice::Named { provider, .. } => provider.clone(),
        ProviderChoice::Auto if Path::new("/sys/class/cxi").exists() => "cxi".to_owned(),
        ProviderChoice::Auto | ProviderChoice::Tcp => return,
    };
    for (variable, value, why) in settings::recommended(&provider) {
        if std::env::var_os(variable).is_none() {
            // SAFETY: NCCL initialises its network once, and reads its own settings from the environment
            // in the same way. Another thread that reads the environment without the C library's lock at
            // this moment could see a stale array; libfabric has no other way to be configured.
            unsafe { std::env::set_var(variable, value) };
            message::info(&format!("{variable}={value} by default: {why}"));
        }
    }
}
