//! Plots as SVG elements, for a page that may be light or dark: lines and text take the page's
//! colour. Calls plotters; used by `html`.

use anyhow::Result;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The colours of series, to be told apart on white and on black.
const COLORS: [RGBColor; 11] = [
    RGBColor(0x2f, 0x7b, 0xe5),
    RGBColor(0xe8, 0x76, 0x1a),
    RGBColor(0x1f, 0xa3, 0x55),
    RGBColor(0xe0, 0x3f, 0x4f),
    RGBColor(0x9b, 0x5d, 0xe5),
    RGBColor(0x12, 0xa5, 0xb0),
    RGBColor(0xd9, 0x4f, 0xa6),
    RGBColor(0xb0, 0x8a, 0x00),
    RGBColor(0x86, 0x8e, 0x9b),
    RGBColor(0x9a, 0x70, 0x48),
    RGBColor(0x6b, 0xb8, 0x2e),
];

/// What plotters draws in this colour takes the page's: see [`adapt`].
const INK: RGBColor = BLACK;

/// The color of the series with this number.
pub(super) fn color(index: usize) -> RGBColor {
    COLORS[index % COLORS.len()]
}

/// As CSS has it.
pub(super) fn css(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// A curve.
pub(super) struct Curve {
    pub(super) color: RGBColor,
    pub(super) points: Vec<(f64, f64)>,
}

/// What is along an axis.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) title: &'static str,
    pub(super) format: fn(&f64) -> String,
    pub(super) scale: Scale,
}

/// How values lie on it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// Powers of ten have equal distances.
    Logarithmic,
    /// As that, for 1, 4, 16, 64.
    Fours,
    /// Of percentages: 90, 99, 99.9 have equal distances.
    Nines,
    /// From zero.
    Linear,
}

impl Scale {
    /// Where a value lies.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Logarithmic | Self::Fours => value.max(1e-9).log10(),
            Self::Nines => -(1.0 - value.min(99.9999) / 100.0).log10(),
            Self::Linear => value,
        }
    }

    /// The value at a place.
    fn value(self, place: f64) -> f64 {
        match self {
            Self::Logarithmic | Self::Fours => 10_f64.powf(place),
            Self::Nines => 100.0 * (1.0 - 10_f64.powf(-place)),
            Self::Linear => place,
        }
    }

    /// The places of an axis that has to hold these.
    fn range(self, places: &[f64]) -> (f64, f64) {
        let least = places.iter().copied().fold(f64::INFINITY, f64::min);
        let most = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self {
            Self::Logarithmic => {
                ((least * 4.0 - 0.3).floor() / 4.0, (most * 4.0 + 0.3).ceil() / 4.0)
            }
            Self::Fours => (least - 0.1, most + 0.1),
            Self::Nines => (0.0, 4.05),
            Self::Linear => (0.0, most * 1.1),
        }
    }

    /// Where the marks of an axis are.
    fn marks(self, (from, to): (f64, f64)) -> Vec<f64> {
        let candidates: Vec<f64> = match self {
            Self::Logarithmic => (-3..=12)
                .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| 10_f64.powi(power) * digit))
                .map(f64::log10)
                .collect(),
            Self::Fours => (0..=5).map(|power| 4_f64.powi(power).log10()).collect(),
            Self::Nines => [0.0, 50.0, 90.0, 99.0, 99.9, 99.99].map(|at| self.place(at)).into(),
            Self::Linear => {
                let step = step(to);
                (0..=12).map(|count| step * f64::from(count)).collect()
            }
        };
        candidates.into_iter().filter(|at| (from..=to).contains(at)).collect()
    }
}

/// A round distance that divides `most` into three to eight parts.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf(most.max(1e-9).log10().floor());
    [0.2, 0.5, 1.0, 2.0]
        .map(|part| part * power)
        .into_iter()
        .find(|step| most / step <= 8.0)
        .unwrap_or(power)
}

const SIZE: (u32, u32) = (680, 400);
const LEFT: i32 = 78;
const RIGHT: i32 = 16;
const TOP: i32 = 14;
const BOTTOM: i32 = 54;
const FONT: &str = "sans-serif";

