//! Memory that a list takes while it is read.

use allocation_counter::{AllocationInfo, measure};

use super::*;
use crate::objects::{Object, ObjectKey};

/// Counts objects and stores none.
#[derive(Default)]
struct Counted {
    slices: usize,
    endpoints: usize,
    lists: usize,
}

impl Sink for Counted {
    fn begin(&mut self, _: Kind) {}
    fn apply(&mut self, object: Object) {
        let Object::Slice(slice) = object else { panic!("{object:?}") };
        self.slices += 1;
        self.endpoints += slice.endpoints.len();
    }
    fn delete(&mut self, _: Kind, _: ObjectKey) {}
    fn complete(&mut self, _: Kind) {
        self.lists += 1;
    }
    fn watching(&mut self, _: Kind) {}
    fn failed(&mut self, _: Kind, why: &WatchError) {
        assert!(matches!(why, WatchError::Unsupported { status: 422, .. }), "{why}");
    }
    fn invalid(&mut self, _: Kind, _: &crate::DecodeError) {
        panic!("all objects are valid");
    }
}

/// A page as a controller writes it: 100 slices of 100 endpoints.
fn page(number: usize, next: &str) -> String {
    let endpoint = |of: usize, last: usize| {
        format!(
            r#"{{"addresses":["10.{number}.{of}.{last}"],"conditions":{{"ready":true}},"nodeName":"node-{last}","targetRef":{{"kind":"Pod","name":"pod-{of}-{last}","namespace":"t1"}}}}"#
        )
    };
    let slice = |of: usize| {
        let endpoints: Vec<_> = (0..ENDPOINTS).map(|last| endpoint(of, last)).collect();
        format!(
            r#"{{"metadata":{{"name":"s-{number}-{of}","namespace":"t1","labels":{{"kubernetes.io/service-name":"big"}}}},"addressType":"IPv4","endpoints":[{}]}}"#,
            endpoints.join(",")
        )
    };
    let slices: Vec<_> = (0..SLICES).map(slice).collect();
    format!(
        r#"{{"kind":"EndpointSliceList","metadata":{{"resourceVersion":"10","continue":"{next}"}},"items":[{}]}}"#,
        slices.join(",")
    )
}

const SLICES: usize = 100;
const ENDPOINTS: usize = 100;
/// Size of a frame from the connection.
const FRAME_BYTES: usize = 16 << 10;

/// Measures reading a list of these pages.
fn read(pages: &[String]) -> (AllocationInfo, Counted) {
    #[allow(clippy::disallowed_methods, reason = "any instant will do")]
    let now = Instant::now();
    let (wants, mut sink) = (WatchConfig { endpoints: true, ..WatchConfig::default() }, Counted::default());
    let mut reflector = Reflector::new(Kind::Slice, Arc::new(wants), || 0.5);
    assert!(matches!(reflector.next(now), Next::Send(ask) if ask.watch));
    reflector.head(now, 422, "application/json", None, &mut sink).unwrap();
    let refused = reflector.end(now, &mut sink).unwrap_err();
    reflector.failed(now, &refused, &mut sink);
    let now = now + MAX_WAIT;
    let counted = measure(|| {
        for page in pages {
            assert!(matches!(reflector.next(now), Next::Send(ask) if !ask.watch));
            reflector.head(now, 200, "application/json", None, &mut sink).unwrap();
            for part in page.as_bytes().chunks(FRAME_BYTES) {
                assert_eq!(reflector.body(now, part, &mut sink).unwrap(), ReadMore::Yes);
            }
            reflector.end(now, &mut sink).unwrap();
        }
    });
    (counted, sink)
}

#[test]
fn list_takes_the_memory_of_a_page() {
    const MOST: usize = 20;
    let pages: Vec<String> = (1..=MOST)
        .map(|number| page(number, &if number == MOST { String::new() } else { format!("next-{number}") }))
        .collect();
    let (all, sink) = read(&pages);
    assert_eq!((sink.slices, sink.endpoints, sink.lists), (MOST * SLICES, MOST * SLICES * ENDPOINTS, 1));
    // A JSON page is decoded when it is complete, and a growing buffer is up to twice as large.
    let longest = pages.iter().map(String::len).max().unwrap() as u64;
    assert!(all.bytes_max < 3 * longest, "{} bytes for pages of {longest}", all.bytes_max);
    let (two, _) = read(&pages[..2]);
    assert!(all.bytes_max <= two.bytes_max + two.bytes_max / 50, "{two:?}, and of all {all:?}");
    assert!(all.bytes_current < 1 << 10, "{all:?}");
}
