//! The built-in profiles: their settings and their detection.
//!
//! Regenerate the golden files with `REGATTA_BLESS=1 cargo test -p regatta-place`.

// Test helpers may panic.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;
use regatta_model::{Gpu, GpuVendor, Machine, Nic, NicKind, PciDevice, ReservedCores};
use regatta_place::environment::Framework;
use regatta_place::site_profile::{JobContext, Profile, Profiles, SiteEvidence};

fn builtin() -> Profiles {
    Profiles::builtin().unwrap()
}

type SetVersion = fn(&mut JobContext);

/// Versions that change the settings, in addition to none known.
const VERSIONS: [(&str, SetVersion); 4] = [
    ("rocm 6.1", |s| s.rocm = Some("6.1.3".into())),
    ("rocm 6.4, plug-in found", |s| {
        s.rocm = Some("6.4.0".into());
        s.plugin_path = Some("/opt/plugin/lib/librccl-net.so".into());
    }),
    ("rocm 7.2, plug-in found", |s| {
        s.rocm = Some("7.2".into());
        s.plugin_path = Some("/opt/plugin/lib/librccl-net.so".into());
    }),
    ("nccl 2.26.6", |s| s.nccl = Some("2.26.6+cuda12.8".into())),
];

/// GPUs of a node with this profile; a generic profile is tested with several vendors.
fn gpus_of(name: &str) -> Vec<(GpuVendor, &'static str, u32)> {
    let mi250x = (GpuVendor::Amd, BOARD, 8);
    let gh200 = (GpuVendor::Nvidia, "NVIDIA GH200 120GB", 4);
    let a100 = (GpuVendor::Nvidia, "NVIDIA A100-SXM4-40GB", 4);
    match name {
        "lumi-g" | "frontier" => vec![mi250x],
        "perlmutter" | "polaris" => vec![a100],
        "aurora" => vec![(GpuVendor::Intel, "Intel Data Center GPU Max 1550", 12)],
        "alps" | "jupiter" => vec![gh200],
        "marenostrum5-acc" => vec![(GpuVendor::Nvidia, "NVIDIA H100", 4)],
        "el-capitan" => vec![(GpuVendor::Amd, "AMD Instinct MI300A", 4)],
        "dgx-h100" => vec![(GpuVendor::Nvidia, "NVIDIA H100 80GB HBM3", 8)],
        _ => vec![mi250x, a100, gh200],
    }
}

fn list(profile: &Profile, context: &JobContext) -> String {
    let mut text = String::new();
    for s in profile.settings(context) {
        let line = match &s.value {
            Some(value) => format!("{}={value}", s.variable),
            None => format!("unset {}", s.variable),
        };
        writeln!(text, "{line}\n    {} ({})", s.why, s.profile).unwrap();
    }
    if text.is_empty() { "(nothing)\n".to_owned() } else { text }
}

/// The settings that only one of two lists has.
fn difference(usual: &str, other: &str) -> String {
    let set = |text: &str| -> Vec<String> {
        text.lines().filter(|l| !l.starts_with(' ')).map(str::to_owned).collect()
    };
    let (usual, other) = (set(usual), set(other));
    let removed = usual.iter().filter(|l| !other.contains(l)).map(|l| format!("- {l}\n"));
    let added = other.iter().filter(|l| !usual.contains(l)).map(|l| format!("+ {l}\n"));
    removed.chain(added).collect()
}

