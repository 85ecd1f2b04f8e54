//! The tiles and cards of the SVG: cores, GPUs, interfaces.

use super::markup::{Area, Markup, escape, round};
use super::scene::{CoreState, CoreView, GpuView, NicView, RankView};
use super::text::number_list;

/// The side of a core's tile.
pub const TILE: f64 = 22.0;
/// From one tile to the next.
pub const PITCH: f64 = 25.0;
/// The height of a device's card.
pub const CARD: f64 = 56.0;
/// The space between two cards.
pub const CARD_GAP: f64 = 8.0;
/// The least width of a card.
pub const CARD_MIN: f64 = 112.0;
/// The greatest width of a card.
pub const CARD_MAX: f64 = 340.0;

const RADIUS: f64 = 4.0;

/// A core's tile with its tooltip.
pub fn core(markup: &mut Markup, x: f64, y: f64, core: &CoreView, ranks: &[RankView]) {
    let attributes = format!(" data-core=\"{}\"", escape(&core.cpus.to_string()));
    markup.open(&attributes, &core_tip(core, ranks));
    let area = Area { x, y, w: TILE, h: TILE };
    let (middle, base) = (x + TILE / 2.0, y + TILE / 2.0 + 4.0);
    match &core.state {
        CoreState::Owned(owners) => {
            markup.sliced(area, RADIUS, owners.get(..4).unwrap_or(owners));
            let first = owners.first().copied().unwrap_or_default();
            let more = if owners.len() > 1 { "+" } else { "" };
            let lift = if core.cpus.len() > 1 { 2.0 } else { 0.0 };
            markup.text(middle, base - lift, "num on", &format!("{first}{more}"));
            pips(markup, area, core);
        }
        CoreState::Reserved => mark(markup, area, "reserved", "–"),
        CoreState::Idle => mark(markup, area, "idle", "·"),
        CoreState::Unusable => mark(markup, area, "unusable", "×"),
    }
    markup.close();
}

/// A tile without a rank.
pub fn mark(markup: &mut Markup, area: Area, class: &str, sign: &str) {
    // Half a unit inside, so that the outline is sharp and as large as a filled tile.
    let inside = Area { x: area.x + 0.5, y: area.y + 0.5, w: area.w - 1.0, h: area.h - 1.0 };
    markup.rect(inside, RADIUS, class);
    markup.text(area.x + area.w / 2.0, area.y + area.h / 2.0 + 4.0, "num dim", sign);
}

/// A dot for each hardware thread, dark for those in use.
fn pips(markup: &mut Markup, area: Area, core: &CoreView) {
    let threads = core.cpus.len().min(4);
    if threads < 2 {
        return;
    }
    let (size, step) = (3.0, 4.5);
    let start = area.x + (area.w - step * threads as f64 + step - size) / 2.0;
    for i in 0..threads {
        let class = if i < core.threads_used { "pip" } else { "pip off" };
        let x = round(start + step * i as f64);
        markup.rect(Area { x, y: area.y + TILE - 5.5, w: size, h: size }, 1.5, class);
    }
}

fn core_tip(core: &CoreView, ranks: &[RankView]) -> Vec<String> {
    let state = match &core.state {
        CoreState::Owned(owners) => {
            let noun = if owners.len() > 1 { "ranks" } else { "rank" };
            let (used, all) = (core.threads_used, core.cpus.len());
            let threads =
                if all > 1 { format!(" on {used} of {all} threads") } else { String::new() };
            format!("{noun} {}{threads}", number_list(owners))
        }
        CoreState::Reserved => "reserved".to_owned(),
        CoreState::Idle => "idle: usable, but no rank has it".to_owned(),
        CoreState::Unusable => "not usable: offline or outside of the job's cpuset".to_owned(),
    };
    let mut tip = vec![format!("CPU {}: {state}", core.cpus)];
    if let CoreState::Owned(owners) = &core.state {
        let own = ranks.iter().filter(|r| owners.contains(&r.local_rank));
        tip.extend(own.filter_map(|r| r.cpu_reason.clone()));
    }
    tip
}

/// A GPU's card in its ranks' colours.
pub fn gpu(markup: &mut Markup, area: Area, gpu: &GpuView) {
    let ranks = rank_words(&gpu.ranks);
    let memory = gpu.memory.as_ref().map_or(String::new(), |m| format!(", {m}"));
    let lines = [
        format!("GPU {}", gpu.index),
        format!("{}{memory}", gpu.name),
        gpu.pci.clone().unwrap_or_default(),
    ];
    markup.open("", &[format!("{}: {ranks}", lines[0]), lines[1].clone(), lines[2].clone()]);
    match gpu.ranks.is_empty() {
        true => markup.rect(area, 6.0, "card"),
        false => markup.sliced(area, 6.0, gpu.ranks.get(..8).unwrap_or(&gpu.ranks)),
    }
    let on = if gpu.ranks.is_empty() { "dim" } else { "on" };
    card_lines(markup, area, on, &lines, &ranks);
    markup.close();
}

/// An interface's card with its ranks' colours along its upper edge.
pub fn nic(markup: &mut Markup, area: Area, nic: &NicView) {
    let ranks = rank_words(&nic.ranks);
    let speed = nic.speed.clone().unwrap_or_else(|| "speed unknown".to_owned());
    let kind = format!("{speed} · {}", nic.kind);
    let tip = [format!("{}: {ranks}", nic.name), format!("{kind} · {}", nic.state)];
    markup.open("", &tip);
    markup.rect(area, 6.0, "card");
    if !nic.ranks.is_empty() {
        let strip = Area { x: area.x + 6.0, w: area.w - 12.0, h: 4.0, ..area };
        markup.sliced(strip, 0.0, nic.ranks.get(..8).unwrap_or(&nic.ranks));
    }
    let on = if nic.ranks.is_empty() { "dim" } else { "" };
    card_lines(markup, area, on, &[nic.name.clone(), kind, ranks], "");
    let state = if nic.state == "DOWN" { "end down" } else { "end dim" };
    markup.text(area.x + area.w - 7.0, area.y + 18.0, state, short_state(nic.state));
    markup.close();
}

fn short_state(state: &str) -> &str {
    if state == "state unknown" { "?" } else { state }
}

fn rank_words(ranks: &[u32]) -> String {
    match ranks {
        [] => "no rank".to_owned(),
        [rank] => format!("rank {rank}"),
        _ => format!("ranks {}", number_list(ranks)),
    }
}

fn card_lines(markup: &mut Markup, area: Area, class: &str, lines: &[String; 3], right: &str) {
    let inside = Area { x: area.x + 7.0, y: area.y + 18.0, w: area.w - 14.0, h: 0.0 };
    let [first, second, third] = lines;
    let side = right.chars().count() as f64 * 7.0 + 4.0;
    // The first line shares its width with the text at the right, at least with a short state.
    let first_width = (inside.w - side.max(22.0)).max(0.0);
    markup.fitted(Area { w: first_width, ..inside }, &format!("strong {class}"), 12.0, first);
    if !right.is_empty() {
        let class = format!("side {class}");
        markup.text(inside.x + inside.w, inside.y, &class, right);
    }
    markup.fitted(Area { y: area.y + 33.0, ..inside }, class, 11.0, second);
    markup.fitted(Area { y: area.y + 47.0, ..inside }, class, 11.0, third);
}
