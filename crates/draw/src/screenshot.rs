//! The lines of a terminal as a drawing, for documentation and reports.

use anstyle::{AnsiColor, Color, Effects, Style};

use crate::bar::LEVELS;
use crate::line::StyledLine;
use crate::palette::RANKS;
use crate::svg::{Document, Rect, Svg, round};

/// Size of a character.
const CELL: (f64, f64) = (8.4, 18.0);
/// Space around the text.
const MARGIN: f64 = 16.0;

/// Draws lines as a terminal of `columns` shows them.
pub fn svg(lines: &[StyledLine], columns: usize, title: &str) -> String {
    let mut svg = Svg::default();
    for (row, line) in lines.iter().enumerate() {
        draw_line(&mut svg, line, MARGIN + CELL.1 * row as f64);
    }
    let text: Vec<String> = lines.iter().map(|line| line.render(false)).collect();
    let width = MARGIN * 2.0 + CELL.0 * columns as f64;
    svg.finish(&Document {
        id: "terminal",
        title,
        description: text.first().map_or("", String::as_str),
        size: (width.ceil(), (MARGIN * 2.0 + CELL.1 * lines.len() as f64).ceil()),
        font_size: 14.0,
        background: "terminal",
    })
}

fn draw_line(svg: &mut Svg, line: &StyledLine, top: f64) {
    let mut column = 0;
    for (text, style) in line.spans() {
        let cells: Vec<char> = text.chars().collect();
        let kind = |c: &char| shapes(*c).is_some() || *c == ' ';
        for run in cells.chunk_by(|a, b| kind(a) == kind(b)) {
            let at = (MARGIN + CELL.0 * column as f64, top);
            let width = CELL.0 * run.len() as f64;
            column += run.len();
            if let Some(rank) = rank_of(*style) {
                let area = Rect { x: at.0, y: top, w: width, h: CELL.1 };
                svg.rect(area, 0.0, &format!("r{rank}"));
            }
            if kind(&run[0]) {
                draw_graphic(svg, run, at, *style);
            } else {
                let text: String = run.iter().collect();
                let class = format!("cell {}", text_class(*style));
                svg.text_of_width((at.0, top + CELL.1 * 0.75), width, &class, &text);
            }
        }
    }
}

/// Index of the rank whose colour is the background.
fn rank_of(style: Style) -> Option<usize> {
    let Some(Color::Ansi256(colour)) = style.get_bg_color() else { return None };
    RANKS.iter().position(|rank| rank.ansi == colour.0)
}

/// Classes of a style.
fn text_class(style: Style) -> String {
    let colour = match style.get_fg_color() {
        Some(Color::Ansi(AnsiColor::Red)) => "red",
        Some(Color::Ansi(AnsiColor::Green)) => "green",
        Some(Color::Ansi(AnsiColor::Yellow)) => "yellow",
        Some(Color::Ansi(AnsiColor::Blue)) => "blue",
        Some(Color::Ansi(AnsiColor::Magenta)) => "magenta",
        Some(Color::Ansi(AnsiColor::Cyan)) => "cyan",
        Some(Color::Ansi(AnsiColor::White)) => "white",
        _ if rank_of(style).is_some() => "on",
        _ if style.get_effects().contains(Effects::DIMMED) => "dimmed",
        _ => "default",
    };
    let bold = if style.get_effects().contains(Effects::BOLD) { " bold" } else { "" };
    format!("{colour}{bold}")
}

/// A run of graphic characters as one path per opacity.
fn draw_graphic(svg: &mut Svg, run: &[char], (left, top): (f64, f64), style: Style) {
    let mut paths: Vec<(f64, String)> = Vec::new();
    for (column, c) in run.iter().enumerate() {
        for [x, y, w, h, opacity] in shapes(*c).unwrap_or_default() {
            let (x, y) = (left + CELL.0 * (column as f64 + x), top + CELL.1 * y);
            let (w, h) = (round(CELL.0 * w), round(CELL.1 * h));
            let rect = format!("M{} {}h{w}v{h}h-{w}z", round(x), round(y));
            match paths.iter_mut().find(|(other, _)| *other == opacity) {
                Some((_, path)) => path.push_str(&rect),
                None => paths.push((opacity, rect)),
            }
        }
    }
    for (opacity, path) in &paths {
        let class = format!("{} o{:.0}", text_class(style), opacity * 100.0);
        svg.path(path, &class, "");
    }
}

/// Characters of boxes, with the directions of their lines: left, right, up, down.
const BOX_ARMS: [(char, &str); 10] = [
    ('─', "lr"),
    ('│', "ud"),
    ('┌', "rd"),
    ('┐', "ld"),
    ('└', "ru"),
    ('┘', "lu"),
    ('├', "rud"),
    ('┤', "lud"),
    ('┬', "lrd"),
    ('┴', "lru"),
];

/// The line from the middle of a cell in a direction.
fn arm(direction: char) -> [f64; 5] {
    match direction {
        'l' => [0.0, 0.48, 0.54, 0.04, 0.6],
        'r' => [0.46, 0.48, 0.54, 0.04, 0.6],
        'u' => [0.46, 0.0, 0.08, 0.52, 0.6],
        _ => [0.46, 0.48, 0.08, 0.52, 0.6],
    }
}

/// Rectangles that make up a graphic character, as fractions of a cell: left, top, width, height, opacity.
/// Fonts differ in the width of these characters.
fn shapes(c: char) -> Option<Vec<[f64; 5]>> {
    let quarter = |left: f64, top: f64| [left, top, 0.5, 0.35, 0.9];
    if let Some(level) = LEVELS.iter().position(|level| *level == c) {
        let of = |levels: usize| 0.7 * levels as f64 / LEVELS.len() as f64;
        let (empty, full) = (of(LEVELS.len() - 1 - level), of(level + 1));
        return Some(vec![[0.0, 0.15 + empty, 1.0, full, 1.0]]);
    }
    if let Some((_, arms)) = BOX_ARMS.iter().find(|(drawn, _)| *drawn == c) {
        return Some(arms.chars().map(arm).collect());
    }
    Some(match c {
        '▓' => vec![[0.0, 0.15, 1.0, 0.7, 0.75]],
        '▒' => vec![[0.0, 0.15, 1.0, 0.7, 0.5]],
        '░' => vec![[0.0, 0.15, 1.0, 0.7, 0.25]],
        '▚' => vec![quarter(0.0, 0.15), quarter(0.5, 0.5)],
        '▞' => vec![quarter(0.5, 0.15), quarter(0.0, 0.5)],
        '\u{2800}'..='\u{28ff}' => {
            let is_set = |bit: &u32| c as u32 >> bit & 1 == 1;
            let dot = |bit: u32| {
                // Three dots per column; the fourth row was added later.
                let (column, row) = if bit < 6 { (bit / 3, bit % 3) } else { (bit - 6, 3) };
                [0.1 + f64::from(column) * 0.5, 0.05 + f64::from(row) * 0.25, 0.3, 0.15, 1.0]
            };
            (0..8).filter(is_set).map(dot).collect()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_all_phases_have_the_same_height() {
        for pattern in "░▓█▒▚▞".chars() {
            let shapes = shapes(pattern).unwrap_or_default();
            let top = shapes.iter().map(|[_, y, ..]| *y).fold(1.0, f64::min);
            let bottom = shapes.iter().map(|[_, y, _, h, _]| y + h).fold(0.0, f64::max);
            assert_eq!((top, bottom), (0.15, 0.85), "{pattern}");
        }
    }
}
