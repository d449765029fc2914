//! `/metrics`: one page for all who wait for it, made on a thread that serves nobody.
//!
//! ```text
//! requests -> orders -> families, once -> a page in each form that was ordered -> all who ordered it
//! ```
//!
//! A page is begun after everybody who gets it has asked, and what is counted until then is in it.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::negotiate::Wanted;
use crate::clock;
use crate::observe::{Families, Form, Logger};

/// Where pages are ordered.
#[derive(Debug, Clone)]
pub(super) struct Scrapes {
    orders: mpsc::Sender<Order>,
}

#[derive(Debug)]
struct Order {
    form: Form,
    gzip: bool,
    page: oneshot::Sender<Bytes>,
}

impl Scrapes {
    /// Starts the thread, which ends with the last of these. Where it cannot be started nobody gets a page.
    pub(super) fn start(collect: impl Fn(bool) -> Families + Send + 'static, logger: &Logger) -> Self {
        Self::bounded(collect, logger, UNREAD_BYTES)
    }

    fn bounded(collect: impl Fn(bool) -> Families + Send + 'static, logger: &Logger, unread: usize) -> Self {
        let (orders, ordered) = mpsc::channel(ORDERS);
        let out = Unread { pages: Vec::new(), most: unread };
        let started =
            thread::Builder::new().name("pages".to_owned()).spawn(move || serve(ordered, collect, out));
        if let Err(error) = started {
            logger.error(None, &format!("/metrics is not served: {error}"));
        }
        Self { orders }
    }

    /// A page as it is wanted; `None` while too many are still being read, or where there is nobody to make it.
    pub(super) async fn page(&self, wanted: Wanted) -> Option<Bytes> {
        let (page, made) = oneshot::channel();
        self.orders.send(Order { form: wanted.form, gzip: wanted.gzip, page }).await.ok()?;
        made.await.ok()
    }
}

fn serve(mut ordered: mpsc::Receiver<Order>, collect: impl Fn(bool) -> Families, mut out: Unread) {
    let mut orders = Vec::new();
    while let Some(first) = ordered.blocking_recv() {
        orders.push(first);
        while let Ok(next) = ordered.try_recv() {
            orders.push(next);
        }
        // Who has left needs no page.
        orders.retain(|order| !order.page.is_closed());
        if orders.is_empty() || out.too_much() {
            orders.clear();
            continue;
        }
        let began = clock::now();
        let native = orders.iter().any(|order| order.form == Form::Protobuf);
        // What fails here fails for those who ordered, and for nobody else.
        drop(catch_unwind(AssertUnwindSafe(|| deliver(&collect(native), &mut orders, &mut out))));
        orders.clear();
        let took = clock::now().saturating_duration_since(began);
        thread::sleep((took * REST).min(LONGEST_REST));
    }
}

/// Writes each form that was ordered once, for all who ordered it.
fn deliver(families: &Families, orders: &mut Vec<Order>, out: &mut Unread) {
    while let Some(first) = orders.last() {
        let (form, gzip) = (first.form, first.gzip);
        let page = Bytes::from(if gzip { packed(&families.encode(form)) } else { families.encode(form) });
        out.pages.push(page.clone());
        for order in orders.extract_if(.., |order| (order.form, order.gzip) == (form, gzip)) {
            // Nobody waits any more: the client is gone.
            let _ = order.page.send(page.clone());
        }
    }
}

fn packed(page: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    // Memory takes whatever is written.
    let _ = packer.write_all(page);
    packer.finish().unwrap_or_default()
}

/// Pages handed out, of which some clients may read no octet.
struct Unread {
    pages: Vec<Bytes>,
    /// Octets.
    most: usize,
}

impl Unread {
    fn too_much(&mut self) -> bool {
        self.pages.retain(|page| !page.is_unique());
        self.pages.iter().map(Bytes::len).sum::<usize>() >= self.most
    }
}