/// Curves over two axes. None if there is nothing to show.
pub(super) fn curves(curves: &[Curve], x: Axis, y: Axis) -> Result<Option<String>> {
    let all = || curves.iter().flat_map(|curve| curve.points.iter());
    let xs: Vec<f64> = all().map(|point| x.scale.place(point.0)).collect();
    let ys: Vec<f64> = all().map(|point| y.scale.place(point.1)).collect();
    if xs.is_empty() {
        return Ok(None);
    }
    let (xs, ys) = (x.scale.range(&xs), y.scale.range(&ys));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let (width, height) = (i32::try_from(SIZE.0)?, i32::try_from(SIZE.1)?);
        let (right, bottom) = (width - RIGHT, height - BOTTOM);
        let chart = area.apply_coord_spec(Cartesian2d::<RangedCoordf64, RangedCoordf64>::new(
            xs.0..xs.1,
            ys.0..ys.1,
            // From the bottom up.
            (LEFT..right, bottom..TOP),
        ));
        let pixel = |at: (f64, f64)| chart.map_coordinate(&at);
        let grid = INK.mix(0.15).stroke_width(1);
        for at in x.scale.marks(xs) {
            let column = pixel((at, ys.0)).0;
            area.draw(&PathElement::new(vec![(column, TOP), (column, bottom)], grid))?;
            let place = (column, bottom + 6);
            text(&area, &(x.format)(&x.scale.value(at)), place, 13, HPos::Center, VPos::Top)?;
        }
        for at in y.scale.marks(ys) {
            let line = pixel((xs.0, at)).1;
            area.draw(&PathElement::new(vec![(LEFT, line), (right, line)], grid))?;
            let place = (LEFT - 6, line);
            text(&area, &(y.format)(&y.scale.value(at)), place, 13, HPos::Right, VPos::Center)?;
        }
        let frame = INK.mix(0.5).stroke_width(1);
        area.draw(&PathElement::new(vec![(LEFT, TOP), (LEFT, bottom), (right, bottom)], frame))?;
        let middle = ((LEFT + right) / 2, height - 8);
        text(&area, x.title, middle, 14, HPos::Center, VPos::Bottom)?;
        let style = TextStyle::from((FONT, 14).into_font().transform(FontTransform::Rotate270))
            .pos(Pos::new(HPos::Center, VPos::Top))
            .color(&INK);
        area.draw(&Text::new(y.title, (4, (TOP + bottom) / 2), style))?;
        for curve in curves {
            let points: Vec<(i32, i32)> = curve
                .points
                .iter()
                .map(|point| pixel((x.scale.place(point.0), y.scale.place(point.1))))
                .collect();
            area.draw(&PathElement::new(points.clone(), curve.color.stroke_width(2)))?;
            for point in points {
                area.draw(&Circle::new(point, 3, curve.color.filled()))?;
            }
        }
        area.present()?;
    }
    Ok(Some(adapt(&svg)))
}

/// A row of a bar chart.
pub(super) struct Bar {
    pub(super) label: String,
    /// Lengths one after the other, each in its colour.
    pub(super) parts: Vec<(f64, RGBColor)>,
    /// At the bar's end.
    pub(super) figure: String,
    /// The least and the most of the repetitions.
    pub(super) spread: Option<(f64, f64)>,
}

