//! The scene for a terminal: a box for each memory node, with a row of cells for each group of
//! cores and a row for each device. A cell holds a local rank's number, wherever it stands.

use super::TerminalOptions;
use super::grid::{columns, row_length};
use super::ink::{Ink, Line};
use super::legend;
use super::scene::{CoreState, CoreView, Devices, NodeView, Scene};
use super::text::{number_list, one_column};

/// Narrower than this nothing can be shown.
const MIN_WIDTH: usize = 40;
/// The inside of a box of which two fit in 80 columns.
const HALF_OF_80: usize = 35;
/// More cells in a row cannot be counted by eye.
const MAX_ROW: usize = 32;
/// The sides of a box with a space each.
const SIDES: usize = 4;
/// Columns between GPUs and the interfaces beside them.
const BETWEEN: usize = 4;
/// Ranks that a device shows one by one; more are folded to `0-7`.
const MAX_TILES: usize = 4;

/// The characters of a drawing.
pub struct Glyphs {
    /// Corners in reading order.
    corners: [char; 4],
    /// Where a line across meets the sides.
    tees: [char; 2],
    across: char,
    down: char,
    /// An idle core.
    pub idle: &'static str,
    cut: char,
}

const UNICODE: Glyphs = Glyphs {
    corners: ['┌', '┐', '└', '┘'],
    tees: ['├', '┤'],
    across: '─',
    down: '│',
    idle: "··",
    cut: '…',
};

const ASCII: Glyphs = Glyphs {
    corners: ['+', '+', '+', '+'],
    tees: ['+', '+'],
    across: '-',
    down: '|',
    idle: "..",
    cut: '~',
};

/// What all boxes have in common.
pub struct Plan {
    /// The characters.
    pub glyphs: &'static Glyphs,
    /// Columns of the labels at the left.
    label: usize,
    /// Columns of the CPU number before a row of cells, its colon included.
    number: usize,
    /// Columns of a cell.
    cell: usize,
    /// Columns inside a box, its sides and their spaces not counted.
    inner: usize,
}

/// A row for a device: what must be shown, and what is shown as far as it fits.
struct DeviceRow {
    head: Line,
    details: Vec<String>,
    /// How many of the details count when the width of the box is chosen.
    needed: usize,
}

/// The scene as text.
pub fn draw(scene: &Scene, options: TerminalOptions) -> String {
    let width = options.width.max(MIN_WIDTH);
    let glyphs = if options.unicode { &UNICODE } else { &ASCII };
    let (label, number, cell) = (label_width(scene), number_width(scene), cell_width(scene));
    let mut plan = Plan { glyphs, label, number, cell, inner: 0 };
    let across = plan.fit(scene, width);
    let mut lines = legend::heading(scene, width);
    let nodes: Vec<&NodeView> = scene.nodes().collect();
    for row in nodes.chunks(across) {
        lines.extend(plan.side_by_side(row));
    }
    if !scene.adrift.is_empty() {
        lines.extend(plan.adrift(&scene.adrift, width));
    }
    lines.extend(legend::footer(scene, &plan, width));
    for line in &mut lines {
        line.limit(width, glyphs.cut);
    }
    lines.iter().map(|l| l.render(options.color) + "\n").collect()
}

