//! Renders `/metrics` on a separate thread, once for all waiting requests.
//!
//! ```text
//! requests -> metric families, gathered once -> one page for each format requested -> all requests of that format
//! ```
//!
//! Metrics are gathered after all requests of a batch have arrived; for protobuf on their own, with native histograms. If too many
//! rendered bytes are unread, the clients that hold the oldest page are disconnected, so that clients that do not read cannot block
//! others.

use std::cell::LazyCell;
use std::collections::VecDeque;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::connection_table::ConnectionSlot;
use super::negotiate::Negotiated;
use logging::Logger;
use metrics::{Form, MetricFamily};

/// A handle of the rendering thread.
#[derive(Debug, Clone)]
pub(super) struct Scrapes {
    requests: mpsc::Sender<PageRequest>,
}

#[derive(Debug)]
struct PageRequest {
    form: Form,
    gzip: bool,
    slot: Weak<ConnectionSlot>,
    page: oneshot::Sender<Bytes>,
}

impl Scrapes {
    /// Starts the thread, which ends with the last handle. If it cannot be started, no page is served.
    pub(super) fn start(
        gather: impl Fn(bool) -> Vec<MetricFamily> + Send + 'static,
        logger: &Logger,
    ) -> Self {
        Self::bounded(gather, logger, UNREAD_BYTES)
    }

    fn bounded(
        gather: impl Fn(bool) -> Vec<MetricFamily> + Send + 'static,
        logger: &Logger,
        unread: usize,
    ) -> Self {
        let (requests, requested) = mpsc::channel(QUEUED_REQUESTS);
        let out = UnreadPages { pages: VecDeque::new(), most: unread };
        let started =
            thread::Builder::new().name("pages".to_owned()).spawn(move || serve(requested, gather, out));
        if let Err(error) = started {
            logger.error(None, &format!("/metrics is not served: {error}"));
        }
        Self { requests }
    }

    /// A page in the requested format, for the connection of this slot; `None` if it cannot be rendered.
    pub(super) async fn page(&self, negotiated: Negotiated, slot: &Arc<ConnectionSlot>) -> Option<Bytes> {
        let (page, made) = oneshot::channel();
        let slot = Arc::downgrade(slot);
        self.requests
            .send(PageRequest { form: negotiated.form, gzip: negotiated.gzip, slot, page })
            .await
            .ok()?;
        made.await.ok()
    }
}

fn serve(
    mut requested: mpsc::Receiver<PageRequest>,
    gather: impl Fn(bool) -> Vec<MetricFamily>,
    mut out: UnreadPages,
) {
    let mut requests = Vec::new();
    while let Some(first) = requested.blocking_recv() {
        requests.push(first);
        while let Ok(next) = requested.try_recv() {
            requests.push(next);
        }
        // Requests of disconnected clients are dropped.
        requests.retain(|request| !request.page.is_closed());
        if requests.is_empty() {
            continue;
        }
        out.make_room();
        let began = clock::now();
        // A panic fails the requests of this batch only: the thread continues with the next batch.
        drop(catch_unwind(AssertUnwindSafe(|| deliver(&gather, &mut requests, &mut out))));
        requests.clear();
        let took = clock::now().saturating_duration_since(began);
        thread::sleep((took * REST).min(LONGEST_REST));
    }
}

/// Renders each requested format once, and answers all requests of it.
fn deliver(
    gather: impl Fn(bool) -> Vec<MetricFamily>,
    requests: &mut Vec<PageRequest>,
    out: &mut UnreadPages,
) {
    let (classic, native) = (LazyCell::new(|| gather(false)), LazyCell::new(|| gather(true)));
    while let Some(first) = requests.last() {
        let (form, gzip) = (first.form, first.gzip);
        let page = form.encode(if form == Form::Protobuf { &native } else { &classic });
        let page = Bytes::from(if gzip { gzipped(&page) } else { page });
        let mut made = Page { bytes: page.len(), copies: Vec::new() };
        for PageRequest { slot, page: sender, .. } in
            requests.extract_if(.., |request| (request.form, request.gzip) == (form, gzip))
        {
            let copy = Arc::new(PageCopy { page: page.clone(), slot });
            made.copies.push(Arc::downgrade(&copy));
            // Sending fails only if the client has closed its connection.
            let _ = sender.send(Bytes::from_owner(PageBytes(copy)));
        }
        out.pages.push_back(made);
    }
}

