//! The plots of a report as inline SVG: distributions, errors, CPU over virtual time.
//!
//! Drawing into a string can't fail for reasons outside this crate; where the plotting library refuses (a degenerate
//! axis), the plot is left out and the caller says so.

use diecast_core_journal::Mode;
use plotters::coord::Shift;
use plotters::prelude::*;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A named line.
pub struct Line {
    /// For the legend.
    pub name: String,
    /// Its colour.
    pub colour: RGBColor,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// One colour per mode, the same in every plot; told apart in greyscale as well.
pub fn mode_colour(mode: Mode) -> RGBColor {
    match mode {
        Mode::Baseline => RGBColor(40, 40, 40),
        Mode::Native => RGBColor(120, 120, 200),
        Mode::Diecast => RGBColor(0, 114, 178),
        Mode::Naive => RGBColor(213, 94, 0),
    }
}

/// Colours for lines that are no modes.
pub fn line_colour(index: usize) -> RGBColor {
    const COLOURS: [(u8, u8, u8); 8] = [
        (0, 114, 178),
        (213, 94, 0),
        (0, 158, 115),
        (204, 121, 167),
        (230, 159, 0),
        (86, 180, 233),
        (40, 40, 40),
        (150, 130, 40),
    ];
    let (r, g, b) = COLOURS[index % COLOURS.len()];
    RGBColor(r, g, b)
}

fn draw(size: (u32, u32), with: impl FnOnce(&Area) -> Drawn) -> Option<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        with(&area).and_then(|()| area.present().map_err(Into::into)).ok()?;
    }
    // The page scales it; a fixed size would not.
    let (width, height) = size;
    Some(svg.replacen(&format!("width=\"{width}\" height=\"{height}\""), "role=\"img\"", 1))
}

/// Points of an empirical distribution function of ascending samples: at most 201 quantiles.
pub fn distribution(sorted: &[u64]) -> Vec<(f64, f64)> {
    let last = sorted.len().saturating_sub(1);
    let steps = last.min(200);
    (0..=steps)
        .filter_map(|step| {
            let index = (last * step).checked_div(steps).unwrap_or(0);
            Some((sorted.get(index).map(|&s| s as f64)?, (index + 1) as f64 / sorted.len() as f64))
        })
        .collect()
}

/// 1, 2 and 5 times the powers of ten between two values: what a logarithmic axis is labelled with.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().floor() as i32;
    let marks = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(decade)));
    marks.filter(|mark| (low..=high).contains(mark)).collect()
}

/// Points of the distribution function of a histogram: the greatest value of each bucket and how many fell into it.
pub fn distribution_of_buckets(buckets: &[(u64, u64)]) -> Vec<(f64, f64)> {
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    let mut counted = 0;
    let point = |(greatest, count): &(u64, u64)| {
        counted += count;
        (*greatest as f64, counted as f64 / all as f64)
    };
    buckets.iter().map(point).collect()
}

/// Distribution functions over a logarithmic axis, of shares of something.
pub fn distributions(lines: &[Line], axis: &str, of: &str, label: impl Fn(f64) -> String) -> Option<String> {
    let values = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.0));
    let low = values().reduce(f64::min)?.max(1.0) * 0.9;
    let high = values().reduce(f64::max)?.max(low) * 1.1;
    draw((720, 360), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d((low..high).log_scale().with_key_points(ticks(low, high)), 0.0..1.0)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(axis)
            .y_desc(format!("share of {of}"))
            .x_label_formatter(&|value| label(*value))
            .draw()?;
        for line in lines {
            let (colour, points) = (line.colour, line.points.iter().map(|&(x, y)| (x.max(1.0), y)));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        legend(&mut chart)
    })
}

/// Lines over virtual seconds, in percent.
pub fn over_time(lines: &[Line], y_axis: &str) -> Option<String> {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let end = points().map(|point| point.0).reduce(f64::max)?;
    let top = points().map(|point| point.1).reduce(f64::max)?.max(1.0) * 1.1;
    draw((720, 300), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d(0.0..end.max(0.001), 0.0..top)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("virtual seconds")
            .y_desc(y_axis)
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&|y| format!("{y}"))
            .draw()?;
        for line in lines {
            let colour = line.colour;
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        legend(&mut chart)
    })
}

