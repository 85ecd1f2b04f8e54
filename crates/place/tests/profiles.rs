//! The built-in profiles: what they set, and how a machine is recognised.
//!
//! The golden files are written anew with `REGATTA_BLESS=1 cargo test -p regatta-place`.

// Helpers of tests may fail as loudly as the tests themselves.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;
use regatta_model::{Gpu, GpuVendor, Machine, Nic, NicKind, Reserve};
use regatta_place::profile::{Facts, PluginState, Profile, Profiles, Situation};

fn builtin() -> Profiles {
    Profiles::builtin().unwrap()
}

/// Makes something of a situation known.
type Learn = fn(&mut Situation);

/// Versions that change what a profile sets, beside none known.
const VERSIONS: [(&str, Learn); 4] = [
    ("rocm 6.1", |s| s.rocm = Some("6.1.3".into())),
    ("rocm 6.4, plug-in found", |s| {
        s.rocm = Some("6.4.0".into());
        s.plugin = PluginState::Present { version: None };
    }),
    ("rocm 7.2, plug-in found", |s| {
        s.rocm = Some("7.2".into());
        s.plugin = PluginState::Present { version: None };
    }),
    ("nccl 2.26.6", |s| s.nccl = Some("2.26.6+cuda12.8".into())),
];

/// GPUs as the runtime shows them on a node of that profile; a generic one stands for either vendor.
fn gpus_of(name: &str) -> Vec<(GpuVendor, &'static str, u32)> {
    let mi250x = (GpuVendor::Amd, "AMD Instinct MI250X", 8);
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

fn list(profile: &Profile, situation: &Situation) -> String {
    let mut text = String::new();
    for s in profile.settings(situation) {
        let line = match &s.value {
            Some(value) => format!("{}={value}", s.variable),
            None => format!("unset {}", s.variable),
        };
        writeln!(text, "{line}\n    {} ({})", s.why, s.from_profile).unwrap();
    }
    if text.is_empty() { "(nothing)\n".to_owned() } else { text }
}

/// The settings that only one of two lists has.
fn difference(usual: &str, other: &str) -> String {
    let set = |text: &str| -> Vec<String> {
        text.lines().filter(|l| !l.starts_with(' ')).map(str::to_owned).collect()
    };
    let (usual, other) = (set(usual), set(other));
    let gone = usual.iter().filter(|l| !other.contains(l)).map(|l| format!("- {l}\n"));
    let come = other.iter().filter(|l| !usual.contains(l)).map(|l| format!("+ {l}\n"));
    gone.chain(come).collect()
}

fn golden(profile: &Profile) -> String {
    let mut text = format!("{}: {}\n", profile.name, profile.title);
    writeln!(text, "reserve {:?}, smt {:?}", profile.place.reserve, profile.place.smt).unwrap();
    let fabric = &profile.fabric;
    writeln!(text, "fabric {:?}, suffixes {:?}", fabric.interfaces, fabric.host_suffix).unwrap();
    writeln!(text, "node-local {:?}", profile.node_local.dirs).unwrap();
    for (vendor, gpu, gpus_per_node) in gpus_of(&profile.name) {
        for nodes in [1, 2, 512] {
            let unknown = Situation {
                nodes,
                gpus_per_node,
                vendor: Some(vendor),
                gpu: Some(gpu.to_owned()),
                framework: Some("torch".to_owned()),
                ..Situation::default()
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
fn settings_are_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for profile in builtin().iter() {
        let path = folder.join(format!("profile-{}.txt", profile.name));
        let text = golden(profile);
        if std::env::var_os("REGATTA_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(recorded == text, "{} differs from:\n{text}", path.display());
    }
}

#[test]
fn built_in_profiles_are_well_made() {
    let profiles = builtin();
    assert_eq!(profiles.names().count(), 13);
    for profile in profiles.iter() {
        assert!(!profile.title.is_empty(), "{}", profile.name);
        for rule in &profile.rules {
            let at = format!("{}: {}", profile.name, rule.variable);
            assert!(rule.why.ends_with('.') && !rule.why.contains(". "), "{at}: one sentence");
            if rule.variable == "NCCL_NET" {
                let single =
                    Situation { nodes: 1, vendor: Some(GpuVendor::Amd), ..Default::default() };
                assert!(!rule.when.holds(&single), "{at}: not on a single node");
            }
        }
    }
}

fn machine(gpu: Option<(GpuVendor, &str, u32)>, nic: Option<(NicKind, &str)>) -> Machine {
    let (vendor, name, count) = gpu.unwrap_or((GpuVendor::Amd, "", 0));
    let gpus = (0..count).map(|index| Gpu::new(index, vendor, name));
    let nics = nic.into_iter().map(|(kind, name)| Nic::new(name, kind));
    Machine {
        host: "nid001000".to_owned(),
        gpus: gpus.collect(),
        nics: nics.collect(),
        ..Machine::default()
    }
}

fn lumi_node() -> Machine {
    machine(Some((GpuVendor::Amd, "AMD Instinct MI250X", 8)), Some((NicKind::Slingshot, "hsn0")))
}

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn recognise(machine: &Machine, cluster: Option<&str>, pairs: &[(&str, &str)]) -> (String, String) {
    let facts = Facts {
        cluster: cluster.map(str::to_owned),
        domains: Vec::new(),
        env: env(pairs),
        machine,
    };
    let found = builtin().recognise(&facts);
    (found.profile.name, found.why)
}

fn is(found: (String, String), name: &str, why: &str) {
    assert_eq!((found.0.as_str(), found.1.as_str()), (name, why));
}

#[test]
fn a_cluster_name_names_a_site() {
    let node = lumi_node();
    is(recognise(&node, Some("lumi"), &[]), "lumi-g", "the cluster name \"lumi\" names LUMI-G");
    let from_env = recognise(&node, None, &[("SLURM_CLUSTER_NAME", "frontier")]);
    is(from_env, "frontier", "the cluster name \"frontier\" names Frontier");
    let one_gpu = machine(
        Some((GpuVendor::Amd, "AMD INSTINCT MI250X (MCM) OAM AC MBA", 1)),
        Some((NicKind::Slingshot, "hsn0")),
    );
    assert_eq!(recognise(&one_gpu, Some("lumi"), &[]).0, "lumi-g", "a job may see few GPUs");
}

#[test]
fn a_domain_or_a_variable_names_a_site() {
    let a100 = machine(
        Some((GpuVendor::Nvidia, "NVIDIA A100-SXM4-40GB", 4)),
        Some((NicKind::Slingshot, "hsn0")),
    );
    let server = "640002.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov";
    is(
        recognise(&a100, None, &[("PBS_JOBID", server)]),
        "polaris",
        "the PBS server \"polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov\" names Polaris",
    );
    let login = "polaris-login-01.hsn.cm.polaris.alcf.anl.gov";
    is(
        recognise(&a100, None, &[("PBS_O_HOST", login)]),
        "polaris",
        "PBS_O_HOST \"polaris-login-01.hsn.cm.polaris.alcf.anl.gov\" names Polaris",
    );
    is(
        recognise(&a100, None, &[("NERSC_HOST", "perlmutter")]),
        "perlmutter",
        "NERSC_HOST=perlmutter names Perlmutter",
    );
    let mut own = a100.clone();
    own.os.domains = vec!["chn.perlmutter.nersc.gov.".to_owned()];
    assert_eq!(recognise(&own, None, &[]).0, "perlmutter");
    own.os.domains = vec!["notperlmutter.nersc.gov".to_owned()];
    assert_eq!(recognise(&own, None, &[]).0, "slingshot", "a suffix is cut at a dot");
    let apu = machine(
        Some((GpuVendor::Amd, "AMD Instinct MI300A", 4)),
        Some((NicKind::Slingshot, "hsi0")),
    );
    assert_eq!(recognise(&apu, None, &[("LCSCHEDCLUSTER", "tuolumne")]).0, "el-capitan");
}

#[test]
fn other_hardware_of_a_site_gets_the_general_profile() {
    let cpu_only = machine(None, Some((NicKind::Slingshot, "hsn0")));
    is(
        recognise(&cpu_only, Some("lumi"), &[]),
        "slingshot",
        "the cluster name \"lumi\" names LUMI-G, but this node shows no GPU; \
         the hardware is that of a machine on Slingshot",
    );
    let a40 = machine(Some((GpuVendor::Nvidia, "NVIDIA A40", 8)), None);
    is(
        recognise(&a40, Some("lumi"), &[]),
        "ethernet",
        "the cluster name \"lumi\" names LUMI-G, but GPU 0 is NVIDIA A40; \
         no network faster than Ethernet was found",
    );
    let many =
        machine(Some((GpuVendor::Nvidia, "NVIDIA A100", 8)), Some((NicKind::InfiniBand, "ib0")));
    let why = recognise(&many, Some("perlmutter"), &[]).1;
    assert!(why.contains("but this node has 8 GPUs, not 4"), "{why}");
    let few =
        machine(Some((GpuVendor::Nvidia, "NVIDIA A100", 4)), Some((NicKind::InfiniBand, "ib0")));
    let why = recognise(&few, Some("perlmutter"), &[]).1;
    assert!(why.contains("but this node has no Slingshot interface"), "{why}");
}

#[test]
fn hardware_alone_names_no_site() {
    // LUMI, Frontier and others have such nodes, and all of them are called nid001000.
    is(
        recognise(&lumi_node(), None, &[]),
        "slingshot",
        "no cluster name, domain or variable names a known site; \
         the hardware is that of a machine on Slingshot",
    );
    let kind = |kind, name| recognise(&machine(None, Some((kind, name))), None, &[]).0;
    assert_eq!(kind(NicKind::InfiniBand, "ib0"), "infiniband");
    assert_eq!(kind(NicKind::Roce, "eth0"), "infiniband");
    assert_eq!(kind(NicKind::Ethernet, "eth0"), "ethernet");
    assert_eq!(kind(NicKind::Virtual, "veth0"), "ethernet");
    assert_eq!(recognise(&machine(None, None), None, &[]).0, "ethernet");
}

#[test]
fn a_kind_of_machine_is_known_by_its_hardware() {
    let h100 = (GpuVendor::Nvidia, "NVIDIA H100 80GB HBM3", 8);
    let mut node = machine(Some(h100), Some((NicKind::InfiniBand, "ibp24s0")));
    assert_eq!(recognise(&node, None, &[]).0, "infiniband", "the processor is not known");
    node.cpu_model = Some("Intel(R) Xeon(R) Platinum 8468".to_owned());
    assert_eq!(recognise(&node, None, &[]).0, "infiniband");
    node.cpu_model = Some("Intel(R) Xeon(R) Platinum 8480C".to_owned());
    assert_eq!(recognise(&node, None, &[]).0, "dgx-h100");
}

#[test]
fn host_names_do_not_matter() {
    let mut node = lumi_node();
    let of = |node: &Machine| recognise(node, None, &[("SLURMD_NODENAME", "nid001000")]);
    let before = of(&node);
    for host in ["nid005000", "frontier03329", "x3104c0s1b0n0", "uan01"] {
        node.host = host.to_owned();
        assert_eq!(of(&node), before);
    }
}

#[test]
fn a_users_file_comes_first() {
    let text = r#"
        name = "our-lumi"
        title = "our share of LUMI"
        extends = "lumi-g"
        [match]
        cluster = ["lumi"]
        [place]
        reserve = "none"
    "#;
    let profiles = builtin().with_file("site.toml", text).unwrap();
    let node = lumi_node();
    let facts = Facts {
        cluster: Some("lumi".to_owned()),
        domains: Vec::new(),
        env: BTreeMap::new(),
        machine: &node,
    };
    let found = profiles.recognise(&facts);
    assert_eq!(found.why, "the cluster name \"lumi\" names our share of LUMI");
    assert_eq!(found.profile.place.reserve, Some(Reserve::None));
    let lumi = profiles.named("lumi-g").unwrap();
    assert_eq!(lumi.place.reserve, Some(Reserve::FirstOfL3));
    assert_eq!(found.profile.rules, lumi.rules);
}

/// The text of a built-in profile.
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
    fn recognition_never_panics(cluster in "\\PC{0,12}", domain in "\\PC{0,24}", job in "\\PC{0,24}") {
        let node = lumi_node();
        let facts = Facts {
            cluster: Some(cluster),
            domains: vec![domain],
            env: env(&[("PBS_JOBID", &job), ("PBS_O_HOST", &job)]),
            machine: &node,
        };
        prop_assert!(!builtin().recognise(&facts).why.is_empty());
    }
}
