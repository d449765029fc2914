//! The exposition formats of metric families: text 0.0.4, OpenMetrics 1.0.0, delimited protobuf; each as written by Go's client
//! library (`expfmt`).

use std::fmt::Write as _;

use crate::histogram::{NativeCounts, SCHEMA, ZERO_THRESHOLD};

use super::families::{Families, Family, Kind, Labels, Sample};

/// A format of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The text format, version 0.0.4.
    Text,
    /// OpenMetrics 1.0.0, or 0.0.1, which is the same text.
    OpenMetrics(&'static str),
    /// `io.prometheus.client.MetricFamily` messages, length-delimited.
    Protobuf,
}

impl Families {
    /// All families in this format.
    pub fn encode(&self, form: Form) -> Vec<u8> {
        match form {
            Form::Text => self.text(false).into_bytes(),
            Form::OpenMetrics(_) => self.text(true).into_bytes(),
            Form::Protobuf => self.protobuf(),
        }
    }

    /// All families in the text format 0.0.4, or as OpenMetrics.
    pub(crate) fn text(&self, open: bool) -> String {
        let mut out = String::new();
        for (name, family) in &self.families {
            let mut page = Page { out: &mut out, name, open };
            page.head(family);
            for (labels, sample) in &family.samples {
                page.sample(family.kind, labels, sample);
            }
        }
        if open {
            out.push_str("# EOF\n");
        }
        out
    }

    fn protobuf(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, family) in &self.families {
            let message = family.message(name);
            varint(&mut out, message.len() as u64);
            out.extend_from_slice(&message);
        }
        out
    }
}

/// Appends one family to a text page.
struct Page<'p> {
    out: &'p mut String,
    name: &'p str,
    open: bool,
}

impl Page<'_> {
    fn head(&mut self, family: &Family) {
        // OpenMetrics names a counter without the suffix of its sample.
        let counter = family.kind == Kind::Counter;
        let bare = self.name.strip_suffix("_total").filter(|_| self.open && counter);
        let kind = match family.kind {
            Kind::Counter if self.open && bare.is_none() => "unknown",
            kind => kind.label(),
        };
        let name = bare.unwrap_or(self.name);
        let _ = write!(self.out, "# HELP {name} ");
        escape(self.out, family.help, self.open);
        let _ = write!(self.out, "\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, kind: Kind, labels: &Labels, sample: &Sample) {
        if kind != Kind::Histogram {
            return self.line("", labels, None, |page| page.float(sample.value));
        }
        for (bound, total) in sample.cumulated() {
            self.line("_bucket", labels, Some(Some(bound)), |page| page.whole(total));
        }
        let total = sample.counts.iter().sum();
        self.line("_bucket", labels, Some(None), |page| page.whole(total));
        self.line("_sum", labels, None, |page| page.float(sample.value));
        self.line("_count", labels, None, |page| page.whole(total));
    }

    /// `le` is a bucket's bound, and `Some(None)` is infinity.
    fn line(
        &mut self,
        suffix: &str,
        labels: &Labels,
        le: Option<Option<f64>>,
        value: impl FnOnce(&mut Self),
    ) {
        self.out.push_str(self.name);
        self.out.push_str(suffix);
        let mut separator = '{';
        for (label, word) in labels {
            let _ = write!(self.out, "{separator}{label}=\"");
            escape(self.out, word, true);
            self.out.push('"');
            separator = ',';
        }
        if let Some(bound) = le {
            let _ = write!(self.out, "{separator}le=\"");
            self.float(bound.unwrap_or(f64::INFINITY));
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
            // OpenMetrics has a decimal point in every float.
            number if self.open && number == number.trunc() => write!(self.out, "{number:.1}"),
            number => write!(self.out, "{number}"),
        };
    }
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            char => out.push(char),
        }
    }
}