fn gzipped(page: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    // Writing to a `Vec` cannot fail.
    let _ = packer.write_all(page);
    packer.finish().unwrap_or_default()
}

/// Rendered pages that clients have not read completely.
struct UnreadPages {
    /// The oldest first.
    pages: VecDeque<Page>,
    /// Maximum size in bytes.
    most: usize,
}

/// One page, for all its requests.
struct Page {
    bytes: usize,
    copies: Vec<Weak<PageCopy>>,
}

/// The page for one client.
struct PageCopy {
    page: Bytes,
    slot: Weak<ConnectionSlot>,
}

/// The page's bytes, held by the connection until all are written.
struct PageBytes(Arc<PageCopy>);

impl AsRef<[u8]> for PageBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0.page
    }
}

impl UnreadPages {
    /// Disconnects the clients that hold the oldest pages, until the size is below the maximum.
    fn make_room(&mut self) {
        self.pages.retain(|page| page.copies.iter().any(|copy| copy.strong_count() > 0));
        while self.pages.iter().map(|page| page.bytes).sum::<usize>() >= self.most
            && let Some(oldest) = self.pages.pop_front()
        {
            let held = oldest.copies.iter().filter_map(Weak::upgrade);
            held.filter_map(|copy| copy.slot.upgrade()).for_each(|slot| slot.cut());
        }
    }
}

