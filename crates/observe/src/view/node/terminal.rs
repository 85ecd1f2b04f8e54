//! The scene on a terminal: a box per NUMA node, with rows of cells for its cores and a row per
//! device. A cell shows a local rank.

use anstyle::Style;
use regatta_draw::frame::{Glyphs, SIDES, TerminalOptions, UNICODE, append_right};
use regatta_draw::line::{BOLD, DIM, PLAIN, StyledLine, rank_style};
use regatta_draw::text::to_ascii;
use regatta_model::units::format_ranges;

use super::grid::{columns, row_length};
use super::legend;
use super::scene::{CoreState, CoreView, Devices, NicView, NodeView, Scene};

/// Minimum width.
const MIN_WIDTH: usize = 40;
/// Inner width of a box such that two fit in 80 columns.
const HALF_OF_80: usize = 35;
/// Maximum number of cells per row, for readability.
const MAX_ROW: usize = 32;
/// Columns between GPUs and the NICs next to them.
const DEVICE_GAP: usize = 4;
/// Maximum number of ranks shown individually per device; more are folded to `0-7`.
const MAX_TILES: usize = 4;

/// Renders boxes of equal geometry.
pub struct Renderer {
    /// The characters.
    pub glyphs: &'static Glyphs,
    /// Width of the labels.
    label: usize,
    /// Width of the CPU number before a row of cells, including its colon.
    number: usize,
    /// Width of a cell.
    cell: usize,
    /// Inner width of a box, without borders and padding.
    inner: usize,
}

/// A row for a device; details are shown as far as they fit.
struct DeviceRow {
    head: StyledLine,
    details: Vec<String>,
    /// Number of details that determine the width of the box.
    required: usize,
}

/// Renders the scene as text.
pub fn draw(scene: &Scene, options: TerminalOptions) -> String {
    let width = options.width.max(MIN_WIDTH);
    let glyphs = options.glyphs();
    let (label, number, cell) = (label_width(scene), number_width(scene), cell_width(scene));
    let mut renderer = Renderer { glyphs, label, number, cell, inner: 0 };
    let across = renderer.fit(scene, width);
    let mut lines = legend::heading(scene, width);
    let nodes: Vec<&NodeView> = scene.nodes().collect();
    for row in nodes.chunks(across) {
        lines.extend(renderer.side_by_side(row));
    }
    if !scene.unknown_locality.is_empty() {
        lines.extend(renderer.unknown_locality(&scene.unknown_locality, width));
    }
    lines.extend(legend::footer(scene, &renderer, width));
    for line in &mut lines {
        line.truncate(width, glyphs.cut);
    }
    lines.iter().map(|l| l.render(options.color) + "\n").collect()
}

fn label_width(scene: &Scene) -> usize {
    let groups = scene.nodes().flat_map(|n| &n.groups).map(|g| g.label.len());
    let devices = scene.nodes().map(|n| &n.devices).chain([&scene.unknown_locality]);
    let gpus = devices.flat_map(|d| &d.gpus).map(|g| gpu_label(g.index).len());
    groups.chain(gpus).chain(["NIC".len()]).max().unwrap_or(0)
}

fn number_width(scene: &Scene) -> usize {
    let highest = scene.cores().filter_map(|c| c.cpus.first()).max();
    highest.map_or(0, |cpu| cpu.to_string().len() + 1)
}

fn gpu_label(index: u32) -> String {
    format!("GPU {index}")
}

fn cell_width(scene: &Scene) -> usize {
    let ranks = scene.ranks.iter().map(|r| r.local_rank.to_string().len());
    let cores = scene.cores().map(|c| cell_text(c, &UNICODE).chars().count());
    ranks.chain(cores).max().unwrap_or(0).max(2)
}

/// A core's cell: its rank, with a `+` if shared.
fn cell_text(core: &CoreView, glyphs: &Glyphs) -> String {
    match &core.state {
        CoreState::Owned(ranks) => match ranks.as_slice() {
            [rank] => rank.to_string(),
            _ => format!("{}+", ranks.first().copied().unwrap_or_default()),
        },
        CoreState::Reserved => "--".to_owned(),
        CoreState::Idle => glyphs.idle.to_owned(),
        CoreState::Unusable => "xx".to_owned(),
    }
}

