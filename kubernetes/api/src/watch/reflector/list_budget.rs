//! What a list takes while it is read.

use allocation_counter::{AllocationInfo, measure};

use super::*;
use crate::objects::{Object, ObjectKey};

/// Counts, and keeps nothing.
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
    fn following(&mut self, _: Kind) {}
    fn lost(&mut self, _: Kind, why: &Lost) {
        assert!(matches!(why, Lost::Unoffered { status: 422, .. }), "{why}");
    }
    fn unreadable(&mut self, _: Kind, _: &crate::Unreadable) {
        panic!("all of it can be read");
    }
}

/// As a controller writes them: a hundred slices, of a hundred endpoints each.
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
/// As a connection hands it over.
const PART: usize = 16 << 10;

/// Of a list in so many pages.
fn read(pages: &[String]) -> (AllocationInfo, Counted) {
    #[allow(clippy::disallowed_methods, reason = "some moment to begin with")]
    let now = Instant::now();
    let (wants, mut sink) = (Wants { endpoints: true, ..Wants::default() }, Counted::default());
    let mut follower = Follower::new(Kind::Slice, Arc::new(wants), || 0.5);
    assert!(matches!(follower.next(now), Next::Ask(ask) if ask.watch));
    follower.head(now, 422, "application/json", None, &mut sink).unwrap();
    let refused = follower.end(now, &mut sink).unwrap_err();
    follower.failed(now, &refused, &mut sink);
    let now = now + MOST_WAIT;
    let counted = measure(|| {
        for page in pages {
            assert!(matches!(follower.next(now), Next::Ask(ask) if !ask.watch));
            follower.head(now, 200, "application/json", None, &mut sink).unwrap();
            for part in page.as_bytes().chunks(PART) {
                assert_eq!(follower.body(now, part, &mut sink).unwrap(), Rest::Wanted);
            }
            follower.end(now, &mut sink).unwrap();
        }
    });
    (counted, sink)
}

#[test]
fn a_list_in_pages_takes_what_a_page_does_however_many_there_are() {
    const MOST: usize = 20;
    let pages: Vec<String> = (1..=MOST)
        .map(|number| page(number, &if number == MOST { String::new() } else { format!("next-{number}") }))
        .collect();
    let (all, sink) = read(&pages);
    assert_eq!((sink.slices, sink.endpoints, sink.lists), (MOST * SLICES, MOST * SLICES * ENDPOINTS, 1));
    // A page of JSON is read when it is whole, and a buffer that grows is up to twice as large.
    let longest = pages.iter().map(String::len).max().unwrap() as u64;
    assert!(all.bytes_max < 3 * longest, "{} octets for pages of {longest}", all.bytes_max);
    let (two, _) = read(&pages[..2]);
    assert!(all.bytes_max <= two.bytes_max + two.bytes_max / 50, "{two:?}, and of all {all:?}");
    assert!(all.bytes_current < 1 << 10, "{all:?}");
}
