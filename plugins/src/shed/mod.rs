//! `shed`: accepted as in CoreDNS. A worker writes the replies of its own UDP sockets alone, in
//! batches of a fixed size, so the queue that the plugin bounds in CoreDNS does not exist.

use std::sync::Arc;

use corefile::{Directive, Located};

use plugin::SetupError;
use plugin::args::{Result, bare};
use plugin::endpoint::Transport;
use plugin::spec::{BuildContext, HooksSpec, ParseContext};

/// The directive.
#[derive(Debug, Clone, Copy)]
pub struct ShedSpec;

/// Reads the one `shed` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn HooksSpec>> {
    bare(PLUGIN, directives)?;
    if let (Some(directive), true) =
        (directives.first(), written.transports.iter().any(|transport| *transport != Transport::Dns))
    {
        let rule = "it acts on plain DNS alone; put the keys with another scheme into a block without it";
        return Err(Located::new(&directive.name.at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    Ok(Arc::new(ShedSpec))
}

impl HooksSpec for ShedSpec {
    fn build(&self, _: &mut BuildContext<'_>) {}
}

const PLUGIN: &str = "shed";

#[cfg(test)]
mod tests {
    use crate::read_corefile::tests::{refused, spec};

    #[test]
    fn shed_is_for_plain_dns() {
        assert!(spec("dns://. a.test {\nshed\nwhoami\n}\n").is_ok());
        let error = spec(". tls://. {\ntls cert key\nshed\n}\n").expect_err("it is refused");
        assert!(error.starts_with("Corefile:3:1: plugin/shed: it acts on plain DNS alone"), "{error}");
        refused(&[
            ("shed 1", "2:6: plugin/shed: unexpected argument \"1\"; `shed` needs no argument"),
            ("shed {\ndepth 10\n}", "2:1: plugin/shed: `shed` has no sub-block; remove the braces"),
            ("shed\nshed", "3:1: plugin/shed: can only be used once per server block; remove one"),
        ]);
    }
}