fn cell_style(core: &CoreView) -> Style {
    match &core.state {
        CoreState::Owned(ranks) => ranks.first().map_or(PLAIN, |&rank| rank_style(rank)),
        _ => DIM,
    }
}

impl Renderer {
    /// Sets the width of the boxes; returns the number per row.
    fn fit(&mut self, scene: &Scene, width: usize) -> usize {
        let step = self.cell + 1;
        let sizes = || scene.nodes().flat_map(|n| &n.groups).map(|g| g.cores.len());
        let rows = || scene.nodes().flat_map(|n| self.device_rows(&n.devices));
        let required = rows().map(|r| r.width(r.required)).max().unwrap_or(0).min(HALF_OF_80);
        let eight = self.lead() + sizes().max().unwrap_or(0).min(8) * step;
        let boxes = (width + 1) / (required.max(eight) + SIDES + 1);
        let across = columns(scene.nodes().count(), scene.nodes_per_socket(), boxes);
        let available = ((width + 1) / across).saturating_sub(SIDES + 1);
        let most = (available.saturating_sub(self.lead()) / step).clamp(1, MAX_ROW);
        let cells = sizes().map(|n| self.lead() + row_length(n, most) * step).max().unwrap_or(0);
        let titles = scene.nodes().map(|n| title_width(n) + 2).max().unwrap_or(0);
        let details = rows().map(|r| r.width(r.details.len())).max().unwrap_or(0);
        self.inner = cells.max(details).max(titles).min(available);
        across
    }

    /// Renders a row of boxes of equal height.
    fn side_by_side(&self, nodes: &[&NodeView]) -> Vec<StyledLine> {
        let body = |n: &&NodeView| [self.core_rows(n), self.device_lines(&n.devices, self.inner)];
        let bodies: Vec<[Vec<StyledLine>; 2]> = nodes.iter().map(body).collect();
        let heights = [0, 1].map(|part| bodies.iter().map(|b| b[part].len()).max().unwrap_or(0));
        let mut lines: Vec<StyledLine> = Vec::new();
        for (node, mut parts) in nodes.iter().zip(bodies) {
            parts.iter_mut().zip(heights).for_each(|(p, h)| p.resize(h, StyledLine::default()));
            let memory = node.memory.as_deref().unwrap_or("");
            append_right(&mut lines, self.glyphs.boxed(&node.label, memory, parts, self.inner));
        }
        lines
    }

    /// Renders the devices without a known NUMA node.
    fn unknown_locality(&self, devices: &Devices, width: usize) -> Vec<StyledLine> {
        const TITLE: &str = "unknown locality";
        let widest = self.device_rows(devices).iter().map(|r| r.width(r.details.len())).max();
        let inner = widest.unwrap_or(0).max(self.inner).max(TITLE.len() + 2).min(width - SIDES);
        self.glyphs.boxed(TITLE, "", [Vec::new(), self.device_lines(devices, inner)], inner)
    }

    fn core_rows(&self, node: &NodeView) -> Vec<StyledLine> {
        let most = (self.inner.saturating_sub(self.lead()) / (self.cell + 1)).clamp(1, MAX_ROW);
        let mut lines = Vec::new();
        for group in &node.groups {
            let mut label = group.label.as_str();
            for cores in group.cores.chunks(row_length(group.cores.len(), most)) {
                let mut line = self.labelled(label);
                line.push(self.first_cpu(cores), DIM);
                for core in cores {
                    line.push(" ", PLAIN);
                    line.append(self.cell(&cell_text(core, self.glyphs), cell_style(core)));
                }
                lines.push(line);
                label = "";
            }
        }
        lines
    }

    /// Width before the first cell of a row.
    fn lead(&self) -> usize {
        self.label + 1 + self.number
    }

    fn first_cpu(&self, cores: &[CoreView]) -> String {
        let cpu = cores.first().and_then(|c| c.cpus.first()).unwrap_or_default();
        format!(" {:>width$}", format!("{cpu}:"), width = self.number)
    }