fn golden(profile: &Profile) -> String {
    let mut text = format!("{}: {}\n", profile.name, profile.title);
    writeln!(text, "reserve {:?}, smt {:?}", profile.place.reserve, profile.place.smt).unwrap();
    let fabric = &profile.fabric;
    writeln!(text, "fabric {:?}, suffixes {:?}", fabric.interfaces, fabric.host_suffix).unwrap();
    let local = &profile.node_local;
    writeln!(text, "node-local {:?}, in memory {:?}", local.dirs, local.in_memory).unwrap();
    for (vendor, gpu, gpus_per_node) in gpus_of(&profile.name) {
        for nodes in [1, 2, 512] {
            let unknown = JobContext {
                nodes,
                gpus_per_node,
                vendor: Some(vendor),
                gpu: Some(gpu.to_owned()),
                framework: Some("torch".to_owned()),
                ..JobContext::default()
            };
            let usual = list(profile, &unknown);
            let plural = if nodes == 1 { "" } else { "s" };
            let title = format!("{nodes} node{plural}, {gpu}");
            write!(text, "\n== {title}, versions unknown\n{usual}").unwrap();
            for (what, set) in VERSIONS {
                let mut known = unknown.clone();
                set(&mut known);
                let change = difference(&usual, &list(profile, &known));
                if !change.is_empty() {
                    write!(text, "\n== {title}, {what}: changes\n{change}").unwrap();
                }
            }
        }
    }
    text
}

#[test]
fn settings_match_the_golden_files() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for profile in builtin().iter() {
        let path = dir.join(format!("profile-{}.txt", profile.name));
        let text = golden(profile);
        if std::env::var_os("REGATTA_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(recorded == text, "{} differs from:\n{text}", path.display());
    }
}

#[test]
fn built_in_profiles_are_well_formed() {
    let profiles = builtin();
    assert_eq!(profiles.names().count(), 13);
    for profile in profiles.iter() {
        assert!(!profile.title.is_empty(), "{}", profile.name);
        for rule in &profile.rules {
            let at = format!("{}: {}", profile.name, rule.variable);
            assert!(rule.why.ends_with('.') && !rule.why.contains(". "), "{at}: one sentence");
            if rule.variable == "NCCL_NET" {
                let single =
                    JobContext { nodes: 1, vendor: Some(GpuVendor::Amd), ..Default::default() };
                assert!(!rule.when.are_met(&single), "{at}: not on a single node");
            }
        }
    }
}

fn machine(gpu: Option<(GpuVendor, &str, u32)>, nic: Option<(NicKind, &str)>) -> Machine {
    let (vendor, name, count) = gpu.unwrap_or((GpuVendor::Amd, "", 0));
    let gpus = (0..count).map(|index| Gpu::new(index, vendor, name)).collect();
    let nics = nic.into_iter().map(|(kind, name)| Nic::new(name, kind)).collect();
    Machine { host: "nid001000".to_owned(), gpus, nics, ..Machine::default() }
}

fn with_slingshot(vendor: GpuVendor, gpu: &str, count: u32) -> Machine {
    machine(Some((vendor, gpu, count)), Some((NicKind::Slingshot, "hsn0")))
}

fn lumi_node() -> Machine {
    with_slingshot(GpuVendor::Amd, "AMD Instinct MI250X", 8)
}

fn evidence<'a>(machine: &'a Machine, cluster: Option<&str>, env: Pairs) -> SiteEvidence<'a> {
    let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    SiteEvidence { cluster: cluster.map(str::to_owned), domains: Vec::new(), env, machine }
}

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn detect_profile(machine: &Machine, cluster: Option<&str>, env: Pairs) -> (String, String) {
    let found = builtin().detect(&evidence(machine, cluster, env));
    (found.profile.name, found.why)
}

fn assert_profile(found: (String, String), name: &str, why: &str) {
    assert_eq!((found.0.as_str(), found.1.as_str()), (name, why));
}

#[test]
fn cluster_name_identifies_a_site() {
    let node = lumi_node();
    let by_option = detect_profile(&node, Some("lumi"), &[]);
    assert_profile(by_option, "lumi-g", "the cluster name \"lumi\" identifies LUMI-G");
    let from_env = detect_profile(&node, None, &[("SLURM_CLUSTER_NAME", "frontier")]);
    assert_profile(from_env, "frontier", "the cluster name \"frontier\" identifies Frontier");
    let one_gpu = with_slingshot(GpuVendor::Amd, "AMD INSTINCT MI250X (MCM) OAM AC MBA", 1);
    assert_eq!(detect_profile(&one_gpu, Some("lumi"), &[]).0, "lumi-g", "a job may see fewer GPUs");
}

