//! Limits on pages of plugins: `check` accepts the limit, and refuses values beyond it.

use super::{check, read, stderr};

/// A page, its words, and directives at the limit and beyond it.
struct Row(&'static str, &'static str, &'static str, &'static str);

#[test]
fn bounds_match_the_program() {
    for Row(plugin, words, at, beyond) in ROWS {
        let page = read(&format!("plugins/src/{plugin}/README.md"));
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(page.contains(words), "the page of {plugin} does not say {words:?}");
        let of = |directives: &str| check(&format!(". {{\n{}\nwhoami\n}}\n", directives.replace('|', "\n")));
        let output = of(at);
        assert!(output.status.success(), "{plugin}, {words:?}: {at:?} is refused: {}", stderr(&output));
        let output = of(beyond);
        assert!(!output.status.success(), "{plugin}, {words:?}: {beyond:?} is taken");
        assert!(stderr(&output).contains(&format!("plugin/{plugin}: ")), "{beyond:?}: {}", stderr(&output));
    }
}

/// `|` in the directives is a line break.
const ROWS: &[Row] = &[
    Row("autopath", "0 to 15, default 0", AUTOPATH_15, AUTOPATH_16),
    Row("bufsize", "512 to 4096", "bufsize 512", "bufsize 511"),
    Row("bufsize", "512 to 4096", "bufsize 4096", "bufsize 4097"),
    Row("cache", "1 to 2,147,483,647", "cache 1", "cache 0"),
    Row("cache", "1 to 2,147,483,647", "cache 2147483647", "cache 2147483648"),
    Row(
        "cache",
        "0 (cache none) to 1,073,741,824",
        "cache {|success 1073741824|}",
        "cache {|success 1073741825|}",
    ),
    Row("cache", "longest TTL of a record, from 1", "cache {|denial 9 1|}", "cache {|denial 9 0|}"),
    Row("cache", "10% to 90%", "cache {|prefetch 1 1m 90%|}", "cache {|prefetch 1 1m 91%|}"),
    Row("cache", "10% to 90%", "cache {|prefetch 1 1m 10%|}", "cache {|prefetch 1 1m 9%|}"),
    Row("cache", "are cached, at most 5m", "cache {|servfail 5m|}", "cache {|servfail 301s|}"),
    Row("forward", "at most 15 of IP[:PORT]", FORWARD_15, FORWARD_16),
    Row("hosts", "of every answer, 1 to 65535", "hosts {|ttl 65535|}", "hosts {|ttl 65536|}"),
    Row("hosts", "of every answer, 1 to 65535", "hosts {|ttl 1|}", "hosts {|ttl 0|}"),
    Row(
        "hosts",
        "time between two rounds, at least 5s",
        "hosts /nowhere/h {|refresh a.example|refresh_via 203.0.113.53|refresh_interval 5s|}",
        "hosts /nowhere/h {|refresh a.example|refresh_via 203.0.113.53|refresh_interval 4s|}",
    ),
    Row(
        "k8s_external",
        "0 to 3600",
        "kubernetes c.local|k8s_external e {|ttl 3600|}",
        "kubernetes c.local|k8s_external e {|ttl 3601|}",
    ),
    Row("kubernetes", "0 to 3600", "kubernetes c.local {|ttl 3600|}", "kubernetes c.local {|ttl 3601|}"),
    Row("multisocket", "1 to 1024", "multisocket 1024", "multisocket 1025"),
    Row("multisocket", "1 to 1024", "multisocket 1", "multisocket 0"),
    Row("nsid", "at most 128 bytes", NSID_128, NSID_129),
    Row("reload", "at least 2s", "reload 2s", "reload 1s"),
    Row("reload", "0s, or at least 1s", "reload 9s 1s", "reload 9s 999ms"),
    Row(
        "rewrite",
        "by name or number, such as `SERVFAIL` or `3`, 0 to 23",
        "rewrite rcode exact a 23 0",
        "rewrite rcode exact a 24 0",
    ),
    Row("rewrite", "0 to 4,294,967,295", "rewrite ttl exact a 4294967295", "rewrite ttl exact a 4294967296"),
    Row(
        "rewrite",
        "**CODE** is 0 to 65535",
        "rewrite edns0 local set 65535 a",
        "rewrite edns0 local set 65536 a",
    ),
    Row(
        "rewrite",
        "0 to 32 for IPv4, 0 to 128 for IPv6",
        "rewrite edns0 subnet set 32 128",
        "rewrite edns0 subnet set 33 128",
    ),
    Row(
        "rewrite",
        "0 to 32 for IPv4, 0 to 128 for IPv6",
        "rewrite edns0 subnet set 0 0",
        "rewrite edns0 subnet set 0 129",
    ),
    Row("template", "0 to 65535", "template ANY ANY {|ederror 65535|}", "template ANY ANY {|ederror 65536|}"),
    Row("timeouts", "default 3s, 1s to 24h", "timeouts {|read 24h|}", "timeouts {|read 86401s|}"),
    Row("timeouts", "default 5s, 1s to 24h", "timeouts {|write 1s|}", "timeouts {|write 999ms|}"),
    Row("timeouts", "default 10s, 1s to 24h", "timeouts {|idle 1s|}", "timeouts {|idle 0s|}"),
];
const AUTOPATH_15: &str = "kubernetes c.local|autopath @kubernetes {|ndots 15|}";
const AUTOPATH_16: &str = "kubernetes c.local|autopath @kubernetes {|ndots 16|}";
const FORWARD_15: &str = "forward . 203.0.113.1 203.0.113.2 203.0.113.3 203.0.113.4 203.0.113.5 203.0.113.6 203.0.113.7 203.0.113.8 \
                          203.0.113.9 203.0.113.10 203.0.113.11 203.0.113.12 203.0.113.13 203.0.113.14 203.0.113.15";
const FORWARD_16: &str = "forward . 203.0.113.1 203.0.113.2 203.0.113.3 203.0.113.4 203.0.113.5 203.0.113.6 203.0.113.7 203.0.113.8 \
                          203.0.113.9 203.0.113.10 203.0.113.11 203.0.113.12 203.0.113.13 203.0.113.14 203.0.113.15 203.0.113.16";
/// An `nsid` of 128 bytes, followed by one of 129.
const NSID_128: &str = "nsid 12345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678";
const NSID_129: &str = "nsid 123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";
