//! `root`: the base of relative paths in a server block.

use std::sync::Arc;

use corefile::Directive;

use plugin::args::{Args, Result, Root, no_block, once, path};
use plugin::spec::{ParseContext, PluginSpec};

/// Reads the one `root PATH` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    let directive = once("root", directives)?;
    no_block("root", directive)?;
    let mut args = Args::new("root", directive, "a directory");
    let path = path(None, args.required()?);
    args.end()?;
    Ok(Arc::new(Root(path)))
}

#[cfg(test)]
mod tests {
    use crate::read_corefile::tests::refused;

    #[test]
    fn a_directory_is_named() {
        refused(&[
            ("root", "2:1: plugin/root: `root` needs a directory"),
            ("root /a /b", "2:9: plugin/root: unexpected argument \"/b\"; `root` needs a directory"),
        ]);
    }
}