    fn labelled(&self, label: &str) -> StyledLine {
        StyledLine::new(format!("{label:<width$}", width = self.label), PLAIN)
    }

    /// Renders text as a cell.
    pub fn cell(&self, text: &str, style: Style) -> StyledLine {
        StyledLine::new(format!("{text:>width$}", width = self.cell), style)
    }

    fn device_rows(&self, devices: &Devices) -> Vec<DeviceRow> {
        let row = |label: &str, ranks: &[u32], details: &[Option<&str>], optional: usize| {
            let details: Vec<String> = details.iter().flatten().map(|&d| d.to_owned()).collect();
            let required = details.len() - optional;
            DeviceRow { head: self.device_head(label, ranks), details, required }
        };
        let mut rows = Vec::new();
        for gpu in &devices.gpus {
            let details = [Some(gpu.name.as_str()), gpu.memory.as_deref(), gpu.pci.as_deref()];
            rows.push(row(&gpu_label(gpu.index), &gpu.ranks, &details, 0));
        }
        for NicView { name, kind, speed, state, ranks } in &devices.nics {
            let details = [Some(name.as_str()), speed.as_deref(), Some(*state), Some(*kind)];
            rows.push(row("NIC", ranks, &details, 1));
        }
        if !devices.folded_nics.is_empty() {
            let more = format!("{} more:", devices.folded_nics.len());
            let names = devices.folded_nics.join(" ");
            rows.push(row("NIC", &[], &[Some(&more), Some(&names)], 1));
        }
        rows
    }

    /// Renders label and ranks of a device.
    fn device_head(&self, label: &str, ranks: &[u32]) -> StyledLine {
        let mut line = self.labelled(label);
        if ranks.is_empty() {
            line.push(" ", PLAIN);
            line.append(self.cell(self.glyphs.idle, DIM));
        } else if ranks.len() > MAX_TILES {
            line.push(" ", PLAIN);
            line.push(format_ranges(ranks), BOLD);
        } else {
            for &rank in ranks {
                line.push(" ", PLAIN);
                line.append(self.cell(&rank.to_string(), rank_style(rank)));
            }
        }
        line
    }

    /// Renders the devices in `inner` columns: NICs next to the GPUs if they fit, else below.
    fn device_lines(&self, devices: &Devices, inner: usize) -> Vec<StyledLine> {
        let rows = self.device_rows(devices);
        let widest = |rows: &[DeviceRow]| rows.iter().map(|r| r.width(r.details.len())).max();
        let (gpus, nics) = rows.split_at(devices.gpus.len());
        let left = widest(gpus).unwrap_or(0) + DEVICE_GAP;
        let lines = |rows: &[DeviceRow]| -> Vec<StyledLine> {
            rows.iter().map(|row| row.line(inner, self.glyphs.cut)).collect()
        };
        if gpus.is_empty() || nics.is_empty() || left + widest(nics).unwrap_or(0) > inner {
            return lines(&rows);
        }
        let (mut both, right) = (lines(gpus), lines(nics));
        both.resize(gpus.len().max(nics.len()), StyledLine::default());
        for (line, nic) in both.iter_mut().zip(right) {
            line.pad(left);
            line.append(nic);
        }
        both
    }
}

fn title_width(node: &NodeView) -> usize {
    node.label.chars().count() + node.memory.as_ref().map_or(0, |m| m.len() + 3)
}

impl DeviceRow {
    fn width(&self, details: usize) -> usize {
        let shown = self.details.iter().take(details);
        self.head.width() + shown.map(|d| d.chars().count() + 1).sum::<usize>()
    }

    /// Renders the row in `inner` columns, without the details that do not fit, except the first.
    fn line(&self, inner: usize, mark: char) -> StyledLine {
        let fits = (1..=self.details.len()).rev().find(|&n| self.width(n) <= inner).unwrap_or(1);
        let mut line = self.head.clone();
        for detail in self.details.iter().take(fits) {
            line.push(format!(" {}", to_ascii(detail)), PLAIN);
        }
        line.truncate(inner, mark);
        line
    }
}