/// Orders that may wait; who comes then waits to order.
const ORDERS: usize = 1024;
/// The thread rests so many times as long as a page took: it has a tenth of a processor at most, and a scraper that comes
/// while it rests waits with the others.
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Octets of pages that clients have not read yet, beyond which there are no more of them.
const UNREAD_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use std::sync::mpsc as channel;

    use hyper::HeaderMap;
    use hyper::header::{ACCEPT, ACCEPT_ENCODING};

    use super::*;
    use crate::observe::Metric;
    use crate::observe::logger::Format;
    use crate::observe::logger::tests::Paper;

    /// Less than three pages.
    const UNREAD: usize = 80;
    const BUILT: Metric = Metric { name: "built", help: "B." };

    fn wanted(accept: &str, coding: &str) -> Wanted {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        headers.insert(ACCEPT_ENCODING, coding.parse().unwrap());
        Wanted::of(&headers)
    }

    fn order(scrapes: &Scrapes, wanted: Wanted) -> oneshot::Receiver<Bytes> {
        let (page, made) = oneshot::channel();
        scrapes.orders.try_send(Order { form: wanted.form, gzip: wanted.gzip, page }).unwrap();
        made
    }

    /// Pages that tell how many there were, each made when the sender says so.
    fn scrapes() -> (Scrapes, channel::Receiver<()>, channel::Sender<()>) {
        let (began, begun) = channel::channel();
        let (go, gone) = channel::channel::<()>();
        let count = std::cell::Cell::new(0.0);
        let collect = move |_| {
            began.send(()).unwrap();
            gone.recv().unwrap();
            count.set(count.get() + 1.0);
            let mut families = Families::default();
            families.gauge(BUILT, &[], count.get());
            families
        };
        (Scrapes::bounded(collect, &Paper::logger(Format::Text).0, UNREAD), begun, go)
    }

    fn text(page: oneshot::Receiver<Bytes>) -> String {
        String::from_utf8(page.blocking_recv().unwrap().to_vec()).unwrap()
    }

    #[test]
    fn all_who_ask_while_one_page_is_made_share_the_next() {
        let (scrapes, begun, go) = scrapes();
        let first = order(&scrapes, wanted("", ""));
        begun.recv().unwrap();
        let later: Vec<_> = (0..120).map(|_| order(&scrapes, wanted("", ""))).collect();
        let open = order(&scrapes, wanted("application/openmetrics-text;version=1.0.0", ""));
        go.send(()).unwrap();
        assert!(text(first).ends_with("\nbuilt 1\n"));
        begun.recv().unwrap();
        go.send(()).unwrap();
        for page in later {
            assert!(text(page).ends_with("\nbuilt 2\n"), "not what was so when it asked");
        }
        assert!(text(open).ends_with("\nbuilt 2.0\n# EOF\n"));
        assert_eq!(begun.try_recv(), Err(channel::TryRecvError::Empty), "a page that nobody asked for");
    }

    #[test]
    fn a_page_that_nobody_waits_for_is_not_made() {
        let (scrapes, begun, go) = scrapes();
        let first = order(&scrapes, wanted("", ""));
        begun.recv().unwrap();
        for _ in 0..120 {
            drop(order(&scrapes, wanted("", "")));
        }
        go.send(()).unwrap();
        text(first);
        let last = order(&scrapes, wanted("", ""));
        begun.recv().unwrap();
        go.send(()).unwrap();
        assert!(text(last).ends_with("\nbuilt 2\n"));
    }

    #[test]
    fn pages_that_are_not_read_are_bounded() {
        let (scrapes, begun, go) = scrapes();
        let next = || {
            let page = order(&scrapes, wanted("", ""));
            begun.recv().unwrap();
            go.send(()).unwrap();
            page.blocking_recv().unwrap()
        };
        let unread = [next(), next()];
        assert!(order(&scrapes, wanted("", "")).blocking_recv().is_err(), "a third beside two unread ones");
        drop(unread);
        next();
    }

    #[test]
    fn gzip_holds_the_same_page() {
        let (scrapes, begun, go) = scrapes();
        let page = order(&scrapes, wanted("", "gzip"));
        begun.recv().unwrap();
        go.send(()).unwrap();
        let page = page.blocking_recv().unwrap();
        let mut unpacked = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&page[..]), &mut unpacked).unwrap();
        assert_eq!(unpacked, "# HELP built B.\n# TYPE built gauge\nbuilt 1\n");
    }
}