/// Maximum number of queued requests; further ones wait to be queued.
const QUEUED_REQUESTS: usize = 1024;
/// The thread pauses this many times as long as the last batch took, so that it uses at most a tenth of a processor. Requests that
/// arrive meanwhile wait for the next batch.
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Maximum size of unread pages in bytes.
const UNREAD_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use std::sync::mpsc as channel;

    use hyper::HeaderMap;
    use hyper::header::{ACCEPT, ACCEPT_ENCODING};

    use super::*;
    use logging::captured_log::CapturedLog;
    use logging::logger::Format;
    use metrics::{Families, Metric};

    /// Less than the size of three pages.
    const UNREAD: usize = 80;
    const PROTOBUF: &str =
        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
    const BUILT: Metric = Metric { name: "built", help: "B." };

    fn negotiated(accept: &str, coding: &str) -> Negotiated {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        headers.insert(ACCEPT_ENCODING, coding.parse().unwrap());
        Negotiated::of(&headers)
    }

    fn request(scrapes: &Scrapes, negotiated: Negotiated) -> oneshot::Receiver<Bytes> {
        request_for(scrapes, negotiated, Weak::new())
    }

    fn request_for(
        scrapes: &Scrapes,
        negotiated: Negotiated,
        slot: Weak<ConnectionSlot>,
    ) -> oneshot::Receiver<Bytes> {
        let (page, made) = oneshot::channel();
        scrapes
            .requests
            .try_send(PageRequest { form: negotiated.form, gzip: negotiated.gzip, slot, page })
            .unwrap();
        made
    }

    /// Pages with their number, each rendered when the sender allows it.
    fn scrapes() -> (Scrapes, channel::Receiver<()>, channel::Sender<()>) {
        let (began, begun) = channel::channel();
        let (go, gone) = channel::channel::<()>();
        let count = std::cell::Cell::new(0.0);
        let gather = move |_| {
            began.send(()).unwrap();
            gone.recv().unwrap();
            count.set(count.get() + 1.0);
            let mut families = Families::default();
            families.gauge(BUILT, &[], count.get());
            families.into_messages()
        };
        (Scrapes::bounded(gather, &CapturedLog::logger(Format::Text).0, UNREAD), begun, go)
    }

    fn text(page: oneshot::Receiver<Bytes>) -> String {
        String::from_utf8(page.blocking_recv().unwrap().to_vec()).unwrap()
    }

    #[test]
    fn concurrent_requests_share_a_page() {
        let (scrapes, begun, go) = scrapes();
        let first = request(&scrapes, negotiated("", ""));
        begun.recv().unwrap();
        let later: Vec<_> = (0..120).map(|_| request(&scrapes, negotiated("", ""))).collect();
        let open = request(&scrapes, negotiated("application/openmetrics-text;version=1.0.0", ""));
        go.send(()).unwrap();
        assert!(text(first).ends_with("\nbuilt 1\n"));
        begun.recv().unwrap();
        go.send(()).unwrap();
        for page in later {
            assert!(text(page).ends_with("\nbuilt 2\n"), "older than the request");
        }
        assert!(text(open).ends_with("\nbuilt 2.0\n# EOF\n"));
        assert_eq!(begun.try_recv(), Err(channel::TryRecvError::Empty), "a page without a request");
    }

    /// Text has no native histograms, although protobuf of the same batch has.
    #[test]
    fn protobuf_gathers_again() {
        let (scrapes, requested) = mpsc::channel(8);
        let scrapes = Scrapes { requests: scrapes };
        let accepts = ["", PROTOBUF, "application/openmetrics-text;version=1.0.0", PROTOBUF];
        let pages: Vec<_> = accepts.map(|accept| request(&scrapes, negotiated(accept, ""))).into();
        drop(scrapes);
        let gathered = std::cell::RefCell::new(Vec::new());
        let gather = |native| {
            gathered.borrow_mut().push(native);
            let mut families = Families::new(native);
            families.gauge(BUILT, &[], f64::from(u8::from(native)));
            families.into_messages()
        };
        serve(requested, gather, UnreadPages { pages: VecDeque::new(), most: 1 << 10 });
        let [plain, native, open, again] = pages.try_into().unwrap();
        assert!(text(plain).ends_with("\nbuilt 0\n"));
        assert!(text(open).ends_with("\nbuilt 0.0\n# EOF\n"));
        let native = native.blocking_recv().unwrap();
        assert!(native.ends_with(&1_f64.to_le_bytes()), "{native:?}");
        assert_eq!(native, again.blocking_recv().unwrap());
        let mut gathered = gathered.into_inner();
        gathered.sort_unstable();
        assert_eq!(gathered, [false, true]);
    }

    #[test]
    fn no_page_without_requests() {
        let (scrapes, begun, go) = scrapes();
        let first = request(&scrapes, negotiated("", ""));
        begun.recv().unwrap();
        for _ in 0..120 {
            drop(request(&scrapes, negotiated("", "")));
        }
        go.send(()).unwrap();
        text(first);
        let last = request(&scrapes, negotiated("", ""));
        begun.recv().unwrap();
        go.send(()).unwrap();
        assert!(text(last).ends_with("\nbuilt 2\n"));
    }

    #[test]
    fn unread_pages_are_bounded() {
        let (scrapes, begun, go) = scrapes();
        let slot = |_| Arc::new(ConnectionSlot::new([127, 0, 0, 1].into(), clock::now()));
        let mut taken: Vec<_> = (0..5).map(slot).collect();
        let next = |of: &[Arc<ConnectionSlot>]| -> Vec<Bytes> {
            // Requests that arrive while a page is rendered share the next.
            let first = request(&scrapes, negotiated("", ""));
            begun.recv().unwrap();
            let mut requests = Vec::new();
            for slot in of {
                requests.push(request_for(&scrapes, negotiated("", ""), Arc::downgrade(slot)));
            }
            drop(first);
            go.send(()).unwrap();
            begun.recv().unwrap();
            go.send(()).unwrap();
            requests.into_iter().map(|page| page.blocking_recv().unwrap()).collect()
        };
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut is_cut = |slot: &Arc<ConnectionSlot>| {
            std::pin::pin!(slot.was_cut()).as_mut().poll(&mut context).is_ready()
        };
        // The first page is not read by the second of two.
        let mut unread = next(&taken[..2]);
        unread.remove(0);
        unread.extend(next(&taken[2..3]));
        assert!(!taken.iter().any(&mut is_cut));
        unread.extend(next(&taken[3..4]));
        assert_eq!(taken.iter().map(&mut is_cut).collect::<Vec<_>>(), [false, true, false, false, false]);
        // A disconnected client drops its page; pages that were read or dropped do not count.
        unread.drain(..2);
        taken.remove(2);
        next(&taken[3..4]);
        assert!(!taken.iter().any(is_cut));
    }

    #[test]
    fn gzip() {
        let (scrapes, begun, go) = scrapes();
        let page = request(&scrapes, negotiated("", "gzip"));
        begun.recv().unwrap();
        go.send(()).unwrap();
        let page = page.blocking_recv().unwrap();
        let mut unpacked = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&page[..]), &mut unpacked).unwrap();
        assert_eq!(unpacked, "# HELP built B.\n# TYPE built gauge\nbuilt 1\n");
    }
}
