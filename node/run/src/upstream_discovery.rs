//! Finds the upstreams that replace 168.63.129.16 in the Corefile, the name servers of the node's
//! network, and follows their changes. The last list stays in use while no usable one is found.
//!
//! ```text
//! DHCP's, of links with a drop-in of localdns that hides them -> the resolv.conf -> if neither has
//! one, the last good list
//! ```

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use files::FileRead;

use crate::dhcp_leases::dhcp_servers;
use node::{LINK, ListText, Upstreams, Usable, WIRE_SERVER, link_of};

/// Function that returns whether an address is one of this server's.
pub type IsOurs<'o> = &'o dyn Fn(IpAddr) -> bool;

/// The list and its source.
pub struct Discovery {
    upstreams: Arc<Upstreams>,
    file: PathBuf,
    origin: ListOrigin,
    look: FileRead<NetworkLists>,
    due: Option<Instant>,
    /// The last error of a read, as reported.
    wrong: Option<String>,
}

/// The source of the current list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListOrigin {
    /// There is no list.
    Nowhere,
    /// The file.
    File,
    /// DHCP leases, then the file.
    Leases,
    /// The file [`KEPT`] with the last good list.
    Kept,
}

/// The result of a check of the sources.
#[derive(Debug, PartialEq, Eq)]
pub enum ListChange {
    /// Unchanged.
    Nothing,
    /// Other servers, in effect from now on.
    Changed,
    /// No usable server: the list is unchanged.
    Wrong(String),
}

impl Discovery {
    /// Reads the list for the first time; if `needed` and there is none, retries for 5 s. `is_ours`
    /// matches this server's addresses, which are not upstreams.
    ///
    /// # Errors
    /// If a list is needed, and neither the leases, the file nor [`KEPT`] has one.
    pub fn first(file: &Path, needed: bool, is_ours: IsOurs<'_>) -> Result<Self, String> {
        let (list, origin, wrong) = await_list(file, needed, is_ours);
        if let (true, Some(wrong)) = (list.is_empty() && needed, &wrong) {
            return Err(format!(
                "{}; have the network manager write {}, name another file with -upstreams, or name the servers in the Corefile",
                there_are_none(wrong),
                file.display()
            ));
        }
        let upstreams = Arc::new(Upstreams::new(&list));
        let wrong = wrong.filter(|_| needed);
        Ok(Self { upstreams, file: file.to_owned(), origin, look: FileRead::default(), due: None, wrong })
    }

    /// Returns the current list, which `forward` reads.
    pub fn upstreams(&self) -> &Arc<Upstreams> {
        &self.upstreams
    }

    /// Returns the source of the current list.
    pub fn origin(&self) -> ListOrigin {
        self.origin
    }

    /// Returns the error of the last read; `None` if it found a list.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Called in every round: starts a read of the sources at most once a second, on another
    /// thread; applies the result of a finished read, and returns what changed.
    pub fn look(&mut self, now: Instant, is_ours: IsOurs<'_>) -> ListChange {
        if self.due.is_none_or(|due| due <= now) {
            self.due = Some(now + EVERY);
            let of = self.file.clone();
            self.look.start(&self.file, now, move || NetworkLists::by(files::read(&of, MOST)));
        }
        let lists = match self.look.poll(now, Duration::ZERO) {
            None => return ListChange::Nothing,
            Some(lists) => lists.unwrap_or_else(|error| NetworkLists::by(Err(error))),
        };
        match lists.usable(&self.file, is_ours) {
            Ok((list, origin)) => {
                (self.origin, self.wrong) = (origin, None);
                if self.upstreams.set(&list) { ListChange::Changed } else { ListChange::Nothing }
            }
            Err(wrong) if self.wrong.as_ref() == Some(&wrong) => ListChange::Nothing,
            Err(wrong) => {
                self.wrong = Some(wrong.clone());
                ListChange::Wrong(wrong)
            }
        }
    }
}

/// The list of name servers for a command that runs beside the server.
pub struct Listed {
    /// The list.
    pub upstreams: Arc<Upstreams>,
    /// Why the list is empty, if the Corefile needs it.
    pub none: Option<String>,
}

impl Listed {
    /// Reads the current list, without waiting.
    pub fn now(file: &Path, needed: bool, is_ours: IsOurs<'_>) -> Self {
        Self::of(look_at(file, is_ours), needed)
    }

    /// Reads the list as [`Discovery::first`] does: if it is needed and empty, retries for 5 s.
    pub fn awaited(file: &Path, needed: bool, is_ours: IsOurs<'_>) -> Self {
        Self::of(await_list(file, needed, is_ours), needed)
    }

