//! A Corefile's meaning: every server block as plain data, each error at its word.
//!
//! Nothing is opened, bound or resolved here; [`Spec::read`] can be called for a file that is only to be checked. What
//! the data means for the machine (interfaces, host names, files) is looked up when the house is built.

pub(crate) mod args;
mod bind;
mod cache;
pub(crate) mod directives;
mod error;
mod forward;
mod hosts;
mod observe;
mod small;
mod template;

use corefile::{Corefile, Directive, Located, Location, Scheme};
use wire::Name;

pub use bind::BindSpec;
pub use cache::CacheSpec;
pub use error::SetupError;
pub(crate) use forward::FILE_INTERVAL;
pub use forward::{ForwardSpec, Target, TlsFiles};
pub use hosts::HostsSpec;
pub use observe::{
    AdminAddress, Classes, Consolidate, ErrorsSpec, HealthSpec, Level, LogRule, PrometheusSpec, ReadySpec,
    ReloadSpec,
};
pub use small::TimeoutsSpec;
pub use template::{Record, TemplateSpec};

use args::{Args, Result, no_block, zone_text};

/// A whole Corefile.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The server blocks, in file order; at least one.
    pub blocks: Vec<BlockSpec>,
}

/// One server block.
#[derive(Debug, Clone)]
pub struct BlockSpec {
    /// Where its first key stands.
    pub at: Location,
    /// Its zones with their ports, in file order.
    pub zones: Vec<(Name, u16, Location)>,
    /// The directives it has, in the order in which they take effect.
    pub directives: Vec<&'static str>,
    /// `bind`; empty means every address.
    pub bind: BindSpec,
    /// `bufsize`, in octets.
    pub bufsize: Option<u16>,
    /// `cache`.
    pub cache: Option<CacheSpec>,
    /// Whether `debug` stands here.
    pub debug: bool,
    /// `errors`.
    pub errors: Option<ErrorsSpec>,
    /// Every `forward`, in file order.
    pub forward: Vec<ForwardSpec>,
    /// `health`.
    pub health: Option<HealthSpec>,
    /// `hosts`.
    pub hosts: Option<HostsSpec>,
    /// Every `log`.
    pub log: Vec<LogRule>,
    /// Whether `loop` stands here.
    pub detect_loop: bool,
    /// `multisocket`: `None` if absent, `Some(None)` without a number.
    pub multisocket: Option<Option<usize>>,
    /// `nsid`: `None` if absent, `Some(None)` without data.
    pub nsid: Option<Option<String>>,
    /// `prometheus`.
    pub prometheus: Option<PrometheusSpec>,
    /// `ready`.
    pub ready: Option<ReadySpec>,
    /// `reload`.
    pub reload: Option<ReloadSpec>,
    /// Every `template`, in file order.
    pub template: Vec<TemplateSpec>,
    /// `timeouts`.
    pub timeouts: Option<TimeoutsSpec>,
    /// Whether `whoami` stands here.
    pub whoami: bool,
}

impl BlockSpec {
    /// The zones without ports.
    pub fn zone_names(&self) -> Vec<Name> {
        self.zones.iter().map(|(zone, ..)| *zone).collect()
    }
}

/// `fallthrough [ZONES...]`: for which names the next plugin is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fallthrough {
    zones: Vec<Name>,
}

impl Fallthrough {
    /// Whether `name` goes on.
    pub fn through(&self, name: &Name) -> bool {
        self.zones.iter().any(|zone| name.is_within(zone))
    }

    fn is_written(&self) -> bool {
        !self.zones.is_empty()
    }

    fn add(&mut self, property: &Directive) -> Result<()> {
        no_block("fallthrough", property)?;
        let words = Args::new("fallthrough", property, "[ZONES...]").rest();
        self.zones = args::zones_or(words, &[Name::ROOT])?;
        Ok(())
    }
}

