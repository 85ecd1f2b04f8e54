//! The scene as an SVG: a box for each memory node with its cores as tiles, its GPUs and below
//! them its interfaces as cards, a line from each GPU to the interface of its rank, and a legend.

use regatta_model::CpuSet;

use super::grid::{columns, row_length};
use super::markup::{Area, Markup, escape, fill, round, style};
use super::palette;
use super::scene::{CoreState, Devices, GroupView, NodeView, Scene};
use super::svg_parts::{self, CARD, CARD_GAP, CARD_MAX, CARD_MIN, PITCH, TILE};
use super::text::{printable, wrap};

/// The page's margin.
const MARGIN: f64 = 24.0;
/// The greatest width of the boxes together.
const PAGE: f64 = 1560.0;
/// The least width of the page, for the heading and the legend.
const PAGE_MIN: f64 = 480.0;
/// Between boxes.
const GAP: f64 = 16.0;
/// Inside of a box.
const PAD: f64 = 14.0;
/// A box's title.
const TITLE: f64 = 32.0;
/// The line above a group of cores.
const GROUP: f64 = 18.0;
/// Between GPUs and interfaces, for the lines that join them.
const CHANNEL: f64 = 34.0;
/// A line of the legend.
const LEGEND_ROW: f64 = 28.0;
/// The mean width of a character of the legend.
const LETTER: f64 = 6.2;

/// The picture under construction. The parts lie above each other in this order, so that lines
/// that cross a box pass behind its cores.
struct Picture<'a> {
    scene: &'a Scene,
    /// The width inside of a box.
    inner: f64,
    boxes: Markup,
    front: Markup,
    gpus: Vec<(Area, &'a [u32])>,
    nics: Vec<(Area, &'a [u32])>,
}

/// How tall the parts of a row of boxes are.
#[derive(Clone, Copy, Default)]
struct Bands {
    cores: f64,
    gpus: f64,
    nics: f64,
}

/// The scene as a document.
pub fn draw(scene: &Scene, title: &str) -> String {
    let (across, inner) = measure(scene);
    let outer = inner + 2.0 * PAD;
    let boxes = across as f64 * (outer + GAP) - GAP;
    let width = (boxes.max(PAGE_MIN) + 2.0 * MARGIN).ceil();
    let mut picture = Picture {
        scene,
        inner,
        boxes: Markup::default(),
        front: Markup::default(),
        gpus: Vec::new(),
        nics: Vec::new(),
    };
    let mut y = heading(&mut picture.front, scene, title, width - 2.0 * MARGIN);
    let nodes: Vec<&NodeView> = scene.nodes().collect();
    for row in nodes.chunks(across) {
        y = picture.row(row, y);
    }
    if !scene.adrift.is_empty() {
        y = picture.adrift(y, width - 2.0 * MARGIN);
    }
    y = legend(&mut picture.front, scene, y + 8.0, width - 2.0 * MARGIN);
    document(&picture, title, width, (y + MARGIN).ceil())
}

fn document(picture: &Picture, title: &str, width: f64, height: f64) -> String {
    let scene = picture.scene;
    let mut about = vec![format!("{}: {}.", scene.host, scene.parts.join(", "))];
    about.extend(
        scene.ranks.iter().map(|r| format!("Rank {}: {}.", r.local_rank, r.share.join(", "))),
    );
    let mut page = Markup::default();
    page.rect(Area { x: 0.0, y: 0.0, w: width, h: height }, 0.0, "page");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
         <title id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>\n<style>\n{}</style>\n\
         {}{}{}{}</svg>\n",
        escape(&printable(title)),
        escape(&about.join("\n")),
        style(),
        page.out,
        picture.boxes.out,
        picture.links(),
        picture.front.out,
    )
}

