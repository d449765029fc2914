//! `/metrics`: one page for all who wait for it, made on a thread that serves nobody.
//!
//! ```text
//! requests -> orders -> families, once -> a page in each form that was ordered -> all who ordered it
//! ```
//!
//! A page is begun after everybody who gets it has asked, and what is counted until then is in it. Where too much of what
//! was made is not read, who holds the oldest page is cut off: nobody who comes is refused for those who do not read.

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

use super::negotiate::Wanted;
use super::slots::Slot;
use logging::Logger;
use metrics::{Families, Form};

/// Where pages are ordered.
#[derive(Debug, Clone)]
pub(super) struct Scrapes {
    orders: mpsc::Sender<Order>,
}

#[derive(Debug)]
struct Order {
    form: Form,
    gzip: bool,
    slot: Weak<Slot>,
    page: oneshot::Sender<Bytes>,
}

impl Scrapes {
    /// Starts the thread, which ends with the last of these. Where it cannot be started nobody gets a page.
    pub(super) fn start(collect: impl Fn(bool) -> Families + Send + 'static, logger: &Logger) -> Self {
        Self::bounded(collect, logger, UNREAD_BYTES)
    }

    fn bounded(collect: impl Fn(bool) -> Families + Send + 'static, logger: &Logger, unread: usize) -> Self {
        let (orders, ordered) = mpsc::channel(ORDERS);
        let out = Unread { pages: VecDeque::new(), most: unread };
        let started =
            thread::Builder::new().name("pages".to_owned()).spawn(move || serve(ordered, collect, out));
        if let Err(error) = started {
            logger.error(None, &format!("/metrics is not served: {error}"));
        }
        Self { orders }
    }

    /// A page as it is wanted, for the connection of this slot; `None` where it cannot be made.
    pub(super) async fn page(&self, wanted: Wanted, slot: &Arc<Slot>) -> Option<Bytes> {
        let (page, made) = oneshot::channel();
        let slot = Arc::downgrade(slot);
        self.orders.send(Order { form: wanted.form, gzip: wanted.gzip, slot, page }).await.ok()?;
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
        // Orders whose client closed its connection meanwhile are dropped.
        orders.retain(|order| !order.page.is_closed());
        if orders.is_empty() {
            continue;
        }
        out.make_room();
        let began = clock::now();
        let native = orders.iter().any(|order| order.form == Form::Protobuf);
        // A panic while a page is made fails the requests of this batch alone: the thread goes on with the next batch.
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
        let mut made = Page { octets: page.len(), copies: Vec::new() };
        for Order { slot, page: sender, .. } in
            orders.extract_if(.., |order| (order.form, order.gzip) == (form, gzip))
        {
            let copy = Arc::new(Copy { page: page.clone(), slot });
            made.copies.push(Arc::downgrade(&copy));
            // Sending fails only where the client closed its connection meanwhile.
            let _ = sender.send(Bytes::from_owner(Handed(copy)));
        }
        out.pages.push_back(made);
    }
}

fn packed(page: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    // Writing to a `Vec` cannot fail.
    let _ = packer.write_all(page);
    packer.finish().unwrap_or_default()
}

/// Pages handed out, of which some clients may read no octet.
struct Unread {
    /// The oldest first.
    pages: VecDeque<Page>,
    /// Octets.
    most: usize,
}

/// One page, for all who ordered it.
struct Page {
    octets: usize,
    copies: Vec<Weak<Copy>>,
}

/// The page as one client has it.
struct Copy {
    page: Bytes,
    slot: Weak<Slot>,
}

/// Held by the connection until all of it is written.
struct Handed(Arc<Copy>);

impl AsRef<[u8]> for Handed {
    fn as_ref(&self) -> &[u8] {
        &self.0.page
    }
}

impl Unread {
    /// Cuts off who holds the oldest pages, until there is room for one more.
    fn make_room(&mut self) {
        self.pages.retain(|page| page.copies.iter().any(|copy| copy.strong_count() > 0));
        while self.pages.iter().map(|page| page.octets).sum::<usize>() >= self.most
            && let Some(oldest) = self.pages.pop_front()
        {
            let held = oldest.copies.iter().filter_map(Weak::upgrade);
            held.filter_map(|copy| copy.slot.upgrade()).for_each(|slot| slot.cut());
        }
    }
}

/// Orders that may wait; who comes then waits to order.
const ORDERS: usize = 1024;
/// The thread rests so many times as long as a page took: it has a tenth of a processor at most, and a scraper that comes
/// while it rests waits with the others.
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Octets of pages that clients have not read yet; of more the oldest are taken back.
const UNREAD_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use std::sync::mpsc as channel;

    use hyper::HeaderMap;
    use hyper::header::{ACCEPT, ACCEPT_ENCODING};

    use super::*;
    use logging::captured_log::CapturedLog;
    use logging::logger::Format;
    use metrics::Metric;

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
        order_for(scrapes, wanted, Weak::new())
    }

    fn order_for(scrapes: &Scrapes, wanted: Wanted, slot: Weak<Slot>) -> oneshot::Receiver<Bytes> {
        let (page, made) = oneshot::channel();
        scrapes.orders.try_send(Order { form: wanted.form, gzip: wanted.gzip, slot, page }).unwrap();
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
        (Scrapes::bounded(collect, &CapturedLog::logger(Format::Text).0, UNREAD), begun, go)
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
    fn of_too_many_pages_that_are_not_read_the_oldest_are_taken_back() {
        let (scrapes, begun, go) = scrapes();
        let slot = |_| Arc::new(Slot::new([127, 0, 0, 1].into(), clock::now()));
        let mut taken: Vec<_> = (0..5).map(slot).collect();
        let next = |of: &[Arc<Slot>]| -> Vec<Bytes> {
            // All who order while another page is made share the next.
            let first = order(&scrapes, wanted("", ""));
            begun.recv().unwrap();
            let mut orders = Vec::new();
            for slot in of {
                orders.push(order_for(&scrapes, wanted("", ""), Arc::downgrade(slot)));
            }
            drop(first);
            go.send(()).unwrap();
            begun.recv().unwrap();
            go.send(()).unwrap();
            orders.into_iter().map(|page| page.blocking_recv().unwrap()).collect()
        };
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut is_cut =
            |slot: &Arc<Slot>| std::pin::pin!(slot.was_cut()).as_mut().poll(&mut context).is_ready();
        // The first page is not read by the second of two.
        let mut unread = next(&taken[..2]);
        unread.remove(0);
        unread.extend(next(&taken[2..3]));
        assert!(!taken.iter().any(&mut is_cut));
        unread.extend(next(&taken[3..4]));
        assert_eq!(taken.iter().map(&mut is_cut).collect::<Vec<_>>(), [false, true, false, false, false]);
        // Who is cut off drops its page; what was read, and who left, counts no more.
        unread.drain(..2);
        taken.remove(2);
        next(&taken[3..4]);
        assert!(!taken.iter().any(is_cut));
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