fn label_width(scene: &Scene) -> usize {
    let groups = scene.nodes().flat_map(|n| &n.groups).map(|g| g.label.len());
    let devices = scene.nodes().map(|n| &n.devices).chain([&scene.adrift]);
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

/// A core's cell: its rank's number, with a `+` if others share it.
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

fn cell_ink(core: &CoreView) -> Ink {
    match &core.state {
        CoreState::Owned(ranks) => ranks.first().map_or(Ink::Plain, |&r| Ink::Rank(r)),
        _ => Ink::Dim,
    }
}

impl Plan {
    /// Sets the width of the boxes, and says how many stand side by side.
    fn fit(&mut self, scene: &Scene, width: usize) -> usize {
        let total = scene.nodes().count();
        let step = self.cell + 1;
        let sizes = || scene.nodes().flat_map(|n| &n.groups).map(|g| g.cores.len());
        let rows = || scene.nodes().flat_map(|n| self.device_rows(&n.devices));
        let needed = rows().map(|r| r.width(r.needed)).max().unwrap_or(0).min(HALF_OF_80);
        let eight = self.lead() + sizes().max().unwrap_or(0).min(8) * step;
        let boxes = (width + 1) / (needed.max(eight) + SIDES + 1);
        let blocks = scene.packages.iter().map(|p| p.nodes.len()).max().unwrap_or(1);
        let across = columns(total, blocks, boxes);
        let room = ((width + 1) / across).saturating_sub(SIDES + 1);
        let most = (room.saturating_sub(self.lead()) / step).clamp(1, MAX_ROW);
        let cells = sizes().map(|n| self.lead() + row_length(n, most) * step).max().unwrap_or(0);
        let titles = scene.nodes().map(|n| title_width(n) + 2).max().unwrap_or(0);
        let details = rows().map(|r| r.width(r.details.len())).max().unwrap_or(0);
        self.inner = cells.max(details).max(titles).min(room);
        across
    }

    /// Boxes of equal height in a row.
    fn side_by_side(&self, nodes: &[&NodeView]) -> Vec<Line> {
        let bodies: Vec<(Vec<Line>, Vec<Line>)> = nodes
            .iter()
            .map(|n| (self.core_rows(n), self.device_lines(&n.devices, self.inner)))
            .collect();
        let tallest = |part: fn(&(Vec<Line>, Vec<Line>)) -> usize| bodies.iter().map(part).max();
        let cores = tallest(|b| b.0.len()).unwrap_or(0);
        let devices = tallest(|b| b.1.len()).unwrap_or(0);
        let mut lines: Vec<Line> = Vec::new();
        for (node, (mut top, mut bottom)) in nodes.iter().zip(bodies) {
            top.resize(cores, Line::default());
            bottom.resize(devices, Line::default());
            let memory = node.memory.as_deref().unwrap_or("");
            beside(&mut lines, self.boxed(&node.label, memory, [top, bottom], self.inner));
        }
        lines
    }

    /// The row for devices at no known place.
    fn adrift(&self, devices: &Devices, width: usize) -> Vec<Line> {
        const TITLE: &str = "unknown locality";
        let widest = self.device_rows(devices).iter().map(|r| r.width(r.details.len())).max();
        let inner = widest.unwrap_or(0).max(self.inner).max(TITLE.len() + 2).min(width - SIDES);
        self.boxed(TITLE, "", [Vec::new(), self.device_lines(devices, inner)], inner)
    }

    fn core_rows(&self, node: &NodeView) -> Vec<Line> {
        let most = (self.inner.saturating_sub(self.lead()) / (self.cell + 1)).clamp(1, MAX_ROW);
        let mut lines = Vec::new();
        for group in &node.groups {
            let mut label = group.label.as_str();
            for cores in group.cores.chunks(row_length(group.cores.len(), most)) {
                let mut line = self.labelled(label);
                line.push(self.first_cpu(cores), Ink::Dim);
                for core in cores {
                    line.push(" ", Ink::Plain);
                    line.append(self.cell(&cell_text(core, self.glyphs), cell_ink(core)));
                }
                lines.push(line);
                label = "";
            }
        }
        lines
    }

    /// Columns before the first cell of a row of cores.
    fn lead(&self) -> usize {
        self.label + 1 + self.number
    }

    fn first_cpu(&self, cores: &[CoreView]) -> String {
        let cpu = cores.first().and_then(|c| c.cpus.first()).unwrap_or_default();
        format!(" {:>width$}", format!("{cpu}:"), width = self.number)
    }

    fn labelled(&self, label: &str) -> Line {
        let mut line = Line::default();
        line.push(format!("{label:<width$}", width = self.label), Ink::Plain);
        line
    }

    /// Text in a cell.
    pub fn cell(&self, text: &str, ink: Ink) -> Line {
        let mut line = Line::default();
        line.push(format!("{text:>width$}", width = self.cell), ink);
        line
    }

    fn device_rows(&self, devices: &Devices) -> Vec<DeviceRow> {
        let mut rows = Vec::new();
        for gpu in &devices.gpus {
            let details = [Some(gpu.name.clone()), gpu.memory.clone(), gpu.pci.clone()];
            let details: Vec<String> = details.into_iter().flatten().collect();
            let head = self.device_head(&gpu_label(gpu.index), &gpu.ranks);
            rows.push(DeviceRow { head, needed: details.len(), details });
        }
        for nic in &devices.nics {
            let details = [Some(nic.name.clone()), nic.speed.clone(), Some(nic.state.to_owned())];
            let mut details: Vec<String> = details.into_iter().flatten().collect();
            let needed = details.len();
            details.push(nic.kind.to_owned());
            rows.push(DeviceRow { head: self.device_head("NIC", &nic.ranks), details, needed });
        }
        if !devices.folded_nics.is_empty() {
            let head = self.device_head("NIC", &[]);
            let count = devices.folded_nics.len();
            let details = vec![format!("{count} more:"), devices.folded_nics.join(" ")];
            rows.push(DeviceRow { head, details, needed: 1 });
        }
        rows
    }

    /// The label and the ranks of a device.
    fn device_head(&self, label: &str, ranks: &[u32]) -> Line {
        let mut line = self.labelled(label);
        line.push(" ", Ink::Plain);
        match ranks {
            [] => line.append(self.cell(self.glyphs.idle, Ink::Dim)),
            _ if ranks.len() > MAX_TILES => line.push(number_list(ranks), Ink::Bold),
            [first, rest @ ..] => {
                line.append(self.cell(&first.to_string(), Ink::Rank(*first)));
                for rank in rest {
                    line.push(" ", Ink::Plain);
                    line.append(self.cell(&rank.to_string(), Ink::Rank(*rank)));
                }
            }
        }
        line
    }

    /// The devices in `inner` columns: interfaces beside the GPUs where there is room, else below.
    fn device_lines(&self, devices: &Devices, inner: usize) -> Vec<Line> {
        let rows = self.device_rows(devices);
        let widest = |rows: &[DeviceRow]| rows.iter().map(|r| r.width(r.details.len())).max();
        let (gpus, nics) = rows.split_at(devices.gpus.len());
        let left = widest(gpus).unwrap_or(0) + BETWEEN;
        let lines = |rows: &[DeviceRow]| -> Vec<Line> {
            rows.iter().map(|row| row.line(inner, self.glyphs.cut)).collect()
        };
        if gpus.is_empty() || nics.is_empty() || left + widest(nics).unwrap_or(0) > inner {
            return lines(&rows);
        }
        let (mut both, right) = (lines(gpus), lines(nics));
        both.resize(gpus.len().max(nics.len()), Line::default());
        for (line, nic) in both.iter_mut().zip(right) {
            line.pad(left);
            line.append(nic);
        }
        both
    }

    /// A box with a title at its left and one at its right, and a line across between its parts.
    fn boxed(&self, left: &str, right: &str, parts: [Vec<Line>; 2], inner: usize) -> Vec<Line> {
        let g = self.glyphs;
        let [top_left, top_right, bottom_left, bottom_right] = g.corners;
        let mut head = Line::default();
        let mut title = Line::default();
        title.push(format!(" {} ", one_column(left)), Ink::Bold);
        title.limit(inner + 2, g.cut);
        let right = if right.is_empty() { String::new() } else { format!(" {right} ") };
        let right = if title.width() + right.len() <= inner { right } else { String::new() };
        let dashes = (inner + 2).saturating_sub(title.width() + right.len() + 1);
        head.push(top_left, Ink::Dim);
        head.append(title);
        head.push(g.across.to_string().repeat(dashes), Ink::Dim);
        head.push(right, Ink::Plain);
        head.push(g.across.to_string().repeat((inner + 3).saturating_sub(head.width())), Ink::Dim);
        head.push(top_right, Ink::Dim);
        let rule = |ends: [char; 2]| {
            let mut line = Line::default();
            let dashes = g.across.to_string().repeat(inner + 2);
            line.push(format!("{}{dashes}{}", ends[0], ends[1]), Ink::Dim);
            line
        };
        let split = parts.iter().all(|p| !p.is_empty());
        let [top, bottom] = parts;
        let mut lines = vec![head];
        lines.extend(top.into_iter().map(|l| self.sided(l, inner)));
        lines.extend(split.then(|| rule(g.tees)));
        lines.extend(bottom.into_iter().map(|l| self.sided(l, inner)));
        lines.push(rule([bottom_left, bottom_right]));
        lines
    }

    fn sided(&self, mut content: Line, inner: usize) -> Line {
        content.limit(inner, self.glyphs.cut);
        content.pad(inner);
        let mut line = Line::default();
        line.push(self.glyphs.down, Ink::Dim);
        line.push(" ", Ink::Plain);
        line.append(content);
        line.push(" ", Ink::Plain);
        line.push(self.glyphs.down, Ink::Dim);
        line
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

    /// The row in `inner` columns: details that do not fit are left out, but not the first.
    fn line(&self, inner: usize, mark: char) -> Line {
        let fits = (1..=self.details.len()).rev().find(|&n| self.width(n) <= inner).unwrap_or(1);
        let mut line = self.head.clone();
        for detail in self.details.iter().take(fits) {
            line.push(format!(" {}", one_column(detail)), Ink::Plain);
        }
        line.limit(inner, mark);
        line
    }
}

/// Puts the lines of a box to the right of what is there.
fn beside(lines: &mut Vec<Line>, right: Vec<Line>) {
    if lines.is_empty() {
        *lines = right;
        return;
    }
    for (line, right) in lines.iter_mut().zip(right) {
        line.push(" ", Ink::Plain);
        line.append(right);
    }
}