/// A node as its drivers describe it: cluster or variable, profile, CPU model, GPU name, PCI ID.
type RealNode = (&'static str, &'static str, &'static str, &'static str, u32);

/// Names that nodes of these sites print: the board name of the amdgpu driver, the architecture if
/// the board's EEPROM is unreadable, and no name at all.
const REAL_NODES: [RealNode; 14] = [
    ("lumi", "lumi-g", "AMD EPYC 7A53 64-Core Processor", BOARD, 0x1002_7408),
    ("lumi", "lumi-g", "", BOARD, 0),
    ("lumi", "lumi-g", "", "AMD gfx90a", 0x1002_7408),
    ("lumi", "lumi-g", "", "AMD GPU", 0x1002_740c),
    ("lumi", "lumi-g", "AMD EPYC 7A53 64-Core Processor                ", "AMD GPU", 0),
    ("frontier", "frontier", "AMD EPYC 7A53 64-Core Processor", BOARD, 0x1002_7408),
    ("frontier", "frontier", "", "AMD INSTINCT MI250X (MCM) OAM AC MBA", 0x1002_740c),
    ("frontier", "frontier", "", "AMD Instinct MI250X", 0),
    ("LCSCHEDCLUSTER=elcap", "el-capitan", "", "AMD gfx942", 0x1002_74a0),
    ("LCSCHEDCLUSTER=tuolumne", "el-capitan", "AMD Instinct MI300A Accelerator", "AMD GPU", 0),
    ("perlmutter", "perlmutter", "AMD EPYC 7763 64-Core Processor", "NVIDIA A100-SXM4-80GB", 0),
    ("perlmutter", "perlmutter", "", "NVIDIA GPU", 0x10de_20b0),
    ("daint", "alps", "", "NVIDIA GH200 120GB", 0x10de_2342),
    ("clariden", "alps", "", "NVIDIA GPU", 0x10de_2342),
];

const BOARD: &str = "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2";

fn real_node(cpu: &str, gpu: &str, id: u32) -> Machine {
    let is_apu = cpu.contains("MI300A") || gpu.contains("gfx942");
    let (vendor, count) = match gpu.starts_with("AMD") {
        true => (GpuVendor::Amd, if is_apu { 4 } else { 8 }),
        false => (GpuVendor::Nvidia, 4),
    };
    let mut node = with_slingshot(vendor, gpu, count);
    node.cpu_model = Some(cpu.to_owned()).filter(|model| !model.is_empty());
    for gpu in node.gpus.iter_mut().filter(|_| id != 0) {
        let address = format!("0000:{:02x}:00.0", 0xc1 + gpu.index);
        let (vendor, device) = ((id >> 16) as u16, id as u16);
        let class = 0x03_8000;
        let pci = PciDevice { address, path: Vec::new(), class, vendor, device, numa: None };
        gpu.pci = Some(pci.address.clone());
        node.pci.push(pci);
    }
    node
}

#[test]
fn names_that_real_nodes_print_identify_their_site() {
    for (sign, profile, cpu, gpu, id) in REAL_NODES {
        let node = real_node(cpu, gpu, id);
        let found = match sign.split_once('=') {
            Some(variable) => detect_profile(&node, None, &[variable]),
            None => detect_profile(&node, Some(sign), &[]),
        };
        assert_eq!(found.0, profile, "{sign}, {cpu:?}, {gpu:?}, {id:08x}: {}", found.1);
    }
}

