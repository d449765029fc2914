//! The plugins of CoreDNS 1.15.0 in the order of its plugin.cfg, one row each.
//!
//! Plugins act on a query in this order, whatever their order in the Corefile, and on its answer in
//! the reverse order. A plugin of localdns has a folder of its name, a `mod` line in lib.rs and its row here.

use std::sync::Arc;

use corefile::Directive;

use plugin::args::Result;
use plugin::spec::{HooksSpec, MiddlewareSpec, ParseContext, PluginSpec, Role, SourceSpec};

/// One plugin.
#[derive(Debug)]
pub struct Plugin {
    /// The directive.
    pub name: &'static str,
    /// The function that reads the plugin's directives; `None` for a plugin that localdns lacks.
    pub reader: Option<Reader>,
}

/// The function that reads a plugin's directives in a server block, by the plugin's [`Role`].
#[derive(Debug, Clone, Copy)]
pub enum Reader {
    /// A setting; CoreDNS puts no handler into its chain for it.
    Setting(Read<dyn PluginSpec>),
    /// A handler that every query and reply of the block passes.
    Hooks(Read<dyn HooksSpec>),
    /// A handler around the sources.
    Middleware(Read<dyn MiddlewareSpec>),
    /// A handler that answers from memory.
    Source(Read<dyn SourceSpec>),
    /// A handler that forwards queries or caches their answers.
    Forwarding(Read<dyn PluginSpec>),
    /// A handler that answers queries that no other plugin of the block answered.
    Tail(Read<dyn SourceSpec>),
}