    fn of((list, _, wrong): Looked, needed: bool) -> Self {
        let none = wrong.filter(|_| list.is_empty() && needed).map(|wrong| there_are_none(&wrong));
        Self { upstreams: Arc::new(Upstreams::new(&list)), none }
    }
}

fn there_are_none(wrong: &str) -> String {
    format!(
        "{WIRE_SERVER} stands for the name servers of the node's network, and none is known: {wrong}, and {KEPT} has none from an earlier start"
    )
}

/// Reads a file's text, within a time limit.
///
/// # Errors
/// The system's error, or an expired time limit.
pub fn text_of(file: &Path) -> std::io::Result<String> {
    let text = files::read_with_timeout(file, MOST)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The list, its source, and the error of the network's sources.
type Looked = (Vec<std::net::SocketAddr>, ListOrigin, Option<String>);

/// Reads the list; if one is needed and there is none, retries for 5 s.
fn await_list(file: &Path, needed: bool, is_ours: IsOurs<'_>) -> Looked {
    let mut tries = if needed { TRIES } else { 1 };
    loop {
        let looked = look_at(file, is_ours);
        tries -= 1;
        if tries == 0 || !looked.0.is_empty() {
            return looked;
        }
        thread::sleep(AGAIN);
    }
}

fn look_at(file: &Path, is_ours: IsOurs<'_>) -> Looked {
    let wrong = match NetworkLists::by(files::read_with_timeout(file, MOST)).usable(file, is_ours) {
        Ok((list, origin)) => return (list, origin, None),
        Err(wrong) => wrong,
    };
    let kept = files::read_with_timeout(Path::new(KEPT), MOST).unwrap_or_default();
    let kept = Usable::of_list(&String::from_utf8_lossy(&kept), is_ours).servers;
    let origin = if kept.is_empty() { ListOrigin::Nowhere } else { ListOrigin::Kept };
    (kept, origin, Some(wrong))
}

/// The texts of the network's two sources.
struct NetworkLists {
    resolv_conf: std::io::Result<Vec<u8>>,
    /// The DNS servers of leases that the resolv.conf lacks.
    leases: String,
}

impl NetworkLists {
    fn by(resolv_conf: Result<Vec<u8>, files::ReadError>) -> Self {
        Self { resolv_conf: resolv_conf.map_err(std::io::Error::from), leases: dhcp_servers() }
    }

    /// Returns the usable servers and the source of the first server, or why there are none.
    fn usable(
        self,
        file: &Path,
        is_ours: IsOurs<'_>,
    ) -> Result<(Vec<std::net::SocketAddr>, ListOrigin), String> {
        let leased = Usable::of_list(&self.leases, is_ours);
        let origin = if leased.servers.is_empty() { ListOrigin::File } else { ListOrigin::Leases };
        let (named, unread) = match self.resolv_conf {
            Ok(text) => (Usable::of_resolv_conf(&String::from_utf8_lossy(&text), is_ours), None),
            Err(error) => (Usable::default(), Some(format!("{}: {error}", file.display()))),
        };
        let usable = leased.and(named);
        if !usable.servers.is_empty() {
            return Ok((usable.servers, origin));
        }
        let left_out: Vec<_> = usable.left_out.iter().map(ToString::to_string).collect();
        Err(match unread {
            Some(why) => why,
            None if left_out.is_empty() => format!("{} has no nameserver", file.display()),
            None => format!("{} names only this node ({})", file.display(), left_out.join(" ")),
        })
    }
}

/// Whether the link that we created has this address.
pub fn is_on_our_link(ip: IpAddr) -> bool {
    link_of(ip).is_some_and(|link| link == LINK)
}

/// The file with the last good list, for the next start. AKS's script writes the same file, for
/// programs that bypass this server.
pub const KEPT: &str = "/etc/localdns/upstream-dns";

/// Returns a line for the log that names the servers.
pub fn describe(list: &Upstreams) -> String {
    format!("{WIRE_SERVER} stands for {}", ListText(&list.list()))
}

/// Maximum size of a file in bytes; a resolv.conf has some hundred.
const MOST: u64 = 1 << 20;
/// Interval of checks.
const EVERY: Duration = Duration::from_secs(1);
/// For a start that needs the list: number of tries, and their interval. At boot the network may
/// not be up yet.
const TRIES: u32 = 20;
const AGAIN: Duration = Duration::from_millis(250);