/// How many boxes stand side by side, and how wide they are inside.
fn measure(scene: &Scene) -> (usize, f64) {
    let most = |count: fn(&NodeView) -> usize| scene.nodes().map(count).max().unwrap_or(0);
    let gpus = most(|n| n.devices.gpus.len());
    let nics = most(|n| n.devices.nics.len());
    let cells = most(|n| n.groups.iter().map(|g| g.cores.len()).max().unwrap_or(0));
    let cards = |count: usize, width: f64| count as f64 * (width + CARD_GAP) - CARD_GAP;
    let least = cards(gpus.max(nics).clamp(2, 4), CARD_MIN).max(cells.min(8) as f64 * PITCH);
    let fit = ((PAGE + GAP) / (least + 2.0 * PAD + GAP)) as usize;
    let blocks = scene.packages.iter().map(|p| p.nodes.len()).max().unwrap_or(1);
    let across = columns(scene.nodes().count(), blocks, fit.min(4));
    let room = (PAGE + GAP) / across as f64 - GAP - 2.0 * PAD;
    // Six rows of cores are easier to read than a tall stack or one long line.
    let in_rows = |most: usize| row_length(cells, most) as f64 * PITCH;
    let rows = in_rows(cells.div_ceil(6).max(8));
    let wanted = cards(gpus.max(nics), 140.0).max(rows).max(least).min(room);
    // Where the cards make a box wider than its cores, wider rows of cores fill it.
    let wider = in_rows((room / PITCH) as usize);
    let sparse = in_rows((wanted / PITCH) as usize) < wanted * 0.75;
    (across, round(if sparse && wider > wanted { wider } else { wanted }))
}

fn heading(markup: &mut Markup, scene: &Scene, title: &str, width: f64) -> f64 {
    let at = Area { x: MARGIN, y: MARGIN + 18.0, w: width, h: 0.0 };
    markup.fitted(at, "h1", 22.0, title);
    let mut parts = Vec::new();
    parts.extend((printable(title) != scene.host).then(|| scene.host.clone()));
    parts.extend(scene.cpu_model.clone());
    parts.extend(scene.parts.iter().cloned());
    parts.retain(|p| !p.is_empty());
    markup.fitted(Area { y: MARGIN + 40.0, ..at }, "dim", 11.0, &parts.join(" · "));
    MARGIN + 58.0
}

/// How many cards stand in a row, and how wide each is.
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

impl<'a> Picture<'a> {
    fn per_row(&self, group: &GroupView) -> usize {
        row_length(group.cores.len(), ((self.inner + PITCH - TILE) / PITCH) as usize)
    }

    fn bands(&self, groups: &[GroupView], devices: &Devices, inner: f64) -> Bands {
        let group_height =
            |g: &GroupView| GROUP + g.cores.len().div_ceil(self.per_row(g)) as f64 * PITCH + 6.0;
        let folded = if devices.folded_nics.is_empty() { 0.0 } else { 20.0 };
        Bands {
            cores: groups.iter().map(group_height).sum(),
            gpus: cards_height(devices.gpus.len(), inner),
            nics: cards_height(devices.nics.len(), inner) + folded,
        }
    }