/// Horizontal bars, from zero. None if there is none.
pub(super) fn bars(bars: &[Bar]) -> Result<Option<String>> {
    const ROW: i32 = 26;
    const LABELS: i32 = 235;
    const FIGURES: i32 = 85;
    let length = |bar: &Bar| bar.parts.iter().map(|part| part.0).sum::<f64>();
    let longest = bars
        .iter()
        .map(|bar| length(bar).max(bar.spread.map_or(0.0, |spread| spread.1)))
        .fold(0.0, f64::max);
    if longest <= 0.0 {
        return Ok(None);
    }
    let width = i32::try_from(SIZE.0)?;
    let height = ROW * i32::try_from(bars.len())? + 6;
    let room = f64::from(width - LABELS - FIGURES);
    #[expect(clippy::cast_possible_truncation, reason = "a part of the picture's width")]
    let x = |value: f64| LABELS + (value / longest * room).round() as i32;
    let mut svg = String::new();
    {
        let size = (SIZE.0, u32::try_from(height)?);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        for (row, bar) in (0..).zip(bars) {
            let top = 3 + row * ROW;
            let middle = top + ROW / 2;
            text(&area, &bar.label, (LABELS - 8, middle), 13, HPos::Right, VPos::Center)?;
            let mut from = 0.0;
            for (part, color) in &bar.parts {
                let corners = [(x(from), top + 4), (x(from + part), top + ROW - 4)];
                area.draw(&Rectangle::new(corners, color.filled()))?;
                from += part;
            }
            let mut end = x(from);
            if let Some((least, most)) = bar.spread.filter(|(least, most)| least < most) {
                let line = INK.mix(0.75).stroke_width(1);
                area.draw(&PathElement::new(vec![(x(least), middle), (x(most), middle)], line))?;
                for at in [least, most] {
                    let tick = vec![(x(at), middle - 4), (x(at), middle + 4)];
                    area.draw(&PathElement::new(tick, line))?;
                }
                end = end.max(x(most));
            }
            text(&area, &bar.figure, (end + 6, middle), 13, HPos::Left, VPos::Center)?;
        }
        area.present()?;
    }
    Ok(Some(adapt(&svg)))
}

fn text(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    words: &str,
    at: (i32, i32),
    size: u32,
    horizontal: HPos,
    vertical: VPos,
) -> Result<()> {
    let style =
        TextStyle::from((FONT, size).into_font()).pos(Pos::new(horizontal, vertical)).color(&INK);
    area.draw(&Text::new(words, at, style))?;
    Ok(())
}

/// The page's colour instead of black, the reader's size instead of pixels.
fn adapt(svg: &str) -> String {
    svg.replace("\"#000000\"", "\"currentColor\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nines_have_equal_distances() {
        let at = |percent| Scale::Nines.place(percent);
        assert!((at(99.0) - at(90.0) - 1.0).abs() < 1e-9);
        assert!((at(99.9) - at(99.0) - 1.0).abs() < 1e-9);
        assert!((Scale::Nines.value(at(99.9)) - 99.9).abs() < 1e-9);
    }

    #[test]
    fn marks_are_round_and_inside() {
        let range = Scale::Logarithmic.range(&[0.9, 2.2]);
        assert!(range.0 <= 0.9 && range.1 >= 2.2, "{range:?}");
        let marks = Scale::Logarithmic.marks(range);
        assert!(marks.iter().all(|mark| (range.0..=range.1).contains(mark)));
        assert!(marks.iter().any(|mark| (mark - 2.0).abs() < 1e-9), "{marks:?}");
        assert_eq!(step(85.0), 20.0);
        assert_eq!(step(1000.0), 200.0);
    }

    #[test]
    fn larger_values_stand_higher() {
        let axis = Axis { title: "a", format: |value| value.to_string(), scale: Scale::Linear };
        let curve = Curve { color: color(0), points: vec![(1.0, 10.0), (2.0, 20.0)] };
        let svg = curves(&[curve], axis, axis).unwrap().unwrap();
        let heights: Vec<i32> = svg
            .split("<circle ")
            .skip(1)
            .filter_map(|circle| circle.split("cy=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert!(matches!(heights[..], [low, high] if high < low), "{heights:?}");
    }

    #[test]
    fn pictures_have_no_colour_of_their_own_for_text() {
        let bar = |figure: &str| Bar {
            label: "a".into(),
            parts: vec![(3.0, color(0))],
            figure: figure.into(),
            spread: Some((2.0, 4.0)),
        };
        let svg = bars(&[bar("three")]).unwrap().unwrap();
        assert!(svg.contains("three") && svg.contains("currentColor"));
        assert!(!svg.contains("#000000"));
        assert!(bars(&[]).unwrap().is_none());
    }
}
