//! The scene as SVG: a box per NUMA node with cores as tiles, GPUs and NICs as cards, a line from each
//! GPU to its rank's NIC, and a legend.

use regatta_draw::palette::rank_index;
use regatta_draw::svg::{Document, Rect, Svg, fill, round};
use regatta_draw::text::{sanitize, wrap_words};
use regatta_model::CpuSet;

use super::grid::{columns, row_length};
use super::scene::{CoreState, Devices, GroupView, NodeView, RankView, Scene};
use super::svg_tiles::{self, CARD, CARD_GAP, CARD_MAX, CARD_MIN, PITCH, TILE};

/// Page margin.
const MARGIN: f64 = 24.0;
/// Maximum total width of the boxes.
const PAGE: f64 = 1560.0;
/// Minimum page width, for heading and legend.
const PAGE_MIN: f64 = 480.0;
/// Gap between boxes.
const GAP: f64 = 16.0;
/// Padding of a box.
const PAD: f64 = 14.0;
/// Height of a box title.
const TITLE: f64 = 32.0;
/// Height of the label above a group of cores.
const GROUP: f64 = 18.0;
/// Gap between GPUs and NICs, for the lines between them.
const CHANNEL: f64 = 34.0;
/// Height of a legend row.
const LEGEND_ROW: f64 = 28.0;
/// Mean character width in the legend.
const CHAR_WIDTH: f64 = 6.2;

