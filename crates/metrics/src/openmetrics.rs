//! OpenMetrics 1.0.0, as written by Go's client library (`expfmt`).

use std::fmt::Write as _;
use std::io::Write;

use prometheus::Encoder;
use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

/// Encodes families as OpenMetrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenMetricsEncoder;

impl Encoder for OpenMetricsEncoder {
    fn encode<W: Write>(&self, families: &[MetricFamily], writer: &mut W) -> prometheus::Result<()> {
        let mut out = String::new();
        for family in families {
            out.clear();
            let mut page = Page { out: &mut out, name: family.name() };
            page.head(family);
            for metric in family.get_metric() {
                page.sample(family.type_(), metric);
            }
            writer.write_all(out.as_bytes())?;
        }
        Ok(writer.write_all(b"# EOF\n")?)
    }

    fn format_type(&self) -> &str {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    }
}

/// Appends one family to a page.
struct Page<'p> {
    out: &'p mut String,
    name: &'p str,
}

impl Page<'_> {
    fn head(&mut self, family: &MetricFamily) {
        // A counter is named without the suffix of its sample.
        let counter = family.type_() == MetricType::COUNTER;
        let bare = self.name.strip_suffix("_total").filter(|_| counter);
        let kind = match family.type_() {
            MetricType::COUNTER if bare.is_some() => "counter",
            MetricType::GAUGE => "gauge",
            MetricType::HISTOGRAM => "histogram",
            _ => "unknown",
        };
        let name = bare.unwrap_or(self.name);
        let _ = write!(self.out, "# HELP {name} ");
        self.escape(family.help());
        let _ = write!(self.out, "\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, kind: MetricType, metric: &Metric) {
        let labels = metric.get_label();
        match kind {
            MetricType::COUNTER => self.line("", labels, None, |page| page.float(metric.counter.value())),
            MetricType::HISTOGRAM => {
                let (buckets, count) = (metric.histogram.get_bucket(), metric.histogram.sample_count());
                for bucket in buckets {
                    let (bound, total) = (bucket.upper_bound(), bucket.cumulative_count());
                    self.line("_bucket", labels, Some(bound), |page| page.whole(total));
                }
                self.line("_bucket", labels, Some(f64::INFINITY), |page| page.whole(count));
                self.line("_sum", labels, None, |page| page.float(metric.histogram.sample_sum()));
                self.line("_count", labels, None, |page| page.whole(count));
            }
            _ => self.line("", labels, None, |page| page.float(metric.gauge.value())),
        }
    }

    /// `le` is a bucket's bound.
    fn line(&mut self, suffix: &str, labels: &[LabelPair], le: Option<f64>, value: impl FnOnce(&mut Self)) {
        self.out.push_str(self.name);
        self.out.push_str(suffix);
        let mut separator = '{';
        for label in labels {
            let _ = write!(self.out, "{separator}{}=\"", label.name());
            self.escape(label.value());
            self.out.push('"');
            separator = ',';
        }
        if let Some(bound) = le {
            let _ = write!(self.out, "{separator}le=\"");
            self.float(bound);
            self.out.push('"');
            separator = ',';
        }
        self.out.push_str(if separator == ',' { "} " } else { " " });
        value(self);
        self.out.push('\n');
    }

    fn whole(&mut self, number: u64) {
        let _ = write!(self.out, "{number}");
    }

    fn float(&mut self, number: f64) {
        let _ = match number {
            f64::INFINITY => write!(self.out, "+Inf"),
            f64::NEG_INFINITY => write!(self.out, "-Inf"),
            // Every float has a decimal point.
            number if number == number.trunc() => write!(self.out, "{number:.1}"),
            number => write!(self.out, "{number}"),
        };
    }

    fn escape(&mut self, text: &str) {
        for char in text.chars() {
            match char {
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '"' => self.out.push_str("\\\""),
                char => self.out.push(char),
            }
        }
    }
}