#[test]
fn node_without_visible_gpu_is_identified_by_its_cpu() {
    let mut node = machine(None, Some((NicKind::Slingshot, "hsn0")));
    node.cpu_model = Some("AMD EPYC 7A53 64-Core Processor".to_owned());
    assert_eq!(detect_profile(&node, Some("lumi"), &[]).0, "lumi-g", "reserved cores still matter");
    node.cpu_model = Some("AMD EPYC 7763 64-Core Processor".to_owned());
    assert_eq!(detect_profile(&node, Some("lumi"), &[]).0, "slingshot", "LUMI-C");
    let mi210 = real_node("AMD EPYC 7763 64-Core Processor", "AMD Instinct MI210", 0x1002_740f);
    assert_eq!(detect_profile(&mi210, Some("lumi"), &[]).0, "slingshot");
}

#[test]
fn gpu_without_a_name_gets_the_settings_of_its_pci_id() {
    let node = real_node("", "NVIDIA GPU", 0x10de_2342);
    let context = JobContext::of(&node, 2, Framework::Torch);
    let settings = builtin().named("alps").unwrap().settings(&context);
    assert!(settings.iter().any(|s| s.variable == "NCCL_PROTO"), "{context:?}");
}

#[test]
fn domain_or_variable_identifies_a_site() {
    let a100 = with_slingshot(GpuVendor::Nvidia, "NVIDIA A100-SXM4-40GB", 4);
    let (server, login) = ("640002.pbs.hsn.cm.polaris.alcf.anl.gov", "l1.polaris.alcf.anl.gov");
    let cases = [
        (
            ("PBS_JOBID", server),
            "polaris",
            "the PBS server \"pbs.hsn.cm.polaris.alcf.anl.gov\" identifies Polaris",
        ),
        (
            ("PBS_O_HOST", login),
            "polaris",
            "PBS_O_HOST \"l1.polaris.alcf.anl.gov\" identifies Polaris",
        ),
        (("NERSC_HOST", "perlmutter"), "perlmutter", "NERSC_HOST=perlmutter identifies Perlmutter"),
    ];
    for (variable, name, why) in cases {
        assert_profile(detect_profile(&a100, None, &[variable]), name, why);
    }
    let mut own = a100.clone();
    own.os.domains = vec!["chn.perlmutter.nersc.gov.".to_owned()];
    assert_eq!(detect_profile(&own, None, &[]).0, "perlmutter");
    own.os.domains = vec!["notperlmutter.nersc.gov".to_owned()];
    assert_eq!(detect_profile(&own, None, &[]).0, "slingshot", "suffixes match at dots only");
    let mi300a = (GpuVendor::Amd, "AMD Instinct MI300A", 4);
    let apu = machine(Some(mi300a), Some((NicKind::Slingshot, "hsi0")));
    assert_eq!(detect_profile(&apu, None, &[("LCSCHEDCLUSTER", "tuolumne")]).0, "el-capitan");
}

#[test]
fn other_hardware_of_a_site_uses_the_network_profile() {
    let cpu_only = machine(None, Some((NicKind::Slingshot, "hsn0")));
    assert_profile(
        detect_profile(&cpu_only, Some("lumi"), &[]),
        "slingshot",
        "the cluster name \"lumi\" identifies LUMI-G, but this node has no visible GPU; \
         the hardware matches a machine with Slingshot",
    );
    let a40 = machine(Some((GpuVendor::Nvidia, "NVIDIA A40", 8)), None);
    assert_profile(
        detect_profile(&a40, Some("lumi"), &[]),
        "ethernet",
        "the cluster name \"lumi\" identifies LUMI-G, but GPU 0 is NVIDIA A40; \
         no network better than Ethernet found",
    );
    for (gpus, mismatch) in [(8, "8 GPUs, not 4"), (4, "no Slingshot interface")] {
        let a100 = (GpuVendor::Nvidia, "NVIDIA A100", gpus);
        let node = machine(Some(a100), Some((NicKind::InfiniBand, "ib0")));
        let why = detect_profile(&node, Some("perlmutter"), &[]).1;
        assert!(why.contains(&format!("but this node has {mismatch}")), "{why}");
    }
}