impl Spec {
    /// Gives a Corefile its meaning; `default_port` fills keys of plain DNS that name none.
    ///
    /// # Errors
    /// The first thing that is wrong, where it stands.
    pub fn read(corefile: &Corefile, default_port: u16) -> Result<Self> {
        if corefile.blocks.is_empty() {
            let file =
                corefile.files.first().map_or_else(|| "Corefile".into(), |file| file.display().to_string());
            return Err(Located::new(&Location::file_only(&file), SetupError::Empty));
        }
        let blocks = corefile
            .blocks
            .iter()
            .map(|block| read_block(block, default_port))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { blocks })
    }
}

fn read_block(block: &corefile::ServerBlock, default_port: u16) -> Result<BlockSpec> {
    let mut zones = Vec::new();
    for key in &block.keys {
        let scheme = match key.scheme {
            Scheme::Dns => None,
            Scheme::Tls => Some("tls://"),
            Scheme::Grpc => Some("grpc://"),
            Scheme::Https => Some("https://"),
            Scheme::Https3 => Some("https3://"),
            Scheme::Quic => Some("quic://"),
        };
        if let Some(scheme) = scheme {
            return Err(Located::new(&key.written.at, SetupError::SchemeNotBuilt(scheme)));
        }
        for zone in &key.zones {
            zones.push((
                zone_text(zone, &key.written.at)?,
                key.port.unwrap_or(default_port),
                key.written.at.clone(),
            ));
        }
    }
    for directive in &block.directives {
        known(directive)?;
    }
    let all = |name: &str| -> Vec<&Directive> {
        block.directives.iter().filter(|directive| directive.name.text == name).collect()
    };
    let own: Vec<Name> = zones.iter().map(|(zone, ..)| *zone).collect();
    let root = present(&all("root"), small::parse_root)?;
    Ok(BlockSpec {
        at: block.at.clone(),
        directives: directives::ORDER
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| !all(name).is_empty())
            .collect(),
        bind: bind::parse(&all("bind"))?,
        bufsize: present(&all("bufsize"), small::parse_bufsize)?,
        cache: present(&all("cache"), |d| cache::parse(d, &own))?,
        debug: present(&all("debug"), |d| small::parse_bare("debug", d))?.is_some(),
        errors: present(&all("errors"), observe::parse_errors)?,
        forward: forward::parse(&all("forward"), root.as_deref())?,
        health: present(&all("health"), observe::parse_health)?,
        hosts: present(&all("hosts"), |d| hosts::parse(d, &own, root.as_deref()))?,
        log: observe::parse_log(&all("log"))?,
        detect_loop: present(&all("loop"), |d| small::parse_bare("loop", d))?.is_some(),
        multisocket: present(&all("multisocket"), small::parse_multisocket)?,
        nsid: present(&all("nsid"), small::parse_nsid)?,
        prometheus: present(&all("prometheus"), observe::parse_prometheus)?,
        ready: present(&all("ready"), observe::parse_ready)?,
        reload: present(&all("reload"), observe::parse_reload)?,
        template: template::parse(&all("template"), &own)?,
        timeouts: present(&all("timeouts"), small::parse_timeouts)?,
        whoami: present(&all("whoami"), |d| small::parse_bare("whoami", d))?.is_some(),
        zones,
    })
}

fn present<T>(
    directives: &[&Directive],
    parse: impl FnOnce(&[&Directive]) -> Result<T>,
) -> Result<Option<T>> {
    if directives.is_empty() { Ok(None) } else { parse(directives).map(Some) }
}

fn known(directive: &Directive) -> Result<()> {
    let found = &directive.name.text;
    let error = match directives::ORDER.iter().find(|(name, _)| name == found) {
        Some((_, true)) => return Ok(()),
        Some((name, false)) => SetupError::NotBuilt(name),
        None => SetupError::UnknownDirective {
            found: found.clone(),
            nearest: corefile::nearest(found, directives::ORDER.iter().map(|(name, _)| *name)),
        },
    };
    Err(Located::new(&directive.name.at, error))
}
