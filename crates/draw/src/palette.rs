//! The colours of all drawings.
//!
//! The colours of ranks are light enough for dark text, so that a filled tile is readable on a dark and on
//! a light background; the tile also shows the rank number. All others have a light and a dark variant.

use std::fmt;

/// A colour of the light and one of the dark mode, in CSS notation.
pub type LightDark = (&'static str, &'static str);

/// Text.
pub const INK: LightDark = ("#1b2230", "#e6eaf1");
/// Dimmed text.
pub const DIM: LightDark = ("#5c6675", "#98a3b3");
/// The background.
pub const PAPER: LightDark = ("#fff", "#161616");
/// Grid lines and rules.
pub const GRID: LightDark = ("#ddd", "#3a3a3a");

/// Lines, marks and bars of a plot; colour-blind safe.
pub const SERIES: [LightDark; 8] = [
    ("#0068b5", "#5fb0ff"),
    ("#c8500a", "#ff9d5c"),
    ("#00795a", "#3fd1a5"),
    ("#a1377f", "#f08cca"),
    ("#7a6400", "#e0c64d"),
    ("#4b4bb8", "#a5a5ff"),
    ("#5a5a5a", "#bdbdbd"),
    ("#a11d1d", "#ff8080"),
];

/// Filled areas under text.
pub const TINTS: [LightDark; 4] = [
    ("#9ecbf2", "#1f5f94"),
    ("#f2b98a", "#94531a"),
    ("#f2d98a", "#7d6a14"),
    ("#9edcc4", "#1d6e52"),
];

/// Cells of a heat map, from worst to best: red to blue, colour-blind safe in both modes.
pub const SHADES: [&str; 8] =
    ["#b2182b", "#d6604d", "#ef9a6b", "#f6c79b", "#e3e0d0", "#b9d3e0", "#8ab8d6", "#5a98c6"];
/// The first shades are dark and need light text.
pub const DARK_SHADES: usize = 2;

/// Text on a terminal, which is dark in both modes.
pub const TERMINAL: [(&str, &str); 9] = [
    ("default", "#d8dee9"),
    ("dimmed", "#7b8798"),
    ("red", "#e06c75"),
    ("green", "#98c379"),
    ("yellow", "#e5c07b"),
    ("blue", "#61afef"),
    ("magenta", "#c678dd"),
    ("cyan", "#56b6c2"),
    ("white", "#b5bdca"),
];

/// Colour of a rank on a terminal and in SVG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swatch {
    /// Index in the 256-colour palette.
    pub ansi: u8,
    /// Red, green and blue.
    pub rgb: [u8; 3],
}

impl Swatch {
    /// A darker shade, for lines on a light background.
    pub fn darker(self) -> Self {
        Self { rgb: self.rgb.map(|c| (u16::from(c) * 7 / 10) as u8), ..self }
    }
}

/// CSS notation.
impl fmt::Display for Swatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [r, g, b] = self.rgb;
        write!(f, "#{r:02x}{g:02x}{b:02x}")
    }
}

const fn swatch(ansi: u8, r: u8, g: u8, b: u8) -> Swatch {
    Swatch { ansi, rgb: [r, g, b] }
}

/// Adjacent entries differ in hue, because adjacent ranks are usually drawn side by side.
pub const RANKS: [Swatch; 16] = [
    swatch(75, 0x6a, 0xa9, 0xff),
    swatch(208, 0xff, 0xa9, 0x4d),
    swatch(77, 0x69, 0xc9, 0x6e),
    swatch(211, 0xf2, 0x7e, 0xb2),
    swatch(221, 0xf2, 0xd1, 0x3c),
    swatch(141, 0xab, 0x91, 0xf5),
    swatch(43, 0x3f, 0xc4, 0xb8),
    swatch(203, 0xff, 0x7f, 0x70),
    swatch(149, 0xb5, 0xd8, 0x3f),
    swatch(180, 0xcf, 0xa2, 0x7a),
    swatch(159, 0x8f, 0xe6, 0xf5),
    swatch(176, 0xd7, 0x83, 0xe0),
    swatch(101, 0xa8, 0xa3, 0x5a),
    swatch(110, 0x8f, 0xa3, 0xc4),
    swatch(224, 0xff, 0xc2, 0xab),
    swatch(121, 0x9b, 0xe8, 0xc0),
];

/// Index in [`RANKS`] of a rank's colour; repeats if there are more ranks.
pub fn rank_index(rank: u32) -> usize {
    rank as usize % RANKS.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luminance([r, g, b]: [u8; 3]) -> f64 {
        let linear = |c: u8| {
            let c = f64::from(c) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
    }

    /// RGB of an entry of the 256-colour cube.
    fn cube(ansi: u8) -> [u8; 3] {
        let level = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
        let n = ansi - 16;
        [level(n / 36), level(n / 6 % 6), level(n % 6)]
    }

    #[test]
    fn dark_text_is_readable_on_every_colour() {
        for swatch in RANKS {
            for rgb in [swatch.rgb, cube(swatch.ansi)] {
                // WCAG contrast with near-black text, level AA.
                let contrast = (luminance(rgb) + 0.05) / (luminance([0x10, 0x13, 0x1a]) + 0.05);
                assert!(contrast >= 4.5, "{rgb:?} has contrast {contrast:.1}");
            }
        }
    }

    #[test]
    fn colours_are_distinguishable() {
        let far = |a: [u8; 3], b: [u8; 3]| {
            a.iter().zip(b).map(|(&x, y)| i32::from(x.abs_diff(y)).pow(2)).sum::<i32>() > 45 * 45
        };
        for (i, a) in RANKS.iter().enumerate() {
            for b in &RANKS[..i] {
                assert!(far(a.rgb, b.rgb), "{a:?} {b:?}");
                assert!(far(cube(a.ansi), cube(b.ansi)), "{a:?} {b:?}");
            }
        }
    }
}