/// A bar of the error plot, in percent.
pub struct Bar {
    /// Metric, figure and column.
    pub name: String,
    /// The column's colour.
    pub colour: RGBColor,
    /// The error.
    pub error: f64,
    /// Its interval.
    pub interval: Option<(f64, f64)>,
    /// How far off it may be.
    pub bar: Option<f64>,
}

/// Horizontal bars of relative errors with their intervals; the bar that judges them is a grey band.
pub fn errors(bars: &[Bar]) -> Option<String> {
    let reach = |bar: &Bar| {
        let (low, high) = bar.interval.unwrap_or((bar.error, bar.error));
        [bar.error.abs(), low.abs(), high.abs(), bar.bar.unwrap_or(0.0)].into_iter().fold(0.0, f64::max)
    };
    // Beyond 150 % only "far off" matters, and the small bars must stay readable.
    let limit = bars.iter().map(reach).reduce(f64::max)?.clamp(5.0, 150.0) * 1.1;
    let count = bars.len();
    draw((720, 60 + 26 * count as u32), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(220)
            .build_cartesian_2d(-limit..limit, 0.0..count as f64)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .light_line_style(TRANSPARENT)
            .x_desc("error, %")
            .x_label_formatter(&|x| format!("{x}"))
            .draw()?;
        for (index, bar) in bars.iter().enumerate() {
            let y = (count - 1 - index) as f64;
            if let Some(width) = bar.bar {
                let band = RGBColor(225, 225, 225).filled();
                chart.draw_series([Rectangle::new([(-width, y + 0.05), (width, y + 0.95)], band)])?;
            }
            let error = bar.error.clamp(-limit, limit);
            chart.draw_series([Rectangle::new([(0.0, y + 0.25), (error, y + 0.75)], bar.colour.filled())])?;
            if let Some((low, high)) = bar.interval {
                let ends = [low, high].map(|end| (end.clamp(-limit, limit), y + 0.5));
                chart.draw_series([PathElement::new(ends.to_vec(), BLACK.stroke_width(1))])?;
            }
            let (x_pixel, y_pixel) = chart.backend_coord(&(-limit, y + 0.5));
            let style = ("sans-serif", 13).into_text_style(area);
            let right = plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Right,
                plotters::style::text_anchor::VPos::Center,
            );
            area.draw_text(&bar.name, &style.pos(right), (x_pixel - 8, y_pixel))?;
        }
        Ok(())
    })
}

fn legend<'a, X, Y>(chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>) -> Drawn
where
    X: Ranged,
    Y: Ranged,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_has_round_marks() {
        assert_eq!(ticks(18.0, 210.0), [20.0, 50.0, 100.0, 200.0]);
        assert_eq!(ticks(0.9, 1.1), [1.0]);
    }

    #[test]
    fn a_distribution_ends_at_one_and_keeps_its_extremes() {
        assert_eq!(distribution(&[]), []);
        assert_eq!(distribution(&[7]), [(7.0, 1.0)]);
        assert_eq!(distribution(&[1, 3]), [(1.0, 0.5), (3.0, 1.0)]);
        let many: Vec<u64> = (0..10_000).collect();
        let points = distribution(&many);
        assert_eq!(points.len(), 201);
        assert_eq!((points[0].0, points[200]), (0.0, (9999.0, 1.0)));
    }

    #[test]
    fn a_histogram_is_a_distribution() {
        assert_eq!(distribution_of_buckets(&[]), []);
        assert_eq!(distribution_of_buckets(&[(10, 1), (30, 3)]), [(10.0, 0.25), (30.0, 1.0)]);
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        assert_eq!(errors(&[]), None);
        assert_eq!(over_time(&[], "CPU"), None);
        let line = |points| Line { name: "a".into(), colour: line_colour(0), points };
        assert_eq!(distributions(&[line(vec![])], "x", "y", |x| x.to_string()), None);
        // All samples zero, or one sample only: a degenerate axis still draws.
        for value in [0.0, 5.0] {
            assert!(distributions(&[line(vec![(value, 1.0)])], "x", "y", |x| x.to_string()).is_some());
        }
    }
}