#[test]
fn hardware_alone_does_not_identify_a_site() {
    // LUMI, Frontier and others have such nodes, all named like nid001000.
    assert_profile(
        detect_profile(&lumi_node(), None, &[]),
        "slingshot",
        "no cluster name, domain or variable identifies a known site; \
         the hardware matches a machine with Slingshot",
    );
    let kind = |kind, name| detect_profile(&machine(None, Some((kind, name))), None, &[]).0;
    assert_eq!(kind(NicKind::InfiniBand, "ib0"), "infiniband");
    assert_eq!(kind(NicKind::Roce, "eth0"), "infiniband");
    assert_eq!(kind(NicKind::Ethernet, "eth0"), "ethernet");
    assert_eq!(kind(NicKind::Virtual, "veth0"), "ethernet");
    assert_eq!(detect_profile(&machine(None, None), None, &[]).0, "ethernet");
}

#[test]
fn machine_type_is_detected_by_hardware() {
    let h100 = (GpuVendor::Nvidia, "NVIDIA H100 80GB HBM3", 8);
    let mut node = machine(Some(h100), Some((NicKind::InfiniBand, "ibp24s0")));
    assert_eq!(detect_profile(&node, None, &[]).0, "infiniband", "the CPU model is unknown");
    node.cpu_model = Some("Intel(R) Xeon(R) Platinum 8468".to_owned());
    assert_eq!(detect_profile(&node, None, &[]).0, "infiniband");
    node.cpu_model = Some("Intel(R) Xeon(R) Platinum 8480C".to_owned());
    assert_eq!(detect_profile(&node, None, &[]).0, "dgx-h100");
}

#[test]
fn host_names_are_ignored() {
    let mut node = lumi_node();
    let of = |node: &Machine| detect_profile(node, None, &[("SLURMD_NODENAME", "nid001000")]);
    let before = of(&node);
    for host in ["nid005000", "frontier03329", "x3104c0s1b0n0", "uan01"] {
        node.host = host.to_owned();
        assert_eq!(of(&node), before);
    }
}

#[test]
fn user_profile_precedes_built_in_ones() {
    let text = r#"
        name = "our-lumi"
        title = "our LUMI project"
        extends = "lumi-g"
        [match]
        cluster = ["lumi"]
        [place]
        reserve = "none"
    "#;
    let profiles = builtin().with_file("site.toml", text).unwrap();
    let found = profiles.detect(&evidence(&lumi_node(), Some("lumi"), &[]));
    assert_eq!(found.why, "the cluster name \"lumi\" identifies our LUMI project");
    assert_eq!(found.profile.place.reserve, Some(ReservedCores::None));
    let lumi = profiles.named("lumi-g").unwrap();
    assert_eq!(lumi.place.reserve, Some(ReservedCores::FirstOfL3));
    assert_eq!(found.profile.rules, lumi.rules);
}

/// The source of a built-in profile.
fn source(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("profiles/{name}.toml"));
    std::fs::read_to_string(path).unwrap()
}

proptest! {
    #[test]
    fn damaged_profiles_never_panic(
        name in prop::sample::select(vec!["slingshot", "lumi-g", "el-capitan", "alps"]),
        at in any::<prop::sample::Index>(),
        cut in 0usize..40,
        put in "\\PC{0,12}",
    ) {
        let mut chars: Vec<char> = source(name).chars().collect();
        let start = at.index(chars.len());
        let end = (start + cut).min(chars.len());
        chars.splice(start..end, put.chars());
        let text: String = chars.into_iter().collect();
        if let Err(error) = builtin().with_file("damaged.toml", &text) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn detection_never_panics(cluster in "\\PC{0,12}", domain in "\\PC{0,24}", job in "\\PC{0,24}") {
        let node = lumi_node();
        let env = [("PBS_JOBID", job.as_str()), ("PBS_O_HOST", &job)];
        let evidence = SiteEvidence { domains: vec![domain], ..evidence(&node, Some(&cluster), &env) };
        prop_assert!(!builtin().detect(&evidence).why.is_empty());
    }
}