/// Field numbers are those of `io/prometheus/client/metrics.proto`.
impl Family {
    fn message(&self, name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        bytes(&mut out, 1, name.as_bytes());
        bytes(&mut out, 2, self.help.as_bytes());
        let kind = match self.kind {
            Kind::Counter => 0,
            Kind::Gauge => 1,
            Kind::Histogram => 4,
        };
        number(&mut out, 3, kind);
        for (labels, sample) in &self.samples {
            bytes(&mut out, 4, &sample.message(self.kind, labels));
        }
        out
    }
}

impl Sample {
    fn message(&self, kind: Kind, labels: &Labels) -> Vec<u8> {
        let mut out = Vec::new();
        for (label, word) in labels {
            let mut pair = Vec::new();
            bytes(&mut pair, 1, label.as_bytes());
            bytes(&mut pair, 2, word.as_bytes());
            bytes(&mut out, 1, &pair);
        }
        let mut value = Vec::new();
        match kind {
            Kind::Counter | Kind::Gauge => double(&mut value, 1, self.value),
            Kind::Histogram => {
                // Prometheus refuses a native histogram with counts that do not add up.
                let native = self.native.as_ref();
                let total = native.map_or_else(|| self.counts.iter().sum(), NativeCounts::total);
                number(&mut value, 1, total);
                double(&mut value, 2, self.value);
                for (bound, total) in self.cumulated() {
                    let mut bucket = Vec::new();
                    number(&mut bucket, 1, total);
                    double(&mut bucket, 2, bound);
                    bytes(&mut value, 3, &bucket);
                }
                if let Some(native) = native {
                    spread(&mut value, native);
                }
            }
        }
        let field = match kind {
            Kind::Gauge => 2,
            Kind::Counter => 3,
            Kind::Histogram => 7,
        };
        bytes(&mut out, field, &value);
        out
    }
}

/// The fields of a native histogram: spans of buckets, and the difference of each count from the previous one.
fn spread(out: &mut Vec<u8>, native: &NativeCounts) {
    number(out, 5, zigzag(SCHEMA.into()));
    double(out, 6, ZERO_THRESHOLD);
    number(out, 7, native.zero);
    let mut spans: Vec<(i32, u64)> = Vec::new();
    let mut deltas = Vec::new();
    let (mut next, mut last) = (0, 0);
    for (&key, &count) in &native.buckets {
        let gap = key - next;
        match spans.last_mut() {
            // Up to two empty buckets are written as zeros, which takes fewer bytes than another span.
            Some((_, length)) if gap <= 2 => {
                for _ in 0..gap {
                    deltas.push(-last);
                    last = 0;
                }
                *length += gap as u64 + 1;
            }
            _ => spans.push((gap, 1)),
        }
        deltas.push(count as i64 - last);
        (next, last) = (key + 1, count as i64);
    }
    // A native histogram without a span would be read as a classic one, so an empty span is written.
    if spans.is_empty() {
        spans.push((0, 0));
    }
    for (gap, length) in spans {
        let mut span = Vec::new();
        number(&mut span, 1, zigzag(gap.into()));
        number(&mut span, 2, length);
        bytes(out, 12, &span);
    }
    for delta in deltas {
        number(out, 13, zigzag(delta));
    }
}

fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn number(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3);
    varint(out, value);
}

