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

use node::{ListText, Upstreams, Usable, WIRE_SERVER};
use readfile::Look;

use plugin::Spec;
use plugins::bind::BindSpec;
use plugins::forward::ForwardSpecs;

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
pub(crate) enum ListOrigin {
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
pub(crate) enum ListChange {
    Nothing,
    /// Other servers, which count from now on.
    Changed,
    /// It says nothing usable: what was known stands.
    Wrong(String),
}

impl Discovery {
    /// Reads the list for the first time; where the Corefile needs one and there is none yet, again and again for 5 s.
    ///
    /// # Errors
    /// Where one is needed, and neither the file has one nor any was kept.
    pub fn first(file: &Path, spec: &Spec) -> Result<Self, String> {
        let (list, origin, wrong) = await_list(file, spec);
        if let (true, Some(wrong)) = (list.is_empty() && needs_list(spec), &wrong) {
            return Err(format!(
                "{}; let the network's manager write {}, name another file with -upstreams, or the servers in the Corefile",
                there_are_none(wrong),
                file.display()
            ));
        }
        let upstreams = Arc::new(Upstreams::new(&list));
        let wrong = wrong.filter(|_| needs_list(spec));
        Ok(Self { upstreams, file: file.to_owned(), origin, look: Look::default(), due: None, wrong })
    }

    /// The list, for whoever asks its servers.
    pub fn upstreams(&self) -> &Arc<Upstreams> {
        &self.upstreams
    }

    /// Where the list came from.
    pub(crate) fn origin(&self) -> ListOrigin {
        self.origin
    }

    /// What was wrong with the file when it was last read.
    pub(crate) fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Looks at the file once a second, and waits for no disk.
    pub(crate) fn look(&mut self, now: Instant, is_ours: &dyn Fn(IpAddr) -> bool) -> ListChange {
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
    /// Why there are none, where the Corefile needs some.
    pub none: Option<String>,
}

impl Listed {
    /// As they are now; nobody is waited for.
    pub fn now(file: &Path, spec: &Spec) -> Self {
        let own = Own::of(spec);
        Self::of(look_at(file, &|ip| own.has(ip)), spec)
    }

    /// As [`Discovery::first`] has them, which waits for the network.
    pub fn awaited(file: &Path, spec: &Spec) -> Self {
        Self::of(await_list(file, spec), spec)
    }

    fn of((list, _, wrong): Looked, spec: &Spec) -> Self {
        let none = wrong.filter(|_| list.is_empty() && needs_list(spec)).map(|wrong| there_are_none(&wrong));
        Self { upstreams: Arc::new(Upstreams::new(&list)), none }
    }
}

fn there_are_none(wrong: &str) -> String {
    format!(
        "{WIRE_SERVER} stands for the servers of the node's network, and there are none: {wrong}, and {KEPT} has none of an \
         earlier start"
    )
}

/// What stands in the file; it is waited for no longer than a file may take.
pub(crate) fn text_of(file: &Path) -> std::io::Result<String> {
    let text = readfile::read_in_time(file, MOST)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The list, where it came from, and what is wrong with the file.
type Looked = (Vec<std::net::SocketAddr>, ListOrigin, Option<String>);

/// Looks for a list; where the Corefile needs one and there is none yet, again and again for 5 s.
fn await_list(file: &Path, spec: &Spec) -> Looked {
    let own = Own::of(spec);
    let mut tries = if needs_list(spec) { TRIES } else { 1 };
    loop {
        let looked = look_at(file, &|ip| own.has(ip));
        tries -= 1;
        if tries == 0 || !looked.0.is_empty() {
            return looked;
        }
        thread::sleep(AGAIN);
    }
}

fn look_at(file: &Path, is_ours: &dyn Fn(IpAddr) -> bool) -> Looked {
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
        Self { resolv_conf: resolv_conf.map_err(std::io::Error::from), leases: node::dhcp_servers() }
    }

    /// The servers that can be asked, and who has the first; or why there are none.
    fn usable(
        self,
        file: &Path,
        is_ours: &dyn Fn(IpAddr) -> bool,
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
            None => format!("{} names nobody but this node ({})", file.display(), left_out.join(" ")),
        })
    }
}

/// Whether a `forward` asks the address that stands for these servers.
pub(crate) fn needs_list(spec: &Spec) -> bool {
    let stanzas = spec.blocks.iter().filter_map(|block| block.get::<ForwardSpecs>());
    let mut targets = stanzas.flat_map(|specs| &specs.stanzas).flat_map(|stanza| &stanza.targets);
    targets.any(|(target, _)| target.port_of_node().is_some())
}

/// The addresses that we answer at, before anything is bound.
struct Own(Vec<IpAddr>);

impl Own {
    fn of(spec: &Spec) -> Self {
        let binds = spec.blocks.iter().filter_map(|block| block.get::<BindSpec>());
        let words = binds.flat_map(BindSpec::targets);
        Self(words.filter_map(|word| word.text.parse().ok()).collect())
    }

    fn has(&self, ip: IpAddr) -> bool {
        self.0.contains(&ip) || is_on_our_link(ip)
    }
}

/// Whether the link that we made has this address.
pub(crate) fn is_on_our_link(ip: IpAddr) -> bool {
    node::link_of(ip).is_some_and(|link| link == node::LINK)
}

/// The list as production's script writes it for those who look names up past us; ours from one start to the next.
pub(crate) const KEPT: &str = "/etc/localdns/upstream-dns";

/// One line for the log.
pub(crate) fn told(list: &Upstreams) -> String {
    format!("{WIRE_SERVER} stands for {}", ListText(&list.list()))
}

/// A resolv.conf has some hundred octets.
const MOST: u64 = 1 << 20;
/// How often the file is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Of a start that needs the list: how often it looks for one, and how soon again. A boot's network may be on its way.
const TRIES: u32 = 20;
const AGAIN: Duration = Duration::from_millis(250);