/// The layers of the drawing, bottom first: boxes, links, front. Links across a box thus pass behind
/// its cores.
struct SvgDrawing<'a> {
    scene: &'a Scene,
    /// Inner width of a box.
    inner: f64,
    boxes: Svg,
    front: Svg,
    gpus: Vec<(Rect, &'a [u32])>,
    nics: Vec<(Rect, &'a [u32])>,
}

/// Heights of the parts of a row of boxes.
#[derive(Clone, Copy, Default)]
struct RowHeights {
    cores: f64,
    gpus: f64,
    nics: f64,
}

/// Renders the scene as a document.
pub fn draw(scene: &Scene, title: &str) -> String {
    let (across, inner) = measure(scene);
    let outer = inner + 2.0 * PAD;
    let boxes = across as f64 * (outer + GAP) - GAP;
    let width = (boxes.max(PAGE_MIN) + 2.0 * MARGIN).ceil();
    let mut drawing = SvgDrawing {
        scene,
        inner,
        boxes: Svg::default(),
        front: Svg::default(),
        gpus: Vec::new(),
        nics: Vec::new(),
    };
    let mut y = heading(&mut drawing.front, scene, title, width - 2.0 * MARGIN);
    let nodes: Vec<&NodeView> = scene.nodes().collect();
    for row in nodes.chunks(across) {
        y = drawing.row(row, y);
    }
    if !scene.unknown_locality.is_empty() {
        y = drawing.unknown_locality(y, width - 2.0 * MARGIN);
    }
    y = legend(&mut drawing.front, scene, y + 8.0, width - 2.0 * MARGIN);
    document(drawing, title, (width, (y + MARGIN).ceil()))
}

fn document(drawing: SvgDrawing<'_>, title: &str, size: (f64, f64)) -> String {
    let scene = drawing.scene;
    let mut about = format!("{}: {}.", scene.host, scene.counts.join(", "));
    for RankView { local_rank, resources, .. } in &scene.ranks {
        about.push_str(&format!("\nRank {local_rank}: {}.", resources.join(", ")));
    }
    let links = drawing.links();
    let mut svg = drawing.boxes;
    svg.append(links);
    svg.append(drawing.front);
    let (id, background) = ("node", "page");
    svg.finish(&Document { id, title, description: &about, size, font_size: 11.0, background })
}

/// Boxes per row, and their inner width.
fn measure(scene: &Scene) -> (usize, f64) {
    let max = |count: fn(&NodeView) -> usize| scene.nodes().map(count).max().unwrap_or(0);
    let gpus = max(|n| n.devices.gpus.len());
    let nics = max(|n| n.devices.nics.len());
    let cells = max(|n| n.groups.iter().map(|g| g.cores.len()).max().unwrap_or(0));
    let cards = |count: usize, width: f64| count as f64 * (width + CARD_GAP) - CARD_GAP;
    let min_width = cards(gpus.max(nics).clamp(2, 4), CARD_MIN).max(cells.min(8) as f64 * PITCH);
    let fit = ((PAGE + GAP) / (min_width + 2.0 * PAD + GAP)) as usize;
    let across = columns(scene.nodes().count(), scene.nodes_per_socket(), fit.min(4));
    let available = (PAGE + GAP) / across as f64 - GAP - 2.0 * PAD;
    // About six rows of cores are easier to read than a tall stack or one long row.
    let in_rows = |most: usize| row_length(cells, most) as f64 * PITCH;
    let rows = in_rows(cells.div_ceil(6).max(8));
    let wanted = cards(gpus.max(nics), 140.0).max(rows).max(min_width).min(available);
    // If the cards make a box wider than its cores, use longer rows of cores.
    let wider = in_rows((available / PITCH) as usize);
    let sparse = in_rows((wanted / PITCH) as usize) < wanted * 0.75;
    (across, round(if sparse && wider > wanted { wider } else { wanted }))
}

fn heading(writer: &mut Svg, scene: &Scene, title: &str, width: f64) -> f64 {
    let at = Rect { x: MARGIN, y: MARGIN + 18.0, w: width, h: 0.0 };
    writer.text_truncated(at, "h1", 20.0, title);
    let host = (sanitize(title) != scene.host).then_some(&scene.host);
    let parts = host.into_iter().chain(&scene.cpu_model).chain(&scene.counts);
    let parts: Vec<&str> = parts.map(String::as_str).filter(|p| !p.is_empty()).collect();
    writer.text_truncated(Rect { y: MARGIN + 40.0, ..at }, "dim", 11.0, &parts.join(" · "));
    MARGIN + 58.0
}

/// Cards per row, and their width.
fn card_grid(count: usize, inner: f64) -> (usize, f64) {
    let fit = (((inner + CARD_GAP) / (CARD_MIN + CARD_GAP)) as usize).max(1);
    let per_row = count.div_ceil(count.div_ceil(fit).max(1)).max(1);
    let width = (inner + CARD_GAP) / per_row as f64 - CARD_GAP;
    (per_row, round(width.min(CARD_MAX)))
}

fn cards_height(count: usize, inner: f64) -> f64 {
    let rows = count.div_ceil(card_grid(count, inner).0) as f64;
    if count == 0 { 0.0 } else { rows * (CARD + CARD_GAP) - CARD_GAP }
}

impl<'a> SvgDrawing<'a> {
    fn per_row(&self, group: &GroupView) -> usize {
        row_length(group.cores.len(), ((self.inner + PITCH - TILE) / PITCH) as usize)
    }

    fn heights(&self, groups: &[GroupView], devices: &Devices, inner: f64) -> RowHeights {
        let rows = |g: &GroupView| g.cores.len().div_ceil(self.per_row(g)) as f64;
        let folded = if devices.folded_nics.is_empty() { 0.0 } else { 20.0 };
        RowHeights {
            cores: groups.iter().map(|g| GROUP + rows(g) * PITCH + 6.0).sum(),
            gpus: cards_height(devices.gpus.len(), inner),
            nics: cards_height(devices.nics.len(), inner) + folded,
        }
    }

    /// Draws a row of boxes; returns the top of the next row.
    fn row(&mut self, nodes: &[&'a NodeView], y: f64) -> f64 {
        let mut tallest = RowHeights::default();
        for node in nodes {
            let heights = self.heights(&node.groups, &node.devices, self.inner);
            tallest.cores = tallest.cores.max(heights.cores);
            tallest.gpus = tallest.gpus.max(heights.gpus);
            tallest.nics = tallest.nics.max(heights.nics);
        }
        let mut bottom = y;
        for (i, &node) in nodes.iter().enumerate() {
            let x = round(MARGIN + i as f64 * (self.inner + 2.0 * PAD + GAP));
            let memory = node.memory.as_deref().unwrap_or("");
            self.cores(node, x + PAD, y + TITLE);
            let devices = Rect { x, y, w: self.inner, h: 0.0 };
            bottom = self.frame(devices, &node.label, memory, tallest, &node.devices);
        }
        bottom + GAP
    }

    fn unknown_locality(&mut self, y: f64, width: f64) -> f64 {
        let devices = &self.scene.unknown_locality;
        let count = devices.gpus.len().max(devices.nics.len()) as f64;
        let wanted = (count * (180.0 + CARD_GAP)).max(self.inner);
        let area = Rect { x: MARGIN, y, w: wanted.min(width - 2.0 * PAD), h: 0.0 };
        let heights = self.heights(&[], devices, area.w);
        self.frame(area, "unknown locality", "", heights, devices) + GAP
    }

    /// Draws a box with title and devices; `at.w` is its inner width. Returns its lower edge.
    fn frame(
        &mut self,
        at: Rect,
        label: &str,
        memory: &str,
        heights: RowHeights,
        devices: &'a Devices,
    ) -> f64 {
        let (x, inner) = (at.x + PAD, at.w);
        let gpu_y = at.y + TITLE + heights.cores + 4.0;
        let channel = if heights.gpus > 0.0 && heights.nics > 0.0 { CHANNEL } else { 0.0 };
        let nic_y = gpu_y + heights.gpus + channel;
        let bottom = nic_y + heights.nics + PAD;
        self.boxes.rect(Rect { w: inner + 2.0 * PAD, h: bottom - at.y, ..at }, 10.0, "box");
        self.front.text((x, at.y + 21.0), "h2", label);
        self.front.text((x + inner, at.y + 21.0), "dim end", memory);
        for (area, gpu) in grid(Rect { x, y: gpu_y, w: inner, h: 0.0 }, &devices.gpus) {
            svg_tiles::gpu(&mut self.front, area, gpu);
            self.gpus.push((area, &gpu.ranks));
        }
        for (area, nic) in grid(Rect { x, y: nic_y, w: inner, h: 0.0 }, &devices.nics) {
            svg_tiles::nic(&mut self.front, area, nic);
            self.nics.push((area, &nic.ranks));
        }
        if !devices.folded_nics.is_empty() {
            let names = devices.folded_nics.join(", ");
            let text = format!("{} more without ranks: {names}", devices.folded_nics.len());
            let y = nic_y + cards_height(devices.nics.len(), inner) + 14.0;
            self.front.text_truncated(Rect { x, y, w: inner, h: 0.0 }, "dim", 11.0, &text);
        }
        bottom
    }

    fn cores(&mut self, node: &NodeView, x: f64, mut y: f64) {
        for group in &node.groups {
            let size = group.size.as_ref().map_or(String::new(), |s| format!(" · {s}"));
            let cpus = group.cores.iter().fold(CpuSet::new(), |all, c| all.union(&c.cpus));
            let label = format!("{}{size} · CPUs {cpus}", group.label);
            let at = Rect { x, y: y + 12.0, w: self.inner, h: 0.0 };
            self.front.text_truncated(at, "dim", 11.0, &label);
            y += GROUP;
            for cores in group.cores.chunks(self.per_row(group)) {
                for (i, core) in cores.iter().enumerate() {
                    let x = round(x + i as f64 * PITCH);
                    svg_tiles::core(&mut self.front, x, y, core, &self.scene.ranks);
                }
                y += PITCH;
            }
            y += 6.0;
        }
    }

    /// Draws a line from each GPU to the NIC of each of its ranks.
    fn links(&self) -> Svg {
        let mut out = Svg::default();
        for (from, own) in &self.gpus {
            for rank in own.iter() {
                let nic = self.nics.iter().find(|(_, users)| users.contains(rank));
                let Some((to, users)) = nic else { continue };
                let (x, y) = (stripe_center(*from, own, *rank), round(from.y + CARD));
                let (to_x, to_y) = (stripe_center(*to, users, *rank), round(to.y));
                let bend = ((to_y - y).abs() / 2.0).max(CHANNEL / 2.0);
                let (out_y, in_y) = (round(y + bend), round(to_y - bend));
                let data = format!("M{x} {y}C{x} {out_y} {to_x} {in_y} {to_x} {to_y}");
                out.path(&data, &format!("link l{}", rank_index(*rank)), "");
            }
        }
        out
    }
}

/// Horizontal centre of a rank's stripe on a card.
fn stripe_center(area: Rect, ranks: &[u32], rank: u32) -> f64 {
    let position = ranks.iter().position(|&r| r == rank).unwrap_or(0) as f64 + 0.5;
    round(area.x + 6.0 + (area.w - 12.0) * position / ranks.len().max(1) as f64)
}

/// Positions of cards, row by row.
fn grid<T>(at: Rect, items: &[T]) -> impl Iterator<Item = (Rect, &T)> {
    let (per_row, w) = card_grid(items.len(), at.w);
    items.iter().enumerate().map(move |(i, item)| {
        let x = round(at.x + (i % per_row) as f64 * (w + CARD_GAP));
        let y = round(at.y + (i / per_row) as f64 * (CARD + CARD_GAP));
        (Rect { x, y, w, h: CARD }, item)
    })
}

/// Draws ranks, core symbols and notes. Returns the lower edge.
fn legend(writer: &mut Svg, scene: &Scene, top: f64, width: f64) -> f64 {
    let resources: Vec<String> = scene.ranks.iter().map(|r| r.resources.join(" · ")).collect();
    let longest = resources.iter().map(|s| s.chars().count()).max().unwrap_or(0) as f64;
    let column = (longest * CHAR_WIDTH + TILE + 32.0).clamp(1.0, width);
    let across = ((width / column) as usize).max(1);
    let down = resources.len().div_ceil(across).max(1);
    for (i, (rank, resources)) in scene.ranks.iter().zip(&resources).enumerate() {
        let x = round(MARGIN + (i / down) as f64 * column);
        let y = top + (i % down) as f64 * LEGEND_ROW;
        let name = format!("Rank {}", rank.local_rank);
        let tip: Vec<String> = [name].into_iter().chain(rank.reasons.iter().cloned()).collect();
        writer.open(None, &tip);
        writer.rect(Rect { x, y, w: TILE, h: TILE }, 4.0, &fill(rank.local_rank));
        writer.text((x + TILE / 2.0, y + 15.0), "num on", &rank.local_rank.to_string());
        let area = Rect { x: x + TILE + 8.0, y: y + 15.0, w: column - TILE - 12.0, h: 0.0 };
        writer.text_truncated(area, "", 11.0, resources);
        writer.close();
    }
    let mut y = top + if resources.is_empty() { 0.0 } else { down as f64 * LEGEND_ROW + 6.0 };
    y = core_legend(writer, scene, y);
    let shared = scene.first_sharing_rank();
    let shared = shared.map(|r| format!("{r}+ is a core shared by rank {r} and others"));
    let threads = scene.smt_use().map(|t| format!("Dots are hardware threads: {t}"));
    let notes = shared.into_iter().chain(threads);
    for note in notes.chain(scene.notes.iter().cloned()) {
        for line in wrap_words(&note, (width / CHAR_WIDTH) as usize) {
            writer.text((MARGIN, y + 13.0), "dim", &line);
            y += 18.0;
        }
    }
    y
}

/// Draws the meaning of the tiles without a rank that occur.
fn core_legend(writer: &mut Svg, scene: &Scene, y: f64) -> f64 {
    let mut x = MARGIN;
    for (state, words) in [
        (CoreState::Idle, "idle core"),
        (CoreState::Reserved, "reserved core"),
        (CoreState::Unusable, "core not usable by this job"),
    ] {
        if scene.cores().any(|c| c.state == state) {
            svg_tiles::empty_tile(writer, Rect { x, y, w: TILE, h: TILE }, &state);
            writer.text((x + TILE + 8.0, y + 15.0), "", words);
            x += TILE + 32.0 + words.len() as f64 * CHAR_WIDTH;
        }
    }
    if x > MARGIN { y + LEGEND_ROW + 4.0 } else { y }
}
