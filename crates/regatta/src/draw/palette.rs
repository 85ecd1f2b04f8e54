//! One colour per local rank. Every colour is light enough for dark text, so that a filled tile is
//! readable on a dark and on a light background. The tile also shows the rank number.

use regatta_model::text::hex;

/// Colour of a rank on a terminal and in SVG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swatch {
    /// Index in the 256-colour palette.
    pub ansi: u8,
    /// Red, green and blue.
    pub rgb: [u8; 3],
}

impl Swatch {
    /// The fill colour in CSS notation.
    pub fn css(self) -> String {
        format!("#{}", hex(&self.rgb))
    }

    /// A darker shade for lines on a white background.
    pub fn css_line(self) -> String {
        format!("#{}", hex(&self.rgb.map(|c| (u16::from(c) * 7 / 10) as u8)))
    }
}

const fn swatch(ansi: u8, r: u8, g: u8, b: u8) -> Swatch {
    Swatch { ansi, rgb: [r, g, b] }
}

/// Adjacent entries differ in hue, because adjacent ranks are usually drawn side by side.
pub const PALETTE: [Swatch; 16] = [
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

/// Index in [`PALETTE`] of a rank's colour; repeats if there are more ranks.
pub fn index(rank: u32) -> usize {
    rank as usize % PALETTE.len()
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
        for swatch in PALETTE {
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
        for (i, a) in PALETTE.iter().enumerate() {
            for b in &PALETTE[..i] {
                assert!(far(a.rgb, b.rgb), "{a:?} {b:?}");
                assert!(far(cube(a.ansi), cube(b.ansi)), "{a:?} {b:?}");
            }
        }
    }
}
