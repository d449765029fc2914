//! The listen address of HTTP endpoints, for several directives.

use admin::AdminAddress;
use corefile::Directive;

use plugin::args::{Args, Result, bad};

/// Reads the address argument of a directive with an HTTP endpoint.
///
/// # Errors
/// The argument is not an address and port.
pub(crate) fn admin_address(
    plugin: &'static str,
    directive: &Directive,
    default: AdminAddress,
) -> Result<AdminAddress> {
    let mut args = Args::new(plugin, directive, "[ADDRESS:PORT]");
    let Some(word) = args.optional() else { return Ok(default) };
    args.end()?;
    AdminAddress::from_text(&word.text)
        .ok_or_else(|| bad(plugin, word, "ADDRESS:PORT, such as :9153 or 127.0.0.1:9153"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::HealthSpec;
    use crate::prometheus::PrometheusSpec;
    use crate::read_corefile::tests::{good, refused};
    use crate::ready::ReadySpec;

    #[test]
    fn admin_address_defaults() {
        let shown = |address: AdminAddress| {
            address.sockets().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        for (argument, health, ready, prometheus) in [
            ("", "0.0.0.0:8080 [::]:8080", "0.0.0.0:8181 [::]:8181", "127.0.0.1:9153"),
            (":1", "0.0.0.0:1 [::]:1", "0.0.0.0:1 [::]:1", "0.0.0.0:1 [::]:1"),
            ("localhost:1", "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"),
            ("localhost:", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"),
            ("169.254.10.10:1", "169.254.10.10:1", "169.254.10.10:1", "169.254.10.10:1"),
            ("[::1]:1", "[::1]:1", "[::1]:1", "[::1]:1"),
        ] {
            let block = good(&format!("health {argument}\nready {argument}\nprometheus {argument}"));
            assert_eq!(shown(block.get::<HealthSpec>().unwrap().address), health, "{argument}");
            assert_eq!(shown(block.get::<ReadySpec>().unwrap().address), ready, "{argument}");
            assert_eq!(shown(block.get::<PrometheusSpec>().unwrap().address), prometheus, "{argument}");
        }
        const ADDRESS: &str = "is not ADDRESS:PORT, such as :9153 or 127.0.0.1:9153";
        for plugin in ["health", "ready", "prometheus"] {
            let column = plugin.len() + 2;
            for wrong in ["9153", "host:9153", ":65536", "::1:x", "127.0.0.1"] {
                let error = format!("2:{column}: plugin/{plugin}: {wrong:?} {ADDRESS}");
                refused(&[(&format!("{plugin} {wrong}"), &error)]);
            }
            let error = format!(
                "2:{}: plugin/{plugin}: unexpected argument \"x\"; `{plugin}` needs [ADDRESS:PORT]",
                column + 3
            );
            refused(&[(&format!("{plugin} :1 x"), &error)]);
        }
    }
}
