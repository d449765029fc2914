//! Server blocks as plain data.

use corefile::{Directive, Location};
use wire::Name;

use crate::args::{self, Args, Result, no_block};
use crate::endpoint::Transport;
use crate::spec::{PluginSpec, Role};

/// A whole Corefile.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The server blocks, in file order; at least one.
    pub blocks: Vec<BlockSpec>,
}

impl Spec {
    /// Returns the specs of this type in all blocks, in file order.
    pub fn specs<T: PluginSpec>(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().filter_map(|block| block.get())
    }
}

/// One server block.
#[derive(Debug, Clone)]
pub struct BlockSpec {
    /// The location of the block's first key.
    pub at: Location,
    /// The block's keys, one for each zone, in file order.
    pub keys: Vec<Key>,
    /// The names and specs of the block's plugins, in the order in which the plugins act.
    pub plugins: Vec<(&'static str, Role)>,
}

impl BlockSpec {
    /// Returns the spec of this type; `None` if the block lacks the plugin.
    pub fn get<T: PluginSpec>(&self) -> Option<&T> {
        self.plugins.iter().find_map(|(_, role)| role.get())
    }

    /// Returns the block's directives, in the order in which they act.
    pub fn directives(&self) -> Vec<&'static str> {
        self.plugins.iter().map(|(name, _)| *name).collect()
    }

    /// Returns the zones of the keys, without ports.
    pub fn zone_names(&self) -> Vec<Name> {
        self.keys.iter().map(|key| key.zone).collect()
    }
}

/// A zone with its transport and port.
#[derive(Debug, Clone)]
pub struct Key {
    /// The zone.
    pub zone: Name,
    /// The transport.
    pub transport: Transport,
    /// The port.
    pub port: u16,
    /// The key's location.
    pub at: Location,
}

/// `fallthrough [ZONES...]`: names that pass to the next plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fallthrough {
    /// Names within these zones fall through.
    pub zones: Vec<Name>,
}

impl Fallthrough {
    /// Whether queries for `name` fall through.
    pub fn through(&self, name: &Name) -> bool {
        self.zones.iter().any(|zone| name.is_within(zone))
    }

    /// Whether the directive has the property `fallthrough`.
    pub fn is_written(&self) -> bool {
        !self.zones.is_empty()
    }

    /// Reads a property `fallthrough` and adds its zones.
    ///
    /// # Errors
    /// A word is not a zone.
    pub fn add(&mut self, plugin: &'static str, property: &Directive) -> Result<()> {
        no_block(plugin, property)?;
        let words = Args::new(plugin, property, "[ZONES...]").rest();
        self.zones = args::zones_or(words, &[Name::ROOT])?;
        Ok(())
    }
}
