//! Every plugin of CoreDNS 1.15.0, one row each, in the order of its plugin.cfg: in which they act on a query, whatever
//! their order in the Corefile, and back again on its answer.

use std::sync::Arc;

use corefile::Directive;

use crate::{
    acl, any, autopath, bind, bufsize, cache, chaos, debug, errors, forward, header, health, hosts,
    k8s_external, kubernetes, loadbalance, log, r#loop, metadata, minimal, multisocket, nsid, prometheus,
    ready, reload, rewrite, root, template, timeouts, tls, transfer, whoami,
};
use plugin::args::Result;
use plugin::spec::{HooksSpec, PluginSpec, Role, SourceSpec, MiddlewareSpec, ParseContext};

/// One row.
#[derive(Debug)]
pub struct Plugin {
    /// The directive.
    pub name: &'static str,
    /// Who reads its directives, and as which [`Role`]; nobody where it is not built.
    pub reader: Option<Reader>,
}

/// Who reads a plugin's directives in a server block, by the [`Role`] that it has there.
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
    /// A handler of what is asked of others.
    Forwarding(Read<dyn PluginSpec>),
    /// A handler that answers where no other plugin of the block did.
    Tail(Read<dyn SourceSpec>),
}

/// Reads every directive of one name in a server block; there is at least one.
pub type Read<S> = fn(&[&Directive], ParseContext<'_>) -> Result<Arc<S>>;

impl Plugin {
    /// Whether it is here.
    pub fn is_here(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether CoreDNS has a handler for it.
    fn has_handler(&self) -> bool {
        self.reader.is_some_and(|reader| !matches!(reader, Reader::Setting(_)))
    }

    /// Reads its directives in a server block; nothing where there are none.
    ///
    /// # Errors
    /// What is wrong with them, at its word.
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

/// The table.
pub static PLUGINS: &[Plugin] = &[
    setting("root", root::read),
    hooks("metadata", metadata::read),
    absent("geoip"),
    absent("cancel"),
    absent("proxyproto"),
    absent("quic"),
    absent("grpc_server"),
    absent("https"),
    absent("https3"),
    setting("timeouts", timeouts::read),
    setting("multisocket", multisocket::read),
    setting("reload", reload::read),
    hooks("nsid", nsid::read),
    hooks("bufsize", bufsize::read),
    setting("bind", bind::read),
    setting("debug", debug::read),
    absent("trace"),
    setting("ready", ready::read),
    setting("health", health::read),
    absent("pprof"),
    absent("shed"),
    hooks("prometheus", prometheus::read),
    hooks("errors", errors::read),
    hooks("log", log::read),
    absent("dnstap"),
    absent("local"),
    absent("dns64"),
    absent("siit"),
    middleware("any", any::read),
    middleware("chaos", chaos::read),
    middleware("loadbalance", loadbalance::read),
    absent("tsig"),
    middleware("rewrite", rewrite::read),
    middleware("autopath", autopath::read),
    middleware("acl", acl::read),
    forwarding("cache", cache::read),
    middleware("header", header::read),
    absent("dnssec"),
    setting("tls", tls::read),
    middleware("minimal", minimal::read),
    source("template", template::read),
    source("transfer", transfer::read),
    absent("dynupdate"),
    source("hosts", hosts::read),
    absent("route53"),
    absent("azure"),
    absent("clouddns"),
    source("k8s_external", k8s_external::read),
    source("kubernetes", kubernetes::read),
    absent("file"),
    absent("auto"),
    absent("secondary"),
    absent("etcd"),
    source("loop", r#loop::read),
    forwarding("forward", forward::read),
    absent("grpc"),
    absent("erratic"),
    tail("whoami", whoami::read),
    absent("on"),
    absent("sign"),
    absent("view"),
    absent("nomad"),
];

/// Which directive a block has to have for another one.
pub const NEEDS: &[(&str, &str)] = &[("k8s_external", "kubernetes")];

/// The row of a directive.
pub fn find(name: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// The directives that are here, in alphabetical order, as `-plugins` lists them.
pub fn here() -> Vec<&'static str> {
    let mut names: Vec<_> =
        PLUGINS.iter().filter(|plugin| plugin.is_here()).map(|plugin| plugin.name).collect();
    names.sort_unstable();
    names
}

/// Of a block's directives, in the table's order, those that CoreDNS has handlers for.
pub fn handlers(directives: &[&'static str]) -> impl DoubleEndedIterator<Item = &'static str> {
    directives.iter().copied().filter(|name| find(name).is_some_and(Plugin::has_handler))
}

/// The handler that CoreDNS's metrics name for a block, whoever answers: the one right below `prometheus`.
pub fn named_by_metrics(directives: &[&'static str]) -> &'static str {
    let place = |name: &str| PLUGINS.iter().position(|plugin| plugin.name == name);
    handlers(directives).find(|name| place(name) > place("prometheus")).unwrap_or_default()
}
