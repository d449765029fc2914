//! The exposition formats of metric families: text 0.0.4, OpenMetrics 1.0.0, delimited protobuf; each as written by Go's client
//! library (`expfmt`).

use prometheus::proto::MetricFamily;
use prometheus::{Encoder as _, ProtobufEncoder, TextEncoder};

use super::openmetrics::OpenMetricsEncoder;

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

impl Form {
    /// The families in this format. Each has a name and a sample; native histograms are for protobuf alone, since they may have another
    /// `_count` than the classic ones.
    pub fn encode(self, families: &[MetricFamily]) -> Vec<u8> {
        let mut page = Vec::new();
        let written = match self {
            Self::Text => return text(families).into_bytes(),
            Self::OpenMetrics(_) => OpenMetricsEncoder.encode(families, &mut page),
            Self::Protobuf => ProtobufEncoder.encode(families, &mut page),
        };
        // Writing to a `Vec` cannot fail.
        debug_assert!(written.is_ok(), "{written:?}");
        page
    }
}

fn text(families: &[MetricFamily]) -> String {
    let mut text = TextEncoder.encode_to_string(families).unwrap_or_default();
    // Go writes infinity as `+Inf`, the encoder `inf`. No help text ends with that.
    for (written, expected) in [(" inf\n", " +Inf\n"), (" -inf\n", " -Inf\n")] {
        if text.contains(written) {
            text = text.replace(written, expected);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::{Distribution, Families, Metric};

    const COUNT: Metric = Metric { name: "a_total", help: "A \"quoted\" \\ help." };
    const GAUGE: Metric = Metric { name: "b", help: "B." };
    const SPREAD: Metric = Metric { name: "c_seconds", help: "C." };

    fn families() -> Vec<MetricFamily> {
        let mut families = Families::default();
        families.counter(COUNT, &[("x", "\"\n\\")], 300.0);
        families.gauge(GAUGE, &[], 0.5);
        let seen = Distribution { bounds: &[0.25, 1.0], counts: &[1, 0, 2], sum: 7.0, native: None };
        families.histogram(SPREAD, &[("y", "z")], seen);
        families.into_messages()
    }

    #[test]
    fn text_and_openmetrics_read_as_gos_client_library_writes_them() {
        assert_eq!(
            text(&families()),
            "# HELP a_total A \"quoted\" \\\\ help.\n# TYPE a_total counter\na_total{x=\"\\\"\\n\\\\\"} 300\n\
             # HELP b B.\n# TYPE b gauge\nb 0.5\n\
             # HELP c_seconds C.\n# TYPE c_seconds histogram\n\
             c_seconds_bucket{y=\"z\",le=\"0.25\"} 1\nc_seconds_bucket{y=\"z\",le=\"1\"} 1\n\
             c_seconds_bucket{y=\"z\",le=\"+Inf\"} 3\nc_seconds_sum{y=\"z\"} 7\nc_seconds_count{y=\"z\"} 3\n"
        );
        assert_eq!(
            String::from_utf8(Form::OpenMetrics("1.0.0").encode(&families())).unwrap(),
            "# HELP a A \\\"quoted\\\" \\\\ help.\n# TYPE a counter\na_total{x=\"\\\"\\n\\\\\"} 300.0\n\
             # HELP b B.\n# TYPE b gauge\nb 0.5\n\
             # HELP c_seconds C.\n# TYPE c_seconds histogram\n\
             c_seconds_bucket{y=\"z\",le=\"0.25\"} 1\nc_seconds_bucket{y=\"z\",le=\"1.0\"} 1\n\
             c_seconds_bucket{y=\"z\",le=\"+Inf\"} 3\nc_seconds_sum{y=\"z\"} 7.0\nc_seconds_count{y=\"z\"} 3\n# EOF\n"
        );
    }

    #[test]
    fn infinity_and_integers() {
        for (value, printed, open) in [
            (f64::INFINITY, "+Inf", "+Inf"),
            (f64::NEG_INFINITY, "-Inf", "-Inf"),
            (f64::NAN, "NaN", "NaN"),
            (-0.0, "-0", "-0.0"),
            (18_446_744_073_709_551_615.0, "18446744073709552000", "18446744073709551616.0"),
            (1e-9, "0.000000001", "0.000000001"),
        ] {
            let mut families = Families::default();
            families.gauge(GAUGE, &[("x", "b inf")], value);
            let families = families.into_messages();
            let line = |value| format!("# HELP b B.\n# TYPE b gauge\nb{{x=\"b inf\"}} {value}\n");
            assert_eq!(text(&families), line(printed));
            let written = String::from_utf8(Form::OpenMetrics("1.0.0").encode(&families)).unwrap();
            assert_eq!(written, line(open) + "# EOF\n");
        }
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
        assert_eq!(Form::Protobuf.encode(&families.into_messages()), expected);
    }
}