    /// Draws boxes side by side, and says where the next row begins.
    fn row(&mut self, nodes: &[&'a NodeView], y: f64) -> f64 {
        let mut tallest = Bands::default();
        for node in nodes {
            let bands = self.bands(&node.groups, &node.devices, self.inner);
            tallest.cores = tallest.cores.max(bands.cores);
            tallest.gpus = tallest.gpus.max(bands.gpus);
            tallest.nics = tallest.nics.max(bands.nics);
        }
        let mut bottom = y;
        for (i, &node) in nodes.iter().enumerate() {
            let x = round(MARGIN + i as f64 * (self.inner + 2.0 * PAD + GAP));
            let memory = node.memory.as_deref().unwrap_or("");
            self.cores(node, x + PAD, y + TITLE);
            let devices = Area { x, y, w: self.inner, h: 0.0 };
            bottom = self.frame(devices, &node.label, memory, tallest, &node.devices);
        }
        bottom + GAP
    }

    fn adrift(&mut self, y: f64, width: f64) -> f64 {
        let devices = &self.scene.adrift;
        let count = devices.gpus.len().max(devices.nics.len()) as f64;
        let wanted = (count * (180.0 + CARD_GAP)).max(self.inner);
        let area = Area { x: MARGIN, y, w: wanted.min(width - 2.0 * PAD), h: 0.0 };
        let bands = self.bands(&[], devices, area.w);
        self.frame(area, "unknown locality", "", bands, devices) + GAP
    }

    /// A box with its title and devices; `at.w` is the width inside. Returns its lower edge.
    fn frame(
        &mut self,
        at: Area,
        label: &str,
        memory: &str,
        bands: Bands,
        devices: &'a Devices,
    ) -> f64 {
        let (x, inner) = (at.x + PAD, at.w);
        let gpu_y = at.y + TITLE + bands.cores + 4.0;
        let channel = if bands.gpus > 0.0 && bands.nics > 0.0 { CHANNEL } else { 0.0 };
        let nic_y = gpu_y + bands.gpus + channel;
        let bottom = nic_y + bands.nics + PAD;
        self.boxes.rect(Area { w: inner + 2.0 * PAD, h: bottom - at.y, ..at }, 10.0, "box");
        self.front.text(x, at.y + 21.0, "h2", label);
        self.front.text(x + inner, at.y + 21.0, "dim end", memory);
        for (area, gpu) in grid(Area { x, y: gpu_y, w: inner, h: 0.0 }, &devices.gpus) {
            svg_parts::gpu(&mut self.front, area, gpu);
            self.gpus.push((area, &gpu.ranks));
        }
        for (area, nic) in grid(Area { x, y: nic_y, w: inner, h: 0.0 }, &devices.nics) {
            svg_parts::nic(&mut self.front, area, nic);
            self.nics.push((area, &nic.ranks));
        }
        if !devices.folded_nics.is_empty() {
            let names = devices.folded_nics.join(", ");
            let text = format!("and {} more without ranks: {names}", devices.folded_nics.len());
            let y = nic_y + cards_height(devices.nics.len(), inner) + 14.0;
            self.front.fitted(Area { x, y, w: inner, h: 0.0 }, "dim", 11.0, &text);
        }
        bottom
    }

    fn cores(&mut self, node: &NodeView, x: f64, mut y: f64) {
        for group in &node.groups {
            let size = group.size.as_ref().map_or(String::new(), |s| format!(" · {s}"));
            let cpus = group.cores.iter().fold(CpuSet::new(), |all, c| all.union(&c.cpus));
            let label = format!("{}{size} · CPUs {cpus}", group.label);
            let at = Area { x, y: y + 12.0, w: self.inner, h: 0.0 };
            self.front.fitted(at, "dim", 11.0, &label);
            y += GROUP;
            for cores in group.cores.chunks(self.per_row(group)) {
                for (i, core) in cores.iter().enumerate() {
                    let x = round(x + i as f64 * PITCH);
                    svg_parts::core(&mut self.front, x, y, core, &self.scene.ranks);
                }
                y += PITCH;
            }
            y += 6.0;
        }
    }

    /// A line from each GPU to the interface of each of its ranks.
    fn links(&self) -> String {
        let mut out = String::new();
        for (from, own) in &self.gpus {
            for rank in own.iter() {
                let nic = self.nics.iter().find(|(_, users)| users.contains(rank));
                let Some((to, users)) = nic else { continue };
                let (x, y) = (slot(*from, own, *rank), round(from.y + CARD));
                let (to_x, to_y) = (slot(*to, users, *rank), round(to.y));
                let bend = ((to_y - y).abs() / 2.0).max(CHANNEL / 2.0);
                let (out_y, in_y) = (round(y + bend), round(to_y - bend));
                let class = format!("link l{}", palette::index(*rank));
                out.push_str(&format!(
                    "<path class=\"{class}\" d=\"M{x} {y}C{x} {out_y} {to_x} {in_y} {to_x} {to_y}\"/>\n"
                ));
            }
        }
        out
    }
}

/// The middle of a rank's part of a card.
fn slot(area: Area, ranks: &[u32], rank: u32) -> f64 {
    let position = ranks.iter().position(|&r| r == rank).unwrap_or(0) as f64 + 0.5;
    round(area.x + 6.0 + (area.w - 12.0) * position / ranks.len().max(1) as f64)
}

/// Things as cards from left to right, in as many rows as they need.
fn grid<T>(at: Area, things: &[T]) -> impl Iterator<Item = (Area, &T)> {
    let (per_row, w) = card_grid(things.len(), at.w);
    things.iter().enumerate().map(move |(i, thing)| {
        let x = round(at.x + (i % per_row) as f64 * (w + CARD_GAP));
        let y = round(at.y + (i / per_row) as f64 * (CARD + CARD_GAP));
        (Area { x, y, w, h: CARD }, thing)
    })
}

/// The ranks, the signs on cores that have none, and the notes. Returns the lower edge.
fn legend(markup: &mut Markup, scene: &Scene, top: f64, width: f64) -> f64 {
    let shares: Vec<String> = scene.ranks.iter().map(|r| r.share.join(" · ")).collect();
    let longest = shares.iter().map(|s| s.chars().count()).max().unwrap_or(0) as f64;
    let column = (longest * LETTER + TILE + 32.0).clamp(1.0, width);
    let across = ((width / column) as usize).max(1);
    let down = shares.len().div_ceil(across).max(1);
    for (i, (rank, share)) in scene.ranks.iter().zip(&shares).enumerate() {
        let x = round(MARGIN + (i / down) as f64 * column);
        let y = top + (i % down) as f64 * LEGEND_ROW;
        let name = format!("Rank {}", rank.local_rank);
        let tip: Vec<String> = [name].into_iter().chain(rank.reasons.iter().cloned()).collect();
        markup.open("", &tip);
        markup.rect(Area { x, y, w: TILE, h: TILE }, 4.0, &fill(rank.local_rank));
        markup.text(x + TILE / 2.0, y + 15.0, "num on", &rank.local_rank.to_string());
        let room = Area { x: x + TILE + 8.0, y: y + 15.0, w: column - TILE - 12.0, h: 0.0 };
        markup.fitted(room, "", 11.0, share);
        markup.close();
    }
    let mut y = top + if shares.is_empty() { 0.0 } else { down as f64 * LEGEND_ROW + 6.0 };
    y = signs(markup, scene, y);
    let shared = scene.shared().first().and_then(|(ranks, _)| ranks.first().copied());
    let shared = shared.map(|r| format!("{r}+ is a core that rank {r} shares with others"));
    let threads = scene.threads().map(|t| format!("Dots are hardware threads: {t}"));
    let notes = shared.into_iter().chain(threads);
    for note in notes.chain(scene.notes.iter().cloned()) {
        let words: Vec<String> = note.split(' ').map(str::to_owned).collect();
        for line in wrap(&words, " ", (width / LETTER) as usize) {
            markup.text(MARGIN, y + 13.0, "dim", &line);
            y += 18.0;
        }
    }
    y
}

/// What tiles without a rank mean, those that occur.
fn signs(markup: &mut Markup, scene: &Scene, y: f64) -> f64 {
    let mut x = MARGIN;
    for (state, class, sign, words) in [
        (CoreState::Idle, "idle", "·", "idle core"),
        (CoreState::Reserved, "reserved", "–", "reserved core"),
        (CoreState::Unusable, "unusable", "×", "core that this job may not use"),
    ] {
        if scene.cores().any(|c| c.state == state) {
            svg_parts::mark(markup, Area { x, y, w: TILE, h: TILE }, class, sign);
            markup.text(x + TILE + 8.0, y + 15.0, "", words);
            x += TILE + 32.0 + words.len() as f64 * LETTER;
        }
    }
    if x > MARGIN { y + LEGEND_ROW + 4.0 } else { y }
}
