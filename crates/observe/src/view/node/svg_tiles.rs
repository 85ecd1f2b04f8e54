//! Tiles and cards of the SVG: cores, GPUs, NICs.

use regatta_draw::svg::{Rect, Svg};
use regatta_model::units::format_ranks;

use super::scene::{CoreState, CoreView, GpuView, NicView, RankView};

/// Side of a core's tile.
pub const TILE: f64 = 22.0;
/// Distance between adjacent tiles.
pub const PITCH: f64 = 25.0;
/// Height of a device's card.
pub const CARD: f64 = 56.0;
/// Gap between cards.
pub const CARD_GAP: f64 = 8.0;
/// Minimum width of a card.
pub const CARD_MIN: f64 = 112.0;
/// Maximum width of a card.
pub const CARD_MAX: f64 = 340.0;

const RADIUS: f64 = 4.0;

/// A core's tile with its tooltip.
pub fn core(svg: &mut Svg, x: f64, y: f64, core: &CoreView, ranks: &[RankView]) {
    svg.open(Some(("data-core", &core.cpus.to_string())), &core_tip(core, ranks));
    let area = Rect { x, y, w: TILE, h: TILE };
    let (middle, base) = (x + TILE / 2.0, y + TILE / 2.0 + 4.0);
    match &core.state {
        CoreState::Owned(owners) => {
            svg.striped_rect(area, RADIUS, owners.get(..4).unwrap_or(owners));
            let first = owners.first().copied().unwrap_or_default();
            let more = if owners.len() > 1 { "+" } else { "" };
            let lift = if core.cpus.len() > 1 { 2.0 } else { 0.0 };
            svg.text((middle, base - lift), "num on", &format!("{first}{more}"));
            thread_dots(svg, area, core);
        }
        state => empty_tile(svg, area, state),
    }
    svg.close();
}

/// A tile without a rank.
pub fn empty_tile(svg: &mut Svg, area: Rect, state: &CoreState) {
    let (class, symbol) = match state {
        CoreState::Reserved => ("reserved", "–"),
        CoreState::Unusable => ("unusable", "×"),
        CoreState::Idle | CoreState::Owned(_) => ("idle", "·"),
    };
    // Half a unit inside, for a sharp outline of the size of a filled tile.
    let inside = Rect { x: area.x + 0.5, y: area.y + 0.5, w: area.w - 1.0, h: area.h - 1.0 };
    svg.rect(inside, RADIUS, class);
    svg.text((area.x + area.w / 2.0, area.y + area.h / 2.0 + 4.0), "num dim", symbol);
}

/// One dot per hardware thread, dark if in use.
fn thread_dots(svg: &mut Svg, area: Rect, core: &CoreView) {
    let threads = core.cpus.len().min(4);
    if threads < 2 {
        return;
    }
    let (size, step) = (3.0, 4.5);
    let start = area.x + (area.w - step * threads as f64 + step - size) / 2.0;
    for i in 0..threads {
        let class = if i < core.threads_used { "pip" } else { "pip off" };
        let x = start + step * i as f64;
        svg.rect(Rect { x, y: area.y + TILE - 5.5, w: size, h: size }, 1.5, class);
    }
}

fn core_tip(core: &CoreView, ranks: &[RankView]) -> Vec<String> {
    let state = match &core.state {
        CoreState::Owned(owners) => {
            let (used, ranks) = (core.threads_used, rank_label(owners));
            match core.cpus.len() {
                0 | 1 => ranks,
                all => format!("{ranks} on {used} of {all} threads"),
            }
        }
        CoreState::Reserved => "reserved".to_owned(),
        CoreState::Idle => "idle: usable, but without a rank".to_owned(),
        CoreState::Unusable => "not usable: offline or outside the job's cpuset".to_owned(),
    };
    let mut tip = vec![format!("CPU {}: {state}", core.cpus)];
    if let CoreState::Owned(owners) = &core.state {
        let own = ranks.iter().filter(|r| owners.contains(&r.local_rank));
        tip.extend(own.filter_map(|r| r.cpu_reason.clone()));
    }
    tip
}

/// A GPU's card, in the colours of its ranks.
pub fn gpu(svg: &mut Svg, area: Rect, gpu: &GpuView) {
    let ranks = rank_label(&gpu.ranks);
    let memory = gpu.memory.as_ref().map_or(String::new(), |m| format!(", {m}"));
    let lines = [
        format!("GPU {}", gpu.index),
        format!("{}{memory}", gpu.name),
        gpu.pci.clone().unwrap_or_default(),
    ];
    svg.open(None, &[format!("{}: {ranks}", lines[0]), lines[1].clone(), lines[2].clone()]);
    match gpu.ranks.is_empty() {
        true => svg.rect(area, 6.0, "card"),
        false => svg.striped_rect(area, 6.0, gpu.ranks.get(..8).unwrap_or(&gpu.ranks)),
    }
    let on = if gpu.ranks.is_empty() { "dim" } else { "on" };
    card_lines(svg, area, on, &lines, &ranks);
    svg.close();
}

/// A NIC's card, with the colours of its ranks along the upper edge.
pub fn nic(svg: &mut Svg, area: Rect, nic: &NicView) {
    let ranks = rank_label(&nic.ranks);
    let speed = nic.speed.clone().unwrap_or_else(|| "speed unknown".to_owned());
    let kind = format!("{speed} · {}", nic.kind);
    let tip = [format!("{}: {ranks}", nic.name), format!("{kind} · {}", nic.state)];
    svg.open(None, &tip);
    svg.rect(area, 6.0, "card");
    if !nic.ranks.is_empty() {
        let strip = Rect { x: area.x + 6.0, w: area.w - 12.0, h: 4.0, ..area };
        svg.striped_rect(strip, 0.0, nic.ranks.get(..8).unwrap_or(&nic.ranks));
    }
    let on = if nic.ranks.is_empty() { "dim" } else { "" };
    card_lines(svg, area, on, &[nic.name.clone(), kind, ranks], "");
    let (class, state) = match nic.state {
        "DOWN" => ("end down", "DOWN"),
        "state unknown" => ("end dim", "?"),
        state => ("end dim", state),
    };
    svg.text((area.x + area.w - 7.0, area.y + 18.0), class, state);
    svg.close();
}

fn rank_label(ranks: &[u32]) -> String {
    match ranks {
        [] => "no rank".to_owned(),
        _ => format_ranks(ranks),
    }
}

fn card_lines(svg: &mut Svg, area: Rect, class: &str, lines: &[String; 3], right: &str) {
    let inside = Rect { x: area.x + 7.0, y: area.y + 18.0, w: area.w - 14.0, h: 0.0 };
    let [first, second, third] = lines;
    let side = right.chars().count() as f64 * 7.0 + 4.0;
    // The first line leaves room for the text on the right, at least for a short state.
    let first_width = (inside.w - side.max(22.0)).max(0.0);
    svg.text_truncated(Rect { w: first_width, ..inside }, &format!("strong {class}"), 12.0, first);
    if !right.is_empty() {
        svg.text((inside.x + inside.w, inside.y), &format!("side {class}"), right);
    }
    svg.text_truncated(Rect { y: area.y + 33.0, ..inside }, class, 11.0, second);
    svg.text_truncated(Rect { y: area.y + 47.0, ..inside }, class, 11.0, third);
}