/// Reads every directive of one name in a server block; there is at least one.
pub type Read<S> = fn(&[&Directive], ParseContext<'_>) -> Result<Arc<S>>;

impl Plugin {
    /// Whether localdns has the plugin.
    pub fn is_here(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether CoreDNS has a handler for the plugin in a block's chain.
    fn has_handler(&self) -> bool {
        self.reader.is_some_and(|reader| !matches!(reader, Reader::Setting(_)))
    }

    /// Reads the plugin's directives in a server block; `None` if there is none.
    ///
    /// # Errors
    /// A directive cannot be used; the error has the location of the word.
    pub fn read(&self, block: &[Directive], written: ParseContext<'_>) -> Result<Option<Role>> {
        let own: Vec<&Directive> =
            block.iter().filter(|directive| directive.name.text == self.name).collect();
        let Some(reader) = self.reader.filter(|_| !own.is_empty()) else { return Ok(None) };
        let role = match reader {
            Reader::Setting(read) => Role::Setting(read(&own, written)?),
            Reader::Hooks(read) => Role::Hooks(read(&own, written)?),
            Reader::Middleware(read) => Role::Middleware(read(&own, written)?),
            Reader::Source(read) => Role::Source(read(&own, written)?),
            Reader::Forwarding(read) => Role::Forwarding(read(&own, written)?),
            Reader::Tail(read) => Role::Tail(read(&own, written)?),
        };
        Ok(Some(role))
    }
}

const fn absent(name: &'static str) -> Plugin {
    Plugin { name, reader: None }
}

const fn setting(name: &'static str, read: Read<dyn PluginSpec>) -> Plugin {
    Plugin { name, reader: Some(Reader::Setting(read)) }
}

const fn hooks(name: &'static str, read: Read<dyn HooksSpec>) -> Plugin {
    Plugin { name, reader: Some(Reader::Hooks(read)) }
}

const fn middleware(name: &'static str, read: Read<dyn MiddlewareSpec>) -> Plugin {
    Plugin { name, reader: Some(Reader::Middleware(read)) }
}

const fn source(name: &'static str, read: Read<dyn SourceSpec>) -> Plugin {
    Plugin { name, reader: Some(Reader::Source(read)) }
}

const fn forwarding(name: &'static str, read: Read<dyn PluginSpec>) -> Plugin {
    Plugin { name, reader: Some(Reader::Forwarding(read)) }
}

const fn tail(name: &'static str, read: Read<dyn SourceSpec>) -> Plugin {
    Plugin { name, reader: Some(Reader::Tail(read)) }
}

/// All plugins of CoreDNS, in the order of plugin.cfg.
pub static PLUGINS: &[Plugin] = &[
    setting("root", crate::root::read),
    hooks("metadata", crate::metadata::read),
    absent("geoip"),
    hooks("cancel", crate::cancel::read),
    setting("proxyproto", crate::proxyproto::read),
    setting("quic", crate::quic::read),
    absent("grpc_server"),
    setting("https", crate::https::read),
    absent("https3"),
    setting("timeouts", crate::timeouts::read),
    setting("multisocket", crate::multisocket::read),
    setting("reload", crate::reload::read),
    hooks("nsid", crate::nsid::read),
    hooks("bufsize", crate::bufsize::read),
    setting("bind", crate::bind::read),
    setting("debug", crate::debug::read),
    absent("trace"),
    setting("ready", crate::ready::read),
    setting("health", crate::health::read),
    absent("pprof"),
    hooks("shed", crate::shed::read),
    hooks("prometheus", crate::prometheus::read),
    hooks("errors", crate::errors::read),
    hooks("log", crate::log::read),
    absent("dnstap"),
    middleware("local", crate::local::read),
    middleware("dns64", crate::dns64::read),
    absent("siit"),
    middleware("any", crate::any::read),
    middleware("chaos", crate::chaos::read),
    middleware("loadbalance", crate::loadbalance::read),
    absent("tsig"),
    middleware("rewrite", crate::rewrite::read),
    middleware("autopath", crate::autopath::read),
    middleware("acl", crate::acl::read),
    forwarding("cache", crate::cache::read),
    middleware("header", crate::header::read),
    absent("dnssec"),
    setting("tls", crate::tls::read),
    middleware("minimal", crate::minimal::read),
    source("template", crate::template::read),
    source("transfer", crate::transfer::read),
    absent("dynupdate"),
    source("hosts", crate::hosts::read),
    absent("route53"),
    absent("azure"),
    absent("clouddns"),
    source("k8s_external", crate::k8s_external::read),
    source("kubernetes", crate::kubernetes::read),
    source("file", crate::file::read),
    source("auto", crate::auto::read),
    absent("secondary"),
    absent("etcd"),
    source("loop", crate::r#loop::read),
    forwarding("forward", crate::forward::read),
    absent("grpc"),
    tail("erratic", crate::erratic::read),
    tail("whoami", crate::whoami::read),
    absent("on"),
    absent("sign"),
    hooks("view", crate::view::read),
    absent("nomad"),
];

/// Directives that need another directive in the same block: the directive, and the needed one.
pub const NEEDS: &[(&str, &str)] = &[("k8s_external", "kubernetes")];

/// Returns the row of a directive.
pub fn find(name: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// Returns the directives of localdns, in alphabetical order, as listed by `-plugins`.
pub fn here() -> Vec<&'static str> {
    let mut names: Vec<_> =
        PLUGINS.iter().filter(|plugin| plugin.is_here()).map(|plugin| plugin.name).collect();
    names.sort_unstable();
    names
}

/// Returns the directives of a block that have a handler in CoreDNS, in the table's order.
pub fn handlers(directives: &[&'static str]) -> impl DoubleEndedIterator<Item = &'static str> {
    directives.iter().copied().filter(|name| find(name).is_some_and(Plugin::has_handler))
}

/// Returns the handler that CoreDNS's metrics name for every query of a block: the next one after
/// `prometheus`.
pub fn named_by_metrics(directives: &[&'static str]) -> &'static str {
    let place = |name: &str| PLUGINS.iter().position(|plugin| plugin.name == name);
    handlers(directives).find(|name| place(name) > place("prometheus")).unwrap_or_default()
}
