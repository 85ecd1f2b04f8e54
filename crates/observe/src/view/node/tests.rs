//! Complete drawings: golden files, hostile names, random machines.

use std::path::PathBuf;

use proptest::prelude::*;
use regatta_draw::frame::TerminalOptions;
use regatta_model::{CpuSet, LinkState, Machine, NicKind, NodeLayout};

use super::samples;
use super::scene::{CoreState, CoreView, Scene};
use super::{svg, terminal};

type Sample = (&'static str, fn() -> (Machine, NodeLayout));

const SAMPLES: [Sample; 5] = [
    ("lumi", samples::lumi),
    ("vm", samples::vm),
    ("gh200", samples::gh200),
    ("aurora", samples::aurora),
    ("part-of-dgx", samples::part_of_dgx),
];

fn options(width: usize) -> TerminalOptions {
    TerminalOptions { width, color: false, unicode: true }
}

/// Compares with a golden file; `REGATTA_BLESS=1` updates it.
fn golden(name: &str, actual: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("REGATTA_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{name} differs (REGATTA_BLESS=1 updates it):\n{actual}");
}

const ASCII: TerminalOptions = TerminalOptions { width: 80, color: false, unicode: false };
const COLOR: TerminalOptions = TerminalOptions { width: 80, color: true, unicode: true };

#[test]
fn terminal_drawings_match_the_golden_files() {
    for (name, sample) in SAMPLES {
        let (machine, layout) = sample();
        for width in [80, 200] {
            let drawing = terminal(&machine, &layout, options(width));
            golden(&format!("draw-{name}-{width}.txt"), &drawing);
        }
    }
    let (machine, layout) = samples::lumi();
    for (name, options) in [("40", options(40)), ("80-ascii", ASCII), ("80-color", COLOR)] {
        golden(&format!("draw-lumi-{name}.txt"), &terminal(&machine, &layout, options));
    }
}

#[test]
fn svg_drawings_match_the_golden_files() {
    for (name, sample) in SAMPLES {
        let (machine, layout) = sample();
        golden(&format!("draw-{name}.svg"), &svg(&machine, &layout, &machine.host));
    }
}

#[test]
fn ascii_mode_is_ascii_and_colour_does_not_change_the_text() {
    for (_, sample) in SAMPLES {
        let (machine, layout) = sample();
        assert!(terminal(&machine, &layout, ASCII).is_ascii());
        let plain = terminal(&machine, &layout, options(80));
        assert!(!plain.contains('\u{1b}'));
        let color = terminal(&machine, &layout, COLOR);
        assert!(color.contains("\u{1b}[48;5;"));
        let bare = anstream::adapter::strip_str(&color).to_string();
        let ends: Vec<&str> = bare.lines().map(str::trim_end).collect();
        assert_eq!(ends, plain.lines().collect::<Vec<_>>());
    }
}

#[test]
fn hostile_names_are_sanitised() {
    let evil = "<&\"'>]]>\u{1b}[31m\u{1b}]0;x\u{7}\0\r\n\t\u{202e}\u{9b}2J\u{ffff}号é";
    let (mut machine, mut layout) = samples::lumi();
    machine.host = evil.to_owned();
    machine.cpu_model = Some(evil.to_owned());
    machine.gpus[0].name = evil.to_owned();
    machine.gpus[0].pci = Some(evil.to_owned());
    machine.nics[0].name = evil.to_owned();
    layout.ranks[0].nic = Some(evil.to_owned());
    layout.ranks[0].reasons.cpus = evil.to_owned();
    let text = terminal(&machine, &layout, options(80));
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(!text.contains('\u{202e}'));
    assert_widths(&text, 80);
    let picture = svg(&machine, &layout, evil);
    let document = roxmltree::Document::parse(&picture).unwrap();
    let texts: String = document.descendants().filter_map(|n| n.text()).collect();
    assert!(texts.contains("<&\"'>]]>"), "the name is still readable");
    assert!(picture.chars().all(|c| c == '\n' || !c.is_control()));
}

#[test]
fn svg_is_self_contained_and_accessible() {
    let (machine, layout) = samples::lumi();
    let picture = svg(&machine, &layout, "A node");
    let document = roxmltree::Document::parse(&picture).unwrap();
    let root = document.root_element();
    let child =
        |name: &str| root.children().find(|n| n.has_tag_name(("http://www.w3.org/2000/svg", name)));
    assert_eq!(child("title").unwrap().text(), Some("A node"));
    assert!(child("desc").unwrap().text().unwrap().contains("64 cores"));
    assert!(picture.contains("prefers-color-scheme:dark"));
    for forbidden in ["<script", "href", "url(http", "@import", "<image"] {
        assert!(!picture.contains(forbidden), "{forbidden}");
    }
    let classes = document.descendants().filter_map(|n| n.attribute("class"));
    let links = classes.filter(|class| class.starts_with("link ")).count();
    assert_eq!(links, 8, "one line per GPU to its rank's NIC");
    let titles = document.descendants().filter(|n| n.has_tag_name("title"));
    let tips: Vec<&str> = titles.filter_map(|n| n.text()).collect();
    assert!(tips.iter().any(|t| t.starts_with("CPU 49,113: rank 0 on 1 of 2 threads")), "{tips:?}");
}

#[test]
fn empty_machine_is_drawn() {
    let text = terminal(&Machine::default(), &NodeLayout::default(), options(0));
    assert!(text.contains("0 cores"));
    roxmltree::Document::parse(&svg(&Machine::default(), &NodeLayout::default(), "")).unwrap();
}

fn assert_widths(text: &str, width: usize) {
    for line in text.lines() {
        assert!(line.chars().count() <= width, "over {width}: {line}");
    }
}

/// The texts of all core cells in a drawing.
fn drawn_cells(text: &str, scene: &Scene) -> Vec<String> {
    let labels = scene.nodes().flat_map(|n| &n.groups).map(|g| g.label.clone());
    let labels: std::collections::BTreeSet<String> = labels.collect();
    let mut cells = Vec::new();
    for part in text.lines().filter(|l| l.starts_with('│')).flat_map(|l| l.split('│')) {
        let row = part.strip_prefix(' ').unwrap_or(part);
        let label = labels.iter().rev().find(|l| row.starts_with(&format!("{l} ")));
        let mut words = label.map_or(row, |label| &row[label.len()..]).split_whitespace();
        let is_cpu =
            |word: &str| word.strip_suffix(':').is_some_and(|n| n.parse::<usize>().is_ok());
        if words.next().is_some_and(is_cpu) {
            cells.extend(words.map(str::to_owned));
        }
    }
    cells.sort();
    cells
}

fn expected_cells(scene: &Scene) -> Vec<String> {
    let cell = |core: &CoreView| match &core.state {
        CoreState::Owned(ranks) if ranks.len() > 1 => format!("{}+", ranks[0]),
        CoreState::Owned(ranks) => ranks[0].to_string(),
        CoreState::Reserved => "--".to_owned(),
        CoreState::Idle => "··".to_owned(),
        CoreState::Unusable => "xx".to_owned(),
    };
    let mut cells: Vec<String> = scene.cores().map(cell).collect();
    cells.sort();
    cells
}

prop_compose! {
    fn nodes()(
        shape in (1usize..5, 1usize..5, 1usize..4, 1usize..40, 1usize..3),
        gpus in proptest::collection::vec((0u32..9, "\\PC{0,30}"), 0..10),
        nics in proptest::collection::vec((0u32..9, "\\PC{0,20}", 0u64..900), 0..14),
        ranks in proptest::collection::vec((0usize..600, 0usize..40, 0u32..10, 0usize..14), 0..40),
        reserved in proptest::collection::vec(0usize..600, 0..9),
        cgroup in proptest::option::of(0usize..600),
        no_l3 in any::<bool>(),
    ) -> (Machine, NodeLayout) {
        let mut machine = samples::machine("host", shape, 64);
        // Some devices are on missing NUMA nodes, some on none.
        let numa_of = |n: u32| (n < 7).then_some(n);
        for (numa, name) in &gpus {
            samples::add_gpu(&mut machine, name, "0000:01:00.0", numa_of(*numa), 80);
        }
        for (numa, name, speed) in &nics {
            let kind = if speed % 5 == 0 { NicKind::Virtual } else { NicKind::Roce };
            samples::add_nic(&mut machine, name, kind, numa_of(*numa), *speed);
        }
        if let Some(nic) = machine.nics.first_mut() {
            nic.state = LinkState::Down;
        }
        if no_l3 {
            machine.cores.iter_mut().step_by(3).for_each(|c| { c.l3 = None; c.numa = None });
        }
        machine.usable.cgroup = cgroup.map(|last| CpuSet::range(0, last));
        let ranks = ranks.iter().enumerate().map(|(i, &(first, more, gpu, nic))| {
            let nic = machine.nics.get(nic).map(|n| n.name.clone());
            let cpus = CpuSet::range(first, first + more);
            samples::rank(i as u32, cpus, Some(gpu), nic.as_deref())
        });
        let mut layout = samples::layout(&machine, ranks.collect(), "");
        layout.reserved = reserved.into_iter().collect();
        (machine, layout)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_machine_is_drawn_completely_within_the_width(
        (machine, layout) in nodes(),
        width in 40usize..=200,
    ) {
        let scene = Scene::new(&machine, &layout);
        let mut cores: Vec<&CpuSet> = scene.cores().map(|c| &c.cpus).collect();
        cores.sort();
        let mut given: Vec<&CpuSet> = machine.cores.iter().map(|c| &c.cpus).collect();
        given.sort();
        prop_assert_eq!(cores, given);

        let text = terminal(&machine, &layout, options(width));
        assert_widths(&text, width);
        prop_assert_eq!(drawn_cells(&text, &scene), expected_cells(&scene));
        let ascii = TerminalOptions { unicode: false, color: true, width };
        let plain = anstream::adapter::strip_str(&terminal(&machine, &layout, ascii)).to_string();
        prop_assert!(plain.is_ascii());
        assert_widths(&plain, width);
    }

    #[test]
    fn any_machine_gives_a_well_formed_svg((machine, layout) in nodes(), title in "\\PC{0,40}") {
        let picture = svg(&machine, &layout, &title);
        let document = roxmltree::Document::parse(&picture).unwrap();
        let cores = document.descendants().filter(|n| n.attribute("data-core").is_some());
        prop_assert_eq!(cores.count(), machine.cores.len());
    }
}
