//! /status and its page: complete, self-contained, and with the server's data.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tests::{Options, ask, eventually, http_exchange, http_get, isolated, run, tool};

use super::lab::{CLUSTER, Lab, NAME};

/// The page loads nothing from elsewhere, and the fields that it reads exist.
#[test]
fn page_is_self_contained() {
    isolated(|| {
        if !tool("status page", "nft") {
            return;
        }
        let _lab = Lab::new();
        std::fs::write("/run/hosts", "192.0.2.7 file.test\n").expect("the test's own");
        let options = Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
        let server = tests::Server::start_with(COREFILE, options);
        server.wait_for_log("queries to 169.254.10.10 are answered here", PATIENCE);
        for _ in 0..2 {
            assert_eq!(ask(at("169.254.10.10:53"), NAME, "A").short(), [CLUSTER]);
            assert_eq!(ask(at("169.254.10.10:53"), "file.test", "A").short(), ["192.0.2.7"]);
        }
        let admin = at("127.0.0.1:9253");
        let (head, page) = http_exchange(admin, "/status.html").expect("a page");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let header = |name: &str| {
            let start = format!("{name}: ");
            head.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default().to_owned()
        };
        assert_eq!(header("content-type"), "text/html; charset=utf-8");
        assert_eq!(header("cache-control"), "no-store");
        assert_eq!(header("x-content-type-options"), "nosniff");
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
        for part in ["script-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]
        {
            assert!(policy.contains(part), "{policy}");
        }
        // A browser runs only what matches its hash in the policy.
        for (tag, directive) in [("script", "script-src"), ("style", "style-src")] {
            let body = between(&page, &format!("<{tag}>"), &format!("</{tag}>"));
            std::fs::write("/run/body", body).expect("the test's own");
            let base64 = between(&policy, &format!("{directive} 'sha256-"), "'");
            let allowed =
                run("sh", &["-ec", &format!("echo {base64} | base64 -d | od -An -v -tx1 | tr -d ' \\n'")]);
            assert_eq!(
                run("sha256sum", &["/run/body"]).split(' ').next(),
                Some(&*allowed),
                "{tag}: {policy}"
            );
        }
        for outside in ["http://", "https://", "src=", "@import", "url(", "innerHTML", "style=\"", "onclick"]
        {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!((page.matches("<script>").count(), page.matches("<style>").count()), (1, 1));

        let status = eventually("a probed address", PATIENCE, || {
            let (code, text) = http_get(admin, "/status").ok()?;
            assert_eq!(code, 200, "{text}");
            let status: Value = serde_json::from_str(&text).expect("one object");
            let is_reported =
                status["answers"]["queries"].as_u64()? >= 4 && status["node"]["addresses"][0]["held"] == true;
            is_reported.then_some(status)
        });
        // Every JSON pointer that the script reads.
        for path in [
            "/version",
            "/pid",
            "/uptime_seconds",
            "/not_ready",
            "/reload_failed",
            "/kubernetes",
            "/answers/queries",
            "/answers/cache_hits",
            "/answers/hosts_hits",
            "/answers/served_stale",
            "/answers/servfail",
            "/answers/dropped",
            "/cache/bytes",
            "/cache/partitions/0/server",
            "/cache/partitions/0/zones",
            "/cache/partitions/0/success",
            "/cache/partitions/0/denial",
            "/upstreams/0/address",
            "/upstreams/0/transport",
            "/upstreams/0/up",
            "/upstreams/0/loops",
            "/upstreams/0/fails",
            "/upstreams/0/rtt_ms",
            "/upstreams/0/replies",
            "/upstreams/0/failed_probes",
            "/serves/0/server",
            "/serves/0/zone",
            "/serves/0/plugins",
            "/serves/0/corefile",
            "/hosts/0/file",
            "/hosts/0/entries",
            "/hosts/0/read_seconds_ago",
            "/refresh/0/unpublished",
            "/refresh/0/entries/0/name",
            "/refresh/0/entries/0/family",
            "/refresh/0/entries/0/addresses",
            "/refresh/0/entries/0/source",
            "/refresh/0/entries/0/age_seconds",
            "/refresh/0/entries/0/failure",
            "/refresh/0/entries/0/next_refresh_seconds",
            "/node/rules",
            "/node/has_leases",
            "/node/let_go",
            "/node/rules_put_back",
            "/node/network_servers",
            "/node/addresses/0/address",
            "/node/addresses/0/held",
            "/node/addresses/0/lost",
            "/node/addresses/0/probed_ms_ago",
            "/node/addresses/0/probe_error",
        ] {
            assert!(status.pointer(path).is_some(), "{path}\n{status:#}");
            let word = path.rsplit('/').next().expect("a word");
            assert!(page.contains(&format!(".{word}")), "the page does not read {path}");
        }
        assert_eq!(status["pid"], server.pid());
        assert_eq!(status["kubernetes"], Value::Null);
        assert_eq!(status["answers"]["hosts_hits"], 2, "{status:#}");
        assert_eq!(status["answers"]["cache_hits"], 1, "{status:#}");
        assert_eq!(status["hosts"][0]["file"], "/run/hosts");
        // A name and an address, which CoreDNS counts as two.
        assert_eq!(status["hosts"][0]["entries"], 2);
        assert_eq!(status["upstreams"][0]["address"], "10.2.0.2:53");
        assert_eq!(status["upstreams"][0]["up"], true);
        assert_eq!(status["node"]["rules"], "nft");
        assert_eq!(status["serves"][0]["server"], "dns://169.254.10.10:53");
        // `/` is a 404 like in CoreDNS, and the exporter's port has neither page.
        for (admin, path) in
            [(admin, "/"), (at("127.0.0.1:9353"), "/status"), (at("127.0.0.1:9353"), "/status.html")]
        {
            assert_eq!(http_get(admin, path).expect("an answer").0, 404, "{admin}{path}");
        }
    });
}

fn between<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let rest = text.split_once(from).expect("it begins").1;
    rest.split_once(to).expect("it ends").0
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

const PATIENCE: Duration = Duration::from_secs(10);
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10
    hosts /run/hosts {
        refresh kept.test
        refresh_via 10.2.0.2
        fallthrough
    }
    cache
    forward . 10.2.0.2
    prometheus :9253
}
";
