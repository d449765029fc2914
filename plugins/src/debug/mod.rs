//! `debug`: debug lines in the log.

use std::sync::Arc;

use corefile::Directive;

use plugin::args::{Result, bare};
use plugin::spec::{PluginSpec, Written};

/// Stands in a block: lines of level debug are printed.
#[derive(Debug, Clone, Copy)]
pub struct DebugSpec;

/// Reads the one `debug` of a server block.
pub(crate) fn read(directives: &[&Directive], _: Written<'_>) -> Result<Arc<dyn PluginSpec>> {
    bare("debug", directives)?;
    Ok(Arc::new(DebugSpec))
}
