//! Fields of a native histogram, which the message of `prometheus` lacks.

use prometheus::proto::Histogram;
use protobuf::{UnknownFields, UnknownValue};

use crate::histogram::{NativeCounts, SCHEMA, ZERO_THRESHOLD};

/// Adds the fields to a histogram of the same values: spans of buckets, and the difference of each count from the previous one. The
/// field numbers are those of `io/prometheus/client/metrics.proto`.
pub(super) fn add(native: &NativeCounts, histogram: &mut Histogram) {
    // Prometheus refuses a native histogram with counts that do not add up.
    histogram.set_sample_count(native.total());
    let fields = histogram.special_fields.mut_unknown_fields();
    fields.add_value(5, UnknownValue::sint32(SCHEMA));
    fields.add_value(6, UnknownValue::double(ZERO_THRESHOLD));
    fields.add_varint(7, native.zero);
    let mut spans: Vec<(i32, u64)> = Vec::new();
    let (mut next, mut last) = (0, 0);
    for (&key, &count) in &native.buckets {
        let gap = key - next;
        match spans.last_mut() {
            // Up to two empty buckets are written as zeros, which takes fewer bytes than another span.
            Some((_, length)) if gap <= 2 => {
                for _ in 0..gap {
                    fields.add_value(13, UnknownValue::sint64(-last));
                    last = 0;
                }
                *length += gap as u64 + 1;
            }
            _ => spans.push((gap, 1)),
        }
        fields.add_value(13, UnknownValue::sint64(count as i64 - last));
        (next, last) = (key + 1, count as i64);
    }
    // A native histogram without a span would be read as a classic one, so an empty span is written.
    if spans.is_empty() {
        spans.push((0, 0));
    }
    for (gap, length) in spans {
        let mut span = UnknownFields::new();
        span.add_value(1, UnknownValue::sint32(gap));
        span.add_varint(2, length);
        fields.add_length_delimited(12, span.write_to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use protobuf::{Message as _, UnknownValueRef};

    use super::*;

    /// The values of each field, as bytes or as a number.
    #[derive(Debug, Default, PartialEq)]
    struct Fields {
        schema: Vec<u64>,
        zero_threshold: Vec<u64>,
        zero_count: Vec<u64>,
        spans: Vec<Vec<u8>>,
        deltas: Vec<u64>,
    }

    /// Adds native buckets to a histogram of three values, encodes and decodes it.
    fn decoded(native: &NativeCounts) -> (u64, Fields) {
        let mut histogram = Histogram::new();
        histogram.set_sample_count(3);
        add(native, &mut histogram);
        let histogram = Histogram::parse_from_bytes(&histogram.write_to_bytes().unwrap()).unwrap();
        let mut fields = Fields::default();
        for (number, value) in histogram.special_fields.unknown_fields() {
            match (number, value) {
                (5, UnknownValueRef::Varint(value)) => fields.schema.push(value),
                (6, UnknownValueRef::Fixed64(value)) => fields.zero_threshold.push(value),
                (7, UnknownValueRef::Varint(value)) => fields.zero_count.push(value),
                (12, UnknownValueRef::LengthDelimited(value)) => fields.spans.push(value.to_vec()),
                (13, UnknownValueRef::Varint(value)) => fields.deltas.push(value),
                field => panic!("{field:?}"),
            }
        }
        (histogram.sample_count(), fields)
    }

    #[test]
    fn native_buckets_use_spans_and_deltas() {
        let native =
            NativeCounts { zero: 1, buckets: [(-3, 2), (0, 5), (1, 5), (5, 1)].into_iter().collect() };
        let expected = Fields {
            schema: vec![8],
            zero_threshold: vec![2_f64.powi(-128).to_bits()],
            zero_count: vec![1],
            spans: vec![b"\x08\x05\x10\x05".to_vec(), b"\x08\x06\x10\x01".to_vec()],
            deltas: vec![4, 3, 0, 10, 0, 7],
        };
        assert_eq!(decoded(&native), (14, expected));
    }

    /// Without values there is one empty span.
    #[test]
    fn empty_native_histogram() {
        let (total, fields) = decoded(&NativeCounts::default());
        assert_eq!((total, fields.zero_count, fields.deltas), (0, vec![0], vec![]));
        assert_eq!(fields.spans, [b"\x08\x00\x10\x00"]);
    }
}