fn double(out: &mut Vec<u8>, field: u8, value: f64) {
    out.push(field << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::{Distribution, Metric};

    const COUNT: Metric = Metric { name: "a_total", help: "A \"quoted\" \\ help." };
    const GAUGE: Metric = Metric { name: "b", help: "B." };
    const SPREAD: Metric = Metric { name: "c_seconds", help: "C." };

    fn families() -> Families {
        let mut families = Families::default();
        families.counter(COUNT, &[("x", "\"\n\\")], 300.0);
        families.gauge(GAUGE, &[], 0.5);
        let seen = Distribution { bounds: &[0.25, 1.0], counts: &[1, 0, 2], sum: 7.0, native: None };
        families.histogram(SPREAD, &[("y", "z")], seen);
        families
    }

    #[test]
    fn text_and_openmetrics_read_as_gos_client_library_writes_them() {
        assert_eq!(
            families().text(false),
            "# HELP a_total A \"quoted\" \\\\ help.\n# TYPE a_total counter\na_total{x=\"\\\"\\n\\\\\"} 300\n\
             # HELP b B.\n# TYPE b gauge\nb 0.5\n\
             # HELP c_seconds C.\n# TYPE c_seconds histogram\n\
             c_seconds_bucket{y=\"z\",le=\"0.25\"} 1\nc_seconds_bucket{y=\"z\",le=\"1\"} 1\n\
             c_seconds_bucket{y=\"z\",le=\"+Inf\"} 3\nc_seconds_sum{y=\"z\"} 7\nc_seconds_count{y=\"z\"} 3\n"
        );
        assert_eq!(
            String::from_utf8(families().encode(Form::OpenMetrics("1.0.0"))).unwrap(),
            "# HELP a A \\\"quoted\\\" \\\\ help.\n# TYPE a counter\na_total{x=\"\\\"\\n\\\\\"} 300.0\n\
             # HELP b B.\n# TYPE b gauge\nb 0.5\n\
             # HELP c_seconds C.\n# TYPE c_seconds histogram\n\
             c_seconds_bucket{y=\"z\",le=\"0.25\"} 1\nc_seconds_bucket{y=\"z\",le=\"1.0\"} 1\n\
             c_seconds_bucket{y=\"z\",le=\"+Inf\"} 3\nc_seconds_sum{y=\"z\"} 7.0\nc_seconds_count{y=\"z\"} 3\n# EOF\n"
        );
    }

    /// Native buckets are encoded as spans and deltas.
    #[test]
    fn native_buckets_use_spans_and_deltas() {
        let native =
            NativeCounts { zero: 1, buckets: [(-3, 2), (0, 5), (1, 5), (5, 1)].into_iter().collect() };
        let mut out = Vec::new();
        spread(&mut out, &native);
        let mut expected = b"\x28\x08\x31".to_vec();
        expected.extend_from_slice(&2f64.powi(-128).to_le_bytes());
        expected.extend_from_slice(b"\x38\x01\x62\x04\x08\x05\x10\x05\x62\x04\x08\x06\x10\x01");
        expected.extend_from_slice(b"\x68\x04\x68\x03\x68\x00\x68\x0a\x68\x00\x68\x07");
        assert_eq!(out, expected);
        out.clear();
        spread(&mut out, &NativeCounts::default());
        assert!(out.ends_with(b"\x38\x00\x62\x04\x08\x00\x10\x00"));
    }

    #[test]
    fn protobuf_has_the_fields_of_metric_family() {
        let mut families = Families::default();
        families.counter(Metric { name: "a_total", help: "A." }, &[("x", "y")], 300.0);
        let seen = Distribution { bounds: &[0.25], counts: &[1, 299], sum: 7.0, native: None };
        families.histogram(Metric { name: "c", help: "C." }, &[], seen);
        let mut expected = vec![36, 0x0a, 7];
        expected
            .extend_from_slice(b"a_total\x12\x02A.\x18\x00\x22\x13\x0a\x06\x0a\x01x\x12\x01y\x1a\x09\x09");
        expected.extend_from_slice(&300f64.to_le_bytes());
        expected.extend_from_slice(b"\x26\x0a\x01c\x12\x02C.\x18\x04\x22\x1b\x3a\x19\x08\xac\x02\x11");
        expected.extend_from_slice(&7f64.to_le_bytes());
        expected.extend_from_slice(b"\x1a\x0b\x08\x01\x11");
        expected.extend_from_slice(&0.25f64.to_le_bytes());
        assert_eq!(families.encode(Form::Protobuf), expected);
    }
}
