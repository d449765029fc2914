//! A Corefile's meaning: every server block as plain data.

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
    /// What every block says that has such a directive, found by the type that its plugin has for that, in file order.
    pub fn said<T: PluginSpec>(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().filter_map(|block| block.get())
    }
}

/// One server block.
#[derive(Debug, Clone)]
pub struct BlockSpec {
    /// Where its first key stands.
    pub at: Location,
    /// Its keys, one for each zone, in file order.
    pub keys: Vec<Key>,
    /// What its directives say, in the order in which they take effect.
    pub plugins: Vec<(&'static str, Role)>,
}

impl BlockSpec {
    /// What a plugin's directives say, found by the type that it has for that; `None` where they do not stand here.
    pub fn get<T: PluginSpec>(&self) -> Option<&T> {
        self.plugins.iter().find_map(|(_, role)| role.get())
    }

    /// The directives it has, in the order in which they take effect.
    pub fn directives(&self) -> Vec<&'static str> {
        self.plugins.iter().map(|(name, _)| *name).collect()
    }

    /// The zones without ports.
    pub fn zone_names(&self) -> Vec<Name> {
        self.keys.iter().map(|key| key.zone).collect()
    }
}

/// A zone, and where it is served.
#[derive(Debug, Clone)]
pub struct Key {
    /// The zone.
    pub zone: Name,
    /// How clients ask.
    pub transport: Transport,
    /// At which port.
    pub port: u16,
    /// Where it stands.
    pub at: Location,
}

/// `fallthrough [ZONES...]`: for which names the next plugin is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fallthrough {
    /// Names below these.
    pub zones: Vec<Name>,
}

impl Fallthrough {
    /// Whether `name` goes on.
    pub fn through(&self, name: &Name) -> bool {
        self.zones.iter().any(|zone| name.is_within(zone))
    }

    /// Whether it stands in the directive.
    pub fn is_written(&self) -> bool {
        !self.zones.is_empty()
    }

    /// Reads the property of that name.
    ///
    /// # Errors
    /// What is no zone.
    pub fn add(&mut self, plugin: &'static str, property: &Directive) -> Result<()> {
        no_block(plugin, property)?;
        let words = Args::new(plugin, property, "[ZONES...]").rest();
        self.zones = args::zones_or(words, &[Name::ROOT])?;
        Ok(())
    }
}
