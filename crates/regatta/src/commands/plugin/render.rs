//! The report as text: what the environment selects, then each library with its verdict.

use std::fmt::Write;

use regatta_doctor::plugin::environment::SelectedPlugin;
use regatta_doctor::plugin::kind::version_list;
use regatta_doctor::plugin::report::{KindUse, ReleaseUse};
use regatta_doctor::plugin::{Interface, LibraryReport, PluginReport};

use crate::cli::{ERROR, FAINT, GOOD, HEADING};
use regatta_draw::table;
use regatta_draw::text::sanitize;

/// The whole report.
pub fn render(report: &PluginReport) -> String {
    let mut parts: Vec<String> = Vec::new();
    if !report.selected.is_empty() {
        parts.push(selected(report));
    }
    parts.extend(report.libraries.iter().map(library));
    parts.join("\n")
}

fn selected(report: &PluginReport) -> String {
    let row = |selected: &SelectedPlugin| {
        let by = match &selected.value {
            Some(value) => format!("{}={value}", selected.kind.variable()),
            None => "default name".to_owned(),
        };
        let library = selected_library(selected, &report.libraries);
        vec![selected.kind.name().to_owned(), sanitize(&by), sanitize(&library)]
    };
    let rows: Vec<Vec<String>> = report.selected.iter().map(row).collect();
    let header = ["kind", "selected by", "library"];
    let mut text = table::with_dim_header(&header, &rows, &[0, 1, 2]);
    for problem in report.selected.iter().filter_map(|selected| selected.problem.as_ref()) {
        let _ = writeln!(text, "{ERROR}failure{ERROR:#}: {}", sanitize(problem));
    }
    if report.libraries.is_empty() {
        let _ = writeln!(
            text,
            "{FAINT}note:{FAINT:#} without a net plug-in NCCL uses its own networks: InfiniBand and TCP"
        );
    }
    text
}

fn selected_library(selected: &SelectedPlugin, libraries: &[LibraryReport]) -> String {
    let names = selected.names.join(", ");
    match &selected.path {
        _ if selected.is_disabled() => "disabled".to_owned(),
        None => format!("none: {names} not found"),
        Some(path) if !selected.in_net_library => path.clone(),
        Some(path) => {
            let mut of_net = libraries.iter().filter(|library| library.facts.path == *path);
            match of_net.any(|library| library.is_usable_for(selected.kind)) {
                true => format!("{path}, as a part of the net plug-in"),
                false => format!("none: {names} not found, and the net plug-in has none"),
            }
        }
    }
}

fn library(report: &LibraryReport) -> String {
    let facts = &report.facts;
    let (word, style) = if report.usable { ("GOOD", GOOD) } else { ("NOT USABLE", ERROR) };
    let (path, verdict) = (sanitize(&facts.path), sanitize(&report.verdict));
    let mut text = format!("{style}{word}{style:#}: {path}: {verdict}\n\n");
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{HEADING}{name:<13}{HEADING:#}{}", sanitize(value));
    };
    line("loads", &facts.load.reason().map_or("yes".to_owned(), |why| format!("no: {why}")));
    if let Some(architecture) = &facts.architecture {
        let glibc = facts.glibc.as_ref().map(|glibc| format!(", glibc {glibc} or later"));
        line("needs", &format!("{architecture}{}", glibc.unwrap_or_default()));
    }
    for missing in facts.missing() {
        line("missing", &format!("{}, needed by {}", missing.name, missing.needed_by));
    }
    for interface in &facts.interfaces {
        line(interface.kind.name(), &exported(interface));
    }
    if !facts.other_interfaces.is_empty() {
        line("also", &facts.other_interfaces.join(", "));
    }
    text.push_str(&releases(report));
    for note in &report.notes {
        let _ = writeln!(text, "{FAINT}note:{FAINT:#} {}", sanitize(note));
    }
    text
}

fn exported(interface: &Interface) -> String {
    let name = interface.name.as_ref().map(|name| format!(", named {name:?}"));
    format!("{}{}", version_list(&interface.versions), name.unwrap_or_default())
}

/// The table of releases, with a column for each exported kind.
fn releases(report: &LibraryReport) -> String {
    let kinds = report.facts.interfaces.iter().map(|interface| interface.kind.name());
    let header: Vec<&str> = ["release", "ships in"].into_iter().chain(kinds).collect();
    if header.len() == 2 {
        return String::new();
    }
    let row = |release: &ReleaseUse| {
        let start = [release.release.clone(), release.ships_in.clone()];
        start.into_iter().chain(release.kinds.iter().map(cell)).collect()
    };
    let rows: Vec<Vec<String>> = report.releases.iter().map(row).collect();
    let left: Vec<usize> = (0..header.len()).collect();
    format!("\n{}\n", table::with_dim_header(&header, &rows, &left))
}

fn cell(kind: &KindUse) -> String {
    match (kind.used, kind.needs) {
        (Some(version), _) => format!("v{version}"),
        (None, Some((first, last))) if first == last => format!("no: needs v{first}"),
        (None, Some((first, last))) => format!("no: needs v{first} to v{last}"),
        (None, None) => "-".to_owned(),
    }
}
