//! Whom the Corefile's 168.63.129.16 stands for: the servers that the node was given by its network, followed, and kept where
//! nothing usable is said.
//!
//! ```text
//! DHCP's, of links whose drop-in is ours and hides them -> the resolv.conf -> where neither has one, the last good list
//! ```

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use readfile::Look;

use crate::{LINK, ListText, Upstreams, Usable, WIRE_SERVER, dhcp_servers, link_of};

/// Whether an address is one at which we answer.
pub type IsOurs<'o> = &'o dyn Fn(IpAddr) -> bool;

/// The list, and where it came from.
pub struct Discovery {
    upstreams: Arc<Upstreams>,
    file: PathBuf,
    origin: ListOrigin,
    look: Look<Said>,
    due: Option<Instant>,
    /// What is wrong with the file, as it was told last.
    wrong: Option<String>,
}

/// Where the list that counts came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListOrigin {
    /// Nobody needs one, and there was none.
    Nowhere,
    /// The file.
    File,
    /// DHCP's leases, and the file behind them.
    Leases,
    /// [`KEPT`], which held the last good one.
    Kept,
}

/// What a look at the file found.
#[derive(Debug, PartialEq, Eq)]
pub enum ListChange {
    /// The same as before.
    Nothing,
    /// Other servers, which count from now on.
    Changed,
    /// It says nothing usable: what was known stands.
    Wrong(String),
}

impl Discovery {
    /// Reads the list for the first time; where one is needed and there is none yet, again and again for 5 s. `is_ours` tells
    /// addresses at which nobody is asked, for we answer there.
    ///
    /// # Errors
    /// Where one is needed, and neither the file has one nor any was kept.
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
        Ok(Self { upstreams, file: file.to_owned(), origin, look: Look::default(), due: None, wrong })
    }

    /// The list, for whoever asks its servers.
    pub fn upstreams(&self) -> &Arc<Upstreams> {
        &self.upstreams
    }

    /// Where the list came from.
    pub fn origin(&self) -> ListOrigin {
        self.origin
    }

    /// What was wrong with the file when it was last read.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Looks at the file once a second, and waits for no disk.
    pub fn look(&mut self, now: Instant, is_ours: IsOurs<'_>) -> ListChange {
        if self.due.is_none_or(|due| due <= now) {
            self.due = Some(now + EVERY);
            let of = self.file.clone();
            self.look.begin(&self.file, now, move || Said::by(readfile::read(&of, MOST)));
        }
        let said = match self.look.take(now, Duration::ZERO) {
            None => return ListChange::Nothing,
            Some(said) => said.unwrap_or_else(|error| Said::by(Err(error))),
        };
        match said.usable(&self.file, is_ours) {
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

/// The servers that count for a command beside the server.
pub struct Listed {
    /// Who they are.
    pub upstreams: Arc<Upstreams>,
    /// Why there are none, where some are needed.
    pub none: Option<String>,
}

impl Listed {
    /// As they are now; nobody is waited for.
    pub fn now(file: &Path, needed: bool, is_ours: IsOurs<'_>) -> Self {
        Self::of(look_at(file, is_ours), needed)
    }

    /// As [`Discovery::first`] has them, which waits for the network.
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

/// What stands in the file; it is waited for no longer than a file may take.
///
/// # Errors
/// What the system says, and that it did not come in time.
pub fn text_of(file: &Path) -> std::io::Result<String> {
    let text = readfile::read_in_time(file, MOST)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The list, where it came from, and what is wrong with the file.
type Looked = (Vec<std::net::SocketAddr>, ListOrigin, Option<String>);

/// Looks for a list; where one is needed and there is none yet, again and again for 5 s.
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
    let wrong = match Said::by(readfile::read_in_time(file, MOST)).usable(file, is_ours) {
        Ok((list, origin)) => return (list, origin, None),
        Err(wrong) => wrong,
    };
    let kept = readfile::read_in_time(Path::new(KEPT), MOST).unwrap_or_default();
    let kept = Usable::of_list(&String::from_utf8_lossy(&kept), is_ours).servers;
    let origin = if kept.is_empty() { ListOrigin::Nowhere } else { ListOrigin::Kept };
    (kept, origin, Some(wrong))
}

/// What the network said of its servers.
struct Said {
    resolv_conf: std::io::Result<Vec<u8>>,
    /// In leases that the resolv.conf is without.
    leases: String,
}

impl Said {
    fn by(resolv_conf: Result<Vec<u8>, readfile::ReadError>) -> Self {
        Self { resolv_conf: resolv_conf.map_err(std::io::Error::from), leases: dhcp_servers() }
    }

    /// The servers that can be asked, and who has the first; or why there are none.
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

/// Whether the link that we made has this address.
pub fn is_on_our_link(ip: IpAddr) -> bool {
    link_of(ip).is_some_and(|link| link == LINK)
}

/// The list as production's script writes it for those who look names up past us; ours from one start to the next.
pub const KEPT: &str = "/etc/localdns/upstream-dns";

/// One line for the log.
pub fn told(list: &Upstreams) -> String {
    format!("{WIRE_SERVER} stands for {}", ListText(&list.list()))
}

/// A resolv.conf has some hundred octets.
const MOST: u64 = 1 << 20;
/// How often the file is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Of a start that needs the list: how often it looks for one, and how soon again. A boot's network may be on its way.
const TRIES: u32 = 20;
const AGAIN: Duration = Duration::from_millis(250);
