//! The plot: rate and latency against offered load, as SVG. Pure.

use std::fmt::Write as _;

use super::report::Point;
use super::servers::Kind;

/// Two panels with the same x-axis: the reply rate, and the 99th percentile of latency.
pub fn svg(points: &[Point]) -> String {
    let offered = Axis::around(points.iter().map(|point| point.offered as f64), LEFT, LEFT + WIDTH);
    let rate = Axis::around(points.iter().map(|point| point.rate), TOP + HEIGHT, TOP);
    let below = TOP + HEIGHT + GAP;
    let latency = Axis::around(points.iter().map(|point| point.p99_us), below + HEIGHT, below);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        LEFT + WIDTH + 120.0,
        below + HEIGHT + 50.0
    );
    panel(&mut text, &offered, &rate, "replies a second");
    panel(&mut text, &offered, &latency, "p99 latency, us");
    label(&mut text, LEFT + WIDTH / 2.0, below + HEIGHT + 40.0, "middle", "queries a second offered");
    let servers = Kind::ALL.into_iter().filter(|kind| points.iter().any(|point| point.server == *kind));
    for ((number, server), color) in servers.enumerate().zip(COLORS.iter().cycle()) {
        let own = || points.iter().filter(|point| point.server == server);
        line(&mut text, color, own().map(|point| (offered.at(point.offered as f64), rate.at(point.rate))));
        line(
            &mut text,
            color,
            own().map(|point| (offered.at(point.offered as f64), latency.at(point.p99_us))),
        );
        let y = TOP + 12.0 + 18.0 * number as f64;
        line(&mut text, color, [(LEFT + WIDTH + 12.0, y - 4.0), (LEFT + WIDTH + 32.0, y - 4.0)]);
        label(&mut text, LEFT + WIDTH + 38.0, y, "start", server.name());
    }
    text + "</svg>\n"
}

/// A logarithmic axis over whole decades.
struct Axis {
    low: i32,
    high: i32,
    from: f64,
    to: f64,
}

impl Axis {
    /// The decades around these values, between two coordinates.
    fn around(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let logs: Vec<f64> = values.map(|value| value.max(1.0).log10()).collect();
        let low = logs.iter().copied().fold(f64::INFINITY, f64::min).clamp(0.0, 12.0).floor() as i32;
        let high = logs.iter().copied().fold(0.0, f64::max).clamp(0.0, 13.0).ceil() as i32;
        Self { low, high: high.max(low + 1), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value.max(1.0).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.from + part * (self.to - self.from)
    }

    /// A line for each decade, with its label.
    fn decades(&self) -> impl Iterator<Item = (f64, String)> {
        (self.low..=self.high).map(|power| {
            let value = 10f64.powi(power);
            let text = match power {
                0..3 => format!("{value:.0}"),
                3..6 => format!("{:.0} k", value / 1e3),
                _ => format!("{:.0} M", value / 1e6),
            };
            (self.at(value), text)
        })
    }
}

fn panel(text: &mut String, across: &Axis, up: &Axis, title: &str) {
    for (x, decade) in across.decades() {
        line(text, GRID, [(x, up.from), (x, up.to)]);
        label(text, x, up.from + 16.0, "middle", &decade);
    }
    for (y, decade) in up.decades() {
        line(text, GRID, [(across.from, y), (across.to, y)]);
        label(text, across.from - 6.0, y + 4.0, "end", &decade);
    }
    label(text, across.from, up.to - 8.0, "start", title);
}

fn line(text: &mut String, color: &str, points: impl IntoIterator<Item = (f64, f64)>) {
    let points: Vec<String> = points.into_iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let points = points.join(" ");
    writeln!(text, "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\" points=\"{points}\"/>")
        .expect("a string takes what is written");
}

fn label(text: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>")
        .expect("a string takes what is written");
}

const LEFT: f64 = 60.0;
const TOP: f64 = 30.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
const GAP: f64 = 60.0;
const GRID: &str = "#dddddd";
/// Distinguishable with colour blindness (Okabe and Ito).
const COLORS: [&str; 8] =
    ["#000000", "#e69f00", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_has_its_two_lines_within_the_panels() {
        let point = |server, offered: u64| Point {
            server,
            offered,
            rate: offered as f64 * 0.9,
            p50_us: 20.0,
            p99_us: 300.0,
        };
        let points = [point(Kind::Echo, 10_000), point(Kind::Echo, 500_000), point(Kind::Coredns, 10_000)];
        let text = svg(&points);
        for (color, name) in [(COLORS[0], "echo"), (COLORS[1], "coredns")] {
            assert_eq!(text.matches(&format!("stroke=\"{color}\"")).count(), 3, "two lines and the key");
            assert!(text.contains(&format!(">{name}</text>")));
        }
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn an_axis_holds_all_values_whatever_they_are() {
        for values in [vec![], vec![0.0], vec![1.0], vec![f64::MAX, 5.0], vec![123.0, 456_789.0]] {
            let axis = Axis::around(values.iter().copied(), 100.0, 0.0);
            assert!(axis.low < axis.high && axis.decades().count() >= 2);
        }
        let axis = Axis::around([100.0, 9_000.0].into_iter(), 0.0, 200.0);
        assert_eq!((axis.at(100.0), axis.at(10_000.0)), (0.0, 200.0));
    }
}
