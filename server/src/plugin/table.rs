//! Every plugin of CoreDNS 1.15.0, one row each, in the order of its plugin.cfg: in which they act on a query, whatever
//! their order in the Corefile, and back again on its answer.

use std::sync::Arc;

use corefile::Directive;

use super::step::{StepSpec, Written};
use super::{acl, header, loadbalance, minimal, rewrite};
use crate::setup::args::Result;

/// One row.
#[derive(Debug)]
pub(crate) struct Plugin {
    /// The directive.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

/// What a plugin is to a server block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Nothing yet.
    Absent,
    /// A setting; CoreDNS puts no handler into its chain for it.
    Setting,
    /// A handler that the block knows by its own field.
    Own,
    /// A handler around the sources.
    Step(ReadStep),
}

/// Reads every directive of one name in a server block; there is at least one.
pub(crate) type ReadStep = fn(&[&Directive], Written<'_>) -> Result<Arc<dyn StepSpec>>;

impl Plugin {
    /// Whether it is here.
    pub(crate) fn is_here(&self) -> bool {
        !matches!(self.kind, Kind::Absent)
    }

    /// Whether CoreDNS has a handler for it.
    fn has_handler(&self) -> bool {
        matches!(self.kind, Kind::Own | Kind::Step(_))
    }
}

const fn absent(name: &'static str) -> Plugin {
    Plugin { name, kind: Kind::Absent }
}

const fn setting(name: &'static str) -> Plugin {
    Plugin { name, kind: Kind::Setting }
}

const fn own(name: &'static str) -> Plugin {
    Plugin { name, kind: Kind::Own }
}

const fn step(name: &'static str, read: ReadStep) -> Plugin {
    Plugin { name, kind: Kind::Step(read) }
}

/// The table.
pub(crate) static PLUGINS: &[Plugin] = &[
    setting("root"),
    absent("metadata"),
    absent("geoip"),
    absent("cancel"),
    absent("proxyproto"),
    absent("quic"),
    absent("grpc_server"),
    absent("https"),
    absent("https3"),
    setting("timeouts"),
    setting("multisocket"),
    setting("reload"),
    own("nsid"),
    own("bufsize"),
    setting("bind"),
    setting("debug"),
    absent("trace"),
    setting("ready"),
    setting("health"),
    absent("pprof"),
    absent("shed"),
    own("prometheus"),
    own("errors"),
    own("log"),
    absent("dnstap"),
    absent("local"),
    absent("dns64"),
    absent("siit"),
    absent("any"),
    absent("chaos"),
    step("loadbalance", loadbalance::read),
    absent("tsig"),
    step("rewrite", rewrite::read),
    absent("autopath"),
    step("acl", acl::read),
    own("cache"),
    step("header", header::read),
    absent("dnssec"),
    absent("tls"),
    step("minimal", minimal::read),
    own("template"),
    absent("transfer"),
    absent("dynupdate"),
    own("hosts"),
    absent("route53"),
    absent("azure"),
    absent("clouddns"),
    absent("k8s_external"),
    absent("kubernetes"),
    absent("file"),
    absent("auto"),
    absent("secondary"),
    absent("etcd"),
    own("loop"),
    own("forward"),
    absent("grpc"),
    absent("erratic"),
    own("whoami"),
    absent("on"),
    absent("sign"),
    absent("view"),
    absent("nomad"),
];

/// The row of a directive.
pub(crate) fn find(name: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// The directives that are here, in alphabetical order, as `-plugins` lists them.
pub(crate) fn here() -> Vec<&'static str> {
    let mut names: Vec<_> =
        PLUGINS.iter().filter(|plugin| plugin.is_here()).map(|plugin| plugin.name).collect();
    names.sort_unstable();
    names
}

/// Of a block's directives, in the table's order, those that CoreDNS has handlers for.
pub(crate) fn handlers(directives: &[&'static str]) -> impl DoubleEndedIterator<Item = &'static str> {
    directives.iter().copied().filter(|name| find(name).is_some_and(Plugin::has_handler))
}

/// The handler that CoreDNS's metrics name for a block, whoever answers: the one right below `prometheus`.
pub(crate) fn named_by_metrics(directives: &[&'static str]) -> &'static str {
    let place = |name: &str| PLUGINS.iter().position(|plugin| plugin.name == name);
    handlers(directives).find(|name| place(name) > place("prometheus")).unwrap_or_default()
}
